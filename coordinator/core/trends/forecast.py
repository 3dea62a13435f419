"""Forecast of a node's use: the last value, with an interval from the node's own past errors.

On machines of bitbrains and Helios, for 15 to 60 minutes, the last value has a smaller error than means, slopes,
yesterday's value and profiles of the hour. So the slope of the last hour counts only on a node, and at a distance,
where it would have had a smaller error over the last two days. The interval is conformal (Vovk et al. 2005; for series:
Xu and Xie 2021): its bounds are quantiles of the errors that the same forecast made before, at the same distance, so no
distribution is assumed.
"""

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from distributed_grid.coordinator.core.trends.statistics import present

STEP = 300
"""Interval of the values that forecasts are made from (s)."""
PAST = 576
"""Maximum number of values looked at: two days."""
COVERAGE = 0.90
LEAST = 20
"""Number of past errors below which there is no interval."""
LINE = 12
"""Number of values through which the slope goes: an hour."""
BETTER = 0.9
"""Part of the last value's mean error below which the slope's has to be."""
_WEIGHTS = [(at - (LINE - 1) / 2) * 12 / (LINE * (LINE**2 - 1)) for at in range(LINE)]
"""Of the values of an hour in their slope: what `statistics.slope` says of twelve values, in one sum."""


class Interval(NamedTuple):
    """A forecast, and where the value will lie with the probability COVERAGE; `errors` were counted for it."""

    value: float
    low: float
    high: float
    errors: int


def interval(errors: Sequence[float], value: float, most: float = math.inf) -> Interval | None:
    """The forecast from this last value by sorted past errors, between 0 and `most`; None with too few of them. It is
    the shortest interval that leaves out as many of them as it may miss, with the correction for a finite number of
    errors; of those that are equally short the one in the middle. Half on each side would hold too many where many
    errors are equal: a bound at such an error holds all of them, and the other side does not make up for it."""
    count = len(errors)
    if count < LEAST:
        return None
    out = 2 * (count - min(count, math.ceil((count + 1) * (1 + COVERAGE) / 2)))
    last = count - out - 1
    first = min(range(out + 1), key=lambda at: (errors[at + last] - errors[at], abs(2 * at - out)))
    low, high = value + errors[first], value + errors[first + last]
    return Interval(value, max(0.0, min(most, low)), max(0.0, min(most, high)), count)


def forecast(values: Sequence[float], steps: int, most: float = math.inf) -> Interval | None:
    """The value `steps` intervals after the last one, by what came before; None where the last one is missing, or too
    few errors are known."""
    if not values or not math.isfinite(values[-1]):
        return None
    first = max(0, len(values) - PAST - steps)
    errors = [values[at + steps] - values[at] for at in range(first, len(values) - steps)]
    told = interval(sorted(present(errors)), values[-1], most)
    risen_now = along(values, len(values) - 1, steps, most)
    if told is None or math.isnan(risen_now) or not any(present(errors)):
        return told
    risen = [along(values, at, steps, most) for at in range(first, len(values) - steps)]
    tried = [values[first + at + steps] - value for at, value in enumerate(risen)]
    both = [(abs(one), abs(other)) for one, other in zip(tried, errors, strict=True) if math.isfinite(one + other)]
    if not wins(len(both), sum(one for one, _ in both), sum(other for _, other in both)):
        return told
    return interval(sorted(present(tried)), risen_now, most)


def along(values: Sequence[float], at: int, steps: int, most: float = math.inf) -> float:
    """The value `steps` later by the slope (least squares) of the hour up to this place; NaN where a value of that hour
    is missing."""
    if at < LINE - 1:
        return math.nan
    value = values[at] + steps * sum(map(mul, _WEIGHTS, values[at + 1 - LINE : at + 1]))
    return min(most, max(0.0, value)) if math.isfinite(value) else math.nan


def wins(count: int, tried: float, errors: float) -> bool:
    """Whether the slope is gone by: by the sums of its absolute errors and of the last value's, in the same cases."""
    return count >= LEAST and tried < BETTER * errors
