"""Forecasts of a machine's use, 15, 30 and 60 minutes ahead, on real traces: how often the value lies in the interval
that was told before it, how wide that is, and the error of the last value beside that of other forecasts. Nothing is
scored within a machine's first two days, or without an interval; what came after those days was never tuned on."""

import json
import math
from bisect import bisect_left, insort
from collections import deque

from bench import _traces
from distributed_grid.coordinator.core.trends.forecast import COVERAGE, PAST, STEP, interval
from distributed_grid.coordinator.core.trends.windows import slope

WARM = PAST
HOUR = 3600 // STEP
OTHERS = ("hour's mean", "slope")


class Errors:
    """The sorted errors of the last two days, kept as values come."""

    def __init__(self, steps: int) -> None:
        self.sorted: list[float] = []
        self._values: deque[float] = deque(maxlen=steps)
        self._errors: deque[float] = deque()

    def add(self, value: float) -> None:
        """The next value; NaN where it is missing."""
        if len(self._values) == self._values.maxlen:
            error = value - self._values[0]
            self._errors.append(error)
            if math.isfinite(error):
                insort(self.sorted, error)
            if len(self._errors) > PAST and math.isfinite(oldest := self._errors.popleft()):
                del self.sorted[bisect_left(self.sorted, oldest)]
        self._values.append(value)


def score(series: list[_traces.Series], steps: int) -> dict[str, float]:
    """Coverage, mean width and mean absolute errors over all machines, each forecast made before its value."""
    inside = count = 0
    width = 0.0
    wrong = dict.fromkeys(("last value", *OTHERS), 0.0)
    for one in series:
        errors, values = Errors(steps), one.values
        hour: deque[float] = deque(maxlen=HOUR)
        for at, value in enumerate(values):
            errors.add(value)
            hour.append(value)
            if at < WARM or at + steps >= len(values):
                continue
            truth = values[at + steps]
            told = interval(errors.sorted, value, 1.0) if math.isfinite(value) else None
            if told is None or not math.isfinite(truth):
                continue
            count += 1
            inside += told.low <= truth <= told.high
            width += told.high - told.low
            past = [old for old in hour if math.isfinite(old)]
            rise = slope(list(hour), 1.0) * steps
            said = (value, sum(past) / len(past), min(1.0, max(0.0, value + rise)))
            for name, guess in zip(wrong, said, strict=True):
                wrong[name] += abs(guess - truth)
    if not count:
        return {"forecasts": 0}
    found = {"forecasts": count, "coverage": round(inside / count, 3), "width": round(width / count, 3)}
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
