"""Raise one's own limits and priority, and change those of others.

Succeeds if a hard limit, the niceness, the real-time class or the out-of-memory score becomes better than it was, or if
limits, priority or cores of a service or the neighbour can be set.
"""

import os
import resource

from kit import attempt, report, targets


def lift(which: int) -> None:
    soft, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY:
        raise OSError("nothing to raise")
    resource.setrlimit(which, (soft, resource.RLIM_INFINITY))


def favour(score: int) -> None:
    with open("/proc/self/oom_score_adj") as file:
        before = int(file.read())
    if score >= before:
        raise OSError("no better")
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


for name in ("NPROC", "AS", "CORE", "MEMLOCK", "NICE", "RTPRIO"):
    attempt(f"raise RLIMIT_{name}", lift, getattr(resource, f"RLIMIT_{name}"))
before = os.getpriority(os.PRIO_PROCESS, 0)
attempt("a better niceness", os.setpriority, os.PRIO_PROCESS, 0, before - 1)
attempt("the real-time class", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
attempt("a better out-of-memory score", favour, -500)
for name, pid in targets():
    attempt(f"limits of {name}", resource.prlimit, pid, resource.RLIMIT_NOFILE)
    attempt(f"niceness of {name}", lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19), pid)
    attempt(f"cores of {name}", lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid)), pid)
report()
