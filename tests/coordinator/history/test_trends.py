"""Trends and pressure of a node from its codes."""

import math
from array import array

import pytest

from distributed_grid.coordinator.history import trends
from distributed_grid.coordinator.history.history import Window
from distributed_grid.coordinator.history.series import COUNT, GAP, Series, code, encode
from distributed_grid.protocol.history.buckets import Bucket
from distributed_grid.protocol.history.trends import Measured
from tests.coordinator.history.scene import bucket


def window(buckets: list[Bucket | None], step: int = 10) -> Window:
    """A window of these buckets; None is a gap."""
    codes = [encode(one) if one is not None else (GAP,) * COUNT for one in buckets]
    return Window(step, {one: array("H", (row[one] for row in codes)) for one in Series})


def flat(count: int, foreign: float = 0.5, own: float = 0.25) -> list[Bucket | None]:
    return [bucket(number, foreign, own) for number in range(count)]


def gaps(count: int) -> list[Bucket | None]:
    return [None] * count


def test_the_level_is_of_all_use_and_the_owners_of_its_own() -> None:
    found = trends.trend(window(flat(30)), Measured.CPU, 10)
    assert (found.level, found.owner, found.last) == pytest.approx((0.75, 0.5, 0.75), abs=1e-3)
    assert (found.buckets, found.step, found.why, len(found.points)) == (30, 10, "", 10)


def test_use_is_never_more_than_the_node_has() -> None:
    assert trends.use(window(flat(3, 0.8, 0.8)), Measured.CPU) == [1.0] * 3


def test_gaps_stay_gaps_in_points_and_are_no_trend_alone() -> None:
    found = trends.trend(window(gaps(20) + flat(10)), Measured.CPU, 3)
    assert found.points[:2] == (-1.0, -1.0) and found.points[2] > 0 and found.buckets == 10
    assert trends.trend(window(gaps(28) + flat(2)), Measured.CPU, 3).why == "2 of at least 3 buckets"
    assert trends.trend(window([]), Measured.GPU, 3).why == "0 of at least 3 buckets"


def test_the_slope_is_of_an_hour() -> None:
    rising: list[Bucket | None] = [bucket(at, 0.001 * at, 0.0) for at in range(360)]
    assert trends.trend(window(rising), Measured.CPU, 0).slope == pytest.approx(0.36, abs=0.01)


def test_a_forecast_is_made_from_the_minutes_before_an_hour_ahead_at_most() -> None:
    found = trends.trends(window(flat(30)), (Measured.CPU,), 0)
    minutes = window(flat(300), step=60)
    for seconds, ahead, errors in ((900.0, 900.0, 57), (604_800.0, 3600.0, 48)):
        (told,) = trends.with_forecasts(found, minutes, seconds)
        assert told.forecast is not None and told.unsure == "" and told.level == found[0].level
        assert (told.forecast.ahead, told.forecast.errors) == (ahead, errors)
        assert (told.forecast.low, told.forecast.high) == pytest.approx((0.75, 0.75), abs=1e-3)


def test_without_enough_past_or_a_last_value_it_is_said_why_there_is_no_forecast() -> None:
    found = trends.trends(window(flat(30)), (Measured.CPU,), 0)
    (young,) = trends.with_forecasts(found, window(flat(60), 60), 900.0)
    (silent,) = trends.with_forecasts(found, window(flat(300) + [None] * 6, 60), 900.0)
    assert young.forecast is None and young.unsure.startswith("too little past")
    assert silent.forecast is None and silent.unsure == "the last five minutes were not measured"


def test_pressure_is_of_all_use_and_of_the_owners_alone() -> None:
    found = trends.pressure(window(flat(6, 0.5, 0.25)), gpus=False)
    assert found is not None
    of_all, of_owner = found
    assert (of_all.cpu, of_all.memory, of_all.gpu) == pytest.approx((0.75, 0.5, None), abs=1e-3)
    assert (of_owner.score, of_owner.cpu) == pytest.approx((0.5, 0.5), abs=1e-3)


def test_programs_of_others_that_wait_count_for_both() -> None:
    waiting = window(flat(6, 0.1, 0.0))
    waiting.codes[Series.WAITS_CPU][:] = array("H", (code(0.9),)) * 6
    found = trends.pressure(waiting, gpus=False)
    assert found is not None and [one.cpu for one in found] == pytest.approx([0.9, 0.9], abs=1e-3)


def test_a_gpu_that_was_not_measured_counts_as_in_use_and_a_node_that_was_not_has_no_pressure() -> None:
    found = trends.pressure(window(flat(6)), gpus=True)
    assert found is not None and found[1].gpu == 1.0
    assert trends.pressure(window([None] * 6), gpus=False) is None
    assert math.isnan(trends.use(window([None]), Measured.CPU)[0])
