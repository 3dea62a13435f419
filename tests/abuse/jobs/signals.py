"""Send signals to everybody else: the agent, the supervisor, the coordinator, the neighbour, and all processes that can
be seen. The signals are harmless ones (SIGURG, SIGCONT), but who may send these may send SIGKILL as well.

Succeeds if a service or the neighbour can be signalled, by kill or by a pidfd.
"""

import os
import signal

from kit import alone, attempt, others, report, scene, targets


def by_pidfd(pid: int) -> None:
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, signal.SIGURG)
    finally:
        os.close(fd)


for name, pid in targets():
    attempt(f"signal {name}", os.kill, pid, signal.SIGURG)
    attempt(f"signal {name} by pidfd", by_pidfd, pid)
    attempt(f"signal {name}'s group", os.killpg, pid, signal.SIGCONT)
named = dict(targets()).values()
for pid in others():
    # What has this job's own user belongs to its own submitter at most, which the walls do not promise.
    try:
        mine = alone() or (os.stat(f"/proc/{pid}").st_uid == os.getuid() and scene["walled"])
    except OSError:
        continue
    if pid not in named and not mine:
        attempt(f"signal process {pid}", os.kill, pid, signal.SIGURG)
report()
