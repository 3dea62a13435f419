"""Asking for the end of what holds resources: its owner cancels it, or the grid takes its place back."""

from distributed_grid.coordinator.core.lifecycle.retries import BY_THE_GRID
from distributed_grid.coordinator.core.model import Allocation, Job, Send
from distributed_grid.coordinator.core.nodes import lost_records
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Stop
from distributed_grid.protocol.nodes import NodeState


def ask(state: GridState, allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    """Tell an allocation to stop: SIGTERM, `grace` seconds, SIGKILL. Once; but a cancel comes before a taking back, so
    that what its owner has ended is not run again. With a member of a gang the others stop. False: nothing was changed
    by it."""
    asked = _ask(state, allocation, cause, text, grace)
    job = state.jobs[allocation.job]
    if asked and job.request.gang:
        told = text if cause not in BY_THE_GRID else f"{job.id} of its gang is to end: {text}"
        ask_gang(state, job, told, grace, cause if cause not in BY_THE_GRID else Cause.GANG)
    return asked


def ask_gang(state: GridState, job: Job, text: str, grace: float = -1.0, cause: Cause = Cause.GANG) -> None:
    """Tell all other members of a job's gang to stop; `grace` below zero: each one's own."""
    for name in state.groups[job.group].live:
        other = state.jobs[name]
        held = state.allocations.get(other.allocation)
        if other is not job and held is not None:
            _ask(state, held, cause, text, other.spec.grace if grace < 0 else grace)


def _ask(state: GridState, allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    asked = allocation.stop
    if asked is not None and (asked.cause not in BY_THE_GRID or cause in BY_THE_GRID):
        return False
    allocation.stopped = state.now
    allocation.stop = Stop(allocation=allocation.id, grace=grace, cause=cause.value, text=text)
    state.preempting.gives.told(allocation.node)
    job, node = state.jobs[allocation.job], state.nodes[allocation.node]
    # It is lost also on a node that is back, from when its launch is said again until it has started.
    reached = node.synced and node.state is NodeState.UP and not lost_records.held(node.facts, allocation)
    if allocation.state is State.LOST and not reached:
        state.tell(job, f"to be stopped when {allocation.node} is back: {text}")
        state.changed(job, allocation)
        return True
    if allocation.state is State.STOPPING:
        state.tell(job, text)
    else:
        state.move(allocation, State.STOPPING, text)
    state.changed(job, allocation)
    if not allocation.awaits_ray:  # else its node has not heard of it: it ends with Ray's answer
        state.out.append(Send(allocation.node, allocation.stop))
    return True
