"""Freezing jobs while the node's owner needs the machine: as a control group where one can be made, else by SIGSTOP to
all of a job, until nobody is left who runs.

A freeze is in the journal before its first signal, and a thaw after its last, so the next supervisor knows of every job
that may be stopped. It holds only for as long as the agent says, and the agent says so again and again: with an agent
that is gone the jobs go on by themselves. Stdlib only.
"""

import signal
from collections.abc import Callable
from typing import Any

from distributed_grid.agent.cgroups import groups as cgroups
from distributed_grid.agent.cgroups.cgroupfs import Place
from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.job import NEVER, Job, JobState
from distributed_grid.agent.supervisor.journal import Journal
from distributed_grid.agent.supervisor.tree import Tree

RESTORED = 30.0
"""Seconds that a job which an earlier supervisor froze stays so without word from an agent."""
LOOK = 1.0
"""Seconds between two looks whether all of a frozen job still is."""
_AGAIN = 0.45  # seconds to another look whether the kernel is done with what was the last of a group
_ROUNDS = 50
_STOPPED = "Tt"


class Frozen:
    """A job that is frozen, or is to be as soon as that is in the journal: `until` when without another word, `stopped`
    the processes that were stopped for it (pid to start time), in that order, and no others."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.stopped: dict[int, int] = {}
        self.looked = 0.0
        self.done = False


class Freezer:
    """All jobs of a supervisor that are frozen. `tell` has a message for the agent, `place` is where groups can be made
    that freeze as one (None: nowhere)."""

    def __init__(
        self,
        tree: Tree,
        journal: Journal,
        tell: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
        place: Place | None = None,
    ) -> None:
        self.jobs: dict[Job, Frozen] = {}
        self._place = place
        self._grouped: set[str] = set()
        """Jobs that may have a group of ours; and of those that are over, in `_leaving`, looked at anew when `due`."""
        self._leaving: set[str] = set()
        self.due = NEVER
        self._tree, self._journal, self._tell, self._log = tree, journal, tell, log

    def restore(self, job: Job) -> None:
        """An earlier supervisor froze it, and may have been killed before it was done."""
        self._grouped.add(job.id)
        if job.state is not JobState.FROZEN:
            return
        frozen = self.jobs[job] = Frozen(procs.now() + RESTORED)
        frozen.stopped = {pid: at.start for pid, at in self._tree.members(job).items() if at.state in _STOPPED}
        frozen.done = True

    def ask(self, job: Job, why: str, seconds: float) -> None:
        """Freeze it, if it is not yet, and leave it so for these seconds, unless asked again. What is about to end is
        left alone, and so is what has no process yet: it is asked again."""
        until = procs.now() + seconds
        if job.state is JobState.FROZEN:
            self.jobs[job].until = until
        elif job.state is JobState.RUNNING:
            self.jobs[job] = Frozen(until)
            job.freeze(procs.now(), why)
            self._journal.append("freeze", job.id, job.frozen_at, why)

    def act(self) -> None:
        """Stop what the journal has by now as to be frozen."""
        if not self._journal.sound:
            return
        for job, frozen in self.jobs.items():
            if not frozen.done:
                frozen.done = True
                self._stop(job, frozen)
                self._tell(told(job, procs.now()))

    def look(self, now: float) -> list[Job]:
        """Stop what of a frozen job runs all the same, and let go on whose time has run out: these."""
        gone = []
        if now >= self.due:
            self._leave()
        for job, frozen in [*self.jobs.items()]:
            if now >= frozen.until:
                self._log(f"{job.id} goes on: for a while no agent has asked that it stay frozen")
                self.thaw(job)
                gone.append(job)
            elif frozen.done and now >= frozen.looked + LOOK:
                self._stop(job, frozen)
        return gone

    def forget(self, job: Job) -> None:
        """Nothing of it is left."""
        self.jobs.pop(job, None)
        if job.id in self._grouped:
            self._grouped.discard(job.id)
            self._leaving.add(job.id)
            self._leave()

    def _leave(self) -> None:
        """Remove the groups of jobs that are over, as far as the kernel is done with them."""
        place = self._place
        self._leaving = {key for key in self._leaving if place is not None and not cgroups.left(place, key)}
        self.due = procs.now() + _AGAIN if self._leaving else NEVER

    def thaw(self, job: Job) -> bool:
        """Let it go on, those that were stopped last first. False if it was not frozen."""
        frozen = self.jobs.pop(job, None)
        if frozen is None:
            return False
        if self._place is not None:
            cgroups.thawed(self._place, job.id)
        self._tree.send(job, dict(reversed(frozen.stopped.items())), signal.SIGCONT)
        lasted = procs.now() - job.frozen_at
        job.thaw(job.frozen_for + lasted)
        self._journal.append("thaw", job.id, job.frozen_for)
        self._tell({**told(job, procs.now()), "lasted": lasted})
        return True

    def _stop(self, job: Job, frozen: Frozen) -> None:
        """All of it as a group; else by SIGSTOP, until nobody is new. What the job has stopped itself is not ours to
        wake."""
        frozen.looked = procs.now()
        if self._as_group(job):
            return
        sent: dict[int, int] = {}
        for _ in range(_ROUNDS):
            found = self._tree.members(job).items()
            fresh = {pid: at.start for pid, at in found if sent.get(pid) != at.start and at.state not in _STOPPED}
            if not fresh:
                break
            self._tree.send(job, fresh, signal.SIGSTOP)
            sent |= fresh
        frozen.stopped |= sent

    def _as_group(self, job: Job) -> bool:
        if self._place is None:
            return False
        try:
            self._grouped.add(job.id)
            cgroups.frozen(self._place, job.id, lambda: self._tree.members(job))
        except OSError as error:
            self._log(f"{error.filename} cannot be used ({error.strerror}): jobs are frozen by SIGSTOP from now on")
            cgroups.thawed(self._place, job.id)
            self._place = None
            return False
        return True


def told(job: Job, now: float) -> dict[str, Any]:
    """What the agent is told of a job that is frozen, or was."""
    lasted = now - job.frozen_at if job.frozen_at else 0.0
    why = job.frozen_why if job.frozen_at else ""
    return {"op": "frozen", "id": job.id, "why": why, "lasted": lasted, "in_all": job.frozen_for + lasted}
