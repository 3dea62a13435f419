"""The use of nodes over time: trends, forecasts and pressure as clients see them."""

from enum import StrEnum

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import Count, Finite, Resources, Span, Word
from distributed_grid.protocol.sharing.pressure import Pressure

POINTS = 60
"""Maximum number of points of a sparkline."""


class Measured(StrEnum):
    """The measured resource of a trend. Use is a part of what the node has (0 to 1); disk and net are bytes per
    second."""

    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"
    GPU_MEMORY = "gpu-memory"
    DISK = "disk"
    NET = "net"


RATES = frozenset({Measured.DISK, Measured.NET})

WINDOWS = {"5m": 300.0, "15m": 900.0, "1h": 3600.0, "1d": 86400.0, "1w": 604800.0}
"""Windows of trends, in seconds by their names."""


def parse_window(text: str) -> float:
    """Seconds of a window's name. Raises BadValue."""
    if (seconds := WINDOWS.get(str(text).strip().lower())) is None:
        raise BadValue(f"{text!r:.80} is no window of trends", hint=f"there are {', '.join(WINDOWS)}")
    return seconds


class Forecast(msgspec.Struct, frozen=True, array_like=True):
    """The value in `ahead` seconds, and the interval in which nine of ten such forecasts of this node came true, by
    this many past `errors`."""

    ahead: Span
    value: Finite
    low: Finite
    high: Finite
    errors: Count


class Trend(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One resource of a node over a window, for all use and (`owner`) for the owner's use alone. `level`: the median;
    `spread`: between the quartiles; `p95`; `slope`: change an hour; `last`: the newest value; of `buckets` of `step`
    seconds that were measured. `why`: the reason if there is no trend. `points`: the mean of equal parts of the window,
    below 0 where nothing was measured. `unsure`: the reason if there is no forecast."""

    what: Measured
    step: Span
    buckets: Count = 0
    level: Finite = 0.0
    spread: Finite = 0.0
    p95: Finite = 0.0
    slope: Finite = 0.0
    last: Finite = 0.0
    owner: Finite = 0.0
    why: Word = ""
    forecast: Forecast | None = None
    unsure: Word = ""
    points: tuple[Finite, ...] = ()


class IdleChance(msgspec.Struct, frozen=True, omit_defaults=True):
    """The probability that a node stays idle for `seconds` more. The node was idle for about as long as now in `cases`
    cases, and stayed so for `seconds` in `lasted` of them; `past`: the number of all its cases, however long it had
    been idle. In the whole grid, similar forecasts were made `told` times, and came true `true` times; `believed`: that
    is about as often as forecast."""

    seconds: Span
    probability: Finite
    cases: Count = 0
    lasted: Count = 0
    told: Count = 0
    true: Count = 0
    believed: bool = True
    past: Count = 0


class NodeTrends(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A node's pressure of the last minute, of all use and of the owner's alone (None: not measured), and its trends.
    `total` is what it manages. `seen`: seconds since its newest bucket ended; below 0: none is known."""

    node: Word
    state: NodeState
    total: Resources = Resources()
    seen: Finite = -1.0
    all: Pressure | None = None
    owner: Pressure | None = None
    trends: tuple[Trend, ...] = ()
