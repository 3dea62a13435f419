"""How long machines stay idle, on real traces: the Brier score of the forecasts of coordinator/core/trends/idle.py
beside that of the constant, and how often what was said came true. A machine is idle while its use is at most the
median of its trace; on Helios while eight GPUs are free. Machines that are idle less than 5 % or more than 95 % of the
time are left out. All machines of a trace are one grid, in the order of time. Nothing is scored within a machine's
first two days, nor where a part of what would come was not measured."""

import json
import math
import statistics
from typing import Any

from bench.policies import _traces
from distributed_grid.coordinator.core.trends.idle import BINS, EVERY, HORIZONS, STEP, IdleForecaster, Pool

WARM = 2 * 86400 // STEP
MOST = 120
"""Machines of a trace that are looked at."""


class Scores:
    """Forecasts of one trace at one horizon."""

    def __init__(self) -> None:
        self.count = self.true = 0
        self.wrong = 0.0
        self.bins = [[0, 0.0, 0] for _ in range(BINS)]

    def add(self, said: float, outcome: int) -> None:
        self.count += 1
        self.true += outcome
        self.wrong += (said - outcome) ** 2
        one = self.bins[min(BINS - 1, int(said * BINS))]
        one[0], one[1], one[2] = one[0] + 1, one[1] + said, one[2] + outcome

    def told(self) -> dict[str, Any]:
        part = self.true / max(1, self.count)
        off = sum(abs(said - true) for _, said, true in self.bins) / max(1, self.count)
        sure = [sum(column) for column in zip(*self.bins[8:], strict=True)]
        return {
            "forecasts": self.count,
            "lasted": round(part, 3),
            "brier_constant": round(part * (1 - part), 4),
            "brier": round(self.wrong / max(1, self.count), 4),
            "calibration_error": round(off, 3),
            "said_0.8_or_more": round(sure[0] / max(1, self.count), 3),
            "true_then": round(sure[2] / max(1, sure[0]), 3),
            "reliability": {
                f"{at / BINS:.1f}": [count, round(said / count, 3), round(true / count, 3)]
                for at, (count, said, true) in enumerate(self.bins)
                if count
            },
        }


class Machine:
    """A machine of a trace: when it was idle, and until when it stayed so."""

    def __init__(self, series: _traces.Series, limit: float) -> None:
        values = series.values
        self.values = values
        self.first = int(series.begin) // STEP
        self.forecaster = IdleForecaster()
        self.idle = [not math.isnan(use) and use <= limit for use in values]
        self.busy = _next([not idle for idle in self.idle])
        self.missing = _next([math.isnan(use) for use in values])

    @property
    def part(self) -> float:
        """The part of what was measured in which it was idle."""
        return sum(self.idle) / max(1, sum(not math.isnan(use) for use in self.values))

    def outcome(self, at: int, steps: int) -> int | None:
        """Return whether it stayed idle for this many intervals more; None: that was not measured."""
        return int(self.busy[at] > at + steps) if self.missing[at] > at + steps < len(self.values) else None


def _next(found: list[bool]) -> list[int]:
    """Return for each interval the next one, from itself on, for which the condition holds."""
    behind = len(found)
    result = [behind] * behind
    for at in range(behind - 1, -1, -1):
        behind = at if found[at] else behind
        result[at] = behind
    return result


def run(machines: list[Machine], scores: dict[int, Scores]) -> None:
    """Forecast the machines of a grid, each time before what comes."""
    pool = Pool()
    begin = min(one.first for one in machines)
    for now in range(begin, max(one.first + len(one.values) for one in machines)):
        for one in machines:
            at = now - one.first
            if not 0 <= at < len(one.values):
                continue
            one.forecaster.observe(now, one.values[at], one.idle[at], pool)
            if at >= WARM and now % EVERY == 0:
                for told in one.forecaster.forecast(pool):
                    if (outcome := one.outcome(at, int(told.seconds) // STEP)) is not None:
                        scores[int(told.seconds)].add(told.probability, outcome)


def main() -> None:
    """Print one JSON line a trace and horizon."""
    traces = _traces.folder("windows", __doc__)
    for name, series in _traces.read(traces, idle=True) if traces is not None else ():
        scores = {horizon: Scores() for horizon in HORIZONS}
        limit = statistics.median(use for one in series for use in one.values if not math.isnan(use))
        machines = [one for series_ in series if 0.05 <= (one := Machine(series_, limit)).part <= 0.95][:MOST]
        run(machines, scores)
        for horizon, found in scores.items():
            told = {"bench": "windows", "trace": name, "machines": len(machines), "idle_at_most": round(limit, 3)}
            print(json.dumps(told | {"hours": horizon / 3600} | found.told()), flush=True)


if __name__ == "__main__":
    main()
