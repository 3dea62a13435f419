"""What is due when. Nothing is ever moved: a deadline that was put off is found to be early when it comes
up, and armed again then. So putting one off, which every heartbeat does, costs nothing.
"""

from collections.abc import Iterator
from heapq import heappop, heappush


class Deadlines:
    """At most one deadline for each pair of kind and name, the earliest that was asked for."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, str, str]] = []
        self.armed: dict[tuple[str, str], float] = {}
        self.number = 0

    def arm(self, kind: str, name: str, at: float) -> None:
        """Come up at this time or before; who is called then looks whether it is time."""
        armed = self.armed.get((kind, name))
        if armed is None or at < armed:
            self.armed[(kind, name)] = at
            self.number += 1
            heappush(self.heap, (at, self.number, kind, name))

    def disarm(self, kind: str, name: str) -> None:
        """It does not come up any more."""
        self.armed.pop((kind, name), None)

    def due(self, now: float) -> Iterator[tuple[str, str]]:
        """What comes up until now, the earliest first; what is armed meanwhile included."""
        while self.heap and self.heap[0][0] <= now:
            at, _, kind, name = heappop(self.heap)
            if self.armed.get((kind, name)) == at:
                del self.armed[(kind, name)]
                yield kind, name

    def next(self) -> float | None:
        """When the next one comes up; None: never."""
        while self.heap and self.armed.get(self.heap[0][2:]) != self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else None
