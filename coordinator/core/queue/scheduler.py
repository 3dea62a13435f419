"""The scheduling pass: starts the waiting jobs that fit, in the order of service. A refused line is not tried again
before a node with room for it has freed capacity, and a pass ends when no request fits anywhere."""

import copy

from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lending import revocable
from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.lifecycle.attempts import start
from distributed_grid.coordinator.core.model import Job, Node, Placement, Refusal
from distributed_grid.coordinator.core.placement.matching import has_room
from distributed_grid.coordinator.core.queue import ranking, rights
from distributed_grid.coordinator.core.queue.order import CLASSES_IN_ORDER, Order, OrderOfNew
from distributed_grid.coordinator.core.queue.queue import Line, Reranked, Reservation, lesser
from distributed_grid.coordinator.core.queue.reservations import (
    Ask,
    Places,
    any_from,
    expected,
    keep_first,
    keep_for,
    keep_waiting,
    passes,
    places_for,
    places_of,
    released,
    review,
)
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import clock, format_duration

Hopeless = tuple[Resources, Constraints | None, bool, str | None]
"""A request that fits nowhere in this pass: amount, constraints, whether it needs Ray, and whose jobs the nodes run."""
HOPELESS_KEPT = 8
"""Number of refused requests remembered within a pass."""


def match(state: GridState) -> None:
    """Start what fits: classes by priority, standings by rank, their lines by the turn of the first job."""
    if not state.queue.lines and not state.reservations.by_job:  # nobody waits
        state.fresh, state.freed_nodes = {}, {}
        return
    fresh, state.fresh = state.fresh, {}
    state.reservations, free = review(state, state.queue.least, state.now)
    names, state.freed_nodes = [*state.freed_nodes, *(name for name in free if name in state.index)], {}
    ranking.rank(state)
    grown = [*dict.fromkeys((*names, *released(state)))]
    before = state.reservations.by_job
    refused = _serve_all(state, grown) if grown else _serve_new(state, fresh)
    if before is not state.reservations.by_job:  # one may have made way
        state.freed_nodes |= dict.fromkeys(released(state))
    for name in fresh:
        waiting = state.jobs.get(name)
        if waiting is not None and waiting.state is State.WAITING and name not in state.fresh:
            state.queue.line(name).blocked = True
            if waiting.request.immediate and not _was_placed(state, waiting):
                why = reasons.find(state, waiting.request, name)
                cause = Cause.NOT_JOINED if why.code == "Unjoined" else Cause.NOT_PLACED
                outcomes.finish(state, waiting, Outcome(cause=cause, text=why.text, started=False))
    reasons.announce(state, [line for line in refused if line.count], fresh)


def _was_placed(state: GridState, waiting: Job) -> bool:
    """Whether an immediate job was placed in time and was requeued since."""
    whole = outcomes.gang_members(state, waiting) if waiting.request.gang else (waiting,)
    return any(one.retried or one.evicted for one in whole)


def would(state: GridState, request: Request, user: str, lasts: float, now: float) -> Places:
    """Return where a job of this user would start if it were submitted now. Read-only. `lasts`: its maximum duration
    with its grace, in seconds; 0: unlimited."""
    seen, ask = next_pass(state, request, user, lasts, now)
    return places_for(seen, seen.reservations, ask, now)


def next_pass(state: GridState, request: Request, user: str, lasts: float, now: float) -> tuple[GridState, Ask]:
    """Return what a pass would see if a job of this user were submitted now: the state with the ranks as of now and the
    reservations for jobs before it, and the `Ask` of that job. Read-only."""
    seen = copy.copy(state)  # an overlay: shares everything except what is replaced here
    queue = seen.queue = Reranked(state.queue, ranking.ranks_as_of(state, now))
    there = queue.standings.get(queue.stand_of(user, request.priority, lasts))
    if there is None:
        rank = ranking.rank_of_new(state, request, user, lasts, now)
    else:
        rank = queue.rank_at(there, state.next_turn)
    least = lesser(queue.least, request.resources) if queue.lines else request.resources
    seen.reservations = keep_first(seen, review(seen, least, now)[0], least, now)
    length = expected(state, user, request, lasts)
    needs = lasts if state.scaling.joined else 0.0
    return seen, Ask(request, lasts, (-request.priority, rank, state.next_turn), length, needs=needs)


# --- a pass -----------------------------------------------------------------------------------------------------------


def _serve_new(state: GridState, fresh: dict[str, None]) -> list[Line]:
    """A pass without freed capacity: only lines with a new job are tried. Returns the refused lines."""
    lines = {id(line): line for line in map(state.queue.line, fresh) if not line.blocked and not line.excluded}
    order = OrderOfNew(state.queue, lines.values())
    hopeless: list[Hopeless] = []
    refused: list[Line] = []
    state.reservations = keep_first(state, state.reservations, state.queue.least, state.now)
    if grown := released(state):  # a reservation has made way: those that waited behind it have their turn, too
        return _serve_all(state, grown)
    while (line := order.first()) is not None:
        if not _serve(state, line, hopeless):
            refused.append(line)
            order.skip(line)
            if state.queue.first_line(line.standing) is line and (grown := _reserve(state, line)):
                return refused + _serve_all(state, grown)
        elif grown := released(state, line.standing.user):
            return refused + _serve_all(state, grown)
        else:
            order.served(line)
    return refused


def _serve_all(state: GridState, grown: list[str]) -> list[Line]:
    """Run a pass after these nodes gained capacity: all lines in order, except blocked ones that fit on none of them.
    It restarts after a reservation was dropped, or a grant moved another line to the front. Returns the refused
    lines."""
    hopeless, refused, more = list[Hopeless](), dict[Line, None](), grown
    while more:
        more = _serve_in_order(state, [state.nodes[name] for name in grown], hopeless, refused)
        grown = [*dict.fromkeys((*grown, *more))]
    return [*refused]


def _serve_in_order(
    state: GridState, grown: list[Node], hopeless: list[Hopeless], refused: dict[Line, None]
) -> list[str]:
    """Serve the lines in order, until no request fits anywhere, or none may start and none may get a reservation; or
    until there are nodes on which lines are not kept waiting any more: returns these."""
    queue, more = state.queue, list[str]()
    capacities = [node.capacity for node in grown if node.capacity is not None]

    def may_fit(need: Resources) -> bool:
        return any(capacity.fits(need) for capacity in capacities)

    def may_start() -> bool:
        """Whether a line may start: one that is not blocked, or that may fit a node that has grown."""
        return any(need is None or may_fit(need) for need in queue.needs) or any(
            standing.open for standing in queue.standings.values()
        )

    order, full = Order(queue, may_fit), False
    some_start, some_reserve = may_start(), True
    for priority in CLASSES_IN_ORDER:
        while not (full or more) and (some_start or some_reserve):
            if (line := order.first(priority, some_reserve)) is None:
                break
            if line.blocked and not (some_start and _has_grown(state, grown, line.request)):
                starts = False
            elif starts := _serve(state, line, hopeless):
                order.served(line)
                full = len(queue.lines) > 1 and not state.index.candidates(queue.least, 1)
                some_start, some_reserve = may_start(), True
                more = released(state, line.standing.user)
            else:
                refused[line] = None
            if not starts and order.skip(line) and some_reserve:
                more = _reserve(state, line)
                some_reserve = any_from(state, state.reservations, line, state.now)
    order.end()
    return more


def _reserve(state: GridState, line: Line) -> list[str]:
    """Reserve a node for the first job of a line, if it may have one. Returns the nodes on which lines are not kept
    waiting any more, since another reservation has made way: they come before those that are tried next."""
    before = state.reservations.by_job
    state.reservations = keep_for(state, state.reservations, line, state.queue.least, state.now)
    return released(state) if state.reservations.by_job is not before else []


def _has_grown(state: GridState, grown: list[Node], request: Request) -> bool:
    return any(has_room(node, request, state.index) for node in grown)


def _serve(state: GridState, line: Line, hopeless: list[Hopeless]) -> bool:
    """Start the first job of a line, if there is room; of a gang, all members or none. Within a pass capacity only
    shrinks, so a request that contains a hopeless one with the same constraints, or none, is not tried."""
    wanted, nodes, by_ray = line.request.resources, line.request.constraints, line.request.ray
    turn, name = state.queue.head(line)
    job, overdue = state.jobs[name], turn == line.standing.overdue
    if not rights.admits(state, job):
        if name == line.standing.head:  # the next one may be overdue, too
            ranking.rank_again(state, job.user)
        return False
    # Where it was hopeless among the nodes that run one user's jobs, it is among those that run everyone's.
    user = state.index.whose(line.request.user)
    if not hopeless or not any(
        less.fits(wanted) and (of is None or of == nodes) and (by_ray or not ray) and (whose == user or not user)
        for less, of, ray, whose in hopeless
    ):
        found = places_of(state, job)
        if not isinstance(found, Refusal):
            if (passed := passes(state, job, found[0])) is not None:
                state.tell(job, _early(job, passed, state.now))
            if state.scaling.joined:
                _tell_end(state, line, job, found)
            if _start(state, job, found):
                _has_started(state, line, job, overdue)
                return True
        elif found.reserved:
            keep_waiting(state, line, turn, found.reserved)
        elif not (line.request.gang or line.request.joins or found.ending) and len(hopeless) < HOPELESS_KEPT:
            hopeless.append((wanted, nodes, by_ray, user))
    if (on_slack := revocable.place(state, line.request, state.now)) is not None:
        start(state, job, on_slack)
        _has_started(state, line, job, overdue)
        return True
    line.blocked = True
    return False


def _has_started(state: GridState, line: Line, job: Job, overdue: bool) -> None:
    line.blocked, line.reason = False, None  # why the first waited is not why the next one does
    if overdue:
        state.chains.overdue[job.allocation] = (state.now, line.standing.served_at)
        line.standing.served_at = state.now
    ranking.rank_again(state, job.user)


def _early(job: Job, passed: Reservation, now: float) -> str:
    return (
        f"starts before {passed.job}, for which {passed.node} is reserved from {clock(passed.at, now)} on:"
        f" nine in ten runs like it end within {format_duration(round(job.planned))}"
    )


def _tell_end(state: GridState, line: Line, job: Job, found: tuple[Placement, ...]) -> None:
    """Publish to a job that its machine ends before it may be over."""
    from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

    needs = lives.needs(state, line)
    late = lives.ending(state, line.request, needs, state.now)
    for one in found:
        if one.node in late:
            said = lives.words(state, one.node, needs, state.now)
            state.tell(job, f"starts on {one.node}, though {said}: no other place is free, and no machine comes for it")
            return


def _start(state: GridState, job: Job, found: tuple[Placement, ...]) -> bool:
    """Start a job on these placements. False: no rendezvous port is left for its gang."""
    if not job.request.gang:
        start(state, job, found[0])
        return True
    met = outcomes.gang_meeting(state, job, [placement.node for placement in found])
    if met is not None:
        outcomes.start_gang(state, job, found, met)
    return met is not None
