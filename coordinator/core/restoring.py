"""Taking up what was on disk."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import (
    accounts,
    agents,
    boosts,
    by_ray,
    dependencies,
    following,
    gangs,
    groups,
    orders,
)
from distributed_grid.coordinator.core.model import Allocation, Group, Job
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.orders import NodeOrders

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def take_up(
    ledger: "Ledger",
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
        agents.know(ledger, facts)
    orders.restore(ledger, ordered)
    for allocation in allocations:
        if allocation.state is not State.ENDED:
            ledger.allocations[allocation.id] = allocation
            ledger.nodes[allocation.node].allocations[allocation.id] = allocation
            gangs.granted(ledger, allocation)
            if allocation.state is State.STARTING and allocation.started:
                boosts.arm(ledger, allocation)
    for group in many:
        groups.begin(ledger, group)
        if group.after or group.begin > ledger.now:
            dependencies.hold(ledger, group)
    for job in sorted(jobs, key=lambda job: job.submitted):
        if job.state is not State.ENDED:
            ledger.enter(job)
    accounts.restore(ledger, past)
    by_ray.restore(ledger)
    following.follow(ledger)
    groups.go_on(ledger)
