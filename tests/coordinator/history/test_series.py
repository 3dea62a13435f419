"""Codes of 16 bits: near what was measured, gaps told apart, nothing that breaks them."""

import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.history.series import (
    COUNT,
    GAP,
    PARTS,
    Series,
    code,
    code_rate,
    encode,
    joined,
    row,
    rows,
    value,
    values,
)
from distributed_grid.protocol.history.buckets import Bucket, GpuBucket, MeanMax
from distributed_grid.protocol.history.trends import Measured
from tests.coordinator.history.scene import bucket
from tests.depth import tries


def test_a_bucket_is_a_code_for_each_series_as_parts_of_what_the_node_has() -> None:
    codes = encode(bucket(1, foreign=0.5, own=0.25))
    said = {one: value(codes[one], one) for one in Series}
    assert len(codes) == COUNT == 16
    assert said[Series.FOREIGN_CPU] == pytest.approx(0.5, abs=1e-4) and said[Series.OWN_CPU] == pytest.approx(
        0.25, abs=1e-4
    )
    assert math.isnan(said[Series.OWN_GPU]) and said[Series.WAITS_CPU] == 0.0


def test_gpus_are_one_series_by_their_mean_and_their_memory_together() -> None:
    gpus = (
        GpuBucket(
            uuid="a", utilisation=MeanMax(80, 90), foreign=MeanMax(80, 90), memory=MeanMax(30, 40), memory_total=50
        ),
        GpuBucket(uuid="b", memory=MeanMax(20, 20), memory_foreign=MeanMax(20, 20), memory_total=50),
    )
    codes = encode(Bucket(number=1, samples=1, cores=1, memory_total=1, gpus=gpus))
    said = {one: round(value(codes[one], one), 3) for one in Series}
    assert (said[Series.FOREIGN_GPU], said[Series.OWN_GPU], said[Series.GPU_MOST]) == (0.4, 0.0, 0.9)
    assert (said[Series.FOREIGN_GPU_MEMORY], said[Series.OWN_GPU_MEMORY]) == (0.2, 0.3)


def test_impossible_measurements_are_cut_off_and_those_that_are_none_are_gaps() -> None:
    assert [code(one) for one in (-1.0, 0.0, 1.0, 7.0, math.inf, math.nan)] == [0, 0, GAP - 1, GAP - 1, GAP - 1, GAP]
    assert [code_rate(one) for one in (-1.0, 0.0, 1e300, math.nan)] == [0, 0, GAP - 1, GAP]
    nothing = encode(Bucket(number=1, samples=0, cores=0, memory_total=0, own_cpu=MeanMax(math.nan, math.nan)))
    assert nothing[Series.OWN_CPU] == GAP and nothing[Series.FOREIGN_CPU] == 0


def test_intervals_are_joined_by_mean_or_maximum_without_their_gaps() -> None:
    found = array("H", (GAP, 100, 300, GAP))
    assert joined(found, Series.OWN_CPU) == 200 and joined(found, Series.GPU_MOST) == 300
    assert joined(array("H", (GAP, GAP)), Series.OWN_CPU) == GAP
    rates = array("H", (code_rate(0.0), code_rate(1000.0)))
    assert value(joined(rates, Series.NET), Series.NET) == pytest.approx(500.0, rel=0.001)


def test_every_resource_has_its_series() -> None:
    assert set(PARTS) == set(Measured)


def test_rows_come_back_as_they_were() -> None:
    first, second = list(range(16)), [GAP] * 16
    assert rows(row(first) + row(second)).tolist() == first + second


@settings(max_examples=tries(50), deadline=None)
@given(st.floats(0, 1), st.floats(0, 1e12))
def test_a_code_is_near_what_was_measured(part: float, rate: float) -> None:
    codes = array("H", (code(part),))
    assert values(codes, Series.OWN_CPU)[0] == pytest.approx(part, abs=1e-5)
    assert value(code_rate(rate), Series.DISK) == pytest.approx(rate, rel=0.001, abs=0.001)
