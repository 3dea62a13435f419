"""Runs the forecasters of idle time: each gets its node's history in intervals of five minutes, and its memory is saved
in the history's database."""

import asyncio
import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.core.commands import Event, ForecastsReported
from distributed_grid.coordinator.core.trends.idle import HORIZONS, STEP, IdleForecaster, Memory, Pool
from distributed_grid.coordinator.core.trends.statistics import present
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.coordinator.history.database import MINUTE
from distributed_grid.coordinator.history.history import LATE, TURNS, History
from distributed_grid.coordinator.history.series import GAP, Series, values
from distributed_grid.protocol.history.buckets import KEPT, SECONDS
from distributed_grid.runtime.service import to_next_second

PAST = 2 * 86400
"""How far back the coordinator looks at its start to find since when a node is idle (s)."""
KEEP_EVERY = 12
"""Intervals between saves of a forecaster's memory: an hour."""
STALE = 3 * STEP
"""Age of the last observation from which on a node has no forecast (s)."""
ALIKE = 0.02
"""Difference below which two forecasts of a node in use are about the same."""
_SIZE = STEP // SECONDS
_WATCHED = (Series.FOREIGN_CPU, Series.FOREIGN_MEMORY, Series.FOREIGN_GPU)


class IdleLimits(NamedTuple):
    """The maximum use by the owner of an idle node, as parts of the node: the settings `cpu_percent_max`,
    `memory_percent_max` and `gpu_utilization_max`."""

    cpu: float
    memory: float
    gpu: float


IDLE = IdleLimits(0.30, 0.50, 0.20)
"""The default limits, for nodes whose settings are not known."""


class IdleWatch:
    """`limits` gives those of a node by its name; `put` gets the forecasts that have changed, as an event of the
    ledger."""

    def __init__(self, history: History, limits: Callable[[str], IdleLimits], put: Callable[[Event], None]) -> None:
        self._history = history
        self._limits = limits
        self._put = put
        self._told: dict[str, IdleForecast] = {}
        """The forecasts that the ledger has, by node."""
        self._nodes: dict[str, IdleForecaster] = {}
        self._pool = Pool()
        self._pooled: set[str] = set()
        """The nodes whose memory was added to the pool."""
        self._turn = 0

    async def run(self) -> None:
        """Follow all nodes of the history, each once a minute, for ever."""
        while True:
            await asyncio.sleep(to_next_second())
            self._turn = (self._turn + 1) % TURNS
            names = self._history.in_turn(self._turn)
            for name in names:
                await self.follow(name)
            gone = [name for name in self._told if self._history.ring(name) is None]
            self.tell([*names, *gone])
            self.forget()

    def tell(self, names: Iterable[str]) -> None:
        """Send the ledger the forecasts of these nodes that have changed."""
        changed = {}
        for name in names:
            forecast = self._expected(name)
            before = self._told.get(name)
            if (forecast and forecast.made) != (before and before.made) and not _alike(forecast, before):
                changed[name] = forecast
                if forecast is None:
                    del self._told[name]
                else:
                    self._told[name] = forecast
        if changed:
            self._put(ForecastsReported(changed))

    async def follow(self, name: str) -> None:
        """Observe the intervals of a node that have passed."""
        one = self._nodes.get(name) or await self._known(name)
        now, ring = self._history.now(), self._history.ring(name)
        if ring is None:
            return
        oldest = (ring.newest - KEPT) // _SIZE + 1
        for at in range(max(one.next, oldest, ring.began // _SIZE), int(now - LATE) // STEP):
            first = at * _SIZE
            if ring.newest < first and now - at * STEP < KEPT * SECONDS:
                break  # a cut: the node may still tell of it
            codes = {series: ring.span(series, first, first + _SIZE) for series in _WATCHED}
            self._observe(name, one, at, codes)
            if at % KEEP_EVERY == 0:
                self._history.learned[name] = msgspec.msgpack.encode(one.memory())

    def _observe(self, name: str, one: IdleForecaster, at: int, codes: Mapping[Series, "array[int]"]) -> None:
        cpu, memory, gpu = (_mean(codes[series], series) for series in _WATCHED)
        limits = self._limits(name)
        # What was not measured (memory, or a GPU that there is not) is not above its limit.
        idle = cpu <= limits.cpu and not memory > limits.memory and not gpu > limits.gpu
        # The part of an interval that was not measured is no idle time: a node is idle from the next one on.
        begun = any(code != GAP for code in codes[Series.FOREIGN_CPU][:2])
        idle = idle and (begun or one.since is not None)
        one.observe(at, cpu, idle, self._pool)

    async def _known(self, name: str) -> IdleForecaster:
        """Begin to follow a node, with its saved memory and the time that it has been idle already."""
        memory = None
        if (kept := await self._history.recall(name)) is not None:
            try:
                memory = msgspec.msgpack.decode(kept, type=Memory)
            except msgspec.DecodeError:  # of another version: it learns anew
                memory = None
        if memory is not None and len(memory.learned) != len(HORIZONS):
            memory = None
        window = await self._history.window(name, PAST, MINUTE)
        one = IdleForecaster(memory)
        if memory is not None and name not in self._pooled:
            self._pool.add(memory)
        self._pooled.add(name)
        size = STEP // MINUTE
        behind = int(self._history.now()) // MINUTE
        first = behind - PAST // MINUTE
        ring = self._history.ring(name)
        began = ring.began // _SIZE if ring is not None else behind // size
        for at in range(-(-first // size), min(began, behind // size)):
            here = at * size - first
            self._observe(name, one, at, {series: window.codes[series][here : here + size] for series in _WATCHED})
        self._nodes[name] = one
        return one

    def forecast(self, name: str) -> IdleForecast | None:
        """Return how long a node is expected to stay idle, as of the last interval; None: it is in use, or not
        known."""
        found = self._expected(name)
        return found if found is not None and found.idle else None

    def _expected(self, name: str) -> IdleForecast | None:
        """The same, and of a node in use as if its owner left now."""
        one = self._nodes.get(name)
        if one is None or self._history.now() - one.next * STEP > STALE or not (lasting := one.expected(self._pool)):
            return None
        made = float(one.next * STEP)
        idle = 0.0 if one.since is None else made - one.since * STEP
        return IdleForecast(made, idle, lasting, round(one.peak, 4))

    def forget(self) -> None:
        """Drop nodes that the history has dropped, such as machines that have ended or were renamed. Their saved
        memories stay."""
        for name in [name for name in self._nodes if self._history.ring(name) is None]:
            self._history.learned[name] = msgspec.msgpack.encode(self._nodes.pop(name).memory())

    def keep(self) -> None:
        """Save the memories of all forecasters, before the history closes."""
        for name, one in self._nodes.items():
            self._history.learned[name] = msgspec.msgpack.encode(one.memory())


def _alike(one: IdleForecast | None, other: IdleForecast | None) -> bool:
    """Whether both are of a node in use and say about the same: most nodes of a busy grid need not be told of again."""
    if one is None or other is None or one.idle or other.idle:
        return False
    pairs = zip(one.lasting, other.lasting, strict=False)
    return abs(one.peak - other.peak) < ALIKE and all(
        abs(now.probability - then.probability) < ALIKE and now.believed == then.believed for now, then in pairs
    )


def _mean(codes: "array[int]", series: Series) -> float:
    there = present(values(codes, series))
    return sum(there) / len(there) if there else math.nan
