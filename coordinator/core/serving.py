"""A pass over those who wait: who can be placed is started, in order. A line of equal requests that was refused is not
looked at again before a node has grown that has room for it, and a pass ends where there is no room left for anybody.
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import reasons
from distributed_grid.coordinator.core.matching import Placement, place
from distributed_grid.coordinator.core.queue import Entry, Line
from distributed_grid.coordinator.core.room import Room
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.resources import Resources

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

HOPELESS_KEPT = 8
"""Refused amounts that are remembered within a pass."""


def match(ledger: "Ledger") -> None:
    """Place who can be placed: lines by priority, then by the turn of their first job."""
    fresh, ledger.fresh = ledger.fresh, {}
    rooms = [room for room in (ledger.nodes[name].room for name in ledger.grown) if room is not None]
    ledger.grown = {}
    refused = _serve_all(ledger, rooms) if rooms else _serve_new(ledger, fresh)
    for name in fresh:
        waiting = ledger.jobs.get(name)
        if waiting is not None and waiting.state is State.WAITING:
            ledger.queue.line(name).blocked = True
            if waiting.request.immediate and not waiting.retried:  # it was placed at once, as was asked
                why = reasons.find(ledger, waiting.request).text
                ledger.finish(waiting, Outcome(cause=Cause.NOT_PLACED, text=why, started=False))
    reasons.announce(ledger, [line for line in refused if line.count], fresh)


def _serve_new(ledger: "Ledger", fresh: dict[str, None]) -> list[Line]:
    """No room has grown: only lines with a new job can have anybody to place. Those that could not."""
    lines = {id(line): line for line in map(ledger.queue.line, fresh) if not line.blocked}
    heads = [(-line.request.priority, ledger.queue.head(line)[0], line) for line in lines.values()]
    heapify(heads)
    hopeless: list[Resources] = []
    refused: list[Line] = []
    while heads:
        line = heads[0][2]
        if not _serve(ledger, line, hopeless):
            refused.append(heappop(heads)[2])
        elif line.count:
            heapreplace(heads, (-line.request.priority, ledger.queue.head(line)[0], line))
        else:
            heappop(heads)
    return refused


def _serve_all(ledger: "Ledger", rooms: list[Room]) -> list[Line]:
    """These rooms have grown. All lines in order, but for those refused before that none of them has room for, and
    only until there is no room for anybody. Those that were refused."""
    order, hopeless = ledger.queue.order, list[Resources]()
    passed: list[Entry] = []
    refused: list[Line] = []
    while (line := ledger.queue.first()) is not None:
        if line.blocked and not any(room.fits(line.request.resources) for room in rooms):
            passed.append(heappop(order))
        elif not _serve(ledger, line, hopeless):
            passed.append(heappop(order))
            refused.append(line)
        elif len(ledger.queue.lines) > 1 and not ledger.index.candidates(ledger.queue.least, 1):
            break
    for entry in passed:
        heappush(order, entry)
    return refused


def _serve(ledger: "Ledger", line: Line, hopeless: list[Resources]) -> bool:
    """Start the first job of a line, if there is room. Within a pass room only shrinks: what is at least as much as
    something hopeless need not be tried."""
    wanted = line.request.resources
    if not any(less.fits(wanted) for less in hopeless):
        found = place(ledger.nodes, ledger.index, line.request, ledger.policy)
        if isinstance(found, Placement):
            line.blocked = False
            ledger.start(ledger.jobs[ledger.queue.head(line)[1]], found)
            return True
        if len(hopeless) < HOPELESS_KEPT:
            hopeless.append(wanted)
    line.blocked = True
    return False
