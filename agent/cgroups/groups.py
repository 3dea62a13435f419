"""The control groups of all slots and jobs: limits that the kernel enforces, and the exact list of what is alive.
Stdlib only."""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from distributed_grid.agent.cgroups import cgroupfs as fs
from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.cgroups.hierarchies import LEAVES, is_given
from distributed_grid.agent.supervisor.job import Job

_NO_KEYS = tuple(". try- cgroup. cpu. cpuset. freezer. io. memory. pids. tasks notify_ release_".split())
_DIE_WITHIN = 0.1  # seconds that one call of `kill` waits for the last of a job to go
IDLE = 100
"""The weight of groups of idle jobs, where others have their niceness."""
_OURS = (*LEAVES, ".control")  # systemd runs what a unit does beside its main process in the last


class Amounts(NamedTuple):
    """A job's limits: bytes, processes and threads, thousandths of a core, and its cores; 0 and empty: no limit."""

    memory: int = 0
    pids: int = 0
    cpu: int = 0
    cores: tuple[int, ...] = ()


class Refused(NamedTuple):
    """The kernel's refusals to a job: OOM kills for its own memory limit, and failed forks."""

    oom_kills: int = 0
    forks: int = 0


def amounts_of(job: Job) -> Amounts:
    """A job's limits as its groups have them."""
    return Amounts(job.memory, job.pids, job.cpu_limit, tuple(sorted(job.cores)))


# --- freezing as the freezer does it ----------------------------------------------------------------------------------


def frozen(place: Place, key: str, members: Callable[[], Iterable[int]]) -> None:
    """Freeze all of a job as a group, including what is forked meanwhile. Raises OSError."""
    path = _path(place, key)
    os.makedirs(path, exist_ok=True)
    fs.gather(path, members, keep_affinity=False)
    fs.freeze(place, path)


def thawed(place: Place, key: str) -> None:
    """Thaw the group, if there is one."""
    with contextlib.suppress(OSError):
        fs.thaw(place, _path(place, key))


def left(place: Place, key: str) -> bool:
    """Remove the group of an ended job. False if the kernel still has processes in it."""
    return fs.remove(_path(place, key))


# --- the groups of jobs -----------------------------------------------------------------------------------------------


class Cgroups:
    """The groups of all jobs, each named after its allocation (`key`). `places` are those of the limiting controllers,
    `at` is the hierarchy where every job has a group (None: nowhere).

    A group's files belong to the agent's user. A job with a user id of its own cannot write to them; one with the
    agent's user may move itself, and one that is root leaves any group of version 1. So walls hide /sys/fs/cgroup or
    mount it read-only, and without them membership is no proof. Entering a group waits for the machine's forks
    (docs/decisions/0015), so only a job with a limit of memory or CPU has one of its own from its start."""

    def __init__(self, places: dict[str, Place], log: Callable[[str], None], at: Place | None = None) -> None:
        self._places = places
        self._home = at
        self._log = log
        self._left: set[str] = set()
        self._nice = 0
        self._weights: dict[str, int] = {}
        """The niceness that each group weighs as within the group of all jobs, by key; 0 where it is not here."""
        self._amounts: dict[str, Amounts] = {}
        """Limits of jobs with groups, by key: restored after a controller was off."""
        self._handed_on = self._look_handed_on()

    # --- before a job's first process ---

    @property
    def has_home(self) -> bool:
        """Whether each slot has a group, so that `members` and `kill` are complete."""
        return self._home is not None

    def make(self, key: str, amounts: Amounts, guests: int = 0, at_home: bool = True) -> list[str]:
        """Make all groups of a slot, or those that a job's limits need (not `at_home`); for a key that has groups,
        change these. Returns the files to which a single-threaded process writes `0` to enter, if possible without
        waiting for the machine's forks. A controller that fails is not used any more. `guests`: processes of the agent
        inside, which do not count against the limit."""
        entries = []
        if at_home and self._home is not None:
            try:
                os.makedirs(_path(self._home, key), exist_ok=True)
                entries.append(_procs_file(self._home, key))
            except OSError as error:
                self._log(f"{_path(self._home, key)} cannot be made ({error.strerror}): jobs have no group from now on")
                self._home = None
        for name in self._wanted(amounts):
            if self._make_limit(name, key, amounts, guests):
                entries.append(_procs_file(self._places[name], key))
        self._left.difference_update(self._paths(key))
        return list(dict.fromkeys(entries))

    def settle(self, key: str, amounts: Amounts) -> None:
        """The guests have left: make its limit exact."""
        if "pids" in self._places and amounts.pids:
            with contextlib.suppress(OSError):
                fs.write(f"{_path(self._places['pids'], key)}/pids.max", str(amounts.pids))

    def enter(self, key: str, pid: int) -> bool:
        """Move a process into all groups of this job, which its children inherit. False if it could not enter one, or
        is gone."""
        return self._move(key, pid, self._paths(key))

    def park(self, pid: int, key: str) -> bool:
        """Move a spawner from its last job's groups back to those of its slot."""
        for path in (paths := self._paths(key, there=False)):
            with contextlib.suppress(OSError):
                os.makedirs(path, exist_ok=True)
                if "cpuset" in self._places and path == _path(self._places["cpuset"], key):
                    fs.limit("cpuset", self._places["cpuset"].version, path, 0, sorted(os.sched_getaffinity(0)))
        return self._move(key, pid, paths)

    def _move(self, key: str, pid: int, paths: list[str]) -> bool:
        for path in paths:
            try:
                fs.write(f"{path}/cgroup.procs", str(pid))
            except ProcessLookupError:
                return False
            except OSError as error:
                self._log(f"process {pid} cannot enter {path} of {key} ({error.strerror})")
                return False
        return True

    # --- while it lives ---

    def members(self, key: str) -> set[int]:
        """All processes in a job's groups and their descendants."""
        return {pid for path in self._paths(key) for pid in fs.members_below(path)}

    def kill(self, key: str, spare: Iterable[int] = ()) -> bool:
        """Kill all in a job's groups except these (its spawner). True if nothing else is left; else call again, as long
        as it takes: a process in the kernel or under a debugger may need a while. Waits 0.1 s at most. Needs the right
        to signal the job's processes, except in version 2 since Linux 5.14."""
        kept, deadline = frozenset(spare), time.monotonic() + _DIE_WITHIN
        most = f"{_path(self._places['pids'], key)}/pids.max" if "pids" in self._places else ""
        before = fs.read(most).strip() if most else ""
        if before:  # nothing more is forked in any hierarchy
            with contextlib.suppress(OSError):
                fs.write(most, "0")
        ended = all([fs.kill(self._place_of(path), path, kept, deadline) for path in self._paths(key)])
        if before and kept:  # the group is used again
            with contextlib.suppress(OSError):
                fs.write(most, before)
        return ended

    def find(self, job: Job) -> None:
        """Adopt groups that an earlier supervisor made."""
        wanted = self._wanted(amounts_of(job))
        job.confined = frozenset(name for name in wanted if os.path.isdir(_path(self._places[name], job.id)))
        if job.confined:
            self._amounts[job.id] = amounts_of(job)

    def all_known(self) -> set[str]:
        """The keys of all groups on disk in our places, whoever made them: also of unknown jobs, and of another agent
        that was given the same place."""
        found = set()
        for base in {place.path for place in self._all_places()}:
            with contextlib.suppress(OSError), os.scandir(base) as entries:
                found |= {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        return {key for key in found if key not in _OURS and not key.startswith(_NO_KEYS)}

    def confine(self, job: Job, members: Callable[[], Iterable[int]]) -> None:
        """Move all live processes of a job into groups with its limits, which their children inherit. A controller that
        fails is not used any more."""
        amounts = amounts_of(job)
        for name in self._wanted(amounts):
            if name in job.confined or not self._make_limit(name, job.id, amounts):
                continue
            path = _path(self._places[name], job.id)
            try:
                fs.gather(path, members, keep_affinity=name == "cpuset")
            except OSError as error:
                self._give_up(name, path, error)
                continue
            job.confined |= {name}

    def limits(self, job: Job) -> bool:
        """Whether a job with its limits gets groups."""
        return bool(self._places) and bool(self._wanted(amounts_of(job)))

    def _wanted(self, amounts: Amounts) -> list[str]:
        asked = {"memory": amounts.memory, "pids": amounts.pids, "cpuset": amounts.cores, "cpu": amounts.cpu}
        return [name for name in self._places if asked[name]]

    def _make_limit(self, name: str, key: str, amounts: Amounts, guests: int = 0) -> bool:
        place = self._places[name]
        path = _path(place, key)
        amount = {"memory": amounts.memory, "pids": amounts.pids + guests, "cpu": amounts.cpu}.get(name, 0)
        self._amounts[key] = amounts
        try:
            os.makedirs(path, exist_ok=True)
            fs.limit(name, place.version, path, amount, list(amounts.cores))
        except OSError as error:
            if place.version == 2 and name not in _handed_on(place):
                return True  # off while the agent restarts, and set by `refresh`
            self._give_up(name, path, error)
            return False
        return True

    def _give_up(self, name: str, path: str, error: OSError) -> None:
        del self._places[name]
        self._log(f"{path} cannot be used ({error.strerror}): {name} is limited without a cgroup from now on")

    def weigh(self, niceness: Mapping[str, int], idle: Iterable[str] = ()) -> None:
        """Set the CPU weights of the groups of all live jobs (by key), as niceness has no effect between groups: the
        group of all jobs weighs as much as the least nice of them, and the others accordingly less within it; those of
        `idle` jobs a hundredth. A group delegated by systemd has its weight from its slice."""
        place = self._places.get("cpu")
        if place is None:
            return
        for key in idle:
            if self._weights.get(key, 0) != IDLE and os.path.isdir(_path(place, key)):
                self._weights[key] = IDLE
                _write_idle(place, _path(place, key))
        if not niceness:
            return
        least = min(niceness.values())
        if least != self._nice:
            self._nice = least
            if not is_given(place.path):
                _write_weight(place, place.path, least)
        for key, nice in niceness.items():
            if self._weights.get(key, 0) != nice - least and os.path.isdir(_path(place, key)):
                self._weights[key] = nice - least
                _write_weight(place, _path(place, key), nice - least)

    def refused(self, job: Job) -> Refused:
        """Return the kernel's refusals to a job so far."""
        kills = forks = 0
        if "memory" in job.confined and (place := self._places.get("memory")):
            file = "memory.events" if place.version == 2 else "memory.oom_control"
            kills = fs.count(f"{_path(place, job.id)}/{file}", "oom_kill")
        if "pids" in job.confined:
            forks = self.forks_refused(job.id)
        return Refused(kills, forks)

    def forks_refused(self, key: str) -> int:
        """Failed forks in this group because of its limit."""
        place = self._places.get("pids")
        return fs.count(f"{_path(place, key)}/pids.events", "max") if place is not None else 0

    # --- when a controller comes back ---

    def refresh(self) -> bool:
        """Set all limits again if a controller of version 2 was off: before systemd 254 an agent's restart disables the
        controllers of the unit's group while its main process is in there. Returns whether one was."""
        before, self._handed_on = self._handed_on, self._look_handed_on()
        back = self._handed_on - before
        for key, amounts in self._amounts.items() if back else ():
            for name in back & {*self._wanted(amounts)}:
                self._make_limit(name, key, amounts)
        return bool(back)

    def _look_handed_on(self) -> set[str]:
        """The controllers of version 2 that are on now, of those that we use."""
        used = {place for place in self._places.values() if place.version == 2}
        on = {name for place in used for name in _handed_on(place)}
        return {name for name, place in self._places.items() if place.version == 2 and name in on}

    # --- when it is over ---

    def release(self, key: str) -> None:
        """Remove its groups at the next sweep."""
        self._left.update(self._paths(key))
        self._amounts.pop(key, None)
        self._weights.pop(key, None)

    def sweep(self) -> bool:
        """Remove released groups. False if the kernel still has processes in some."""
        self.refresh()
        self._left = {path for path in self._left if not fs.remove(path)}
        return not self._left

    # --- where ---

    def _all_places(self) -> list[Place]:
        places = [self._home, *self._places.values()]
        return list(dict.fromkeys(place for place in places if place is not None))

    def _paths(self, key: str, there: bool = True) -> list[str]:
        """Its groups, home first, one for each hierarchy."""
        paths = dict.fromkeys(_path(place, key) for place in self._all_places())
        return [path for path in paths if not there or os.path.isdir(path)]

    def _place_of(self, path: str) -> Place:
        return next(place for place in self._all_places() if path.startswith(place.path + "/"))


def _handed_on(place: Place) -> list[str]:
    return fs.read(f"{place.path}/cgroup.subtree_control").split()


def _write_weight(place: Place, path: str, nice: int) -> None:
    """Set the CPU weight of a process of this niceness (sched_prio_to_weight in the kernel)."""
    with contextlib.suppress(OSError):
        if place.version == 2:
            fs.write(f"{path}/cpu.weight.nice", str(nice))
        else:
            fs.write(f"{path}/cpu.shares", str(round(1024 * 0.8**nice)))


def _write_idle(place: Place, path: str) -> None:
    """A hundredth of the weight of others; and none beside them, where the kernel can (since Linux 5.15)."""
    with contextlib.suppress(OSError):
        fs.write(f"{path}/{'cpu.weight' if place.version == 2 else 'cpu.shares'}", "1" if place.version == 2 else "10")
    with contextlib.suppress(OSError):
        fs.write(f"{path}/cpu.idle", "1")


def _path(place: Place, key: str) -> str:
    """The directory of a job's group. Raises ValueError for an invalid key."""
    if not key or "/" in key or key.startswith(_NO_KEYS) or key in _OURS:
        raise ValueError(f"{key!r} is not the name of a job's control group")
    return f"{place.path}/{key}"


def _procs_file(place: Place, key: str) -> str:
    return f"{_path(place, key)}/{'tasks' if place.version == 1 else 'cgroup.procs'}"


class SlotGroups:
    """The groups of slots. Without control groups all of this does nothing and finds nothing."""

    def __init__(self, groups: Cgroups, state_dir: str, log: Callable[[str], None]) -> None:
        self._groups = groups
        self._log = log
        self._refused: dict[str, int] = {}
        self._ours = f"slot-{zlib.crc32(os.fsencode(os.path.abspath(state_dir))):08x}-"

    @property
    def there(self) -> bool:
        """Whether slots have groups."""
        return self._groups.has_home

    def key(self, slot: str) -> str:
        """The name of this slot's groups."""
        return self._ours + slot

    # --- a slot's life ------------------------------------------------------------------------------------------------

    def make(self, slot: str, processes: int) -> tuple[str, ...]:
        """Make the groups of a slot, with a limit of processes and threads beside the spawner, if the kernel can count
        them (0: no limit). Returns the files by which its spawner enters, as Cgroups.make."""
        if not self._groups.has_home:
            return ()
        return tuple(self._groups.make(self.key(slot), Amounts(pids=processes + 1 if processes else 0)))

    def entered(self, slot: str, spawner: int) -> None:
        """The spawner is ready. If it is not in the group, the group proves nothing and is removed."""
        if self._groups.has_home and spawner not in self._groups.members(self.key(slot)):
            self._log(f"slot {slot}: its spawner is in no control group: what its jobs start is found by descent")
            self.left(slot)

    def left(self, slot: str) -> None:
        """Remove the groups of a slot at the next sweeps: nothing of it is left, or will be in a moment."""
        self._groups.release(self.key(slot))

    def sweep(self) -> bool:
        """Remove released groups. False if something is still in one of them."""
        return self._groups.sweep()

    # --- a job --------------------------------------------------------------------------------------------------

    def park(self, job: Job, spawner: int) -> None:
        """Move its spawner out of the job's own groups, where it made the first process."""
        if job.place is not None:
            self._groups.park(spawner, self.key(job.place.name))

    def weigh(self, jobs: Collection[Job]) -> None:
        """Set the CPU weights of the groups of all live jobs."""
        busy = [job for job in jobs if not job.idle]
        niceness = {job.id: job.nice for job in busy}
        slots = {self.key(job.place.name): job.nice for job in busy if job.place is not None}
        idle = [key for job in jobs if job.idle for key in (job.id, job.place and self.key(job.place.name)) if key]
        self._groups.weigh(niceness | slots, idle)

    def begins(self, job: Job) -> None:
        """Before its start: reset the count of failed forks, which earlier jobs of the slot caused."""
        if job.place is not None and job.pids:
            self._refused[job.id] = self._groups.forks_refused(self.key(job.place.name))

    def forks_refused(self, job: Job) -> int:
        """Failed forks of this job."""
        if job.place is None or job.id not in self._refused:
            return 0
        return self._groups.forks_refused(self.key(job.place.name)) - self._refused[job.id]

    def over(self, job: Job) -> None:
        """Forget a job of which nothing is left."""
        self._refused.pop(job.id, None)
        if job.adopted and job.place is not None:
            self.left(job.place.name)

    def members(self, job: Job) -> set[int]:
        """All processes in the groups of the job's slot, its spawner included, and in the job's own."""
        if job.place is None or not self._groups.has_home:
            return set()
        return self._groups.members(self.key(job.place.name)) | self._groups.members(job.id)

    def kill(self, job: Job) -> bool:
        """Kill all in there except our live spawner. False if there is no group, or if not all are gone within a
        moment: call again."""
        place = job.place
        if place is None or not (members := self.members(job)):
            return False
        spare = {place.pid} & members if not (job.orphaned or job.adopted) else set()
        return all([self._groups.kill(key, spare) for key in (self.key(place.name), job.id)])

    # --- what was before ----------------------------------------------------------------------------------------------

    def others(self, known: set[str]) -> dict[str, set[int]]:
        """Live processes in groups of unknown slots, by slot: an earlier supervisor made them."""
        found = {key.removeprefix(self._ours) for key in self._groups.all_known() if key.startswith(self._ours)}
        return {slot: self._groups.members(self.key(slot)) for slot in found - known}

    def end(self, slot: str) -> bool:
        """Kill all in such a slot. False: call again."""
        if not self._groups.kill(self.key(slot)):
            return False
        self.left(slot)
        return True
