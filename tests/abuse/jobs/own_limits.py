"""Leave one's own parent, the process that starts the jobs of this submitter, with limits on files, processor time and
file size that nothing can live with, and as the last of all in the kernel's schedule. Who has the same user id may
do that (prlimit), whatever else is closed to it.

Succeeds if somebody else's job comes to harm, or if the submitter's next job does; only the harness can see that.
"""

import contextlib
import os
import resource

from kit import report

parent = os.getppid()
changed = []
for name, limit in (
    ("NOFILE", (3, 3)), ("FSIZE", (0, 0)), ("NPROC", (1, 1)), ("AS", (1 << 20, 1 << 20)), ("STACK", (1 << 12, 1 << 12)),
    ("CORE", (0, 0)), ("DATA", (1 << 20, 1 << 20)), ("MSGQUEUE", (0, 0)), ("SIGPENDING", (0, 0)),
):  # fmt: skip
    with contextlib.suppress(OSError, ValueError):
        resource.prlimit(parent, getattr(resource, f"RLIMIT_{name}"), limit)
        changed.append(name)
with contextlib.suppress(OSError):
    os.setpriority(os.PRIO_PROCESS, parent, 19)
with contextlib.suppress(OSError):
    os.sched_setscheduler(parent, os.SCHED_IDLE, os.sched_param(0))
report(changed=changed)
