"""One control group as a directory: limits, members, freezing, killing and removing, in both versions. Stdlib only.

A write to `cgroup.procs` waits for all forks under way on the machine. The first one after a pause of about 20 ms costs
an RCU grace period (8 ms measured); those that follow cost 13 to 130 us each, in any hierarchy. In version 1, a
single-threaded process that writes `0` to a `tasks` file moves itself without it."""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from distributed_grid.agent.supervisor import procs

_PERIOD = 100_000  # microseconds in which a cpu limit holds
_ROUNDS = 20
_SPARED = 0.01  # seconds to the end of what `cgroup.kill` kills, as a rule
_HELD = 256  # pidfds at once: a process may have 1,024 files open as a rule
_MOST = 10_000  # groups of one job that one call looks at


class Place(NamedTuple):
    """The parent directory of the jobs' groups for a controller, in a hierarchy of this version."""

    version: int
    path: str


# --- limits -----------------------------------------------------------------------------------------------------------


def limit(name: str, version: int, path: str, amount: int, cores: list[int]) -> None:
    """Set the limit of one controller: bytes, processes, thousandths of a core, or these cores. Raises OSError."""
    match name, version:
        case "memory", 2:
            write(f"{path}/memory.max", str(amount))
            write(f"{path}/memory.oom.group", "1")
            if os.path.exists(f"{path}/memory.swap.max"):
                write(f"{path}/memory.swap.max", "0")
        case "memory", _:
            write(f"{path}/memory.limit_in_bytes", str(amount))
            if os.path.exists(f"{path}/memory.memsw.limit_in_bytes"):
                write(f"{path}/memory.memsw.limit_in_bytes", str(amount))
        case "pids", _:
            write(f"{path}/pids.max", str(amount))
        case "cpuset", _:
            if version == 1:
                write(f"{path}/cpuset.mems", read(f"{os.path.dirname(path)}/cpuset.mems").strip())
            write(f"{path}/cpuset.cpus", ",".join(map(str, cores)))
        case "cpu", 2:
            write(f"{path}/cpu.max", f"{amount * _PERIOD // 1000} {_PERIOD}")
        case "cpu", _:
            write(f"{path}/cpu.cfs_period_us", str(_PERIOD))
            write(f"{path}/cpu.cfs_quota_us", str(amount * _PERIOD // 1000))


def count(path: str, name: str) -> int:
    """The number after this name in a file of such lines; 0 if missing."""
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


# --- members ----------------------------------------------------------------------------------------------------------


def move(path: str, pid: int, keep_affinity: bool = False) -> None:
    """Move a process with all its threads into a group; no effect if it is gone. Raises OSError."""
    # Entering a cpuset resets a process's affinity to all its cores: restore a narrower one.
    chosen = _chosen(pid) if keep_affinity else {}
    with contextlib.suppress(ProcessLookupError):
        write(f"{path}/cgroup.procs", str(pid))
    for thread, cores in chosen.items():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread, cores)


def gather(path: str, members: Callable[[], Iterable[int]], keep_affinity: bool) -> None:
    """Move all of them into this group; repeated until no process forked meanwhile is outside. Raises OSError."""
    for _ in range(_ROUNDS):
        inside = members_below(path)
        outside = [pid for pid in members() if pid not in inside]
        if not outside:
            return
        for pid in outside:
            move(path, pid, keep_affinity)


def members_below(path: str) -> set[int]:
    """Return all processes in a group and its descendants. Exact only if nothing there can fork."""
    found: set[int] = set()
    for one in _subtree(path)[0]:
        found.update(map(int, read(f"{one}/cgroup.procs").split()))
    found.discard(0)  # a process of another pid namespace than ours
    return found


def populated(place: Place, path: str) -> bool:
    """Whether a group or its descendants may contain live processes; zombies do not count."""
    if place.version == 2:
        return count(f"{path}/cgroup.events", "populated") == 1
    groups, complete = _subtree(path)
    return not complete or any(read(f"{one}/cgroup.procs").strip() for one in groups)


def _subtree(path: str) -> tuple[list[str], bool]:
    """A group and its descendants, outermost first; and whether the list is complete: a job that may make groups can
    make too many, or too deep ones. Empty if it is missing."""
    found = [path] if os.path.isdir(path) else []
    complete = True
    for one in found:
        try:
            with os.scandir(one) as entries:
                found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            continue
        except OSError:
            complete = False
        if len(found) > _MOST:
            return found, False
    return found, complete


def _chosen(pid: int) -> dict[int, set[int]]:
    found = {}
    for thread in procs.threads(pid):
        with contextlib.suppress(OSError):
            found[thread] = os.sched_getaffinity(thread)
    return found


# --- freezing and killing ---------------------------------------------------------------------------------------------


def can_freeze(path: str) -> bool:
    """Whether this group can be frozen: any of version 2 (Linux 5.2), in version 1 those of the freezer."""
    return os.path.exists(f"{path}/cgroup.freeze") or os.path.exists(f"{path}/freezer.state")


def freeze(place: Place, path: str) -> None:
    """Freeze a group and its descendants, including what is forked meanwhile. Raises OSError."""
    write(*(f"{path}/cgroup.freeze", "1") if place.version == 2 else (f"{path}/freezer.state", "FROZEN"))


def thaw(place: Place, path: str) -> None:
    """Thaw it. Raises OSError."""
    write(*(f"{path}/cgroup.freeze", "0") if place.version == 2 else (f"{path}/freezer.state", "THAWED"))


def is_frozen(place: Place, path: str) -> bool:
    """Whether all of it is frozen by now."""
    if place.version == 2:
        return count(f"{path}/cgroup.events", "frozen") == 1
    return read(f"{path}/freezer.state").strip() == "FROZEN"


def kill(place: Place, path: str, spare: frozenset[int], deadline: float) -> bool:
    """Kill all in a group and its descendants, except these. True if nothing else is left by `deadline` (monotonic);
    else call again.

    Version 2 has a file for this (`cgroup.kill`, Linux 5.14): no fork escapes. Else the group is frozen, so that the
    list of its processes is complete, and each is killed by pidfd. Without a pidfd, and if forks cannot be refused
    (`pids.max` 0, which the caller has set), a job that forks faster than it is killed survives: supervisor/rounds.py
    handles those.
    """
    if not os.path.isdir(path):
        return True
    at_once = False
    if not spare:
        with contextlib.suppress(OSError):
            write(f"{path}/cgroup.kill", "1")
            at_once = True
    if not at_once:
        _kill_listed(place, path, spare, deadline)
    begun = time.monotonic()
    while members_below(path) - spare if spare else populated(place, path):
        now = time.monotonic()
        if now > deadline:
            return False
        if at_once and now > begun + _SPARED:
            # Linux 6.1 does not end a process there whose first thread has ended already.
            signal_members(path, signal.SIGKILL)
        time.sleep(0.0005)
    return True


def _kill_listed(place: Place, path: str, spare: frozenset[int], deadline: float) -> None:
    frozen = False
    if can_freeze(path):
        with contextlib.suppress(OSError):
            freeze(place, path)
            frozen = True
            while not is_frozen(place, path) and time.monotonic() < deadline:
                time.sleep(0.0005)
    try:
        signal_members(path, signal.SIGKILL, spare)
    finally:
        if frozen:  # in version 1 they die only then
            with contextlib.suppress(OSError):
                thaw(place, path)


def signal_members(path: str, signum: int, spare: Iterable[int] = ()) -> int:
    """Signal all processes of a group and its descendants, except these, by pidfd; returns how many. Membership is read
    again after a pidfd is open, so that a reused pid is not hit."""
    heard = 0
    todo = sorted(members_below(path).difference(spare))
    for some in (todo[at : at + _HELD] for at in range(0, len(todo), _HELD)):
        pidfds: dict[int, int] = {}
        try:
            for pid in some:
                with contextlib.suppress(OSError):
                    pidfds[pid] = os.pidfd_open(pid)
            for pid in pidfds.keys() & members_below(path):
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfds[pid], signum)
                    heard += 1
        finally:
            for fd in pidfds.values():
                os.close(fd)
    return heard


# --- going ------------------------------------------------------------------------------------------------------------


def remove(path: str) -> bool:
    """Remove a group and its descendants. False if the kernel still has processes in one of them."""
    for one in reversed(_subtree(path)[0]):
        try:
            os.rmdir(one)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
    return not os.path.isdir(path)


def read(path: str) -> str:
    """A file's text; empty if it cannot be read. Names that are not UTF-8 have surrogates in it."""
    try:
        with open(path, errors="surrogateescape", newline="\n") as file:
            return file.read()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Write to an existing file. Raises OSError with its name."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)
