"""Forecast of a node's use: the last value, with an interval from the node's own past errors.

On machines of bitbrains and Helios, for 15 to 60 minutes, the last value errs less than means, slopes, yesterday and
profiles of the hour. The interval is conformal (Vovk et al. 2005; for series: Xu and Xie 2021): the errors that the
same forecast made before, at the same distance, are its quantiles, so that nothing is assumed of their distribution."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from distributed_grid.coordinator.core.trends.windows import present

STEP = 300
"""Interval of the values that forecasts are made from (s)."""
PAST = 576
"""Maximum number of values looked at: two days."""
COVERAGE = 0.90
LEAST = 20
"""Number of past errors below which there is no interval."""


class Interval(NamedTuple):
    """A forecast, and where the value will lie with the probability COVERAGE; `errors` were counted for it."""

    value: float
    low: float
    high: float
    errors: int


def interval(errors: Sequence[float], value: float, most: float = math.inf) -> Interval | None:
    """The forecast from this last value by sorted past errors, between 0 and `most`; None with too few of them. Each
    side leaves out half of what the interval may miss, with the correction for a finite number of errors."""
    count = len(errors)
    if count < LEAST:
        return None
    rank = min(count, math.ceil((count + 1) * (1 + COVERAGE) / 2))
    low, high = value + errors[count - rank], value + errors[rank - 1]
    return Interval(value, max(0.0, min(most, low)), max(0.0, min(most, high)), count)


def forecast(values: Sequence[float], steps: int, most: float = math.inf) -> Interval | None:
    """The value `steps` intervals after the last one, by what came before; None where the last one is missing, or too
    few errors are known."""
    if not values or not math.isfinite(values[-1]):
        return None
    past = values[-PAST - steps :]
    errors = sorted(present([later - earlier for earlier, later in zip(past, past[steps:], strict=False)]))
    return interval(errors, values[-1], most)
