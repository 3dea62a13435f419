"""Groups in Ray that a coordinator before us left: found by their names and let go of, once, after the start. Also
where Ray places no jobs (any more): it did, perhaps, for the one before.
"""

import asyncio

import structlog

from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.ray.agreed import BOOSTS, JOBS
from distributed_grid.coordinator.ray.bridge_client import Bridge, NoRay

FIRST, LONGEST = 10.0, 600.0
"""Seconds until Ray is asked again where it could not be, doubled from the one to the other."""
ASK_SECONDS = 60.0

log = structlog.get_logger("ray")


async def sweep_until_done(state: GridState, bridge: Bridge) -> None:
    """Let go of them as soon as Ray can be asked. By a bridge of its own: one that asks for groups is a program of the
    cluster, which few coordinators need."""
    pause, own = FIRST, bridge.another()
    while True:
        try:
            left = await sweep(state, own)
            break
        except NoRay:  # who asks for a boost or a job is told why
            pass
        finally:
            await own.close()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST)
    if left:
        log.warning("placement groups were left over, and are gone", groups=left)


async def sweep(state: GridState, bridge: Bridge) -> list[str]:
    """Let go of the groups of jobs and boosts that hold none; their names. Raises NoRay."""
    left = []
    for name in list(await bridge.ask("reserved", seconds=ASK_SECONDS)):
        if _is_for_nobody(state, name):
            await bridge.ask("release", seconds=ASK_SECONDS, name=name)
            left.append(name)
    return left


def _is_for_nobody(state: GridState, name: str) -> bool:
    if name.startswith(JOBS):
        held = state.allocations.get(name.removeprefix(JOBS))
        return held is None or held.ray is None
    return name.startswith(BOOSTS) and name.removeprefix(BOOSTS) not in state.jobs
