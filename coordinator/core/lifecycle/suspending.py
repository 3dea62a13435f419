"""A node's owner is back: what its agent tells of allocations that it has frozen, lets go on, or takes back. The agent
decides; here it is kept, so that everybody can see it and a time limit is not thought to run meanwhile.
"""

from distributed_grid.coordinator.core.lifecycle import stopping
from distributed_grid.coordinator.core.model import Audit, Job, Node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, State, Suspension
from distributed_grid.protocol.messages import Recalled, Suspended
from distributed_grid.protocol.nodes import REASON_CHARS
from distributed_grid.protocol.text import format_duration


def put_off(job: Job, now: float) -> float:
    """Seconds by which the time limit of this attempt ends later, as it was frozen for so long."""
    return job.suspended_for + (max(0.0, now - job.suspended.since) if job.suspended is not None else 0.0)


def suspended(state: GridState, node: Node, message: Suspended) -> None:
    """It was frozen, or goes on. Told again after a reconnect, when nothing new may have happened."""
    allocation = node.allocations.get(message.allocation)
    if allocation is None:
        state.out.append(Audit(node.facts.name, f"{message.allocation} is suspended there, and not known here"))
        return
    job = state.jobs[allocation.job]
    state.idle.pop(allocation.id, None)  # what it does not use while it is frozen says nothing
    before = job.suspended
    job.suspended_for = max(0.0, message.in_all - (message.lasted if message.why else 0.0))
    if message.why:
        why = message.why[:REASON_CHARS]
        job.suspended = Suspension(state.now - message.lasted, why)
        if before is not None:
            job.suspended = Suspension(before.since, why)
            return
        state.tell(job, f"suspended: the owner of {node.facts.name} is back ({why})")
    else:
        job.suspended = None
        if before is None:
            return
        state.tell(job, f"goes on after {format_duration(message.lasted)}")
    state.refresh(node, grown=False)  # who waits for its end may be told of another moment
    state.changed(job, allocation, soon=True)


def recalled(state: GridState, node: Node, message: Recalled) -> None:
    """It was told to end, and waits again when it has."""
    allocation = node.allocations.get(message.allocation)
    if allocation is None or allocation.state is State.STOPPING:
        return
    name, said = node.facts.name, message.why[:REASON_CHARS]
    why = f"{name} stops lending ({said})" if message.closing else f"the owner of {name} is back ({said})"
    text = f"recalled: {why}; it has {message.grace:g} s to end"
    stopping.ask(state, allocation, Cause.RECALLED, text, message.grace)
