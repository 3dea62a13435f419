"""A snapshot of the whole ledger as data, and a ledger resumed from one. Both decide the same from then on: a
checkpoint has all state that decides. (The store has less: a ledger restored from it starts without agents.)
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from distributed_grid.coordinator.core.data import EVERYTHING, Idle, Preemptions, Usual
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lending.loans import Balance, Loan, Loans, Pair, Place
from distributed_grid.coordinator.core.model import Allocation, AwaitsHold, End, Group, Job, Node, Waiting
from distributed_grid.coordinator.core.nodes.agents import arm
from distributed_grid.coordinator.core.placement.fragmentation import MixState, RequestMix
from distributed_grid.coordinator.core.placement.matching import labels
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.preemption.earmarks import preemptors_of
from distributed_grid.coordinator.core.queue import dependencies
from distributed_grid.coordinator.core.queue.chains import Chains, Kind
from distributed_grid.coordinator.core.queue.fairness import Account, Shares
from distributed_grid.coordinator.core.queue.queue import Kept, Members, Queue, Rank, Reservations, key_of
from distributed_grid.coordinator.core.queue.quotas import Quotas, Spent
from distributed_grid.coordinator.core.rebalancing.state import BalancingState
from distributed_grid.coordinator.core.scaling.state import ScalingState
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Priority, Reason, Request
from distributed_grid.protocol.messages.rights import Rights
from distributed_grid.protocol.resources import Resources

_NODE = fields(Node)


class LineAt(msgspec.Struct, frozen=True):
    """A line of the queue: its jobs by turn."""

    jobs: list[str]
    blocked: bool
    reason: Reason | None
    excluded: bool = False


class QueueAt(msgspec.Struct, frozen=True):
    """The queue, without the stale entries of its heaps."""

    lines: list[LineAt]
    lowest: Resources
    departed: int
    ranks: list[tuple[int, str, int, Rank, float]]
    """Class, user and lane of each standing, its rank as last computed, and when it was served last because a job was
    overdue."""
    unranked: list[tuple[int, str, int]] = []
    run_times: list[tuple[str, list[float]]] = []
    behind_reservation: list[tuple[Kept, list[tuple[int, str, int, int]]]] = msgspec.field(
        default_factory=list, name="held_back"
    )
    """By reservation: class, user and lane of each standing that it keeps waiting, and the turn."""


class SharesAt(msgspec.Struct, frozen=True):
    """The accounts of the users, which of them have to be ranked and saved, and when all were ranked."""

    accounts: dict[str, Account]
    stale: list[str]
    unsaved: list[str]
    ranked: float | None


class LoansAt(msgspec.Struct, frozen=True):
    """The loans and balances, what the history was not told of, and which pairs have to be saved."""

    live: dict[str, Loan] = {}
    pairs: list[tuple[Pair, Balance]] = []
    lent: dict[str, Balance] = {}
    borrowed: dict[str, Balance] = {}
    days: list[tuple[Place, list[float]]] = []
    unsaved: list[Pair] = []


class QuotasAt(msgspec.Struct, frozen=True):
    """The rights that operators have granted, what was spent of a day, the first jobs of pools, and which pools are to
    be reviewed, and not before when. What pools hold follows from the allocations; the excluded lines are in the
    queue."""

    granted: dict[str, Rights] = {}
    spent: dict[str, Spent] = {}
    first: dict[str, tuple[str, str]] = {}
    changed: list[str] = []
    excluded: list[str] = []
    """In order, each by its first job."""
    resting: dict[str, float] = {}


class GroupAt(msgspec.Struct, frozen=True):
    """A group; its members are the jobs that name it."""

    group: Group
    pending: list[str]
    active: int
    ending: bool


class DependenciesAt(msgspec.Struct, frozen=True):
    """The held-back jobs and groups, in order, and the remembered ends. The conditions are in their records."""

    waiters: list[str]
    ends: dict[str, End]


class PreemptionsAt(msgspec.Struct, frozen=True):
    """The state of preemption, except what is in the records of jobs."""

    urgent: dict[str, float] = {}
    spent: list[tuple[float, float]] = []
    refusals: list[tuple[Request, str]] = []


class ChainsAt(msgspec.Struct, frozen=True):
    """The chains of successors, the kinds whose jobs may get one, and the learned run times. The order within a chain
    is in the records of jobs; the tails follow from the chains."""

    successors: list[tuple[str, str]] = []
    kinds: list[tuple[str, Kind]] = []
    tails: list[str] = []
    run_times: list[tuple[str, Request, list[float]]] = []
    closed_nodes: list[str] = []
    overdue: list[tuple[str, tuple[float, float]]] = []


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a Ledger. It shares all objects with that ledger, so encode it before the next event."""

    epoch: int
    policy: Policy
    now: float
    nodes: dict[str, Node]
    jobs: dict[str, Job]
    allocations: list[str]
    """Their order; the records are in `nodes`."""
    past_keys: list[tuple[str, str, str]]
    queue: QueueAt
    shares: SharesAt
    loans: LoansAt = LoansAt()
    reservations: Reservations
    due: list[tuple[float, int, str, str]]
    armed: list[tuple[str, str, float]]
    number: int
    turns: dict[str, int]
    next_turn: int
    freed_nodes: dict[str, None]
    fresh: dict[str, None]
    store_failing: bool
    unknown_before: float = 0.0
    failing_commands: dict[str, str] = {}
    idle: dict[str, Idle] = {}
    usual: dict[str, Usual] = {}
    kept_back: dict[str, float] = {}
    recalls: dict[str, str] = {}
    snapshot: int = 0
    groups: list[GroupAt] = []
    dependencies: DependenciesAt = msgspec.field(default=DependenciesAt([], {}), name="held")
    preempting: PreemptionsAt = PreemptionsAt()
    quotas: QuotasAt = QuotasAt()
    chains: ChainsAt = ChainsAt()
    mix: MixState = MixState()
    balancing: BalancingState = msgspec.field(default_factory=BalancingState)
    scaling: ScalingState = msgspec.field(default_factory=ScalingState)
    ray_trouble: str = ""
    loss: tuple[str, ...] = ()
    holds: list[str] = []
    """The holds to be served; who waits for them is in the records of jobs."""


def take(ledger: Ledger) -> Checkpoint:
    """A snapshot of the ledger, between two events."""
    state = ledger.state
    assert not state.out, "commands have not been taken out"
    queue, deadlines = state.queue, state.deadlines
    jobs_of: dict[int, list[str]] = {id(line): [] for line in queue.lines.values()}
    for job in sorted(queue.turns, key=queue.turns.__getitem__):
        jobs_of[id(queue.line(job))].append(job)
    return Checkpoint(
        epoch=state.epoch,
        policy=state.policy,
        now=state.now,
        nodes=state.nodes,
        jobs=state.jobs,
        allocations=list(state.allocations),
        past_keys=[(user, key, job) for (user, key), job in state.past_keys.items()],
        queue=QueueAt(
            [LineAt(jobs_of[id(line)], line.blocked, line.reason, line.excluded) for line in queue.lines.values()],
            queue.lowest,
            queue.departed,
            [
                (int(one.priority), one.user, one.lane, Rank(one.rank, one.head, one.overdue, one.due), one.served_at)
                for _, one in sorted(queue.standings.items())
            ],
            [(int(one.priority), one.user, one.lane) for one in queue.unranked if one.count],
            [(user, [*last]) for user, last in queue.run_times.last.items()],
            [
                (kept, [(int(one.priority), one.user, one.lane, turn) for one, turn in standings.items() if one.count])
                for kept, standings in queue.behind_reservation.items()
            ],
        ),
        shares=SharesAt(
            state.shares.accounts,
            list(state.shares.stale),
            list(state.shares.unsaved),
            state.shares.ranked if state.shares.ranked > -math.inf else None,
        ),
        loans=_loans(state.loans),
        reservations=state.reservations,
        due=sorted(deadlines.heap),
        armed=[(kind, name, at) for (kind, name), at in deadlines.armed.items()],
        number=deadlines.number,
        turns=state.turns,
        next_turn=state.next_turn,
        freed_nodes=state.freed_nodes,
        fresh=state.fresh,
        store_failing=state.store_failing,
        loss=state.loss,
        unknown_before=state.unknown_before,
        failing_commands=state.failing_commands,
        idle=state.idle,
        usual=state.usual,
        kept_back=state.kept_back,
        recalls=state.recalls,
        snapshot=state.snapshot,
        mix=state.index.mix.state,
        ray_trouble=state.ray_trouble,
        dependencies=DependenciesAt(list(state.dependencies.unmet), state.dependencies.ends),
        groups=[GroupAt(one.group, list(one.pending), one.active, one.ending) for one in state.groups.values()],
        preempting=PreemptionsAt(
            dict(state.preempting.urgent), list(state.preempting.spent), list(state.preempting.refusals.items())
        ),
        quotas=_quotas(state),
        balancing=state.balancing,
        scaling=state.scaling,
        chains=_chains(state.chains),
        holds=list(state.holds.changed),
    )


def _loans(known: Loans) -> LoansAt:
    return LoansAt(
        known.live, [*known.pairs.items()], known.lent, known.borrowed, [*known.days.items()], [*known.unsaved]
    )


def _restore_loans(known: Loans, at: LoansAt) -> None:
    known.live, known.lent, known.borrowed = at.live, at.lent, at.borrowed
    known.pairs, known.days, known.unsaved = dict(at.pairs), dict(at.days), dict.fromkeys(at.unsaved)


def _chains(known: Chains) -> ChainsAt:
    return ChainsAt(
        [*known.successors.items()],
        [*known.kinds.items()],
        [name for parts in known.tails.values() for part in parts for name in part],
        [(user, request, [*runs]) for (user, request), runs in known.run_times.items()],
        [*known.closed_nodes],
        [*known.overdue.items()],
    )


def _restore_chains(known: Chains, at: ChainsAt) -> None:
    for before, name in at.successors:
        known.join(before, name)
    known.kinds = dict(at.kinds)
    for name in at.tails:
        known.mark(name)
    for user, request, runs in at.run_times:
        for seconds in runs:
            known.learn(user, request, seconds)
    known.closed_nodes = dict.fromkeys(at.closed_nodes)
    known.overdue = dict(at.overdue)


def _quotas(state: GridState) -> QuotasAt:
    quotas = state.quotas
    firsts = {pool.id: (pool.first, pool.first_for_hours) for pool in quotas.all_pools()}
    return QuotasAt(
        dict(quotas.granted),
        dict(quotas.spent),
        {name: first for name, first in sorted(firsts.items()) if any(first)},
        sorted(quotas.changed),
        [
            state.queue.head(line)[1]
            for key in quotas.excluded
            if (line := state.queue.lines.get(key)) is not None and line.excluded
        ],
        {pool.id: pool.rests_until for pool in quotas.all_pools() if pool.rests_until > state.now},
    )


def fork(ledger: Ledger, policy: Policy) -> Ledger:
    """A second ledger that goes on from here by this policy, with copies of all that is mutable. (Three times as fast
    as encoding and decoding.)"""
    at = take(ledger)
    nodes = {
        name: Node(**_own({part.name: getattr(node, part.name) for part in _NODE})) for name, node in at.nodes.items()
    }
    for node in nodes.values():
        node.allocations = {name: Allocation(**_own(asdict(one))) for name, one in node.allocations.items()}
        node.not_holding = {name: Allocation(**_own(asdict(one))) for name, one in node.not_holding.items()}
        node.inside = {name: Allocation(**_own(asdict(one))) for name, one in node.inside.items()}
        node.capacity = node.capacity and node.capacity.copy()
    jobs = {name: Job(**_own(asdict(job))) for name, job in at.jobs.items()}
    for job in jobs.values():
        job.phase = replace(job.phase)
        if job.phase.attempt is not None:
            job.phase.attempt = replace(job.phase.attempt)
    waiting_for = replace(at.dependencies, ends=dict(at.dependencies.ends))
    many = [replace(one, group=Group(**asdict(one.group)), pending=list(one.pending)) for one in at.groups]
    parts = _own({name: getattr(at, name) for name in at.__struct_fields__})
    accounts = {user: msgspec.structs.replace(one) for user, one in at.shares.accounts.items()}
    parts["balancing"] = at.balancing.copy()
    parts["loans"] = LoansAt(
        {name: replace(one) for name, one in at.loans.live.items()},
        [(pair, replace(one)) for pair, one in at.loans.pairs],
        {user: replace(one) for user, one in at.loans.lent.items()},
        {user: replace(one) for user, one in at.loans.borrowed.items()},
        [(place, list(sums)) for place, sums in at.loans.days],
        at.loans.unsaved,
    )
    parts["scaling"] = at.scaling.copy()
    parts["shares"] = msgspec.structs.replace(at.shares, accounts=accounts)
    return resume(
        Checkpoint(**(parts | {"nodes": nodes, "jobs": jobs, "groups": many, "dependencies": waiting_for})), policy
    )


def _owned(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list) else value


def _own(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: _owned(value) for name, value in parts.items()}


def resume(at: Checkpoint, policy: Policy | None = None) -> Ledger:
    """A ledger that goes on from here, with the same policy or another one. It takes ownership of the checkpoint's
    objects, so a checkpoint that was not decoded cannot be used again."""
    ledger = Ledger(at.epoch, EVERYTHING, policy or at.policy)
    state = ledger.state
    state.now = at.now
    state.nodes.update(at.nodes)
    state.jobs.update(at.jobs)
    found = {one.id: one for node in at.nodes.values() for one in node.known}
    for name in at.allocations:
        on = at.nodes[found[name].node]
        if name in on.not_holding or name in on.inside:
            state.allocations[name] = found[name]
        else:
            state.hold(found[name])
    _restore_chains(state.chains, at.chains)
    state.keys = {(job.user, job.key): job.id for job in at.jobs.values() if not job.group}
    _regroup(state, at)
    dependencies.resume(state, at.dependencies.waiters, at.dependencies.ends)
    state.past_keys = {(user, key): job for user, key, job in at.past_keys}
    state.turns, state.next_turn = at.turns, at.next_turn
    state.freed_nodes, state.fresh = at.freed_nodes, at.fresh
    state.store_failing, state.loss = at.store_failing, at.loss
    state.snapshot, state.ray_trouble = at.snapshot, at.ray_trouble
    state.balancing = at.balancing
    state.scaling = at.scaling
    state.unknown_before = at.unknown_before
    state.failing_commands, state.idle = at.failing_commands, at.idle
    state.usual, state.kept_back, state.recalls = at.usual, at.kept_back, at.recalls
    preempting = at.preempting
    state.preempting = Preemptions(
        dict(preempting.urgent), preemptors_of(at.jobs.values()), list(preempting.spent), dict(preempting.refusals)
    )
    _requeue(state.queue, at)
    for job in sorted(state.jobs.values(), key=lambda job: state.turns[job.id]):
        state.index_job(job)
        if isinstance(job.phase, AwaitsHold):
            state.holds.wait(job, state.turns[job.id])
        if job.id in state.queue:
            state.index.affinity.want(job)
    state.holds.changed = dict.fromkeys(at.holds)
    state.index.mix = RequestMix(at.mix)
    _share(state.shares, at)
    _restore_loans(state.loans, at.loans)
    if state.policy.sharing != at.policy.sharing:
        state.shares.ranked = -math.inf
    _count(state, at.quotas, state.policy.rights == at.policy.rights)
    state.reservations = at.reservations
    for name, node in at.nodes.items():
        state.index.learn(node, labels(node))
        state.index.expect(name, node.forecast)
        if node.usable:
            assert node.capacity is not None
            state.index.put(name, node.facts.priority, node.capacity)
    state.deadlines.heap = at.due
    state.deadlines.armed = {(kind, name): when for kind, name, when in at.armed}
    state.deadlines.number = at.number
    if state.policy != at.policy:
        for node in at.nodes.values():
            arm(state, node)
    return ledger


def _regroup(state: GridState, at: Checkpoint) -> None:
    for kept in at.groups:
        group = kept.group
        state.groups[group.id] = Members(group, pending=deque(kept.pending), active=kept.active, ending=kept.ending)
        state.keys[(group.user, group.key)] = group.id
    for job in at.jobs.values():
        if job.group:
            members = state.groups[job.group]
            members.live[job.id] = None
            members.states[job.state] = members.states.get(job.state, 0) + 1


def _requeue(queue: Queue, at: Checkpoint) -> None:
    for kept in at.queue.lines:
        for name in kept.jobs:
            line = queue.add(name, key_of(at.jobs[name]), at.turns[name])
        line.blocked, line.reason = kept.blocked, kept.reason
        if kept.excluded:
            queue.exclude(line)
    for priority, user, lane, rank, served_at in at.queue.ranks:
        standing = queue.standings.get((Priority(priority), user, lane))
        if standing is not None:  # else another policy has other lanes
            standing.served_at = served_at
            queue.rank(standing, rank)
    for priority, user, lane in at.queue.unranked:
        if (standing := queue.standings.get((Priority(priority), user, lane))) is not None:
            queue.unranked[standing] = None
    for user, last in at.queue.run_times:
        for seconds in last:
            queue.run_times.add(user, seconds)
    for reservation, standings in at.queue.behind_reservation:
        found = {queue.standings.get((Priority(of), user, lane)): turn for of, user, lane, turn in standings}
        queue.behind_reservation[reservation] = {
            standing: turn for standing, turn in found.items() if standing is not None
        }
    queue.lowest, queue.departed = at.queue.lowest, at.queue.departed


def _count(state: GridState, at: QuotasAt, same: bool) -> None:
    quotas: Quotas = state.quotas
    quotas.granted, quotas.spent = dict(at.granted), dict(at.spent)
    quotas.excluded = {key_of(state.jobs[name]): None for name in at.excluded}
    quotas.rebuild(state.jobs, state.holders(), state.inside_holds())
    if same:
        quotas.changed = dict.fromkeys(at.changed)
    for name, (first, for_hours) in at.first.items():
        if (pool := quotas.pool(name)) is not None:
            pool.first, pool.first_for_hours = first, for_hours
            quotas.with_first[name] = pool
    for name, until in at.resting.items():
        if (pool := quotas.pool(name)) is not None:
            pool.rests_until = until


def _share(shares: Shares, at: Checkpoint) -> None:
    for node in at.nodes.values():
        shares.know(Resources(), node.facts.lendable)
    shares.accounts = at.shares.accounts
    shares.stale = dict.fromkeys(at.shares.stale)
    shares.unsaved = dict.fromkeys(at.shares.unsaved)
    shares.ranked = -math.inf if at.shares.ranked is None else at.shares.ranked


def differs(one: Checkpoint, other: Checkpoint) -> str:
    """Return the name of the first field in which two checkpoints differ; empty if they are equal. The reasons why jobs
    wait are not compared: their text depends on who watches them."""
    for name in Checkpoint.__struct_fields__:
        if name != "nodes" and _but_reasons(getattr(one, name)) != _but_reasons(getattr(other, name)):
            return name
    for node in one.nodes | other.nodes:
        if (mine := one.nodes.get(node)) is None or (its := other.nodes.get(node)) is None:
            return node
        for field in _NODE:
            if getattr(mine, field.name) != getattr(its, field.name):
                return f"{field.name} of {node}"
    return ""


def _but_reasons(value: Any) -> Any:
    match value:
        case QueueAt():
            return replace(value, lines=[replace(line, reason=None) for line in value.lines])
        case dict():
            return {name: _but_reasons(one) for name, one in value.items()}
        case Job(phase=Waiting()):
            return replace(value, phase=replace(value.phase, reason=None))
    return value


# --- as bytes -------------------------------------------------------------------------------------------------------

encode: Callable[[Checkpoint], bytes] = msgspec.msgpack.Encoder().encode


def convert(plain: Any) -> Checkpoint:
    """A checkpoint from decoded msgpack. Raises msgspec.ValidationError."""
    return msgspec.convert(plain, Checkpoint)
