"""Reservations with backfill against starvation: a node is reserved for a user's first job that cannot start yet, and
jobs behind it may only start there if they do not delay it (docs/shares.md).

The reserved node is the one where that job could start first, by the time limits of what runs there. The job itself may
start on any other node. A reservation lasts until the job has started or ended, or can no longer use the node.
"""

import math
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import RunTimesPredicted
from distributed_grid.coordinator.core.lifecycle.attempts import is_restartable, time_suspended
from distributed_grid.coordinator.core.model import Allocation, Job, Node, Placement, Refusal, time_limit
from distributed_grid.coordinator.core.placement.capacity import FutureCapacity
from distributed_grid.coordinator.core.placement.catalogue import Shown, Without
from distributed_grid.coordinator.core.placement.constraints import Trait
from distributed_grid.coordinator.core.placement.matching import NO_OVERLAY, able, gang_places, has_room, open_to, place
from distributed_grid.coordinator.core.preemption.plan import may
from distributed_grid.coordinator.core.queue.precedence import OVERDUE
from distributed_grid.coordinator.core.queue.queue import Kept, Line, Reservation, Reservations, Standing
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.core.trends.stay import AHEAD
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.resources import MILLI, Grant, Resources
from distributed_grid.protocol.text import clock

COMPARED_MOST = 64
"""Maximum number of nodes compared for a reservation; of more, those with the most capacity free."""
COMPARE_SECONDS = 0.001
"""Pause before the next search, for each node that was compared: bounds the cost of searching."""
FEW = 16
"""A search of no more nodes than this needs no pause."""
STARTING = 2.0
"""Expected seconds from a grant to the start of the job and of its time limit."""
MOST = 4
"""Maximum number of jobs with a reservation, the first in the order of service."""
SEEN_EVERY = 1.0
"""Interval between checks of a reservation where nothing has changed (s)."""
STUCK = 300.0
"""A reservation without a known start that saw no progress for this long moves to another node (s)."""
_PARTS = ((3, 4), (1, 2), (1, 4), (0, 1))


class Ask(msgspec.Struct, frozen=True, gc=False):
    """A request that wants to start, its maximum duration (seconds; 0: unlimited), and its sort key in the order of
    service: its class, negated, the rank of its user there, and its turn. `expected`: the expected run time (seconds;
    0: unknown); `left`: the node that it has left before its owner came, and does not go back to while there is another
    one. `planned`: of a job that can be preempted, the run time (seconds) that nine in ten runs like it stay within (0:
    unknown); `needs`: how long it may run, if machines end (0: unlimited)."""

    request: Request
    lasts: float
    order: tuple[int, float, int]
    expected: float = 0.0
    left: str = ""
    planned: float = 0.0
    needs: float = 0.0


def asked(state: GridState, job: str) -> Ask:
    """The `Ask` of a waiting job."""
    line = state.queue.line(job)
    known = state.jobs[job]
    length = expected(state, line.standing.user, line.request, line.lasts, known.planned)
    left = state.balancing.left_by(job, state.now)
    planned = known.planned if is_restartable(known) else 0.0
    ask = Ask(line.request, line.lasts, _order(state, job), length or (AHEAD if left else 0.0), left, planned)
    if not state.scaling.joined:
        return ask
    from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

    return replace(ask, needs=lives.needs(state, line))


def expected(state: GridState, user: str, request: Request, lasts: float, planned: float = 0.0) -> float:
    """Return the expected run time of a job (s; 0: unknown, or it does not matter, since there is no forecast of any
    node). It is the predicted one (`planned`), else that of the user's last equal requests, at most `lasts`, the
    longest that it may run; without either, the median of the user's last jobs, AHEAD at most."""
    if not state.index.forecasts:
        return 0.0
    if planned:
        return min(AHEAD, lasts or math.inf, planned)
    longest = state.chains.longest(user, request)
    if lasts or longest is not None:
        return min(AHEAD, lasts or math.inf, math.inf if longest is None else longest)
    return min(AHEAD, state.queue.run_times.median(user) or 0.0)


Places = tuple[Placement, ...] | Refusal
"""One placement, or one for each member of a gang; or none."""


def places_of(state: GridState, job: Job) -> Places:
    """Placements of a waiting job: see `places_for`."""
    if not (state.reservations.by_job or state.balancing.left or state.scaling.joined):
        line = state.queue.line(job.id)
        length = expected(state, job.user, job.request, line.lasts, job.planned)
        return _places(state, job.request, state.index, length)
    return places_for(state, state.reservations, asked(state, job.id), state.now)


def places_for(state: GridState, kept: Reservations, ask: Ask, now: float) -> Places:
    """Placements for a request that delay no reservation of a job that comes before it. They are on no machine that
    ends before it is over, as long as there is another place or another machine may come."""
    if not ask.needs:
        return _places_but(state, kept, ask, now)
    from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

    late = lives.ending(state, ask.request, ask.needs, now)
    lasting = _places_but(state, kept, ask, now, late)
    if not late or not isinstance(lasting, Refusal):
        return lasting
    found = _places_but(state, kept, ask, now)
    comes = not isinstance(found, Refusal) and lives.may_come(state, ask.request, ask.needs, now)
    return replace(lasting, ending=True) if comes else found


def _places_but(
    state: GridState, kept: Reservations, ask: Ask, now: float, without: frozenset[str] = frozenset()
) -> Places:
    """As `places_for`, without these nodes; the node that the job has left is used only if there is no other."""
    if ask.left:
        found = _unreserved(state, kept, ask, now, without | {ask.left})
        if not isinstance(found, Refusal):
            return found
    return _unreserved(state, kept, ask, now, without)


def _unreserved(
    state: GridState, kept: Reservations, ask: Ask, now: float, without: frozenset[str] = frozenset()
) -> Places:
    refused = only_room_is_reserved(state, kept, ask, now)
    return search_unreserved(state, kept, ask, now, without) if refused is None else refused


def search_unreserved(
    state: GridState, kept: Reservations, ask: Ask, now: float, without: frozenset[str] = frozenset()
) -> Places:
    """Placements that delay no reservation of a job that comes before it, on other nodes than these."""
    hidden: list[Reservation] = []
    index: Shown = Without(state.index, without) if without else state.index
    while True:
        found = _places(state, ask.request, index, ask.expected)
        if not kept.by_job or isinstance(found, Refusal):
            break
        ways = [one for place in found if (one := in_the_way(state, kept, ask, place, now)) is not None]
        if not ways:
            break
        hidden += ways
        index = Without(state.index, without.union(one.node for one in hidden))
        if not len(index):
            found = Refusal(0)
            break
    if hidden and isinstance(found, Refusal):
        return Refusal(found.offering, tuple((one.job, one.node) for one in hidden))
    return found


def only_room_is_reserved(state: GridState, kept: Reservations, ask: Ask, now: float) -> Refusal | None:
    """The refusal of a request where all nodes are reserved, one of them alone has room, and its reservation is in the
    way, as on a grid of one node: found without a search, which would come to it."""
    request, index = ask.request, state.index
    if len(index) > len(kept.by_job) or request.constraints is not None or request.ray or request.gang:
        return None
    nodes = {one.node: state.nodes[one.node] for one in kept.by_job.values() if one.node in index}
    if len(nodes) < len(index):
        return None
    fitting = [node for node in nodes.values() if has_room(node, request, index)]
    if len(fitting) != 1 or (capacity := fitting[0].capacity) is None:
        return None
    name = fitting[0].facts.name
    one = in_the_way(state, kept, ask, Placement(name, capacity.choose(request.resources), 0.0, {}), now)
    return None if one is None else Refusal(len(index) - 1, ((one.job, name),))


def _places(state: GridState, request: Request, index: Shown, lasts: float) -> Places:
    if request.gang:
        return gang_places(state.nodes, index, request, state.policy, lasts)
    one = place(state.nodes, index, request, state.policy, NO_OVERLAY, lasts)
    return one if isinstance(one, Refusal) else (one,)


def in_the_way(state: GridState, kept: Reservations, ask: Ask, placement: Placement, now: float) -> Reservation | None:
    """The reservation that this placement would delay; None: it delays none."""
    return _delayed(state, kept, ask, placement.node, placement.grant, (), now)


def has_room_after(state: GridState, job: str, node: Node, ended: Sequence[str], now: float) -> bool:
    """Whether a waiting job could start on a node if these allocations there had ended, and would delay no reservation.
    A gang needs others, too, and may only count on the nodes that are reserved for it."""
    ask = asked(state, job)
    request, capacity = ask.request, node.capacity
    if request.gang:
        return any((one.job, one.node) == (job, node.facts.name) for one in state.reservations.by_job.values())
    if capacity is None:
        return False
    room = capacity.copy()
    for name in ended:
        room.give(node.allocations[name].grant)
    if not room.fits(request.resources, request.constraints):
        return False
    grant = room.choose(request.resources, request.constraints)
    return _delayed(state, state.reservations, ask, node.facts.name, grant, ended, now) is None


def _delayed(
    state: GridState, kept: Reservations, ask: Ask, node: str, grant: Grant, ended: Sequence[str], now: float
) -> Reservation | None:
    """The reservation that this grant on a node would delay if these allocations had ended there; None: none."""
    for one in kept.by_job.values():
        if one.node != node or ask.order <= _order(state, one.job):
            continue
        first, begins = state.jobs[one.job].request, _begins(state, kept, one)
        if ask.lasts and now + STARTING + ask.lasts <= begins:
            continue  # it is over by then
        if ask.planned and _likely_over(state, ask, one, begins, now):
            continue
        then = _free_after(state.nodes[node], [*dict.fromkeys((*one.after, *ended))])
        then.take(grant)
        if not then.fits(first.resources, first.constraints):
            return one
    return None


def needs_short(state: GridState, node: Node, jobs: Collection[str]) -> bool:
    """Whether one of these jobs has a reservation on a node and needs room there that short jobs hold: that alone, or
    beside that of as few longer ones as possible."""
    kept = state.reservations.by_job.values()
    requests = {state.jobs[one.job].request for one in kept if one.node == node.facts.name and one.job in jobs}
    if not requests:
        return False
    short, longer = list[str](), list[tuple[float, float, str]]()
    for one in node.allocations.values():
        if _is_short(state, one):
            short.append(one.id)
        else:
            longer.append((ends(state, one, state.now), one.granted, one.id))
    return any(_needs(node, request, short, [name for *_, name in sorted(longer)]) for request in requests)


def _needs(node: Node, request: Request, short: list[str], longer: list[str]) -> bool:
    def fits(ended: list[str]) -> bool:
        return _free_after(node, ended).fits(request.resources, request.constraints)

    count = next((n for n in range(len(longer) + 1) if fits(short + longer[:n])), None)
    return count is None or not fits(longer[:count])


def _likely_over(state: GridState, ask: Ask, one: Reservation, begins: float, now: float) -> bool:
    """Whether nine in ten runs like this are over when the job of a reservation can start, and that job may preempt it
    then if it is not."""
    policy, taker = state.policy.preempting, state.jobs[one.job].request.priority
    if not may(taker, ask.request.priority) or not policy.badput_budget:
        return False
    return now + STARTING + max(ask.planned, policy.min_hold) <= begins < math.inf


def passes(state: GridState, job: Job, placement: Placement) -> Reservation | None:
    """The reservation that a job passes on this node only because it is likely to be over in time; None: none."""
    if not job.planned or not state.reservations.by_job:
        return None
    ask = asked(state, job.id)
    return in_the_way(state, state.reservations, replace(ask, planned=0.0), placement, state.now)


def take_predictions(state: GridState, event: RunTimesPredicted) -> None:
    """Note how long jobs will run. Where nodes are reserved, the first of a line may start before another by that."""
    for name, planned in event.planned:
        job = state.jobs.get(name)
        if job is None:
            continue
        job.planned = planned
        if name not in state.queue:
            continue
        line = state.queue.line(name)
        if state.reservations.by_job and line.blocked and not line.excluded and state.queue.head(line)[1] == name:
            line.blocked = False
            state.fresh[name] = None


def _begins(state: GridState, kept: Reservations, one: Reservation) -> float:
    """Return when the job of a reservation can start; a gang starts when the last of its nodes has room."""
    if not state.jobs[one.job].request.gang:
        return one.at
    return max(other.at for other in kept.by_job.values() if other.job == one.job)


def _order(state: GridState, job: str) -> tuple[int, float, int]:
    standing, turn = state.queue.line(job).standing, state.queue.turns[job]
    return -standing.priority, state.queue.rank_at(standing, turn), turn


def _free_after(node: Node, ended: Sequence[str]) -> FutureCapacity:
    """Return the free capacity of a node when these allocations have ended."""
    assert node.capacity is not None
    then = FutureCapacity.of(node.capacity)
    for name in ended:
        if (allocation := node.allocations.get(name)) is not None:
            then.give(allocation.grant)
    return then


# --- when a node has room ---------------------------------------------------------------------------------------------

Plan = tuple[float, tuple[str, ...]]
"""When there is room for a request on a node at the latest, and after which allocations."""


End = tuple[float, bool, float, str]
"""When an allocation ends; whether that is known, or it is not of a short job; when it was granted, and its id: where
no end is known, that of a short job comes first."""


class Outlook:
    """The future capacities of nodes, and when they become free; the ends of a node's allocations are computed once.
    Valid until the state changes."""

    def __init__(self, state: GridState, now: float) -> None:
        self._state, self._now = state, now
        self._ends: dict[str, list[End]] = {}

    def plan(self, node: Node, request: Request) -> Plan | None:
        """Return when and how a request has room on the node; None: never."""
        if (
            node.capacity is None
            or not able(node, request)
            or not open_to(node, request, self._state.index, alone=True)
        ):
            return None
        wanted, need, at = request.resources, request.constraints, self._now
        if node.capacity.fits(wanted, need):
            return at, ()
        then, after, short = FutureCapacity.of(node.capacity), dict[str, None](), list[str]()
        for end, longer, _, name in self._ends_on(node):
            then.give(node.allocations[name].grant)
            after[name] = None
            if not longer:
                short.append(name)
            at = max(at, end)
            if then.fits(wanted, need):
                break
        else:
            return None
        for name in short if len(short) < len(after) else ():  # where longer ones are needed, not all of them may be
            then.take(node.allocations[name].grant)
            if then.fits(wanted, need):
                del after[name]
            else:
                then.give(node.allocations[name].grant)
        return at, tuple(after)

    def _ends_on(self, node: Node) -> list[End]:
        """The ends of its allocations, by time."""
        name = node.facts.name
        if (known := self._ends.get(name)) is None:
            known = self._ends[name] = sorted(map(self._end, node.allocations.values()))
        return known

    def _end(self, one: Allocation) -> End:
        end = ends(self._state, one, self._now)
        return end, end < math.inf or not _is_short(self._state, one), one.granted, one.id


def _is_short(state: GridState, allocation: Allocation) -> bool:
    job = state.jobs[allocation.job]
    return state.chains.is_short(job.user, job.request)


def ends(state: GridState, allocation: Allocation, now: float) -> float:
    """Return when an allocation ends at the latest, if it is not frozen again; infinite: unknown."""
    job = state.jobs[allocation.job]
    if allocation.state is State.LOST:
        return math.inf
    if allocation.stop is not None:
        asked = next((step.at for step in reversed(job.story) if step.state is State.STOPPING), now)
        return asked + allocation.stop.grace
    limit = time_limit(job, allocation)
    if not limit:
        return math.inf
    begins = allocation.started or max(now, allocation.granted + STARTING)
    return begins + time_suspended(job, now) + limit + job.spec.grace


def likely_ends(state: GridState, allocation: Allocation, now: float) -> float:
    """Return when an allocation is over with a probability of nine in ten, as predicted for its job; without a
    prediction, or if it runs for longer already, when it ends at the latest."""
    latest, job = ends(state, allocation, now), state.jobs[allocation.job]
    if not job.planned or allocation.stop is not None or allocation.state is State.LOST:
        return latest
    likely = (allocation.started or max(now, allocation.granted + STARTING)) + time_suspended(job, now) + job.planned
    return min(latest, likely) if likely > now else latest


# --- making and keeping reservations ----------------------------------------------------------------------------------


def review(state: GridState, least: Resources, now: float) -> tuple[Reservations, list[str]]:
    """Re-check all reservations: those that stay, with new start times, and the nodes that became free for others."""
    if not state.reservations.by_job:
        return state.reservations, []
    by_job, free, left = dict[str, Reservation](), list[str](), state.reservations.left
    outlook = Outlook(state, now)
    for job, old in state.reservations.by_job.items():
        request = state.jobs[job].request
        if request.resources.fits(least) and not request.gang:
            continue  # no other request is smaller
        if old.node not in state.freed_nodes and old.node in state.index and now < old.seen + SEEN_EVERY:
            by_job[job] = old
            continue
        node = state.nodes[old.node]
        plan = outlook.plan(node, request) if node.usable else None
        if plan is not None:
            progress = now if len(plan[1]) < len(old.after) else old.progress
            stuck = plan[0] == math.inf and now >= progress + STUCK and _another(state, old, outlook)
            if not stuck:
                by_job[job] = Reservation(old.job, old.node, *plan, progress, now)
                if plan[0] > old.at:
                    free.append(old.node)  # longer jobs may be backfilled now
                continue
            left = old.node
        free.append(old.node)
    for one in [one for one in by_job.values() if state.jobs[one.job].request.gang]:
        mine = [member for member, other in by_job.items() if other.job == one.job]
        if len(mine) < state.jobs[one.job].request.gang:  # a gang needs all of its nodes, or others
            free += [by_job.pop(member).node for member in mine]
    return Reservations(by_job=by_job, look_again=state.reservations.look_again, left=left), free


def _another(state: GridState, old: Reservation, outlook: Outlook) -> bool:
    """Whether another node would do."""
    request = state.jobs[old.job].request
    others = (state.nodes[name] for name in _nearest(state, request) if name != old.node)
    return any(outlook.plan(node, request) for node in others)


def keep_first(state: GridState, kept: Reservations, least: Resources, now: float) -> Reservations:
    """Reserve a node for the first job of each class, if it was refused in an earlier pass."""
    for priority, order in state.queue.order.items():
        first = state.queue.first(priority) if order else None
        line = None if first is None else state.queue.first_line(first)
        if line is not None and line.blocked:
            kept = keep_for(state, kept, line, least, now)
    return kept


def any_from(state: GridState, kept: Reservations, line: Line, now: float) -> bool:
    """Whether `keep_for` may reserve a node for the first job of this line, or of one that comes after it."""
    if now < kept.look_again:
        return False
    turn = state.queue.head(line)[0]
    mine = -line.standing.priority, state.queue.rank_at(line.standing, turn), turn
    before = [one for one in kept.by_job.values() if _order(state, one.job) <= mine]
    return len({one.job for one in before}) < MOST and len({one.node for one in before}) < len(state.index)


def keep_for(state: GridState, kept: Reservations, line: Line, least: Resources, now: float) -> Reservations:
    """Reserve a node for the first job of a line, which is the first of its user in its class and cannot start; for a
    gang, one for each member. Reservations of jobs that come after it make way. None is made if the user has one there
    that comes before, if `MOST` jobs that come before have one, or if no request is smaller (`least` is the lower bound
    of all), so that none could delay it."""
    request, standing = line.request, line.standing
    if not state.quotas.allowed(standing.user, line.operator).reserves:
        return kept
    if now < kept.look_again or (request.resources.fits(least) and not request.gang):
        return kept
    turn, job = state.queue.head(line)
    mine = -standing.priority, state.queue.rank_at(standing, turn), turn
    orders = {one.job: _order(state, one.job) for one in kept.by_job.values()}
    own = {name for name in orders if _same_user(state.queue.line(name).standing, standing)}
    before = {name for name, order in orders.items() if order <= mine}
    if own & before or len(before) >= MOST:
        return kept
    rest = orders.keys() - own
    gone = own if len(rest) < MOST else own | {max(rest, key=orders.__getitem__)}
    others = {name: one for name, one in kept.by_job.items() if one.job not in gone}
    holders = {one.node: one.job for one in others.values()}
    names, outlook, late = _nearest(state, request), Outlook(state, now), frozenset[str]()
    if state.scaling.joined:
        from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

        late = lives.ending(state, request, lives.needs(state, line), now)
    plans: list[tuple[bool, float, int, str, tuple[str, ...]]] = []
    for name in names:
        if (holder := holders.get(name, "")) in before:
            continue  # one reservation a node: by those of two, more would be kept waiting than either needs
        plan = outlook.plan(state.nodes[name], request)
        if plan is not None:
            plans.append((name == kept.left or bool(holder) or name in late, plan[0], len(plan[1]), name, plan[1]))
    many = max(1, request.gang)
    if found := len(plans) >= many:
        chosen = sorted(plans)[:many]
        gone |= {holders[node] for *_, node, _ in chosen if node in holders}
        others = {name: one for name, one in others.items() if one.job not in gone}
        for rank, (_, at, _, node, after) in enumerate(chosen):
            member = f"{state.jobs[job].group}_{rank}" if request.gang else job
            others[member] = Reservation(job, node, at, after, now, now)
    again = now + len(names) * COMPARE_SECONDS if len(names) > FEW else kept.look_again
    return Reservations(by_job=others if found else kept.by_job, look_again=again, left=kept.left)


def keep_waiting(state: GridState, line: Line, turn: int, reserved: tuple[Kept, ...]) -> None:
    """The first job of a line, with this turn, was refused because of these reservations."""
    standing = line.standing
    for kept in reserved:
        behind = state.queue.behind_reservation.setdefault(kept, {})
        behind[standing] = min(turn, behind.get(standing, turn))


def released(state: GridState, user: str = "") -> list[str]:
    """The nodes with room for lines that were kept waiting by a reservation there, and are not any more: it is gone, or
    they come before its job by now. `user`: only that user's standings were ranked since the last call."""
    if not state.queue.behind_reservation:
        return []
    found = dict[str, None]()
    there = {(one.job, one.node) for one in state.reservations.by_job.values()}
    for kept, behind in [*state.queue.behind_reservation.items()]:
        job, node = kept
        if kept not in there:
            over = [standing for standing in behind if standing.count]
        else:
            order, whose = _order(state, job), state.queue.line(job).standing.user
            over = [
                standing
                for standing, turn in behind.items()
                if not standing.count or (user in ("", whose, standing.user) and _at_best(standing, turn) < order)
            ]
        for standing in over:
            del behind[standing]
            if standing.count and node in state.index:
                found[node] = None
        if not behind or kept not in there:
            del state.queue.behind_reservation[kept]
    return [*found]


def _at_best(standing: Standing, turn: int) -> tuple[int, float, int]:
    """The sort key of the jobs of a standing from this turn on: one may be overdue by now."""
    overdue, priority = standing.overdue, -standing.priority
    return (priority, standing.due - OVERDUE, overdue) if overdue >= turn else (priority, standing.rank, turn)


def _same_user(one: Standing, other: Standing) -> bool:
    return (one.user, one.priority) == (other.user, other.priority)


def _nearest(state: GridState, request: Request) -> list[str]:
    """The nodes to compare: all of a small grid, else those where the largest part of the request is free."""
    if len(state.index) <= COMPARED_MOST:
        return [name for name, node in state.nodes.items() if name in state.index and able(node, request)]
    wanted, found = request.resources, dict[str, None]()
    user = state.index.whose(request.user)
    whose = Trait(user=user) if user is not None else None
    for part, of in _PARTS:
        gpu = wanted.gpu * part // of
        less = Resources(
            wanted.cpu * part // of, wanted.memory * part // of, gpu // MILLI * MILLI if gpu > MILLI else gpu
        )
        for name in state.index.search(less, COMPARED_MOST, whose):
            if able(state.nodes[name], request):
                found[name] = None
            if len(found) >= COMPARED_MOST:
                return list(found)
    return list(found)


# --- explaining -------------------------------------------------------------------------------------------------------


def kept_for(state: GridState, job: str) -> Reservation | None:
    """The reservation of this job; None: it has none."""
    return state.reservations.by_job.get(job)


def words(state: GridState, kept: Reservation) -> str:
    """Describe a reservation: the nodes, and when the job can start there."""
    mine = [one for one in state.reservations.by_job.values() if one.job == kept.job]
    names = [name for one in mine for name in one.after]
    waited_for = [there for name in names if (there := state.allocations.get(name)) is not None]
    # What was frozen since the last check ends later than computed then.
    at = max(_begins(state, state.reservations, kept), *(ends(state, one, state.now) for one in waited_for), 0.0)
    frozen = [one.id for one in waited_for if state.jobs[one.job].active.suspended is not None]
    limit = f"at the earliest: {frozen[0]} is suspended" if frozen else "at the latest"
    when = f", where it can start at {clock(at, state.now)} {limit}" if at < math.inf else ""
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
