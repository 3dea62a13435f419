"""Whether machines of pools could run a request that no node can, or that needs more nodes than there are."""

from collections.abc import Iterator

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement import matching
from distributed_grid.coordinator.core.scaling.packing import able, node_of
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.scaling.pools import Pool, ScalingMode


def pool_for(state: GridState, request: Request) -> str:
    """The first pool of which a machine could run this; empty: there is none, or none is created. For a gang there have
    to be enough of all such pools together, beside the nodes that are no machines."""
    pools = {pool.name: pool for pool, _ in _machines(state, request)}
    if request.gang and pools:
        most = min(sum(pool.max for pool in pools.values()), state.policy.scaling.limits.max_workers)
        nodes = (node for name, node in state.nodes.items() if name not in state.scaling.machines)
        if request.gang > most and request.gang > most + sum(matching.able(node, request) for node in nodes):
            return ""
    return next(iter(pools), "")


def most_memory(state: GridState, request: Request) -> int:
    """The most memory that a machine lends which could run this (bytes); 0: none could, or none is created."""
    return max((node.facts.lendable.memory for _, node in _machines(state, request)), default=0)


def _machines(state: GridState, request: Request) -> Iterator[tuple[Pool, Node]]:
    """The kinds of machines that could run this, as the nodes that they will be, with their pools."""
    scaling = state.policy.scaling
    if scaling.mode is ScalingMode.OFF:
        return
    as_joined = state.scaling.as_joined_now()
    for pool in scaling.pools:
        for shape in pool.shapes if pool.max and scaling.limits.max_workers else ():
            if able(node := node_of(pool, shape, as_joined.get((pool.name, shape.type))), request):
                yield pool, node
