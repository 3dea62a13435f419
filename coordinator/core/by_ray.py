"""Placement by Ray (`placement: ray`): what the ledger has granted is reserved by Ray before it is launched, and let go
of when the allocation is over. Until Ray has answered, an allocation is STARTING and its node has not heard of it: so
what comes between ends or requeues it here, and nobody has to be asked.

Boosts are lent to Ray, and not reserved by it.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from distributed_grid.coordinator.core import declining, gangs
from distributed_grid.coordinator.core.model import Allocation, Job, Node, Send
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.ray_events import (
    RayLooked,
    RayPlace,
    Reserve,
    Reserved,
    ReserveRefused,
    Unreserve,
)
from distributed_grid.coordinator.core.ray_room import REFUSED, bundle
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.nodes import NodeState

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

FIRST, MOST = 1.0, 10.0
"""Seconds for which a node is left alone after Ray has refused something there, doubled from the one to the other."""


def marked(policy: Policy, request: Request, boost: bool = False) -> Request:
    """The request, with whether it is placed by Ray."""
    by_ray = policy.by_ray and not boost
    return request if request.ray == by_ray else replace(request, ray=by_ray)


# --- asking -----------------------------------------------------------------------------------------------------------


def ask(ledger: "Ledger", job: Job, allocation: Allocation) -> None:
    """Ray is to reserve what was granted, where there is anything to reserve."""
    on = ledger.nodes[allocation.node].ray
    if job.request.ray and (wanted := bundle(on, allocation.grant.resources)):
        allocation.ray = RayPlace(on.id if on is not None else "", wanted)


def reserve(ledger: "Ledger", allocation: Allocation) -> None:
    """Tell Ray; it has so long to answer."""
    place = allocation.ray
    assert place is not None, f"{allocation.id} is not placed by Ray"
    ledger.out.append(Reserve(allocation.id, place.node, place.resources))
    ledger.deadlines.arm("reserve", allocation.id, ledger.now + ledger.policy.reserve_within)


def restore(ledger: "Ledger") -> None:
    """Of some that were granted before the start nobody knows whether Ray has reserved them: it is asked again."""
    for allocation in ledger.allocations.values():
        if allocation.awaits_ray:
            reserve(ledger, allocation)


def over(ledger: "Ledger", allocation: Allocation) -> None:
    """An allocation holds no more."""
    if allocation.ray is not None:
        ledger.deadlines.disarm("reserve", allocation.id)
        ledger.out.append(Unreserve(allocation.id))


# --- what Ray says ----------------------------------------------------------------------------------------------------


def reserved(ledger: "Ledger", event: Reserved) -> None:
    """Ray has reserved it: it is launched, or ended where that was asked meanwhile."""
    allocation = ledger.allocations.get(event.allocation)
    if allocation is None:
        ledger.out.append(Unreserve(event.allocation))
        return
    if allocation.ray is None or allocation.ray.granted:
        return
    node, job = ledger.nodes[allocation.node], ledger.jobs[allocation.job]
    allocation.ray = replace(allocation.ray, granted=True)
    ledger.deadlines.disarm("reserve", allocation.id)
    if node.declined.pop(REFUSED, None) is not None:
        ledger.rebuild(node)
    if allocation.stop is not None:
        never_began(ledger, allocation, "")
        return
    ledger.tell(job, f"Ray reserved it on its node {allocation.ray.node[:12]}")
    ledger.changed(job, allocation, soon=True)  # what is not known after a crash, is asked again
    if node.state is NodeState.UP and node.synced:  # else when its agent has told what it knows
        ledger.out.append(Send(allocation.node, ledger.launch(job, allocation)))


def refused(ledger: "Ledger", event: ReserveRefused) -> None:
    """Ray has not reserved it: it waits again, and goes elsewhere or there a little later."""
    allocation = ledger.allocations.get(event.allocation)
    if allocation is None:
        ledger.out.append(Unreserve(event.allocation))  # it may have done so after all
    elif allocation.awaits_ray:
        _leave_alone(ledger, ledger.nodes[allocation.node], event.why)
        never_began(ledger, allocation, f"Ray did not reserve it on {allocation.node}: {event.why}")


def due(ledger: "Ledger", name: str) -> None:
    """Ray should have answered by now."""
    refused(ledger, ReserveRefused(name, f"it did not answer within {ledger.policy.reserve_within:g} s"))


def _leave_alone(ledger: "Ledger", node: Node, why: str) -> None:
    node.ray_said = why
    declining.leave_alone(ledger, node, REFUSED, FIRST, MOST)


def never_began(ledger: "Ledger", allocation: Allocation, text: str) -> None:
    """It is over, and was never launched: the job waits again, or ends where that was asked."""
    job = ledger.jobs[allocation.job]
    stop = allocation.stop
    if stop is not None and stop.cause != Cause.GANG.value:
        outcome = Outcome(cause=Cause(stop.cause), text=stop.text, started=False)
        ledger.over(job, outcome, allocation, f"{stop.cause}: {stop.text}" if stop.text else stop.cause)
    elif job.request.gang:
        gangs.part_over(ledger, job, allocation, None, text or "its gang is to end")
    else:
        ledger.requeue(job, allocation, text)


def looked(ledger: "Ledger", event: RayLooked) -> None:
    """Who was refused may have a place now, where Ray has more for us than before."""
    before, ledger.ray_trouble = ledger.ray_trouble, event.trouble
    told = dict.fromkeys(ledger.nodes) if event.trouble else event.nodes
    for name, on in told.items():
        node = ledger.nodes.get(name)
        if node is not None and on != node.ray:
            node.ray = on
            ledger.refresh(node)
    if before != event.trouble and ledger.queue.lines:
        ledger.deadlines.arm("reasons", "", ledger.now)
