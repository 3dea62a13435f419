"""Finds the control groups that this process may make on this machine: by systemd's delegation, or by name in the
configuration.

Each controller is searched for separately, in version 2 first, then in version 1. A controller that is missing is
reported with the reason and replaced by a weaker means (supervisor/limits.py). Groups are made only in a directory that
was given to this process. Stdlib only.
"""

import contextlib
import os
from typing import NamedTuple

from distributed_grid.agent.cgroups.cgroupfs import Place, limit, move, read, write

CONTROLLERS = ("memory", "pids", "cpuset", "cpu")
LEAF = "main"
LEAVES = ("agent", LEAF)
"""Names of the group of agent and supervisor, from the unit's DelegateSubgroup or made by us: beside those of jobs,
since a group with processes cannot have children with limits. The unit looks for the latter in ExecStopPost."""
_INSTEAD = {"memory": "polling", "pids": "polling", "cpuset": "polling", "cpu": "none"}
_HOMES = ("freezer", "pids", "name=systemd")  # of version 1, best first: frozen groups are killed as a whole
_ROUNDS = 20
_TRIED = {"memory": 1 << 30, "pids": 100, "cpu": 1000}  # limits set on trial


class Survey(NamedTuple):
    """The usable controllers, and why others are not. `home` is where each job has a group, limited or not, to find and
    kill its processes (None: nowhere)."""

    places: dict[str, Place]
    missing: dict[str, str]
    home: Place | None = None


# --- what there is ----------------------------------------------------------------------------------------------------


def survey(setting: str) -> Survey:
    """Return the hierarchies that are usable with this setting: `auto` systemd's delegation, `none` nothing, else a
    path in each hierarchy. Each is tested: a group is made, limited, entered by a process and removed."""
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
    return Survey(places, missing, home(setting))


def described(found: Survey) -> dict[str, str]:
    """Return what enforces each limit: a version of cgroups, polling, or nothing."""
    return {
        name: f"cgroup v{found.places[name].version}" if name in found.places else _INSTEAD[name]
        for name in CONTROLLERS
    }


def home(setting: str) -> Place | None:
    """Return where each job can have a group that lists its processes, with this setting: version 2, with or without
    controllers; else a hierarchy of version 1; None: nowhere. Tested as the controllers are."""
    for place in _homes(setting):
        try:
            _try("", place)
        except OSError:
            continue
        return place
    return None


def freezer(setting: str) -> Place | None:
    """Return where jobs can be frozen as a group, with this setting: any group of version 2, or the freezer of version
    1; None: nowhere."""
    for place in _homes(setting):
        if place.version == 2 or os.path.exists(f"{place.path}/freezer.state"):
            return place
    return None


def _homes(setting: str) -> list[Place]:
    """Return the places where groups of jobs can be made, best first."""
    if setting == "none":
        return []
    mounts = mounted()
    if setting == "auto":
        own = own_groups()
        found = []
        for version, name in ((2, ""), (1, "name=systemd")):
            base = mounts.get(name, "") + own.get(name, "")
            if name in mounts and os.path.basename(base) in LEAVES and is_given(os.path.dirname(base)):
                found.append(Place(version, os.path.dirname(base)))
            elif name in mounts and version == 1 and is_marked(base):  # groups are below our own: no leaf needed
                found.append(Place(1, base))
        return found
    found = []
    for version, name in ((2, ""), *((1, name) for name in _HOMES)):
        if name in mounts:
            with contextlib.suppress(OSError):
                os.makedirs(mounts[name] + setting, exist_ok=True)
                found.append(Place(version, mounts[name] + setting))
    return found


def _delegated() -> tuple[dict[str, Place], dict[str, str]]:
    mount, own = mounted().get("", ""), own_groups().get("", "")
    why = ""
    if not mount:
        why = "no cgroup v2 is mounted; agent.cgroup may name a place in v1"
    elif os.path.basename(own) not in LEAVES or not is_given(base := os.path.dirname(mount + own)):
        why = "none was delegated (systemd: Delegate=yes), and agent.cgroup names none"
    if why:
        return {}, dict.fromkeys(CONTROLLERS, why)
    return _offered(base)


def _named(path: str) -> tuple[dict[str, Place], dict[str, str]]:
    mounts = mounted()
    found: dict[str, Place] = {}
    missing: dict[str, str] = {}
    if "" in mounts and set(CONTROLLERS) & set(read(f"{mounts['']}/cgroup.controllers").split()):
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
    """The controllers of a version 2 group that are enabled for its children."""
    found: dict[str, Place] = {}
    missing: dict[str, str] = {}
    there = read(f"{base}/cgroup.controllers").split()
    for name in CONTROLLERS:
        if name not in there:
            missing[name] = f"not handed on to {base}"
            continue
        try:
            if name not in read(f"{base}/cgroup.subtree_control").split():
                write(f"{base}/cgroup.subtree_control", f"+{name}")
            found[name] = Place(2, base)
        except OSError as error:
            missing[name] = f"{error.strerror} ({base}/cgroup.subtree_control)"
    return found, missing


def mounted() -> dict[str, str]:
    """Mount points by version 1 controller, and of version 2 (empty name)."""
    found: dict[str, str] = {}
    for line in read("/proc/self/mountinfo").split("\n"):  # a path may hold what splitlines() and split() split at
        left, _, right = line.partition(" - ")
        kind, _, rest = right.partition(" ")
        if kind == "cgroup2":
            found.setdefault("", left.split(" ")[4])
        elif kind == "cgroup":
            for name in rest.partition(" ")[2].split(","):
                found.setdefault(name, left.split(" ")[4])
    return found


def own_groups() -> dict[str, str]:
    """Our own groups by controller, and in version 2 (empty name)."""
    lines = (line.split(":", 2) for line in read("/proc/self/cgroup").splitlines())
    return {name: path for _, names, path in lines for name in names.split(",")}


def is_given(path: str) -> bool:
    """Whether the agent may divide this group: marked by systemd, or writable for a non-root user."""
    return is_marked(path) or (os.geteuid() != 0 and os.access(f"{path}/cgroup.procs", os.W_OK))


def is_marked(path: str) -> bool:
    """Whether systemd marked this group itself as delegated."""
    for mark in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(path, mark) == b"1":
                return True
    return False


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
        limit(name, place.version, path, _TRIED.get(name, 0), sorted(os.sched_getaffinity(0)))
        write(f"{path}/cgroup.procs", str(child))
    finally:
        os.close(begin)
        os.waitpid(child, 0)
        os.rmdir(path)


def _inherit(path: str) -> None:
    """Copy the cores and memory nodes of its parent to a new cpuset of version 1, which has none."""
    for name in ("cpuset.mems", "cpuset.cpus"):
        if not read(f"{path}/{name}").strip():
            write(f"{path}/{name}", read(f"{os.path.dirname(path)}/{name}").strip())


# --- a group of our own -----------------------------------------------------------------------------------------------


def take_leaf() -> str:
    """Make our leaf in the group that systemd delegated to our unit, move all of the unit's own processes there, and
    hand the controllers on, so that groups with limits can lie beside it. The leaf's path; empty where there is nothing
    to do, as under systemd 254, which does that itself (DelegateSubgroup=agent). Raises OSError.

    It is done for the main process of a unit only, in a group that is marked as delegated: a person's terminal also
    lies in a group that they may write to, with their shell in it. And only for a unit that says so, since it has to
    take the controllers back (ExecStopPost): systemd cannot start a process in a group that has handed them on and has
    jobs below it, and would try in vain until the last job has ended.
    """
    mount, own = mounted().get("", ""), own_groups().get("", "/")
    base = mount + own
    asked = "GRID_CGROUP_LEAF" in os.environ and os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())
    if not asked or not mount or own == "/" or os.path.basename(own) in LEAVES or not is_marked(base):
        return ""
    leaf = f"{base}/{LEAF}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(leaf)
    for _ in range(_ROUNDS):  # repeated for what was forked meanwhile
        outside = [pid for pid in map(int, read(f"{base}/cgroup.procs").split()) if _is_ours(pid)]
        if not outside:
            break
        for pid in outside:
            move(leaf, pid)
    _offered(base)
    return leaf


def _is_ours(pid: int) -> bool:
    """Whether we may move a process of our unit's group: it has our user, or we are root."""
    if pid == os.getpid() or os.geteuid() == 0:
        return pid > 0
    return f"\nUid:\t{os.getuid()}\t" in read(f"/proc/{pid}/status")
