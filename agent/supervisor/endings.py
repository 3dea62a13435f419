"""When something is due for a job: the end of its time or of its freeze; and how its end goes: SIGTERM, grace, SIGKILL
until nothing is left. What is done to processes is handed in, and so is the clock: the simulator runs this over its own
machines. Stdlib only.

A freeze is in the journal before its first signal, and a thaw after its last, so the next supervisor knows of every job
that may be stopped. It holds only for as long as the agent says, and the agent says so again and again: with an agent
that is gone the jobs go on by themselves.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from distributed_grid.agent.supervisor.job import NEVER, Job, JobState

RESTORED = 30.0
"""Seconds that a job which an earlier supervisor froze stays so without word from an agent."""
LOOK = 1.0
"""Seconds between two looks whether all of a frozen job still is."""
DOUBT = 5.0
"""Seconds after its first SIGKILL from which on it is told that something of a job lives all the same."""
_NAMED = 3  # processes that are named
_ADOPTED_LOOK = 0.2  # seconds between two looks at leftovers that are not below us


class Processes(Protocol):
    """Those of jobs: all of one is asked to end, ended, signalled or listed (pid to what is seen of it)."""

    def terminate(self, job: Job) -> None: ...
    def kill(self, job: Job) -> None: ...
    def signal_group(self, job: Job, signum: int) -> object: ...
    def members(self, job: Job) -> Mapping[int, Any]: ...


class Journals(Protocol):
    """A journal. `sound`: what was committed is in it."""

    sound: bool

    def append(self, *record: Any) -> None: ...


class Stops(Protocol):
    """Who stops all of a job, and lets it go on. `adopt`: an earlier one may have stopped it; `forget`: nothing of it
    is left; `tidy`: do what is `due`."""

    due: float

    def adopt(self, job: Job) -> None: ...
    def stop(self, job: Job) -> None: ...
    def go_on(self, job: Job) -> None: ...
    def forget(self, job: Job) -> None: ...
    def tidy(self) -> None: ...


class Frozen:
    """A job that is frozen, or is to be as soon as that is in the journal: `until` when without another word."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.looked = 0.0
        self.done = False


class Freezer:
    """All jobs of a supervisor that are frozen. `tell` has a message for the agent."""

    def __init__(
        self,
        stopper: Stops,
        journal: Journals,
        tell: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.jobs: dict[Job, Frozen] = {}
        self._stopper, self._journal, self._tell, self._log, self._clock = stopper, journal, tell, log, clock

    @property
    def due(self) -> float:
        """When `look` has something to do, but for looks whether a frozen job still is."""
        return self._stopper.due

    def restore(self, job: Job) -> None:
        """An earlier supervisor froze it, and may have been killed before it was done."""
        self._stopper.adopt(job)
        if job.state is JobState.FROZEN:
            frozen = self.jobs[job] = Frozen(self._clock() + RESTORED)
            frozen.done = True

    def ask(self, job: Job, why: str, seconds: float) -> None:
        """Freeze it, if it is not yet, and leave it so for these seconds, unless asked again. What is about to end is
        left alone, and so is what has no process yet: it is asked again."""
        now = self._clock()
        if job.state is JobState.FROZEN:
            self.jobs[job].until = now + seconds
        elif job.state is JobState.RUNNING:
            self.jobs[job] = Frozen(now + seconds)
            job.freeze(now, why)
            self._journal.append("freeze", job.id, job.frozen_at, why)

    def act(self) -> None:
        """Stop what the journal has by now as to be frozen."""
        if not self._journal.sound:
            return
        for job, frozen in self.jobs.items():
            if not frozen.done:
                frozen.done = True
                self._stop(job, frozen)
                self._tell(told(job, self._clock()))

    def _stop(self, job: Job, frozen: Frozen) -> None:
        frozen.looked = self._clock()
        self._stopper.stop(job)

    def look(self, now: float) -> list[Job]:
        """Stop what of a frozen job runs all the same, and let go on whose time has run out: these."""
        gone = []
        if now >= self._stopper.due:
            self._stopper.tidy()
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
        self._stopper.forget(job)

    def thaw(self, job: Job) -> bool:
        """Let it go on. False if it was not frozen."""
        if self.jobs.pop(job, None) is None:
            return False
        self._stopper.go_on(job)
        lasted = self._clock() - job.frozen_at
        job.thaw(job.frozen_for + lasted)
        self._journal.append("thaw", job.id, job.frozen_for)
        self._tell({**told(job, self._clock()), "lasted": lasted})
        return True


def told(job: Job, now: float) -> dict[str, Any]:
    """What the agent is told of a job that is frozen, or was."""
    lasted = now - job.frozen_at if job.frozen_at else 0.0
    why = job.frozen_why if job.frozen_at else ""
    return {"op": "frozen", "id": job.id, "why": why, "lasted": lasted, "in_all": job.frozen_for + lasted}


class Endings:
    """The timetable of all jobs that run. Who is to end is asked to by SIGTERM and made to by SIGKILL. `unended` is
    told of a job of which something lives on: it is not over, holds what it has, and is killed again until it is.
    `clock` gives the seconds since boot."""

    def __init__(
        self,
        tree: Processes,
        journal: Journals,
        freezer: Freezer,
        unended: Callable[[Job], None],
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
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
            due = min(due, self._clock() + _ADOPTED_LOOK)
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
        job.kill_at = min(job.kill_at, self._clock() + grace)
        self.arm(job)
