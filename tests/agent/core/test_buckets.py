"""Samples become buckets of ten seconds: means weighted by time, maxima, and gaps where nothing was measured."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.agent.core.buckets import Aggregator
from distributed_grid.protocol.history.buckets import KEPT, PER_MESSAGE, SECONDS, Bucket, MeanMax
from distributed_grid.protocol.nodes import GpuProcess, GpuSample, Sample
from tests.depth import tries


def sample(at: float, foreign: float = 0.0, **more: object) -> Sample:
    return Sample(at=at, foreign_cpu=foreign, cores={0: 0, 1: 0}, memory_total=1 << 30, **more)  # type: ignore[arg-type]


def closed(aggregator: Aggregator, *samples: Sample) -> list[Bucket]:
    return [bucket for one in samples if (bucket := aggregator.observe(one)) is not None]


def test_a_bucket_has_the_mean_weighted_by_time_and_the_maximum() -> None:
    samples = [sample(10.0), sample(12.0, 1.0), sample(18.0, 0.0), sample(20.0)]
    (bucket,) = closed(Aggregator(), *samples)
    assert (bucket.number, bucket.samples, bucket.cores, bucket.memory_total) == (1, 3, 2, 1 << 30)
    assert bucket.foreign_cpu.most == 1.0
    assert bucket.foreign_cpu.mean == pytest.approx(2 / 18)  # the first sample counts as a whole bucket


def test_where_nothing_was_measured_there_is_no_bucket() -> None:
    found = closed(Aggregator(), sample(5.0), sample(12.0), sample(58.0), sample(60.0))
    assert [bucket.number for bucket in found] == [0, 1, 5]


def test_a_sample_that_is_told_again_counts_once() -> None:
    aggregator = Aggregator()
    (bucket,) = closed(aggregator, sample(1.0, 2.0), sample(1.0, 2.0), sample(3.0, 2.0), sample(11.0))
    assert bucket.samples == 2


def test_a_gpu_is_foreign_while_others_are_on_it_and_absent_while_it_cannot_be_read() -> None:
    ours, theirs = GpuProcess(1, 100, own=True), GpuProcess(2, 50)

    def gpu(*processes: GpuProcess, error: str = "") -> tuple[GpuSample, ...]:
        return (GpuSample("GPU-1", 80.0, 160, 1000, processes=processes, error=error),)

    aggregator = Aggregator()
    (alone,) = closed(aggregator, sample(2.0, gpus=gpu(ours)), sample(12.0, gpus=gpu(ours, theirs)))
    (both,) = closed(aggregator, sample(22.0, gpus=gpu(error="hangs")))
    (unread,) = closed(aggregator, sample(32.0))
    assert alone.gpus[0].utilisation == MeanMax(80.0, 80.0) and alone.gpus[0].foreign == MeanMax()
    assert alone.gpus[0].memory_foreign.mean == 60.0 and both.gpus[0].foreign.mean == 80.0
    assert unread.gpus == ()


def test_a_sample_without_a_word_of_pressure_says_that_nobody_waited() -> None:
    (bucket,) = closed(Aggregator(), sample(-5.0), sample(2.0, pressure={"cpu": 40.0}), sample(9.0), sample(11.0))[1:]
    assert bucket.waiting == {"cpu": MeanMax(20.0, 40.0)}


def test_a_bucket_is_told_again_until_it_is_acknowledged_and_an_hour_of_them_is_kept() -> None:
    aggregator = Aggregator()
    for at in range(0, (KEPT + 50) * SECONDS, SECONDS):
        aggregator.observe(sample(at + 1.0))
    told = aggregator.unacknowledged(5000.0)
    numbers = [bucket.number for message in told for bucket in message.buckets]
    assert numbers == [*range(49, KEPT + 49)] and {message.at for message in told} == {5000.0}
    assert max(len(message.buckets) for message in told) == PER_MESSAGE
    aggregator.acknowledge(KEPT + 40)
    assert [one.number for one in aggregator.unacknowledged(1.0)[0].buckets] == [*range(KEPT + 41, KEPT + 49)]


def test_a_gpu_whose_processes_are_not_told_is_foreign_unless_a_job_holds_it() -> None:
    gpus = (GpuSample("GPU-a", 80.0, 60, 100), GpuSample("GPU-b", 80.0, 60, 100))
    aggregator = Aggregator()
    for at in (2.0, 4.0):
        assert aggregator.observe(sample(at, gpus=gpus), lambda uuid: uuid == "GPU-a") is None
    bucket = aggregator.observe(sample(12.0))
    assert bucket is not None
    lent, other = bucket.gpus
    assert (lent.utilisation.mean, lent.foreign, lent.memory_foreign) == (80.0, MeanMax(), MeanMax())
    assert (other.foreign.mean, other.memory_foreign.mean) == (80.0, 60.0)


def test_buckets_with_many_gpus_travel_fewer_at_a_time() -> None:
    aggregator = Aggregator()
    gpus = tuple(GpuSample(f"GPU-{number}") for number in range(8))
    for at in range(100):
        aggregator.observe(sample(at * SECONDS + 1.0, gpus=gpus))
    assert max(len(message.buckets) for message in aggregator.unacknowledged(0.0)) == PER_MESSAGE // 9


@settings(max_examples=tries(50), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 40), st.floats(0, 64)).filter(lambda one: one[0] > 0.001), min_size=2, max_size=60)
)
def test_each_mean_lies_between_the_values_and_each_number_comes_once(steps: list[tuple[float, float]]) -> None:
    aggregator, at, seen = Aggregator(), 100.0, []
    for step, value in steps:
        at += step
        seen.append((at, value))
    found = closed(aggregator, *(sample(at, value) for at, value in seen))
    assert [one.number for one in found] == sorted({one.number for one in found})
    for bucket in found:
        inside = [value for at, value in seen if at // SECONDS == bucket.number]
        assert bucket.samples == len(inside) and bucket.foreign_cpu.most == max(inside)
        assert min(inside) - 1e-9 <= bucket.foreign_cpu.mean <= max(inside) + 1e-9
