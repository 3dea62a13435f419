"""When something is due for a job, and how its end goes: time limits, SIGTERM, grace, SIGKILL until nothing is left.
Stdlib only.
"""

import heapq
import itertools
from collections.abc import Callable

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.supervisor.freeze import Freezer
from distributed_grid.agent.supervisor.job import NEVER, Job
from distributed_grid.agent.supervisor.journal import Journal
from distributed_grid.agent.supervisor.tree import Tree

DOUBT = 5.0
"""Seconds after its first SIGKILL from which on it is told that something of a job lives all the same."""
_NAMED = 3  # processes that are named
_ADOPTED_LOOK = 0.2  # seconds between two looks at leftovers that are not below us


class Endings:
    """The timetable of all jobs that run. Who is to end is asked to by SIGTERM and made to by SIGKILL. `unended` is
    told of a job of which something lives on: it is not over, holds what it has, and is killed again until it is."""

    def __init__(self, tree: Tree, journal: Journal, freezer: Freezer, unended: Callable[[Job], None]) -> None:
        self._tree = tree
        self._freezer = freezer
        self._journal = journal
        self._unended = unended
        self._timers: list[tuple[float, int, Job]] = []
        self._count = itertools.count()

    @property
    def due(self) -> float:
        """When something is due, or earlier (seconds since boot)."""
        return self._timers[0][0] if self._timers else NEVER

    def fire(self, now: float) -> None:
        """Do what is due: warnings, time limits, the end of somebody's grace, and of a freeze that nobody renewed."""
        for job in self._freezer.look(now):
            self.arm(job)
        while self._timers and self._timers[0][0] <= now:
            when, _, job = heapq.heappop(self._timers)
            if job.over or job.wake != when:
                continue
            job.wake, job.look = NEVER, True
            if now >= job.kill_at:
                self._tree.kill(job)
                self._doubt(job, now)
                job.pause = min(1.0, job.pause * 2 or 0.02)
                job.kill_at = now + job.pause
            elif now >= job.deadline():
                self.ask(job, "time-limit", f"ran longer than its time limit of {job.limit:g} s", job.grace)
            elif now >= job.warn_at():
                job.warned = True
                self._journal.append("warned", job.id)
                self._tree.signal_group(job, job.warn_signal)
            self.arm(job)

    def _doubt(self, job: Job, now: float) -> None:
        job.killed_at = job.killed_at or now
        if job.unended or now < job.killed_at + DOUBT:
            return
        found = sorted(self._tree.members(job).items())[:_NAMED]
        who = ", ".join(f"process {pid} in state {seen.state}" for pid, seen in found) or "its spawner says so"
        job.unended = f"something of it lives {DOUBT:g} s after SIGKILL ({who})"
        self._unended(job)

    def arm(self, job: Job) -> None:
        """Have the job looked at when something of it is next due."""
        due = min(job.kill_at, job.deadline(), job.warn_at())
        if job.adopted and job.status is not None:  # its orphans are not our children: their end wakes nobody here
            due = min(due, procs.now() + _ADOPTED_LOOK)
        if due < job.wake:
            job.wake = due
            heapq.heappush(self._timers, (due, next(self._count), job))

    def limit(self, job: Job, seconds: float) -> None:
        """It has another time limit from now on."""
        if seconds != job.limit:
            job.limit = seconds
            self._journal.append("limit", job.id, seconds)
            self.arm(job)

    def thaw(self, job: Job) -> None:
        """If it is frozen, let it go on, and its time as well."""
        if self._freezer.thaw(job):
            self.arm(job)

    def ask(self, job: Job, cause: str, text: str, grace: float) -> None:
        """Somebody wants it ended. Where the main process is gone already, its own end stays the outcome."""
        if job.unasked:
            job.stop(cause, text)
            self._journal.append("stop", job.id, cause, text)
        self.end(job, grace if grace >= 0 else job.grace)

    def end(self, job: Job, grace: float) -> None:
        """SIGTERM to all of it, and SIGKILL after `grace` seconds; asked again it can only come sooner."""
        self._freezer.thaw(job)  # or it would not hear of it
        if grace > 0 and job.kill_at == NEVER:
            self._tree.terminate(job)
        job.kill_at = min(job.kill_at, procs.now() + grace)
        self.arm(job)
