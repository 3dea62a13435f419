"""Nobody starves: the first of a user that cannot start yet has a node kept for it, and who comes behind may only start
there what does not keep it waiting (docs/shares.md).

The node is the one where the first could start the earliest, by the time limits of what runs there. The rest of the
grid stays free for all, and the first itself takes any place that it finds. Once a node is kept it stays so until the
first has started or is gone, or the node is of no use to it any more.
"""

import math

import msgspec

from distributed_grid.coordinator.core.lifecycle.attempts import time_suspended
from distributed_grid.coordinator.core.model import Allocation, Job, Node, Placement, Refusal
from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.placement.catalogue import Shown, Without
from distributed_grid.coordinator.core.placement.constraints import Trait
from distributed_grid.coordinator.core.placement.matching import able, gang_places, has_room, place
from distributed_grid.coordinator.core.preemption.plan import clock
from distributed_grid.coordinator.core.queue.queue import Line, Reservation, Reservations
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.resources import MILLI, Resources

LOOKED = 64
"""So many nodes are looked at for one to keep: where there are more, those with the most of it free."""
LOOK_SECONDS = 0.001
"""So long nothing is looked for again for each node that was looked at: looking is work."""
FEW = 16
"""As few can be looked at any time."""
STARTING = 2.0
"""Seconds from a grant until what was granted runs and its time limit counts."""
MOST = 4
"""So many nodes are kept at the most, for the first in the order of service."""
SEEN_EVERY = 1.0
"""So often a node that is kept is looked at where nothing has become free there."""
STUCK = 300.0
"""A node where nothing has become free for so long, and nobody knows when something will, is not kept any longer where
another would do."""
_PARTS = ((3, 4), (1, 2), (1, 4), (0, 1))


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Who wants to start: the request, how long it takes at the most (seconds; 0: nobody knows), and where it stands in
    the order of service: its class, negated, the rank of its user there, and its turn."""

    request: Request
    lasts: float
    order: tuple[int, float, int]


def asked(state: GridState, job: str) -> Ask:
    """A job that waits."""
    line = state.queue.line(job)
    return Ask(line.request, line.lasts, _order(state, job))


Places = tuple[Placement, ...] | Refusal
"""One place, or of a gang one for each member; or none."""


def places_of(state: GridState, job: Job) -> Places:
    """Where a job that waits goes now: see `places_for`."""
    if not state.reservations.by_job:
        return _places(state, job.request, state.index)
    return places_for(state, state.reservations, asked(state, job.id), state.now)


def places_for(state: GridState, kept: Reservations, ask: Ask, now: float) -> Places:
    """Where this goes now, and nowhere where it would keep those waiting who come before it."""
    hidden: list[Reservation] = []
    index: Shown = state.index
    while True:
        found = _places(state, ask.request, index)
        if not kept.by_job or isinstance(found, Refusal):
            break
        ways = [one for place in found if (one := in_the_way(state, kept, ask, place, now)) is not None]
        if not ways:
            break
        hidden += ways
        index = Without(state.index, frozenset(one.node for one in hidden))
    if hidden and isinstance(found, Refusal):
        return Refusal(found.offering, hidden[0].job)
    return found


def _places(state: GridState, request: Request, index: Shown) -> Places:
    if request.gang:
        return gang_places(state.nodes, index, request, state.policy)
    one = place(state.nodes, index, request, state.policy)
    return one if isinstance(one, Refusal) else (one,)


def in_the_way(state: GridState, kept: Reservations, ask: Ask, placement: Placement, now: float) -> Reservation | None:
    """Who would be kept waiting by this placement."""
    for one in kept.by_job.values():
        if one.node != placement.node or ask.order <= _order(state, one.job):
            continue
        if ask.lasts and now + STARTING + ask.lasts <= _begins(kept, one):
            continue  # it is over by then
        room = _room_then(state, one)
        room.take(placement.grant)
        first = state.jobs[one.job].request
        if not room.fits(first.resources, first.constraints):
            return one
    return None


def _begins(kept: Reservations, one: Reservation) -> float:
    """When the first can start: a gang when the last of its nodes has room."""
    return max(other.at for other in kept.by_job.values() if other.job == one.job)


def _order(state: GridState, job: str) -> tuple[int, float, int]:
    standing = state.queue.line(job).standing
    return -standing.priority, state.queue.rank_of(standing), state.queue.turns[job]


def _room_then(state: GridState, one: Reservation) -> Room:
    """What is free on the node when those have ended whom the first waits for."""
    node = state.nodes[one.node]
    assert node.room is not None
    room = node.room.copy()
    for name in one.after:
        if (allocation := node.allocations.get(name)) is not None:
            room.give(allocation.grant)
    return room


# --- what is kept -----------------------------------------------------------------------------------------------------


def review(state: GridState, least: Resources, now: float) -> tuple[Reservations, list[str]]:
    """What is still of use of that which is kept, and from when on; and the nodes on which others may start again."""
    if not state.reservations.by_job:
        return state.reservations, []
    by_job, free, left = dict[str, Reservation](), list[str](), state.reservations.left
    for job, old in state.reservations.by_job.items():
        request = state.jobs[job].request
        if request.resources.fits(least) and not request.gang:
            continue  # nobody wants less
        if old.node not in state.grown and old.node in state.index and now < old.seen + SEEN_EVERY:
            by_job[job] = old
            continue
        node = state.nodes[old.node]
        plan = _plan(state, node, request, now) if node.usable else None
        if plan is not None:
            progress = now if len(plan[1]) < len(old.after) else old.progress
            stuck = plan[0] == math.inf and now >= progress + STUCK and _another(state, old, now)
            if not stuck:
                by_job[job] = Reservation(old.job, old.node, *plan, progress, now)
                if plan[0] > old.at:
                    free.append(old.node)  # there is time for what had none before
                continue
            left = old.node
        free.append(old.node)
    for one in [one for one in by_job.values() if state.jobs[one.job].request.gang]:
        mine = [member for member, other in by_job.items() if other.job == one.job]
        if len(mine) < state.jobs[one.job].request.gang:  # a gang needs all of its nodes, or others
            free += [by_job.pop(member).node for member in mine]
    return Reservations(by_job=by_job, look_again=state.reservations.look_again, left=left), free


def _another(state: GridState, old: Reservation, now: float) -> bool:
    """Whether another node would do."""
    request = state.jobs[old.job].request
    others = (state.nodes[name] for name in _nearest(state, request) if name != old.node)
    return any(_plan(state, node, request, now) for node in others)


def keep_first(state: GridState, kept: Reservations, least: Resources, now: float) -> Reservations:
    """Keep a node for the first of each class, if it waits since before."""
    for priority, order in state.queue.order.items():
        first = state.queue.first(priority) if order else None
        line = None if first is None else state.queue.first_line(first)
        if line is not None and line.blocked:
            kept = keep_for(state, kept, line, least, now)
    return kept


def keep_for(state: GridState, kept: Reservations, line: Line, least: Resources, now: float) -> Reservations:
    """The first of this line cannot start, and it is the first of its user in its class: keep a node for it. Not where
    that has one already, where so many are kept for others who come first, or where nobody wants less than it does
    (`least` is the least that is wanted of each kind), so that nobody could take what it waits for. For a gang one is
    kept for each member: who wants as much, and less of it, could pass it."""
    request, standing = line.request, line.standing
    if now < kept.look_again or (request.resources.fits(least) and not request.gang):
        return kept
    jobs = {one.job for one in kept.by_job.values()}
    if any(state.queue.line(job).standing is standing for job in jobs):
        return kept
    others = dict(kept.by_job)
    if len(jobs) >= MOST:
        last = max(jobs, key=lambda job: _order(state, job))
        if state.queue.line(last).standing.priority >= standing.priority:
            return kept
        others = {name: one for name, one in others.items() if one.job != last}
    names = _nearest(state, request)
    plans: list[tuple[bool, float, int, str, tuple[str, ...]]] = []
    for name in names:
        plan = _plan(state, state.nodes[name], request, now)
        if plan is not None:
            shunned = name == kept.left or any(one.node == name for one in others.values())
            plans.append((shunned, plan[0], len(plan[1]), name, plan[1]))
    many = max(1, request.gang)
    if found := len(plans) >= many:
        job = state.queue.head(line)[1]
        for rank, (_, at, _, node, after) in enumerate(sorted(plans)[:many]):
            member = f"{state.jobs[job].group}_{rank}" if request.gang else job
            others[member] = Reservation(job, node, at, after, now, now)
    again = now + len(names) * LOOK_SECONDS if len(names) > FEW else kept.look_again
    return Reservations(by_job=others if found else kept.by_job, look_again=again, left=kept.left)


def _nearest(state: GridState, request: Request) -> list[str]:
    """The nodes to look at: all of a small grid, else those where the largest part of it is free."""
    if len(state.index) <= LOOKED:
        return [name for name, node in state.nodes.items() if name in state.index and able(node, request)]
    wanted, found = request.resources, dict[str, None]()
    user = state.index.whose(request.user)
    whose = Trait(user=user) if user is not None else None
    for part, of in _PARTS:
        gpu = wanted.gpu * part // of
        less = Resources(
            wanted.cpu * part // of, wanted.memory * part // of, gpu // MILLI * MILLI if gpu > MILLI else gpu
        )
        for name in state.index.search(less, LOOKED, whose):
            if able(state.nodes[name], request):
                found[name] = None
            if len(found) >= LOOKED:
                return list(found)
    return list(found)


def _plan(state: GridState, node: Node, request: Request, now: float) -> tuple[float, tuple[str, ...]] | None:
    """When there is room for this on the node at the latest, and after which ends; None: never, by what is known."""
    if node.room is None or not able(node, request):
        return None
    room, at, after = node.room.copy(), now, list[str]()
    if has_room(node, request, state.index, room):
        return at, ()
    held = sorted((ends(state, one, now), one.granted, one.id) for one in node.allocations.values())
    for end, _, name in held:
        room.give(node.allocations[name].grant)
        after.append(name)
        at = max(at, end)
        if has_room(node, request, state.index, room):
            return at, tuple(after)
    return None


def ends(state: GridState, allocation: Allocation, now: float) -> float:
    """When this allocation ends at the latest, unless it is frozen (again) for its node's owner: that puts it off;
    infinite: nobody knows."""
    job = state.jobs[allocation.job]
    if allocation.state is State.LOST:
        return math.inf
    if allocation.stop is not None:
        asked = next((step.at for step in reversed(job.story) if step.state is State.STOPPING), now)
        return asked + allocation.stop.grace
    if not job.spec.time_limit:
        return math.inf
    begins = allocation.started or max(now, allocation.granted + STARTING)
    return begins + time_suspended(job, now) + job.spec.time_limit + job.spec.grace


# --- what is said of it -----------------------------------------------------------------------------------------------


def kept_for(state: GridState, job: str) -> Reservation | None:
    """The node that is kept for this job."""
    return state.reservations.by_job.get(job)


def words(state: GridState, kept: Reservation) -> str:
    """What is kept for a job, and from when on it can start there."""
    mine = [one for one in state.reservations.by_job.values() if one.job == kept.job]
    names = [name for one in mine for name in one.after]
    waited_for = [there for name in names if (there := state.allocations.get(name)) is not None]
    # What was frozen since the node was looked at last ends later than was thought then.
    at = max(_begins(state.reservations, kept), *(ends(state, one, state.now) for one in waited_for), 0.0)
    frozen = [one.id for one in waited_for if state.jobs[one.job].active.suspended is not None]
    limit = f"at the earliest: {frozen[0]} is suspended" if frozen else "at the latest"
    when = f", where it can start at {clock(at)} {limit}" if at < math.inf else ""
    if len(mine) > 1:
        return f"{', '.join(one.node for one in mine)} are kept for it{when}"
    if when:
        return f"{kept.node} is kept for it{when}"
    held = [state.allocations[name] for name in kept.after if name in state.allocations]
    endless = [one.id for one in held if ends(state, one, state.now) == math.inf]
    if not endless:
        return f"{kept.node} is kept for it"
    more = f" and {len(endless) - 1} more" if len(endless) > 1 else ""
    has = "have" if more else "has"
    return f"{kept.node} is kept for it; when it can start there nobody knows: {endless[0]}{more} {has} no time limit"
