"""The simulated cluster of the lab: machines, jobs and their attempts in simulated time, for any policy. It keeps its
own account of what is held and checks each decision against it, so no policy can use a resource twice."""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

import msgspec

from distributed_grid.protocol.placement import same_model
from distributed_grid.protocol.resources import MILLI
from distributed_grid.simulator.lab.trace import Machine, TraceJob

DAY = 86_400.0
CUT_AFTER = 10.0
"""A run with owners is cut this many times the longest run time (at least a day) after the last submission."""


class Start(NamedTuple):
    """A decision: this job starts on this machine, with these parts of its GPUs (device, milli-GPUs). `cores`: the
    names of its cores, and `shared` that of the core it has a part of (-1: none), where the policy names cores."""

    job: int
    node: int
    gpus: tuple[tuple[int, int], ...] = ()
    cores: tuple[int, ...] | None = None
    shared: int = -1


class Decision(NamedTuple):
    """A policy's decision at a moment: jobs to start, and attempts to end to make room for others."""

    starts: Sequence[Start] = ()
    evicted: Sequence[int] = ()


class Scheduler(Protocol):
    """A policy. Jobs and machines are numbers; times are seconds from the first submission."""

    def submit(self, jobs: Sequence[int], now: float) -> None:
        """Handle the arrival of these jobs."""

    def ended(self, job: int, now: float, again: bool) -> None:
        """An attempt has ended; `again`: it was evicted, and the job waits again."""

    def lent(self, node: int, cores: tuple[int, ...], now: float) -> None:
        """The cores that the owner of this machine leaves to jobs from now on."""

    def frozen(self, job: int, why: str, seconds: float, total: float, now: float) -> None:
        """Handle that a job is frozen because the owner is back; or (no `why`) that it resumes after this many seconds,
        `total` in all."""

    def recalled(self, job: int, why: str, now: float) -> None:
        """The owner recalls a job; its end follows."""

    def owners_used(self, parts: Sequence[float], now: float) -> None:
        """The part of each machine that its owner used over the last interval, as its agent would report it."""

    def decide(self, now: float) -> Decision:
        """Return the jobs to start now."""

    def wake(self) -> float | None:
        """Return when to decide again even if nothing happens; None: never."""


class Attempt(msgspec.Struct, gc=False):
    """A run of a job. `frozen`: since when it is frozen (below 0: it is not); `paused`: total frozen time (s)."""

    number: int
    start: Start
    began: float
    frozen: float = -1.0
    paused: float = 0.0


class Record(msgspec.Struct, gc=False):
    """The record of a job: the start and end of its last attempt (below 0: none), the number of attempts, the
    core-seconds (GPU-seconds of a job with GPUs) that were lost with earlier ones, and the seconds it was frozen.
    `held`: the seconds that its attempts held what they had been given. `moves`: the attempts that were ended by the
    policy or an owner; `recalls`: those by an owner."""

    began: float = -1.0
    ended: float = -1.0
    attempts: int = 0
    lost: float = 0.0
    paused: float = 0.0
    held: float = 0.0
    moves: int = 0
    recalls: int = 0


class Free(msgspec.Struct, gc=False):
    """What is free on a machine: milli-cores, bytes, milli-GPUs by device, which are of this model."""

    cpu: int
    memory: int
    gpus: list[int]
    model: str = ""

    @classmethod
    def all_of(cls, machine: Machine) -> "Free":
        """An empty machine."""
        return cls(machine.cores * MILLI, machine.memory, [MILLI] * machine.gpus, machine.model)

    def copy(self) -> "Free":
        """A copy for trials."""
        return Free(self.cpu, self.memory, self.gpus.copy(), self.model)

    def fits(self, job: TraceJob) -> bool:
        """Whether this job could start here."""
        need = job.resources
        if need.cpu > self.cpu or need.memory > self.memory:
            return False
        if not need.gpu:
            return True
        if job.gpu_model and not same_model(job.gpu_model, self.model):
            return False
        if need.gpu < MILLI:
            return max(self.gpus, default=0) >= need.gpu
        return self.gpus.count(MILLI) * MILLI >= need.gpu

    def choose(self, job: TraceJob) -> tuple[tuple[int, int], ...]:
        """The GPUs for a job that fits: a part from the fullest device that has it, whole ones from the first."""
        need = job.resources.gpu
        if not need:
            return ()
        if need < MILLI:
            return ((min((left, at) for at, left in enumerate(self.gpus) if left >= need)[1], need),)
        free = [at for at, left in enumerate(self.gpus) if left == MILLI]
        return tuple((at, MILLI) for at in free[: need // MILLI])

    def take(self, job: TraceJob, gpus: Iterable[tuple[int, int]], sign: int = -1) -> None:
        """Subtract the resources of a job, or (`sign` 1) add them back."""
        self.cpu += sign * job.resources.cpu
        self.memory += sign * job.resources.memory
        for device, milli in gpus:
            self.gpus[device] += sign * milli


class Point(NamedTuple):
    """The state at a moment: milli-cores and milli-GPUs held, jobs waiting, and milli-cores in use by owners."""

    at: float
    cpu: int
    gpu: int
    waiting: int
    owned: int


class Owners(Protocol):
    """The owners of the machines."""

    def next(self) -> float:
        """Time of the next change by an owner; infinite: none."""

    def step(self, world: "World", now: float) -> None:
        """Do what is due."""

    def began(self, world: "World", job: int) -> None:
        """An attempt began."""

    def ended(self, world: "World", job: int, frozen: bool) -> None:
        """An attempt ended, while it was frozen or not."""

    @property
    def milli(self) -> int:
        """Milli-cores in use by owners now."""


def _horizon(jobs: Sequence[TraceJob]) -> float:
    longest = max((job.duration for job in jobs), default=0.0)
    return (jobs[-1].submit if jobs else 0.0) + CUT_AFTER * max(longest, DAY)


class World:
    """One run of a policy over jobs on machines. `at_once`: a job that does not start when it arrives never does, and
    none of them ends: a workload of arrivals."""

    def __init__(
        self,
        machines: Sequence[Machine],
        jobs: Sequence[TraceJob],
        scheduler: Scheduler,
        owners: Owners | None = None,
        at_once: bool = False,
    ) -> None:
        self.machines, self.jobs, self.scheduler = machines, jobs, scheduler
        self.now = 0.0
        self.free = [Free.all_of(machine) for machine in machines]
        self.running: dict[int, Attempt] = {}
        self.waiting: set[int] = set()
        self.records = [Record() for _ in jobs]
        self.points: list[Point] = []
        self.decisions = 0
        self._cores: list[dict[int, int]] = [{} for _ in machines]
        self._there: list[set[int]] = [set() for _ in machines]
        """Jobs that run on each machine."""
        self._touched: set[int] = set()
        """Machines on which an attempt began or ended at this moment."""
        self._area = 0.0
        """Milli-core-seconds held up to now, added up over time, to compare with what the attempts held."""
        self._ends: list[tuple[float, int, int]] = []
        self._arrived = 0
        self._owners, self.at_once = owners, at_once
        self.cpu = self.gpu = 0
        self.horizon = math.inf if owners is None else _horizon(jobs)
        """When the run is cut: machines whose owners never leave them run nothing for ever."""

    def run(self, after: Callable[["World"], None] | None = None) -> None:
        """Run to the end; `after` is called after each moment."""
        while (at := self._next()) <= self.horizon and at < math.inf:
            assert at >= self.now, "time goes backwards"
            self._area += self.cpu * (at - self.now)
            self.now = at
            self._step()
            self._judge()
            if after is not None:
                after(self)
        for number in () if self.at_once or self._owners is not None else self.waiting:
            raise AssertionError(f"job {number} never started, though it fits: {self.jobs[number]}")

    def _next(self) -> float:
        arrival = self.jobs[self._arrived].submit if self._arrived < len(self.jobs) else math.inf
        end = math.inf
        while self._ends:
            end, number, job = self._ends[0]
            attempt = self.running.get(job)
            if attempt is not None and attempt.number == number and attempt.frozen < 0:
                break
            heappop(self._ends)
            end = math.inf
        busy = arrival < math.inf or self.running or (self.waiting and not self.at_once)
        if not busy:
            return math.inf
        wake = self.scheduler.wake()
        owners = self._owners.next() if self._owners is not None else math.inf
        return min(arrival, end, max(wake, self.now) if wake is not None else math.inf, owners)

    def _step(self) -> None:
        now = self.now
        while self._ends and self._ends[0][0] <= now:
            _, number, job = heappop(self._ends)
            attempt = self.running.get(job)
            if attempt is not None and attempt.number == number and attempt.frozen < 0:
                self.end(job, again=False)
        if self._owners is not None and self._owners.next() <= now:
            self._owners.step(self, now)
        first = self._arrived
        while self._arrived < len(self.jobs) and self.jobs[self._arrived].submit <= now:
            self.waiting.add(self._arrived)
            self._arrived += 1
        if self._arrived > first:
            self.scheduler.submit(range(first, self._arrived), now)
        while True:
            decision = self.scheduler.decide(now)
            self.decisions += len(decision.starts)
            for start in decision.starts:
                self._start(start)
            for job in decision.evicted:
                self.end(job, again=True)
            if not decision.evicted:
                break
        if self.at_once:
            self.waiting.clear()
        owned = self._owners.milli if self._owners is not None else 0
        point = Point(now, self.cpu, self.gpu, len(self.waiting), owned)
        if self.points and self.points[-1].at == now:
            self.points[-1] = point
        else:
            self.points.append(point)

    def _start(self, start: Start) -> None:
        job, free = self.jobs[start.job], self.free[start.node]
        assert start.job in self.waiting, f"job {start.job} does not wait"
        assert sum(milli for _, milli in start.gpus) == job.resources.gpu, f"job {start.job} got other GPUs than asked"
        assert not job.gpu_model or same_model(job.gpu_model, free.model), f"job {start.job} got GPUs of another model"
        self.waiting.remove(start.job)
        free.take(job, start.gpus)
        assert free.cpu >= 0 and free.memory >= 0, f"machine {start.node} has too little for job {start.job}"
        assert all(free.gpus[device] >= 0 for device, _ in start.gpus), f"a GPU of machine {start.node} is given twice"
        self._take_cores(start, job, 1)
        record = self.records[start.job]
        record.attempts += 1
        record.began = self.now
        self.running[start.job] = Attempt(record.attempts, start, self.now)
        self._there[start.node].add(start.job)
        self._touched.add(start.node)
        self.cpu += job.resources.cpu
        self.gpu += job.resources.gpu
        if not self.at_once:
            heappush(self._ends, (self.now + job.duration, record.attempts, start.job))
        if self._owners is not None:
            self._owners.began(self, start.job)

    def _take_cores(self, start: Start, job: TraceJob, sign: int) -> None:
        """Account for named cores: none may be held beyond its whole."""
        if start.cores is None:
            return
        held, part = self._cores[start.node], job.resources.cpu - len(start.cores) * MILLI
        assert (part == 0) == (start.shared < 0) and 0 <= part < MILLI, f"job {start.job} got other cores than asked"
        amounts = [(core, MILLI) for core in start.cores] + ([(start.shared, part)] if part else [])
        for core, milli in amounts:
            left = held.pop(core, 0) + sign * milli
            assert 0 <= left <= MILLI, f"core {core} of machine {start.node} is held twice"
            if left:
                held[core] = left

    def end(self, job: int, again: bool) -> None:
        """An attempt is over: the job is done, or (`again`) its work is lost and it waits again."""
        attempt, record, told = self.running.pop(job), self.records[job], self.jobs[job]
        self._there[attempt.start.node].remove(job)
        self._touched.add(attempt.start.node)
        self.free[attempt.start.node].take(told, attempt.start.gpus, 1)
        self._take_cores(attempt.start, told, -1)
        self.cpu -= told.resources.cpu
        self.gpu -= told.resources.gpu
        if attempt.frozen >= 0:
            attempt.paused += self.now - attempt.frozen
        record.paused += attempt.paused
        record.held += self.now - attempt.began
        worked = self.now - attempt.began - attempt.paused
        if again:
            record.moves += 1
            record.lost += worked * told.size / MILLI
            self.waiting.add(job)
        else:
            assert _same(worked, told.duration, self.now), f"job {job} ended when {worked} s of its work were done"
            record.ended = self.now
        self.scheduler.ended(job, self.now, again)
        if self._owners is not None:
            self._owners.ended(self, job, attempt.frozen >= 0)

    def freeze(self, job: int, why: str) -> None:
        """The owner is back: the job does nothing until it is thawed."""
        attempt = self.running[job]
        attempt.frozen = self.now
        self.scheduler.frozen(job, why, 0.0, attempt.paused, self.now)

    def thaw(self, job: int) -> None:
        """Let a job continue."""
        attempt = self.running[job]
        lasted = self.now - attempt.frozen
        attempt.paused += lasted
        attempt.frozen = -1.0
        attempt.number += 1_000_000  # the end that was due before is not any more
        heappush(self._ends, (attempt.began + attempt.paused + self.jobs[job].duration, attempt.number, job))
        self.scheduler.frozen(job, "", lasted, attempt.paused, self.now)

    def recall(self, job: int, why: str) -> None:
        """The owner takes back what it holds."""
        self.records[job].recalls += 1
        self.scheduler.recalled(job, why, self.now)
        self.end(job, again=True)

    def _judge(self) -> None:
        """Recount each machine on which something began or ended, from the attempts that run there. Raises
        AssertionError."""
        for node in self._touched:
            free = Free.all_of(self.machines[node])
            for job in self._there[node]:
                free.take(self.jobs[job], self.running[job].start.gpus)
            assert free == self.free[node], f"what is free on machine {node} is not what is left by its jobs"
            assert free.cpu >= 0 and free.memory >= 0, f"machine {node} has too little for its jobs"
            assert min(free.gpus, default=0) >= 0, f"a GPU of machine {node} is given twice"
        self._touched.clear()

    def check(self) -> None:
        """Recount everything from the attempts: all machines, all jobs, and all work. Raises AssertionError."""
        self._touched.update(range(len(self.machines)))
        self._judge()
        assert sum(map(len, self._there)) == len(self.running), "a job runs on two machines"
        assert not self.waiting & self.running.keys(), "a job waits and runs"
        done = sum(record.ended >= 0 for record in self.records)
        if not self.at_once:
            assert done + len(self.waiting) + len(self.running) == self._arrived, "a job was lost, or is there twice"
        for number, attempt in self.running.items():
            assert attempt.began >= self.jobs[number].submit, f"job {number} started before it came"
        held = sum(record.held * job.resources.cpu for record, job in zip(self.records, self.jobs, strict=True))
        held += sum((self.now - one.began) * self.jobs[job].resources.cpu for job, one in self.running.items())
        assert _same(held, self._area, self.now), "the work of the attempts is not what was held over time"


def _same(one: float, other: float, scale: float) -> bool:
    """Whether two sums of moments up to `scale` are equal but for rounding."""
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6 + 1e-9 * abs(scale))
