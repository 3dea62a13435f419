"""The order of service in a pass: either over the lines with a new job, or over all lines. If the first line of a
user's class cannot start, of the lines after it only those are visited that may fit a node with new room; an index by
needs keeps the others out of the pass. If no reservation can be made either, standings without such a line are skipped
as a whole."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from distributed_grid.coordinator.core.queue.queue import NOWHERE, Entry, Line, Queue, Standing
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import Resources

CLASSES_IN_ORDER = tuple(reversed(Priority))
FEW = 32
"""Standings with at most this many lines are visited without an index."""
MayFit = Callable[[Resources], bool]
"""Whether needs this small fit a node with new room."""


def place_in_order(queue: Queue, line: Line) -> tuple[int, float, int]:
    """Sort key of a line in the order of service."""
    turn = queue.head(line)[0]
    return -line.request.priority, queue.rank_at(line.standing, turn), turn


class OrderOfNew:
    """Some lines, in the order of service. Call `first`, then `skip` or `served` for the line it gave."""

    __slots__ = ("_heap", "_lines", "_queue")

    def __init__(self, queue: Queue, lines: Iterable[Line]) -> None:
        self._queue = queue
        self._lines: dict[Standing, list[Entry]] = {}
        """By standing, as heaps; none is empty."""
        for line in lines:
            self._lines.setdefault(line.standing, []).append((queue.head(line)[0], line))
        for entries in self._lines.values():
            heapify(entries)
        self._heap = [self._entry(standing) for standing in self._lines]
        """The standings with their places; an entry with another place than that of now is stale."""
        heapify(self._heap)

    def _entry(self, standing: Standing) -> tuple[int, float, int, Standing]:
        return (*place_in_order(self._queue, self._lines[standing][0][1]), standing)

    def first(self) -> Line | None:
        """The next line; None: none is left."""
        lines = self._lines
        while len(lines) > 1:
            standing = self._heap[0][-1]
            if standing in lines and self._entry(standing) == self._heap[0]:
                return lines[standing][0][1]
            heappop(self._heap)
        return next((entries[0][1] for entries in lines.values()), None)

    def skip(self, line: Line) -> None:
        """Note that the line `first` gave cannot start."""
        heappop(self._lines[line.standing])
        self._place_again(line.standing)

    def served(self, line: Line) -> None:
        """Note that a job of the line that `first` returned was started, and that its user has a new rank."""
        entries = self._lines[line.standing]
        if line.count:
            heapreplace(entries, (self._queue.head(line)[0], line))
        else:
            heappop(entries)
        self._place_again(line.standing)

    def _place_again(self, standing: Standing) -> None:
        """Add the places that the standings of this one's user have now; one without lines goes."""
        if not self._lines[standing]:
            del self._lines[standing]
        if len(self._lines) > 1:
            for one in self._queue.of_user.get(standing.user, ()):
                if one in self._lines:
                    heappush(self._heap, self._entry(one))


class Rest:
    """The lines of a standing behind a line that could not start: those that may fit, by turn. `line`: the next one
    (None: none is left), and its `turn`."""

    __slots__ = ("_heap", "_number", "line", "standing", "turn")

    def __init__(self, queue: Queue, standing: Standing, may_fit: MayFit) -> None:
        self.standing = standing
        self.turn = -1
        self.line: Line | None = None
        self._number = 0
        self._heap: list[tuple[int, int, Line, Sequence[Entry], int]] = []
        """Turn, a number that breaks ties, line; and a heap with the line's place in it, below which others follow."""
        for need, entries in queue.lines_by_need(standing).items():
            if need is None or may_fit(need):
                self._push(entries, 0)
        for line in standing.open:
            if not line.excluded:
                self._push(((queue.head(line)[0], line),), 0)

    def _push(self, entries: Sequence[Entry], at: int) -> None:
        if at < len(entries):
            self._number += 1
            heappush(self._heap, (entries[at][0], self._number, entries[at][1], entries, at))

    def advance(self, queue: Queue, after: int) -> None:
        """Move to the first line with a turn after this one. Turns of entries are lower bounds."""
        self.line = None
        while self._heap and self.line is None:
            turn, _, line, entries, at = heappop(self._heap)
            self._push(entries, 2 * at + 1)
            self._push(entries, 2 * at + 2)
            if not line.count or line.excluded:
                continue
            now = queue.head(line)[0]
            if now > turn:
                self._push(((now, line),), 0)
            elif turn > after:
                self.turn, self.line = turn, line

    def again(self, queue: Queue, line: Line) -> None:
        """Note that a line was served, so that its turn is that of its next job."""
        if line.count:
            self._push(((queue.head(line)[0], line),), 0)


class Order:
    """The lines in the order of service. Call `first`, then `skip` or `served` for the line it gave, and `end` after
    the pass. Meanwhile the queue gets no new jobs."""

    def __init__(self, queue: Queue, may_fit: MayFit) -> None:
        self._queue = queue
        self._may_fit = may_fit
        self._rests: dict[Standing, Rest] = {}
        """Large standings with a line that could not start. Of smaller ones, such lines are removed until the end."""
        self._waiting = set[Standing]()
        """All standings with a line that could not start."""
        self._passed_by = set[Standing]()
        """Standings of which no line was visited, since none may start."""
        self._fits: dict[Resources | None, bool] = {None: True}
        """Which needs may fit, as far as it was asked since a job was started last."""
        self._done: list[tuple[float, int, Standing]] = []
        self._heap: list[tuple[float, int, Rest]] = []
        """Those of this class, by rank and turn of their next line; entries with another rank or turn are stale."""
        self._passed: list[Entry] = []
        self._class: Priority | None = None

    def first(self, priority: Priority, reserves: bool = True) -> Line | None:
        """The next line of this class; None: none is left. Unless the first of a standing may get a reservation
        (`reserves`), the next one of a standing that has a line that may start."""
        if priority is not self._class:
            self._class, self._heap = priority, []
        queue = self._queue
        while self._heap and not self._is_current(self._heap[0]):
            heappop(self._heap)
        if not reserves:
            self._pass_by(queue.order[priority], priority)
        while (standing := queue.first(priority)) is not None:
            line = queue.first_line(standing)
            if line is not None:
                if self._heap and self._heap[0][:2] < standing.place:
                    break
                return line
            self._done.append(heappop(queue.order[priority]))
        return self._heap[0][2].line if self._heap else None

    def _pass_by(self, order: list[tuple[float, int, Standing]], priority: Priority) -> None:
        """Pass by the next standings of which no line may start."""
        while order:
            if self._heap:
                standing = self._queue.first(priority)
                if standing is None or self._heap[0][:2] < standing.place:
                    return
            rank, turn, standing = order[0]
            if standing.place == (rank, turn):
                if standing.open or any(map(self._may_start, standing.needs)):
                    return
                self._passed_by.add(standing)
                self._done.append(order[0])
            heappop(order)

    def _may_start(self, need: Resources | None) -> bool:
        if (known := self._fits.get(need)) is None:
            known = self._fits[need] = need is None or self._may_fit(need)
        return known

    def _is_current(self, entry: tuple[float, int, Rest]) -> bool:
        rank, turn, rest = entry
        return rest.line is not None and (rest.standing.rank, rest.turn) == (rank, turn)

    def skip(self, line: Line) -> bool:
        """Note that the line `first` gave cannot start. Returns whether it is the first of its standing to wait for
        room."""
        standing = line.standing
        if (rest := self._rests.get(standing)) is not None:
            self._next(rest, self._queue.head(line)[0])
            return False
        if line.excluded:
            return False  # it is out of the order already
        first = standing not in self._waiting and standing not in self._passed_by
        self._waiting.add(standing)
        if first and standing.included > FEW:
            heappop(self._queue.order[standing.priority])
            standing.place = NOWHERE
            rest = self._rests[standing] = Rest(self._queue, standing, self._may_fit)
            self._next(rest, self._queue.head(line)[0])
        else:
            self._passed.append(heappop(standing.lines))
        return first

    def served(self, line: Line) -> None:
        """Note that a job of the line that `first` returned was started, and that its user has a new rank."""
        self._fits = {None: True}
        rest = self._rests.get(line.standing)
        if rest is not None:
            rest.again(self._queue, line)
            self._next(rest, rest.turn)
        for standing in self._queue.of_user.get(line.standing.user, ()) if self._heap else ():
            rest = self._rests.get(standing)
            if rest is not None and standing.priority is self._class and rest.line is not None:
                heappush(self._heap, (standing.rank, rest.turn, rest))

    def _next(self, rest: Rest, after: int) -> None:
        rest.advance(self._queue, after)
        if rest.line is not None:
            heappush(self._heap, (rest.standing.rank, rest.turn, rest))

    def end(self) -> None:
        """Put back the lines that were removed."""
        for turn, line in self._passed:
            if line.entered == turn:
                heappush(line.standing.lines, (turn, line))
        for rank, turn, standing in self._done:
            if standing.place == (rank, turn):
                heappush(self._queue.order[standing.priority], (rank, turn, standing))
        for standing in self._waiting:
            if standing.included and (first := self._queue.first_line(standing)) is not None:
                turn = self._queue.head(first)[0]
                if standing.place != (self._queue.rank_at(standing, turn), turn):
                    self._queue.enter(standing, turn)
