"""Trends and pressure of a node from its windows, as clients see them. Pure: codes in, views out."""

import math
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from distributed_grid.coordinator.core.trends import forecast, statistics
from distributed_grid.coordinator.history.history import Window
from distributed_grid.coordinator.history.series import PARTS, Series, values
from distributed_grid.protocol.history.trends import RATES, Forecast, Measured, Trend
from distributed_grid.protocol.sharing.pressure import Pressure, weighted

HOUR = 3600.0
FARTHEST = HOUR
"""Maximum horizon of a forecast (s): its intervals were validated up to here."""
PAST = forecast.STEP * (forecast.PAST + int(FARTHEST) // forecast.STEP)
"""Length of the past that a forecast is made from (s)."""


def use(window: Window, what: Measured) -> list[float]:
    """Return the total use of a resource; NaN where it was not measured."""
    parts = [values(window.codes[one], one) for one in PARTS[what]]
    most = math.inf if what in RATES else 1.0
    return [min(sum(both), most) for both in zip(*parts, strict=True)]  # in this order NaN stays NaN


def trend(window: Window, what: Measured, points: int) -> Trend:
    """Return the trend of one resource, with `points` points at most."""
    found = use(window, what)
    described = statistics.describe(found, window.step)
    if described is None:
        count = len(statistics.present(found))
        return Trend(what=what, step=window.step, buckets=count, why=f"{count} of at least {statistics.LEAST} buckets")
    theirs = statistics.present(values(window.codes[PARTS[what][0]], PARTS[what][0]))
    size = max(1, math.ceil(len(found) / points)) if points else 0
    return Trend(
        what=what,
        step=window.step,
        buckets=described.buckets,
        level=described.level,
        spread=described.spread,
        p95=described.p95,
        slope=described.slope * HOUR,
        last=described.last,
        owner=0.0 if what in RATES else statistics.quantile(sorted(theirs), 0.5),
        points=tuple(-1.0 if math.isnan(one) else one for one in statistics.means(found, size)) if size else (),
    )


def trends(window: Window, wanted: Iterable[Measured], points: int) -> tuple[Trend, ...]:
    """The trends of these resources."""
    return tuple(trend(window, what, points) for what in wanted)


def with_forecasts(found: Iterable[Trend], minutes: Window, ahead: float) -> tuple[Trend, ...]:
    """Return these trends with forecasts `ahead` seconds ahead, an hour at most, from the minutes of the last two
    days."""
    ahead = min(ahead, FARTHEST)
    return tuple(_foreseen(one, minutes, ahead) for one in found)


def _foreseen(one: Trend, minutes: Window, ahead: float) -> Trend:
    past = statistics.means(use(minutes, one.what), forecast.STEP // minutes.step)
    most = math.inf if one.what in RATES else 1.0
    told = forecast.forecast(past, max(1, round(ahead / forecast.STEP)), most)
    if told is not None:
        return replace(one, forecast=Forecast(ahead, told.value, told.low, told.high, told.errors))
    if not past or math.isnan(past[-1]):
        return replace(one, unsure="the last five minutes were not measured")
    return replace(one, unsure=f"too little past: fewer than {forecast.LEAST} errors are known")


def pressure(window: Window, gpus: bool) -> tuple[Pressure, Pressure] | None:
    """The pressure of all use and of the owner's alone, by the means of a window; None where CPU or memory was not
    measured. A GPU that was not measured counts as in use."""
    foreign, own = _mean(window, Series.FOREIGN_CPU), _mean(window, Series.OWN_CPU)
    memory, ours = _mean(window, Series.FOREIGN_MEMORY), _mean(window, Series.OWN_MEMORY)
    if math.isnan(foreign) or math.isnan(memory):
        return None
    cpu_waits, memory_waits = _mean(window, Series.WAITS_CPU), _mean(window, Series.WAITS_MEMORY)
    gpu, of_jobs = _mean(window, Series.FOREIGN_GPU), _mean(window, Series.OWN_GPU)

    def of(cpu: float, memory: float, gpu: float) -> Pressure:
        return weighted(max(cpu, cpu_waits), max(memory, memory_waits), gpu if gpus else None)

    return of(foreign + own, memory + ours, gpu + of_jobs), of(foreign, memory, gpu)


def _mean(window: Window, series: Series) -> float:
    there: Sequence[float] = statistics.present(values(window.codes[series], series))
    return sum(there) / len(there) if there else math.nan
