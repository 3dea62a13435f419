"""A waiting job is granted its place, and launched there: at once, or when Ray has reserved it (by_ray.py)."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import accounts, by_ray, gangs, groups, homes, retries
from distributed_grid.coordinator.core.matching import Placement
from distributed_grid.coordinator.core.model import Allocation, Job, Send
from distributed_grid.coordinator.core.reserving import release
from distributed_grid.protocol.gangs import Gang
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.walls import Walls

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def start(ledger: "Ledger", job: Job, placement: Placement, gang: Gang | None) -> None:
    """Grant a waiting job its place and have it launched."""
    node = ledger.nodes[placement.node]
    if job.id in ledger.queue:
        ledger.queue.remove(job.id)
        release(ledger, job.id)
    job.tries += 1
    allocation = Allocation(
        id=f"{job.id}.{job.tries}",
        job=job.id,
        node=placement.node,
        grant=placement.grant,
        state=State.WAITING,
        granted=ledger.now,
        lease=retries.lease(job, ledger.policy),
        boot=node.facts.boot_id,
        instance=node.facts.instance,
        gang=gang,
    )
    gangs.granted(ledger, allocation)
    ledger.allocations[allocation.id] = node.allocations[allocation.id] = allocation
    ledger.placements[allocation.id] = placement
    accounts.granted(ledger, job.user, placement.grant.resources)
    job.allocation, job.node, job.grant, job.reason = allocation.id, placement.node, placement.grant, None
    job.unused = job.walls = ""
    assert node.room is not None
    node.room.take(placement.grant)
    homes.started(ledger, job)
    ledger.index.put(placement.node, node.facts.priority, node.room)
    by_ray.ask(ledger, job, allocation)
    more = "; Ray is to reserve it" if allocation.awaits_ray else ""
    ledger.move(allocation, State.STARTING, f"granted on {placement.node}, confidence {placement.confidence:.2f}{more}")
    ledger.changed(job, allocation)
    if allocation.awaits_ray:
        by_ray.reserve(ledger, allocation)
    else:
        ledger.out.append(Send(placement.node, launch(ledger, job, allocation)))


def launch(ledger: "Ledger", job: Job, allocation: Allocation) -> Launch:
    """The message that starts an allocation, the same however often it is sent."""
    return Launch(
        allocation=allocation.id,
        job=job.id,
        user=job.user,
        epoch=ledger.epoch,
        grant=allocation.grant,
        spec=groups.spec_of(ledger, job),
        gang=allocation.gang,
        lease=allocation.lease,
        walls=job.request.constraints.walls if job.request.constraints is not None else Walls.NONE,
        heard=sample.at if allocation.lease and (sample := ledger.nodes[allocation.node].sample) else 0.0,
    )
