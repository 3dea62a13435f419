"""Processes: descendants, orphans, and signals that cannot reach a reused pid. A thin layer over /proc, pidfds and the
three kernel calls that Python does not have. Stdlib only."""

import ctypes
import fcntl
import os
import signal
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distributed_grid.runtime.unix import boot_clock, read

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_PIDFD_INFO_EXIT = 1 << 3
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Stat(NamedTuple):
    """Fields of /proc/<pid>/stat: `start` in clock ticks since boot, `resident` in bytes, including shared pages;
    `status` is a zombie's wait status."""

    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int
    resident: int
    status: int


def punch_hole(fd: int, start: int, end: int) -> None:
    """Free the disk blocks of [start, end); the file keeps its size and reads as zeros there."""
    if _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, start, end - start) != 0:
        raise OSError(ctypes.get_errno(), "fallocate(PUNCH_HOLE)")


now = boot_clock
"""Seconds since boot, including suspension: the only clock of the supervisor, the same for the next one."""


def ticks() -> int:
    """Now, in the unit of `Stat.start`."""
    return int(now() * _TICKS)


def oom_scores(found: int) -> tuple[int, int]:
    """The scores of jobs, and our own if we may have it, of a supervisor that began with this one: the OOM killer takes
    jobs before what the node's owner runs, and us after that. What started us may be spared; jobs are not."""
    return max(found, 500), max(-1000, found - 500)


def protect_from_oom() -> tuple[str, str]:
    """Take our own score; the scores (jobs', own) to switch between."""
    found = oom_score(os.getpid()) or 0
    jobs, own = oom_scores(found)
    try:
        me = stat(os.getpid())
        set_oom_score(os.getpid(), me.start if me is not None else 0, own)
    except OSError:
        own = found
    return str(jobs), str(own)


def oom_score(pid: int) -> int | None:
    """The OOM score of a process, -1000 to 1000; None if it is gone."""
    text = read(f"/proc/{pid}/oom_score_adj")
    return int(text) if text else None


def set_oom_score(pid: int, start: int, score: int) -> None:
    """Set it, unless the process with this start time (clock ticks since boot) is gone. Raises OSError."""
    fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        seen = stat(pid)  # what was opened is never that of a later process
        if seen is not None and seen.start == start:
            os.write(fd, str(score).encode())
    finally:
        os.close(fd)


def boot_id() -> str:
    """The kernel's name for this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def stat(pid: int) -> Stat | None:
    """Return the present state of a process; None if it does not exist."""
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    if not text:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and parentheses
    parent, group, session, threads, start, pages, status = (int(fields[at]) for at in (1, 2, 3, 17, 19, 21, 49))
    return Stat(fields[0], parent, group, session, threads, start, pages * _PAGE, status)


def cpu_seconds(pid: int, start: int) -> float:
    """The CPU time of a process and of those of its descendants that were reaped; 0 if it is gone."""
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    fields = text[text.rfind(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / _TICKS if fields and int(fields[19]) == start else 0.0


def resident(pid: int, seen: Stat) -> int:
    """Return the resident memory of a process (bytes). If its first thread has ended, the kernel shows it only for the
    others."""
    if seen.resident or seen.threads < 2:
        return seen.resident
    return next((other.resident for thread in threads(pid) if (other := stat(thread)) and other.resident), 0)


def unreclaimable(pid: int) -> int:
    """Bytes of memory that are given back only when the process ends, in RAM or swapped out: its own, and its part of
    what it shares with others; not files that it has mapped. The kernel walks all its pages for that: some 10 ms a GiB.
    """
    return _unreclaimable(pid) or next(filter(None, map(_unreclaimable, threads(pid))), 0)


def _unreclaimable(pid: int) -> int:
    rollup = _sizes(f"/proc/{pid}/smaps_rollup", b"Pss_Anon", b"Pss_Shmem", b"SwapPss")
    if b"Pss_Anon" in rollup:
        return sum(rollup.values())
    return sum(_sizes(f"/proc/{pid}/status", b"RssAnon", b"RssShmem", b"VmSwap").values())


def _sizes(path: str, *names: bytes) -> dict[bytes, int]:
    """Bytes by name, of these lines such as `VmSwap:  12 kB`; others may hold what the process chose, as its name."""
    lines = (line.partition(b":") for line in read(path).split(b"\n"))
    return {name: int(value.split()[0]) << 10 for name, _, value in lines if name in names}


def oom_kills() -> int:
    """The machine's number of OOM kills since boot."""
    _, found, rest = read("/proc/vmstat").partition(b"\noom_kill ")
    return int(rest.split(None, 1)[0]) if found else 0


def threads(pid: int) -> list[int]:
    """The threads of a process; none if it is gone."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def set_niceness(thread: int, nice: int) -> None:
    """Set the niceness of one thread. Raises OSError."""
    os.setpriority(os.PRIO_PROCESS, thread, nice)


def session_niceness(pid: int) -> int | None:
    """The niceness of a process's session; None: it is gone, or this kernel does not share time out by sessions."""
    text = read(f"/proc/{pid}/autogroup")
    return int(text.rsplit(None, 1)[1]) if b" nice " in text else None


def set_session_niceness(pid: int, nice: int) -> None:
    """Set the niceness of the process's session. A user who is not root may do so ten times a second on a machine.
    Raises OSError."""
    fd = os.open(f"/proc/{pid}/autogroup", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(nice).encode())
    finally:
        os.close(fd)


def all_pids() -> Iterator[int]:
    """Yield all pids. Costs milliseconds: only for the rare moments after a supervisor was killed."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def children(pid: int) -> list[int]:
    """The children of all threads of a process. Some may be missed while they come and go: repeat until none is new."""
    return [int(child) for thread in threads(pid) for child in read(f"/proc/{pid}/task/{thread}/children").split()]


def descendants(roots: Iterable[int]) -> dict[int, Stat]:
    """The roots and their live descendants."""
    found: dict[int, Stat] = {}
    todo = [(root, -1) for root in roots]
    while todo:
        pid, parent = todo.pop()
        seen = stat(pid) if pid not in found else None
        if seen is None or not lives(seen):
            continue
        # A child that became an orphan meanwhile is ours by now; any other parent means that the pid was reused.
        if parent >= 0 and seen.parent not in found and seen.parent != os.getpid():
            continue
        found[pid] = seen
        todo += [(child, pid) for child in children(pid)]
    return found


def lives(seen: Stat) -> bool:
    """Whether a process has a live thread, even if its first one is a zombie."""
    return seen.state not in "ZX" or seen.threads > 1


def send(pid: int, start: int, signum: int) -> bool:
    """Signal the process with this pid and start time, never one that reused the pid."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # The pidfd holds the process first, then it is compared: what is signalled is what was compared.
        seen = stat(pid)
        if seen is None or seen.start != start:
            return False
        signal.pidfd_send_signal(fd, signum)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def status_by_pidfd(fd: int, pid: int, start: int) -> int | None:
    """Return the wait status of an ended process that is the child of another one; None if the kernel does not report
    it (yet)."""
    seen = stat(pid)
    if seen is not None and seen.start == start and not lives(seen) and seen.status:
        return seen.status  # 0 is also what is shown to who may not know
    info = bytearray(struct.pack("=Q56x", _PIDFD_INFO_EXIT))
    try:
        fcntl.ioctl(fd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, status = struct.unpack("=Q52xi", info)
    return status if mask & _PIDFD_INFO_EXIT else None


def pid_of(fd: int) -> int:
    """The pid, in our namespace, of a pidfd's process; 0 if it is gone."""
    for line in read(f"/proc/self/fdinfo/{fd}").splitlines():
        if line.startswith(b"Pid:"):
            return max(0, int(line[4:]))
    return 0


class OwnChildren:
    """The list of this process's own children, cheap to read again: one system call on an open file.

    It is exact: children leave it only when they are reaped, and only this process does that, in its first thread,
    whose children they are.
    """

    def __init__(self) -> None:
        self._fd = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY)

    def read(self) -> set[int]:
        parts = []
        offset = 0
        while part := os.pread(self._fd, 1 << 16, offset):
            parts.append(part)
            offset += len(part)
        return set(map(int, b"".join(parts).split()))
