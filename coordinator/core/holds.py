"""A set of one node that is kept for a job that waits (of a gang, one of each of its nodes): nobody else is granted any
of it, and the job waits for nothing else. It is kept until it is whole, or until a time; and over a restart, since the
job's record says it.

Who has such a set is one for whom others give way, or one who gave way for nothing (`preempting.py`).
"""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.kept import Kept
from distributed_grid.coordinator.core.matching import Placement, able, usable
from distributed_grid.coordinator.core.model import Job, Node
from distributed_grid.coordinator.core.preemption import clock, ending_words
from distributed_grid.coordinator.core.reserving import release
from distributed_grid.coordinator.core.strategies import confidence, scores
from distributed_grid.protocol.jobs import Reason
from distributed_grid.protocol.receipts import Place
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
    for place in kept.places:
        node = ledger.nodes[place.node]
        node.kept[job.id] = place.grant
        if node.room is not None:
            node.room.take(place.grant)
        ledger.refresh(node, grown=kept.receipt is None)
    ledger.deadlines.arm("kept", job.id, kept.until)


def drop(ledger: "Ledger", job: Job) -> Kept:
    """The set is kept no more; whether its job is to wait in the queue is the caller's."""
    kept, job.kept = job.kept, None
    assert kept is not None, f"nothing is kept for {job.id}"
    for place in kept.places:
        node = ledger.nodes[place.node]
        del node.kept[job.id]
        if node.room is not None:
            node.room.give(place.grant)
        ledger.refresh(node)
    return kept


def whole(ledger: "Ledger", job: Job, kept: Kept) -> tuple[Place, ...] | None:
    """What the job can be granted of what is kept for it, now; of a gang, on all of its nodes or not at all."""
    found: list[Place] = []
    for place in kept.places:
        grant = _whole(ledger.nodes[place.node], job, place.grant)
        if grant is None:
            return None
        found.append(place if grant == place.grant else Place(place.node, grant))
    return tuple(found)


def _whole(node: Node, job: Job, kept: Grant) -> Grant | None:
    """Just that set; or, where no more is to come and the node's owner has taken some of it, as much elsewhere on the
    node."""
    room = node.room
    if room is None or not usable(node) or not able(node, job.request):
        return None
    room.give(kept)
    if room.covers(kept):
        found: Grant | None = kept
    else:
        coming = any(one.stop is not None for one in node.allocations.values())
        wanted, asked = job.request.resources, job.request.constraints
        found = room.choose(wanted, asked) if not coming and room.fits(wanted, asked) else None
    room.take(kept)
    return found


def placement(ledger: "Ledger", job: Job, place: Place) -> Placement:
    """The decision to start a job on what was kept for it, with the scores that anybody would get there."""
    node = ledger.nodes[place.node]
    assert node.room is not None
    weights = ledger.policy.weights_of(job.request.strategy)
    said = scores(node, node.room, job.request, weights)
    return Placement(place.node, place.grant, confidence(said, weights), said)


def reason(job: Job) -> Reason:
    """Why a job waits for which a set is kept."""
    kept = job.kept
    assert kept is not None, f"nothing is kept for {job.id}"
    if kept.receipt is None:
        return Reason("Returning", f"what it gave on {kept.node} is kept for it until {clock(kept.until)}")
    jobs = ending_words(len(kept.receipt.victims))
    on = ", ".join(dict.fromkeys(victim.node or kept.node for victim in kept.receipt.victims))
    return Reason("Preempting", f"{jobs} on {on} until {clock(kept.ends or kept.until)}")
