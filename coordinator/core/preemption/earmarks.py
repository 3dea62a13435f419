"""Earmarks: resources of a node (of several for a gang) that are granted to no other job. The job waits for them
outside of the queue, until they are all free or until a timeout. Earmarks survive a restart in the job's record.

A job gets an earmark when it preempts others, or when the preemption that evicted it is cancelled (`execute.py`).
"""

from collections.abc import Iterable

import msgspec

from distributed_grid.coordinator.core.commands import RecordReceipt
from distributed_grid.coordinator.core.model import Allocation, Earmark, Earmarked, Job, Node, Placement, Queued
from distributed_grid.coordinator.core.placement.matching import Context, able, confidence, scores
from distributed_grid.coordinator.core.preemption.plan import ending_words
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Reason
from distributed_grid.protocol.messages.operator import Place, Receipt, Victim
from distributed_grid.protocol.resources import Grant
from distributed_grid.protocol.text import clock


def keep(state: GridState, job: Job, earmark: Earmark) -> None:
    """Earmark these resources for a job in the queue, which leaves it."""
    state.dequeue(job)
    state.become(job, Earmarked(earmark=earmark, reason=job.reason))
    take_up(state, job, earmark)


def take_up(state: GridState, job: Job, earmark: Earmark) -> None:
    """Take an earmark off the free capacity. What is not free yet becomes a debt, which is settled as it is freed."""
    for place in earmark.places:
        node = state.nodes[place.node]
        node.earmarks[job.id] = place.grant
        state.quotas.earmark(job, place.grant)
        if node.capacity is not None:
            node.capacity.take(place.grant)
        state.refresh(node, grown=earmark.receipt is None)
    state.deadlines.arm("earmark", job.id, earmark.until)


def drop(state: GridState, job: Job) -> Earmark:
    """Remove an earmark; the caller changes the phase of the job."""
    earmark = of(job)
    for place in earmark.places:
        node = state.nodes[place.node]
        del node.earmarks[job.id]
        state.quotas.unmark(job, place.grant)
        if node.capacity is not None:
            node.capacity.give(place.grant)
        state.refresh(node)
    return earmark


def of(job: Job) -> Earmark:
    """The earmark of a job that has one."""
    phase = job.phase
    assert isinstance(phase, Earmarked), f"nothing is earmarked for {job.id}"
    return phase.earmark


def wait(state: GridState, job: Job) -> None:
    """Put a job in the queue, or restore the earmark that it had before a restart."""
    if isinstance(job.phase, Earmarked):
        state.preempting.preemptors |= preemptors_of([job])
        take_up(state, job, job.phase.earmark)
    else:
        state.enqueue(job)


def preemptors_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Preempted allocations and the jobs that preempt them, from the records of these jobs."""
    receipts = ((job.id, job.phase.earmark.receipt) for job in jobs if isinstance(job.phase, Earmarked))
    return {victim.allocation: name for name, receipt in receipts if receipt is not None for victim in receipt.victims}


def whole(state: GridState, job: Job, earmark: Earmark) -> tuple[Place, ...] | None:
    """The places to grant if all earmarked resources are free now; of a gang, on all of its nodes. None: not yet."""
    found: list[Place] = []
    for place in earmark.places:
        grant = _whole(state.nodes[place.node], job, place.grant)
        if grant is None:
            return None
        found.append(place if grant == place.grant else Place(place.node, grant))
    return tuple(found)


def _whole(node: Node, job: Job, earmark: Grant) -> Grant | None:
    """The earmarked grant; or, if the node's owner uses some of it and no more will be freed, as much of other devices
    of the node."""
    capacity = node.capacity
    if capacity is None or not node.usable or not able(node, job.request):
        return None
    capacity.give(earmark)
    if capacity.covers(earmark):
        found: Grant | None = earmark
    else:
        coming = any(one.stop is not None for one in node.allocations.values())
        wanted, asked = job.request.resources, job.request.constraints
        found = capacity.choose(wanted, asked) if not coming and capacity.fits(wanted, asked) else None
    capacity.take(earmark)
    return found


def placement(state: GridState, job: Job, place: Place) -> Placement:
    """The placement of a job on its earmark, with the scores of that node."""
    node = state.nodes[place.node]
    assert node.capacity is not None
    weights = state.policy.weights_of(job.request)
    said = scores(node, node.capacity, job.request, weights, Context(state.index.mix))
    return Placement(place.node, place.grant, confidence(said, weights), said)


def reason(job: Job, now: float) -> Reason:
    """Why a job with an earmark waits."""
    earmark = of(job)
    if earmark.receipt is None:
        return Reason("Returning", f"what it gave on {earmark.node} is kept for it until {clock(earmark.until, now)}")
    jobs = ending_words(len(earmark.receipt.victims))
    on = ", ".join(dict.fromkeys(victim.node or earmark.node for victim in earmark.receipt.victims))
    return Reason("Preempting", f"{jobs} on {on} until {clock(earmark.ends or earmark.until, now)}")


# --- calling a preemption off -----------------------------------------------------------------------------------------


def give_back(state: GridState, job: Job, why: str) -> None:
    """Remove an earmark that is not used. Its victims get what they gave up earmarked in turn, those that are still
    stopping when they have ended. The caller changes the phase of the job."""
    earmark = drop(state, job)
    receipt = earmark.receipt
    if receipt is None:
        return
    close(state, receipt, "returned", why)
    for victim in receipt.victims:
        loser = state.jobs.get(victim.job)
        if loser is not None and isinstance(loser.phase, Queued) and loser.allocation == victim.allocation:
            _resume(state, loser, victim.node or earmark.node, victim)


def _resume(state: GridState, loser: Job, name: str, victim: Victim) -> None:
    if not loser.request.gang and state.nodes[name].usable and rights.of(state, loser) is None:
        keep(state, loser, Earmark(name, victim.grant, state.now + state.policy.preempting.hold))
        state.tell(loser, f"gave way for nothing, and is the first to have its place on {name} again")
        state.waits_for(loser, reason(loser, state.now))
        state.changed(loser)


def gave(state: GridState, job: Job, allocation: Allocation) -> None:
    """A job was requeued. If it is a victim of a preemption that was called off, its place is earmarked for it."""
    told = allocation.stop is not None and allocation.stop.cause == Cause.PREEMPTED
    if told and allocation.id not in state.preempting.preemptors:
        _resume(
            state, job, allocation.node,
            Victim(allocation.id, job.id, job.user, job.request.priority, allocation.grant),
        )  # fmt: skip


def close(state: GridState, receipt: Receipt, result: str, text: str) -> None:
    """Complete the receipt of a preemption."""
    for victim in receipt.victims:
        state.preempting.preemptors.pop(victim.allocation, None)
    waited = max(0.0, state.now - receipt.at)
    state.out.append(
        RecordReceipt(msgspec.structs.replace(receipt, result=result, closed=state.now, waited=waited, text=text))
    )
