"""How much of one quantity the jobs of one shape need: several methods side by side, each judged by what it would have
wasted on every sample before it learned it; the one that has wasted least so far answers. All values are logarithms."""

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from distributed_grid.coordinator.predictor.line import Line
from distributed_grid.coordinator.predictor.order import Window, censored_quantile, censored_share, quantile

MIN_SAMPLES_FOR_STATS = 5
MIN_SAMPLES_FOR_ML = 30
"""Samples from which on the order statistics, and the line, may answer: the seed's constants."""
DECAY = 0.97
"""By how much what a method wasted counts less with each sample."""
ADAPT = 0.05
"""By how much a miss raises the level of the quantile, as part of what is left to 1; hits lower it so that the share of
misses comes to MISSES (adaptive conformal inference, Gibbs and Candès)."""
CUT_AFTER = 3
"""Misses in a row that are a change of level, as by a new version of a program: the window is cut to those."""
REMEMBERED = 200
"""Answers whose share of hits is the confidence."""
BEYOND = math.log(1.15)
"""A line reaches beyond the largest seen by this, and by as much as the input is larger than the largest."""


class Method(IntEnum):
    """How an answer was found."""

    QUANTILE = 0
    LARGEST = 1
    LINE = 2
    HIGH_LINE = 3
    ABOVE = 4
    """What is known of the program, or the user, as a whole."""


QUANTILE, LARGEST, LINE, HIGH_LINE, ABOVE = Method  # looked up once: learning a sample asks for them fifty times
_LINES = (LINE, HIGH_LINE)


class Quantity(NamedTuple):
    """What is estimated. `level`: of its quantile. `few`: divided by the number of samples and added, as the largest
    of n values is exceeded by one in n + 1. `misses`: the share of answers that may be too small. `wasted`: too much
    is wasted as long as it is held, too little wastes the whole run and the next one; else a miss costs as much more
    as the level says (pinball loss)."""

    level: float
    methods: tuple[Method, ...]
    margin: float
    line_margin: float
    few: float
    misses: float
    wasted: bool
    least: float
    """Below it nothing is too little (a logarithm)."""


MEMORY = Quantity(
    0.95, (QUANTILE, LARGEST, LINE, HIGH_LINE), math.log(1.1), math.log(1.05), 1.0, 0.02,
    True, math.log(32 << 20),
)  # fmt: skip
SECONDS = Quantity(0.9, (QUANTILE, LINE), 0.0, 0.0, 2.0, 0.1, False, -math.inf)
CORES = Quantity(0.95, (QUANTILE,), 0.0, 0.0, 0.0, 0.05, False, -math.inf)
GPU_MEMORY = Quantity(0.95, (QUANTILE,), math.log(1.1), 0.0, 1.0, 0.05, True, -math.inf)
TWICE = math.log(2.0)
"""By so much more than the largest seen is planned for."""
HIGH = 0.98
"""The level of the higher line."""
RESIDUALS = 8
"""Residuals from which on a line has an answer to be judged."""


class Estimator:
    """Of one quantity and one shape. Learning and estimating are O(log n) for n samples in the window, of which there
    are at most 200."""

    __slots__ = (
        "answered_by_line",
        "before",
        "costs",
        "enough",
        "largest",
        "level",
        "line",
        "missed",
        "quantity",
        "residuals",
        "told",
        "values",
    )

    def __init__(self, quantity: Quantity, features: int) -> None:
        self.quantity = quantity
        self.values = Window()
        self.residuals = Window()
        self.line = Line(features)
        self.largest = [-math.inf] * features
        self.costs = [0.0] * len(Method)
        self.level = 0.0
        self.missed = 0
        self.enough = self.told = 0
        self.answered_by_line, self.before = False, 0
        """Of the last answer that was judged: how it was found, and from how many samples."""

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def ready(self) -> bool:
        """Whether there are enough samples to answer; after a change of level, the few of the new one."""
        return len(self.values) >= MIN_SAMPLES_FOR_STATS or self.told > 0

    def confidence(self) -> float | None:
        """The share of the last 200 answers that were enough; None: too few were given."""
        return float(self.enough.bit_count() / self.told) if self.told >= MIN_SAMPLES_FOR_ML else None

    def adapted(self, level: float) -> float:
        """This level, as misses have moved it."""
        return min(0.999, level + self.level * (1.0 - level))

    def answers(self, xs: tuple[float, ...], above: float | None = None) -> list[tuple[float, Method]]:
        """What each method that has enough samples says; the first has always."""
        quantity, ordered = self.quantity, self.values.sorted
        few = quantity.few / len(ordered)
        spread = 0.0 if quantity.wasted else few
        found = [(quantile(ordered, self.adapted(quantity.level)) + quantity.margin + spread, QUANTILE)]
        if LARGEST in quantity.methods:
            found.append(self.largest_seen())
        if len(self.residuals) >= RESIDUALS:
            height, which = self.line.at(xs)
            highest = ordered[-1] + BEYOND + (max(0.0, xs[which] - self.largest[which]) if which >= 0 else 0.0)
            height += quantity.line_margin + spread
            residuals = self.residuals.sorted
            found.append((min(highest, height + quantile(residuals, self.adapted(quantity.level))), LINE))
            if HIGH_LINE in quantity.methods:
                found.append((min(highest, height + quantile(residuals, self.adapted(HIGH))), HIGH_LINE))
        if above is not None:
            found.append((above, ABOVE))
        return found

    def estimate(self, xs: tuple[float, ...], above: float | None = None) -> tuple[float, Method]:
        """The answer of the method that has wasted least so far."""
        found = self.answers(xs, above)
        if len(self.values) < MIN_SAMPLES_FOR_ML:
            found = [one for one in found if one[1] not in _LINES]
        costs, best, answer = self.costs, math.inf, found[0]
        for one in found:
            if costs[one[1]] < best:
                best, answer = costs[one[1]], one
        return answer

    def largest_seen(self) -> tuple[float, Method]:
        """The largest, and a margin: where samples of different kinds say nothing else about the next one."""
        ordered, quantity = self.values.sorted, self.quantity
        return ordered[-1] + quantity.margin + quantity.few / len(ordered), LARGEST

    def quantiles(
        self, xs: tuple[float, ...], levels: Sequence[float], running: Sequence[tuple[float, tuple[float, ...]]]
    ) -> tuple[list[float], Method]:
        """The values at these levels by the method that answers now, where for some that still run it is known only
        that they need more: (so much, their features) each. Levels above the median are moved by misses."""
        few = self.quantity.few / len(self.values)
        method = self.estimate(xs)[1]
        height, highest, ordered, censored = self._running(method, xs, running)
        found = []
        for level in levels:
            moved, more = (self.adapted(level), few) if level > 0.5 else (level, 0.0)
            found.append(min(highest, height + more + censored_quantile(ordered, censored, moved)))
        return found, method

    def _running(
        self, method: Method, xs: tuple[float, ...], running: Sequence[tuple[float, tuple[float, ...]]]
    ) -> tuple[float, float, Sequence[float], list[float]]:
        """Of a method: what its values are relative to, the most that it says, its values, and the
        least that those that still run come to."""
        if method is not LINE:
            ordered = self.values.sorted
            return 0.0, math.inf, ordered, sorted([value for value, _ in running if value > ordered[0]])
        ordered, line = self.residuals.sorted, self.line
        height, which = line.at(xs)
        highest = self.values.sorted[-1] + TWICE
        if which < 0:
            return height, highest, ordered, sorted([value - height for value, _ in running])
        highest += max(0.0, xs[which] - self.largest[which])
        slope = line.slope(which)
        low = ordered[0] + height - slope * xs[which]
        lows = [value - slope * theirs[which] - low for value, theirs in running]
        return height, highest, ordered, sorted([value + ordered[0] for value in lows if value > 0.0])

    def below(self, xs: tuple[float, ...], limit: float, running: Sequence[tuple[float, tuple[float, ...]]]) -> float:
        """The probability that a job needs at most this."""
        height, _, ordered, censored = self._running(self.estimate(xs)[1], xs, running)
        return censored_share(ordered, censored, limit - height)

    def add(self, value: float) -> None:
        """One more sample, of which nothing is judged."""
        self.values.add(value)

    def learn(self, xs: tuple[float, ...], value: float, weight: float, above: float | None = None) -> float | None:
        """One more sample: first what each method would have said of it is judged, then it is learned. `weight`: for
        how long the quantity was held (s). Returns what was answered for it; None: there were too few samples."""
        answer = self._judge(xs, value, weight, above) if self.ready else None
        line = self.line
        if xs:
            if line.count >= 3:
                self.residuals.add(value - line.at(xs)[0])
            line.add(xs, value)
            for at, x in enumerate(xs):
                if x > self.largest[at]:
                    self.largest[at] = x
        self.values.add(value)
        if self.missed >= CUT_AFTER:
            self._cut(xs)
        return answer

    def _judge(self, xs: tuple[float, ...], value: float, weight: float, above: float | None) -> float:
        costs, best, tried = self.costs, math.inf, self.answers(xs, above)
        usable, answer, by = len(self.values) >= MIN_SAMPLES_FOR_ML, 0.0, QUANTILE
        for said, method in tried:
            if costs[method] < best and (usable or method not in _LINES):
                best, answer, by = costs[method], said, method
        self.answered_by_line, self.before = by in _LINES, len(self.values)
        used, loss = math.exp(value), self._loss
        for said, method in tried:
            costs[method] = DECAY * costs[method] + loss(said, value, used, weight)
        first = costs[0]  # of a method that has not been tried, as long as it has not
        if above is None:
            costs[ABOVE] = first
        if len(tried) - (above is not None) < len(self.quantity.methods):
            costs[LINE] = costs[HIGH_LINE] = first
        missed = answer < value and value > self.quantity.least
        self.enough = ((self.enough << 1) | (not missed)) & ((1 << REMEMBERED) - 1)
        self.told = min(REMEMBERED, self.told + 1)
        self.level = min(0.9, max(-0.5, self.level + ADAPT * (missed - self.quantity.misses)))
        self.missed = self.missed + 1 if missed else 0
        return answer

    def _loss(self, said: float, value: float, used: float, weight: float) -> float:
        if not self.quantity.wasted:
            return self.quantity.level * (value - said) if said < value else (1 - self.quantity.level) * (said - value)
        said = math.exp(max(said, self.quantity.least))
        if said >= used:
            return (said - used) * weight
        again = 2 * said - used if 2 * said >= used else 4 * said - used
        return (said + max(again, 0.0)) * weight

    def _cut(self, xs: tuple[float, ...]) -> None:
        newest = self.values.last(CUT_AFTER)
        self.values, self.residuals, self.line = Window(newest), Window(), Line(len(xs))
        self.largest = list(xs)
        for value in newest:
            self.line.add(xs, value)
        self.costs = [0.0] * len(Method)
        self.missed = 0
