"""The plan of a seed: nodes, jobs, demand in Ray and faults. All are drawn before the run, so a plan can be reduced
piece by piece while it still shows the same violation."""

import random
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.policy import Preempting, Sharing
from distributed_grid.protocol.jobs import Priority, Request, ServiceOrder
from distributed_grid.protocol.messages.rights import GroupRights, Rights, Rules, Whose
from distributed_grid.protocol.placement import Trust
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.sharing.policies import POLICIES, Balancing, OffloadingMode, PolicyName
from distributed_grid.simulator.workload import ENDLESS, SLACK, JobPlan, Shape, planned, submitted, when, zoned

GPU_MEMORY = 16 * GIB
"""What each GPU has, in bytes."""
AFTERWARDS = 90.0
"""Seconds without faults in which what waits in Ray mostly waits on."""
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


class LabelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An operator sets the zone of a node at `at`; None: it is in none."""

    at: float
    node: int
    zone: str | None


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


class DemandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """So many tasks that wait in Ray from `at` to `until` for so many `cores` each. `odd`: no boost makes them run."""

    at: float
    until: float
    count: int
    cores: int
    odd: bool = False


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
    labels: tuple[LabelPlan, ...] = ()
    sharing: Sharing = Sharing()
    balancing: Balancing = Balancing()
    badput: float = Preempting().badput_budget
    predicts: bool = False
    """How long jobs run is predicted while they wait, mostly too long or too short."""
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
    jobs = submitted(seed, chance, picky, shape, busy, moments, without)
    balancing, badput, nodes = _balanced(random.Random(f"rebalancing in {seed}"), nodes, without)
    nodes, revocable = _revocable(random.Random(f"slack of {seed}"), shape, nodes, moments)
    jobs += revocable
    if revocable and not balancing.values.slack:
        balancing = replace(balancing, policy=PolicyName.AGGRESSIVE)
    demands: tuple[DemandPlan, ...] = ()
    if not revocable and "lending" not in without:
        balancing, demands = demanded(random.Random(f"lending in {seed}"), balancing, shape.seconds)
    labels = () if "labels" in without else _labels(random.Random(f"labels in {seed}"), shape, busy)
    jobs += zoned(random.Random(f"jobs of zones in {seed}"), shape, moments) if labels else []
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
        labels=labels,
        predicts="predictions" not in without and random.Random(f"predictions in {seed}").random() < 0.2,
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
        one = planned(chance, SLACK + number, shape, moments)
        request = Request(Resources(4 * MILLI, GIB), Priority.MEDIUM, retry_on=one.request.retry_on)
        lasts = chance.choice((chance.uniform(5.0, 40.0), ENDLESS))
        jobs.append(replace(one, at=chance.uniform(0.0, 2.0), request=request, seconds=lasts))
    for number in range(len(jobs), len(jobs) + chance.choice((6, 12, 20))):
        one = planned(chance, SLACK + number, shape, moments)
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


def _labels(chance: random.Random, shape: Shape, busy: int) -> tuple[LabelPlan, ...]:
    """In some worlds operators change labels of the nodes where most jobs run."""
    if not shape.jobs or chance.random() >= 0.15:
        return ()
    return tuple(
        LabelPlan(
            at=chance.uniform(1.0, shape.seconds),
            node=chance.randrange(busy),
            zone=chance.choice(("a", "a", "b", None)),
        )
        for _ in range(chance.choice((2, 4, 8)))
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


def _fault(chance: random.Random, number: int, shape: Shape, busy: int, moments: list[float]) -> FaultPlan:
    kind = chance.choice(_OFTEN) if chance.random() < 0.5 else chance.choice(_DRAWN)
    return FaultPlan(
        number=number,
        kind=kind,
        at=when(chance, 0.5, shape.seconds, moments),
        seconds=chance.choice((0.05, 0.3, 1.0, chance.uniform(1.0, 8.0), chance.uniform(8.0, 40.0))),
        node=chance.randrange(busy) if chance.random() < 0.9 else chance.randrange(shape.nodes),
        how=chance.random(),
    )


def _drains(chance: random.Random, shape: Shape, busy: int, moments: list[float]) -> list[FaultPlan]:
    return [
        FaultPlan(
            number=shape.faults + number,
            kind="drain",
            at=when(chance, 0.5, shape.seconds, moments),
            seconds=chance.choice((1.0, chance.uniform(1.0, 8.0), chance.uniform(8.0, 40.0))),
            node=chance.randrange(busy),
            how=chance.random(),
        )
        for number in range(chance.choice((0, 0, 1, 1, 2)))
    ]


def demanded(chance: random.Random, balancing: Balancing, seconds: float) -> tuple[Balancing, tuple[DemandPlan, ...]]:
    """In some worlds tasks wait in Ray, and the grid lends by itself under one of the policies, with times for short
    worlds; `seconds`: of adversity. Mostly what waits stays the same for long after it."""
    if chance.random() >= 0.2:
        return balancing, ()
    name, wait, hold = chance.choice(list(PolicyName)), chance.choice((0.4, 1.0, 3.0)), chance.choice((7.0, 12.0))
    if balancing.numbers is not None:
        numbers = replace(balancing.numbers, min_hold=hold)
    else:
        numbers = replace(POLICIES[name], sustained=wait, min_hold=hold, cooldown=0.5, horizon=0.0)
        balancing = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=name, interval=0.5)
    return replace(balancing, numbers=numbers), tuple(
        DemandPlan(
            at=chance.uniform(0.0, seconds / 2),
            until=seconds + AFTERWARDS if chance.random() < 0.7 else chance.uniform(0.6, 1.0) * seconds,
            count=chance.randint(1, 4),
            cores=chance.choice((1, 1, 1, 2)),
            odd=chance.random() < 0.15,
        )
        for _ in range(chance.choice((1, 1, 2, 3)))
    )
