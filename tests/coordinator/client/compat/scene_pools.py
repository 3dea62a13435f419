"""Pools of a coordinator in this process: configured, with providers that have told their machines."""

from typing import Protocol

from distributed_grid.coordinator.core.scaling.events import MachinesListed, ScalingConfigured
from distributed_grid.coordinator.core.scaling.state import Listed
from distributed_grid.core import GridClient
from distributed_grid.protocol.scaling.pools import Limits, Pool, Scaling, ScalingMode
from tests.coordinator.ends import Coordinator

LIMITS = Limits()
"""Those that a grid has where none are configured."""


class HasClient(Protocol):
    client: GridClient


async def pools(grid: Coordinator, of: HasClient, *configured: Pool, limits: Limits = LIMITS) -> None:
    """Configure these pools, and have their providers tell that there is nothing."""
    grid.driver.put(ScalingConfigured(Scaling(mode=ScalingMode.PLAN, pools=configured, limits=limits)))
    await told(grid, of)


async def told(grid: Coordinator, of: HasClient, *machines: Listed) -> None:
    """Have all providers tell these machines."""
    state = grid.ledger.state
    await of.client.scaling()
    for name in {one.provider for one in state.policy.scaling.pools}:
        state.deadlines.arm("look", name, state.now)
        await of.client.scaling()
        number = state.scaling.provider(name).listing
        grid.driver.put(MachinesListed(name, number, machines))
    await of.client.scaling()
