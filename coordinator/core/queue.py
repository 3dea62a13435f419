"""The jobs that wait, in lines of equal requests: if the first of a line cannot be placed, none behind it can.

So a pass over the queue costs the number of different requests, however many jobs there are.
"""

from heapq import heapify, heappop, heappush, heapreplace

from distributed_grid.protocol.jobs import Reason, Request
from distributed_grid.protocol.resources import Resources

BLOCK = 512

Entry = tuple[int, int, "Line"]
"""A line in the order of service: its priority, negated, the turn of its first job, and itself."""


class Line:
    """Jobs with the same request, by their turn. `blocked`: the first was refused, and no room has grown since."""

    __slots__ = ("blocked", "count", "entered", "heap", "reason", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.heap: list[tuple[int, str]] = []
        self.count = 0
        self.blocked = False
        self.entered = -1
        """The turn of its one entry in the order of service that counts; below zero: it has none."""
        self.reason: Reason | None = None
        """Why the first of the line waits, as last told."""

    def __lt__(self, other: "Line") -> bool:
        """For entries with the same turn, of which one does not count any more."""
        return False


class Queue:
    """All jobs that wait. A job's turn is its number in the order of submission, and stays its own for life."""

    def __init__(self) -> None:
        self.lines: dict[Request, Line] = {}
        self.turns: dict[str, int] = {}
        self._line_of: dict[str, Line] = {}
        self.order: list[Entry] = []
        """A heap. Entries are not taken out when they become untrue; `first` sees to that."""
        self.lowest = Resources()
        self.departed = 0
        self._blocks: dict[int, dict[int, dict[int, None]]] = {}
        """The turns that wait, by priority and in blocks of following turns: `ahead` counts blocks, not jobs."""

    def __len__(self) -> int:
        return len(self.turns)

    def __contains__(self, job: str) -> bool:
        return job in self.turns

    def add(self, job: str, request: Request, turn: int) -> Line:
        """This job waits (again)."""
        line = self.lines.get(request)
        if line is None:
            line = self.lines[request] = Line(request)
            self._note_least(request.resources)
        if not 0 <= line.entered <= turn:
            line.entered = turn
            heappush(self.order, (-request.priority, turn, line))
        heappush(line.heap, (turn, job))
        line.count += 1
        self.turns[job] = turn
        self._line_of[job] = line
        self._blocks.setdefault(request.priority, {}).setdefault(turn // BLOCK, {})[turn] = None
        return line

    def remove(self, job: str) -> None:
        """This job waits no more. Its entry is left in the heap until it surfaces or there are too many such."""
        line = self._line_of.pop(job)
        turn = self.turns.pop(job)
        blocks = self._blocks[line.request.priority]
        del blocks[turn // BLOCK][turn]
        if not blocks[turn // BLOCK]:
            del blocks[turn // BLOCK]
        line.count -= 1
        if not line.count:
            del self.lines[line.request]
            line.entered = -1
            self.departed += 1
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

    def first(self) -> Line | None:
        """The line to be served first, which is `order[0]` then; None: nobody waits."""
        order = self.order
        while order:
            priority, turn, line = order[0]
            if turn != line.entered:
                heappop(order)
            elif (now := self.head(line)[0]) != turn:
                line.entered = now
                heapreplace(order, (priority, now, line))
            else:
                return line
        return None

    @property
    def least(self) -> Resources:
        """Of each kind, no more than anybody wants: where this finds no room, nobody does."""
        if self.departed > len(self.lines):
            self.departed = 0
            self.lowest = Resources()
            for number, request in enumerate(self.lines):
                self.lowest = _lesser(self.lowest, request.resources) if number else request.resources
        return self.lowest

    def _note_least(self, wanted: Resources) -> None:
        if len(self.lines) == 1:
            self.lowest, self.departed = wanted, 0
        else:
            self.lowest = _lesser(self.lowest, wanted)

    def ahead(self, job: str) -> int:
        """How many waiting jobs are served before this one."""
        turn, priority = self.turns[job], self._line_of[job].request.priority
        count = 0
        for other, blocks in self._blocks.items():
            if other > priority:
                count += sum(map(len, blocks.values()))
            elif other == priority:
                mine = turn // BLOCK
                count += sum(len(block) for number, block in blocks.items() if number < mine)
                count += sum(before < turn for before in blocks[mine])
        return count


def _lesser(one: Resources, other: Resources) -> Resources:
    if one.fits(other):
        return one
    return Resources(min(one.cpu, other.cpu), min(one.memory, other.memory), min(one.gpu, other.gpu))
