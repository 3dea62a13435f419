"""Passes of rebalancing in the ledger: the view of the state for a pass, and its moves, made as ordinary requests and
cancellations of boosts."""

import math
from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    DemandReported,
    ExtensionRequested,
    JobsSubmitted,
    Rebalanced,
    RecordReceipt,
)
from distributed_grid.coordinator.core.lifecycle import attempts, boosts
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.placement.constraints import meets, owners_words, unjoined_key
from distributed_grid.coordinator.core.placement.matching import labels
from distributed_grid.coordinator.core.preemption.candidates import ran
from distributed_grid.coordinator.core.preemption.execute import spent
from distributed_grid.coordinator.core.preemption.plan import work
from distributed_grid.coordinator.core.queue import admission
from distributed_grid.coordinator.core.queue.reservations import has_room_after
from distributed_grid.coordinator.core.rebalancing.rebalance import barred, rebalance, refusal
from distributed_grid.coordinator.core.rebalancing.state import BalancingState, Left, Lent
from distributed_grid.coordinator.core.rebalancing.stays import stays
from distributed_grid.coordinator.core.rebalancing.view import Loan, RayLook, Source, View
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import OVERHEAD, Boost
from distributed_grid.protocol.jobs import Cause, Priority, Request, State
from distributed_grid.protocol.messages.operator import Receipt, Victim
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.placement import Constraints, admits
from distributed_grid.protocol.resources import MILLI, NOTHING, Resources, ResourceType
from distributed_grid.protocol.sharing import pressure
from distributed_grid.protocol.sharing.moves import Barred, LenderView, Move, MoveKind, Pass
from distributed_grid.protocol.sharing.policies import OffloadingMode

LASTS = 1800.0
"""Duration of a boost that the grid lends (s). It renews boosts in use, so those of a dead coordinator end."""
RENEW = 900.0
"""A boost in use that ends within these seconds is extended by LASTS."""
SETTLING = 10.0
"""How long a boost counts as new after it has joined (s): Ray first has to start workers there."""
LINES = 64
"""Maximum number of lines, the first in the order of service, that boosts lent by the grid give way to."""


NO_RAY = RayLook(target="", address="", user="")
"""The demand if there is no Ray, or it could not be asked: nothing is lent, and jobs may still be moved."""


def run(state: GridState, event: DemandReported) -> None:
    """Run a pass: decide by Ray's demand and the state; under dynamic balancing, make the moves."""
    known, balancing, now = state.balancing, state.policy.balancing, state.now
    if event.look is None:
        known.seen = []
    else:
        known.see(event.look, now, balancing.interval)
    known.forget(_live(state, known), now)
    look = event.look or NO_RAY
    found = replace(rebalance(view_of(state, look, known), balancing, now), trouble=event.trouble)
    if balancing.mode is OffloadingMode.DYNAMIC_BALANCING and not state.halted:
        found = _apply(state, found, look, list(event.ids))
        if event.look is not None:
            _renew(state, found)
    known.last = found
    if event.look is not None or found.moves:
        state.out.append(Rebalanced(found.moves, found.applied))


def proposed(state: GridState, look: RayLook, now: float) -> Pass:
    """The result of a pass with this demand, without making its moves. Changes nothing."""
    known = state.balancing.copy()
    known.see(look, now, state.policy.balancing.interval)
    return rebalance(view_of(state, look, known, now), state.policy.balancing, now)


# --- the view ---------------------------------------------------------------------------------------------------------


def view_of(state: GridState, look: RayLook, known: BalancingState, now: float | None = None) -> View:
    """The input of a pass; `now`: the time, where a question is answered outside of an event."""
    at = state.now if now is None else now
    values = state.policy.balancing.values
    return View(
        look=look,
        sources=tuple(source_of(state, node, look) for node in state.nodes.values()) if look.waiting else (),
        loans=tuple(_loans(state, look, known, at)),
        steady=known.steady(values.sustained, at),
        moved=known.moved,
        vain=known.vain,
        stays=tuple(stays(state, values, at)) if values.horizon else (),
        badput_left=state.policy.preempting.badput_budget - spent(state, at),
    )


def source_of(state: GridState, node: Node, look: RayLook) -> Source:
    """A node as a lender."""
    facts, sample, offer, capacity = node.facts, node.sample, node.offer, node.capacity
    lent = {share.uuid for one in node.allocations.values() for share in one.grant.gpus}
    owner = pressure.of_owner(sample, len(facts.cores), lent) if sample is not None else None
    idle = sample.at - offer.idle_since if sample is not None and offer is not None and offer.idle_since else 0.0
    free = NOTHING
    if capacity is not None:
        free = Resources(capacity.whole * MILLI, max(0, capacity.free_memory), capacity.whole_gpus * MILLI)
    total = Resources(len(facts.cores) * MILLI, facts.memory, len(facts.gpus) * MILLI)
    closed = _closed(state, node, look)
    forecast, window = node.forecast, state.policy.balancing.values.window
    staying = forecast.stays(window) if forecast is not None and forecast.idle else None
    idle = max(0.0, idle) if math.isfinite(idle) else 0.0
    return Source(facts.name, free, total, owner, idle, facts.priority, closed, staying)


def _closed(state: GridState, node: Node, look: RayLook) -> str:
    """Why a node lends nothing to this cluster by itself, whatever it has."""
    facts = node.facts
    if not look.address:
        return "no Ray cluster is known that it could lend to"
    if facts.name == look.target or facts.name in look.members:
        return "it is a node of this Ray cluster itself"
    if node.state is not NodeState.UP:
        return f"it is {node.state}"
    if not node.orders.open:
        return "it is drained" if node.orders.drain is not None else "it is set aside, as launches failed there"
    if facts.declared is not None:
        return "it has no agent"
    if not node.usable:
        return "it offers nothing now"
    if not facts.ray:
        return "it has no Ray"
    if look.ray and (facts.ray != look.ray or not _same_minor(facts.ray_python, look.python)):
        return f"its Ray is {facts.ray} with Python {facts.ray_python}, the cluster's {look.ray} with {look.python}"
    if unjoined_key(look.address) in node.closed:
        return f"it did not join: {node.unjoined.get(look.address, '')}"
    if state.policy.owner_rule and not admits(facts.walls, facts.owners, facts.trusts, look.user):
        return f"it {owners_words(facts)}"
    return ""


@lru_cache
def _same_minor(one: str, other: str) -> bool:
    """Whether two versions of Python agree in major and minor."""
    return one.split(".")[:2] == other.split(".")[:2]


def _boosts(state: GridState) -> Iterator[tuple[Job, Allocation, Boost]]:
    for allocation in state.allocations.values():
        job = state.jobs[allocation.job]
        if (boost := job.spec.boost) is not None:
            yield job, allocation, boost


def _live(state: GridState, known: BalancingState) -> dict[str, Lent]:
    """The boosts that the grid lends by itself, without those that are ending."""
    return {
        job.id: known.lent.get(job.id) or Lent(allocation.node, boost.target)
        for job, allocation, boost in _boosts(state)
        if boost.automatic and allocation.state is not State.STOPPING
    }


def _loans(state: GridState, look: RayLook, known: BalancingState, now: float) -> Iterator[Loan]:
    """The boosts for this cluster that have joined it or are about to."""
    there = [
        (job, allocation, boost)
        for job, allocation, boost in _boosts(state)
        if boost.address == look.address and allocation.state in (State.STARTING, State.RUNNING)
    ]
    waits = _wait_for(state, {one.node for _, one, boost in there if boost.automatic}, now)
    for job, allocation, boost in there:
        lent, joined = known.lent.get(job.id), job.started if job.begun else 0.0
        yield Loan(
            boost=job.id,
            user=job.user,
            source=allocation.node,
            target=boost.target,
            resources=allocation.grant.resources,
            automatic=boost.automatic,
            asks=lent.asks if lent is not None else "",
            tasks=lent.tasks if lent is not None else 0,
            joined=joined,
            new=not joined or now < joined + SETTLING,
            idle=look.idle.get(job.id),
            in_way=waits.get(allocation.node, "") if boost.automatic else "",
        )


def _wait_for(state: GridState, nodes: set[str], now: float) -> dict[str, str]:
    """Return, by node, a waiting job that would start there if the automatic boosts were given back."""
    found: dict[str, str] = {}
    waiting = list(_first(state)) if nodes else []
    for name in nodes:
        node = state.nodes[name]
        if not node.usable or node.capacity is None:
            continue
        has, ended = node.capacity.left, list[str]()
        for one in node.allocations.values():
            boost = state.jobs[one.job].spec.boost
            if boost is not None and boost.automatic:
                has += one.grant.resources
                ended.append(one.id)
        for job in waiting:
            wanted = job.request.resources
            if not wanted.fits(has) or wanted.fits(node.capacity.left) or not meets(node, labels(node), job.request):
                continue
            if has_room_after(state, job.id, node, ended, now):
                found[name] = f"a job of {job.user} waits for {wanted}, which {name} would have"
                break
    return found


def _first(state: GridState) -> Iterator[Job]:
    """The first jobs of lines that wait only for room."""
    for _, line in zip(range(LINES), state.queue.lines.values(), strict=False):
        if not line.excluded:
            yield state.jobs[state.queue.head(line)[1]]


# --- doing it ---------------------------------------------------------------------------------------------------------


def _apply(state: GridState, found: Pass, look: RayLook, ids: list[str]) -> Pass:
    """Make the moves; returns the pass with those that could be made, and the ids of their boosts."""
    known, made = state.balancing, []
    for move in found.moves:
        match move.kind:
            case MoveKind.LEND if ids:
                move = replace(move, boost=ids.pop(0))
                if not _lend(state, move, look):
                    continue
                known.lent[move.boost] = Lent(move.source, move.target, move.asks, move.tasks)
            case MoveKind.GIVE_BACK:
                lent, idle = known.lent.pop(move.boost, None), look.idle.get(move.boost) or 0.0
                unused = 0.0 < idle >= state.policy.balancing.values.sustained
                if lent is not None and unused and any(one.text == lent.asks for one in look.waiting):
                    known.vain[lent.asks] = move.boost
                admission.cancel(state, CancelRequested(0, (move.boost,), f"given back: {move.reason}"))
            case MoveKind.LEAVE:
                _leave(state, move)
            case _:
                continue
        known.note(move)
        made.append(move)
    return replace(found, moves=tuple(made), applied=True)


def _lend(state: GridState, move: Move, look: RayLook) -> bool:
    """Request the boost of a move; returns whether it is accepted."""
    wanted = move.resources
    kind = ResourceType.GPU if wanted.gpu else ResourceType.MEMORY if wanted.memory else ResourceType.CPU
    amounts = {
        ResourceType.CPU: wanted.cpu,
        ResourceType.GPU: wanted.gpu,
        ResourceType.MEMORY: wanted.memory - OVERHEAD,
    }
    boost = Boost(
        target=look.target,
        address=look.address,
        kind=kind,
        amount=amounts[kind],
        auth=look.auth,
        ray=look.ray,
        python=look.python,
        join_within=look.join_within,
        automatic=True,
    )
    only = Constraints(only=(move.source,))
    request = Request(wanted, Priority.LOW, immediate=True, requeue=False, constraints=only)
    job = Job(
        id=move.boost,
        key=f"rebalance-{move.boost}",
        user=look.user,
        spec=boosts.spec(boost, LASTS),
        request=request,
        submitted=state.now,
        by_operator=True,
    )
    admission.submit(state, JobsSubmitted(0, (job,)))
    if job.id not in state.jobs:
        return False
    state.tell(job, f"lent by the grid itself: {move.reason}")
    return True


def _leave(state: GridState, move: Move) -> None:
    """Tell a job to end so that it waits again at its age, with a receipt as for a preemption."""
    job = state.jobs[move.job]
    allocation = state.allocations[job.allocation]
    node, policy = state.nodes[allocation.node], state.policy.preempting
    job.plans += 1
    seconds = ran(job, allocation, state.now)
    lost = seconds * work(allocation.grant, node.facts.lendable)
    victim = Victim(allocation.id, job.id, job.user, job.request.priority, allocation.grant, seconds, lost)
    state.preempting.lose(lost, state.now)
    state.balancing.left[job.id] = Left(move.source, state.now + state.policy.balancing.values.min_hold)
    receipt = Receipt(
        id=f"{job.id}.p{job.plans}",
        job=job.id,
        user=job.user,
        priority=job.request.priority,
        wanted=job.request.resources,
        node=move.source,
        grant=allocation.grant,
        at=state.now,
        victims=(victim,),
        lost=lost,
        why=move.reason,
        result="moved",
        closed=state.now,
        text=f"{move.target} has room",
    )
    grace = min(policy.grace_most, policy.notice + job.spec.grace)
    attempts.request_stop(state, allocation, Cause.DRAINED, f"moved in time: {move.reason}", grace)
    state.out.append(RecordReceipt(receipt))


def _renew(state: GridState, found: Pass) -> None:
    """Extend the boosts that are in use and about to end."""
    back = {one.boost for one in found.moves if one.kind is MoveKind.GIVE_BACK}
    look, known = state.balancing.look, state.balancing
    for name in known.lent:
        job = state.jobs.get(name)
        unused = name in back or look is None or look.idle.get(name)
        if job is None or not job.begun or unused:
            continue
        if job.started + job.spec.time_limit < state.now + RENEW:
            boosts.extend(state, ExtensionRequested(0, name, LASTS))


def release_all(state: GridState, reason: str) -> None:
    """Give back all boosts that the grid has lent by itself."""
    names = [job.id for job, allocation, boost in _boosts(state) if boost.automatic]
    if names:
        admission.cancel(state, CancelRequested(0, tuple(names), reason))


# --- for people -------------------------------------------------------------------------------------------------------


def barred_now(state: GridState, now: float) -> Iterator[Barred]:
    """Lenders that may not make a move yet, by the last pass."""
    if (look := state.balancing.look) is not None:
        view = View(look=look, loans=tuple(_loans(state, look, state.balancing, now)), moved=state.balancing.moved)
        yield from barred(view, state.policy.balancing.values, now)


def lender_view(state: GridState, node: Node, now: float) -> LenderView:
    """A node as rebalancing sees it, by the last pass."""
    facts, sample = node.facts, node.sample
    known, balancing = state.balancing, state.policy.balancing
    look = known.look or NO_RAY
    source = source_of(state, node, look)
    why = refusal(source, known.moved.get(facts.name), balancing.values, balancing.marks, now)
    excess = Resources() if why else source.excess(balancing.values.headroom)
    whole = pressure.of_all(sample, len(facts.cores)) if sample is not None else None
    return LenderView(node=facts.name, owner=source.owner, all=whole, excess=excess, why=why)
