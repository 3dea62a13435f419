"""What jobs use is gathered from the samples as it was, and told now and then."""

import pytest

from distributed_grid.agent.core.usage import MOST, Usage, UsageReporter
from distributed_grid.protocol.jobs import Use, Used
from distributed_grid.protocol.messages import InUse
from distributed_grid.protocol.nodes import GpuSample
from distributed_grid.protocol.resources import GpuShare, Grant

GRANT = Grant(cores=(0, 1), gpus=(GpuShare("GPU-1", 1000),))


def busy(percent: float, error: str = "", untold: bool = False) -> list[GpuSample]:
    return [GpuSample("GPU-1", percent, error=error, untold=untold), GpuSample("GPU-2", 100.0)]


def told(using: UsageReporter, now: float, cpu: float, memory: int = 0, gpu: float = 0.0) -> list[Use]:
    spent = {"a.1": Usage(memory, cpu)}
    said = using.observe(now, spent, {"a.1": GRANT}, busy(gpu))
    return list(said.uses) if isinstance(said, InUse) else []


def test_mean_and_peak_of_cores_memory_and_the_gpus_it_holds() -> None:
    using = UsageReporter(every=10.0)
    assert not told(using, 0.0, cpu=5.0)
    assert not told(using, 2.0, cpu=5.0, memory=100, gpu=0.0)
    assert not told(using, 4.0, cpu=9.0, memory=300, gpu=80.0)
    (use,) = told(using, 10.0, cpu=10.0, memory=200, gpu=10.0)
    (gpu,) = use.gpus
    assert (gpu.uuid, gpu.peak) == ("GPU-1", 80.0) and gpu.mean == pytest.approx(30.0)
    assert use == Use(
        allocation="a.1", seconds=10.0, cpu=0.5, cpu_peak=2.0, memory=300, gpus=(gpu,), usual=2.0, usual_for=10.0
    )
    assert not told(using, 12.0, cpu=10.0)
    (use,) = told(using, 20.0, cpu=10.0)
    assert (use.seconds, use.cpu, use.cpu_peak, use.memory) == (10.0, 0.0, 0.0, 0)


def test_the_most_memory_on_a_gpu_is_that_of_the_interval() -> None:
    using = UsageReporter(every=10.0)
    for at, memory in ((0.0, 0), (2.0, 500), (4.0, 300)):
        using.observe(at, {"a.1": Usage(cpu=at, gpus=(("GPU-0", memory),))}, {"a.1": GRANT}, busy(0.0))
    first = using.observe(10.0, {"a.1": Usage(cpu=10.0, gpus=(("GPU-0", 200),))}, {"a.1": GRANT}, busy(0.0))
    later = using.observe(20.0, {"a.1": Usage(cpu=20.0, gpus=(("GPU-0", 100),))}, {"a.1": GRANT}, busy(0.0))
    assert [one.uses[0].gpu_memory for one in (first, later) if one is not None] == [500, 100]
    used = Used(allocation="a.1")
    for one in (first, later):
        assert one is not None
        used = used.plus(one.uses[0])
    assert used.gpu_memory == 500


def test_samples_in_a_burst_make_no_peak() -> None:
    using = UsageReporter(every=10.0)
    told(using, 0.0, cpu=0.0)
    told(using, 0.01, cpu=0.02)  # two ticks of the kernel's
    (use,) = told(using, 10.0, cpu=0.5)
    assert use.cpu_peak == 0.05


def test_a_gpu_that_cannot_be_read_is_not_taken_for_idle() -> None:
    using = UsageReporter(every=2.0)
    for now in (0.0, 1.0, 2.0):
        said = using.observe(now, {"a.1": Usage(0, now)}, {"a.1": GRANT}, busy(0.0, error="lost"))
    assert said is not None and said.uses[0].gpus == ()


def test_a_gpu_whose_use_is_not_told_is_not_taken_for_idle() -> None:
    using = UsageReporter(every=2.0)
    for now in (0.0, 1.0, 2.0):
        said = using.observe(now, {"a.1": Usage(0, now)}, {"a.1": GRANT}, busy(0.0, untold=True))
    assert said is not None and said.uses[0].gpus == ()


def test_time_that_goes_with_a_child_is_not_use_below_zero() -> None:
    using = UsageReporter(every=4.0)
    for now, cpu in ((0.0, 0.0), (2.0, 2.0), (3.0, 0.5)):
        told(using, now, cpu)
    (use,) = told(using, 4.0, cpu=1.5)
    assert (use.cpu, use.cpu_peak) == (0.75, 1.0)


def test_what_has_ended_is_forgotten_and_an_idle_node_tells_nothing() -> None:
    using = UsageReporter(every=1.0)
    told(using, 0.0, cpu=0.0)
    assert using.observe(5.0, {}, {}, []) is None
    assert not told(using, 5.5, cpu=100.0)


def test_of_very_many_those_not_told_of_for_longest_come_first() -> None:
    using = UsageReporter(every=1.0)
    names = [f"j{number}.1" for number in range(MOST + 50)]
    told_of = []
    for now in (0.0, 1.0, 2.0):
        said = using.observe(now, {name: Usage(0, now) for name in names}, {}, [])
        told_of += [use.allocation for use in said.uses] if said is not None else []
    assert len(told_of) == 2 * MOST and set(told_of) == set(names)


def test_the_usual_use_is_what_three_of_the_three_hundred_samples_of_ten_minutes_exceed() -> None:
    using, spent, reports = UsageReporter(every=10.0), 0.0, []
    for number in range(401):
        spent += {50: 16.0, 150: 12.0, 200: 12.0, 250: 12.0, 390: 6.0}.get(number, 2.0)  # within 2 s each
        reports += told(using, 2.0 * number, cpu=spent)
    assert (reports[-1].usual, reports[-1].usual_for) == (3.0, 600.0)
    assert (reports[0].usual, reports[0].usual_for) == (1.0, 10.0)
