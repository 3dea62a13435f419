"""Forecasts: the last value, with an interval from past errors that holds what it promises."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.trends.forecast import COVERAGE, LEAST, PAST, along, forecast, interval
from distributed_grid.coordinator.core.trends.statistics import slope
from tests.depth import DEEP, tries

GAP = math.nan


def test_the_forecast_is_the_last_value() -> None:
    told = forecast([0.1] * 50 + [0.4], 3)
    assert told is not None and told.value == 0.4 and told.low <= 0.4 <= told.high


def test_where_the_slope_of_the_last_hour_has_erred_less_on_this_node_it_is_gone_by() -> None:
    leak = [0.001 * at for at in range(200)]
    told = forecast(leak, 12)
    assert told is not None and told == pytest.approx((0.211, 0.211, 0.211, 177), abs=1e-9)
    wave = [0.5 + 0.4 * math.sin(at / 40) for at in range(PAST)]
    told, truth = forecast(wave, 3), 0.5 + 0.4 * math.sin((PAST + 2) / 40)
    assert told is not None and abs(told.value - truth) < abs(wave[-1] - truth) and told.low <= truth <= told.high


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_the_slope_is_that_of_the_trends(hour: list[float]) -> None:
    assert along(hour, 11, 1) == pytest.approx(max(0.0, hour[-1] + slope(hour, 1.0)), abs=1e-9)


def test_a_slope_that_has_not_won_decides_nothing_however_steep_it_is() -> None:
    draw = random.Random(3)
    noise = [draw.random() for _ in range(200)]
    told = forecast([*noise, *(0.05 * at for at in range(12))], 12)
    assert told is not None and told.value == pytest.approx(0.55)
    leak = [0.001 * at for at in range(200)]
    leak[-5] = GAP
    gap = forecast(leak, 12)
    assert gap is not None and gap.value == pytest.approx(0.199), "no slope is known over a gap"
    short = forecast([0.0] * 12 + [0.01 * at for at in range(20)], 12)
    assert short is not None and short.value == pytest.approx(0.19), "fewer errors than an interval needs"


def test_a_constant_machine_is_forecast_exactly() -> None:
    assert forecast([0.3] * 60, 12) == (0.3, 0.3, 0.3, 48)


def test_too_few_errors_give_no_interval() -> None:
    assert forecast([0.5] * (LEAST + 2), 3) is None
    assert forecast([0.5] * (LEAST + 3), 3) is not None
    assert forecast([], 3) is None


def test_without_a_last_value_there_is_no_forecast() -> None:
    assert forecast([0.5] * 100 + [GAP], 3) is None


def test_a_gap_makes_no_error_on_either_side_of_it() -> None:
    told = forecast([0.5] * 30 + [GAP] * 10 + [0.5] * 30, 3)
    assert told is not None and (told.low, told.high, told.errors) == (0.5, 0.5, 27 + 27)


def test_what_is_older_than_two_days_is_forgotten() -> None:
    wild = [float(at % 2) for at in range(500)]
    told = forecast(wild + [0.5] * (PAST + 3), 3)
    assert told is not None and (told.low, told.high, told.errors) == (0.5, 0.5, PAST)


def test_the_interval_stays_within_what_there_is() -> None:
    told = forecast([0.0, 1.0] * 100, 3, most=1.0)
    assert told is not None and (told.low, told.high) == (0.0, 1.0)


def test_the_interval_is_the_shortest_that_leaves_out_no_more_than_it_may_miss() -> None:
    errors = sorted([0.0] * 60 + [0.01 * at for at in range(1, 40)])  # equal ones, and all others above
    assert interval(errors, 0.5) == pytest.approx((0.5, 0.5, 0.81, 99)), "eight are left out, all of them above"
    assert interval([-one for one in reversed(errors)], 0.5) == pytest.approx((0.5, 0.19, 0.5, 99))
    even = [float(at) for at in range(-49, 50)]
    told = interval(even, 100.0)
    assert told is not None and (told.low, told.high) == (55.0, 145.0), "none is shorter: it is in the middle"


def test_as_many_as_promised_lie_in_it_where_many_errors_are_equal() -> None:
    """A machine whose use mostly stays, and is a step more from time to time: half on each side would hold 0.95."""
    draw = random.Random(7)
    steps = [0.0 if draw.random() < 0.6 else draw.random() for _ in range(4000)]
    inside = 0
    for at in range(PAST, len(steps)):
        told = interval(sorted(steps[at - PAST : at]), 0.0)
        assert told is not None
        inside += told.low <= steps[at] <= told.high
    assert inside / (len(steps) - PAST) == pytest.approx(COVERAGE, abs=0.015)


@pytest.mark.parametrize("steps", [3, 12])
def test_nine_of_ten_values_lie_in_the_interval_told_before_them(steps: int) -> None:
    draw, value, walk = random.Random(5), 0.5, []
    for _ in range(3000):
        value = min(1.0, max(0.0, value + draw.gauss(0, 0.02) + (0.3 if draw.random() < 0.01 else 0)))
        value *= 0.98
        walk.append(value)
    inside, told = 0, 0
    for at in range(PAST, len(walk) - steps, 5 if DEEP else 8):
        made = forecast(walk[: at + 1], steps)
        assert made is not None
        told += 1
        inside += made.low <= walk[at + steps] <= made.high
    assert inside / told == pytest.approx(COVERAGE, abs=0.03)


@settings(max_examples=tries(50), deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1), st.just(GAP)), max_size=120), st.integers(1, 12))
def test_an_interval_holds_its_value_or_lies_beside_it_and_is_finite(values: list[float], steps: int) -> None:
    told = forecast(values, steps, most=1.0)
    if told is not None:
        assert 0.0 <= told.low <= told.high <= 1.0 and told.errors >= LEAST
        assert told.value in (values[-1], along(values, len(values) - 1, steps, 1.0))
