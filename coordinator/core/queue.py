"""The jobs that wait, in lines of equal requests: if the first of a line cannot be placed, none behind it can.

So a pass over the queue costs the number of different requests, however many jobs there are.
"""

from heapq import heapify, heappop, heappush

from distributed_grid.protocol.jobs import Reason, Request


class Line:
    """Jobs with the same request, by their turn. `blocked`: the first was refused, and no room has grown since."""

    __slots__ = ("blocked", "count", "heap", "reason", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.heap: list[tuple[int, str]] = []
        self.count = 0
        self.blocked = False
        self.reason: Reason | None = None
        """Why the first of the line waits, as last told."""


class Queue:
    """All jobs that wait. A job's turn is its number in the order of submission, and stays its own for life."""

    def __init__(self) -> None:
        self.lines: dict[Request, Line] = {}
        self.turns: dict[str, int] = {}
        self._line_of: dict[str, Line] = {}
        self._ranks: dict[str, int] = {}
        self._ranked = False

    def __len__(self) -> int:
        return len(self.turns)

    def __contains__(self, job: str) -> bool:
        return job in self.turns

    def add(self, job: str, request: Request, turn: int) -> Line:
        """This job waits (again)."""
        line = self.lines.get(request)
        if line is None:
            line = self.lines[request] = Line(request)
        heappush(line.heap, (turn, job))
        line.count += 1
        self.turns[job] = turn
        self._line_of[job] = line
        self._ranked = False
        return line

    def remove(self, job: str) -> None:
        """This job waits no more. Its entry is left in the heap until it surfaces or there are too many such."""
        line = self._line_of.pop(job)
        del self.turns[job]
        line.count -= 1
        self._ranked = False
        if not line.count:
            del self.lines[line.request]
        elif len(line.heap) > 2 * line.count + 16:
            line.heap = [entry for entry in line.heap if self._waits(entry, line)]
            heapify(line.heap)

    def line(self, job: str) -> Line:
        """The line a waiting job stands in."""
        return self._line_of[job]

    def _waits(self, entry: tuple[int, str], line: Line) -> bool:
        return self.turns.get(entry[1]) == entry[0] and self._line_of[entry[1]] is line

    def head(self, line: Line) -> tuple[int, str]:
        """Turn and job of the first of a line."""
        while not self._waits(line.heap[0], line):
            heappop(line.heap)
        return line.heap[0]

    def ahead(self, job: str) -> int:
        """How many waiting jobs are served before this one. Counted for all at once, and kept until the queue moves."""
        if not self._ranked:
            order = sorted((-self._line_of[name].request.priority, turn, name) for name, turn in self.turns.items())
            self._ranks = {entry[2]: rank for rank, entry in enumerate(order)}
            self._ranked = True
        return self._ranks[job]
