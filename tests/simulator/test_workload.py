"""What users submit in the world of a seed: each kind is drawn by some seed, and each can be left out."""

import functools

from distributed_grid.simulator.plan import make
from distributed_grid.simulator.workload import CROWD, HOLDS, ZONED, JobPlan, Shape

planned = functools.cache(make)


def all_jobs(*without: str) -> list[JobPlan]:
    return [job for seed in range(100) for job in planned(seed, Shape(), without).jobs]


def test_some_seeds_hold_capacity_and_run_jobs_inside_that_it_is_enough_for() -> None:
    made = all_jobs()
    assert sum(job.holds for job in made) > 10
    for seed in range(100):
        plans = {job.number: job for job in planned(seed, Shape(), ()).jobs}
        for inside in (job for job in plans.values() if job.within >= 0):
            hold = plans[inside.within]
            assert hold.holds and hold.number >= HOLDS and hold.user == inside.user and hold.at <= inside.at
            assert inside.request.resources.fits(hold.request.resources)
            assert hold.time_limit > 0.0 and not hold.request.requeue


def test_a_seed_without_holds_is_what_it_was_before_there_were_any() -> None:
    before = all_jobs("holds")
    assert before == [job for job in all_jobs() if not HOLDS <= job.number < HOLDS + 50] != []


def test_some_jobs_end_where_the_grid_takes_their_place_back() -> None:
    assert any(not job.request.requeue and not job.holds for job in all_jobs())
    assert all(job.request.requeue or job.holds for job in all_jobs("requeue"))


def test_where_operators_change_labels_some_jobs_ask_for_them() -> None:
    plans = [planned(seed, Shape(), ()) for seed in range(100)]
    changed = [plan for plan in plans if plan.labels]
    assert len(changed) > 5 and all(one.node < len(plan.nodes) for plan in changed for one in plan.labels)
    for plan in plans:
        zoned = [job for job in plan.jobs if ZONED <= job.number < CROWD]
        assert bool(zoned) == bool(plan.labels)
        assert all(job.request.constraints is not None and job.request.constraints.labels for job in zoned)
    assert not any(make(seed, Shape(), ("labels",)).labels for seed in range(100))


def test_who_waits_for_another_waits_for_one_that_is_planned() -> None:
    for seed in range(30):
        jobs = planned(seed, Shape(), ()).jobs
        assert {number for job in jobs for number, _ in job.after} <= {job.number for job in jobs}
