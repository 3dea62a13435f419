"""A pass over those who wait: who can be placed is started, in order. A line of equal requests that was refused is not
looked at again before a node has grown that has room for it, and a pass ends where there is no room left for anybody.
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import gangs, reasons
from distributed_grid.coordinator.core.fairness import RANKED_EVERY, aged
from distributed_grid.coordinator.core.feasible import Asked
from distributed_grid.coordinator.core.gang_places import places
from distributed_grid.coordinator.core.matching import Placement, Refusal, has_room, place
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.queue import Line, Standing
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

HOPELESS_KEPT = 8
"""Refused amounts that are remembered within a pass."""


def match(ledger: "Ledger") -> None:
    """Place who can be placed: classes by their priority, users by their share, their lines by the turn of the first
    job."""
    fresh, ledger.fresh = ledger.fresh, {}
    grown = [ledger.nodes[name] for name in ledger.grown]
    ledger.grown = {}
    _rank(ledger)
    refused = _serve_all(ledger, grown) if grown else _serve_new(ledger, fresh)
    for name in fresh:
        waiting = ledger.jobs.get(name)
        if waiting is not None and waiting.state is State.WAITING:
            ledger.queue.line(name).blocked = True
            if waiting.request.immediate and not waiting.retried:  # it was placed at once, as was asked
                why = reasons.find(ledger, waiting.request).text
                ledger.finish(waiting, Outcome(cause=Cause.NOT_PLACED, text=why, started=False))
    reasons.announce(ledger, [line for line in refused if line.count], fresh)


# --- who comes before whom --------------------------------------------------------------------------------------------


def _rank(ledger: "Ledger") -> None:
    """Rank those whose share has changed, and now and then all: shares change by themselves."""
    shares = ledger.shares
    if ledger.now >= shares.ranked + RANKED_EVERY:
        shares.ranked = ledger.now
        for standing in list(ledger.queue.standings.values()):
            _rank_one(ledger, standing)
    else:
        for user in shares.stale:
            _rank_user(ledger, user)
    shares.stale = {}


def _rank_user(ledger: "Ledger", user: str) -> None:
    for priority in Priority:
        standing = ledger.queue.standings.get((priority, user))
        if standing is not None:
            _rank_one(ledger, standing)


def _rank_one(ledger: "Ledger", standing: Standing) -> None:
    line = ledger.queue.first_line(standing)
    if line is not None:
        waits_since = ledger.jobs[ledger.queue.head(line)[1]].submitted
        share = ledger.shares.share(standing.user, ledger.now, ledger.policy.sharing)
        ledger.queue.rank(standing, share - aged(ledger.now - waits_since, ledger.policy.sharing))


# --- a pass -----------------------------------------------------------------------------------------------------------


def _serve_new(ledger: "Ledger", fresh: dict[str, None]) -> list[Line]:
    """No room has grown: only lines with a new job can have anybody to place. Those that could not."""
    lines = {id(line): line for line in map(ledger.queue.line, fresh) if not line.blocked}
    heads = [(*_place(ledger, line), line) for line in lines.values()]
    heapify(heads)
    hopeless: list[Asked] = []
    refused: list[Line] = []
    while heads:
        line = heads[0][-1]
        if (now := _place(ledger, line)) != heads[0][:-1]:  # its user was granted something
            heapreplace(heads, (*now, line))
        elif not _serve(ledger, line, hopeless):
            refused.append(heappop(heads)[-1])
        elif line.count:
            heapreplace(heads, (*_place(ledger, line), line))
        else:
            heappop(heads)
    return refused


def _place(ledger: "Ledger", line: Line) -> tuple[int, float, int]:
    """Where the first of a line stands in the order of service."""
    return -line.request.priority, line.standing.rank, ledger.queue.head(line)[0]


def _serve_all(ledger: "Ledger", grown: list[Node]) -> list[Line]:
    """The rooms of these nodes have grown. All lines in order, but for those refused before that none of them has room
    for, and only until there is no room for anybody. Those that were refused."""
    queue, hopeless = ledger.queue, list[Asked]()
    passed: list[tuple[int, Line]] = []
    done: list[tuple[float, int, Standing]] = []
    refused: list[Line] = []
    served = False
    for priority, order in queue.order.items():
        while (standing := queue.first(priority)) is not None:
            line = queue.first_line(standing)
            if line is None:
                done.append(heappop(order))
            elif line.blocked and not _has_grown(ledger, grown, line.request):
                passed.append(heappop(standing.lines))
            elif not _serve(ledger, line, hopeless):
                passed.append(heappop(standing.lines))
                refused.append(line)
            elif len(queue.lines) > 1 and not ledger.index.candidates(queue.least, 1):
                served = True
                break
        if served:
            break
    for turn, line in passed:
        if line.entered == turn:
            heappush(line.standing.lines, (turn, line))
    for rank, turn, standing in done:
        if standing.place == (rank, turn):
            heappush(queue.order[standing.priority], (rank, turn, standing))
    return refused


def _has_grown(ledger: "Ledger", grown: list[Node], request: Request) -> bool:
    return any(has_room(node, request, ledger.index) for node in grown)


def _serve(ledger: "Ledger", line: Line, hopeless: list[Asked]) -> bool:
    """Start the first job of a line, if there is room. Within a pass room only shrinks: what is at least as much as
    something hopeless need not be tried, if that was asked of any node, or of the same ones."""
    wanted, asked = line.request.resources, line.request.constraints
    if line.request.gang:
        return _serve_gang(ledger, line, hopeless)
    if not any(less.fits(wanted) and (of is None or of == asked) for less, of in hopeless):
        found = place(ledger.nodes, ledger.index, line.request, ledger.policy)
        if isinstance(found, Placement):
            line.blocked = False
            ledger.start(ledger.jobs[ledger.queue.head(line)[1]], found)
            _rank_user(ledger, line.standing.user)
            return True
        if len(hopeless) < HOPELESS_KEPT:
            hopeless.append((wanted, asked))
    line.blocked = True
    return False


def _serve_gang(ledger: "Ledger", line: Line, hopeless: list[Asked]) -> bool:
    """Start all members of the first gang of a line, or none."""
    wanted, asked = line.request.resources, line.request.constraints
    if not any(less.fits(wanted) and (of is None or of == asked) for less, of in hopeless):
        found = places(ledger.nodes, ledger.index, line.request, ledger.policy)
        if not isinstance(found, Refusal) and gangs.start(ledger, ledger.jobs[ledger.queue.head(line)[1]], found):
            line.blocked = False
            _rank_user(ledger, line.standing.user)
            return True
    line.blocked = True
    return False
