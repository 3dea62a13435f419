"""Why a job waits or runs where it does, or where a request would go, by the same functions that decide it; and the
smallest change of a request with which it could start now. Read-only."""

import math
from collections.abc import Callable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any

import msgspec

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lending import revocable
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.model import Job, Node, Placement, Refusal
from distributed_grid.coordinator.core.placement import constraints
from distributed_grid.coordinator.core.placement.blockers import blocker, blocker_words
from distributed_grid.coordinator.core.placement.constraints import admitted, amount, conditions, marked, opened
from distributed_grid.coordinator.core.placement.matching import (
    Context,
    Staying,
    able,
    candidates,
    confidence,
    could_ever,
    scores,
    weights_for,
)
from distributed_grid.coordinator.core.preemption import execute
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.queue.ranking import precedence_of
from distributed_grid.coordinator.core.queue.reservations import Places, asked, expected, places_for
from distributed_grid.coordinator.core.queue.scheduler import next_pass, would
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import Boost, amount_words, needs
from distributed_grid.protocol.jobs import Reason, Request, State
from distributed_grid.protocol.messages import FunnelStep, NodeVerdict, Why
from distributed_grid.protocol.nodes import AllocationView, NodeState
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Constraints, Walls, called
from distributed_grid.protocol.resources import MIB, MILLI, Resources, ResourceType, format_milli
from distributed_grid.protocol.text import listed

LENT_MEMORY = 128 * MIB
"""Steps in which smaller boosts of memory are looked for: eighths of a GB."""
FRACTION = 10
"""Parts of a GPU are asked for in hundredths (milli-GPUs)."""


class Change(msgspec.Struct, frozen=True):
    """A changed request, which would start now on `node`. `what` names the change (cpu, memory, gpu, …), `text`
    describes it, and `cost` is the part of the request that is given up, 0 to 1."""

    what: str
    request: Request
    node: str
    text: str
    cost: float


def changes(state: GridState, request: Request, place: Callable[[Request], Places]) -> list[Change]:
    """Return all changes that would let a request start that cannot start as it is: one of each kind, the smallest cost
    first. `place` finds placements for changed requests."""
    found = []
    for what, other, text, cost in _others(state, request, place):
        placed = place(other)
        if not isinstance(placed, Refusal):
            where = ", ".join(one.node for one in placed)
            found.append(Change(what, other, placed[0].node, f"{text} it would start now on {where}", cost))
    return sorted(found, key=lambda change: change.cost)


def smaller_boost(boost: Boost, request: Request, place: Callable[[Request], Places]) -> list[Change]:
    """The largest part of a boost that would start now, if any would: a boost is asked for by its amount alone, and
    what its constraints exclude cannot lend it."""
    step = LENT_MEMORY if boost.kind is ResourceType.MEMORY else MILLI

    def part(count: int) -> Request:
        return msgspec.structs.replace(request, resources=needs(boost.kind, count * step))

    count = _largest((boost.amount - 1) // step, lambda count: _starts(place, part(count)))
    placed = place(part(count)) if count else Refusal(0)
    if isinstance(placed, Refusal):
        return []
    text = f"a boost of {amount_words(boost.kind, count * step)} would start now on {placed[0].node}"
    return [Change(boost.kind.value, part(count), placed[0].node, text, 1 - count * step / boost.amount)]


Other = tuple[str, Request, str, float]


def _others(state: GridState, request: Request, place: Callable[[Request], Places]) -> Iterator[Other]:
    if request.gang:
        count = _largest(request.gang - 1, lambda count: _starts(place, msgspec.structs.replace(request, gang=count)))
        if count > 1:
            other = msgspec.structs.replace(request, gang=count)
            yield "nodes", other, f"with --nodes {count}", 1 - count / request.gang
    else:
        for kind in ("memory", "cpu", "gpu"):
            asked = getattr(request.resources, kind)
            if asked and 0 < (most := _most_of(state, request, kind, place)) < asked:
                other = _with(request, kind, most)
                yield kind, other, f"with {_option(kind, most)}", 1 - most / asked
    if request.constraints is not None:
        yield from _relaxed(request, request.constraints, place)


def _relaxed(request: Request, asked: Constraints, place: Callable[[Request], Places]) -> Iterator[Other]:
    """Requests with one constraint left out, or loosened as much as necessary."""

    def without(**parts: Any) -> Request:
        left = msgspec.structs.replace(asked, **parts)
        return msgspec.structs.replace(request, constraints=left if left != NO_CONSTRAINTS else None)

    if asked.gpu_memory:
        # As for amounts, reservations may leave less than what is free, so that all sizes are tried.
        most = _largest((asked.gpu_memory - 1) // MIB, lambda size: _starts(place, without(gpu_memory=size * MIB)))
        if most:
            cost = 1 - most * MIB / asked.gpu_memory
            yield "gpu-memory", without(gpu_memory=most * MIB), f"with --gpu-memory {most}M", cost
        else:
            yield "gpu-memory", without(gpu_memory=0), "without --gpu-memory", 1.0
    if asked.only:
        yield "only", without(only=()), "without --only", 1.0
    if asked.exclude:
        yield "exclude", without(exclude=()), "without --exclude", 1.0
    for rule in asked.labels:
        labels = tuple(one for one in asked.labels if one != rule)
        yield f"label {rule}", without(labels=labels), f"without --label {rule}", 1.0
    for level in sorted(Walls, key=lambda one: one.strength, reverse=True):
        if level.strength < asked.walls.strength and _starts(place, without(walls=level)):
            text = f"with --walls {level}" if level.strength else "without --walls"
            yield "walls", without(walls=level), text, 1 - level.strength / asked.walls.strength
            break
    if asked.gpu_model:
        yield "gpu-model", without(gpu_model=""), f"without --gpu-model {asked.gpu_model}", 1.0
    if asked.near:
        yield "near", without(near=()), "without --near", 1.0
    if asked.apart:
        yield "apart", without(apart=()), "without --apart", 1.0


def _starts(place: Callable[[Request], Places], request: Request) -> bool:
    return not isinstance(place(request), Refusal)


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which `holds` is true; 0: none. `holds` is monotonic."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if holds(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _most_of(state: GridState, request: Request, kind: str, place: Callable[[Request], Places]) -> int:
    """The most of one kind with which it would start, all else being equal."""

    def has_room(count: int) -> bool:
        return bool(candidates(state.nodes, state.index, _with(request, kind, count), state.policy))

    most = _most(kind, getattr(request.resources, kind) - 1, has_room)
    if not most or not state.reservations.by_job:
        return most
    # Reservations are not part of the capacity: they are only known by trying to place it.
    return _most(kind, most, lambda count: _starts(place, _with(request, kind, count)))


def _most(kind: str, most: int, holds: Callable[[int], bool]) -> int:
    """The most of one kind up to `most` for which `holds` is true, in the steps in which it can be requested."""
    step = {"cpu": 1, "memory": MIB, "gpu": MILLI if most >= MILLI else FRACTION}[kind]
    count = _largest(most // step, lambda count: holds(count * step))
    if not count and step == MILLI:
        step = FRACTION
        count = _largest(MILLI // step - 1, lambda count: holds(count * step))
    return count * step


def _option(kind: str, value: int) -> str:
    """An exact amount as a command-line option."""
    if kind == "memory":
        return f"--mem {value // MIB}M"
    return f"--{kind}s {format_milli(value)}"


def _with(request: Request, kind: str, value: int) -> Request:
    wanted = request.resources
    parts = {"cpu": wanted.cpu, "memory": wanted.memory, "gpu": wanted.gpu}
    return msgspec.structs.replace(request, resources=Resources(**(parts | {kind: value})))


HOLDERS = 20
"""Maximum number of holders of what is lacking."""
NAMED = 5
"""Maximum number of excluded nodes named for a condition."""
LASTS = 7200.0
"""Where nobody knows how long a job runs, for how long its node stays idle is told of so many seconds."""
VERDICTS = 200
"""Maximum number of nodes with a verdict; the funnel counts all."""


def why(
    state: GridState,
    job_id: str | None,
    request: Request | None,
    now: float,
    user: str = "",
    operator: bool = False,
    lasts: float = 0.0,
) -> Why:
    """The explanation for a live job, or for a request that this user (an `operator`) has not made yet, of a job that
    lasts no longer than `lasts` with its grace (s; 0: it has no time limit); its `id` is the caller's to set."""
    if job_id is None:
        assert request is not None, "neither a job nor a request is asked about"
        return _wanted(
            state, marked(state.policy, constraints.marked_for_ray(state.policy, request), user, request.hold), None,
            user, now, _over_as_new(state, request, user, operator, lasts), lasts,
        )  # fmt: skip
    job = state.jobs.get(job_id)
    if job is None:
        return Why(id=0, reason=Reason("Ended", f"{job_id} has ended; see its outcome and story"))
    if job.state is State.WAITING:
        return _wanted(state, job.request, job, user, now, rights.of(state, job) if job.id in state.queue else None)
    return _placed(state, job)


def _placed(state: GridState, job: Job) -> Why:
    said = state.placements.get(job.allocation)
    verdict = NodeVerdict(job.node, True, "it was granted before the coordinator started")
    if said is not None:
        verdict = NodeVerdict(said.node, True, "the best of the nodes that had room", said.confidence, said.scores)
    if before := job.active.predecessor:
        text = f"it is next on {job.node}: it starts there as soon as {before.rpartition('.')[0]} has ended"
        verdict = NodeVerdict(job.node, True, "jobs like it are short, and it was its turn")
        return _answer(state, job, Reason("Next", text), verdict)
    allocation = state.allocations[job.allocation]
    if allocation.hold and allocation.state is State.RUNNING:
        return _answer(state, job, Reason("Placed", holds.words(state, allocation)), verdict)
    waits = ", once Ray has reserved it" if allocation.awaits_ray else ""
    if allocation.within:
        waits = f", in the hold {job.request.within}"
    if users := state.on_slack.get(allocation.id):
        names = [user.rpartition(".")[0] for user in users]
        waits += f"; {listed(names, 3)} run{'s' if len(names) == 1 else ''} on cores that it leaves unused"
    return _answer(state, job, Reason("Placed", f"it is {job.state.value} on {job.node}{waits}"), verdict)


def _answer(state: GridState, job: Job, reason: Reason, verdict: NodeVerdict) -> Why:
    return Why(
        id=0,
        reason=_lost(state, job) or reason,
        verdicts=(verdict,),
        chosen=job.node,
        grant=job.grant,
        job=job.view(None),
        lasting=_lasting(state, job.node, _expected(state, job.request, job, job.user)),
        snapshot=state.snapshot,
        epoch=state.epoch,
    )


def _lost(state: GridState, job: Job) -> Reason | None:
    """Why the fate of a LOST job is unknown, and when it will be known; None: it is not lost."""
    if job.state is not State.LOST:
        return None
    node = state.nodes.get(job.node)
    if node is not None and node.facts.unknown:
        why = f"does not know what became of it: {node.facts.unknown}"
    else:
        why = "has not said what became of it: that is known when it is back"
    return Reason("Lost", f"it is lost on {job.node}, which {why}")


def _placing(state: GridState, job: Job | None, user: str, now: float, lasts: float) -> Callable[[Request], Places]:
    """The function that finds placements for a request of this job, or of a new one of this user."""
    if job is None:
        return lambda request: would(state, request, user, lasts, now)
    if job.id not in state.queue:
        return lambda request: Refusal(len(state.index))
    ask = asked(state, job.id)
    return lambda request: places_for(state, state.reservations, msgspec.structs.replace(ask, request=request), now)


def _over_as_new(state: GridState, request: Request, user: str, operator: bool, lasts: float) -> rights.Over | None:
    """The quota that would not allow a job of this user to start, if it were submitted now."""
    pools = state.quotas.allowed(user, operator).pools
    if not pools:
        return None
    seen, ask = next_pass(state, request, user, lasts, state.now)
    return rights.over(seen, pools, ask)


def _wanted(
    state: GridState,
    request: Request,
    job: Job | None,
    user: str,
    now: float,
    reached: rights.Over | None,
    lasts: float = 0.0,
) -> Why:
    """`reached`: the quota that does not allow it to start; `lasts`: of what is no job yet, see `why`."""
    if job is not None and state.is_held_back(job):
        return _pending(state, job)
    if request.within:
        return _in_hold(state, request, job)
    limit, place = lasts, _placing(state, job, user, now, lasts)
    lasts = _expected(state, request, job, user, lasts)
    found = place(request) if reached is None else Refusal(len(state.index))
    chosen = None if isinstance(found, Refusal) else found[0]
    ahead = _ahead(state, request, job)
    if job is not None:
        reason = reasons.now_for(state, job) or Reason("Resources")
    elif reached is not None:
        reason = rights.reason(state, reached)
    elif not isinstance(found, Refusal):
        reason = Reason("Fits", f"it would start now on {', '.join(one.node for one in found)}")
    else:
        reason = reasons.find(state, request)
    if job is not None and state.policy.scaling.pools:
        from distributed_grid.coordinator.core.scaling.passes import words_for  # only where there are pools

        if words := words_for(state, job.id, now):
            reason = Reason(reason.code, f"{reason.text}; {words}")
    preempts = None
    if job is None and chosen is None and reached is None:
        seen, _ = next_pass(state, request, user, 0.0, now)
        reason, preempts = execute.foresee(seen, request, limit, reason, now)
    if request.revocable and chosen is None and reached is None:
        reason = Reason(reason.code, "; ".join(filter(None, (reason.text, revocable.words(state, request, now)))))
    boost, other = job.spec.boost if job is not None else None, list[Change]()
    if chosen is None and reached is None:
        other = changes(state, request, place) if boost is None else smaller_boost(boost, request, place)
    if reached is not None:
        hint = rights.hint(reached)
    else:
        hint = "" if chosen is not None else other[0].text if other else _hint(state, request)
    return Why(
        id=0,
        reason=reason,
        funnel=_funnel(state, request),
        verdicts=_verdicts(state, request, lasts, _ending(state, request, job, limit)),
        chosen=chosen.node if chosen is not None else "",
        grant=chosen.grant if chosen is not None else None,
        ahead=ahead,
        hint=hint,
        holders=_holders(state, request) if chosen is None and reached is None else (),
        snapshot=state.snapshot,
        epoch=state.epoch,
        job=job.view(reason) if job is not None else None,
        preempts=preempts,
        precedence=precedence_of(state, job, now) if job is not None and job.id in state.queue else None,
        lasting=_lasting(state, chosen.node, lasts) if chosen is not None else "",
    )


def _expected(state: GridState, request: Request, job: Job | None, user: str, lasts: float = 0.0) -> float:
    """Return the expected run time of a request (s; 0: unknown). `lasts`: its duration if it is not a job yet, as in
    `why`."""
    limit = lasts if job is None else job.spec.time_limit and job.spec.time_limit + job.spec.grace
    planned = job.planned if job is not None else 0.0
    return expected(state, job.user if job is not None else user, request, limit, planned)


def _ending(state: GridState, request: Request, job: Job | None, lasts: float) -> dict[str, str]:
    """The machines that end before this may be over, and that in words. `lasts`: of what is no job yet, see `why`."""
    if not state.scaling.joined:
        return {}
    from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

    if job is not None:
        lasts = lives.needs(state, state.queue.line(job.id)) if job.id in state.queue else 0.0
    names = sorted(lives.ending(state, request, lasts, state.now))
    return {name: lives.words(state, name, lasts, state.now) for name in names}


def _lasting(state: GridState, node: str, lasts: float) -> str:
    """Describe how long a node stays idle, compared with a duration of `lasts` seconds."""
    known = state.nodes.get(node)
    return known.forecast.words(node, lasts or LASTS) if known is not None and known.forecast is not None else ""


def _pending(state: GridState, job: Job) -> Why:
    """The explanation for a job that is held back, which does not depend on nodes."""
    reason = reasons.now_for(state, job) or Reason("Resources")
    view = job.view(reason)
    return Why(id=0, reason=reason, snapshot=state.snapshot, epoch=state.epoch, job=view)


def _in_hold(state: GridState, request: Request, job: Job | None) -> Why:
    """The explanation for a job that is to run in a hold, or for a request of one."""
    found = holds.find(state, request)
    hold = state.jobs.get(request.within)
    if isinstance(found, Placement):
        reason = Reason("Fits", f"it would start now on {found.node}, in the hold {request.within}")
        verdict = NodeVerdict(found.node, True, "the hold has room", found.confidence, found.scores)
    else:
        reason = holds.reason(state, request)
        verdict = NodeVerdict(hold.node if hold is not None else "", False, reason.text)
    return Why(
        id=0,
        reason=reason,
        verdicts=(verdict,) if verdict.node else (),
        chosen=found.node if isinstance(found, Placement) else "",
        grant=found.grant if isinstance(found, Placement) else None,
        job=job.view(reason) if job is not None else None,
        snapshot=state.snapshot,
        epoch=state.epoch,
    )


def _ahead(state: GridState, request: Request, job: Job | None) -> int:
    """Return how many waiting jobs are served before this job, or would be before a new one."""
    if job is not None:
        return state.queue.ahead(job.id) if job.id in state.queue else 0
    return sum(line.count for line in state.queue.lines.values() if line.request.priority >= request.priority)


def _funnel(state: GridState, request: Request) -> tuple[FunnelStep, ...]:
    """Return how many nodes are left after each condition in turn, from all nodes to those that fit."""
    wanted = request.resources
    nodes = list(state.nodes.values())
    steps = [FunnelStep("known", len(nodes))]
    labels = state.index.labels_of
    taking = [node for node in nodes if node.facts.declared is None or admitted(node.facts, request)]
    if len(taking) < len(nodes):
        nodes = _step(steps, "with an agent", nodes, taking)
    for one in conditions(request, owners=state.index.whose(request.user) is not None):
        nodes = _step(steps, one.step, nodes, [node for node in nodes if one.met(node.facts, labels(node.facts.name))])
    nodes = _step(steps, "large enough", nodes, [node for node in nodes if could_ever(node.facts, wanted)])
    up = [node for node in nodes if node.state is NodeState.UP]
    away: dict[str, int] = {}
    for node in nodes:
        if node.state is not NodeState.UP:
            away[node.state.value] = away.get(node.state.value, 0) + 1
    steps.append(FunnelStep("up", len(up), ", ".join(f"{count} {state}" for state, count in away.items())))
    left = _step(steps, "offering", up, [node for node in up if node.facts.name in state.index])
    bounds, asked = state.index.affinity.bounds(request.constraints), request.constraints or NO_CONSTRAINTS
    for word in asked.near:
        near = [] if bounds.missing else [one for one in left if bounds.near is None or one.facts.name in bounds.near]
        left = _step(steps, f"where {called(word)} is", left, near)
    for word in asked.apart:
        there = state.index.affinity.nodes(word)
        left = _step(steps, f"apart from {called(word)}", left, [one for one in left if one.facts.name not in there])
    for kind in ("gpu", "cpu", "memory"):
        if getattr(wanted, kind):
            single = _only(wanted, kind)
            what = f"with {amount(kind, wanted)} free"
            left = _step(
                steps, what, left, [n for n in left if n.capacity is not None and n.capacity.fits(single, asked)]
            )
    if request.ray:
        left = _step(steps, "where Ray has room", left, [one for one in left if constraints.fits_on_ray(one, request)])
    if request.joins:
        free = [one for one in left if not constraints.left_alone(one, request)]
        left = _step(steps, "where no boost failed a short while ago", left, free)
    return tuple(steps)


def _only(wanted: Resources, kind: str) -> Resources:
    return Resources(**{kind: getattr(wanted, kind)})


def _step(steps: list[FunnelStep], what: str, before: list[Node], after: list[Node]) -> list[Node]:
    """Add a condition to the funnel: `after` are the nodes of `before` that meet it, in the same order."""
    lost = len(before) - len(after)
    names = list(islice(_left_out(before, after), min(lost, NAMED)))
    steps.append(FunnelStep(what, len(after), listed(names, NAMED, lost)))
    return after


def _left_out(before: list[Node], after: list[Node]) -> Iterator[str]:
    rest = iter(after)
    next_one = next(rest, None)
    for node in before:
        if node is next_one:
            next_one = next(rest, None)
        else:
            yield node.facts.name


def _verdicts(state: GridState, request: Request, lasts: float, ending: Mapping[str, str]) -> tuple[NodeVerdict, ...]:
    """A verdict for each node: those that fit first, by confidence, descending; behind them those whose owner is
    expected earlier, and machines that end before. `lasts`: for how long it is expected to run (s); `ending`: which
    machines end, in words."""
    good: list[NodeVerdict] = []
    bad: list[NodeVerdict] = []
    weights = weights_for(request, state.policy, state.index, lasts)
    bounds = state.index.affinity.bounds(request.constraints)
    compared = candidates(state.nodes, state.index, request, state.policy, lasts=lasts)
    staying, context = (
        Staying(state.nodes, state.policy.balancing.values.confidence, lasts, request.resources),
        Context(state.index.mix, lasts),
    )
    others = candidates(state.nodes, state.index, msgspec.structs.replace(request, nodes=()), state.policy, VERDICTS)
    for name in list(dict.fromkeys((*compared, *others)))[:VERDICTS]:
        node = state.nodes[name]
        assert node.capacity is not None
        parts = scores(node, node.capacity, request, weights, context)
        text = ending.get(name, "")
        if not text and "lasting" in parts and name not in compared and not staying.lasts(name):
            text = "of how long it stays idle nothing is known"
            if node.forecast is not None and (likely := node.forecast.stays(lasts)) is not None:
                text = f"its owner is expected before it ends: {likely:.0%} that it stays idle"
                if parts["lasting"] < likely:
                    peak = f"{node.forecast.peak:.0%}"
                    text = f"its owner uses up to {peak} of it even while it is idle, and would miss that"
        good.append(NodeVerdict(name, True, text, confidence(parts, weights), parts))
    for name, node in state.nodes.items():
        if len(good) + len(bad) >= VERDICTS:
            break
        if code := blocker(node, request, bounds):
            bad.append(NodeVerdict(name, False, blocker_words(node, request, code)))
    good.sort(key=lambda verdict: (bool(verdict.why), -verdict.confidence, verdict.node))
    return tuple(good + bad)


def _holders(state: GridState, request: Request) -> tuple[AllocationView, ...]:
    """The allocations that hold what this lacks, on nodes that could lend it otherwise: by their end, unknown ones
    last."""
    wanted = request.resources
    found: list[AllocationView] = []
    for node in state.nodes.values():
        if node.allocations and node.usable and able(node, request):
            assert node.capacity is not None
            fits, asked = node.capacity.fits, request.constraints
            lacking = {kind for kind in ("cpu", "memory", "gpu") if not fits(_only(wanted, kind), asked)}
            found += [
                views.allocation_view(state, one)
                for one in node.allocations.values()
                if any(getattr(one.grant.resources, kind) for kind in lacking)
            ]
    return tuple(nsmallest(HOLDERS, found, key=lambda one: (one.ends or math.inf, one.since, one.id)))


def _hint(state: GridState, request: Request) -> str:
    """Return what else would help where no change of the request does."""
    if not state.nodes:
        return "start an agent on a machine that may lend: grid agent run"
    away = [node for node in state.nodes.values() if node.state is not NodeState.UP]
    gone = next((node.facts.name for node in away if able(node, request)), "")
    if gone:
        return f"bring back {gone}: it could lend this"
    closed = (node for node in state.nodes.values() if not node.orders.open)
    shut = next((node.facts.name for node in closed if able(node, request)), "")
    if shut:
        return f"grid node undrain {shut}: it could lend this"
    bounds = state.index.affinity.bounds(request.constraints)
    used = (one.facts.name for one in state.nodes.values() if blocker(one, request, bounds) == "withheld")
    if busy := next(used, ""):
        return (
            f"{busy} lends it again when others use less there; to lend it meanwhile, raise cpu_percent_max or"
            " owner_pressure in its agent's configuration (a dev grid: grid dev up --cpu-percent-max 100); or add nodes"
        )
    if not request.user:
        return ""
    anybody = msgspec.structs.replace(request, user="")
    with_agent = (node for node in state.nodes.values() if node.facts.declared is None)
    others = (node for node in with_agent if not admitted(node.facts, request))
    closed_to = next((node.facts.name for node in others if able(node, anybody)), "")
    return f"{opened(closed_to)}: it could lend this" if closed_to else ""
