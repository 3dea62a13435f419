"""Statistics of windows: exact quantiles, a slope that no spike moves, gaps that stay gaps."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.trends.statistics import describe, means, quantile, slope
from tests.depth import tries

GAP = math.nan
PARTS = st.floats(0, 1)
values = st.lists(st.one_of(PARTS, st.just(GAP)), max_size=80)


def test_fewer_than_three_values_are_no_trend() -> None:
    assert describe([], 10) is None
    assert describe([0.5, GAP, 0.5, GAP], 10) is None
    assert describe([0.5, GAP, 0.5, 0.5], 10) is not None


def test_a_window_is_described_by_its_quantiles_and_its_newest_value() -> None:
    found = describe([0.1, 0.2, 0.3, 0.4, 0.5, GAP], 10)
    assert found is not None
    assert (found.level, found.buckets, found.last) == (0.3, 5, 0.5)
    assert found.spread == pytest.approx(0.2) and found.p95 == pytest.approx(0.48)


def test_the_slope_of_a_straight_line_is_its_rise() -> None:
    assert slope([0.001 * at for at in range(360)], 10.0) == pytest.approx(0.0001)
    assert slope([0.001 * at if at % 3 else GAP for at in range(360)], 10.0) == pytest.approx(0.0001, rel=0.01)


def test_one_spike_moves_no_slope() -> None:
    flat = [0.2] * 360
    for at in (0, 17, 180, 359):
        assert slope([*flat[:at], 1.0, *flat[at + 1 :]], 10.0) == 0.0


def test_an_infinite_value_is_a_gap() -> None:
    assert describe([0.5, math.inf, 0.5, -math.inf], 10) is None


def test_means_are_counted_from_the_end_and_leave_gaps() -> None:
    assert means([1.0, 2.0, 4.0, GAP, 6.0], 2) == [1.0, 3.0, 6.0]
    assert math.isnan(means([GAP, GAP, 1.0, 1.0], 2)[0])


@settings(max_examples=tries(50), deadline=None)
@given(st.lists(PARTS, min_size=2, max_size=60), PARTS)
def test_a_quantile_is_that_of_the_standard_library(found: list[float], part: float) -> None:
    ordered = sorted(found)
    cut = statistics.quantiles(ordered, n=20, method="inclusive")
    assert quantile(ordered, 0.95) == pytest.approx(cut[18])
    assert ordered[0] <= quantile(ordered, part) <= ordered[-1]


@settings(max_examples=tries(50), deadline=None)
@given(values)
def test_what_is_described_lies_within_what_was_measured(found: list[float]) -> None:
    there = [one for one in found if math.isfinite(one)]
    described = describe(found, 10.0)
    assert (described is None) == (len(there) < 3)
    if described is not None:
        assert min(there) <= described.level <= described.p95 <= max(there)
        assert 0 <= described.spread <= max(there) - min(there)
        assert described.last == there[-1] and math.isfinite(described.slope)
