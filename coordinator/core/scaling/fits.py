"""Whether a machine of some pool could run a request that no node can."""

from distributed_grid.coordinator.core.scaling.packing import able, node_of
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.scaling.pools import ScalingMode


def pool_for(state: GridState, request: Request) -> str:
    """The first pool of which a machine could run this; empty: there is none, or none is created."""
    scaling = state.policy.scaling
    if scaling.mode is ScalingMode.OFF:
        return ""
    as_joined = state.scaling.as_joined_now()
    for pool in scaling.pools:
        enough = max(1, request.gang) <= min(pool.max, scaling.limits.max_workers)
        nodes = (node_of(pool, shape, as_joined.get((pool.name, shape.type))) for shape in pool.shapes)
        if enough and any(able(node, request) for node in nodes):
            return pool.name
    return ""
