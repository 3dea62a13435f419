"""The figures of a run, computed by hand."""

import pytest

from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.simulator.lab.baselines import Fcfs
from distributed_grid.simulator.lab.metrics import (
    Fragmentation,
    Waits,
    class_of,
    figures,
    interval,
    jain,
    mean_over,
    over_seeds,
    part_of,
    plain,
    unusable,
    waits,
)
from distributed_grid.simulator.lab.trace import Machine
from distributed_grid.simulator.lab.world import Free, Point, World
from tests.simulator.lab.scene import job

ONE = [Machine("m", 4)]


def run(*jobs: object) -> World:
    world = World(ONE, list(jobs), Fcfs(ONE, list(jobs)))  # type: ignore[arg-type]
    world.run()
    return world


def test_waits_slowdown_area_and_use_of_two_jobs() -> None:
    found = figures(run(job(0, 100, 4, user="a"), job(50, 5, 1, user="b"), job(200, 1, 1, user="b")))
    assert found.wait == Waits(3, 50 / 3, 0.0, 50.0, 50.0)
    assert found.wait_by_area == pytest.approx(50 * 5 / (400 + 5 + 1))
    assert found.slowdown == pytest.approx((1 + 55 / 10 + 1) / 3), "run times below 10 s count as 10 s"
    assert found.use == pytest.approx((400 + 5) / (4 * 200)), "up to the last submission"
    assert found.fairness == pytest.approx((1 + 3.25) ** 2 / (2 * (1 + 3.25**2)))
    assert found.makespan == 201.0 and found.jobs == 3
    assert {name: one.jobs for name, one in found.by_size.items()} == {"large": 1, "medium": 2}


def test_skipped_jobs_run_and_their_waits_are_not_counted() -> None:
    found = figures(run(job(0, 100, 4), job(50, 10, 1), job(200, 1, 1)), skipped=1)
    assert found.wait.jobs == 2 and found.use > 0.5


def test_percentiles_and_jain() -> None:
    assert waits(range(100)) == Waits(100, 49.5, 50, 95, 99) and waits([]) == Waits()
    assert jain([2, 2, 2]) == pytest.approx(1) and jain([1, 0, 0, 0]) == 0.25 and jain([]) == 1


def test_the_size_of_a_job_is_its_part_of_cores_or_of_gpus() -> None:
    whole = Resources(100_000, GIB, 4000)
    assert part_of(job(0, 1, 10), whole) == 0.1 and part_of(job(0, 1, 10, gpu=2000), whole) == 0.5
    assert [class_of(part) for part in (0, 1 / 64, 1 / 8, 0.5, 1)] == ["tiny", "small", "medium", "large", "large"]


def test_a_mean_over_time_weighs_by_time() -> None:
    points = [Point(0, 4000, 0, 0, 0), Point(10, 0, 0, 0, 0), Point(30, 2000, 0, 0, 0)]
    assert mean_over(points, "cpu", 40) == (40_000 + 20_000) / 40 and mean_over(points, "cpu", 20) == 2000
    assert mean_over(points, "cpu", 0) == 2000 and mean_over([], "cpu", 5) == 0


def test_gpus_are_unusable_by_device_or_with_their_machine() -> None:
    free = Free(2000, GIB, [1000, 400, 0])
    assert unusable(free, Resources(1000, 0, 1000)) == 400
    assert unusable(free, Resources(1000, 0, 400)) == 0
    assert unusable(free, Resources(1000, 0, 2000)) == unusable(free, Resources(4000, 0, 400)) == 1400


def test_fragmentation_is_weighed_by_how_often_a_request_comes() -> None:
    jobs = [job(0, 1, 1, gpu=1000)] * 3 + [job(0, 1, 1, gpu=400)]
    fragments = Fragmentation(jobs, [Machine("a", 4, gpus=2)])
    assert fragments.now([Free(4000, 0, [400, 0])]) == pytest.approx(0.75 * 400 / 2000)


def test_fragmentation_is_measured_at_a_distance() -> None:
    machines, jobs = [Machine("a", 4, gpus=1)], [job(at, 100, 1, gpu=500) for at in range(5)]
    fragments, seen = Fragmentation(jobs, machines, every=2.0), list[float]()
    world = World(machines, jobs, Fcfs(machines, jobs))

    def see(world: World) -> None:
        fragments.see(world)
        seen.append(world.now)

    world.run(see)
    assert len(seen) > 5 and fragments.mean == 0.0 and Fragmentation([], machines).mean == 0.0


def test_the_interval_of_seeds_is_student_s() -> None:
    assert interval([1.0]) == 0 and interval([1.0, 3.0]) == pytest.approx(12.71) and interval([2.0] * 30) == 0


def test_figures_over_seeds_are_means_with_intervals() -> None:
    first, second = figures(run(job(0, 1, 1))), figures(run(job(0, 1, 4), job(0, 1, 4)))
    mean, width = over_seeds([first, second])
    assert mean["jobs"] == 1.5 and mean["wait"]["mean"] == 0.25 and width["wait"]["mean"] > 0  # type: ignore[index, operator]
    assert over_seeds([first, first])[0] == {**plain(first), "jobs": 1.0}
