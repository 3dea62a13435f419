"""The statistics that predictions use: order statistics of the last values, some of which are known only as a lower
bound; and a straight line through points by running sums, at a constant cost for each point."""

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

LENGTH = 200
"""Maximum number of values in a window."""
EPSILON = 1e-9
"""Probabilities that differ by less are the same."""
BEYOND = 0.05
"""By how much a quantile exceeds the largest of too few values, beside the last step."""
LAMBDA = 0.5
"""Ridge penalty: with few points the slope is nearly 0."""
STEEPEST = 1.5
"""Maximum slope (of logarithms): needs grow at most with this power of the input, and never fall."""


class Window:
    """The last values in the order of their coming, and sorted. All calls are O(log n) comparisons and one move of a
    block of memory."""

    __slots__ = ("_next", "recent", "sorted")

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.recent = array("d", values)[-LENGTH:]
        self.sorted = array("d", sorted(self.recent))
        self._next = 0

    def __len__(self) -> int:
        return len(self.sorted)

    def add(self, value: float) -> None:
        """Add a value; a full window drops its oldest."""
        if len(self.recent) == LENGTH:
            oldest, self.recent[self._next] = self.recent[self._next], value
            self._next = (self._next + 1) % LENGTH
            del self.sorted[bisect_left(self.sorted, oldest)]
        else:
            self.recent.append(value)
        insort(self.sorted, value)

    def last(self, count: int) -> list[float]:
        """The newest values, oldest first."""
        order = self.recent[self._next :] + self.recent[: self._next]
        return list(order[-count:])


def quantile(ordered: Sequence[float], level: float) -> float:
    """The conformal quantile: the smallest value that the next one does not exceed with this probability, where all
    come in any order (Vovk et al.). With too few values: the largest, the last step once more, and BEYOND."""
    count = len(ordered)
    at = math.ceil(level * (count + 1)) - 1
    if at < count:
        return ordered[max(0, at)]
    return ordered[-1] + (ordered[-1] - ordered[-2] if count > 1 else 0.0) + BEYOND


def censored_quantiles(ordered: Sequence[float], censored: Sequence[float], levels: Sequence[float]) -> list[float]:
    """The quantiles where of those in `censored` it is known only that they are larger, by the Kaplan-Meier estimate
    (1958). All sequences ascend. Where the estimate does not come down to a level, at least the largest of all.
    O(c log n) for c in `censored`."""
    if not censored:
        return [quantile(ordered, level) for level in levels]
    found = list[float]()
    beyond = 1.0 - levels[0] + EPSILON
    for first, behind, left, surviving, after in _segments(ordered, censored):
        while after <= beyond + EPSILON:
            steps = max(1, math.ceil(left * (1.0 - beyond / surviving)))
            if first + steps > behind:
                break
            found.append(ordered[first + steps - 1])
            if len(found) == len(levels):
                return found
            beyond = 1.0 - levels[len(found)] + EPSILON
    return found + [max(quantile(ordered, level), censored[-1]) for level in levels[len(found) :]]


def censored_share(ordered: Sequence[float], censored: Sequence[float], limit: float) -> float:
    """The probability that the next value is at most `limit`, by the same estimate."""
    share, within = 0.0, bisect_right(ordered, limit)
    for first, behind, left, surviving, _ in _segments(ordered, censored):
        if first >= within:
            break
        share = 1.0 - surviving * (left - (min(behind, within) - first)) / left
    return share


def _segments(ordered: Sequence[float], censored: Sequence[float]) -> Iterator[tuple[int, int, int, float, float]]:
    """The known values between two that are censored: from which index to before which, how many were left before
    them (one more for the value to come, as in `quantile`), the probability to come so far, and beyond them. Within
    such a segment that probability falls by the same step with each value."""
    left, surviving, first = len(ordered) + len(censored) + 1, 1.0, 0
    for one in censored:
        if first == len(ordered):
            return  # nothing that is known comes after it
        behind = bisect_left(ordered, one, first)
        if behind > first:
            after = surviving * (left - (behind - first)) / left
            yield first, behind, left, surviving, after
            surviving = after
            left -= behind - first
            first = behind
        left -= 1
    if first < len(ordered):
        behind = len(ordered)
        yield first, behind, left, surviving, surviving * (left - (behind - first)) / left


class Line:
    """y = a + b x for each of some features x of which the one that explains most is used."""

    __slots__ = ("best", "count", "sums", "y")

    def __init__(self, features: int) -> None:
        self.count = 0
        self.y = 0.0
        self.sums = [[0.0, 0.0, 0.0] for _ in range(features)]
        self.best: tuple[float, int] | None = None
        """Cache of `_best`, valid until the next point."""

    def add(self, xs: tuple[float, ...], y: float) -> None:
        """Add one more point."""
        self.count += 1
        self.y += y
        self.best = None
        for sums, x in zip(self.sums, xs, strict=False):
            sums[0] += x
            sums[1] += x * x
            sums[2] += x * y

    def at(self, xs: tuple[float, ...]) -> tuple[float, int]:
        """The value of the line at these features, and the index of the feature it uses; -1: none explains anything."""
        slope, which = self._found()
        mean = self.y / self.count
        return (mean + slope * (xs[which] - self.sums[which][0] / self.count) if which >= 0 else mean), which

    @property
    def flat(self) -> bool:
        """Whether no feature explains anything, so that it says the mean of all points."""
        return self._found()[1] < 0

    def _found(self) -> tuple[float, int]:
        if self.best is None:
            self.best = self._best()
        return self.best

    def _best(self) -> tuple[float, int]:
        """The slope for the feature that explains most, and its index."""
        best, found, which = 0.0, 0.0, -1
        count, y = self.count, self.y
        for at, (sx, sxx, sxy) in enumerate(self.sums):
            vxy = sxy - sx * y / count
            if vxy > 0.0:
                vxx = sxx - sx * sx / count + LAMBDA
                slope = vxy / vxx
                if slope > STEEPEST:
                    slope = STEEPEST
                explained = slope * (2 * vxy - slope * vxx)
                if explained > best:
                    best, found, which = explained, slope, at
        return found, which

    def slope(self, at: int) -> float:
        """The slope for this feature alone; 0: y does not grow with it."""
        sx, sxx, sxy = self.sums[at]
        vxy = sxy - sx * self.y / self.count
        return min(STEEPEST, vxy / (sxx - sx * sx / self.count + LAMBDA)) if vxy > 0.0 else 0.0
