"""Histograms of endless streams: within one percent, mergeable, bounded."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.trends.statistics import ERROR, LARGEST, SMALLEST, Histogram
from tests.depth import tries

values = st.lists(st.one_of(st.just(0.0), st.floats(SMALLEST, 1e8)), min_size=1, max_size=60)


def of(found: list[float]) -> Histogram:
    histogram = Histogram()
    for one in found:
        histogram.add(one)
    return histogram


def test_nothing_has_no_quantiles_and_what_is_no_number_counts_for_nothing() -> None:
    assert of([math.nan]).count == 0 and Histogram().quantile(0.5) == 0.0


def test_what_is_beyond_the_bounds_counts_at_them() -> None:
    assert of([-5.0, 1e-9]).quantile(1.0) == 0.0
    assert of([math.inf]).quantile(0.5) == pytest.approx(LARGEST, rel=ERROR)


@settings(max_examples=tries(50), deadline=None)
@given(values, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_value_of_its_rank(found: list[float], part: float) -> None:
    exact = sorted(found)[max(1, math.ceil(part * len(found))) - 1]
    assert of(found).quantile(part) == pytest.approx(exact, rel=ERROR * 1.0001)
