"""Asking for the end of what holds resources: its owner cancels it, or the grid takes its place back."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.model import Allocation, Send
from distributed_grid.coordinator.core.retries import TAKEN_BACK
from distributed_grid.protocol.jobs import Cause, State
from distributed_grid.protocol.messages import Stop
from distributed_grid.protocol.nodes import NodeState

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def ask(ledger: "Ledger", allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    """Tell an allocation to stop: SIGTERM, `grace` seconds, SIGKILL. Once; but a cancel comes before a taking back, so
    that what its owner has ended is not run again. False: nothing was changed by it."""
    asked = allocation.stop
    if asked is not None and (asked.cause not in TAKEN_BACK or cause in TAKEN_BACK):
        return False
    allocation.stop = Stop(allocation=allocation.id, grace=grace, cause=cause.value, text=text)
    job, node = ledger.jobs[allocation.job], ledger.nodes[allocation.node]
    # It is lost also on a node that is back, from when its launch is said again until it has started.
    if allocation.state is State.LOST and not (node.synced and node.state is NodeState.UP):
        ledger.tell(job, f"to be stopped when {allocation.node} is back: {text}")
        ledger.changed(job, allocation)
        return True
    if allocation.state is State.STOPPING:
        ledger.tell(job, text)
    else:
        ledger.move(allocation, State.STOPPING, text)
    ledger.changed(job, allocation)
    ledger.out.append(Send(allocation.node, allocation.stop))
    return True
