"""What the supervisor guarantees for allocations: one that ended or was refused is never started; an end is reported
once it is durable, and until it is acknowledged; an expired lease ends its job; of a chain of successors only one is
started at a time. Processes, disk and clock are injected: the simulator runs this on its own machines. Stdlib only."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from distributed_grid.agent.core.chains import Chains
from distributed_grid.agent.supervisor.endings import Endings, Journals, freeze_report
from distributed_grid.agent.supervisor.job import (
    LEASE_GRACE,
    NEVER,
    OWNER,
    READER,
    Job,
    Leases,
    ahead,
    lease_text,
    never_ran,
)

Order = dict[str, Any]
L = TypeVar("L")


class Released(NamedTuple, Generic[L]):
    """`ends` are durable and to be reported, then the `starts` of jobs that waited for earlier ends; the intents of
    `launches` are durable, so these may start. The intents of `refused` could not be made durable."""

    ends: list[Job]
    starts: list[Job]
    launches: list[L]
    refused: list[L]


class Syncs(Generic[L]):
    """The records that wait for the disk. At most one sync is under way, and it covers what was written before it
    began; what comes meanwhile waits for the next one, together. Durable records are released in the order in which
    they may be reported: ends, then starts, then launches.

    `over` are the jobs that ended and are not durable yet, in order. `under_way`: whether a sync is.
    """

    def __init__(self) -> None:
        self.over: list[Job] = []
        self.under_way = False
        self._written = 0
        """How many of `over` have their exit written."""
        self._covered = 0
        """How many of `over` the sync under way makes durable."""
        self._launches: list[L] = []
        """Launches whose intents it makes durable."""
        self._starts: deque[tuple[int, Job]] = deque()
        """Starts to be reported, each with the number of ends that are reported first."""
        self._reported = 0
        self._begun = self._done = self._rewritten = 0
        self._released: Released[L] = Released([], [], [], [])

    # --- what waits ---------------------------------------------------------------------------------------------------

    @property
    def mark(self) -> int:
        """Return a mark for `is_durable`: the records appended until now."""
        return self._begun

    def is_durable(self, mark: int) -> bool:
        """Whether what was appended at this mark is on disk, and was not left out by a rewrite."""
        return self._rewritten <= mark < self._done

    @property
    def uncovered(self) -> list[Job]:
        """The ends that need another sync than the one under way."""
        return self.over[self._covered :]

    @property
    def starts_wait(self) -> bool:
        """Whether a start waits to be reported after ends."""
        return bool(self._starts)

    def hold_start(self, job: Job) -> bool:
        """Report this start after the ends that are known now. False: there are none."""
        if self.over:
            self._starts.append((self._reported + len(self.over), job))
        elif self._released.ends:
            self._released.starts.append(job)
        else:
            return False
        return True

    def take_unwritten(self) -> list[Job]:
        """The ends whose exits are to be written now, each once."""
        found = self.over[self._written :]
        self._written = len(self.over)
        return found

    # --- a sync -------------------------------------------------------------------------------------------------------

    def begin(self, launches: list[L]) -> None:
        """A sync of all that is written begins; the intents of these launches are part of it."""
        assert not self.under_way, "one at a time"  # noqa: S101
        self.under_way, self._launches, self._covered = True, launches, self._written
        self._begun += 1

    def succeeded(self) -> None:
        """The sync under way has succeeded."""
        self._done = self._begun
        self._release(self._covered)

    def rewritten(self) -> None:
        """A new journal is durable. It has the state of all jobs, and no intent of a successor that waits."""
        self._begun += 1
        self._rewritten = self._done = self._begun
        self._release(len(self.over))

    def failed(self) -> None:
        """Handle that neither the sync under way nor a new journal has succeeded: ends keep waiting, and these launches
        do not start."""
        self._released.refused.extend(self._take_launches())

    @property
    def some_released(self) -> bool:
        """Whether `take_released` has something to give."""
        return any(self._released)

    def take_released(self) -> Released[L]:
        """Return what has become durable, or was refused, since the last call."""
        found, self._released = self._released, Released([], [], [], [])
        return found

    def _release(self, count: int) -> None:
        ends, starts, launches, _ = self._released
        ends.extend(self.over[:count])
        del self.over[:count]
        self._reported += count
        self._written = max(0, self._written - count)
        while self._starts and self._starts[0][0] <= self._reported:
            starts.append(self._starts.popleft()[1])
        launches.extend(self._take_launches())

    def _take_launches(self) -> list[L]:
        found, self._launches = self._launches, []
        self.under_way, self._covered = False, 0
        return found


class Journaled(Protocol):
    """All jobs, and those of their records that wait for the disk; `forgotten` are the ids of acknowledged ones;
    `unknown`: something unrecorded may be alive."""

    jobs: dict[str, Job]
    forgotten: dict[str, None]

    @property
    def syncs(self) -> Syncs[Any]: ...
    @property
    def journal(self) -> Journals: ...
    @property
    def unknown(self) -> bool: ...


class Launches(Protocol):
    """Launches that were not started yet."""

    def __contains__(self, key: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def add(self, key: str, order: Order) -> None: ...
    def drop(self, key: str) -> None: ...


BATCH_SECONDS = 0.002
"""Maximum delay of an end where more are coming (s): they share a sync and a message, here and in the coordinator."""
RECENT_SECONDS = 0.5
"""Age up to which a running job counts as recent: it may end within the next milliseconds (s)."""


class ReportBatch:
    """When ends are made durable and reported: at once, or, while a recent job runs, together with those that come
    within BATCH_SECONDS of the first."""

    def __init__(self) -> None:
        self._first = NEVER

    def due(self, waiting: bool, youngest: float, now: float) -> float:
        """Return when the `waiting` ends are due (NEVER: there are none). `youngest` is when the last of the running
        jobs began."""
        if not waiting:
            self._first = NEVER
            return NEVER
        self._first = min(self._first, now)
        return self._first + BATCH_SECONDS if now - youngest < RECENT_SECONDS else now

    def done(self) -> None:
        """Note that the ends are reported; later ones begin a new batch."""
        self._first = NEVER


class Allocations:
    """All allocations of a node. `tell` sends the agent a message, and `release` frees a job's resources once nothing
    of it is alive.

    `waiting` are the successors that wait until nothing of their chain is alive before them. They have no spawner, and
    their intents become durable with the next sync, so that a start need not wait for one. If this supervisor or its
    agent goes, they were never there, and are launched again."""

    def __init__(
        self,
        journaled: Journaled,
        launches: Launches,
        leases: Leases,
        endings: Endings,
        tell: Callable[..., None],
        release: Callable[[Job], None],
        log: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._journaled, self._launches, self._leases, self._endings = journaled, launches, leases, endings
        self._tell, self._release, self._log, self._clock = tell, release, log, clock
        self.waiting: dict[str, Order] = {}
        self._ahead: dict[str, int] = {}
        """The mark (Syncs) at which the intent of a successor was appended; while it waits, and on its way to start."""
        self._chains = Chains()

    def restore(self, job: Job) -> None:
        """An earlier supervisor left this running, or may have."""
        self._leases.hold(job.id, job.lease, job.since)
        self._chains.join(job.id, chain_of(job.id, job.kept))

    # --- what the agent says ------------------------------------------------------------------------------------------

    def known(self) -> list[dict[str, Any]]:
        """The allocations for a new agent. An end that is not durable yet is reported later."""
        now, found = self._clock(), []
        for job in self._journaled.jobs.values():
            outcome = job.outcome
            if outcome is not None and job in self._journaled.syncs.over:
                if not outcome.get("started", True):
                    continue
                outcome = None
            about = {"id": job.id, "pid": job.pid, "stopping": bool(job.cause), "for": now - job.began}
            causes = [OWNER, READER] if OWNER in job.freezes or job.frozen_for else [READER]
            frozen = [freeze_report(job, now, cause) for cause in causes if job.outcome is None]
            about |= {"outcome": outcome, "frozen": frozen, "unended": job.unended if outcome is None else ""}
            found.append({**about, "kept": job.kept, **_where(job)})
        return found

    def launch(self, order: Order) -> None:
        """Start this; if it is known, report its state instead."""
        key, lease, since = order["id"], order["lease"], order["lease_from"]
        if key in self._journaled.jobs:
            self.tell(self._journaled.jobs[key])
        elif key in self._journaled.forgotten:
            self._was_over(key)
        elif "/" in key or key.startswith("."):
            self._log(f"{key!r} is not the id of an allocation")
        elif lease and since + lease <= self._clock():
            # Later renewals do not count: it may have been given up before them, on its way here.
            self.refuse(key, "lease-expired", lease_text(lease))
        elif key not in self:
            self._leases.hold(key, lease, since)
            self._chains.join(key, chain_of(key, order.get("kept")))
            if self._chains.waits(key):
                self.waiting[key] = order
                self._ahead[key] = self._journaled.syncs.mark
                self._journaled.journal.append(*ahead(order))
            else:
                self._launches.add(key, order)

    def __contains__(self, key: object) -> bool:
        """Whether it is a launch that was not started yet."""
        return key in self._launches or key in self.waiting

    def stop(self, key: str, cause: str, text: str, grace: float, unless_started: bool = False) -> None:
        """End this, known or not; with `unless_started` only if it was not started yet."""
        job = self._journaled.jobs.get(key)
        if job is None:
            if key in self._journaled.forgotten:
                self._was_over(key)
            elif self._journaled.unknown and key not in self:
                self._log(f"{key} is to be ended, and is not known since the journal was damaged: not answered")
            else:
                self.refuse(key, cause, text or "ended before it was started")
        elif job.over:
            self.tell(job)
        elif not unless_started:
            self._endings.ask(job, cause, text, grace)

    def drop_unstarted(self) -> None:
        """A new agent does not know of the launches without an intent, and may decline them: they never were."""
        for key in (*self.waiting, *self._launches):
            self._leases.drop(key)
            self._chains.leave(key)
            self._launches.drop(key)
        self.waiting.clear()
        self._ahead.clear()

    def renew(self, at: float) -> None:
        """The coordinator answered the heartbeat sent at `at`: renew all leases from then."""
        now = self._clock()
        self.end_unleased(now)  # what is over by now is not revived: we may have been stopped since
        if self._leases.renew(at, now):
            self._journaled.journal.append("renewed", self._leases.renewed)

    def forget(self, keys: Iterable[str]) -> None:
        """Forget these ends, which the coordinator has acknowledged. No effect on live jobs."""
        journaled = self._journaled
        for key in keys:
            if key in journaled.jobs and journaled.jobs[key].over:
                del journaled.jobs[key]
                journaled.forgotten[key] = None
                journaled.journal.append("forget", key)

    def end_unleased(self, now: float) -> None:
        """End jobs whose lease has expired."""
        for key, lease in self._leases.over(now).items():
            if key in self:
                self.refuse(key, "lease-expired", lease_text(lease))
            else:
                job = self._journaled.jobs[key]
                self._endings.ask(job, "lease-expired", lease_text(lease), min(job.grace, LEASE_GRACE))

    # --- what has happened --------------------------------------------------------------------------------------------

    def refuse(self, key: str, cause: str, text: str) -> None:
        """End what was not started yet, remembered as over, so that a late launch is refused."""
        self._launches.drop(key)
        self.waiting.pop(key, None)
        self._ahead.pop(key, None)
        job = self._journaled.jobs[key] = Job(key)
        self.is_over(job, never_ran(cause, text))

    def is_over(self, job: Job, outcome: dict[str, Any]) -> None:
        """Record the end of a job: nothing of it is alive, or ever was. It is reported once that is durable, by the
        sync that also makes its successor's intent durable."""
        job.end(outcome)
        self._release(job)
        self._journaled.syncs.over.append(job)
        job.followed = self.launch_successor(job.id)

    def is_durable(self, key: str) -> bool:
        """Whether the intent of a launch that has not begun is durable already."""
        return self._journaled.syncs.is_durable(self._ahead.get(key, -1))

    def begin(self, job: Job) -> None:
        """Append what has to be written before it starts: where its intent is not durable yet, that, and then it has to
        be synced first (`intent_durable`)."""
        job.intent_durable = self.is_durable(job.id)
        self._ahead.pop(job.id, None)
        self._journaled.journal.append(*(job.go() if job.intent_durable else job.intent()))

    def launch_successor(self, key: str) -> int:
        """Launch the successor of an allocation that is over or is not started. Returns how many successors there are:
        none, one, or more (2)."""
        self._leases.drop(key)
        successor = self._chains.leave(key)
        if successor not in self.waiting:
            return 0
        self._launches.add(successor, self.waiting.pop(successor))
        return 1 if self._chains.is_tail(successor) else 2

    def tell_durable(self) -> Released[Any]:
        """Report the ends and starts that have waited for the disk. Returns what is durable now, or was refused."""
        released = self._journaled.syncs.take_released()
        for job in released.ends:
            self.tell(job)
        for job in released.starts:
            if job.outcome is None:  # else its end says that it had started
                self.tell(job)
        return released

    def tell(self, job: Job) -> None:
        """Report its state; an end, or that it is to start, once that is durable."""
        if job in self._journaled.syncs.over or not job.intent_durable:
            return
        if job.outcome is not None:
            # Its end is reported together with its successor's start, and that, where it is short, with its end.
            self._tell({"op": "exited", "id": job.id, "outcome": job.outcome, **_where(job)}, patient=job.followed > 1)
        else:
            # For us, the agent and the coordinator half the work.
            self._tell({"op": "started", "id": job.id, "pid": job.pid, **_where(job)}, patient=True)

    def _was_over(self, key: str) -> None:
        """Refuse a launch of an allocation that has ended before, and was acknowledged. Only a coordinator that has
        lost that end sends one: the allocation may have run, and how it ended is not known."""
        text = "it was over and acknowledged before; an allocation is never started twice"
        self._tell({"op": "exited", "id": key, "outcome": {"cause": "node-lost", "text": text}})


def chain_of(key: str, kept: dict[str, Any] | None) -> str:
    """The chain of an allocation, by what is kept of its launch."""
    return str((kept or {}).get("chain") or key)


def _where(job: Job) -> dict[str, Any]:
    """Return the place of a job's processes, for the agent."""
    return {"slot": job.place.name, "walls": job.place.walls} if job.place is not None else {}
