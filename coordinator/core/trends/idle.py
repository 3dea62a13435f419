"""How long a node stays idle: the probability that its owner does not use it for a given time, learned by each node
from its own past. Each forecast is made before the time that it is about, and learned from after that time.

The base is survival by the time that the node has been idle so far: ten counters a horizon, shrunk to the node's mean
and that to the grid's. On top is an online logistic regression (Adagrad, Duchi et al. 2011) with the base as one of 14
features. The mean of both is used by a node where it has had the lower Brier score so far: on real machines it erred
less than either, and was better calibrated.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from distributed_grid.protocol.history.trends import IdleChance

STEP = 300
"""Interval of what is observed (s)."""
EVERY = 6
"""A forecast is made in each of so many intervals."""
HORIZONS = (1800, 7200, 14400)
"""How much longer (s)."""
COUNTERS = 10
SHRINK = 4.0
"""Weight of a node's mean in each of its counters, and of the grid's in that, as a number of cases."""
FEATURES = 14
HOURLY = 12.0
"""The same for the counters of each hour of the day."""
TRIED = 50
"""Number of forecasts that are compared before the regression may be used."""
RATE, DECAY = 0.15, 1e-4
"""Learning rate, and weight decay."""
DAY, WEEK = 86400 // (STEP * EVERY), 7 * 86400 // (STEP * EVERY)
HOUR = 3600 // STEP
FADE = 0.5 ** (STEP / 86400)
"""What is left of the peak of an owner's use after an interval: a half after a day."""
BINS = 10
DOUBT, DOUBTED = 0.05, 100
"""A bin of so many forecasts that is off by more than this is not believed."""


class Bin(msgspec.Struct, array_like=True):
    """Forecasts of about the same probability: how many, the sum of what was said, and how many came true."""

    count: int = 0
    said: float = 0.0
    true: int = 0

    @property
    def believed(self) -> bool:
        """Whether what was said came true about as often."""
        return self.count < DOUBTED or abs(self.said - self.true) <= DOUBT * self.count


class Learned(msgspec.Struct):
    """What a node has learned for one horizon. `hours`: cases, and those that stayed idle, by hour of the day, on
    weekdays and then at weekends; `wrong`: the sums of squared errors of the base and of the mean of both."""

    cases: list[int] = msgspec.field(default_factory=lambda: [0] * COUNTERS)
    lasted: list[int] = msgspec.field(default_factory=lambda: [0] * COUNTERS)
    hours: list[tuple[int, int]] = msgspec.field(default_factory=lambda: [(0, 0)] * 48)
    weights: list[float] = msgspec.field(default_factory=lambda: [0.0] * FEATURES)
    gradients: list[float] = msgspec.field(default_factory=lambda: [1e-2] * FEATURES)
    wrong: tuple[float, float] = (0.0, 0.0)
    bins: list[Bin] = msgspec.field(default_factory=lambda: [Bin() for _ in range(BINS)])


class Memory(msgspec.Struct):
    """What a node keeps over restarts: what it has learned by horizon, up to before the interval `next`."""

    learned: list[Learned]
    next: int = 0


class Pool:
    """The knowledge of all nodes of the grid together, by horizon: cases and those that stayed idle, and how reliable
    the forecasts were."""

    def __init__(self) -> None:
        self.cases = [0] * len(HORIZONS)
        self.lasted = [0] * len(HORIZONS)
        self.bins = [[Bin() for _ in range(BINS)] for _ in HORIZONS]

    def add(self, memory: Memory) -> None:
        """Count what a node has learned before."""
        for number, one in enumerate(memory.learned):
            self.cases[number] += sum(one.cases)
            self.lasted[number] += sum(one.lasted)
            for mine, theirs in zip(self.bins[number], one.bins, strict=True):
                mine.count, mine.said, mine.true = (
                    mine.count + theirs.count,
                    mine.said + theirs.said,
                    mine.true + theirs.true,
                )

    def rate(self, horizon: int) -> float:
        """The part of all cases that lasted; a half without any."""
        return (self.lasted[horizon] + 1) / (self.cases[horizon] + 2)


def _bin(bins: Sequence[Bin], probability: float) -> Bin:
    """The bin of forecasts like this one."""
    return bins[min(BINS - 1, int(probability * BINS))]


class _Made(NamedTuple):
    """A forecast that waits for its time: made in the interval `at`, with what; `failed`: it cannot come true; `late`:
    it was made again after a restart, when more was known, and so says nothing of how good forecasts are."""

    at: int
    counter: int
    features: list[float]
    base: float
    both: float
    hour: int
    failed: bool = False
    late: bool = False


class _Learner:
    """One horizon of a node: what it has learned, and the forecasts whose outcome is not known yet."""

    def __init__(self, learned: Learned) -> None:
        self.learned = learned
        self.outcomes: dict[int, int] = {}
        """What came of the newest forecasts, a week's at least, by the interval they were made in, in that order."""
        self.waiting: deque[_Made] = deque()

    @property
    def uses_both(self) -> bool:
        base, both = self.learned.wrong
        return sum(self.learned.cases) >= TRIED and both < base

    def mean(self, grid: float) -> float:
        learned = self.learned
        return (sum(learned.lasted) + SHRINK * grid) / (sum(learned.cases) + SHRINK)

    def base(self, counter: int, mean: float) -> float:
        return (self.learned.lasted[counter] + SHRINK * mean) / (self.learned.cases[counter] + SHRINK)

    def of_hour(self, hour: int, mean: float) -> float:
        cases, lasted = self.learned.hours[hour]
        return (lasted + HOURLY * mean) / (cases + HOURLY)

    def before(self, at: int, intervals: int) -> float:
        """Return the result of the last forecast at least this many intervals earlier, centred at 0; 0 if it is not
        known."""
        wanted = at - at % EVERY - intervals * EVERY
        return self.outcomes[wanted] - 0.5 if wanted in self.outcomes else 0.0

    def regression(self, features: Sequence[float]) -> float:
        total = sum(weight * feature for weight, feature in zip(self.learned.weights, features, strict=True))
        return 1 / (1 + math.exp(-max(-12.0, min(12.0, total))))

    def learn(self, made: _Made, outcome: int) -> None:
        learned, (base, both) = self.learned, self.learned.wrong
        wrong = self.regression(made.features) - outcome
        learned.cases[made.counter] += 1
        learned.lasted[made.counter] += outcome
        cases, lasted = learned.hours[made.hour]
        learned.hours[made.hour] = cases + 1, lasted + outcome
        if not made.late:
            learned.wrong = base + (made.base - outcome) ** 2, both + (made.both - outcome) ** 2
        self.outcomes[made.at] = outcome
        if len(self.outcomes) > WEEK + 1:
            del self.outcomes[next(iter(self.outcomes))]
        for at, feature in enumerate(made.features):
            slope = wrong * feature + DECAY * learned.weights[at]
            learned.gradients[at] += slope * slope
            learned.weights[at] -= RATE * slope / math.sqrt(learned.gradients[at])


class IdleForecaster:
    """One node. `observe` each interval in turn. Times are grid time in UTC: the hour of the day is only a feature."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.since: int | None = None
        """The interval in which it began to be idle; None: it is in use, or not measured."""
        memory = memory or Memory([Learned() for _ in HORIZONS])
        self._learners = [_Learner(one) for one in memory.learned]
        self._recent: deque[float] = deque(maxlen=HOUR + 1)
        self._learned = memory.next
        self.peak = 0.0
        """The most that the owner used of late in an interval between two others that left the node idle, too, as a
        part of the node. (In one in which the owner comes or leaves they use it for a part of the time only.)"""
        self._between = 0.0
        """The use in the newest interval, if the one before left the node idle, too: it counts if the next one does."""
        self.next = 0
        """The interval that is observed next."""

    def memory(self) -> Memory:
        """Return what is to be kept over a restart."""
        return Memory([one.learned for one in self._learners], max(self.next, self._learned))

    def observe(self, at: int, use: float, idle: bool, pool: Pool) -> None:
        """Add the measurement of this interval: the owner's use as a part of the node (NaN: nothing), and whether that
        left the node idle. Intervals that are left out were not measured. Intervals that were learned before a restart
        still count for how long the node is idle, and for open forecasts."""
        if at < self.next:
            return
        if at > self.next or math.isnan(use):
            self._forget()
        self.next = at + 1
        if math.isnan(use):
            return
        self._recent.append(use)
        self._resolve(at, idle, pool)
        self.peak *= FADE
        if not idle:
            self.since, self._between = None, 0.0
            return
        self.peak = max(self.peak, self._between)
        self._between = use if self.since is not None else 0.0
        if self.since is None:
            self.since = at
        if at % EVERY == 0:
            common = self._common(at, self.since)
            for number, learner in enumerate(self._learners):
                if at + HORIZONS[number] // STEP >= self._learned:
                    made = self._made(at, common, number, learner, pool)
                    learner.waiting.append(made._replace(late=at < self._learned))

    def _forget(self) -> None:
        """Drop the open forecasts, whose outcome cannot be known any more."""
        self.since, self._between = None, 0.0
        self._recent.clear()
        for learner in self._learners:
            learner.waiting.clear()

    def _resolve(self, at: int, idle: bool, pool: Pool) -> None:
        for number, learner in enumerate(self._learners):
            if not idle and learner.waiting and not learner.waiting[-1].failed:  # as have the others if that has
                learner.waiting = deque(made._replace(failed=True) for made in learner.waiting)
            # Also what has failed is learned from when its time has passed, or failures would be known first.
            while learner.waiting and learner.waiting[0].at + HORIZONS[number] // STEP <= at:
                self._learn(number, learner, learner.waiting.popleft(), pool)

    def _learn(self, number: int, learner: _Learner, made: _Made, pool: Pool) -> None:
        outcome, said = int(not made.failed), made.both if learner.uses_both else made.base
        learner.learn(made, outcome)
        pool.cases[number] += 1
        pool.lasted[number] += outcome
        if made.late:
            return
        for bins in (pool.bins[number], learner.learned.bins):
            one = _bin(bins, said)
            one.count, one.said, one.true = one.count + 1, one.said + said, one.true + outcome

    def _common(self, at: int, since: int) -> tuple[int, int, list[float]]:
        """Return what the forecasts for all horizons share: the counter, the hour of the day and the first features."""
        weekend = (at * STEP // 86400 + 4) % 7 in (0, 6)
        hour = (at * STEP // 3600) % 24 + 24 * weekend
        mean = sum(self._recent) / len(self._recent)
        spread = math.sqrt(sum((one - mean) ** 2 for one in self._recent) / len(self._recent))
        turn = 2 * math.pi * (at * STEP % 86400) / 86400
        features = [
            1.0,
            math.log1p(at - since) / 5,
            3 * self._recent[-1],
            3 * mean,
            5 * spread,
            float(weekend),
            math.sin(turn),
            math.cos(turn),
            math.sin(2 * turn),
            math.cos(2 * turn),
        ]
        return _counter(at - since), hour, features

    def _made(self, at: int, common: tuple[int, int, list[float]], number: int, learner: _Learner, pool: Pool) -> _Made:
        counter, hour, first = common
        node = learner.mean(pool.rate(number))
        base = learner.base(counter, node)
        features = [
            *first,
            _logit(learner.of_hour(hour, node)) / 3,
            _logit(base) / 3,
            learner.before(at, DAY),
            learner.before(at, WEEK),
        ]
        return _Made(at, counter, features, base, (base + learner.regression(features)) / 2, hour)

    def forecast(self, pool: Pool) -> tuple[IdleChance, ...]:
        """Return a forecast for each horizon, from the newest interval; nothing while the node is in use, or was never
        measured."""
        return () if self.since is None else self.expected(pool)

    def expected(self, pool: Pool) -> tuple[IdleChance, ...]:
        """The same, and of a node in use as if its owner left now; nothing if the newest interval was not measured."""
        if not self._recent:
            return ()
        found, at = [], self.next - 1
        common = self._common(at, at if self.since is None else self.since)
        for number, learner in enumerate(self._learners):
            made = self._made(at, common, number, learner, pool)
            said = made.both if learner.uses_both else made.base
            cases, lasted = learner.learned.cases[made.counter], learner.learned.lasted[made.counter]
            one, past = _bin(pool.bins[number], said), sum(learner.learned.cases)
            found.append(IdleChance(HORIZONS[number], said, cases, lasted, one.count, one.true, one.believed, past))
        return tuple(found)


def _counter(intervals: int) -> int:
    """Return the counter of a node that has been idle for this many intervals: each reaches twice as far as the one
    before."""
    return min(COUNTERS - 1, int(math.log2(1 + intervals)))


def _logit(probability: float) -> float:
    probability = min(0.999, max(0.001, probability))
    return math.log(probability / (1 - probability))
