"""Placement by Ray (`placement: ray`): a grant is reserved in Ray before it is launched, and released when the
allocation has ended. Until Ray has answered, an allocation is STARTING and its node does not know of it, so it can be
ended or requeued without asking the node. Boosts are lent to Ray, and need no reservation.
"""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import RayReported, Reserved, ReserveRefused, Send, Unreserve
from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.lifecycle.attempts import launch, reserve
from distributed_grid.coordinator.core.model import Allocation, Node
from distributed_grid.coordinator.core.nodes import quarantine
from distributed_grid.coordinator.core.placement.constraints import REFUSED_BY_RAY
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.nodes import NodeState

FIRST, MOST = 1.0, 10.0
"""Back-off of a node after Ray refused a reservation there (s), doubled from the first to the most."""


def restore(state: GridState) -> None:
    """Repeat the reservations that were not answered before a restart."""
    for allocation in state.allocations.values():
        if allocation.awaits_ray:
            reserve(state, allocation)


# --- what Ray says ----------------------------------------------------------------------------------------------------


def reserved(state: GridState, event: Reserved) -> None:
    """Ray has reserved it: launch it, or end it if it was stopped meanwhile."""
    allocation = state.allocations.get(event.allocation)
    if allocation is None:
        state.out.append(Unreserve(event.allocation))
        return
    if allocation.ray is None or allocation.ray.granted:
        return
    node, job = state.nodes[allocation.node], state.jobs[allocation.job]
    allocation.ray = replace(allocation.ray, granted=True)
    state.deadlines.disarm("reserve", allocation.id)
    if node.declined.pop(REFUSED_BY_RAY, None) is not None:
        state.rebuild(node)
    if allocation.stop is not None:
        never_began(state, allocation, "")
        return
    state.tell(job, f"Ray reserved it on its node {allocation.ray.node[:12]}")
    state.changed(job, allocation, soon=True)  # what is not known after a crash, is asked again
    if node.state is NodeState.UP and node.synced:  # else when its agent has told what it knows
        state.out.append(Send(allocation.node, launch(state, job, allocation)))


def refused(state: GridState, event: ReserveRefused) -> None:
    """Ray has refused it: requeue it, with a back-off of the node."""
    allocation = state.allocations.get(event.allocation)
    if allocation is None:
        state.out.append(Unreserve(event.allocation))  # it may have done so after all
    elif allocation.awaits_ray:
        _leave_alone(state, state.nodes[allocation.node], event.why)
        never_began(state, allocation, f"Ray did not reserve it on {allocation.node}: {event.why}")


def due(state: GridState, name: str) -> None:
    """Handle the deadline of Ray's answer."""
    refused(state, ReserveRefused(name, f"it did not answer within {state.policy.reserve_within:g} s"))


def _leave_alone(state: GridState, node: Node, why: str) -> None:
    node.ray_refusal = why
    quarantine.back_off(state, node, REFUSED_BY_RAY, FIRST, MOST)


def never_began(state: GridState, allocation: Allocation, text: str) -> None:
    """End an allocation that was never launched: requeue the job, or end it if it was stopped."""
    job = state.jobs[allocation.job]
    stop = allocation.stop
    if stop is not None and stop.cause != Cause.GANG.value:
        outcome = Outcome(cause=Cause(stop.cause), text=stop.text, started=False)
        outcomes.over(state, job, outcome, allocation, f"{stop.cause}: {stop.text}" if stop.text else stop.cause)
    elif job.request.gang:
        outcomes.part_over(state, job, allocation, None, text or "its gang is to end")
    else:
        outcomes.requeue(state, job, allocation, text)


def resources_reported(state: GridState, event: RayReported) -> None:
    """Update what is known of Ray's resources."""
    before, state.ray_trouble = state.ray_trouble, event.trouble
    told = dict.fromkeys(state.nodes) if event.trouble else event.nodes
    for name, on in told.items():
        node = state.nodes.get(name)
        if node is not None and on != node.ray:
            node.ray = on
            state.refresh(node)
    if before != event.trouble and state.queue.lines:
        state.deadlines.arm("reasons", "", state.now)
