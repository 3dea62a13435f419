"""Forecasts: the last value, with an interval from past errors that holds what it promises."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.trends.forecast import COVERAGE, LEAST, PAST, forecast
from tests.depth import tries

GAP = math.nan


def test_the_forecast_is_the_last_value() -> None:
    told = forecast([0.1] * 50 + [0.4], 3)
    assert told is not None and told.value == 0.4 and told.low <= 0.4 <= told.high


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


@pytest.mark.parametrize("steps", [3, 12])
def test_nine_of_ten_values_lie_in_the_interval_told_before_them(steps: int) -> None:
    draw, value, walk = random.Random(5), 0.5, []
    for _ in range(3000):
        value = min(1.0, max(0.0, value + draw.gauss(0, 0.02) + (0.3 if draw.random() < 0.01 else 0)))
        value *= 0.98
        walk.append(value)
    inside, told = 0, 0
    for at in range(PAST, len(walk) - steps, 5):
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
        assert 0.0 <= told.low <= told.high <= 1.0 and told.errors >= LEAST and told.value == values[-1]
