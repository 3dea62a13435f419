"""The real ledger under simulated time decides as it does in a coordinator."""

import msgspec
import pytest
from hypothesis import given, settings

from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.nodes import OwnerPolicy
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import Resources
from distributed_grid.simulator.lab.grid import Grid, node_facts, policy_of
from distributed_grid.simulator.lab.owners import OwnersOfMachines
from distributed_grid.simulator.lab.run import Setup, run
from distributed_grid.simulator.lab.trace import LONGEST, Machine, TraceJob, UseSeries, uniform
from distributed_grid.simulator.lab.world import Start, World
from tests.depth import tries
from tests.simulator.lab.scene import MACHINES, job, schedule, scheduler, workloads
from tests.simulator.lab.test_world import Told

MODELS = ("T4", "A100|V100", "T4")


@settings(max_examples=tries(15, 6), deadline=None)
@given(jobs=workloads())
def test_the_ledger_stays_sound_after_every_event_of_a_trace(jobs: list[TraceJob]) -> None:
    grid = Grid(MACHINES, jobs)
    World(MACHINES, jobs, grid).run(lambda world: grid.check())
    assert not grid.ledger.state.jobs, "all have ended"


def test_a_big_job_of_one_user_gets_a_reservation_and_short_jobs_pass() -> None:
    jobs = [job(0, 100, 3), job(1, 50, 4), job(2, 20, 1), job(3, 500, 1)]
    assert schedule("grid", jobs) == [0, 100, 2, 150]


def test_the_user_with_the_smaller_share_goes_first() -> None:
    jobs = [job(0, 100, 4, user="a"), job(1, 10, 4, user="a"), job(2, 10, 4, user="b")]
    assert schedule("grid", jobs) == [0, 110, 100]


def test_by_share_the_age_of_a_job_decides_and_by_waiting_time_its_length() -> None:
    jobs = [job(0, 100, 4), job(1, 5000, 4), job(2, 200, 4)]
    by_share = World(MACHINES[:1], jobs, Grid(MACHINES[:1], jobs, policy=policy_of("share")))
    by_share.run()
    assert [record.began for record in by_share.records] == [0, 100, 5100]
    assert schedule("grid", jobs) == [0, 300, 100]


def test_an_urgent_job_evicts_a_lower_one_whose_work_is_lost() -> None:
    machines = [Machine("m", 4)]
    jobs = [job(0, 1000, 4, priority=Priority.LOW), job(100, 10, 4, priority=Priority.URGENT)]
    world = World(machines, jobs, Grid(machines, jobs))
    world.run(World.check)
    assert (world.records[0].moves, world.records[0].recalls) == (1, 0)
    assert [record.began for record in world.records] == [110.0, 100.0]
    assert world.records[0].lost == 400.0


def test_short_jobs_follow_each_other_as_successors_and_are_taken_back_for_others() -> None:
    jobs = [job(0, 0.2, 1, user="a") for _ in range(60)] + [job(1.1, 0.2, 1, user="b") for _ in range(3)]
    machines = [Machine("m", 4), Machine("n", 4)]
    world = World(machines, jobs, Grid(machines, jobs))
    world.run(World.check)
    assert max(record.ended for record in world.records) < 63 * 0.2 / 8 + 0.5


def test_what_does_not_start_on_arrival_never_does_in_a_workload_of_arrivals() -> None:
    machines = [Machine("m", 4, gpus=1)]
    jobs = [job(at, 1, 1, gpu=500) for at in range(3)]
    world = World(machines, jobs, Grid(machines, jobs, at_once=True), at_once=True)
    world.run(World.check)
    assert [record.began for record in world.records] == [0.0, 1.0, -1.0] and world.gpu == 1000


@pytest.mark.parametrize("policy", ["grid", "first-fit", "easy", "best-effort", "random"])
def test_a_job_gets_gpus_of_a_model_that_it_names(policy: str) -> None:
    machines = [Machine("a", 4, gpus=1, model="A100"), Machine("b", 4, gpus=1, model="T4"), Machine("c", 4)]
    jobs = [msgspec.structs.replace(job(at, 100, 1, gpu=1000), gpu_model=model) for at, model in enumerate(MODELS)]
    world = World(machines, jobs, scheduler(policy, machines, jobs))
    where: dict[int, int] = {}
    world.run(lambda world: where.update({number: one.start.node for number, one in world.running.items()}))
    world.check()
    assert where == {0: 1, 1: 0, 2: 1} and world.records[2].began == 100.0
    with pytest.raises(AssertionError, match="another model"):
        wrong = Start(0, 0, ((0, 1000),))
        World(machines, jobs, Told(machines, jobs, [wrong])).run()


def test_the_ledger_hears_how_many_cores_the_owner_uses() -> None:
    machines = [Machine("quiet", 4), Machine("busy", 4)]
    grid = Grid(machines, [job(0, 100, 1)], policy=policy_of("load-balanced"))
    grid.lent(0, (0, 1, 2, 3), 0.0)
    grid.lent(1, (0, 1, 2), 0.0)
    samples = [node.sample for node in grid.ledger.state.nodes.values()]
    assert [sample.foreign_cpu for sample in samples if sample is not None] == [0.0, 1.0]
    grid.submit([0], 0.0)
    assert [start.node for start in grid.decide(0.0).starts] == [0]


def test_a_node_lends_all_of_its_machine_and_the_strategy_is_the_policy_s() -> None:
    facts = node_facts(Machine("m", 4, 8, 2, "T4"))
    assert (facts.lendable.cpu, facts.lendable.gpu, [gpu.model for gpu in facts.gpus]) == (4000, 2000, ["T4", "T4"])
    assert policy_of("pack").strategy is Strategy.PACK and policy_of().strategy is Strategy.BEST_FIT
    assert policy_of("fit").gpu_weights == policy_of().weights != policy_of().gpu_weights


HOUR, DAY = 3600.0, 86_400.0
AWAY = UseSeries("away", ((0.0, 0.0), (DAY - 300.0, 0.0)))
OFFICE = UseSeries("office", ((0.0, 0.0), (9 * HOUR, 0.9), (17 * HOUR, 0.0), (DAY - 300.0, 0.0)))
"""The owner works from nine to five, each day."""


def recalled(policy: str) -> tuple[World, OwnersOfMachines]:
    """After five days a job starts on the machine of the office at eight, as the other one is taken until twenty to
    nine, and needs two hours."""
    machines, at = uniform(2, 4), 5 * DAY
    jobs = [
        job(0, 60, 1),
        job(at + 6 * HOUR, 2.6 * HOUR, 4, requested=3 * HOUR),
        job(at + 8 * HOUR, 2 * HOUR, 4, requested=3 * HOUR),
    ]
    owners = OwnersOfMachines(machines, [OFFICE, AWAY], OwnerPolicy.RECALL, seed=1)
    world = World(machines, jobs, Grid(machines, jobs, policy=policy_of(policy)), owners)
    world.run()
    world.check()
    return world, owners


def test_under_predictive_a_job_leaves_before_the_owner_comes_and_under_balanced_it_is_recalled() -> None:
    (stays, stayed), (leaves, left) = recalled("balanced"), recalled("predictive")
    assert (stays.records[2].moves, stays.records[2].recalls) == (1, 1)
    assert (leaves.records[2].moves, leaves.records[2].recalls) == (1, 0)
    assert leaves.records[2].lost < stays.records[2].lost and leaves.records[2].ended < stays.records[2].ended
    assert left.pain == 0.0 < stayed.pain


def test_jobs_run_however_long_those_before_them_take() -> None:
    jobs = [TraceJob(0.0, LONGEST, Resources(1000), line=at) for at in range(5)]
    assert run(Setup(machines=uniform(1, 1), jobs=jobs), "grid", 1, lambda: 0.0).figures.jobs == 5
