"""Baseline policies: each is an order of the waiting jobs, and a rule for those that do not fit.

They place jobs on the first machine with room, and know requested times but not run times.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import suggestion
from distributed_grid.simulator.lab.trace import JobKind, Machine, TraceJob, capacity
from distributed_grid.simulator.lab.world import Decision, Free, Start

Key = tuple[float, ...]


class Machines:
    """The machines of a baseline, as far as it knows: what is free, and when the jobs that run there end at the
    latest."""

    def __init__(self, machines: Sequence[Machine], jobs: Sequence[TraceJob]) -> None:
        self.jobs = jobs
        self.free = [Free.all_of(machine) for machine in machines]
        self.lent = [machine.cores * 1000 for machine in machines]
        self.held: list[dict[int, Start]] = [{} for _ in machines]
        self.ends: dict[int, float] = {}
        self.where: dict[int, Start] = {}
        self.cpu = sum(self.lent)
        """Milli-cores free in all."""

    def first(self, job: int) -> int:
        """The first machine with room; -1: none."""
        wanted = self.jobs[job]
        for at, free in enumerate(self.free):
            if free.fits(wanted):
                return at
        return -1

    def all_that_fit(self, job: int) -> list[int]:
        """Return all machines with room."""
        wanted = self.jobs[job]
        return [at for at, free in enumerate(self.free) if free.fits(wanted)]

    def start(self, job: int, node: int, now: float) -> Start:
        """Start a job there."""
        wanted, free = self.jobs[job], self.free[node]
        start = Start(job, node, free.choose(wanted))
        free.take(wanted, start.gpus)
        self.cpu -= wanted.resources.cpu
        self.ends[job] = now + (wanted.requested or math.inf)
        self.where[job] = self.held[node][job] = start
        return start

    def ended(self, job: int) -> None:
        """Handle the end of a job's attempt."""
        start = self.where.pop(job)
        del self.held[start.node][job], self.ends[job]
        self.free[start.node].take(self.jobs[job], start.gpus, 1)
        self.cpu += self.jobs[job].resources.cpu

    def lend(self, node: int, milli: int) -> None:
        """Set how many milli-cores of a machine jobs may use."""
        change = milli - self.lent[node]
        self.lent[node] = milli
        self.free[node].cpu += change
        self.cpu += change


class Queue:
    """Waiting jobs by a key that does not change."""

    def __init__(self, key: Callable[[int], Key]) -> None:
        self._key = key
        self.keys: list[Key] = []
        self.jobs: list[int] = []

    def add(self, job: int) -> None:
        """Insert a job by its key."""
        key = (*self._key(job), job)
        at = bisect_left(self.keys, key)
        self.keys.insert(at, key)
        self.jobs.insert(at, job)

    def keep(self, chosen: set[int]) -> None:
        """Remove the jobs that were chosen."""
        if not chosen:
            return
        left = [at for at, job in enumerate(self.jobs) if job not in chosen]
        self.keys, self.jobs = [self.keys[at] for at in left], [self.jobs[at] for at in left]


class Baseline:
    """The base of all baselines: a queue and the machines. `at_once`: a job that does not start on arrival never
    does."""

    def __init__(
        self, machines: Sequence[Machine], jobs: Sequence[TraceJob], at_once: bool = False, seed: int = 0
    ) -> None:
        self.jobs, self.at_once = jobs, at_once
        self.machines = Machines(machines, jobs)
        self.random = random.Random(seed)
        self.queue = Queue(self.key)

    def key(self, job: int) -> Key:
        """The order of service: arrival."""
        return ()

    def submit(self, jobs: Sequence[int], now: float) -> None:
        """Handle the arrival of these jobs."""
        for job in jobs:
            self.queue.add(job)

    def ended(self, job: int, now: float, again: bool) -> None:
        """An attempt is over."""
        self.machines.ended(job)
        if again:
            self.queue.add(job)

    def lent(self, node: int, cores: tuple[int, ...], now: float) -> None:
        """The owner leaves these cores."""
        self.machines.lend(node, len(cores) * 1000)

    def owners_used(self, parts: Sequence[float], now: float) -> None:
        """Ignored: these policies do not learn from owners."""

    def frozen(self, job: int, why: str, seconds: float, total: float, now: float) -> None:
        """A frozen job ends later."""
        if not why:
            self.machines.ends[job] += seconds

    def recalled(self, job: int, why: str, now: float) -> None:
        """Ignored: the end of the job follows."""

    def wake(self) -> float | None:
        """Return None: these policies act on events only."""
        return None

    def decide(self, now: float) -> Decision:
        """Return the jobs to start now."""
        starts = self.choose(now)
        self.queue.keep({one.job for one in starts})
        if self.at_once:
            self.queue.keep(set(self.queue.jobs))
        return Decision(starts)

    def choose(self, now: float) -> list[Start]:
        """Start in order, until one does not fit."""
        starts = []
        for job in self.queue.jobs:
            if (node := self.machines.first(job)) < 0:
                break
            starts.append(self.machines.start(job, node, now))
        return starts


class Fcfs(Baseline):
    """First come, first served: no job starts before an earlier one."""


class Easy(Baseline):
    """First come, first served, with EASY backfill: the first job that does not fit has a reservation where it can
    start the earliest by the requested times of what runs; others start before it if they do not delay it."""

    def choose(self, now: float) -> list[Start]:
        """Start jobs in order; then backfill behind the first that does not fit."""
        starts = super().choose(now)
        rest = self.queue.jobs[len(starts) :]
        if not rest or self.at_once:
            return starts
        machines, head = self.machines, rest[0]
        shadow = spare = None
        node = -1
        hopeless: set[JobKind] = set()
        for job in rest[1:]:
            if machines.cpu <= 0:
                break
            wanted = self.jobs[job]
            kind = wanted.kind
            if kind in hopeless:
                continue
            there = machines.first(job)
            if there < 0:
                hopeless.add(kind)
                continue
            if spare is None:
                node, shadow, spare = self._reservation(head, now)
            assert shadow is not None
            late = not wanted.requested or now + wanted.requested > shadow
            if there == node and late and not spare.fits(wanted):
                others = [one for one in machines.all_that_fit(job) if one != node]
                if not others:
                    continue
                there = others[0]
            start = machines.start(job, there, now)
            if there == node and late:
                spare.take(wanted, start.gpus if _covers(spare, start) else spare.choose(wanted))
            starts.append(start)
        return starts

    def _reservation(self, head: int, now: float) -> tuple[int, float, Free]:
        """Where and when the first job can start at the latest, and what is spare there then beside it."""
        machines, wanted = self.machines, self.jobs[head]
        trials: dict[int, Free] = {}
        for job in sorted(machines.ends, key=lambda job: (machines.ends[job], job)):
            start, end = machines.where[job], machines.ends[job]
            free = trials.get(start.node)
            if free is None:
                free = trials[start.node] = machines.free[start.node].copy()
            free.take(self.jobs[job], start.gpus, 1)
            if free.fits(wanted):
                free.take(wanted, free.choose(wanted))
                return start.node, max(now, end), free
        return -1, math.inf, Free(0, 0, [])


def _covers(spare: Free, start: Start) -> bool:
    return all(spare.gpus[device] >= milli for device, milli in start.gpus)


class Sjf(Easy):
    """Shortest job first by requested time (a job without one comes last), with EASY backfill around the first."""

    def key(self, job: int) -> Key:
        """The requested time."""
        return (self.jobs[job].requested or math.inf,)


class FirstFit(Baseline):
    """Start every job that fits now, in the order of arrival, on the first machine with room; without reservations."""

    def choose(self, now: float) -> list[Start]:
        """Start all jobs that fit, in order."""
        starts, hopeless = [], set[JobKind]()
        for job in self.queue.jobs:
            kind = self.jobs[job].kind
            if kind in hopeless:
                continue
            if (node := self.pick(job)) < 0:
                hopeless.add(kind)
            else:
                starts.append(self.machines.start(job, node, now))
        return starts

    def pick(self, job: int) -> int:
        """The machine for a job; -1: none has room."""
        return self.machines.first(job)


class Random(FirstFit):
    """As first-fit, with the order of service and the machine drawn by lot."""

    def key(self, job: int) -> Key:
        """A lot, drawn on arrival."""
        return (self.random.random(),)

    def pick(self, job: int) -> int:
        """Any machine with room."""
        found = self.machines.all_that_fit(job)
        return self.random.choice(found) if found else -1


class StrictFifo(Baseline):
    """As a ClusterQueue of Kueue with StrictFIFO: jobs are admitted by priority and age while their sum is within the
    quota, which is the whole cluster; one that is not admitted blocks those behind it. The admitted are placed as
    machines have room, and hold their quota from admission on."""

    strict = True

    def __init__(
        self, machines: Sequence[Machine], jobs: Sequence[TraceJob], at_once: bool = False, seed: int = 0
    ) -> None:
        super().__init__(machines, jobs, at_once, seed)
        self.quota = capacity(machines)
        self.used = Resources()
        self.admitted: list[int] = []

    def key(self, job: int) -> Key:
        """Return the sort key: by priority, then age."""
        return (-self.jobs[job].priority, job)

    def ended(self, job: int, now: float, again: bool) -> None:
        """Release the quota of a job."""
        self.used = self.used - self.jobs[job].resources
        super().ended(job, now, again)

    def choose(self, now: float) -> list[Start]:
        """Admit jobs, then place those that have room."""
        chosen: set[int] = set()
        hopeless: set[Resources] = set()
        for job in self.queue.jobs:
            wanted = self.jobs[job].resources
            if wanted in hopeless:
                continue
            total = self.used + wanted
            if total.fits(self.quota):
                self.used = total
                self.admitted.append(job)
                chosen.add(job)
            elif self.strict:
                break
            else:
                hopeless.add(wanted)
        self.queue.keep(chosen)
        starts, left = list[Start](), list[int]()
        full: set[JobKind] = set()
        for job in self.admitted:
            kind = self.jobs[job].kind
            node = -1 if kind in full else self.machines.first(job)
            if node < 0:
                full.add(kind)
                left.append(job)
            else:
                starts.append(self.machines.start(job, node, now))
        if self.at_once:
            for job in left:
                self.used = self.used - self.jobs[job].resources
            left = []
        self.admitted = left
        return starts


class BestEffort(StrictFifo):
    """As StrictFifo with Kueue's BestEffortFIFO: one that is not admitted does not block those behind it."""

    strict = False


BASELINES: dict[str, type[Baseline]] = {
    "fcfs": Fcfs,
    "easy": Easy,
    "sjf": Sjf,
    "strict-fifo": StrictFifo,
    "best-effort": BestEffort,
    "first-fit": FirstFit,
    "random": Random,
}
BY_CHANCE = {"random"}
"""Policies that draw lots."""


def unknown(name: str, known: Sequence[str]) -> BadValue:
    """The error for an unknown policy."""
    hint = f"{suggestion(name, list(known))}there are {', '.join(known)}"
    return BadValue(f"there is no policy {name!r}", hint=hint)
