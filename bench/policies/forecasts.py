"""Forecasts of a machine's use, 15, 30 and 60 minutes ahead, on real traces: how often the value lies in the interval
that was told before it, how wide that is, how often the slope decided, and the error of the forecast beside that of
others. Nothing is scored within a machine's first two days, or without an interval; what came after those days was
never tuned on."""

import json
import math
from bisect import bisect_left, insort
from collections import deque

from bench.policies import _traces
from distributed_grid.coordinator.core.trends.forecast import COVERAGE, PAST, STEP, along, interval, wins

WARM = PAST
HOUR = 3600 // STEP
OTHERS = ("last value", "hour's mean", "slope")


class Errors:
    """The sorted errors of a forecast over the last two days, kept as values come."""

    def __init__(self, steps: int) -> None:
        self.sorted: list[float] = []
        self._kept: deque[float] = deque()
        self._said: deque[float] = deque(maxlen=steps)

    def add(self, value: float, said: float) -> float:
        """The next value, and what is said now; NaN where that is missing. Returns the newest error."""
        error = math.nan
        if len(self._said) == self._said.maxlen:
            error = value - self._said[0]
            self._kept.append(error)
            if math.isfinite(error):
                insort(self.sorted, error)
            if len(self._kept) > PAST and math.isfinite(oldest := self._kept.popleft()):
                del self.sorted[bisect_left(self.sorted, oldest)]
        self._said.append(said)
        return error


class Race:
    """The sums of absolute errors of the slope and of the last value, of the cases of two days in which both are
    known."""

    def __init__(self) -> None:
        self.count, self.tried, self.errors = 0, 0.0, 0.0
        self._kept: deque[tuple[float, float]] = deque()

    def add(self, tried: float, error: float) -> None:
        """The newest errors; NaN where one is missing."""
        self._kept.append((abs(tried), abs(error)))
        self._count(self._kept[-1], 1)
        if len(self._kept) > PAST:
            self._count(self._kept.popleft(), -1)

    def _count(self, both: tuple[float, float], sign: int) -> None:
        if math.isfinite(sum(both)):
            self.count += sign
            self.tried, self.errors = self.tried + sign * both[0], self.errors + sign * both[1]


def score(series: list[_traces.Series], steps: int) -> dict[str, float]:
    """Coverage, mean width and mean absolute errors over all machines, each forecast made before its value."""
    inside = count = sloped = 0
    width = 0.0
    wrong = dict.fromkeys(("forecast", *OTHERS), 0.0)
    for one in series:
        errors, lines, race, values = Errors(steps), Errors(steps), Race(), one.values
        hour: deque[float] = deque(maxlen=HOUR)
        for at, value in enumerate(values):
            line = along(values, at, steps, 1.0)
            error = errors.add(value, value)
            race.add(lines.add(value, line), error)
            hour.append(value)
            if at < WARM or at + steps >= len(values):
                continue
            truth = values[at + steps]
            told = interval(errors.sorted, value, 1.0) if math.isfinite(value) else None
            if told is not None and math.isfinite(line) and wins(race.count, race.tried, race.errors):
                told = interval(lines.sorted, line, 1.0)
                sloped += 1
            if told is None or not math.isfinite(truth):
                continue
            count += 1
            inside += told.low <= truth <= told.high
            width += told.high - told.low
            past = [old for old in hour if math.isfinite(old)]
            said = (told.value, value, sum(past) / len(past), line if math.isfinite(line) else value)
            for name, guess in zip(wrong, said, strict=True):
                wrong[name] += abs(guess - truth)
    if not count:
        return {"forecasts": 0}
    found = {"forecasts": count, "coverage": round(inside / count, 3), "width": round(width / count, 3)}
    found["sloped"] = round(sloped / count, 4)
    return found | {f"error of {name}": round(total / count, 4) for name, total in wrong.items()}


def main() -> None:
    """Print one JSON line a trace and distance."""
    traces = _traces.folder("forecasts", __doc__)
    for name, series in _traces.read(traces) if traces is not None else ():
        for minutes in (15, 30, 60):
            told = {"bench": "forecasts", "trace": name, "machines": len(series), "minutes": minutes}
            print(json.dumps(told | {"goal": COVERAGE} | score(series, minutes * 60 // STEP)), flush=True)


if __name__ == "__main__":
    main()
