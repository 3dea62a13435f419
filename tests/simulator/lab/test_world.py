"""The world keeps account: nothing is used twice, and no work is lost unnoticed, whatever a policy decides."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from distributed_grid.protocol.resources import GIB
from distributed_grid.simulator.lab.baselines import Fcfs
from distributed_grid.simulator.lab.run import POLICIES
from distributed_grid.simulator.lab.trace import Machine, TraceJob
from distributed_grid.simulator.lab.world import Decision, Free, Start, World
from tests.depth import tries
from tests.simulator.lab.scene import MACHINES, job, scheduler, workloads


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=tries(15, 6), deadline=None)
@given(jobs=workloads())
def test_under_each_policy_every_job_runs_once_and_nothing_is_held_twice(policy: str, jobs: list[TraceJob]) -> None:
    world = World(MACHINES, jobs, scheduler(policy, MACHINES, jobs))
    world.run(World.check)
    assert world.free == [Free.all_of(machine) for machine in MACHINES]
    done = sum((record.ended - record.began) * one.size for record, one in zip(world.records, jobs, strict=True))
    submitted = sum(one.duration * one.size for one in jobs)
    assert done == pytest.approx(submitted) and sum(record.lost for record in world.records) == 0


class Told(Fcfs):
    """Decides what a test says, once."""

    def __init__(self, machines: Sequence[Machine], jobs: Sequence[TraceJob], starts: Sequence[Start]) -> None:
        super().__init__(machines, jobs)
        self.starts = starts

    def decide(self, now: float) -> Decision:
        """All at once."""
        starts, self.starts = self.starts, ()
        return Decision(starts)


ONE = [Machine("m", 2, GIB, 1)]


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        ([Start(0, 0), Start(1, 0)], "too little"),
        ([Start(0, 0), Start(0, 0)], "does not wait"),
        ([Start(0, 0, ((0, 500),))], "other GPUs"),
        ([Start(2, 0, ((0, 1000),)), Start(3, 0, ((0, 1000),))], "given twice"),
        ([Start(0, 0, cores=(1,))], "other cores"),
        ([Start(2, 0, ((0, 1000),), (), 1), Start(4, 0, (), (), 1)], "held twice"),
    ],
    ids=["over the machine", "twice", "wrong gpus", "gpu twice", "wrong cores", "core twice"],
)
def test_a_decision_that_uses_something_twice_is_caught(starts: list[Start], why: str) -> None:
    jobs = [job(0, 1, 2), job(0, 1, 1), job(0, 1, 0.5, gpu=1000), job(0, 1, 0.5, gpu=1000), job(0, 1, 0.75)]
    with pytest.raises(AssertionError, match=why):
        World(ONE, jobs, Told(ONE, jobs, starts)).run()


def test_a_job_that_never_starts_is_a_violation() -> None:
    jobs = [job(0, 1, 1)]
    with pytest.raises(AssertionError, match="never started"):
        World(ONE, jobs, Told(ONE, jobs, [])).run()


def test_a_frozen_job_ends_later_and_a_recalled_one_begins_anew() -> None:
    jobs = [job(0, 100, 1), job(0, 100, 1), job(10, 1, 2), job(50, 1, 1)]
    world = World(ONE, jobs, Fcfs(ONE, jobs))

    def meddle(world: World) -> None:
        if world.now == 10:
            world.freeze(0, "the owner is back")
            world.recall(1, "the owner is back")
        elif world.now == 50:
            world.thaw(0)

    world.run(meddle)
    world.check()
    first, second = world.records[:2]
    assert (first.ended, first.paused) == (140.0, 40.0)
    assert second.attempts == 2 and second.lost == 10.0 and second.ended == second.began + 100


@pytest.mark.parametrize("what", ["cores", "memory", "gpu"])
def test_an_account_that_is_not_what_the_jobs_hold_is_caught_at_the_next_event(what: str) -> None:
    jobs = [job(0, 10, 1, gpu=500), job(5, 10, 1)]
    world = World(ONE, jobs, Fcfs(ONE, jobs))

    def meddle(world: World) -> None:
        if world.now == 0:
            free = world.free[0]
            free.cpu, free.memory = free.cpu + (what == "cores"), free.memory + (what == "memory")
            free.gpus[0] += what == "gpu"

    with pytest.raises(AssertionError, match="what is free on machine 0"):
        world.run(meddle)
    assert world.now == 5


def test_a_job_that_ends_before_its_work_is_done_is_caught() -> None:
    jobs = [job(0, 10, 1), job(5, 10, 1)]
    world = World(ONE, jobs, Fcfs(ONE, jobs))
    with pytest.raises(AssertionError, match=r"job 0 ended when 5\.0 s of its work"):
        world.run(lambda world: world.end(0, again=False) if world.now == 5 else None)


def test_work_that_was_not_done_is_caught() -> None:
    jobs = [job(0, 10, 1), job(5, 10, 2)]
    world = World(ONE, jobs, Fcfs(ONE, jobs))
    world.run(World.check)
    world.records[1].held -= 1
    with pytest.raises(AssertionError, match="the work of the attempts"):
        world.check()


def test_the_points_say_what_was_held_and_who_waited() -> None:
    jobs = [job(0, 10, 2), job(5, 10, 1)]
    world = World(ONE, jobs, Fcfs(ONE, jobs))
    world.run()
    assert [(one.at, one.cpu, one.waiting) for one in world.points] == [
        (0, 2000, 0),
        (5, 2000, 1),
        (10, 1000, 0),
        (20, 0, 0),
    ]
