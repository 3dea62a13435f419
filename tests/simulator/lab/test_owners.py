"""Owners come back by a trace of use, and the agent's real policy says what becomes of jobs."""

import pytest

from distributed_grid.protocol.nodes import OwnerPolicy
from distributed_grid.simulator.lab.owners import OwnersOfMachines
from distributed_grid.simulator.lab.trace import UseSeries, uniform
from distributed_grid.simulator.lab.world import World
from tests.simulator.lab.scene import job, scheduler

MACHINES = uniform(1, 4)
BACK = UseSeries("m", ((0.0, 0.0), (100.0, 1.0), (200.0, 0.0), (100_000.0, 0.0)))
"""The owner uses all cores from 100 s to 200 s."""


def run(owner_policy: OwnerPolicy, policy: str = "grid") -> tuple[World, OwnersOfMachines]:
    jobs = [job(0, 150, 4), job(110, 10, 1)]
    owners = OwnersOfMachines(MACHINES, [BACK], owner_policy, seed=1)
    world = World(MACHINES, jobs, scheduler(policy, MACHINES, jobs), owners)
    world.run(World.check)
    return world, owners


@pytest.mark.parametrize("policy", ["grid", "easy"])
def test_a_job_goes_on_beside_its_owner_who_shares_his_cores(policy: str) -> None:
    world, owners = run(OwnerPolicy.CONTINUE, policy)
    assert world.records[0].ended == 150.0 and owners.pain == pytest.approx(4 * 50, rel=0.05)


def test_pain_is_what_the_owner_wanted_beyond_the_cores_that_jobs_left() -> None:
    jobs = [job(0, 150, 2), job(160, 10, 1)]
    three = UseSeries("m", ((0.0, 0.0), (100.0, 0.75), (200.0, 0.0), (100_000.0, 0.0)))
    owners = OwnersOfMachines(MACHINES, [three], OwnerPolicy.CONTINUE, seed=1)
    world = World(MACHINES, jobs, scheduler("easy", MACHINES, jobs), owners)
    world.run(World.check)
    assert world.records[0].ended == 150.0
    assert owners.pain == pytest.approx((3 + 2 - 4) * 50), "three cores wanted, two held, of four, for 50 s"


@pytest.mark.parametrize("policy", ["grid", "easy"])
def test_a_frozen_job_ends_later_by_what_it_was_frozen(policy: str) -> None:
    world, owners = run(OwnerPolicy.SUSPEND, policy)
    first = world.records[0]
    assert 100 < first.paused < 140 and first.ended == pytest.approx(150 + first.paused)
    assert owners.pain < 20 and first.attempts == 1 and first.lost == 0


@pytest.mark.parametrize("policy", ["grid", "easy"])
def test_a_recalled_job_begins_anew_once_the_owner_has_gone(policy: str) -> None:
    world, _ = run(OwnerPolicy.RECALL, policy)
    first = world.records[0]
    assert first.recalls == first.moves == 1 and first.attempts == 2 and first.lost == pytest.approx(4 * 101, rel=0.02)
    assert min(record.began for record in world.records) >= 200, "nothing is lent while he is there"


def test_a_machine_whose_owner_never_leaves_runs_nothing_and_the_run_ends() -> None:
    jobs = [job(0, 150, 4)]
    owners = OwnersOfMachines(MACHINES, [UseSeries("m", ((0.0, 1.0),))], OwnerPolicy.SUSPEND, seed=1)
    world = World(MACHINES, jobs, scheduler("easy", MACHINES, jobs), owners)
    world.run(World.check)
    assert world.records[0].ended < 0 and world.points[-1].owned == 4000


def test_the_same_seed_gives_each_machine_the_same_series() -> None:
    series = [UseSeries(str(at), ((0.0, at / 10), (300.0, 0.0))) for at in range(3)]
    machines = uniform(5, 4)
    jobs = [job(at, 50, 1) for at in range(20)]

    def points(seed: int) -> list[int]:
        owners = OwnersOfMachines(machines, series, OwnerPolicy.SUSPEND, seed)
        world = World(machines, jobs, scheduler("grid", machines, jobs), owners)
        world.run(World.check)
        return [point.owned for point in world.points]

    assert points(1) == points(1)
