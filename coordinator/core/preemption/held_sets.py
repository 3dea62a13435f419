"""A set of one node that is kept for a job that waits (of a gang, one of each of its nodes): nobody else is granted any
of it, and the job waits for nothing else. It is kept until it is whole, or until a time; and over a restart, since the
job's record says it.

Who has such a set is one for whom others give way, or one who gave way for nothing (`execute.py`).
"""

from collections.abc import Iterable

import msgspec

from distributed_grid.coordinator.core.commands import RecordReceipt
from distributed_grid.coordinator.core.model import Allocation, Earmarked, Job, Kept, Node, Placement, Queued
from distributed_grid.coordinator.core.placement.matching import able, confidence, scores
from distributed_grid.coordinator.core.preemption.plan import clock, ending_words
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Reason
from distributed_grid.protocol.messages.operator import Place, Receipt, Victim
from distributed_grid.protocol.resources import Grant


def keep(state: GridState, job: Job, kept: Kept) -> None:
    """From now on a waiting job waits for this set, and outside of the queue."""
    state.dequeue(job)
    state.become(job, Earmarked(kept=kept, reason=job.reason))
    take_up(state, job, kept)


def take_up(state: GridState, job: Job, kept: Kept) -> None:
    """Take the set off what others may have. What is not there yet becomes a debt, which is paid as it comes."""
    for place in kept.places:
        node = state.nodes[place.node]
        node.kept[job.id] = place.grant
        if node.room is not None:
            node.room.take(place.grant)
        state.refresh(node, grown=kept.receipt is None)
    state.deadlines.arm("kept", job.id, kept.until)


def drop(state: GridState, job: Job) -> Kept:
    """The set is kept no more; what becomes of its job is the caller's."""
    kept = of(job)
    for place in kept.places:
        node = state.nodes[place.node]
        del node.kept[job.id]
        if node.room is not None:
            node.room.give(place.grant)
        state.refresh(node)
    return kept


def of(job: Job) -> Kept:
    """What is kept for a job that waits for that."""
    phase = job.phase
    assert isinstance(phase, Earmarked), f"nothing is kept for {job.id}"
    return phase.kept


def wait(state: GridState, job: Job) -> None:
    """Put a job in the queue, or have it wait for what was kept for it before the start."""
    if isinstance(job.phase, Earmarked):
        state.preempting.takers |= takers_of([job])
        take_up(state, job, job.phase.kept)
    else:
        state.enqueue(job)


def takers_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Who gives way to whom, as these jobs say."""
    kept = ((job.id, job.phase.kept.receipt) for job in jobs if isinstance(job.phase, Earmarked))
    return {victim.allocation: name for name, receipt in kept if receipt is not None for victim in receipt.victims}


def whole(state: GridState, job: Job, kept: Kept) -> tuple[Place, ...] | None:
    """What the job can be granted of what is kept for it, now; of a gang, on all of its nodes or not at all."""
    found: list[Place] = []
    for place in kept.places:
        grant = _whole(state.nodes[place.node], job, place.grant)
        if grant is None:
            return None
        found.append(place if grant == place.grant else Place(place.node, grant))
    return tuple(found)


def _whole(node: Node, job: Job, kept: Grant) -> Grant | None:
    """Just that set; or, where no more is to come and the node's owner has taken some of it, as much elsewhere on the
    node."""
    room = node.room
    if room is None or not node.usable or not able(node, job.request):
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


def placement(state: GridState, job: Job, place: Place) -> Placement:
    """The decision to start a job on what was kept for it, with the scores that anybody would get there."""
    node = state.nodes[place.node]
    assert node.room is not None
    weights = state.policy.weights_of(job.request.strategy)
    said = scores(node, node.room, job.request, weights)
    return Placement(place.node, place.grant, confidence(said, weights), said)


def reason(job: Job) -> Reason:
    """Why a job waits for which a set is kept."""
    kept = of(job)
    if kept.receipt is None:
        return Reason("Returning", f"what it gave on {kept.node} is kept for it until {clock(kept.until)}")
    jobs = ending_words(len(kept.receipt.victims))
    on = ", ".join(dict.fromkeys(victim.node or kept.node for victim in kept.receipt.victims))
    return Reason("Preempting", f"{jobs} on {on} until {clock(kept.ends or kept.until)}")


# --- it comes to nothing ----------------------------------------------------------------------------------------------


def give_back(state: GridState, job: Job, why: str) -> None:
    """What is kept for a job is so no more. Who has given way for it resumes on what it gave, before others; who still
    ends will do so then. Whether the job goes on waiting is the caller's."""
    kept = drop(state, job)
    receipt = kept.receipt
    if receipt is None:
        return
    close(state, receipt, "returned", why)
    for victim in receipt.victims:
        loser = state.jobs.get(victim.job)
        if loser is not None and isinstance(loser.phase, Queued) and loser.allocation == victim.allocation:
            _resume(state, loser, victim.node or kept.node, victim)


def _resume(state: GridState, loser: Job, name: str, victim: Victim) -> None:
    if not loser.request.gang and state.nodes[name].usable:
        keep(state, loser, Kept(name, victim.grant, state.now + state.policy.preempting.hold))
        state.tell(loser, f"gave way for nothing, and is the first to have its place on {name} again")
        state.waits_for(loser, reason(loser))
        state.changed(loser)


def gave(state: GridState, job: Job, allocation: Allocation) -> None:
    """A job waits again. If it is a victim, and nobody waits for its place any more, it has that back first."""
    told = allocation.stop is not None and allocation.stop.cause == Cause.PREEMPTED
    if told and allocation.id not in state.preempting.takers:
        _resume(
            state, job, allocation.node,
            Victim(allocation.id, job.id, job.user, job.request.priority, allocation.grant),
        )  # fmt: skip


def close(state: GridState, receipt: Receipt, result: str, text: str) -> None:
    """A preemption came to this end."""
    for victim in receipt.victims:
        state.preempting.takers.pop(victim.allocation, None)
    waited = max(0.0, state.now - receipt.at)
    state.out.append(
        RecordReceipt(msgspec.structs.replace(receipt, result=result, closed=state.now, waited=waited, text=text))
    )
