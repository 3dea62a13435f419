"""The last hour of one node, in a bounded array: 360 buckets of ten seconds, 16 series, 16 bits each (11.3 KiB)."""

from array import array

from distributed_grid.coordinator.history.series import COUNT, GAP, Series, joined
from distributed_grid.protocol.history.buckets import KEPT

MINUTE = 6
"""Buckets in a minute."""


class Ring:
    """Buckets by number, counted in grid time, with gaps where nothing was measured. `began`: the first one
    received."""

    __slots__ = ("_codes", "began", "newest")

    def __init__(self, began: int) -> None:
        self._codes = array("H", (GAP,)) * (COUNT * KEPT)
        self.began = began
        self.newest = began - 1

    def put(self, number: int, codes: tuple[int, ...]) -> bool:
        """Store a bucket; False if it is older than an hour."""
        newest, ring = self.newest, self._codes
        if number > newest:
            if number > newest + 1:
                self._clear(max(newest + 1, number - KEPT + 1), number)
            self.newest = number
        elif number <= newest - KEPT:
            return False
        elif number < self.began:
            self.began = number
        at = number % KEPT
        for one in codes:
            ring[at] = one
            at += KEPT
        return True

    def _clear(self, first: int, behind: int) -> None:
        for number in range(first, behind):
            for at in range(number % KEPT, COUNT * KEPT, KEPT):
                self._codes[at] = GAP

    def span(self, series: Series, first: int, behind: int) -> "array[int]":
        """The codes of one series from bucket `first` to before `behind`; gaps where the hour does not reach."""
        base, oldest = series * KEPT, self.newest - KEPT + 1
        here = range(max(first, oldest), min(behind, self.newest + 1))
        if not here:
            return array("H", (GAP,)) * max(0, behind - first)
        found = array("H", (GAP,)) * (here.start - first)
        begin, size = here.start % KEPT, len(here)
        found += self._codes[base + begin : base + min(KEPT, begin + size)]
        if begin + size > KEPT:
            found += self._codes[base : base + begin + size - KEPT]
        return found + array("H", (GAP,)) * (behind - here.stop)

    def minute(self, number: int) -> list[int] | None:
        """The codes of a minute (counted in grid time); None where nothing of it was measured."""
        first = number * MINUTE
        if not self.newest - KEPT < first + MINUTE - 1 or first > self.newest:
            return None
        found = [joined(self.span(one, first, first + MINUTE), one) for one in Series]
        return found if any(one != GAP for one in found) else None
