"""How much of one quantity the jobs of one shape need. Several methods run side by side; each is scored, on every
sample before it learns it, by what it would have wasted. The method with the least waste so far answers. All values are
logarithms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from distributed_grid.coordinator.predictor.statistics import Line, Window, censored_quantiles, censored_share, quantile

MIN_SAMPLES_FOR_STATS = 5
MIN_SAMPLES_FOR_ML = 30
"""Samples from which on the order statistics, and the line, may answer: the seed's constants."""
DECAY = 0.97
"""Decay of a method's past waste with each sample."""
ADAPT = 0.05
"""By how much a miss raises the level of the quantile, as part of what is left to 1; hits lower it so that the share of
misses comes to MISSES (adaptive conformal inference, Gibbs and Candès)."""
CUT_AFTER = 3
"""Misses in a row that count as a change of level, as by a new version of a program: the window is cut to those."""
LOWEST, HIGHEST = -0.5, 0.9
"""Between which misses move the level."""
REMEMBERED = 200
"""Number of last answers whose share of hits is the confidence."""
_REMEMBERED = (1 << REMEMBERED) - 1
BEYOND = math.log(1.15)
"""A line reaches beyond the largest seen by this, and by as much as the input is larger than the largest."""


class Method(IntEnum):
    """The method by which an answer was found."""

    QUANTILE = 0
    LARGEST = 1
    LINE = 2
    HIGH_LINE = 3
    ABOVE = 4
    """What is known of the program, or the user, as a whole."""


QUANTILE, LARGEST, LINE, HIGH_LINE, ABOVE = Method  # looked up once: learning a sample asks for them fifty times
_Tried = Sequence[tuple[float, Method]]
"""What each method says."""


@dataclass(frozen=True, eq=False, slots=True)
class Quantity:
    """What is estimated. `level`: of its quantile. `few`: divided by the number of samples and added, as the largest of
    n values is exceeded by one in n + 1. `misses`: the share of answers that may be too small. `wasted`: the cost of an
    excess is what is held in vain, that of a shortfall the whole run and the next one; else costs are weighted by the
    level (pinball loss)."""

    level: float
    methods: tuple[Method, ...]
    margin: float
    line_margin: float
    few: float
    misses: float
    wasted: bool
    least: float
    """Below it nothing is too little (a logarithm)."""
    by_largest: bool = field(init=False)
    by_high_line: bool = field(init=False)
    """Whether `LARGEST`, `HIGH_LINE` are among the methods: asked with every sample."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_largest", LARGEST in self.methods)
        object.__setattr__(self, "by_high_line", HIGH_LINE in self.methods)


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


class _Fixed(NamedTuple):
    """The parts of answers that depend on samples alone: what `QUANTILE` and `LARGEST` say, what is added to the height
    of the line and of the higher one (NaN: there are too few residuals), the most that these say of an input no larger
    than the largest; and which method has wasted least, without and with `ABOVE`."""

    quantile: float
    largest: float
    on_line: float
    on_high_line: float
    highest: float
    best: Method
    best_or_above: Method


class Estimator:
    """Estimates one quantity of one shape. Learning and estimating are O(log n) for n samples in the window, of which
    there are at most 200."""

    __slots__ = (
        "answered_by_line",
        "before",
        "costs",
        "enough",
        "fixed",
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
        self.fixed: _Fixed | None = None
        """None: something was learned since the last answer."""

    @property
    def count(self) -> int:
        return len(self.values.sorted)

    @property
    def ready(self) -> bool:
        """Whether there are enough samples to answer; after a change of level, the few of the new one."""
        return self.told > 0 or len(self.values.sorted) >= MIN_SAMPLES_FOR_STATS

    def confidence(self) -> float | None:
        """The share of the last 200 answers that were enough; None: too few were given."""
        return float(self.enough.bit_count() / self.told) if self.told >= MIN_SAMPLES_FOR_ML else None

    def adapted(self, level: float) -> float:
        """Return this level, adapted to earlier misses."""
        return min(0.999, level + self.level * (1.0 - level))

    def _fix(self) -> _Fixed:
        quantity, ordered, costs = self.quantity, self.values.sorted, self.costs
        few = quantity.few / len(ordered)
        spread = 0.0 if quantity.wasted else few
        level = self.adapted(quantity.level)
        first = quantile(ordered, level) + quantity.margin + spread
        on_line = on_high_line = math.nan
        best, usable = QUANTILE, len(ordered) >= MIN_SAMPLES_FOR_ML
        if quantity.by_largest and costs[LARGEST] < costs[best]:
            best = LARGEST
        residuals = self.residuals.sorted
        if len(residuals) >= RESIDUALS:
            on_line = quantile(residuals, level) + quantity.line_margin + spread
            if usable and costs[LINE] < costs[best]:
                best = LINE
            if quantity.by_high_line:
                on_high_line = quantile(residuals, self.adapted(HIGH)) + quantity.line_margin + spread
                if usable and costs[HIGH_LINE] < costs[best]:
                    best = HIGH_LINE
        largest, highest = ordered[-1] + quantity.margin + few, ordered[-1] + BEYOND
        above = ABOVE if costs[ABOVE] < costs[best] else best
        fixed = self.fixed = _Fixed(first, largest, on_line, on_high_line, highest, best, above)
        return fixed

    def answers(self, xs: tuple[float, ...], above: float | None = None) -> list[tuple[float, Method]]:
        """Return the answer of each method that has enough samples; the first one always has."""
        fixed = self.fixed or self._fix()
        found = [(fixed.quantile, QUANTILE)]
        if self.quantity.by_largest:
            found.append((fixed.largest, LARGEST))
        if fixed.on_line == fixed.on_line:
            height, highest = self._line(xs, fixed)
            found.append((min(highest, height + fixed.on_line), LINE))
            if fixed.on_high_line == fixed.on_high_line:
                found.append((min(highest, height + fixed.on_high_line), HIGH_LINE))
        if above is not None:
            found.append((above, ABOVE))
        return found

    def _line(self, xs: tuple[float, ...], fixed: _Fixed) -> tuple[float, float]:
        """The height of the line at this input, and the most that it says there."""
        height, which = self.line.at(xs)
        beyond = xs[which] - self.largest[which] if which >= 0 else 0.0
        return height, fixed.highest + beyond if beyond > 0.0 else fixed.highest

    def estimate(self, xs: tuple[float, ...], above: float | None = None) -> tuple[float, Method]:
        """The answer of the method that has wasted least so far."""
        fixed = self.fixed or self._fix()
        method = fixed.best if above is None else fixed.best_or_above
        if method is QUANTILE:
            return fixed.quantile, method
        if method is LARGEST:
            return fixed.largest, method
        if method is ABOVE and above is not None:
            return above, method
        height, highest = self._line(xs, fixed)
        return min(highest, height + (fixed.on_line if method is LINE else fixed.on_high_line)), method

    def by_number(self, method: Method) -> bool:
        """Whether the estimate of this method depends on a feature."""
        return (method is LINE or method is HIGH_LINE) and not self.line.flat

    def largest_seen(self) -> tuple[float, Method]:
        """The largest value and a margin, for samples of different kinds, which say nothing else about the next one."""
        return (self.fixed or self._fix()).largest, LARGEST

    def quantiles(
        self, xs: tuple[float, ...], levels: Sequence[float], running: Sequence[tuple[float, tuple[float, ...]]]
    ) -> tuple[list[float], Method]:
        """Return the values at these levels, and the method in use. `running`: samples that still run, of which only a
        minimum is known, each with its features. Levels ascend; those above the median are adapted to misses."""
        few = self.quantity.few / len(self.values.sorted)
        method = (self.fixed or self._fix()).best
        height, highest, ordered, censored = self._running(method, xs, running)
        moved = [self.adapted(level) if level > 0.5 else level for level in levels]
        found = censored_quantiles(ordered, censored, moved)
        more = [few if level > 0.5 else 0.0 for level in levels]
        return [min(highest, height + extra + value) for extra, value in zip(more, found, strict=True)], method

    def _running(
        self, method: Method, xs: tuple[float, ...], running: Sequence[tuple[float, tuple[float, ...]]]
    ) -> tuple[float, float, Sequence[float], list[float]]:
        """Return, for a method: what its values are relative to, its maximum, its values, and the minima of samples
        that still run."""
        if method is not LINE:
            ordered = self.values.sorted
            return 0.0, math.inf, ordered, sorted([value for value, _ in running if value > ordered[0]])
        ordered = self.residuals.sorted
        height, which = self.line.at(xs)
        highest = self.values.sorted[-1] + TWICE
        if which < 0:
            return height, highest, ordered, sorted([value - height for value, _ in running])
        highest += max(0.0, xs[which] - self.largest[which])
        slope = self.line.slope(which) if running else 0.0
        first = ordered[0]
        low = first + height - slope * xs[which]
        more = [over for value, theirs in running if (over := value - slope * theirs[which] - low) > 0.0]
        return height, highest, ordered, sorted([over + first for over in more])

    def below(self, xs: tuple[float, ...], limit: float, running: Sequence[tuple[float, tuple[float, ...]]]) -> float:
        """The probability that a job needs at most this."""
        height, _, ordered, censored = self._running((self.fixed or self._fix()).best, xs, running)
        return censored_share(ordered, censored, limit - height)

    def add(self, value: float) -> None:
        """Add a sample without judging the methods by it."""
        self.values.add(value)
        self.fixed = None

    def learn(self, xs: tuple[float, ...], value: float, weight: float, above: float | None = None) -> float | None:
        """Learn one more sample, after judging what each method would have answered for it. `weight`: how long the
        quantity was held (s). Returns the answer for it; None: there were too few samples."""
        answer = self._judge(xs, value, weight, above) if self.ready else None
        line = self.line
        if xs:
            if line.count >= 3:
                self.residuals.add(value - line.at(xs)[0])
            line.add(xs, value)
            largest = self.largest
            for at, x in enumerate(xs):
                if x > largest[at]:
                    largest[at] = x
        self.values.add(value)
        if self.missed >= CUT_AFTER:
            self._cut(xs)
        self.fixed = None
        return answer

    def _judge(self, xs: tuple[float, ...], value: float, weight: float, above: float | None) -> float:
        fixed, quantity = self.fixed or self._fix(), self.quantity
        answer, by = fixed.quantile, fixed.best if above is None else fixed.best_or_above
        self.answered_by_line, self.before = self.by_number(by), len(self.values.sorted)
        if len(quantity.methods) > 1 or above is not None:
            costs, tried = self.costs, self.answers(xs, above)
            lose = _wasted if quantity.wasted else _pinball
            lose(costs, tried, quantity, value, weight)
            for said, method in tried:
                if method is by:
                    answer = said
            first = costs[0]  # of a method that has not been tried, as long as it has not
            if above is None:
                costs[ABOVE] = first
            if len(tried) - (above is not None) < len(quantity.methods):
                costs[LINE] = costs[HIGH_LINE] = first
        missed = answer < value and value > quantity.least
        self.enough = ((self.enough << 1) | (not missed)) & _REMEMBERED
        if self.told < REMEMBERED:
            self.told += 1
        level = self.level + ADAPT * (missed - quantity.misses)
        self.level = LOWEST if level < LOWEST else min(level, HIGHEST)
        self.missed = self.missed + 1 if missed else 0
        return answer

    def _cut(self, xs: tuple[float, ...]) -> None:
        newest = self.values.last(CUT_AFTER)
        self.values, self.residuals, self.line = Window(newest), Window(), Line(len(xs))
        self.largest = list(xs)
        for value in newest:
            self.line.add(xs, value)
        self.costs = [0.0] * len(Method)
        self.missed = 0


def _wasted(costs: list[float], tried: _Tried, quantity: Quantity, value: float, weight: float) -> None:
    """Add what each answer would have wasted: what is too much, or the whole run and what is too much of the next
    one."""
    used, least, exp = math.exp(value), quantity.least, math.exp
    for said, method in tried:
        given = exp(said if said > least else least)
        if given >= used:
            lost = given - used
        else:
            again = 2 * given - used if 2 * given >= used else 4 * given - used
            lost = given + again if again > 0.0 else given
        costs[method] = DECAY * costs[method] + lost * weight


def _pinball(costs: list[float], tried: _Tried, quantity: Quantity, value: float, _: float) -> None:
    level = quantity.level
    for said, method in tried:
        lost = level * (value - said) if said < value else (1 - level) * (said - value)
        costs[method] = DECAY * costs[method] + lost
