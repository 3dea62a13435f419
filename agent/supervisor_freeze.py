"""Freezing jobs while the node's owner needs the machine: by SIGSTOP to all of a job, until nobody is left who runs.

A freeze is in the journal before its first signal, and a thaw after its last, so the next supervisor knows of every job
that may be stopped. It holds only for as long as the agent says, and the agent says so again and again: with an agent
that is gone the jobs go on by themselves. Stdlib only.
"""

import signal
from collections.abc import Callable
from typing import Any

from distributed_grid.agent import supervisor_procs as procs
from distributed_grid.agent.supervisor_job import Job
from distributed_grid.agent.supervisor_journal import Journal
from distributed_grid.agent.supervisor_tree import Tree

RESTORED = 30.0
"""Seconds that a job which an earlier supervisor froze stays so without word from an agent."""
LOOK = 1.0
"""Seconds between two looks whether all of a frozen job still is."""
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
    """All jobs of a supervisor that are frozen. `tell` has a message for the agent."""

    def __init__(
        self,
        tree: Tree,
        journal: Journal,
        tell: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
    ) -> None:
        self.jobs: dict[Job, Frozen] = {}
        self._tree, self._journal, self._tell, self._log = tree, journal, tell, log

    def restore(self, job: Job) -> None:
        """An earlier supervisor froze it, and may have been killed before it was done."""
        if not job.frozen_at or job.cause:
            return
        frozen = self.jobs[job] = Frozen(procs.now() + RESTORED)
        frozen.stopped = {pid: at.start for pid, at in self._tree.members(job).items() if at.state in _STOPPED}
        frozen.done = True

    def ask(self, job: Job, why: str, seconds: float) -> None:
        """Freeze it, if it is not yet, and leave it so for these seconds, unless asked again. What is about to end is
        left alone."""
        if job.outcome is not None or job.cause or job.status is not None:
            return
        until = procs.now() + seconds
        if job in self.jobs:
            self.jobs[job].until = until
            return
        self.jobs[job] = Frozen(until)
        job.frozen_at, job.frozen_why = procs.now(), why
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
        for job, frozen in [*self.jobs.items()]:
            if job.outcome is not None:
                del self.jobs[job]
            elif now >= frozen.until:
                self._log(f"{job.id} goes on: for a while no agent has asked that it stay frozen")
                self.thaw(job)
                gone.append(job)
            elif frozen.done and now >= frozen.looked + LOOK:
                self._stop(job, frozen)
        return gone

    def thaw(self, job: Job) -> bool:
        """Let it go on, those that were stopped last first. False if it was not frozen."""
        frozen = self.jobs.pop(job, None)
        if frozen is None:
            return False
        for pid, start in reversed(frozen.stopped.items()):
            procs.send(pid, start, signal.SIGCONT)
        lasted = procs.now() - job.frozen_at
        job.frozen_for, job.frozen_at = job.frozen_for + lasted, 0.0
        self._journal.append("thaw", job.id, job.frozen_for)
        self._tell({**told(job, procs.now()), "lasted": lasted})
        return True

    def _stop(self, job: Job, frozen: Frozen) -> None:
        """SIGSTOP to all of it, again until nobody is new. What the job has stopped itself is not ours to wake."""
        sent: dict[int, int] = {}
        for _ in range(_ROUNDS):
            found = self._tree.members(job).items()
            fresh = {pid: at.start for pid, at in found if sent.get(pid) != at.start and at.state not in _STOPPED}
            if not fresh:
                break
            for pid, start in fresh.items():
                procs.send(pid, start, signal.SIGSTOP)
            sent |= fresh
        frozen.stopped |= sent
        frozen.looked = procs.now()


def told(job: Job, now: float) -> dict[str, Any]:
    """What the agent is told of a job that is frozen, or was."""
    lasted = now - job.frozen_at if job.frozen_at else 0.0
    why = job.frozen_why if job.frozen_at else ""
    return {"op": "frozen", "id": job.id, "why": why, "lasted": lasted, "in_all": job.frozen_for + lasted}
