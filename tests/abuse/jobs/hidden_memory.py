"""Take memory that no process has mapped: in an anonymous file (memfd), where looking at processes does not find it.

Succeeds if it comes to hold three times what this job was granted.
"""

import os
import time

from kit import got, report, scene

GRANTED = int(scene["granted"])
STEP = 16 << 20

fd = os.memfd_create("hidden")
taken = 0
while taken < 3 * GRANTED:
    taken += os.write(fd, os.urandom(1 << 10) * (STEP >> 10))
    time.sleep(0.05)
got.append(f"{taken >> 20} MiB of {GRANTED >> 20} granted, in a file that has no name")
report()
time.sleep(2.0)
