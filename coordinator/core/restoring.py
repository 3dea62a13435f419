"""Taking up what was on disk."""

from collections.abc import Iterable, Mapping

from distributed_grid.coordinator.core import (
    accounts,
    agents,
    boosts,
    by_ray,
    groups,
    lifecycle,
    orders,
)
from distributed_grid.coordinator.core.model import Allocation, Group, Job
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders


def take_up(
    state: GridState,
    jobs: Iterable[Job],
    allocations: Iterable[Allocation],
    nodes: Iterable[NodeFacts],
    ordered: Mapping[str, NodeOrders],
    many: Iterable[Group],
    past: Mapping[str, tuple[float, float]],
) -> None:
    """Take up what lives, in the order it was submitted. All nodes are disconnected since now, so their agents have
    time to return before anything is taken for lost."""
    for facts in nodes:
        agents.know(state, facts)
    orders.restore(state, ordered)
    for allocation in allocations:
        if allocation.state is not State.ENDED:
            state.hold(allocation)
            if allocation.state is State.STARTING and allocation.started:
                boosts.arm(state, allocation)
    for group in many:
        state.begin_group(group)
        if group.after or group.begin > state.now:
            state.hold_back(group)
    for job in sorted(jobs, key=lambda job: job.submitted):
        if job.state is not State.ENDED:
            lifecycle.enter(state, job)
    accounts.restore(state, past)
    by_ray.restore(state)
    lifecycle.follow(state)
    groups.go_on(state)
