"""Runs of the lab: a trace, a cluster and the names of policies in; figures out."""

import random
from collections.abc import Callable, Sequence

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import OwnerPolicy
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import MILLI
from distributed_grid.protocol.text import counted
from distributed_grid.simulator.lab.baselines import BASELINES, BY_CHANCE, unknown
from distributed_grid.simulator.lab.grid import FIT, ORDERS, Grid, policy_of
from distributed_grid.simulator.lab.grid import POLICIES as REBALANCING
from distributed_grid.simulator.lab.metrics import Figures, Fragmentation, Plain, figures, over_seeds
from distributed_grid.simulator.lab.owners import OwnersOfMachines
from distributed_grid.simulator.lab.trace import UNKNOWN, Machine, TraceJob, UseSeries, capacity
from distributed_grid.simulator.lab.world import Point, Scheduler, World

GRID = "grid"
POLICIES = (GRID, *BASELINES)
STRATEGIES = tuple(f"{GRID}:{word}" for word in (*Strategy, *ORDERS, *REBALANCING, FIT))
MOMENTS = 50
"""Number of moments at which fragmentation is measured."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The input of all policies. `fill`: instead of the jobs as they came, arrivals drawn from them until they have
    asked for this part of the cluster's GPUs (of its cores where it has none); 0: the jobs as they came. `skip`: the
    first jobs, whose waits are not counted. `owners`: the use of machines by their owners."""

    machines: Sequence[Machine]
    jobs: Sequence[TraceJob]
    fill: float = 0.0
    skip: int = 0
    owners: Sequence[UseSeries] = ()
    owner_policy: OwnerPolicy = OwnerPolicy.SUSPEND


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one policy and seed. `seconds`: how long it took, by the given clock (CPU time)."""

    policy: str
    seed: int
    figures: Figures
    points: list[Point]
    decisions: int
    seconds: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one policy over its seeds: the means, and half the widths of their 95 % confidence intervals."""

    policy: str
    seeds: int
    mean: Plain
    interval: Plain
    decisions_a_second: float


def parse_policies(text: str) -> list[str]:
    """Names, with commas between. Raises BadValue."""
    names = [name for name in text.replace(" ", "").split(",") if name]
    for name in names:
        if name not in POLICIES and name not in STRATEGIES:
            raise unknown(name, (*POLICIES, f"{GRID}:{Strategy.PACK}"))
    if not names:
        raise BadValue("no policy is named", hint=f"there are {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))


def by_chance(policy: str, setup: Setup) -> bool:
    """Whether the figures depend on the seed."""
    return policy in BY_CHANCE or setup.fill > 0 or bool(setup.owners)


def arrivals(jobs: Sequence[TraceJob], machines: Sequence[Machine], until: float, seed: int) -> list[TraceJob]:
    """A workload of arrivals as FGD's (ATC'23): the jobs in random order, then draws from them, one a second, until
    they have asked for `until` times the cluster's GPUs (of its cores where it has none)."""
    whole, chance, found = capacity(machines), random.Random(seed), list[TraceJob]()
    limit, asked = until * (whole.gpu or whole.cpu), 0
    if not any(job.resources.gpu if whole.gpu else job.resources.cpu for job in jobs):
        raise BadValue("the cluster cannot be filled", why="no job asks for what it has")
    batch = [*jobs]
    chance.shuffle(batch)
    while True:
        for job in batch:
            found.append(msgspec.structs.replace(job, submit=float(len(found)), duration=UNKNOWN, requested=0.0))
            asked += job.resources.gpu if whole.gpu else job.resources.cpu
            if asked >= limit:
                return found
        batch = [chance.choice(jobs) for _ in jobs]


def run(setup: Setup, policy: str, seed: int, clock: Callable[[], float]) -> Run:
    """Run one policy."""
    machines, at_once = setup.machines, setup.fill > 0
    jobs = arrivals(setup.jobs, machines, setup.fill, seed) if at_once else setup.jobs
    began = clock()
    scheduler: Scheduler
    if policy in BASELINES:
        scheduler = BASELINES[policy](machines, jobs, at_once, seed)
    else:
        scheduler = Grid(machines, jobs, at_once, policy_of(policy.partition(":")[2]))
    owners = OwnersOfMachines(machines, setup.owners, setup.owner_policy, seed) if setup.owners else None
    world = World(machines, jobs, scheduler, owners, at_once)
    last = jobs[-1].submit if jobs else 0.0
    fragments = Fragmentation(setup.jobs, machines, last if at_once else last / MOMENTS)
    world.run(None if at_once else fragments.see)
    world.check()
    took = clock() - began
    fragmented = fragments.now(world.free) if at_once else fragments.mean
    return Run(
        policy=policy,
        seed=seed,
        figures=figures(world, setup.skip, fragmented, owners.pain if owners is not None else 0.0),
        points=world.points,
        decisions=world.decisions,
        seconds=took,
    )


def result(runs: Sequence[Run]) -> Result:
    """The runs of one policy together."""
    mean, interval = over_seeds([one.figures for one in runs])
    seconds = sum(one.seconds for one in runs)
    decisions = sum(one.decisions for one in runs)
    return Result(
        policy=runs[0].policy,
        seeds=len(runs),
        mean=mean,
        interval=interval,
        decisions_a_second=decisions / seconds if seconds else 0.0,
    )


def whole_words(machines: Sequence[Machine]) -> str:
    """`4 machines, 16 cores, 8 GPUs`."""
    whole = capacity(machines)
    gpus = f", {counted(whole.gpu // MILLI, 'GPU')}" if whole.gpu else ""
    return f"{counted(len(machines), 'machine')}, {counted(whole.cpu // MILLI, 'core')}{gpus}"
