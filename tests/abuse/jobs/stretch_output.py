"""Make one's own output a file of 4 TB (sparse), take its append mode away, lock it, and put a lease on it: whoever
reads, trims or ships it pays for that, or waits.

Also take all modes from it, through the open descriptor. Succeeds if agent or supervisor take more memory, wait or
stumble; only the harness can see that.
"""

import contextlib
import fcntl
import os

from kit import report

FAR = 4 << 40

with contextlib.suppress(OSError):
    fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) & ~os.O_APPEND)
for fd in (1, 2):
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0)  # where the agent is no more than the owner of the file, it may not open it any more
report()
with contextlib.suppress(OSError):
    os.ftruncate(2, FAR)
with contextlib.suppress(OSError):
    os.pwrite(2, b"far away\n", FAR - 100)
