"""What a seed stands for: drawn beforehand, the same each time, and within its bounds."""

import pytest
from msgspec.structs import replace

from distributed_grid.simulator.plan import KINDS, make
from distributed_grid.simulator.workload import GANGS, Shape

SMALL = Shape(nodes=4, jobs=5, faults=3, seconds=20.0)


@pytest.mark.parametrize("seed", range(10))
def test_the_same_seed_is_the_same_plan(seed: int) -> None:
    assert make(seed, Shape()) == make(seed, Shape())
    assert make(seed, Shape()) != make(seed + 1, Shape())


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_has_what_its_shape_says_and_all_of_it_within_its_time(seed: int) -> None:
    plan = make(seed, SMALL)
    assert [node.number for node in plan.nodes] == [0, 1, 2, 3]
    assert [job.number for job in plan.jobs if job.number < GANGS] == [0, 1, 2, 3, 4]
    assert len({job.number for job in plan.jobs}) == len(plan.jobs)
    assert len(plan.faults) >= 3 and len({fault.number for fault in plan.faults}) == len(plan.faults)
    for fault in plan.faults:
        assert fault.kind in KINDS and 0 <= fault.node < 4 and 0.0 <= fault.how < 1.0 and fault.seconds > 0
    assert all(0.99 <= node.rate <= 1.01 and node.cores > 0 for node in plan.nodes)
    assert all(job.at >= 0.0 and job.codes for job in plan.jobs)
    waits_for = {number for job in plan.jobs for number, _ in job.after}
    assert waits_for <= {job.number for job in plan.jobs}, "nobody waits for a job that is not planned"


def test_what_is_left_out_is_left_out_and_nothing_else_changes() -> None:
    whole, cut = make(3, Shape()), make(3, Shape(), ("job2", "partition"))
    assert cut.jobs == tuple(job for job in whole.jobs if job.number != 2)
    assert cut.faults == tuple(fault for fault in whole.faults if fault.kind != "partition")
    assert (cut.nodes, cut.chance) == (whole.nodes, whole.chance)
    first = whole.faults[0]
    assert first not in make(3, Shape(), (f"fault{first.number}",)).faults


def test_in_some_worlds_run_times_are_predicted_and_nothing_else_is_different() -> None:
    predicts = [seed for seed in range(100) if make(seed, Shape()).predicts]
    assert 5 < len(predicts) < 50
    for seed in predicts:
        assert make(seed, Shape(), ("predictions",)) == replace(make(seed, Shape()), predicts=False)


def test_without_jobs_and_faults_there_are_none() -> None:
    for seed in range(20):
        plan = make(seed, Shape(jobs=0, faults=0))
        assert (plan.jobs, plan.faults) == ((), ())


def test_every_kind_of_fault_is_drawn_by_some_seed() -> None:
    assert {fault.kind for seed in range(100) for fault in make(seed, Shape()).faults} == set(KINDS)
