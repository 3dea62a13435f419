"""The lives of machines: exactly the wanted ones are there in the end, none twice, none unknown, whatever is killed."""

import pytest

from distributed_grid.coordinator.core.scaling.events import ScalingRequested
from distributed_grid.protocol.scaling.machines import MachineState
from distributed_grid.protocol.scaling.plans import ScaleOrder
from tests.coordinator.core.scaling.cloud import World
from tests.depth import tries


def wanted(world: World) -> list[str]:
    """The names of the machines that are to be there."""
    assert world.ledger is not None
    return sorted(name for name, one in world.ledger.state.scaling.machines.items() if one.live)


def settled(world: World) -> None:
    """All faults are over, nothing waits any more: exactly the pool's minimum is there."""
    assert world.ledger is not None
    there = sorted(vm.machine.name for vm in world.alive())
    assert there == wanted(world), "what is recorded is what is there"
    assert len(there) == len(set(there)) == world.scaling.pools[0].min
    assert all(one.state is MachineState.JOINED for one in world.ledger.state.scaling.machines.values() if one.live)
    assert not world.ledger.state.jobs, "everything has run"


def test_a_machine_comes_runs_what_waits_and_ends() -> None:
    world = World(2, faults=0.0)
    world.ask("j-1", 60.0)
    world.run(50)
    assert len(world.alive()) == 1
    world.run(900)
    settled(world)


def test_jobs_are_packed_within_the_budget() -> None:
    world = World(2, faults=0.0)
    for number in range(20):
        world.ask(f"j-{number}", 100.0)
    world.run(60)
    assert len(world.alive()) == 3
    world.run(3000)
    settled(world)


@pytest.mark.parametrize("seed", range(tries(10, 2)))
def test_whatever_is_killed_and_lost_nothing_is_left_over(seed: int) -> None:
    world = World(seed, faults=world_faults(seed))
    live_through(world)
    settled(world)


@pytest.mark.parametrize("seed", range(tries(5, 1)))
def test_a_clock_that_has_jumped_at_a_start_forgets_and_doubles_nothing(seed: int) -> None:
    world = World(seed, faults=world_faults(seed), jumps=True)
    live_through(world)
    settled(world)


@pytest.mark.parametrize("seed", range(tries(5, 1)))
def test_the_days_limit_holds_at_every_instant_whatever_is_lost(seed: int) -> None:
    """Each instant is checked by the world; what the day leaves no machine for waits."""
    world = World(seed, faults=world_faults(seed), daily=True)
    live_through(world)
    assert sorted(vm.machine.name for vm in world.alive()) == wanted(world)


def live_through(world: World) -> None:
    """Jobs and faults, then no more faults until all is over."""
    for number in range(6):
        world.ask(f"j-{number}", world.chance.uniform(5, 300))
        world.run(world.chance.uniform(0, 120))
        if world.ledger is None:
            world.start()
    for _ in range(20):
        world.run(30)
        if world.ledger is None:
            world.start()
    world.faults = 0.0
    if world.ledger is None:
        world.start()
    world.run(200)
    for name in [*world.ledger.state.scaling.paused] if world.ledger is not None else []:
        resume(world, name)
    world.run(1200)


@pytest.mark.parametrize("seed", range(tries(5, 1)))
def test_without_a_coordinator_nothing_is_left_either(seed: int) -> None:
    world = World(seed, faults=0.3)
    for number in range(6):
        world.ask(f"j-{number}", world.chance.uniform(5, 300))
        world.run(world.chance.uniform(0, 60))
        if world.ledger is None:
            world.start()
    world.crash()
    world.run(3600)  # what ran has ended, and nobody is heard any more
    assert not world.alive()


def world_faults(seed: int) -> float:
    return (0.05, 0.2, 0.5)[seed % 3]


def resume(world: World, pool: str) -> None:
    world.tell(ScalingRequested(1, ScaleOrder.RESUME, pool, "ann"))
