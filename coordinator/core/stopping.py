"""Asking for the end of what holds resources: its owner cancels it, or the grid takes its place back."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import amnesia
from distributed_grid.coordinator.core.model import Allocation, Job, Send
from distributed_grid.coordinator.core.retries import BY_THE_GRID
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Stop
from distributed_grid.protocol.nodes import NodeState

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def ask(ledger: "Ledger", allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    """Tell an allocation to stop: SIGTERM, `grace` seconds, SIGKILL. Once; but a cancel comes before a taking back, so
    that what its owner has ended is not run again. With a member of a gang the others stop. False: nothing was changed
    by it."""
    asked = _ask(ledger, allocation, cause, text, grace)
    job = ledger.jobs[allocation.job]
    if asked and job.request.gang:
        told = text if cause not in BY_THE_GRID else f"{job.id} of its gang is to end: {text}"
        ask_gang(ledger, job, told, grace, cause if cause not in BY_THE_GRID else Cause.GANG)
    return asked


def ask_gang(ledger: "Ledger", job: Job, text: str, grace: float = -1.0, cause: Cause = Cause.GANG) -> None:
    """Tell all other members of a job's gang to stop; `grace` below zero: each one's own."""
    for name in ledger.groups[job.group].live:
        other = ledger.jobs[name]
        held = ledger.allocations.get(other.allocation)
        if other is not job and held is not None:
            _ask(ledger, held, cause, text, other.spec.grace if grace < 0 else grace)


def _ask(ledger: "Ledger", allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    asked = allocation.stop
    if asked is not None and (asked.cause not in BY_THE_GRID or cause in BY_THE_GRID):
        return False
    allocation.stopped = ledger.now
    allocation.stop = Stop(allocation=allocation.id, grace=grace, cause=cause.value, text=text)
    ledger.preempting.gives.told(allocation.node)
    job, node = ledger.jobs[allocation.job], ledger.nodes[allocation.node]
    # It is lost also on a node that is back, from when its launch is said again until it has started.
    reached = node.synced and node.state is NodeState.UP and not amnesia.held(node.facts, allocation)
    if allocation.state is State.LOST and not reached:
        ledger.tell(job, f"to be stopped when {allocation.node} is back: {text}")
        ledger.changed(job, allocation)
        return True
    if allocation.state is State.STOPPING:
        ledger.tell(job, text)
    else:
        ledger.move(allocation, State.STOPPING, text)
    ledger.changed(job, allocation)
    if not allocation.awaits_ray:  # else its node has not heard of it: it ends with Ray's answer
        ledger.out.append(Send(allocation.node, allocation.stop))
    return True
