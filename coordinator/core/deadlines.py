"""The timers of the grid."""

from collections.abc import Iterator
from heapq import heappop, heappush


class Deadlines:
    """Timers: at most one for each pair of kind and name, the earliest that was armed."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, str, str]] = []
        self.armed: dict[tuple[str, str], float] = {}
        self.number = 0

    def arm(self, kind: str, name: str, at: float) -> None:
        """Fire at this time or earlier; the handler checks whether it is time."""
        armed = self.armed.get((kind, name))
        if armed is None or at < armed:
            self.armed[(kind, name)] = at
            self.number += 1
            heappush(self.heap, (at, self.number, kind, name))

    def disarm(self, kind: str, name: str) -> None:
        """Cancel a timer."""
        self.armed.pop((kind, name), None)

    def some_due(self, now: float) -> bool:
        """Whether a timer may have expired."""
        return bool(self.heap) and self.heap[0][0] <= now

    def due(self, now: float) -> Iterator[tuple[str, str]]:
        """Expired timers, the earliest first, including those that are armed meanwhile."""
        while self.heap and self.heap[0][0] <= now:
            at, _, kind, name = heappop(self.heap)
            if self.armed.get((kind, name)) == at:
                del self.armed[(kind, name)]
                yield kind, name

    def next(self) -> float | None:
        """When the next timer fires; None: never."""
        while self.heap and self.armed.get(self.heap[0][2:]) != self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else None
