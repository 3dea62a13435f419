"""Predicts what a job needs from the shape of its command, and learns from what jobs used. In memory and bounded: at
most 100,000 shapes; the few hundred in use have windows of 200 samples, the others their last few samples."""

import math
from array import array
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from distributed_grid.coordinator.predictor.estimate import (
    ABOVE,
    CORES,
    GPU_MEMORY,
    MEMORY,
    MIN_SAMPLES_FOR_ML,
    MIN_SAMPLES_FOR_STATS,
    QUANTILE,
    REMEMBERED,
    SECONDS,
    Estimator,
    Method,
    Quantity,
)
from distributed_grid.coordinator.predictor.shape import FEATURES, Shape
from distributed_grid.coordinator.predictor.statistics import LENGTH

SHAPES = 100_000
"""Maximum number of shapes, programs and users."""
IN_USE = 500
"""Maximum number of those that have windows."""
AT_ONCE = 1000
"""Number of shapes removed at a time, oldest first; first those of users with more than their share."""
RUNNING = 64
"""Maximum number of running attempts of a shape that are considered."""
LEAST = 0.01
"""Minimum of a value (seconds, cores, bytes); smaller ones count as this."""
_LEAST = math.log(LEAST)
MOST = 1e15
"""Maximum of a value; larger ones, as a hostile node could report, count as this."""
SPACING = 0.05
"""Seconds between two runs of a shape that are learned, once its windows have been full: of a burst the rest says no
more."""
RAISE = 1.05
"""Minimum factor by which memory is raised after a job ran out of it."""


class How(StrEnum):
    """How an attempt ended, as far as its needs are concerned."""

    DONE = "done"
    OUT_OF_MEMORY = "out of memory"
    TIME_LIMIT = "time limit"
    CUT = "cut"
    """Failed, cancelled, preempted or lost: it would have used more, nobody knows how much."""


class Usage(NamedTuple):
    """The use of an attempt: seconds, the most memory (bytes), the most cores at once, the most GPU memory (bytes); 0:
    not known. `held`: the memory that it was granted (bytes)."""

    seconds: float
    memory: float
    cores: float
    gpu_memory: float = 0.0
    held: float = 0.0
    how: How = How.DONE


class Tier(StrEnum):
    """The method by which an answer was found."""

    ML = "ml"
    STATISTICS = "statistics"
    DEFAULT = "default"


_ML, _STATISTICS = Tier.ML, Tier.STATISTICS  # looked up once: each lookup of a member takes as long as a call


class Level(StrEnum):
    """Whose samples an answer is based on."""

    SHAPE = "shape"
    PROGRAM = "program"
    USER = "user"
    NONE = ""


_LEVELS = (Level.SHAPE, Level.PROGRAM, Level.USER)


class Answer(NamedTuple):
    """A need: `value` in bytes, cores or seconds; `confidence` is the share of the last 200 such answers that were
    enough (None: too few were given to say)."""

    value: float = 0.0
    tier: Tier = Tier.DEFAULT
    level: Level = Level.NONE
    samples: int = 0
    confidence: float | None = None
    method: Method = Method.QUANTILE

    def why(self) -> str:
        """A sentence about how the value was found."""
        if self.tier is Tier.DEFAULT:
            return f"fewer than {MIN_SAMPLES_FOR_STATS} runs like it are known"
        whose = {Level.SHAPE: "commands like it", Level.PROGRAM: "this program", Level.USER: "this user's jobs"}
        runs = f"{self.samples} runs of {whose[self.level]}"
        if self.tier is Tier.ML:
            return f"a line through {runs} by one of their numbers, and its last errors"
        if self.method is Method.LARGEST:
            return f"the largest of {runs}, and a margin"
        return f"order statistics of {runs}"


class Prediction(NamedTuple):
    """The predicted needs of a job. `seconds` is the median run time, `planned` the one that nine in ten runs stay
    within."""

    memory: Answer
    cores: Answer
    seconds: Answer
    planned: Answer
    gpu_memory: Answer


NOTHING = Prediction(*[Answer()] * 5)
_ROW = 4 + FEATURES
_Known = tuple[float, float, float, float]
_LATEST = 6


class _Owner:
    """A user, with the number of known shapes and of those with windows."""

    __slots__ = ("in_use", "key", "known")

    def __init__(self, key: int) -> None:
        self.key, self.known, self.in_use = key, 0, 0


class _Latest:
    """The last few samples of a shape: seconds, memory, cores, GPU memory and features each."""

    __slots__ = ("owner", "rows")

    def __init__(self, owner: _Owner) -> None:
        self.owner = owner
        self.rows = array("f")

    @property
    def count(self) -> int:
        return len(self.rows) // _ROW

    @property
    def size(self) -> float:
        """The size of what was shipped with the last one, as a feature."""
        return self.rows[-FEATURES]

    def add(self, known: _Known, xs: tuple[float, ...]) -> None:
        filled = (*known, *xs, *(0.0,) * (FEATURES - len(xs)))
        if len(self.rows) == _ROW * _LATEST:
            del self.rows[:_ROW]
        self.rows.extend(filled)


_Running = tuple[float, tuple[float, ...], Answer | None, float]
"""An attempt that runs: since when, its features, the run time that it was planned with, and until when by that. A
plain tuple, as a prediction unpacks up to 64 of them, which takes three times as long with a named one."""


class _Model:
    """Windows and lines of a shape in use. Values that are not known are NaN and are not learned."""

    __slots__ = ("cores", "gpu_memory", "latest", "learned_at", "lessons", "memory", "running", "seconds")

    def __init__(self, latest: _Latest, features: int) -> None:
        self.latest = latest
        self.lessons = latest.count
        """Number of attempts that it has learned from."""
        self.learned_at = -math.inf
        self.seconds, self.memory = Estimator(SECONDS, features), Estimator(MEMORY, features)
        self.cores = Estimator(CORES, 0)
        self.gpu_memory: Estimator | None = None
        self.running: dict[str, _Running] = {}
        rows = latest.rows
        for at in range(0, len(rows), _ROW):
            known = rows[at : at + 4]
            self._learn((known[0], known[1], known[2], known[3]), tuple(rows[at + 4 : at + 4 + features]), 1.0, None)

    def learn(self, known: _Known, xs: tuple[float, ...], weight: float, above: float | None) -> float | None:
        """Learn from an attempt; returns the memory that would have been predicted for it."""
        self.latest.add(known, xs)
        self.lessons += 1
        return self._learn(known, xs, weight, above)

    def _learn(self, known: _Known, xs: tuple[float, ...], weight: float, above: float | None) -> float | None:
        seconds, memory, cores, gpu_memory = known
        said = None
        if not xs:
            self._add(known)
            return None
        if seconds == seconds:
            self.seconds.learn(xs, seconds, 1.0)
        if memory == memory:
            said = self.memory.learn(xs, memory, weight, above)
        if cores == cores:
            self.cores.learn((), cores, weight)
        if gpu_memory == gpu_memory:
            if self.gpu_memory is None:
                self.gpu_memory = Estimator(GPU_MEMORY, 0)
            self.gpu_memory.learn((), gpu_memory, weight)
        return said

    def _add(self, known: _Known) -> None:
        """Add samples of a user, of different kinds: one says nothing about the next."""
        for estimator, value in zip((self.seconds, self.memory, self.cores), known, strict=False):
            if value == value:
                estimator.add(value)

    def still_running(self, now: float) -> list[tuple[float, tuple[float, ...]]]:
        log, just = math.log, now - LEAST
        return [(log(now - since) if since < just else _LEAST, xs) for since, xs, _, _ in self.running.values()]

    def overdue(self, now: float) -> int:
        """Number of running attempts that have exceeded their planned run time."""
        return sum([now > until for _, _, _, until in self.running.values()])


_Found = tuple[Level, tuple[float, ...], _Model]


class Predictor:
    """All calls are made by one thread, and take at most O(log 100,000) with more history."""

    def __init__(self) -> None:
        self._models: dict[int, _Model] = {}
        self._resting: dict[int, _Latest] = {}
        self._owners: dict[int, _Owner] = {}
        self._owners_in_use = 0
        self._hits: dict[tuple[Quantity, Tier, int], tuple[int, int]] = {}
        """The last answers, as bits, and how many: of a quantity, by a tier, from about as many samples."""
        self.learned = 0

    def __len__(self) -> int:
        return len(self._models) + len(self._resting)

    # --- what is remembered -------------------------------------------------------------------------------------------

    def _model(self, key: int, features: int) -> _Model | None:
        """The model of a shape with enough samples; it counts as in use from now on."""
        model = self._models.get(key)
        if model is not None:
            del self._models[key]
            self._models[key] = model
            return model
        latest = self._resting.get(key)
        if latest is None or latest.count < MIN_SAMPLES_FOR_STATS:
            return None
        del self._resting[key]
        model = self._models[key] = _Model(latest, features)
        self._owners_in_use += not latest.owner.in_use
        latest.owner.in_use += 1
        if len(self._models) > IN_USE:
            share = IN_USE // self._owners_in_use
            oldest = next((k for k, one in self._models.items() if one.latest.owner.in_use > share and k != key), None)
            oldest = next(iter(self._models)) if oldest is None else oldest
            rests = self._models.pop(oldest).latest
            rests.owner.in_use -= 1
            self._owners_in_use -= not rests.owner.in_use
            self._remember(oldest, rests)
        return model

    def _remember(self, key: int, latest: _Latest) -> None:
        self._resting.pop(key, None)
        self._resting[key] = latest
        if len(self._resting) > SHAPES - IN_USE:
            # Many at once: to find the first key of a dictionary takes as long as it has holes there.
            self._forget(self._beyond_share(AT_ONCE))
            self._forget(list(islice(self._resting, AT_ONCE - (SHAPES - IN_USE + 1 - len(self._resting)))))

    def _beyond_share(self, most: int) -> list[int]:
        """Return the oldest shapes of users that have more than their share, so that one user's many shapes do not
        remove those of others."""
        share, left, found = SHAPES // len(self._owners), dict[int, int](), list[int]()
        if not any(owner.known > share for owner in self._owners.values()):
            return found
        for key, latest in self._resting.items():
            owner = latest.owner
            if owner.known > share and (more := left.get(owner.key, owner.known - share)) > 0:
                left[owner.key] = more - 1
                found.append(key)
                if len(found) == most:
                    break
        return found

    def _forget(self, keys: list[int]) -> None:
        for key in keys:
            owner = self._resting.pop(key).owner
            owner.known -= 1
            if not owner.known:
                del self._owners[owner.key]

    def _latest(self, key: int, user: int) -> _Latest:
        found = self._resting.get(key)
        if found is None:
            owner = self._owners.get(user)
            if owner is None:
                owner = self._owners[user] = _Owner(user)
            owner.known += 1
            found = _Latest(owner)
        self._remember(key, found)
        return found

    # --- learning -----------------------------------------------------------------------------------------------------

    def knows(self, of: Shape, now: float) -> bool:
        """Whether the windows of this shape have been full and the last run was learned a moment ago: one more that
        ends as usual need not be learned now, also where a change of level has emptied a window since."""
        model = self._models.get(of.key)
        return model is not None and model.lessons >= LENGTH and 0.0 <= now - model.learned_at < SPACING

    def started(self, of: Shape, attempt: str, now: float, told: Answer | None = None) -> None:
        """An attempt runs: until it ends it is known to need at least as long as it has run. `told`: the run time that
        it was planned with."""
        until = now + told.value if told is not None and told.value > 0.0 else math.inf
        for key, xs in _levels(of):
            model = self._models.get(key)
            if model is not None and len(model.running) < RUNNING:
                model.running[attempt] = now, xs, told, until

    def ended(self, of: Shape, attempt: str) -> None:
        """Note that an attempt has ended, without learning from it."""
        self._ended(_levels(of), attempt)

    def _ended(self, levels: list[tuple[int, tuple[float, ...]]], attempt: str) -> Answer | None:
        """An attempt runs no more; the run time that it was planned with."""
        told = None
        for key, _ in levels:
            model = self._models.get(key)
            if model is not None and model.running and (found := model.running.pop(attempt, None)) is not None:
                told = told or found[2]
        return told

    def learn(self, of: Shape, usage: Usage, attempt: str = "", now: float = -math.inf) -> None:
        """Learn from what an attempt used, which has ended. Values out of bounds are ignored."""
        known, levels = _known(usage), _levels(of)
        told = self._ended(levels, attempt)
        if _nothing(known):
            return
        self.learned += 1
        weight = math.exp(known[0]) if known[0] == known[0] else 1.0
        above: float | None = None
        for key, xs in reversed(levels):
            model, settled = self._model(key, len(xs)), known
            if usage.how is not How.DONE:
                settled = _at_least(known, usage.how, model, xs)
                if _nothing(settled):
                    continue
            if model is None:
                self._latest(key, of.user_key).add(settled, xs)
                continue
            said = model.learn(settled, xs, weight, above)
            above = said if key == of.program_key else None
            if key == of.key:
                model.learned_at = now
                self._count(model, settled, told)

    def _count(self, model: _Model, settled: _Known, told: Answer | None) -> None:
        """Whether the answers that this sample was compared with were enough, for all shapes together. Of a run time
        that was told before many of its kind began, the one that was told counts."""
        for estimator, value in ((model.memory, settled[1]), (model.seconds, settled[0]), (model.cores, settled[2])):
            if not estimator.told or value != value:
                continue
            tier = Tier.ML if estimator.answered_by_line else Tier.STATISTICS
            enough, samples = bool(estimator.enough & 1), estimator.before
            if estimator is model.seconds and told is not None:
                tier, enough, samples = told.tier, math.exp(value) <= told.value, told.samples
                estimator.enough = estimator.enough >> 1 << 1 | enough
            which = estimator.quantity, tier, samples.bit_length()
            before, count = self._hits.get(which, (0, 0))
            self._hits[which] = (before << 1 | enough) & ((1 << REMEMBERED) - 1), min(REMEMBERED, count + 1)

    # --- predicting ---------------------------------------------------------------------------------------------------

    def as_last(self, of: Shape) -> Shape:
        """The shape with as much shipped as with the last run of it, or else of its program."""
        for key in (of.key, of.program_key):
            model = self._models.get(key)
            latest = model.latest if model is not None else self._resting.get(key)
            if latest is not None and latest.count:
                return of._replace(xs=(latest.size, *of.xs[1:]))
        return of

    def predict(self, of: Shape, now: float) -> Prediction:
        """Predict the needs of a job of this shape, as far as they are known at this time."""
        found = self._models_of(of)
        if not found:
            return NOTHING
        seconds, planned = self._seconds(found, now)
        cores = self._first([(level, model.cores) for level, _, model in found])
        gpu_memory = self._first([(level, model.gpu_memory) for level, _, model in found if model.gpu_memory])
        return Prediction(self._memory(found), cores, seconds, planned, gpu_memory)

    def planned(self, of: Shape, now: float) -> Answer:
        """The `planned` of `predict` alone, which costs less."""
        return self._seconds(self._models_of(of), now)[1]

    def _models_of(self, of: Shape) -> list[_Found]:
        """The models that tell of this shape, and with which features: of its user only where there is no other."""
        found: list[_Found] = []
        for level, (key, xs) in zip(_LEVELS, _levels(of), strict=True):
            if level is Level.USER and found:
                break
            if (model := self._model(key, len(xs))) is not None:
                found.append((level, xs, model))
        return found

    def _answer(self, level: Level, estimator: Estimator, value: float, method: Method) -> Answer:
        tier = _ML if estimator.by_number(method) else _STATISTICS
        confidence = estimator.confidence()
        if confidence is None:
            enough, told = self._hits.get((estimator.quantity, tier, estimator.count.bit_length()), (0, 0))
            confidence = enough.bit_count() / told if told >= MIN_SAMPLES_FOR_ML else None
        return Answer(math.exp(value), tier, level, estimator.count, confidence, method)

    def _memory(self, found: list[_Found]) -> Answer:
        above: float | None = None
        answer, estimator, level = (0.0, QUANTILE), None, Level.NONE
        for whose, xs, model in reversed(found):
            if not model.memory.ready:
                continue
            if whose is Level.USER:
                answer, estimator, level = model.memory.largest_seen(), model.memory, whose
                continue
            said = model.memory.estimate(xs, above)
            if said[1] is not ABOVE:
                answer, estimator, level = said, model.memory, whose
            above = said[0]
        return self._answer(level, estimator, *answer) if estimator is not None else Answer()

    def _seconds(self, found: list[_Found], now: float) -> tuple[Answer, Answer]:
        """The median run time, and that of nine in ten."""
        for level, xs, model in found:
            estimator = model.seconds
            if estimator.ready:
                (middle, planned), method = estimator.quantiles(xs, (0.5, SECONDS.level), model.still_running(now))
                answer = self._answer(level, estimator, planned, method)
                if answer.confidence is not None and (overdue := model.overdue(now)):
                    counted = min(REMEMBERED, estimator.told or REMEMBERED)
                    answer = answer._replace(confidence=answer.confidence * counted / (counted + overdue))
                return Answer(math.exp(middle), answer.tier, level, answer.samples, None, method), answer
        return Answer(), Answer()

    def _first(self, found: list[tuple[Level, Estimator]]) -> Answer:
        for level, estimator in found:
            if estimator.ready:
                return self._answer(level, estimator, *estimator.estimate(()))
        return Answer()

    def next_memory(self, of: Shape, tried: float) -> float | None:
        """The next amount of memory, in bytes, that would have been enough for runs like it, where `tried` was too
        little; None: nothing of the kind is known, and `tried` is to be multiplied."""
        steps = []
        for key, xs in _levels(of)[:2]:
            if (model := self._model(key, len(xs))) is not None and model.memory.ready:
                steps += [math.exp(value) for value, _ in model.memory.answers(xs)]
        return min((one for one in steps if one >= tried * RAISE), default=None)

    def within(self, of: Shape, seconds: float, now: float) -> float | None:
        """Return the probability that a job of this shape runs for at most `seconds`; None: fewer than 5 runs of it, or
        of its program, are known."""
        for key, xs in _levels(of)[:2]:
            model = self._model(key, len(xs))
            if model is not None and model.seconds.ready:
                return model.seconds.below(xs, math.log(max(LEAST, seconds)), model.still_running(now))
        return None

    def slope(self, of: Shape, feature: str) -> float | None:
        """Return the power of a feature by which the memory grows; None: no line was found."""
        model = self._model(of.key, len(of.xs))
        names = [name for name, _ in of.features]
        if model is None or feature not in names or model.memory.line.count < MIN_SAMPLES_FOR_STATS:
            return None
        return model.memory.line.slope(names.index(feature))


def _levels(of: Shape) -> list[tuple[int, tuple[float, ...]]]:
    """Return the levels from the whole shape to its user; all commands of a program share the size of what is
    shipped."""
    return [(of.key, of.xs), (of.program_key, of.xs[:1]), (of.user_key, ())]


def _nothing(known: _Known) -> bool:
    """Whether no amount is known."""
    seconds, memory, cores, gpu_memory = known
    return seconds != seconds and memory != memory and cores != cores and gpu_memory != gpu_memory


def _bounded(value: float) -> float:
    return value if math.isfinite(value) and 0.0 < value < MOST else math.nan


def _known(usage: Usage) -> _Known:
    """Logarithms of seconds, memory, cores and GPU memory; NaN: not known."""
    memory = usage.memory
    if usage.how is How.OUT_OF_MEMORY and _bounded(usage.held) == usage.held:
        memory = usage.held if _bounded(memory) != memory else max(memory, usage.held)
    return _log(usage.seconds), _log(memory), _log(usage.cores), _log(usage.gpu_memory)


def _log(value: float) -> float:
    return math.log(max(LEAST, value)) if _bounded(value) == value else math.nan


def _at_least(known: _Known, how: How, model: _Model | None, xs: tuple[float, ...]) -> _Known:
    """Without those amounts of a run that was cut short that say nothing: it is known that the run needs more than so
    much, which is learned where less would have been said."""
    seconds, memory, cores, gpu_memory = known
    if how is How.TIME_LIMIT:
        too_short = model is None or not model.seconds.count or model.seconds.estimate(xs)[0] < seconds
        seconds = seconds if too_short else math.nan
    else:
        seconds = math.nan
    if how is How.OUT_OF_MEMORY or (model is not None and model.memory.count):
        too_little = model is None or not model.memory.count or model.memory.estimate(xs)[0] <= memory
        memory = memory + MEMORY.margin if too_little else math.nan
    else:
        memory = math.nan
    return seconds, memory, math.nan, math.nan
