"""Pressure: weights, parts, and whose use counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.protocol.nodes import GpuProcess, GpuSample, Sample
from distributed_grid.protocol.sharing.pressure import Pressure, of_all, of_owner, weighted

BUSY = Sample(at=1.0, own_cpu=2.0, foreign_cpu=1.0, memory_total=100, memory_own=30, memory_foreign=20)


def rounded(found: Pressure) -> Pressure:
    gpu = round(found.gpu, 3) if found.gpu is not None else None
    return Pressure(round(found.score, 3), round(found.cpu, 3), round(found.memory, 3), gpu)


def gpu(utilisation: float, *own: bool) -> GpuSample:
    return GpuSample("g", utilisation, processes=tuple(GpuProcess(1, own=one) for one in own))


def test_cpu_and_memory_count_half_each_on_a_node_without_gpus() -> None:
    assert rounded(of_all(BUSY, cores=4)) == Pressure(0.625, cpu=0.75, memory=0.5)


def test_the_owners_pressure_is_without_what_the_grids_jobs_use() -> None:
    assert rounded(of_owner(BUSY, cores=4)) == Pressure(0.225, cpu=0.25, memory=0.2)


def test_gpus_weigh_four_tenths_by_their_mean_utilisation() -> None:
    sample = Sample(at=1.0, gpus=(gpu(100.0), gpu(50.0)))
    assert rounded(of_all(sample, cores=4)) == Pressure(0.3, gpu=0.75)


@pytest.mark.parametrize(("own", "expected"), [((True, True), 0.0), ((True, False), 0.8), ((), 0.8)])
def test_a_gpu_is_the_owners_unless_all_its_processes_are_the_grids(own: tuple[bool, ...], expected: float) -> None:
    sample = Sample(at=1.0, gpus=(gpu(80.0, *own),))
    assert of_owner(sample, cores=4).gpu == pytest.approx(expected)
    at_lent = expected if own else 0.0
    assert of_owner(sample, cores=4, lent={sample.gpus[0].uuid}).gpu == at_lent, "nobody else is told to use it"
    assert of_all(sample, cores=4).gpu == pytest.approx(0.8)


def test_beside_the_grids_jobs_a_program_that_draws_counts_by_what_it_uses() -> None:
    def pressure(*others: GpuProcess) -> float | None:
        return of_owner(
            Sample(at=1.0, gpus=(GpuSample("g", 80.0, processes=(GpuProcess(1, own=True), *others)),)), 4
        ).gpu

    server = GpuProcess(2, graphics=True, utilisation=5.0)
    assert pressure(server) == pytest.approx(0.05)
    assert pressure(server, GpuProcess(3)) == pressure(GpuProcess(2, graphics=True)) == 0.8, "who uses it is not known"


def test_a_gpu_that_cannot_be_read_is_not_idle() -> None:
    assert of_owner(Sample(at=1.0, gpus=(GpuSample("g", error="lost"),)), cores=1).gpu == 1.0


def test_cpu_and_memory_count_at_least_the_time_that_others_waited() -> None:
    sample = Sample(at=1.0, memory_total=100, memory_foreign=10, pressure={"cpu": 60.0, "memory": 5.0, "io": 90.0})
    assert rounded(of_owner(sample, cores=4)) == Pressure(0.35, cpu=0.6, memory=0.1)


def test_what_is_not_known_is_not_idle() -> None:
    assert weighted(math.nan, 0.0, None).cpu == 1.0
    waited = Sample(at=1.0, memory_total=100, foreign_cpu=0.5, pressure={"cpu": math.nan, "memory": math.nan})
    assert of_owner(waited, cores=4) == of_all(waited, cores=4) == Pressure(1.0, cpu=1.0, memory=1.0)


def test_a_node_without_cores_or_memory_is_under_no_pressure() -> None:
    assert of_all(Sample(at=1.0, own_cpu=3.0), cores=0).score == 0.0


@given(st.floats(), st.floats(), st.none() | st.floats())
def test_scores_lie_between_0_and_1(cpu: float, memory: float, gpu: float | None) -> None:
    assert 0.0 <= weighted(cpu, memory, gpu).score <= 1.0


SOME = st.floats(0.0, 200.0) | st.sampled_from([math.nan, math.inf, -1.0])


@given(SOME, st.dictionaries(st.sampled_from(["cpu", "memory", "io"]), SOME), st.integers(0, 64))
def test_cpu_and_memory_are_what_is_used_or_waited_for_whichever_is_more(
    used: float, waits: dict[str, float], cores: int
) -> None:
    def limited(part: float) -> float:
        return min(1.0, max(0.0, part)) if part == part else 1.0

    found = of_owner(Sample(at=1.0, foreign_cpu=used, memory_total=0, pressure=waits), cores)
    waited = {kind: limited(percent / 100) for kind, percent in waits.items()}
    assert found.cpu == max(limited(used / cores if cores else 0.0), waited.get("cpu", 0.0))
    assert found.memory == waited.get("memory", 0.0)
