"""Statistics of values over time. Of a window: values at equal intervals, of which some are missing (NaN); windows are
short (at most 1,440 values), so quantiles are exact: the values are sorted. And of endless streams (waits, run times):
histograms with a relative error of one percent.

Their buckets are of logarithmic width (DDSketch, Masson, Rim and Lee 2019): a value x > 0 counts in bucket
ceil(log_g x) with g = (1 + e) / (1 - e), and is answered as the bucket's middle, which errs by at most e."""

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST = 3
"""Number of values below which there is no trend."""
PARTS = 12
"""Parts of a window by whose medians the slope is estimated: one spike moves at most one of them."""
GAP = math.nan
ERROR = 0.01
"""Maximum relative error of a histogram (`e`)."""
_GAMMA = (1 + ERROR) / (1 - ERROR)
_LOG = math.log(_GAMMA)
SMALLEST, LARGEST = 1e-3, 1e9
"""Values below count as 0, those above as this: at most 1,400 buckets."""


class Described(NamedTuple):
    """Statistics of a window. `level`: the median; `spread`: between the quartiles; `slope`: change a second; `last`:
    the newest value, of so many `buckets`."""

    level: float
    spread: float
    p95: float
    slope: float
    last: float
    buckets: int


def present(values: Sequence[float]) -> list[float]:
    """The values that are not missing."""
    return [value for value in values if math.isfinite(value)]


def quantile(ordered: Sequence[float], part: float) -> float:
    """The quantile of sorted values, interpolated between neighbours (Hyndman and Fan 1996, type 7)."""
    at = part * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    low, high = ordered[below], ordered[above]
    return low + (high - low) * (at - below)


def describe(values: Sequence[float], step: float) -> Described | None:
    """The statistics of values `step` seconds apart; None with fewer than three."""
    ordered = sorted(found := present(values))
    if len(ordered) < LEAST:
        return None
    return Described(
        level=quantile(ordered, 0.5),
        spread=quantile(ordered, 0.75) - quantile(ordered, 0.25),
        p95=quantile(ordered, 0.95),
        slope=slope(values, step),
        last=found[-1],
        buckets=len(ordered),
    )


def slope(values: Sequence[float], step: float) -> float:
    """Change a second: least squares over the medians of twelve parts of the window, each at the mean time of its
    values; 0 where fewer than two parts have values."""
    points: list[tuple[float, float]] = []
    parts = min(PARTS, len(values))
    for part in range(parts):
        first, behind = part * len(values) // parts, (part + 1) * len(values) // parts
        inside = [(at, values[at]) for at in range(first, behind) if math.isfinite(values[at])]
        if inside:
            middle = quantile(sorted(value for _, value in inside), 0.5)
            points.append((step * sum(at for at, _ in inside) / len(inside), middle))
    if len(points) < 2:
        return 0.0
    mean_at = sum(at for at, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    across = sum((at - mean_at) ** 2 for at, _ in points)
    return sum((at - mean_at) * (value - mean) for at, value in points) / across


def means(values: Sequence[float], size: int) -> list[float]:
    """The mean of each `size` values in turn, counted from the end (so the newest part is whole); a part in which all
    are missing is missing."""
    found = []
    for behind in range(len(values), 0, -size):
        inside = present(values[max(0, behind - size) : behind])
        found.append(sum(inside) / len(inside) if inside else GAP)
    return found[::-1]


class Histogram:
    """Counts of values by bucket."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._zeros = 0
        self.count = 0

    def add(self, value: float) -> None:
        """Count a value; one that is no number counts for nothing."""
        if math.isnan(value):
            return
        self.count += 1
        if value < SMALLEST:
            self._zeros += 1
        else:
            bucket = math.ceil(math.log(min(value, LARGEST)) / _LOG)
            self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def quantile(self, part: float) -> float:
        """The smallest value such that this part of all is not above it; 0 without any."""
        rank = max(1, math.ceil(part * self.count)) - self._zeros
        if rank <= 0:
            return 0.0
        for bucket, count in sorted(self._counts.items()):
            rank -= count
            if rank <= 0:
                return float(2 * _GAMMA**bucket / (_GAMMA + 1))
        return 0.0
