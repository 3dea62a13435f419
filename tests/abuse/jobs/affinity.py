"""Run on more cores than were granted, by setting one's own affinity.

Succeeds if this process may then run on a core that it was not given.
"""

import contextlib
import os

from kit import got, report

before = os.sched_getaffinity(0)
with contextlib.suppress(OSError):
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
if more := os.sched_getaffinity(0) - before:
    got.append(f"cores {sorted(more)} beside {sorted(before)}")
report()
