import math
from random import Random

import pytest

from distributed_grid.coordinator.predictor.estimate import (
    CUT_AFTER,
    MEMORY,
    MIN_SAMPLES_FOR_ML,
    SECONDS,
    Estimator,
    Method,
)

GIB = 1 << 30
LINES = (Method.LINE, Method.HIGH_LINE)


def learned(values: list[tuple[float, float]], quantity: object = MEMORY) -> Estimator:
    """An estimator that has learned these, each with the size of its input."""
    found = Estimator(MEMORY if quantity is MEMORY else SECONDS, 1)
    for size, value in values:
        found.learn((math.log1p(size),), math.log(value), 10.0)
    return found


def test_a_need_that_grows_with_its_input_is_answered_by_a_line_and_one_that_does_not_is_not() -> None:
    chance = Random(2)
    sizes = [chance.uniform(1e6, 1e9) for _ in range(200)]
    growing = learned([(size, 50 * size * chance.uniform(0.97, 1.03)) for size in sizes])
    constant = learned([(size, GIB * chance.uniform(0.97, 1.03)) for size in sizes])
    said, method = growing.estimate((math.log1p(5e8),))
    assert method in (Method.LINE, Method.HIGH_LINE)
    assert 1.0 < math.exp(said) / (50 * 5e8) < 1.2
    for size in (1e6, 1e9):
        assert 1.0 < math.exp(constant.estimate((math.log1p(size),))[0]) / GIB < 1.2


def test_no_line_answers_before_thirty_samples() -> None:
    points = [(1e6 * 2**n, 1e8 * 2**n) for n in range(12)] * 3
    few, enough = learned(points[: MIN_SAMPLES_FOR_ML - 1]), learned(points)
    assert few.estimate((math.log1p(1e9),))[1] not in (Method.LINE, Method.HIGH_LINE)
    assert enough.estimate((math.log1p(1e9),))[1] in (Method.LINE, Method.HIGH_LINE)


def test_the_method_that_answers_is_the_one_that_wasted_least_after_every_sample() -> None:
    chance = Random(5)
    found = Estimator(MEMORY, 1)
    for number in range(400):
        size = chance.uniform(1e6, 1e9)
        xs, above = (math.log1p(size),), math.log(GIB) + chance.gauss(0, 1) if number % 3 else None
        value = math.log(size * (50 if number < 200 else 400) * chance.uniform(0.5, 1.5))
        if found.count:
            usable = [
                one for one in found.answers(xs, above) if found.count >= MIN_SAMPLES_FOR_ML or one[1] not in LINES
            ]
            said, method = found.estimate(xs, above)
            assert (said, method) in usable
            assert found.costs[method] == min(found.costs[one] for _, one in usable)
        found.learn(xs, value, 10.0, above)
    assert found.count < 400, "the window was cut on the way"


def test_a_line_says_no_more_of_an_input_far_beyond_those_seen_than_their_ratio() -> None:
    points = [(1e6 * (1 + n % 50), 1e8 * (1 + n % 50) ** 1.4) for n in range(200)]
    found = learned(points)
    most = 1e8 * 50**1.4
    assert math.exp(found.estimate((math.log1p(5e12),))[0]) <= most * 1e5 * 1.2


def test_three_misses_in_a_row_are_a_change_of_level_and_cut_the_window() -> None:
    found = learned([(1e6, GIB * (1 + n % 7 / 100)) for n in range(100)])
    for n in range(CUT_AFTER - 1):
        found.learn((math.log1p(1e6),), math.log((4 + 2 * n) * GIB), 10.0)
    assert found.count == 100 + CUT_AFTER - 1
    found.learn((math.log1p(1e6),), math.log(9 * GIB), 10.0)
    assert found.count == CUT_AFTER and found.ready
    assert math.exp(found.estimate((math.log1p(1e6),))[0]) > 9 * GIB


def test_the_answer_is_seldom_too_small_and_the_confidence_says_how_seldom() -> None:
    chance = Random(9)
    found, hits = Estimator(MEMORY, 1), []
    for _ in range(600):
        value = math.log(GIB) + chance.gauss(0, 0.3)
        if found.ready:
            hits.append(found.estimate((0.0,))[0] >= value)
        found.learn((0.0,), value, 10.0)
    assert sum(hits) / len(hits) >= 0.95
    assert found.confidence() == pytest.approx(sum(hits[-200:]) / 200)


def test_the_confidence_of_a_few_answers_is_not_made_up() -> None:
    assert learned([(1.0, GIB)] * 20).confidence() is None


def test_nine_of_ten_run_times_are_within_what_is_planned_with() -> None:
    chance = Random(4)
    found, hits = Estimator(SECONDS, 1), []
    for _ in range(1500):
        value = math.log(100) + chance.gauss(0, 0.5)
        if found.count >= 50:
            hits.append(found.quantiles((0.0,), (0.5, 0.9), [])[0][1] >= value)
        found.learn((0.0,), value, 1.0)
    assert 0.87 <= sum(hits) / len(hits) <= 0.93


def test_runs_that_have_not_ended_raise_what_is_planned_with() -> None:
    found = learned([(1.0, 60.0 + n % 10) for n in range(40)], SECONDS)
    (before, planned), _ = found.quantiles((0.0,), (0.5, 0.9), [])
    (middle, later), _ = found.quantiles((0.0,), (0.5, 0.9), [(math.log(500.0), (0.0,))] * 30)
    assert later >= math.log(500.0) > planned and middle > before
