"""The baselines make the schedules that one makes by hand."""

import pytest
from hypothesis import given, settings

from distributed_grid.protocol.jobs import Priority
from distributed_grid.simulator.lab.baselines import unknown
from distributed_grid.simulator.lab.trace import Machine, TraceJob
from tests.simulator.lab.scene import MACHINES, job, schedule, workloads

# Four cores. A runs on three of them until 10; B wants all; C and D fit beside A.
BLOCKED = [job(0, 10, 3), job(1, 5, 4), job(2, 8, 1), job(3, 20, 1)]


# Four cores. A and B fill them until 10 and 4; C wants all; D, E and F fit in what B leaves, but E is long.
AROUND = [job(0, 10, 2), job(0, 4, 2), job(1, 6, 4), job(1, 2, 1), job(2, 20, 2), job(3, 5, 1)]
# Four cores, taken until 10; then B and C do not fit together, and D fits beside each.
ORDERS = [job(0, 10, 4), job(1, 8, 3), job(2, 3, 2), job(3, 12, 1)]
# Six cores on two machines, all taken; D fits on the larger alone, and E and F on both.
APART = [job(0, 10, 2), job(0, 10, 2), job(0, 5, 2), job(1, 3, 4), job(2, 30, 1), job(2, 4, 1)]
TWO = [Machine("a", 4), Machine("b", 2)]
# Two GPUs, taken until 10; B wants one, C none, D a half.
GPUS = [job(0, 10, 1, gpu=2000), job(1, 5, 1, gpu=1000), job(2, 100, 1), job(3, 3, 1, gpu=500)]


@pytest.mark.parametrize(
    ("policy", "around", "orders", "apart", "gpus"),
    [
        ("fcfs", [0, 0, 10, 16, 16, 16], [0, 10, 18, 18], [0, 0, 0, 10, 10, 10], [0, 10, 10, 10]),
        ("easy", [0, 0, 10, 4, 16, 4], [0, 10, 18, 10], [0, 0, 0, 10, 5, 5], [0, 10, 2, 10]),
        ("sjf", [0, 0, 10, 4, 16, 4], [0, 13, 10, 10], [0, 0, 0, 10, 10, 5], [0, 10, 2, 10]),
        ("strict-fifo", [0, 0, 10, 16, 16, 16], [0, 10, 18, 18], [0, 0, 0, 10, 10, 10], [0, 10, 10, 10]),
        ("best-effort", [0, 0, 29, 4, 9, 4], [0, 10, 18, 10], [0, 0, 0, 10, 5, 5], [0, 10, 2, 10]),
        ("first-fit", [0, 0, 29, 4, 9, 4], [0, 10, 18, 10], [0, 0, 0, 10, 5, 5], [0, 10, 2, 10]),
    ],
)
def test_each_policy_makes_the_schedule_that_one_makes_by_hand(
    policy: str, around: list[float], orders: list[float], apart: list[float], gpus: list[float]
) -> None:
    assert schedule(policy, AROUND) == around
    assert schedule(policy, ORDERS) == orders
    assert schedule(policy, APART, machines=TWO) == apart
    assert schedule(policy, GPUS, machines=[Machine("a", 4, gpus=2)]) == gpus


def test_random_leaves_nothing_idle_that_somebody_could_use_and_draws_who_it_is() -> None:
    alike = [job(0, 10, 4) for _ in range(6)]
    drawn = [schedule("random", alike, seed=seed) for seed in range(8)]
    assert all(sorted(starts) == [0, 10, 20, 30, 40, 50] for starts in drawn)
    assert len({tuple(starts) for starts in drawn}) > 1
    assert schedule("random", [job(0, 10, 3), job(1, 5, 4), job(2, 100, 1)]) == [0, 102, 2]


def test_fcfs_lets_nobody_pass() -> None:
    assert schedule("fcfs", BLOCKED) == [0, 10, 15, 15]


def test_easy_backfills_who_is_done_when_the_first_can_start() -> None:
    assert schedule("easy", BLOCKED) == [0, 10, 2, 15]


def test_easy_backfills_a_long_job_on_what_the_first_leaves() -> None:
    assert schedule("easy", [job(0, 10, 3), job(1, 5, 3), job(2, 100, 1)]) == [0, 10, 2]


def test_easy_uses_up_what_the_first_leaves_once() -> None:
    jobs = [job(0, 10, 2), job(1, 5, 3), job(2, 100, 1), job(2, 100, 1)]
    assert schedule("easy", jobs) == [0, 10, 2, 15]


def test_easy_goes_by_requested_times_and_starts_the_first_earlier_if_they_were_too_long() -> None:
    jobs = [job(0, 10, 3, requested=100), job(1, 5, 4), job(2, 50, 1)]
    assert schedule("easy", jobs) == [0, 52, 2], "50 s are over before the 100 s that the first requested"


def test_easy_does_not_backfill_a_job_without_a_requested_time_before_the_first() -> None:
    assert schedule("easy", [job(0, 10, 3), job(1, 5, 4), job(2, 1, 1, requested=0)]) == [0, 10, 15]


def test_easy_backfills_on_other_machines_than_the_reserved_one() -> None:
    machines = [Machine("a", 4), Machine("b", 2)]
    jobs = [job(0, 10, 3), job(0, 50, 1), job(1, 5, 4), job(2, 100, 2)]
    assert schedule("easy", jobs, machines=machines) == [0, 0, 50, 2]


def test_sjf_serves_the_shortest_first_and_backfills_around_it() -> None:
    jobs = [job(0, 10, 4), job(1, 30, 4), job(2, 5, 4), job(3, 20, 4)]
    assert schedule("sjf", jobs) == [0, 35, 10, 15]


def test_first_fit_lets_small_jobs_pass_for_ever() -> None:
    jobs = [job(0, 10, 3), job(1, 5, 4), job(2, 100, 1), job(9, 100, 3)]
    assert schedule("first-fit", jobs) == [0, 110, 2, 10]


def test_strict_fifo_blocks_and_best_effort_does_not() -> None:
    jobs = [job(0, 10, 3), job(1, 5, 4), job(2, 30, 1), job(3, 20, 1)]
    assert schedule("strict-fifo", jobs) == [0, 10, 15, 15]
    assert schedule("best-effort", jobs) == [0, 32, 2, 10]


def test_an_admitted_job_holds_its_quota_while_no_machine_has_room() -> None:
    machines = [Machine("a", 2), Machine("b", 2)]
    jobs = [job(0, 10, 1), job(0, 20, 2), job(1, 5, 2), job(2, 1, 1)]
    admitted = [*jobs[:1], job(0, 20, 1), *jobs[2:]]
    assert schedule("best-effort", jobs, machines=machines) == [0, 0, 10, 2], "the sum is over the quota: not admitted"
    assert schedule("best-effort", admitted, machines=machines)[2] == 1


def test_queues_serve_by_priority_first() -> None:
    jobs = [job(0, 10, 4), job(1, 5, 4), job(2, 5, 4, priority=Priority.HIGH)]
    assert schedule("strict-fifo", jobs) == [0, 15, 10] and schedule("fcfs", jobs) == [0, 10, 15]


def test_random_is_the_same_for_the_same_seed() -> None:
    jobs = [job(0, 10, 4) for _ in range(8)]
    assert schedule("random", jobs) == schedule("random", jobs) != schedule("fcfs", jobs)


def test_a_part_of_a_gpu_comes_from_the_fullest_device() -> None:
    machines = [Machine("a", 4, gpus=2)]
    jobs = [job(0, 10, 1, gpu=500), job(0, 10, 1, gpu=500), job(0, 10, 1, gpu=1000), job(0, 1, 1, gpu=100)]
    assert schedule("first-fit", jobs, machines=machines) == [0, 0, 0, 10]


@settings(max_examples=40, deadline=None)
@given(jobs=workloads())
def test_easy_never_starts_the_first_in_line_later_than_fcfs_would(jobs: list[TraceJob]) -> None:
    """With exact requested times: backfilling delays no first job. So the very first that waits is not delayed."""
    exact = [job(one.submit, one.duration, one.resources.cpu / 1000) for one in jobs]
    fcfs, easy = schedule("fcfs", exact, cores=8), schedule("easy", exact, cores=8)
    waits = [at for at, one in enumerate(exact) if fcfs[at] > one.submit]
    if waits:
        assert easy[waits[0]] <= fcfs[waits[0]]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "sjf"])
def test_jobs_of_all_kinds_run_on_several_machines(policy: str) -> None:
    jobs = [job(at, 10, 1, gpu=gpu) for at, gpu in enumerate([0, 500, 1000, 2000, 250])]
    assert min(schedule(policy, jobs, machines=MACHINES)) >= 0


def test_an_unknown_policy_is_answered_with_a_suggestion() -> None:
    assert "easy" in unknown("eazy", ["easy", "fcfs"]).hint
