"""What an earlier supervisor left: jobs in the journal, which are adopted, and survivors, which are not in it.

The main process of an adopted job is no child of this supervisor: a pidfd shows when it ends, and how it ended is read
from the notes of its spawner, or from the kernel if that still knows.

Survivors are live processes of allocations that a damaged journal does not name, found by what the kernel reports. Only
`Survivors.find` searches for them: in control groups named after an allocation or a slot, and among the spawners of
earlier supervisors, their descendants and the processes with their user ids. Each spawner has a note outside of the
journal. If no note is lost and nothing is found, nothing is alive; otherwise only a reboot or the owner's confirmation
proves that. Stdlib only.
"""

import os
import re
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from distributed_grid.agent.cgroups.cgroupfs import Place as Group
from distributed_grid.agent.cgroups.cgroupfs import members_below
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER, Job, Place
from distributed_grid.agent.supervisor.journal import JournaledJobs
from distributed_grid.agent.supervisor.spawners import Noted, Spawners
from distributed_grid.agent.supervisor.tree import Tree

ALLOCATION = re.compile(r"j-[a-z2-7]{12}(?:_\d{1,9})?\.\d{1,9}")
"""Names of control groups that count as unknown allocations."""
EVERY = 2.0
"""Interval between searches while the journal is damaged (s)."""
CODE = 10.0
"""Timeout for a spawner to note how an adopted job ended (s)."""
LOOK_EVERY = 0.005
"""Seconds between two looks whether it has."""
_GROUP_TRIES = 10  # attempts to empty a group, 0.1 s each
_PAUSES = (0.0, *(0.01 * 2**again for again in range(9)))  # pauses between attempts to end a slot (s)


class Adopted:
    """Watches main processes; `ended` is called with a job and its wait status, None if it is unknown."""

    def __init__(
        self, slots: Spawners, selector: selectors.BaseSelector, ended: Callable[[Job, int | None], object]
    ) -> None:
        self._slots = slots
        self._selector = selector
        self._ended = ended
        self._unread: dict[Job, float] = {}
        """Jobs that have ended, and until when their exit code is looked for."""

    @property
    def due(self) -> float:
        """When the next look for an exit code is due."""
        return procs.now() + LOOK_EVERY if self._unread else NEVER

    def find(self, job: Job) -> None:
        """Take the process of a job from the notes of its spawner, if the journal has none."""
        if not job.pid and (noted := self._noted(job)) is not None:
            job.spawned = noted.before, noted.after
            job.runs(noted.pid)

    def watch(self, job: Job) -> bool:
        """Watch the main process; False if it is gone: its exit code is looked for then."""
        try:
            fd = os.pidfd_open(job.pid) if job.pid else -1
        except OSError:
            fd = -1
        seen = procs.stat(job.pid)
        if fd >= 0 and seen is not None and job.spawned[0] <= seen.start <= job.spawned[1]:
            job.pidfd, job.start = fd, seen.start
            self._selector.register(fd, selectors.EVENT_READ, lambda: self._gone(job))
            return True
        if fd >= 0:
            os.close(fd)
        self._unread[job] = procs.now() + (CODE if job.pid else 0.0)  # its spawner may just be about to note it
        return False

    def poll(self, now: float) -> None:
        """Read exit codes. They are there once the spawner has reaped: usually at once."""
        for job, until in [*self._unread.items()]:
            last = now >= until or not _spawner_works(job)
            noted = self._noted(job)
            status = noted.status if noted is not None else None
            if status is None and job.pidfd >= 0:
                status = procs.status_by_pidfd(job.pidfd, job.pid, job.start)
            if status is None and not last:
                continue
            del self._unread[job]
            if job.pidfd >= 0:
                os.close(job.pidfd)
                job.pidfd = -1
            self._ended(job, status)

    def account(self, job: Job) -> None:
        """Take the use of an adopted job from the notes of its spawner, if that saw its end. Nothing of the job is
        alive."""
        if job.adopted and (noted := self._noted(job)) is not None:
            job.cpu, job.peak = max(job.cpu, noted.cpu), max(job.peak, noted.peak)

    def _gone(self, job: Job) -> None:
        self._selector.unregister(job.pidfd)
        job.cpu = max(job.cpu, procs.cpu_seconds(job.pid, job.start))  # if nobody has reaped it yet
        self._unread[job] = procs.now() + CODE
        self.poll(procs.now())

    def _noted(self, job: Job) -> Noted | None:
        return self._slots.noted(job.place, job.id) if job.place is not None else None


class Survivors:
    """Finds and ends survivors. `groups` are the directories with the control groups of jobs."""

    def __init__(
        self,
        journaled: JournaledJobs[Any],
        tree: Tree,
        slots: Spawners,
        groups: Iterable[Group | None],
        log: Callable[[str], None],
    ) -> None:
        self._journaled = journaled
        self._tree = tree
        self._slots = slots
        self._log = log
        self._groups = {group.path for group in groups if group is not None}
        self._next = 0.0

    def find(self) -> dict[str, set[int]]:
        """The live processes of each allocation with a control group, and of each slot without a known job."""
        found: dict[str, set[int]] = {}
        for group in self._groups:
            for key in _names(group):
                if ALLOCATION.fullmatch(key) and (pids := members_below(os.path.join(group, key))):
                    found.setdefault(key, set()).update(pids)
        for place in self._unknown():
            if pids := set(self._tree.members(_as_job(place), spawner=True)):
                found[f"slot {place.name}"] = pids
        for slot, pids in self._slots.groups.others(self._known()).items():
            if pids:
                found.setdefault(f"slot {slot}", set()).update(pids)
        return found

    def end_unknown(self) -> None:
        """End the processes in slots of earlier supervisors that belong to no job of the journal: their submitter and
        limits are unknown. Called at the start. Their spawners exit by themselves soon after."""
        for place in self._unknown():
            job = _as_job(place)
            ran = bool(self._tree.members(job))
            for pause in _PAUSES:
                if not self._tree.members(job, spawner=True):
                    break
                time.sleep(pause)
                self._tree.stop_spawner(job)
                self._tree.kill(job)
            else:
                self._log(
                    f"{job.id} of an earlier supervisor runs a job that the journal does not have, and cannot be ended"
                )
                continue
            if ran:
                self._log(f"{job.id} of an earlier supervisor ran a job that the journal does not have: it was ended")
        self._sweep_groups()

    def _sweep_groups(self) -> None:
        """End the processes in groups of slots that no job of the journal has."""
        groups = self._slots.groups
        for slot in groups.others(self._known()):
            if not any(groups.end(slot) for _ in range(_GROUP_TRIES)):
                self._log(f"slot {slot} of an earlier supervisor has processes that cannot be ended")

    @property
    def due(self) -> float:
        """When the next search is due."""
        return self._next if self._journaled.unknown else NEVER

    def poll(self, now: float) -> bool:
        """While the journal is damaged: end processes of no known job. True once it is proven that none is left."""
        if now < self.due:
            return False
        self._next = now + EVERY
        lives = self.find()
        for place in self._unknown():
            self._log(f"slot {place.name} is alive, and the journal does not have it: it is ended")
            self._tree.kill(_as_job(place))
        self._sweep_groups()
        for key, pids in lives.items():
            if key.startswith("slot "):
                continue
            job = self._journaled.jobs.get(key)
            if job is None or job.over:
                self._log(f"{key} is alive, and the journal does not have it: it is ended")
                for pid in pids - {os.getpid()}:
                    if (seen := procs.stat(pid)) is not None:
                        procs.send(pid, seen.start, signal.SIGKILL)
        return self._slots.knows_all() and not lives and not any(job.adopted for job in self._tree.ending)

    def _unknown(self) -> list[Place]:
        known = self._known()
        return [place for place in self._slots.left_over(needed=known) if place.name not in known]

    def _known(self) -> set[str]:
        """The names of our slots, and of those of jobs in the journal."""
        jobs = self._journaled.jobs.values()
        return self._slots.names() | {job.place.name for job in jobs if job.place is not None and not job.over}


def _as_job(place: Place) -> Job:
    """A job that stands for a slot, so that it can be ended like one."""
    job = Job(f"slot {place.name}")
    job.place, job.adopted = place, True
    return job


def _names(path: str) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _spawner_works(job: Job) -> bool:
    place = job.place
    seen = procs.stat(place.pid) if place is not None else None
    return place is not None and seen is not None and seen.start == place.start and seen.state not in "TtZX"
