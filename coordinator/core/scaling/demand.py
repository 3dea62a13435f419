"""Demand: the waiting jobs that could start on one more machine; and those that could not, with reasons. They wait for
a dependency, a time, a quota, another job's node or an owner, or start anyway before a machine could be up."""

from collections.abc import Iterable

from distributed_grid.coordinator.core.explain.feasible import may_ever_run
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.queue.queue import Line
from distributed_grid.coordinator.core.queue.quotas import Pool as QuotaPool
from distributed_grid.coordinator.core.queue.reservations import ends, likely_ends
from distributed_grid.coordinator.core.scaling import lives
from distributed_grid.coordinator.core.scaling.packing import Ask, Bin, Demand, Seen, View
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.messages.rights import HELD
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.placement import NO_CONSTRAINTS, called
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.scaling.plans import NAMED, NotDone
from distributed_grid.protocol.scaling.pools import Scaling
from distributed_grid.protocol.text import format_duration

SOON_MOST = 64
"""Maximum number of nodes examined for capacity that is free soon: those where jobs end first."""
LINES_MOST = 2000
"""Maximum number of different requests in one plan, the first in the order of service."""


def boot_most(state: GridState, scaling: Scaling) -> float:
    """The longest that a machine of any pool usually takes to boot."""
    times = state.scaling.boot_times()
    usual = (times.get((pool.name, shape.type), (pool.boot, 0))[0] for pool in scaling.pools for shape in pool.shapes)
    return max(usual, default=0.0)


def demand_of(state: GridState, scaling: Scaling, now: float) -> Demand:
    """The jobs that wait and could start on one more machine."""
    asks: list[Ask] = []
    left_out: list[NotDone] = []
    within = boot_most(state, scaling)
    soon = {one.job: one for one in state.reservations.by_job.values() if one.at <= now + within}
    planned: dict[str, Resources] = {}
    lines = sorted(state.queue.lines.values(), key=lambda line: _place(state, line))
    for number, line in enumerate(lines):
        names = lives.jobs_of(state, line)
        if number >= LINES_MOST:
            left_out.append(_left(line, names, "crowded", f"{LINES_MOST} other requests come before it"))
            continue
        if line.excluded:
            left_out.append(_left(line, names, "quota", line.reason.text if line.reason else "a quota is reached"))
            continue
        if why := _elsewhere(state, line, names[0]):
            left_out.append(_left(line, names, *why))
            continue
        count = line.count
        kept = soon.get(names[0])
        if kept is not None and not _ends_before(state, line, kept.node, now):
            anyway = (
                f"{names[0]} starts on {kept.node} in {format_duration(max(1.0, round(kept.at - now)))} at the latest"
            )
            left_out.append(_left(line, names[:1], "starts-anyway", anyway, 1))
            names, count = names[1:], count - 1
        # What never runs, as nothing is large enough for it any more, takes nothing of what is allowed from others.
        counts = not state.quotas.limited or may_ever_run(state, line.request)
        allowed = _within_quotas(state, line, count, planned if counts else {**planned})
        if allowed < count:
            left_out.append(_left(line, names, "quota", "its user's quotas allow no more at once", count - allowed))
        if allowed:
            asks.append(_ask(state, line, names, allowed))
    return Demand(asks=tuple(asks), left_out=tuple(left_out))


def _place(state: GridState, line: Line) -> tuple[int, float, int]:
    turn = state.queue.head(line)[0]
    return -line.request.priority, state.queue.rank_at(line.standing, turn), turn


def _left(line: Line, names: tuple[str, ...], code: str, why: str, count: int = 0) -> NotDone:
    what = f"{line.request.resources} for {line.standing.user}"
    return NotDone(what=what, code=code, why=why[:1000], count=count or line.count, jobs=names[:NAMED])


def _elsewhere(state: GridState, line: Line, head: str) -> tuple[str, str] | None:
    """Why no new machine could help, as a code and words; None: one could."""
    request = line.request
    asked = request.constraints or NO_CONSTRAINTS
    if state.jobs[head].spec.boost is not None:
        return "boost", "boosts are lent by nodes that have Ray"
    if request.ray:
        return "ray", "Ray is to reserve it, and machines of pools are no nodes of its cluster"
    if asked.only:
        return "no-pool", f"it runs on {', '.join(asked.only[:NAMED])} only (--only)"
    if asked.near:
        bounds = state.index.affinity.bounds(asked)
        if bounds.near is not None or bounds.missing:
            return "affinity", f"it is to be near {' and '.join(map(called, asked.near))}"
    return None


def _ends_before(state: GridState, line: Line, node: str, now: float) -> bool:
    """Whether a node is a machine that ends too soon for these jobs."""
    return node in lives.ending(state, line.request, lives.needs(state, line), now)


def _within_quotas(state: GridState, line: Line, count: int, planned: dict[str, Resources]) -> int:
    """Return how many of these jobs the quotas allow to run at once, beside those planned already."""
    pools: tuple[QuotaPool, ...] = ()
    if state.quotas.limited:
        pools = state.quotas.allowed(line.standing.user, line.operator).pools
    wanted, members = line.request.resources, max(1, line.request.gang)
    for pool in pools:
        there = pool.held + planned.get(pool.id, Resources())
        for name, kind in HELD.items():
            limit, need = getattr(pool.limits, name), getattr(wanted, kind) * members
            if limit is not None and need:
                count = min(count, max(0, (limit - getattr(there, kind)) // need))
    for pool in pools:
        before, many = planned.get(pool.id, Resources()), count * members
        more = Resources(wanted.cpu * many, wanted.memory * many, wanted.gpu * many)
        planned[pool.id] = before + more
    return count


def _ask(state: GridState, line: Line, names: tuple[str, ...], count: int) -> Ask:
    asked = line.request.constraints or NO_CONSTRAINTS
    own = {name for job in names[:1] for name in (job, state.jobs[job].group, _called(state, job)) if name}
    lasts = lives.needs(state, line)
    return Ask(
        request=line.request,
        count=count,
        lasts=lasts,
        jobs=names[: 4 * NAMED],
        user=line.standing.user,
        alone=bool(own & set(asked.apart)),
        have=lives.members(state, line.request, lasts, state.now),
    )


def _called(state: GridState, job: str) -> str:
    one = state.jobs[job]
    return f"{one.user}/{one.spec.name}" if one.spec.name else ""


# --- the view ---------------------------------------------------------------------------------------------------------


def view_of(state: GridState, scaling: Scaling, now: float) -> View:
    """The input of a plan, beside demand."""
    known = state.scaling
    used, whole = _usage(state)
    return View(
        soon=_soon(state, now, now + boot_most(state, scaling)) if state.queue.lines else [],
        seen={name: _seen(state, name, now) for name, one in known.machines.items() if one.live},
        boots=known.boot_times(),
        as_joined=known.as_joined_now(),
        backoffs=known.backoffs_now(),
        paused=lives.pauses(state, scaling),
        unrecorded=lives.unrecorded(state),
        utilisation=known.utilisation(now, scaling.window),
        capacity=whole,
        raised=known.raised,
        lowered=known.lowered,
    )


def _seen(state: GridState, name: str, now: float) -> Seen:
    node, known = state.nodes.get(name), state.scaling
    machine = known.machines[name]
    cause = machine.cause
    if node is None or not machine.joined:
        return Seen(joined=False, cause=cause)
    held = node.known
    reserved = any(one.node == name for one in state.reservations.by_job.values())
    return Seen(
        allocations=len(held) + len(node.earmarks),
        idle_since=known.idle.get(name, 0.0) if not held and not node.earmarks else 0.0,
        ends=max((ends(state, one, now) for one in held), default=0.0),
        fixed=any(not state.jobs[one.job].request.requeue for one in held),
        reserved=reserved,
        usable=lives.offers(node),
        coming=lives.is_coming(state, node, now),
        lost=node.state is NodeState.LOST,
        cause=cause,
    )


def _usage(state: GridState) -> tuple[float, Resources]:
    """The part of what usable nodes lend that is held, for the kind that is used most; and what they lend."""
    used, whole = Resources(), Resources()
    for node in state.nodes.values():
        if node.state is NodeState.UP and node.orders.open and node.facts.declared is None:
            whole += node.facts.lendable
            for one in node.allocations.values():
                used += one.grant.resources
    parts = ((used.cpu, whole.cpu), (used.memory, whole.memory), (used.gpu, whole.gpu))
    return min(1.0, max((have / most for have, most in parts if most), default=0.0)), whole


def note_usage(state: GridState, scaling: Scaling, now: float) -> None:
    """Note how much of the grid is used, which machines have nothing to do, and which offer nothing."""
    known = state.scaling
    known.note_used(_usage(state)[0], now, scaling.window)
    for name, machine in known.machines.items():
        node = state.nodes.get(name) if machine.live and machine.joined else None
        if node is not None and not lives.offers(node):
            known.offerless.setdefault(name, now)
        else:
            known.offerless.pop(name, None)
        if node is not None and not node.known and not node.earmarks:
            known.idle.setdefault(name, now)
            if node.usable and node.offer is not None and node.capacity is not None:
                known.offers(machine, node.capacity.left)
        else:
            known.idle.pop(name, None)


def _soon(state: GridState, now: float, until: float) -> list[Bin]:
    """Nodes where jobs end before a machine could be up, by their time limits or predictions, with the capacity that is
    free then."""
    found: list[tuple[float, Node, list[str]]] = []
    for node in state.nodes.values():
        if not node.usable or not node.allocations:
            continue
        times = [(likely_ends(state, one, now), name) for name, one in node.allocations.items()]
        over = [name for at, name in times if at <= until]
        if over:
            found.append((min(at for at, _ in times), node, over))
    return [
        _bin(node, over, lives.left(state, node.facts.name, now))
        for _, node, over in sorted(found, key=_first)[:SOON_MOST]
    ]


def _first(one: tuple[float, Node, list[str]]) -> tuple[float, str]:
    return one[0], one[1].facts.name


def _bin(node: Node, over: Iterable[str], left: float) -> Bin:
    assert node.capacity is not None
    capacity = node.capacity.copy()
    for name in over:
        capacity.give(node.allocations[name].grant)
    return Bin(node, capacity, [node.facts.name], left)
