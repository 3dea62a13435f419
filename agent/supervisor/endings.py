"""Deadlines of jobs (time limit, freeze, normal weight), and how a job ends: SIGTERM, grace, SIGKILL until nothing is
left. Process operations and clock are injected: the simulator runs this on its own machines. Stdlib only.

A freeze is in the journal before its first signal, and a thaw after its last, so the next supervisor knows every job
that may be stopped. A job is frozen as long as it has a cause (job.OWNER, job.READER), and no cause ends another one.
A freeze for the owner expires unless the agent repeats it: without an agent jobs continue."""

import heapq
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from distributed_grid.agent.supervisor.job import NEVER, OWNER, Job, JobState

RESTORED = 30.0
"""Seconds that a job frozen under an earlier supervisor stays so without an order."""
LOOK = 1.0
"""Interval between checks that a frozen job is still frozen (s)."""
DOUBT = 5.0
"""Seconds after the first SIGKILL until it is reported that something of a job is still alive."""
KILL_EVERY, STUCK_EVERY = 1.0, 10.0
"""The longest pause between two attempts to end all of a job, before that is reported and after (s). An attempt looks
through all processes twenty times, and a process that hangs in the kernel may do so for days."""
_NAMED = 3  # processes that are named
_ADOPTED_EVERY = 0.2  # seconds between two looks at leftovers that are not below us


class Processes(Protocol):
    """Operations on all processes of a job; the list is pid to what is known of it."""

    def terminate(self, job: Job) -> None: ...
    def kill(self, job: Job) -> None: ...
    def signal_group(self, job: Job, signum: int) -> object: ...
    def members(self, job: Job) -> Mapping[int, Any]: ...


class Journals(Protocol):
    """A journal. `sound`: it contains what was committed."""

    sound: bool

    def append(self, *record: Any) -> None: ...


class Stops(Protocol):
    """Stops and continues all of a job. `adopt`: an earlier supervisor may have stopped it; `forget`: nothing of it is
    left; `tidy`: do what is `due`."""

    due: float

    def adopt(self, job: Job) -> None: ...
    def stop(self, job: Job) -> None: ...
    def resume(self, job: Job) -> None: ...
    def forget(self, job: Job) -> None: ...
    def tidy(self) -> None: ...


class Frozen:
    """A job that is frozen, or will be once that is in the journal: for each cause, when it expires without another
    order. `untold`: the causes that are not reported yet."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}
        self.untold: list[str] = []
        self.checked = 0.0
        self.done = False


class Freezer:
    """All frozen jobs of a supervisor. `tell` sends the agent a message."""

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
        """When `look` is to be called next, apart from checks of frozen jobs."""
        return self._stopper.due

    def restore(self, job: Job) -> None:
        """An earlier supervisor froze it, perhaps partially."""
        self._stopper.adopt(job)
        if job.state is JobState.FROZEN:
            frozen = self.jobs[job] = Frozen()
            frozen.until = dict.fromkeys(job.freezes, self._clock() + RESTORED)
            frozen.done = True

    def ask(self, job: Job, why: str, seconds: float, cause: str = OWNER) -> None:
        """Freeze it for this cause and these seconds, or extend that. Ignored for a job that is ending or has no
        process yet."""
        now = self._clock()
        if job.state not in (JobState.RUNNING, JobState.FROZEN):
            return
        frozen = self.jobs.setdefault(job, Frozen())
        if cause not in frozen.until:
            frozen.untold.append(cause)
            job.freeze(now, why, cause)
            self._journal.append("freeze", job.id, now, why, cause)
        frozen.until[cause] = now + seconds

    def act(self) -> None:
        """Stop the jobs whose freeze is in the journal."""
        if not self._journal.sound:
            return
        for job, frozen in self.jobs.items():
            if not frozen.done:
                frozen.done = True
                self._stop(job, frozen)
            for cause in frozen.untold:
                self._tell(freeze_report(job, self._clock(), cause))
            frozen.untold.clear()

    def _stop(self, job: Job, frozen: Frozen) -> None:
        frozen.checked = self._clock()
        self._stopper.stop(job)

    def poll(self, now: float) -> list[Job]:
        """Stop new processes of frozen jobs, and end causes whose time has run out: returns the jobs of these."""
        gone = []
        if now >= self._stopper.due:
            self._stopper.tidy()
        for job, frozen in [*self.jobs.items()]:
            for cause in [one for one, until in frozen.until.items() if now >= until]:
                self._log(f"{job.id} is not frozen for its {cause} any more: for a while nobody has asked for that")
                self.thaw(job, cause)
                gone.append(job)
            if frozen.until and frozen.done and now >= frozen.checked + LOOK:
                self._stop(job, frozen)
        return gone

    def forget(self, job: Job) -> None:
        """Forget a job of which nothing is left."""
        self.jobs.pop(job, None)
        self._stopper.forget(job)

    def thaw(self, job: Job, *causes: str) -> bool:
        """End these causes, or all; it continues if none is left. False if it was not frozen for any of them."""
        frozen = self.jobs.get(job)
        ended = [one for one in frozen.until if not causes or one in causes] if frozen is not None else []
        if frozen is None or not ended:
            return False
        for cause in ended:
            del frozen.until[cause]
        frozen.untold = [one for one in frozen.untold if one not in ended]
        if not frozen.until:
            del self.jobs[job]
            self._stopper.resume(job)
        now = self._clock()
        for cause in ended:
            lasted = now - job.frozen_since(cause)
            job.thaw(job.frozen_for + (lasted if cause == OWNER else 0.0), cause)
            self._journal.append("thaw", job.id, job.frozen_for, cause)
            self._tell({**freeze_report(job, now, cause), "lasted": lasted})
        return True


def freeze_report(job: Job, now: float, cause: str = OWNER) -> dict[str, Any]:
    """The report about a job that is or was frozen for this cause. `in_all`: seconds in total, for the owner."""
    since, why = job.freezes.get(cause, (now, ""))
    owners = job.frozen_since(OWNER)
    in_all = job.frozen_for + (now - owners if owners else 0.0)
    return {"op": "frozen", "id": job.id, "cause": cause, "why": why, "lasted": now - since, "in_all": in_all}


class Endings:
    """Deadlines and ends of all running jobs. `unended` is called for a job of which something survives SIGKILL: it is
    not over, keeps its resources, and is killed again. `clock` returns seconds since boot."""

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
        self._to_terminate: dict[Job, None] = {}
        self._count = itertools.count()

    @property
    def due(self) -> float:
        """The next deadline, or earlier (seconds since boot)."""
        return self._timers[0][0] if self._timers else NEVER

    def fire(self, now: float) -> None:
        """Handle what is due: warnings, time limits, ends of grace, and freezes that expired. What follows at once is
        for the next call: it may only be done when what happens here is in the journal."""
        for job in self._freezer.poll(now):
            self.arm(job)
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers))
        for when, _, job in due:
            if job.over or job.wake != when:
                continue
            job.wake, job.to_check = NEVER, True
            if now >= job.kill_at:
                self._tree.kill(job)
                self._doubt(job, now)
                job.pause = min(STUCK_EVERY if job.unended else KILL_EVERY, job.pause * 2 or 0.02)
                job.kill_at = self._clock() + job.pause
            elif now >= job.deadline():
                self.ask(job, "time-limit", f"ran longer than its time limit of {job.limit:g} s", job.grace)
            elif now >= job.warn_at():
                job.warned = True
                self._journal.append("warned", job.id)
                self._tree.signal_group(job, job.warn_signal)
            elif now >= job.renice_at():
                self.renice(job)
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
        """Schedule the job's next deadline."""
        due = min(job.kill_at, job.deadline(), job.warn_at(), job.renice_at())
        if job.adopted and job.status is not None:  # its orphans are not our children: no SIGCHLD
            due = min(due, self._clock() + _ADOPTED_EVERY)
        if due < job.wake:
            job.wake = due
            heapq.heappush(self._timers, (due, next(self._count), job))

    def limit(self, job: Job, seconds: float) -> None:
        """Set another time limit."""
        if seconds != job.limit:
            job.limit = seconds
            self._journal.append("limit", job.id, seconds)
            self.arm(job)

    def renice(self, job: Job) -> None:
        """Give a job its later niceness, if it was started with a normal weight. Limits changes its processes."""
        if job.eager:
            job.renice()
            self._journal.append("renice", job.id)

    def thaw(self, job: Job, cause: str = OWNER) -> None:
        """Let a job and its clock continue, if it is frozen for this cause alone."""
        if self._freezer.thaw(job, cause):
            self.arm(job)

    def ask(self, job: Job, cause: str, text: str, grace: float) -> None:
        """Request its end. If the main process is gone already, its own exit stays the outcome."""
        if job.unasked:
            job.stop(cause, text)
            self._journal.append("stop", job.id, cause, text)
        self.end(job, grace if grace >= 0 else job.grace)

    def end(self, job: Job, grace: float) -> None:
        """SIGTERM to all of it, at the next `act`, and SIGKILL after `grace` seconds; a repetition can only shorten
        that."""
        self._freezer.thaw(job)  # a frozen process would not get the signal
        if grace > 0 and job.kill_at == NEVER:
            self._to_terminate[job] = None
        job.kill_at = min(job.kill_at, self._clock() + grace)
        self.arm(job)

    def act(self) -> None:
        """Send each SIGTERM that is due. Call it when the journal is written, or cannot be: why a job is ended is to be
        known before it may end of that."""
        for job in self._to_terminate:
            if not job.over:
                self._tree.terminate(job)
        self._to_terminate.clear()
