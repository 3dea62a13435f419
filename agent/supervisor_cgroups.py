"""Control groups: limits that the kernel keeps by itself, where this machine lets us make such groups.

Each controller that we use is looked for by itself, in version 2 first, else in version 1; what cannot be had is said,
with the reason, and something weaker stands in for it (supervisor_limits.py). We make groups only in a place that was
given to us: by systemd (`Delegate=yes` with `DelegateSubgroup=agent`), or by name in the configuration. Stdlib only.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_job import Job

CONTROLLERS = ("memory", "pids", "cpuset", "cpu")
_INSTEAD = {"memory": "polling", "pids": "polling", "cpuset": "polling", "cpu": "none"}
_SUBGROUP = "agent"  # as the unit's DelegateSubgroup names it: a group with processes can have no groups with limits
_PERIOD = 100_000  # microseconds in which a cpu limit holds
_ROUNDS = 20
_TRIED = {"memory": 1 << 30, "pids": 100, "cpu": 1000}  # limits as good as any other


class Place(NamedTuple):
    """Where the jobs' groups for a controller go: a directory of a hierarchy of this version."""

    version: int
    path: str


class Survey(NamedTuple):
    """The controllers that we can use, and why not the other ones."""

    places: dict[str, Place]
    missing: dict[str, str]


class Refused(NamedTuple):
    """What the kernel refused a job, or took from it: killed for its own memory limit, and processes not made."""

    oom_kills: int = 0
    forks: int = 0


# --- what there is ----------------------------------------------------------------------------------------------------


def survey(setting: str) -> Survey:
    """What can be used with this setting: `auto` what systemd gave us, `none` nothing, else a path in each hierarchy.
    Each is tried: a group is made, limited, entered by a process and removed."""
    found, missing = (_delegated() if setting == "auto" else _named(setting)) if setting != "none" else ({}, {})
    places: dict[str, Place] = {}
    for name in CONTROLLERS:
        if name in found:
            try:
                _try(name, found[name])
                places[name] = found[name]
            except OSError as error:
                missing[name] = f"{error.strerror or error} ({error.filename or found[name].path})"
        else:
            why = "switched off (agent.cgroup: none)" if setting == "none" else "this machine has none"
            missing.setdefault(name, why)
    return Survey(places, missing)


def described(found: Survey) -> dict[str, str]:
    """Who keeps each limit: the kernel, by which version of cgroups, or we by looking now and then, or nobody."""
    return {
        name: f"cgroup v{found.places[name].version}" if name in found.places else _INSTEAD[name]
        for name in CONTROLLERS
    }


def freezer(setting: str) -> Place | None:
    """Where jobs can be frozen as a group, with this setting: any group of version 2 can, in version 1 a controller."""
    mounts = _mounts()
    if setting in ("none", "auto"):
        given = _delegated()[0] if setting == "auto" else {}
        return next((place for place in given.values() if place.version == 2), None)
    for version, name in ((2, ""), (1, "freezer")):
        if name in mounts:
            with contextlib.suppress(OSError):
                os.makedirs(mounts[name] + setting, exist_ok=True)
                return Place(version, mounts[name] + setting)
    return None


def frozen(place: Place, key: str, members: Callable[[], Iterable[int]]) -> None:
    """Freeze all of a job as a group: what it forks meanwhile is born frozen. Raises OSError."""
    path = _path(place, key)
    os.makedirs(path, exist_ok=True)
    _enter(path, members, keep_affinity=False)
    _write(*(f"{path}/cgroup.freeze", "1") if place.version == 2 else (f"{path}/freezer.state", "FROZEN"))


def thawed(place: Place, key: str) -> None:
    """Let the group go on, if there is one."""
    with contextlib.suppress(OSError):
        path = _path(place, key)
        _write(*(f"{path}/cgroup.freeze", "0") if place.version == 2 else (f"{path}/freezer.state", "THAWED"))


def left(place: Place, key: str) -> bool:
    """Nothing of the job is left: remove its group. False if the kernel is not done with it yet."""
    try:
        os.rmdir(_path(place, key))
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def _delegated() -> tuple[dict[str, Place], dict[str, str]]:
    mount, own = _mounts().get("", ""), _own().get("", "")
    why = ""
    if not mount:
        why = "no cgroup v2 is mounted; agent.cgroup may name a place in v1"
    elif os.path.basename(own) != _SUBGROUP or not _is_given(base := os.path.dirname(mount + own)):
        why = "none was delegated (systemd 254: Delegate=yes, DelegateSubgroup=agent), and agent.cgroup names none"
    if why:
        return {}, dict.fromkeys(CONTROLLERS, why)
    return _offered(base)


def _named(path: str) -> tuple[dict[str, Place], dict[str, str]]:
    mounts = _mounts()
    found: dict[str, Place] = {}
    missing: dict[str, str] = {}
    if "" in mounts and set(CONTROLLERS) & set(_read(f"{mounts['']}/cgroup.controllers").split()):
        with contextlib.suppress(OSError):
            os.makedirs(mounts[""] + path, exist_ok=True)
            found, missing = _offered(mounts[""] + path)
    for name in CONTROLLERS:
        if name in mounts and name not in found:
            try:
                os.makedirs(mounts[name] + path, exist_ok=True)
                if name == "cpuset":
                    _inherit(mounts[name] + path)
            except OSError as error:
                missing[name] = f"{error.strerror} ({error.filename})"
            else:
                found[name] = Place(1, mounts[name] + path)
                missing.pop(name, None)
    return found, missing


def _offered(base: str) -> tuple[dict[str, Place], dict[str, str]]:
    """The controllers of a version 2 group, handed on to the groups below it."""
    found: dict[str, Place] = {}
    missing: dict[str, str] = {}
    there = _read(f"{base}/cgroup.controllers").split()
    for name in CONTROLLERS:
        if name not in there:
            missing[name] = f"not handed on to {base}"
            continue
        try:
            if name not in _read(f"{base}/cgroup.subtree_control").split():
                _write(f"{base}/cgroup.subtree_control", f"+{name}")
            found[name] = Place(2, base)
        except OSError as error:
            missing[name] = f"{error.strerror} ({base}/cgroup.subtree_control)"
    return found, missing


def _mounts() -> dict[str, str]:
    """Where each version 1 controller is mounted, and version 2 (by an empty name)."""
    found: dict[str, str] = {}
    for line in _read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        where, (kind, _, options) = left.split()[4], right.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", where)
        elif kind == "cgroup":
            for name in options.split(","):
                found.setdefault(name, where)
    return found


def _own() -> dict[str, str]:
    """The group that we are in, by controller, and in version 2 (by an empty name)."""
    lines = (line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines())
    return {name: path for _, names, path in lines for name in names.split(",")}


def _is_given(path: str) -> bool:
    """Whether systemd marked this group as ours to divide. Who is not root can write only where that is so."""
    for mark in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, mark) == b"1":
                return True
    return os.geteuid() != 0 and os.access(f"{path}/cgroup.procs", os.W_OK)


def _try(name: str, place: Place) -> None:
    """Make a group, enter it with a process and remove it."""
    path = f"{place.path}/try-{os.getpid()}"
    os.mkdir(path)
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(begin)
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    try:
        _limit(name, place.version, path, _TRIED.get(name, 0), sorted(os.sched_getaffinity(0)))
        _write(f"{path}/cgroup.procs", str(child))
    finally:
        os.close(begin)
        os.waitpid(child, 0)
        os.rmdir(path)


def _inherit(path: str) -> None:
    """A new cpuset of version 1 has neither cores nor memory nodes: it gets those of the group above it."""
    for name in ("cpuset.mems", "cpuset.cpus"):
        if not _read(f"{path}/{name}").strip():
            _write(f"{path}/{name}", _read(f"{os.path.dirname(path)}/{name}").strip())


# --- the groups of jobs -----------------------------------------------------------------------------------------------


class Cgroups:
    """The groups of all jobs, each named after its allocation."""

    def __init__(self, places: dict[str, Place], log: Callable[[str], None]) -> None:
        self._places = places
        self._log = log
        self._left: set[str] = set()
        self._nice = 0

    def find(self, job: Job) -> None:
        """A supervisor before us may have made its groups."""
        job.confined = frozenset(name for name, place in self._places.items() if os.path.isdir(_path(place, job.id)))

    def confine(self, job: Job, members: Callable[[], Iterable[int]]) -> None:
        """Put all that lives of it into groups with its limits. What it forks from then on is there by itself. A
        controller that fails is used no more."""
        self._stand_back(job.nice)
        amounts = {"memory": job.memory, "pids": job.pids, "cpuset": len(job.cores), "cpu": job.cpu_limit}
        wanted = [name for name in self._places if amounts[name] and name not in job.confined]
        for name in wanted:
            place = self._places[name]
            path = _path(place, job.id)
            try:
                os.makedirs(path, exist_ok=True)
                _limit(name, place.version, path, amounts[name], sorted(job.cores))
                _enter(path, members, keep_affinity=name == "cpuset")
            except OSError as error:
                del self._places[name]
                self._log(f"{path} cannot be used ({error.strerror}): {name} is limited without a cgroup from now on")
                continue
            job.confined |= {name}

    def _stand_back(self, nice: int) -> None:
        """Between groups the kernel shares time out by their weights, and a process's niceness counts for nothing. What
        systemd delegated has its weight from its slice."""
        place = self._places.get("cpu")
        if place is None or nice == self._nice or _is_given(place.path):
            return
        self._nice = nice
        with contextlib.suppress(OSError):
            if place.version == 2:
                _write(f"{place.path}/cpu.weight.nice", str(nice))
            else:  # what a process of this niceness weighs (sched_prio_to_weight in the kernel)
                _write(f"{place.path}/cpu.shares", str(round(1024 * 0.8**nice)))

    def refused(self, job: Job) -> Refused:
        """What the kernel kept from it so far."""
        kills = forks = 0
        if "memory" in job.confined:
            place = self._places["memory"]
            file = "memory.events" if place.version == 2 else "memory.oom_control"
            kills = _count(f"{_path(place, job.id)}/{file}", "oom_kill")
        if "pids" in job.confined:
            forks = _count(f"{_path(self._places['pids'], job.id)}/pids.events", "max")
        return Refused(kills, forks)

    def release(self, key: str) -> None:
        """Nothing of this allocation is left: nor shall its groups be, after the next sweep."""
        self._left |= {_path(place, key) for place in self._places.values()}

    def sweep(self) -> bool:
        """Remove the groups of what is over. False if the kernel is not done with all of their processes yet."""
        for path in [*self._left]:
            try:
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            self._left.discard(path)
        return not self._left


def _path(place: Place, key: str) -> str:
    return f"{place.path}/{key}"


def _limit(name: str, version: int, path: str, amount: int, cores: list[int]) -> None:
    match name, version:
        case "memory", 2:
            _write(f"{path}/memory.max", str(amount))
            _write(f"{path}/memory.oom.group", "1")
            if os.path.exists(f"{path}/memory.swap.max"):
                _write(f"{path}/memory.swap.max", "0")
        case "memory", _:
            _write(f"{path}/memory.limit_in_bytes", str(amount))
            if os.path.exists(f"{path}/memory.memsw.limit_in_bytes"):
                _write(f"{path}/memory.memsw.limit_in_bytes", str(amount))
        case "pids", _:
            _write(f"{path}/pids.max", str(amount))
        case "cpuset", _:
            if version == 1:
                _write(f"{path}/cpuset.mems", _read(f"{os.path.dirname(path)}/cpuset.mems").strip())
            _write(f"{path}/cpuset.cpus", ",".join(map(str, cores)))
        case "cpu", 2:
            _write(f"{path}/cpu.max", f"{amount * _PERIOD // 1000} {_PERIOD}")
        case "cpu", _:
            _write(f"{path}/cpu.cfs_period_us", str(_PERIOD))
            _write(f"{path}/cpu.cfs_quota_us", str(amount * _PERIOD // 1000))


def _enter(path: str, members: Callable[[], Iterable[int]], keep_affinity: bool) -> None:
    """Have all of them in this group: again until none is outside that was forked meanwhile."""
    for _ in range(_ROUNDS):
        inside = set(map(int, _read(f"{path}/cgroup.procs").split()))
        outside = [pid for pid in members() if pid not in inside]
        if not outside:
            return
        for pid in outside:
            # Entering a cpuset gives a process all of its cores: what chose among them keeps its choice.
            chosen = _chosen(pid) if keep_affinity else {}
            with contextlib.suppress(ProcessLookupError):
                _write(f"{path}/cgroup.procs", str(pid))
            for thread, cores in chosen.items():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, cores)


def _chosen(pid: int) -> dict[int, set[int]]:
    found = {}
    for thread in procs.threads(pid):
        with contextlib.suppress(OSError):
            found[thread] = os.sched_getaffinity(thread)
    return found


def _count(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)
