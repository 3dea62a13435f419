"""The figures of a run, computed by hand."""

import math

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


# On four cores, first come first served: a's job runs at once, b's first one waits 50 s, b's second one none.
THREE = (job(0, 100, 4, user="a"), job(50, 5, 1, user="b"), job(200, 1, 1, user="b"))


def test_waits_slowdown_area_and_use_of_three_jobs() -> None:
    found = figures(run(*THREE))
    assert (found.wait.mean, found.wait.p50, found.wait.max) == (50 / 3, 0.0, 50.0)
    assert found.wait_by_area == pytest.approx(50 * 5 / (400 + 5 + 1))
    assert found.slowdown == pytest.approx((1 + 55 / 10 + 1) / 3), "run times below 10 s count as 10 s"
    assert found.use == pytest.approx((400 + 5) / (4 * 200)), "up to the last submission"
    assert found.fairness == pytest.approx((1 + 3.25) ** 2 / (2 * (1 + 3.25**2))), "slowdowns 1, and (5.5 + 1) / 2"
    assert found.makespan == 201.0 and found.jobs == 3
    assert {name: one.jobs for name, one in found.by_size.items()} == {"large": 1, "medium": 2}
    assert (found.by_size["medium"].mean, found.by_size["large"].mean) == (25.0, 0.0)


def test_skipped_jobs_run_and_count_in_no_figure() -> None:
    found = figures(run(*THREE), skipped=1)
    assert found.wait.jobs == 2 and found.wait.mean == 25.0
    assert found.use == pytest.approx((4 * 50 + 10 / 2) / (4 * 150)), "from 50 s on"
    assert found.fairness == 1.0, "the user that is left is alone"
    lost = figures(moved(), skipped=1)
    assert (lost.moves, lost.recalls, lost.wasted, lost.frozen) == (1, 1, 2.5, 0.0)


def test_where_all_came_at_once_use_is_measured_to_the_end() -> None:
    assert figures(run(job(0, 30, 2), job(0, 10, 4))).use == pytest.approx((60 + 40) / (4 * 40))


def moved() -> World:
    """The first job is frozen from 10 to 14 s and taken back at 20; the second, with half a GPU, at 5."""
    machines, jobs = [Machine("m", 4, gpus=1)], [job(0, 100, 2), job(0, 100, 1, gpu=500), job(5, 1, 1), job(30, 1, 1)]
    for at in (10, 14, 20):
        jobs.insert(-1, job(at, 1, 0.25))
    world = World(machines, jobs, Fcfs(machines, jobs))

    def meddle(world: World) -> None:
        if world.now == 5:
            world.recall(1, "the owner is back")
        elif world.now == 10:
            world.freeze(0, "the owner is back")
        elif world.now == 14:
            world.thaw(0)
        elif world.now == 20:
            world.end(0, again=True)

    world.run(meddle)
    world.check()
    return world


def test_wasted_work_is_what_moved_attempts_had_done_in_cores_or_in_gpus() -> None:
    found = figures(moved())
    assert (found.moves, found.recalls) == (2, 1), "one by an owner, one by the policy"
    assert found.frozen == 4.0
    assert found.wasted == pytest.approx((20 - 4) * 2 + 5 * 0.5), "while it is frozen a job does nothing"


def test_gpus_are_allocated_over_time() -> None:
    machines, jobs = [Machine("m", 4, gpus=2)], [job(0, 10, 1, gpu=500), job(5, 10, 1, gpu=1000), job(20, 1, 1)]
    world = World(machines, jobs, Fcfs(machines, jobs))
    world.run()
    assert figures(world).gpus_allocated == pytest.approx((0.5 * 10 + 1 * 10) / (2 * 20))


def test_percentiles_lie_between_two_values() -> None:
    found = waits([40, 10, 20, 30])
    assert (found.mean, found.p50, found.max) == (25, 25, 40) and found.p95 == pytest.approx(30 + 0.85 * 10)
    assert waits([7]) == Waits(1, 7, 7, 7, 7) and waits([]) == Waits()


def test_fairness_is_jain_s_index() -> None:
    assert jain([2, 2, 2]) == pytest.approx(1) and jain([1, 0, 0, 0]) == 0.25 and jain([]) == 1
    assert jain([1, 3]) == pytest.approx(16 / 20)


def test_the_size_of_a_job_is_its_part_of_cores_or_of_gpus() -> None:
    whole = Resources(100_000, GIB, 4000)
    assert part_of(job(0, 1, 10), whole) == 0.1 and part_of(job(0, 1, 10, gpu=2000), whole) == 0.5
    assert [class_of(part) for part in (0, 1 / 64, 1 / 8, 0.5, 1)] == ["tiny", "small", "medium", "large", "large"]


def test_a_mean_over_time_weighs_by_time() -> None:
    points = [Point(0, 4000, 0, 0, 0), Point(10, 0, 0, 0, 0), Point(30, 2000, 0, 0, 0)]
    assert mean_over(points, "cpu", 0, 40) == (40_000 + 20_000) / 40 and mean_over(points, "cpu", 0, 20) == 2000
    assert mean_over(points, "cpu", 5, 35) == (20_000 + 10_000) / 30, "from the middle of a span to that of another"
    assert mean_over(points, "cpu", 12, 20) == 0 and mean_over(points, "cpu", 50, 60) == 2000
    assert mean_over(points, "cpu", 0, 0) == 0 and mean_over([], "cpu", 0, 5) == 0


def test_gpus_are_unusable_by_device_or_with_their_machine() -> None:
    free = Free(2000, GIB, [1000, 400, 0])
    assert unusable(free, (Resources(1000, 0, 1000), "")) == 400
    assert unusable(free, (Resources(1000, 0, 400), "")) == 0
    assert unusable(free, (Resources(1000, 0, 2000), "")) == unusable(free, (Resources(4000, 0, 400), "")) == 1400
    assert unusable(free, (Resources(1000, 0, 400), "T4")) == 1400
    free.model = "T4"
    assert unusable(free, (Resources(1000, 0, 400), "A100|T4")) == 0


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
    many = [0.0, 2.0] * 15
    assert interval(many) == pytest.approx(2.045 * math.sqrt(30 / 29) / math.sqrt(30), rel=0.005)


def test_figures_over_seeds_are_means_with_intervals() -> None:
    first, second = figures(run(job(0, 1, 1))), figures(run(job(0, 1, 4), job(0, 1, 4)))
    mean, width = over_seeds([first, second])
    assert mean["jobs"] == 1.5 and mean["wait"]["mean"] == 0.25 and width["wait"]["mean"] > 0  # type: ignore[index, operator]
    assert over_seeds([first, first])[0] == {**plain(first), "jobs": 1.0}


def test_a_size_class_that_one_seed_has_not_is_a_mean_of_the_others() -> None:
    first, second = figures(run(job(0, 1, 1))), figures(run(job(0, 1, 4), job(0, 1, 4)))
    mean, width = over_seeds([first, second])
    assert mean["by_size"]["large"]["mean"] == 0.5 and width["by_size"]["large"]["mean"] == 0  # type: ignore[index]
