"""No machine goes to and fro: constant demand ends in rest, demand on the edge acts at most once a cooldown, and what
was created for nothing is counted. The real ledger over whole lives of machines (cloud.py).
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Command
from distributed_grid.coordinator.core.scaling.events import CreateMachine, ScalingConfigured
from distributed_grid.protocol.scaling.machines import MachineState
from distributed_grid.protocol.scaling.plans import DrainCause
from tests.coordinator.core.scaling.cloud import VM, World
from tests.depth import DEEP, tries

HOUR = 3600.0
SPAN = HOUR if DEEP else HOUR / 2
"""How long demand stays as it is."""
IDLE = 120.0
"""Of the world's pool: the cooldown between what is created and what is drained."""


class Watched(World):
    """Notes when machines were created first and drained, and on which ones anything was launched."""

    def __init__(self, seed: int, **pool: Any) -> None:
        self.created: dict[str, float] = {}
        self.drained: dict[str, float] = {}
        self.ran: set[str] = set()
        super().__init__(seed, faults=0.0)
        changed = replace(self.scaling.pools[0], **({"min": 0} | pool))
        self.scaling = replace(self.scaling, pools=(changed,))
        self.tell(ScalingConfigured(self.scaling))

    def do(self, command: Command) -> None:
        if isinstance(command, CreateMachine):
            self.created.setdefault(command.machine.name, self.now)
        for name, one in self.machines.items():
            if one.state in (MachineState.DRAINING, MachineState.ENDING):  # at once, where nothing runs there
                self.drained.setdefault(name, self.now)
        super().do(command)

    def launch(self, vm: VM, allocation: str) -> None:
        self.ran.add(vm.machine.name)
        super().launch(vm, allocation)

    @property
    def actions(self) -> list[float]:
        return sorted([*self.created.values(), *self.drained.values()])

    def every(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it now and from then on."""

        def again() -> None:
            do()
            self.at(seconds, again)

        again()


@pytest.mark.parametrize("seed", range(tries(1)))
def test_constant_demand_ends_in_rest(seed: int) -> None:
    world = Watched(seed)
    count = world.chance.randint(1, 5)

    def keep() -> None:
        for number in range(count - len(world.wanted) + len(world.ended)):
            world.ask(f"j-{len(world.wanted)}-{number}", world.chance.uniform(60, 900))

    world.every(5.0, keep)
    world.run(1200)
    before, there = len(world.actions), len(world.alive())
    assert there == -(-count // 2), "two jobs a machine"
    world.run(SPAN)
    assert (len(world.actions), len(world.alive())) == (before, there), "once it has converged nothing is done"


@pytest.mark.parametrize("seed", range(tries(1)))
def test_demand_on_the_edge_acts_at_most_once_a_cooldown(seed: int) -> None:
    """Two jobs always run, which fill one machine; a third comes and goes at random."""
    world = Watched(seed)
    for number in range(2):
        world.ask(f"always-{number}", 3 * HOUR)

    def noise() -> None:
        if world.chance.random() < 0.4 and all(name.startswith("always") for name in world.wanted.keys() - world.ended):
            world.ask(f"noise-{len(world.wanted)}", world.chance.uniform(1, 30))

    world.every(30.0, noise)
    world.run(2 * SPAN)
    births, ends = sorted(world.created.values()), sorted(world.drained.values())
    assert len(births) >= 2 and len(ends) >= 2, "the third job gets a machine, which ends when it has long been idle"
    for times in (births[1:], ends):  # the first machine is for those that always run
        assert all(later - one >= IDLE for one, later in zip(times, times[1:], strict=False)), times
    for name, at in world.drained.items():
        assert at - world.created[name] >= IDLE, f"{name} was ended at once"


@pytest.mark.parametrize("seed", range(tries(2, 1)))
def test_every_creation_was_needed_or_is_counted_as_waste(seed: int) -> None:
    """Bursts of jobs of any length, which may have run elsewhere before a machine is up."""
    world = Watched(seed, min=seed % 2)
    for number in range(12):
        for part in range(world.chance.randint(0, 4)):
            world.ask(f"j-{number}-{part}", world.chance.choice([1.0, 30.0, 400.0]))
        world.run(world.chance.uniform(0, 300))
    world.run(2 * HOUR)
    assert world.ran, "some machines had jobs"
    assert world.ledger is not None and not world.ledger.state.jobs
    known = world.ledger.state.scaling.machines
    assert set(known) >= set(world.created)
    for name in world.created:
        one = known[name]
        assert one.ran is (name in world.ran), f"{name}: what ran there is reported"
        assert one.jobs or "(min)" in one.why, f"{name} was created for nobody"


@pytest.mark.parametrize("seed", range(tries(1)))
def test_a_pool_that_is_removed_drains_its_machines_and_ends_them_after_their_jobs(seed: int) -> None:
    world = Watched(seed)
    for number in range(4):
        world.ask(f"j-{number}", 600.0)
    world.run(300)
    assert len(world.alive()) == 2
    world.tell(ScalingConfigured(replace(world.scaling, pools=())))
    world.ask("late", 10.0)
    world.run(60)
    assert world.ledger is not None
    live = [one for one in world.ledger.state.scaling.machines.values() if one.live]
    assert [(one.state, one.cause) for one in live] == [(MachineState.DRAINING, DrainCause.REMOVED)] * 2
    world.run(1500)
    assert not world.alive() and world.ended == {f"j-{number}" for number in range(4)}, "what ran there has ended well"
    assert all(not one.live for one in world.ledger.state.scaling.machines.values())


@pytest.mark.parametrize("jump", [90.0, HOUR, 30 * HOUR])
def test_a_clock_that_jumps_leaves_no_machine_behind(jump: float) -> None:
    """As after a machine that slept: all that was due is due at once."""
    world = Watched(3)
    for number in range(3):
        world.ask(f"j-{number}", 200.0)
    world.run(100)
    world.now += jump
    for vm in world.alive():
        vm.heard = world.now  # its own clock slept, too
    world.run(3 * HOUR)
    assert world.ledger is not None
    assert not world.alive(), "nothing waits any more"
    assert all(not one.live for one in world.ledger.state.scaling.machines.values())
    assert not world.ledger.state.jobs


def test_no_machine_is_replaced_by_another_of_its_kind_while_nothing_waits() -> None:
    world = Watched(5, life=2000.0, idle=600.0)
    world.ask("j", 1000.0)
    world.run(HOUR)
    assert len(world.created) == 1 and "j" in world.ended and not world.alive()
