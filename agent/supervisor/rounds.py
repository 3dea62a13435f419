"""Kills in rounds what cannot be killed at once: the descendants of a process are stopped and killed until none is
left, which is then proven. Stdlib only."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from distributed_grid.agent.supervisor import procs

_CLEAN = 3  # consecutive scans that must find nothing
_STUCK = 20  # consecutive scans that find the same processes, which do not end: waiting longer for them is in vain
_NEWEST = 16  # number of newest pids checked between two scans
_CHASE = 0.003  # duration of these checks (s): one time slice, in which nothing else runs on our processor
_PAUSE = 0.001  # pause between rounds (s)
_DEEPEST = 10_000  # maximum number of ancestors: parents are read at different times and may form a loop
_OUTSIDE = -1  # instead of a depth: not below the subreaper
_GONE = -1  # instead of a parent: the process has ended


class Found(NamedTuple):
    """Result of a scan: start times of the members by pid, parents before children; and whether it is complete.
    `groups`: the members' process groups by pid, but those that may have others in them."""

    members: dict[int, int]
    complete: bool
    groups: Mapping[int, int] = MappingProxyType({})


class Verdict(NamedTuple):
    """The result of killing in rounds. `proven`: nothing is left, and nothing can come back. Otherwise the node cannot
    promise that the job's capacity is free; it reports that, and accepts only jobs of people it trusts."""

    proven: bool
    ended: int
    rounds: int


class Descendants:
    """All descendants of a subreaper, given by its pid, except the `excluded` children and their descendants.

    Membership follows from lineage alone: a subreaper never loses a descendant, whatever that does (setsid, double
    fork). Reading `children` files misses processes that fork and exit faster than they are read. A scan of /proc does
    not: it goes up by pid, and a child has a higher pid than its parent, so the live end of a chain of forks is always
    still ahead. A scan proves that nothing is left if every process that it met could be read and was no member, and if
    pids did not wrap around meanwhile."""

    def __init__(self, subreaper: int, excluded: Callable[[], Collection[int]] = tuple) -> None:
        self._subreaper = subreaper
        self._excluded = excluded

    def scan(self) -> Found:
        """Scan all processes once."""
        excluded, last = {*self._excluded()}, last_pid()
        parents: dict[int, int] = {}
        starts: dict[int, int] = {}
        groups: dict[int, int] = {}
        complete = True
        for pid in _pids_by_age():
            seen = procs.stat(pid)
            if seen is None:
                complete = False  # it may have been a member, whose child is also gone when the scan gets there
            elif procs.lives(seen):
                parents[pid], starts[pid], groups[pid] = seen.parent, seen.start, seen.group
        depths = self._known(excluded)
        for pid in parents:
            self._measure(pid, parents, depths)
        found = {pid: depths[pid] for pid in parents}
        members = sorted((depth, pid) for pid, depth in found.items() if depth is not None and depth > 0)
        complete &= None not in found.values() and last <= last_pid()
        # A group is in one session, and a session of the subreaper's descendants has nobody else in it but itself.
        mixed = {_group_of(pid) for pid in (self._subreaper, *excluded)}
        whole = {pid: groups[pid] for _, pid in members if groups[pid] not in mixed}
        return Found({pid: starts[pid] for _, pid in members}, complete, whole)

    def is_member(self, pid: int) -> bool | None:
        """Whether this process is a member; None: unknown, since an ancestor has ended meanwhile."""
        depths = self._known(self._excluded())
        self._measure(pid, {}, depths)
        return None if (depth := depths[pid]) is None else depth > 0

    def _known(self, excluded: Collection[int]) -> dict[int, int | None]:
        """The depths below the subreaper that are known at first. Descendants of a process outside are outside; those
        of one that has ended are unknown."""
        return {0: _OUTSIDE, 1: _OUTSIDE, _GONE: None} | dict.fromkeys(excluded, _OUTSIDE) | {self._subreaper: 0}

    def _measure(self, pid: int, parents: dict[int, int], depths: dict[int, int | None]) -> None:
        """Determine the depth of this process and of all its ancestors."""
        path = []
        while pid not in depths:
            path.append(pid)
            parent = parents.get(pid)
            if parent is None:  # newer than the scan; or it was dead, and its children have another parent by now
                seen = procs.stat(pid) if len(path) < _DEEPEST else None
                parent = seen.parent if seen is not None else _GONE
            pid = parent
        depth = depths[pid]
        for one in reversed(path):
            depth = depth + 1 if depth is not None and depth >= 0 else depth
            depths[one] = depth


def end_in_rounds(
    scan: Callable[[], Found],
    is_member: Callable[[int], bool | None] | None = None,
    seconds: float = 3.0,
    pause: Callable[[], object] = lambda: None,
) -> Verdict:
    """Stop and kill what `scan` finds, until it finds nothing any more several times in a row, or always the same.
    `is_member` tells of the newest processes whether they are among them, faster than a scan can. `pause` is called in
    each round: a subreaper reaps there, since each zombie takes a pid."""
    deadline = time.monotonic() + seconds
    killed: set[tuple[int, int]] = set()
    before: dict[int, int] = {}
    clean = stuck = rounds = 0
    with _with_priority() as alone:
        while clean < _CLEAN and stuck < _STUCK and time.monotonic() < deadline:
            rounds += 1
            found = scan()
            stuck = stuck + 1 if found.members and found.members == before else 0
            before = found.members
            if found.members:
                clean = 0
            elif found.complete:
                clean += 1
            killed |= _stop_and_kill(found, scan, deadline, alone)
            if is_member is not None and not clean:
                killed |= _kill_newest(is_member, alone)
            pause()
            time.sleep(_PAUSE)  # a killed process exits on our processor, so only while we sleep
    return Verdict(clean >= _CLEAN, len(killed), rounds)


def _stop_and_kill(found: Found, scan: Callable[[], Found], deadline: float, alone: bool) -> set[tuple[int, int]]:
    """Stop parents first, so that none sees a child end and forks another; then kill. `alone`: see _with_priority."""
    stopped: dict[int, int] = {}
    while fresh := {pid: start for pid, start in found.members.items() if stopped.get(pid) != start}:
        _stop_groups(fresh, found.groups)
        for pid, start in fresh.items():
            if procs.send(pid, start, signal.SIGSTOP) and alone:
                _to_our_core(pid)
        stopped |= fresh
        if time.monotonic() > deadline:
            break
        found = scan()
    # Children first: their parent may be their only reaper.
    return {(pid, start) for pid, start in reversed(stopped.items()) if procs.send(pid, start, signal.SIGKILL)}


def _stop_groups(members: Mapping[int, int], groups: Mapping[int, int]) -> None:
    """Stop whole process groups, each in one call, which no fork outruns: while we stop the processes of a fork bomb
    one by one, those that still run take nearly all of our time."""
    known = {pid: groups[pid] for pid in members if pid in groups}
    sizes = Counter(known.values())
    for pid, group in known.items():
        if sizes.pop(group, 1) == 1 or not procs.send(pid, members[pid], signal.SIGSTOP):
            continue
        seen = procs.stat(pid)  # as it is stopped it stays in its group, whose number nobody else can get
        if seen is not None and (seen.start, seen.group) == (members[pid], group):
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGSTOP)


def _group_of(pid: int) -> int:
    seen = procs.stat(pid)
    return 0 if seen is None else seen.group


def _kill_newest(is_member: Callable[[int], bool | None], alone: bool) -> set[tuple[int, int]]:
    """Kill the newest processes of this machine that are members."""
    killed: set[tuple[int, int]] = set()
    until = time.monotonic() + _CHASE
    while time.monotonic() < until:
        newest = last_pid()
        for pid in range(newest, max(newest - _NEWEST, 2), -1):
            seen = procs.stat(pid)
            if seen is None or not procs.lives(seen) or not is_member(pid):
                continue
            if alone:
                _to_our_core(pid)
            if procs.send(pid, seen.start, signal.SIGKILL):
                killed.add((pid, seen.start))
    return killed


def _to_our_core(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(pid, os.sched_getaffinity(0))


@contextlib.contextmanager
def _with_priority() -> Iterator[bool]:
    """Run on one processor with real-time priority, if that is permitted: True, and nothing else runs there meanwhile.
    Otherwise we run wherever there is room, and what is brought to our processor would only take our time."""
    cores, policy, own = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    alone = False
    try:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
            alone = True
            os.sched_setaffinity(0, {min(cores)})
        yield alone
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, policy, own)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def last_pid() -> int:
    """The pid that was given out last in our pid namespace."""
    with open("/proc/loadavg") as file:
        return int(file.read().rsplit(None, 1)[1])


def _pids_by_age() -> Iterator[int]:
    """Yield all pids, the oldest process first, as the kernel lists them."""
    with os.scandir("/proc") as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdecimal())
