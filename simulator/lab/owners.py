"""The owners of the machines, from a trace of use: the real lender and owner policy of an agent decide, at each change,
which cores are lent, and which jobs are frozen or recalled.

An owner uses the cores with the highest numbers first; jobs are given those with the lowest. Memory and GPUs are not in
the trace, so all of them are lent.
"""

import math
import random
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

from distributed_grid.agent.core.owner import Freeze, Owner, RunningJob, Thaw
from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.spare.thresholds import Holding, Limits
from distributed_grid.protocol.nodes import OwnerPolicy, Sample
from distributed_grid.protocol.resources import GIB, MILLI, Grant
from distributed_grid.simulator.lab.grid import node_facts
from distributed_grid.simulator.lab.trace import Machine, UseSeries
from distributed_grid.simulator.lab.world import World

MEMORY = 64 * GIB
STEP = 300.0
"""Seconds from the last sample of a series to its first again: it is repeated where the jobs last longer."""
SLACK = 0.01
CHECKED = 60.0
"""Interval between looks at a machine with frozen jobs (s)."""
INTERVAL = 300.0
"""Interval at which it is told what owners have used (s), as the coordinator looks at it."""
BUSY, NOISE = 0.30, 0.10
"""Parts of one core at which the agent's judgement of it changes (`cpu_percent_max`, and what counts as noise)."""


class _Host:
    """A machine: its agent's lender and owner, what its owner uses now, and what jobs hold there by name."""

    def __init__(self, number: int, machine: Machine, limits: Limits, changes: Iterator[tuple[float, float]]) -> None:
        self.number, self.count = number, machine.cores
        facts = node_facts(Machine(machine.name, machine.cores, MEMORY))
        self.lender, self.owner = Lender(limits, facts), Owner(limits, machine.cores)
        self.changes = changes
        self.used = 0.0
        """Cores' worth."""
        self.lent = tuple(range(machine.cores))
        self.held: dict[int, Grant] = {}
        self.active = 0
        """Milli-cores of jobs that are not frozen."""
        self.key: tuple[object, ...] = ()
        self.since = 0.0
        """Up to when its pain and its owner's use are counted."""
        self.area = 0.0
        """Core-seconds that its owner has used since the interval began."""

    def sample(self, now: float) -> Sample:
        """Return the sample that its agent would measure."""
        whole, part = divmod(self.used, 1.0)
        busy = dict.fromkeys(range(self.count), 0)
        busy |= {self.count - 1 - at: 100 for at in range(int(whole))}
        if part >= SLACK and whole < self.count:
            busy[self.count - 1 - int(whole)] = round(100 * part)
        return Sample(at=now, cores=busy, foreign_cpu=self.used, memory_total=MEMORY)

    def judged(self) -> tuple[object, ...]:
        """Return the parts of the owner's use that change a judgement."""
        whole, part = divmod(self.used, 1.0)
        return (self.used > BUSY * self.count, whole, part > BUSY, part >= NOISE, part > 0)

    def holdings(self) -> list[Holding]:
        """Return the holdings of jobs."""
        return [Holding(str(job), grant) for job, grant in self.held.items()]

    def names(self, milli: int) -> Grant:
        """Cores for a job whose policy names none: free ones, the lent first."""
        whole, part = divmod(milli, MILLI)
        held = {core for grant in self.held.values() for core in grant.cores}
        shared: dict[int, int] = {}
        for grant in self.held.values():
            if grant.shared_core >= 0:
                shared[grant.shared_core] = shared.get(grant.shared_core, 0) + grant.shared_milli
        lent = dict.fromkeys([*self.lent, *range(self.count)])
        free = [core for core in lent if core not in held and core not in shared]
        chosen = tuple(free[:whole])
        if not part:
            return Grant(chosen)
        there = [core for core, milli in shared.items() if milli + part <= MILLI]
        return Grant(chosen, there[0] if there else free[whole], part) if there or free[whole:] else Grant(chosen)


class OwnersOfMachines:
    """The owners of all machines. Which machine has which series is drawn by the seed."""

    def __init__(self, machines: Sequence[Machine], use: Sequence[UseSeries], policy: OwnerPolicy, seed: int) -> None:
        chance = random.Random(seed)
        order = [one for one in use if one.samples]
        chance.shuffle(order)
        self.limits = Limits(owner_policy=policy)
        self.pain = 0.0
        """Core-seconds that owners wanted while jobs had them."""
        self._hosts = []
        for number, machine in enumerate(machines):
            again = number >= len(order)
            series = order[number % len(order)]
            changes = _repeated(series, chance.random() if again else 0.0)
            self._hosts.append(_Host(number, machine, self.limits, changes))
        self._changes = [(*next(host.changes), host.number) for host in self._hosts]
        heapify(self._changes)
        self._checks: list[tuple[float, int]] = []
        self._where: dict[int, int] = {}
        self._used = 0.0
        self._interval = INTERVAL
        """When the next one ends."""
        for host in self._hosts:  # idle before the first moment
            for at in (-2 * self.limits.offer_after - SLACK, -self.limits.offer_after):
                host.lender.observe(host.sample(at), (), at)

    @property
    def milli(self) -> int:
        """Milli-cores in use by owners now."""
        return round(self._used * MILLI)

    def next(self) -> float:
        """Return when an owner acts next."""
        change = min(self._changes[0][0], self._interval) if self._changes else math.inf
        return min(change, self._checks[0][0]) if self._checks else change

    def step(self, world: World, now: float) -> None:
        """Changes of use, and looks that are due."""
        due: set[int] = set()
        while self._changes and self._changes[0][0] <= now:
            _, use, number = heappop(self._changes)
            host = self._hosts[number]
            self._count(host, now)
            self._used += use * host.count - host.used
            host.used = use * host.count
            at, later = next(host.changes)
            heappush(self._changes, (at, later, number))
            if host.judged() != host.key:
                host.key = host.judged()
                due.add(number)
                for after in (self.limits.owner_after, self.limits.offer_after, self.limits.owner_quiet):
                    heappush(self._checks, (now + after + SLACK, number))
        while self._checks and self._checks[0][0] <= now:
            due.add(heappop(self._checks)[1])
        for number in sorted(due):
            self._observe(world, self._hosts[number], now)
        if now >= self._interval:
            self._interval += INTERVAL
            for host in self._hosts:
                self._count(host, now)
            world.scheduler.owners_used([host.area / (INTERVAL * host.count) for host in self._hosts], now)
            for host in self._hosts:
                host.area = 0.0

    def began(self, world: World, job: int) -> None:
        """An attempt began: its cores have names now."""
        start = world.running[job].start
        host, milli = self._hosts[start.node], world.jobs[job].resources.cpu
        self._count(host, world.now)
        if start.cores is None:
            host.held[job] = host.names(milli)
        else:
            host.held[job] = Grant(start.cores, start.shared, milli - len(start.cores) * MILLI)
        host.active += milli
        self._where[job] = start.node

    def ended(self, world: World, job: int, frozen: bool) -> None:
        """An attempt ended: its cores may not be lent any more."""
        host = self._hosts[self._where.pop(job)]
        self._count(host, world.now)
        del host.held[job]
        if not frozen:
            host.active -= world.jobs[job].resources.cpu
        if host.used:
            self._lend(world, host, world.now)

    def _observe(self, world: World, host: _Host, now: float) -> None:
        """A sample for the agent: its orders, and what it lends from now on."""
        sample = host.sample(now)
        jobs = [RunningJob(one, world.running[int(one.allocation)].began) for one in host.holdings()]
        for order in host.owner.observe(sample, jobs, now):
            job = int(order.allocation)
            attempt, milli = world.running[job], world.jobs[job].resources.cpu
            if isinstance(order, Thaw):
                self._count(host, now)
                host.active += milli
                world.thaw(job)
                host.owner.took(order.allocation, "", 0.0, attempt.paused, now)
            elif isinstance(order, Freeze):
                if attempt.frozen < 0:
                    self._count(host, now)
                    host.active -= milli
                    world.freeze(job, order.why)
                    host.owner.took(order.allocation, order.why, 0.0, attempt.paused, now)
            else:
                world.recall(job, order.why)
        if any(world.running[job].frozen >= 0 for job in host.held):
            heappush(self._checks, (now + CHECKED, host.number))
        self._lend(world, host, now)

    def _lend(self, world: World, host: _Host, now: float) -> None:
        host.lender.closed = host.owner.presence()
        host.lender.observe(host.sample(now), host.holdings(), now)
        offer = host.lender.current(now)
        held = {core: None for grant in host.held.values() for core in (*grant.cores, grant.shared_core) if core >= 0}
        lent = tuple(dict.fromkeys([*offer.cores, *offer.shares, *held]))
        if set(lent) != set(host.lent):
            world.scheduler.lent(host.number, lent, now)
        host.lent = lent

    def _count(self, host: _Host, now: float) -> None:
        """Count the pain of an owner up to now."""
        over = host.used + host.active / MILLI - host.count
        if over > 0:
            self.pain += over * (now - host.since)
        host.area += host.used * (now - host.since)
        host.since = now


def _repeated(series: UseSeries, phase: float) -> Iterator[tuple[float, float]]:
    """The changes of a series from time 0 on, for ever; `phase`: where in it they begin, 0 to 1."""
    samples = series.samples
    period = samples[-1][0] + STEP
    first = min(int(phase * len(samples)), len(samples) - 1)
    offset = -samples[first][0]
    yield 0.0, samples[first][1]
    at = first + 1
    while True:
        if at == len(samples):
            at, offset = 0, offset + period
        yield samples[at][0] + offset, samples[at][1]
        at += 1
