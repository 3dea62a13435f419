"""A set of one node that is kept for a job that waits: nobody else is granted any of it, and the job waits for nothing
else. It is kept until it is whole, or until a time; and over a restart, since the job's record says it.

Who has such a set is one for whom others give way, or one who gave way for nothing (`preempting.py`).
"""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.kept import Kept
from distributed_grid.coordinator.core.matching import Placement
from distributed_grid.coordinator.core.model import Job, Node
from distributed_grid.coordinator.core.preemption import clock
from distributed_grid.coordinator.core.reserving import release
from distributed_grid.coordinator.core.strategies import confidence, scores
from distributed_grid.protocol.jobs import Reason
from distributed_grid.protocol.resources import Grant

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def keep(ledger: "Ledger", job: Job, kept: Kept) -> None:
    """From now on a waiting job waits for this set, and outside of the queue."""
    ledger.queue.remove(job.id)
    release(ledger, job.id)
    ledger.index.homes.want_no_more(job)
    ledger.fresh.pop(job.id, None)
    job.kept = kept
    take_up(ledger, job, kept)


def take_up(ledger: "Ledger", job: Job, kept: Kept) -> None:
    """Take the set off what others may have. What is not there yet becomes a debt, which is paid as it comes."""
    node = ledger.nodes[kept.node]
    node.kept[job.id] = kept.grant
    if node.room is not None:
        node.room.take(kept.grant)
    ledger.refresh(node, grown=kept.receipt is None)
    ledger.deadlines.arm("kept", job.id, kept.until)


def drop(ledger: "Ledger", job: Job) -> Kept:
    """The set is kept no more; whether its job is to wait in the queue is the caller's."""
    kept, job.kept = job.kept, None
    assert kept is not None, f"nothing is kept for {job.id}"
    node = ledger.nodes[kept.node]
    del node.kept[job.id]
    if node.room is not None:
        node.room.give(kept.grant)
    ledger.refresh(node)
    return kept


def whole(ledger: "Ledger", node: Node, job: Job, kept: Kept) -> Grant | None:
    """What the job can be granted of what is kept for it, now: just that set; or, where no more is to come and the
    node's owner has taken some of it, as much elsewhere on the node."""
    room = node.room
    assert room is not None
    room.give(kept.grant)
    if room.covers(kept.grant):
        found: Grant | None = kept.grant
    else:
        victims = kept.receipt.victims if kept.receipt is not None else ()
        coming = any(victim.allocation in ledger.allocations for victim in victims)
        wanted, asked = job.request.resources, job.request.constraints
        found = room.choose(wanted, asked) if not coming and room.fits(wanted, asked) else None
    room.take(kept.grant)
    return found


def placement(ledger: "Ledger", node: Node, job: Job, grant: Grant) -> Placement:
    """The decision to start a job on what was kept for it, with the scores that anybody would get there."""
    assert node.room is not None
    weights = ledger.policy.weights_of(job.request.strategy)
    said = scores(node, node.room, job.request, weights)
    return Placement(node.facts.name, grant, confidence(said, weights), said)


def reason(job: Job) -> Reason:
    """Why a job waits for which a set is kept."""
    kept = job.kept
    assert kept is not None, f"nothing is kept for {job.id}"
    if kept.receipt is None:
        return Reason("Returning", f"what it gave on {kept.node} is kept for it until {clock(kept.until)}")
    count = len(kept.receipt.victims)
    jobs = "1 job ends" if count == 1 else f"{count} jobs end"
    return Reason("Preempting", f"{jobs} on {kept.node} until {clock(kept.ends or kept.until)}")
