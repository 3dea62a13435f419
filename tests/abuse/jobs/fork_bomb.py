"""Attack 9: make processes until the kernel refuses, under a limit of 80 (`--pids-limit 80`). Bounded by itself to 600.

Succeeds if many more than 80 are alive at one time.
"""

import os
import time

from kit import got, report

LIMIT, MARGIN, MOST = 80, 20, 600

made: list[int] = []
try:
    while len(made) < MOST:
        pid = os.fork()
        if pid == 0:
            time.sleep(8)
            os._exit(0)
        made.append(pid)
except OSError:
    pass
alive = 0
for pid in made:
    try:
        alive += os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        continue
if alive > LIMIT + MARGIN:
    got.append(f"{alive} processes at once, {LIMIT} allowed")
report(alive=alive)
