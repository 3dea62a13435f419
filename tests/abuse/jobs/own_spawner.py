"""Turn against one's own parent, the process that started this job: end it (`KILL`), stop it (`STOP`), or end all
processes of one's own user (`ALL`).

This may harm the same submitter's jobs. It succeeds if it harms anybody else, or if the node starts nothing more; only
the harness can see that.
"""

import os
import signal
import sys
import time

from kit import others, report

number = signal.SIGSTOP if sys.argv[2] == "STOP" else signal.SIGKILL
did = []
victims = [os.getppid()]
if sys.argv[2] == "ALL":
    victims += [pid for pid in others() if os.stat(f"/proc/{pid}").st_uid == os.getuid()]
report(parent=os.getppid())
for pid in victims:
    if pid > 1:
        try:
            os.kill(pid, number)
        except OSError:
            continue
        did.append(pid)
time.sleep(1.0)
