"""What a seed stands for: nodes, jobs and faults, all drawn beforehand, so that a plan can be cut piece by piece while
what it shows stays.
"""

import random
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.policy import Preempting, Sharing
from distributed_grid.protocol.jobs import After, Priority, Request, RetryOn, ServiceOrder
from distributed_grid.protocol.messages.rights import GroupRights, Rights, Rules, Whose
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Constraints, Strategy, Trust, Walls, parse_label
from distributed_grid.protocol.resources import GIB, MIB, MILLI, Resources
from distributed_grid.protocol.sharing.policies import POLICIES, Balancing, OffloadingMode, PolicyName
from distributed_grid.simulator.demand import DemandPlan, demanded


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How large a world is: `seconds` with faults, then without; it goes on until all is over, and for `events` events
    at the least."""

    nodes: int = 20
    jobs: int = 10
    faults: int = 7
    seconds: float = 30.0
    events: int = 200


GPU_MEMORY = 16 * GIB
"""What each GPU has, in bytes."""
GANGS = 100
MANY = 200
"""Gangs are numbered from here on."""
PICKY = 300
"""Jobs with constraints are numbered from here on."""
CROWD = 400
"""The jobs of several users are numbered from here on."""
PUSHING = 500
"""Urgent gangs and who is to give way to them are numbered from here on."""
SHORT = 600
"""Arrays of many short jobs are numbered from here on."""
STREAM = 700
"""Streams of jobs of which some are overdue are numbered from here on."""
SLACK = 800
"""Jobs that hold all cores of a node, and revocable ones, are numbered from here on."""
BOOSTS = 900
"""Boosts that the grid lends by itself are numbered from here on."""
ENDLESS = 1e6
"""Seconds that a job runs which is only ended by somebody."""
KINDS: dict[str, str] = {
    "partition": "nothing passes between a node and the coordinator",
    "deaf": "nothing reaches a node, what it says arrives",
    "mute": "nothing leaves a node, what it is told arrives",
    "slow-link": "what passes takes up to seconds",
    "cut": "a connection breaks",
    "late-hello": "the hello of a connection that was given up arrives after all",
    "kill-coordinator": "kill -9 of the coordinator",
    "stop-coordinator": "the coordinator is suspended, and goes on",
    "slow-disk": "the coordinator's commits take up to seconds",
    "bad-disk": "the coordinator's commits fail",
    "second-coordinator": "a second one runs on a copy of the state directory, and claims the same epoch",
    "kill-agent": "kill -9 of an agent",
    "stop-agent": "an agent is suspended, and goes on",
    "slow-measure": "measuring a node takes seconds",
    "owner": "a node's owner uses it",
    "kill-supervisor": "kill -9 of a supervisor",
    "bad-journal": "a supervisor's journal cannot be written",
    "reboot": "a node's power is cut, and it comes back",
    "gone": "a node's power is cut for good",
    "wall-jump": "a wall clock jumps by a day",
}
_DRAWN = tuple(KINDS)
KINDS["drain"] = "the operator drains a node, perhaps with a deadline, and undrains it when it is empty or has served"
"""All kinds of faults. Those behind `_DRAWN` are drawn by a chance of their own, so that what a seed stood for before
they were there is in what it stands for now."""
_OFTEN = ("kill-coordinator", "kill-agent", "partition", "kill-supervisor", "reboot", "mute", "deaf")


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a client submits at `at`, that runs `seconds` and exits with `codes` (one an attempt). `daemon`: it
    leaves a process behind. It needs `dying` seconds from SIGTERM to its end. `unheard` answers to its submit get lost.
    Times below zero: never. `name` is what it is called; `near`: where the newest job of that name is then."""

    number: int
    at: float
    request: Request
    seconds: float
    codes: tuple[int, ...]
    daemon: bool
    dying: float
    grace: float
    time_limit: float
    unheard: int
    cancel_at: float
    members: int = 0
    """An array of so many; `most` of them at once (0: all), and if more than `max_fails` fail, the rest is ended."""
    most: int = 0
    max_fails: int = -1
    after: tuple[tuple[int, After], ...] = ()
    """Planned jobs that it waits for."""
    delay: float = 0.0
    """Seconds before which it may not begin."""
    name: str = ""
    near: bool = False
    user: str = "u"
    bundle: str = ""
    """The hash of what is shipped with it."""


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of this kind that begins at `at` and lasts `seconds`, at `node` where it is a node's. `how` (0 to 1) is
    for the kind to make something of."""

    number: int
    kind: str
    at: float
    seconds: float
    node: int
    how: float


class GrantPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator grants at `at`; None: what was granted is taken back."""

    at: float
    whose: Whose
    name: str
    rights: Rights | None


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A node: what it has, how often it says that its offer holds (seconds), how fast its clock goes, and the seed of
    its own delays."""

    number: int
    cores: int
    memory: int
    gpus: int
    says_every: float
    rate: float
    seed: int
    labels: dict[str, str] = {}
    walls: str = "user"
    owners: tuple[str, ...] = ()
    trusts: str = Trust.OWNER.value
    stays: float | None = None
    """How likely it is forecast to stay idle, for however long; None: nothing is."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that happens from outside. `sluggish`: seconds that disks and measuring take now and then."""

    seed: int
    shape: Shape
    chance: int
    lost_after: float
    sluggish: float
    nodes: tuple[NodePlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[FaultPlan, ...]
    rights: Rules = Rules()
    grants: tuple[GrantPlan, ...] = ()
    sharing: Sharing = Sharing()
    balancing: Balancing = Balancing()
    badput: float = Preempting().badput_budget
    slack: bool = False
    """What jobs hold and do not use is lent to revocable ones."""
    demands: tuple[DemandPlan, ...] = ()


def make(seed: int, shape: Shape, without: Collection[str] = ()) -> Plan:
    """The plan of a seed. `without`: what is left out, such as `job3`, `fault7` or a kind of fault."""
    chance = random.Random(seed)
    lost_after = chance.choice((5.0, 5.0, 20.0, 60.0))
    sluggish = chance.choice((0.0, 0.0, 0.02, 0.5))
    busy = min(shape.nodes, chance.choice((1, 1, 2, 2, 3, 5)))
    picky = random.Random(f"placing of {seed}")
    nodes = tuple(_labelled(picky, _node(chance, number, number < busy)) for number in range(shape.nodes))
    nodes = _walled(random.Random(f"walls of {seed}"), nodes)
    moments = [chance.uniform(2.0, shape.seconds * 0.7) for _ in range(2)]
    jobs = [_job(chance, number, shape, moments) for number in range(shape.jobs)]
    jobs += _gangs(random.Random(f"gangs of {seed}"), shape, moments)
    jobs += _many(random.Random(f"many of {seed}"), shape, moments)
    jobs += _picky(picky, shape, busy, moments)
    jobs += _crowd(random.Random(f"users of {seed}"), shape, moments)
    jobs += _pushing(random.Random(f"urgent gangs of {seed}"), shape, busy, moments)
    jobs += _short(random.Random(f"short jobs of {seed}"), shape, moments)
    jobs += _stream(random.Random(f"stream of {seed}"), shape, moments)
    jobs = _behind(random.Random(f"jobs and walls of {seed}"), jobs)
    balancing, badput, nodes = _balanced(random.Random(f"rebalancing in {seed}"), nodes, without)
    nodes, revocable = _revocable(random.Random(f"slack of {seed}"), shape, nodes, moments)
    jobs += revocable
    if revocable and not balancing.values.slack:
        balancing = replace(balancing, policy=PolicyName.AGGRESSIVE)
    demands: tuple[DemandPlan, ...] = ()
    if not revocable and "lending" not in without:
        balancing, demands = demanded(random.Random(f"lending in {seed}"), balancing, shape.seconds)
    rules, grants = _rights(random.Random(f"rights of {seed}"), shape)
    faults = [_fault(chance, number, shape, busy, moments) for number in range(shape.faults)]
    if shape.faults:
        faults += _drains(random.Random(f"{seed} maintenance"), shape, busy, moments)
        faults += _visits(random.Random(f"returns in {seed}"), shape, busy, len(faults))
    return Plan(
        seed=seed,
        shape=shape,
        chance=chance.getrandbits(32),
        lost_after=lost_after,
        sluggish=sluggish,
        nodes=nodes,
        jobs=tuple(job for job in jobs if f"job{job.number}" not in without),
        faults=tuple(one for one in faults if f"fault{one.number}" not in without and one.kind not in without),
        rights=rules if "rights" not in without else Rules(),
        grants=grants if "rights" not in without else (),
        sharing=_owned(
            random.Random(f"lenders of {seed}"), _sharing(random.Random(f"order of service in {seed}")), shape
        ),
        balancing=balancing,
        badput=badput,
        slack=bool(revocable),
        demands=demands,
    )


def _balanced(
    chance: random.Random, nodes: tuple[NodePlan, ...], without: Collection[str]
) -> tuple[Balancing, float, tuple[NodePlan, ...]]:
    """In some worlds jobs are moved off nodes before owners come, by a policy for short worlds."""
    budget = Preempting().badput_budget
    if chance.random() >= 0.15 or "rebalancing" in without:
        return Balancing(), budget, nodes
    numbers = replace(
        POLICIES[PolicyName.PREDICTIVE], min_hold=chance.choice((0.5, 2.0, 5.0)), cooldown=0.5, sustained=1.0
    )
    mode = OffloadingMode.DYNAMIC_BALANCING
    balancing = Balancing(mode=mode, policy=PolicyName.PREDICTIVE, interval=0.5, numbers=numbers)
    told = (0.05, 0.05, 0.5, 0.95, None)
    nodes = tuple(replace(one, stays=chance.choice(told)) for one in nodes)
    return balancing, chance.choice((budget, budget, 30.0, 3.0)), nodes


def _sharing(chance: random.Random) -> Sharing:
    """By share in some worlds; else by waiting time, which in most counts as fast as short worlds need."""
    return Sharing(
        order=ServiceOrder.SHARE if chance.random() < 0.2 else ServiceOrder.WAITING,
        head_start=chance.choice((3600.0, 60.0, 2.0, 2.0)),
        shortest=chance.choice((60.0, 1.0, 1.0, 0.2)),
        usual=chance.choice((3600.0, 5.0)),
        overdue_after=chance.choice((10.0, 3.0, 3.0, 1.0)),
    )


def _revocable(
    chance: random.Random, shape: Shape, nodes: tuple[NodePlan, ...], moments: list[float]
) -> tuple[tuple[NodePlan, ...], list[JobPlan]]:
    """In some worlds jobs hold all cores of the large nodes, and others, which want more memory than the small nodes
    have, are revocable."""
    if not shape.jobs or chance.random() >= 0.25:
        return nodes, []
    nodes = tuple(replace(node, cores=4) if node.memory > GIB else node for node in nodes)
    jobs = []
    for number in range(sum(node.memory > GIB for node in nodes)):
        one = _job(chance, SLACK + number, shape, moments)
        request = Request(Resources(4 * MILLI, GIB), Priority.MEDIUM, retry_on=one.request.retry_on)
        lasts = chance.choice((chance.uniform(5.0, 40.0), ENDLESS))
        jobs.append(replace(one, at=chance.uniform(0.0, 2.0), request=request, seconds=lasts))
    for number in range(len(jobs), len(jobs) + chance.choice((6, 12, 20))):
        one = _job(chance, SLACK + number, shape, moments)
        wanted = Resources(chance.choice((500, MILLI, MILLI, 2 * MILLI)), 3 * GIB // 2)
        priority = chance.choice((Priority.LOW, Priority.MEDIUM))
        request = Request(wanted, priority, retry_on=one.request.retry_on, revocable=True)
        jobs.append(replace(one, at=max(3.0, one.at), request=request, members=chance.choice((0, 0, 0, 3))))
    return nodes, jobs


def _owned(chance: random.Random, sharing: Sharing, shape: Shape) -> Sharing:
    """In half of the worlds users lend each other their nodes, and the past counts as fast as short worlds need."""
    if chance.random() < 0.5:
        return sharing
    owners = {f"n{number}": chance.choice(("ann", "ben", "eve", "u")) for number in range(shape.nodes)}
    owners = {node: user for node, user in owners.items() if chance.random() < 0.7}
    half_life, credit = chance.choice((86_400.0, 20.0)), chance.choice((0.1, 0.1, 0.0, 0.5))
    return msgspec.structs.replace(sharing, owners=owners, half_life=half_life, credit=credit)


def _rights(chance: random.Random, shape: Shape) -> tuple[Rules, tuple[GrantPlan, ...]]:
    """In some worlds users and a group have quotas, which operators change."""
    if not shape.jobs or chance.random() >= 0.35:
        return Rules(), ()
    users = {name: _limits(chance) for name in ("u", "u", "ann", "ben", "eve") if chance.random() < 0.6}
    groups = {"lab": GroupRights(("ann", "ben", "u"), _limits(chance))} if chance.random() < 0.5 else {}
    default = _limits(chance) if chance.random() < 0.3 else Rights()
    grants = []
    for _ in range(chance.choice((0, 0, 1, 3))):
        whose = chance.choice((Whose.USER, Whose.USER, Whose.DEFAULT, *([Whose.GROUP] if groups else [])))
        name = {Whose.USER: chance.choice(("u", "ann")), Whose.GROUP: "lab"}.get(whose, "")
        rights = _limits(chance) if chance.random() < 0.7 else None
        grants.append(GrantPlan(at=chance.uniform(1.0, shape.seconds), whose=whose, name=name, rights=rights))
    return Rules(default=default, users=users, groups=groups), tuple(grants)


def _limits(chance: random.Random) -> Rights:
    return Rights(
        highest_priority=chance.choice((None, None, Priority.HIGH, Priority.MEDIUM)),
        cores=chance.choice((None, 500, MILLI, 2 * MILLI, 2 * MILLI, 3 * MILLI)),
        memory=chance.choice((None, None, None, 2 * GIB, 4 * GIB)),
        gpus=chance.choice((None, None, None, 500, MILLI)),
        core_hours=chance.choice((None,) * 8 + (5, 20, 24 * MILLI)),
        jobs_waiting=chance.choice((None, None, None, None, 8)),
        reservations=chance.choice((None, None, True, False)),
    )


def _visits(chance: random.Random, shape: Shape, busy: int, first: int) -> list[FaultPlan]:
    """In some worlds owners come back, again and again, to the nodes where most jobs run."""
    if chance.random() >= 0.15:
        return []
    return [
        FaultPlan(
            number=first + number,
            kind="owner",
            at=chance.uniform(1.0, shape.seconds),
            seconds=chance.choice((1.0, chance.uniform(3.0, 8.0), chance.uniform(8.0, 25.0))),
            node=chance.randrange(busy),
            how=chance.random(),
        )
        for number in range(14)
    ]


def _node(chance: random.Random, number: int, large: bool) -> NodePlan:
    """Only few have what most jobs want, so that jobs, and faults, meet each other there."""
    return NodePlan(
        number=number,
        cores=chance.choice((1, 2, 4)) if large else 1,
        memory=8 * GIB if large else 1 * GIB,
        gpus=1 if large and chance.random() < 0.5 else 0,
        says_every=10.0 if large else 25.0,
        rate=chance.uniform(0.99, 1.01),
        seed=chance.getrandbits(32),
    )


def _when(chance: random.Random, first: float, last: float, moments: list[float]) -> float:
    """Any time, or, as troubles seldom come alone, one shortly after some moment of the plan."""
    if chance.random() < 0.4:
        return chance.uniform(first, last)
    return max(first, chance.choice(moments) + chance.choice((0.01, 0.5, 0.5, 5.0)) * chance.uniform(-0.2, 1.0))


def _job(chance: random.Random, number: int, shape: Shape, moments: list[float]) -> JobPlan:
    retry: tuple[RetryOn, ...] = ()
    if chance.random() < 0.5:
        retry = chance.choice(((RetryOn.LOST,), (RetryOn.FAILED,), (RetryOn.LOST, RetryOn.FAILED)))
    cpu = chance.choice((300, 500, MILLI, MILLI, 2 * MILLI))
    memory = chance.choice((0, 256 * MIB, 1 * GIB, 1 * GIB, 3 * GIB))
    wanted = Resources(cpu, memory, chance.choice((0, 0, 0, 0, 500, MILLI)))
    at = _when(chance, 0.0, shape.seconds * 0.9, moments)
    return JobPlan(
        number=number,
        at=at,
        request=Request(
            wanted,
            chance.choice((Priority.LOW, Priority.MEDIUM, Priority.MEDIUM, Priority.URGENT)),
            immediate=chance.random() < 0.05,
            retry_on=retry,
            retries=chance.choice((1, 2)) if retry else 0,
        ),
        seconds=chance.choice((0.01, 0.3, 1.0, chance.uniform(2.0, 20.0), chance.uniform(20.0, 60.0), ENDLESS)),
        codes=tuple(chance.choice((0, 0, 0, 1, 3)) for _ in range(3)),
        daemon=chance.random() < 0.1,
        dying=chance.choice((0.0, 0.01, 0.5, 30.0)),
        grace=chance.choice((0.0, 1.0, 5.0)),
        time_limit=chance.choice((0.0, 0.0, 0.0, 0.0, 3.0)),
        unheard=chance.choice((0, 0, 0, 1, 2)),
        cancel_at=_when(chance, at, shape.seconds, moments) if chance.random() < 0.35 else -1.0,
    )


def _gangs(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """Jobs that want several nodes at once; drawn apart, so that the rest of a seed's plan stays as it was."""
    gangs = []
    for number in range(chance.choice((0, 0, 1, 2)) if shape.nodes >= 4 and shape.jobs else 0):
        one = _job(chance, GANGS + number, shape, moments)
        wanted = Resources(one.request.resources.cpu, min(one.request.resources.memory, 256 * MIB))
        request = replace(one.request, resources=wanted, gang=chance.choice((2, 2, 3)))
        gangs.append(replace(one, request=request))
    return gangs


def _many(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """Arrays, and jobs that wait for others; drawn apart, so that the rest of a seed's plan stays as it was."""
    made: list[JobPlan] = []
    for number in range(chance.choice((0, 0, 0, 3, 6)) if shape.jobs else 0):
        one = _job(chance, MANY + number, shape, moments)
        others = [*range(shape.jobs), *(job.number for job in made), *(job.number for job in made)]
        waits = chance.sample(others, chance.choice((0, 1, 1, 2)))
        members = chance.choice((0, 0, 2, 4))
        wanted = Resources(min(one.request.resources.cpu, MILLI), min(one.request.resources.memory, 256 * MIB))
        made.append(
            replace(
                one,
                request=replace(one.request, resources=wanted, immediate=False),
                members=members,
                most=chance.choice((0, 1, 2)) if members else 0,
                max_fails=chance.choice((-1, -1, 0, 1)) if members else -1,
                after=tuple(dict.fromkeys((other, chance.choice(list(After))) for other in waits)),
                delay=chance.choice((0.0, 0.0, 0.0, 3.0)),
            )
        )
    return made


def _labelled(chance: random.Random, node: NodePlan) -> NodePlan:
    """Some nodes are in a zone; drawn apart, like the jobs that ask for it."""
    zone = chance.choice(("a", "b", ""))
    return replace(node, labels={"zone": zone} if zone else {})


def _walled(chance: random.Random, nodes: tuple[NodePlan, ...]) -> tuple[NodePlan, ...]:
    """In some worlds some nodes have weak walls, and run jobs of some users only."""
    if chance.random() >= 0.3:
        return nodes
    return tuple(
        replace(
            node,
            walls=chance.choice(("user", "namespace", "landlock", "none", "none", "")),
            owners=tuple(one for one in ("u", "ann", "ben") if chance.random() < 0.5),
            trusts=chance.choice((Trust.OWNER.value, Trust.OWNER.value, Trust.EVERYONE.value)),
        )
        for node in nodes
    )


def _behind(chance: random.Random, jobs: list[JobPlan]) -> list[JobPlan]:
    """In some worlds some jobs ask for walls."""
    if chance.random() >= 0.3:
        return jobs
    return [_asking(chance, one) if chance.random() < 0.3 else one for one in jobs]


def _asking(chance: random.Random, one: JobPlan) -> JobPlan:
    asked = replace(one.request.constraints or NO_CONSTRAINTS, walls=chance.choice(list(Walls)))
    return replace(one, request=replace(one.request, constraints=asked))


def _picky(chance: random.Random, shape: Shape, busy: int, moments: list[float]) -> list[JobPlan]:
    """Jobs that ask something of their node: its label, name, or GPU memory, or who else is there."""
    jobs = []
    for number in range(chance.choice((0, 1, 2, 4)) if shape.jobs else 0):
        one = _job(chance, PICKY + number, shape, moments)
        wanted = one.request.resources
        names = tuple(f"n{number}" for number in range(busy))
        name, kind = chance.choice(("web", "db")), chance.randrange(6)
        asked = Constraints(
            only=tuple(chance.sample(names, chance.randint(1, busy))) if kind == 0 else (),
            exclude=(chance.choice(names),) if kind == 1 else (),
            labels=(parse_label(chance.choice(("zone=a", "zone!=a", "zone"))),) if kind == 2 else (),
            gpu_memory=chance.choice((3, 7, 12)) * GIB if wanted.gpu else 0,
            apart=(f"u/{name}",) if kind == 3 else (),
        )
        strategy = chance.choice((None, *Strategy))
        request = replace(one.request, constraints=asked, strategy=strategy)
        jobs.append(replace(one, request=request, name=name, near=kind == 4))
    return jobs


def _crowd(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds several users want the same few nodes at the same time, one of them far more than the others, and
    some of them all of a node."""
    if not shape.jobs or chance.random() >= 0.15:
        return []
    crowd = []
    for number in range(chance.choice((8, 12))):
        one = _job(chance, CROWD + number, shape, moments)
        wanted = Resources(chance.choice((MILLI, MILLI, 2 * MILLI, 4 * MILLI)), chance.choice((2, 2, 3)) * GIB)
        priority = chance.choice((Priority.LOW, Priority.MEDIUM, Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH))
        crowd.append(
            replace(
                one,
                at=moments[0] + chance.uniform(0.0, 4.0),
                request=replace(one.request, resources=wanted, priority=priority, immediate=False),
                seconds=chance.choice((0.3, 1.0, 2.0, chance.uniform(2.0, 8.0))),
                time_limit=chance.choice((0.0, 2.0, 10.0)),
                cancel_at=-1.0,
                user=chance.choice(("ann", "ann", "ann", "ben", "eve")),
            )
        )
    return crowd


def _pushing(chance: random.Random, shape: Shape, busy: int, moments: list[float]) -> list[JobPlan]:
    """In some worlds low and medium jobs, and gangs of them, fill all nodes that have much memory, and then urgent
    gangs want it."""
    if not shape.jobs or busy < 2 or chance.random() >= 0.3:
        return []
    jobs = []
    for number in range(busy * 3):
        one = _job(chance, PUSHING + number, shape, moments)
        urgent = number >= 2 * busy
        memory = chance.choice((2, 3, 4, 6)) * GIB
        gang = chance.randint(2, busy) if urgent or chance.random() < 0.4 else 0
        priority = Priority.URGENT if urgent else chance.choice((Priority.LOW, Priority.MEDIUM))
        request = replace(one.request, resources=Resources(300, memory), priority=priority, gang=gang, immediate=False)
        at = moments[0] + (chance.uniform(1.0, 12.0) if urgent else chance.uniform(-2.0, 3.0))
        seconds = chance.choice((1.0, 3.0, 8.0) if urgent else (5.0, 20.0, 60.0))
        jobs.append(replace(one, at=max(0.0, at), request=request, seconds=seconds))
    return jobs


def _short(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds arrays of many short jobs want the same few nodes: running ones get successors. In some of these
    files are shipped with them."""
    if not shape.jobs or chance.random() >= 0.25:
        return []
    arrays = []
    for number in range(chance.choice((1, 1, 2))):
        one = _job(chance, SHORT + number, shape, moments)
        wanted = Resources(chance.choice((MILLI, MILLI, 2 * MILLI)), GIB)
        priority = chance.choice((Priority.LOW, Priority.MEDIUM, Priority.MEDIUM))
        retry_on = (RetryOn.FAILED,) if chance.random() < 0.3 else ()
        arrays.append(
            replace(
                one,
                request=Request(wanted, priority, retry_on=retry_on, retries=len(retry_on)),
                seconds=chance.choice((0.005, 0.02, 0.1, 0.3)),
                time_limit=0.0,
                members=chance.choice((20, 60, 120)),
                user=chance.choice(("u", "ann", "ben")),
            )
        )
    bundle = "f" * 64 if chance.random() < 0.4 else ""
    return [replace(one, bundle=bundle) for one in arrays]


def _stream(chance: random.Random, shape: Shape, moments: list[float]) -> list[JobPlan]:
    """In some worlds users ask more of the large nodes than these can take, for a while, and with short time limits:
    large jobs among many small ones, so that some are overdue."""
    if not shape.jobs or chance.random() >= 0.08:
        return []
    stream = []
    for number in range(60):
        one = _job(chance, STREAM + number, shape, moments)
        wanted = Resources(300, chance.choice((2, 2, 2, 3, 7)) * GIB)
        limit = chance.choice((1.0, 2.0, 4.0))
        stream.append(
            replace(
                one,
                at=moments[0] + chance.uniform(0.0, 25.0),
                request=Request(wanted, chance.choice((Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH))),
                seconds=limit * chance.choice((0.3, 0.9, 0.9)),
                codes=(0,),
                daemon=False,
                dying=0.0,
                grace=0.5,
                time_limit=limit,
                cancel_at=-1.0,
                user=chance.choice(("ann", "ben", "eve")),
            )
        )
    return stream


def _fault(chance: random.Random, number: int, shape: Shape, busy: int, moments: list[float]) -> FaultPlan:
    kind = chance.choice(_OFTEN) if chance.random() < 0.5 else chance.choice(_DRAWN)
    return FaultPlan(
        number=number,
        kind=kind,
        at=_when(chance, 0.5, shape.seconds, moments),
        seconds=chance.choice((0.05, 0.3, 1.0, chance.uniform(1.0, 8.0), chance.uniform(8.0, 40.0))),
        node=chance.randrange(busy) if chance.random() < 0.9 else chance.randrange(shape.nodes),
        how=chance.random(),
    )


def _drains(chance: random.Random, shape: Shape, busy: int, moments: list[float]) -> list[FaultPlan]:
    return [
        FaultPlan(
            number=shape.faults + number,
            kind="drain",
            at=_when(chance, 0.5, shape.seconds, moments),
            seconds=chance.choice((1.0, chance.uniform(1.0, 8.0), chance.uniform(8.0, 40.0))),
            node=chance.randrange(busy),
            how=chance.random(),
        )
        for number in range(chance.choice((0, 0, 1, 1, 2)))
    ]
