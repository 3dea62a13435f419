"""What follows when an attempt has ended: the job ends or is requeued. The members of a gang start and end together."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import RecordAllocation
from distributed_grid.coordinator.core.explain.feasible import may_ever_run
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import (
    Active,
    Allocation,
    Attempt,
    Earmarked,
    Ended,
    EndKind,
    HeldBack,
    Job,
    MemberEnd,
    MemberEnded,
    Placement,
    Queued,
)
from distributed_grid.coordinator.core.placement.matching import able, meeting
from distributed_grid.coordinator.core.preemption import earmarks
from distributed_grid.coordinator.core.queue import ranking
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Cause, Outcome, Reason, Request, RetryOn, State
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import MILLI, Resources, format_bytes


def has_in_all(hold: Job) -> Resources:
    """Return the whole amount of a hold, used or not; before it has begun, the amount that it requests."""
    return hold.grant.resources if hold.grant is not None else hold.request.resources


def request_after(state: GridState, job: Job, outcome: Outcome) -> Request | None:
    """Return the request of the next attempt. After the job ran out of its own memory it asks for what was enough for
    runs like it, if that is known, else for more as its retry policy says, up to the most that any node, or machine of
    a pool, could ever lend. None: that is not more than it had."""
    request = job.request
    had = request.resources
    advised = job.phase.advised if type(job.phase) is Active else 0
    if outcome.cause is not Cause.OUT_OF_MEMORY or not (request.retry_memory or advised > had.memory):
        return request
    memory = advised if advised > had.memory else had.memory * request.retry_memory // MILLI
    wanted = msgspec.structs.replace(had, memory=memory)
    hold = state.jobs.get(request.within)
    limits = (state.quotas.most_memory(job, request), has_in_all(hold).memory if hold is not None else None)
    allowed = min((most for most in limits if most is not None), default=None)
    if allowed is not None and allowed < wanted.memory:
        if allowed <= had.memory:
            return None
        wanted = msgspec.structs.replace(had, memory=allowed)
    more = msgspec.structs.replace(request, resources=wanted)
    if not may_ever_run(state, more):
        could = (node.facts.lendable.memory for node in state.nodes.values() if able(node, request))
        most = max(max(could, default=0), _most_memory_of_pools(state, request))
        if most <= had.memory:
            return None
        more = msgspec.structs.replace(request, resources=msgspec.structs.replace(had, memory=most))
    return more


def _most_memory_of_pools(state: GridState, request: Request) -> int:
    if not state.policy.scaling.pools:
        return 0
    from distributed_grid.coordinator.core.scaling.packing import most_memory  # only where there are pools

    return most_memory(state, request)


def with_more(before: Request, after: Request) -> str:
    """Return the memory of the next attempt as text for the job's story; empty: it is not more."""
    memory = after.resources.memory
    return f" with {format_bytes(memory)} of memory" if memory > before.resources.memory else ""


def out_of_memory_for_good(outcome: Outcome) -> Outcome:
    """The outcome of a job that nothing could give the memory for a retry, or no quota allows it."""
    return msgspec.structs.replace(outcome, text=f"{outcome.text}; it could never be given more")


def conclude(
    state: GridState, job: Job, outcome: Outcome, allocation: Allocation | None = None, text: str = "",
    attempt: Attempt | None = None,
) -> None:  # fmt: skip
    """End a job for good. `attempt`: where it ran, if it has no allocation here."""
    phase, active = job.phase, not state.is_held_back(job)
    if allocation is not None:
        state.move(allocation, State.ENDED)
    elif isinstance(phase, Earmarked):
        earmarks.give_back(state, job, f"{job.id} was ended")
    elif active:
        state.dequeue(job)
    ended = Ended(outcome=outcome, at=state.now, attempt=phase.attempt or attempt, after=job.after)
    state.become(job, ended, text or outcome.text or outcome.cause.value)
    state.remove(job, active)
    state.changed(job, allocation)


def requeue(state: GridState, job: Job, allocation: Allocation, text: str) -> None:
    """End an allocation and put its job back in the queue, with its old turn."""
    if not allocation.started:
        ranking.not_served(state, job)
    state.move(allocation, State.ENDED)
    state.become(job, Queued(), text)
    state.enqueue(job)
    earmarks.gave(state, job, allocation)
    state.changed(job, allocation)


ORIGINS = (EndKind.NEVER_BEGAN, EndKind.EVICTED, EndKind.TO_RETRY, EndKind.FAILED)
"""Ends of members that can be the reason why a gang ended; the others are none, or a consequence."""


def gang_members(state: GridState, job: Job) -> list[Job]:
    """Return all members of a job's gang by rank; none of them ends before all do."""
    return [state.jobs[name] for name in state.groups[job.group].live]


def end_of_member(job: Job) -> MemberEnd | None:
    """The end of a member of a gang, if others have not ended yet."""
    return job.phase.end if isinstance(job.phase, MemberEnded) else None


def leads_gang(job: Job) -> bool:
    """Whether this member stands in the queue for its gang."""
    return job.index == 0


# --- beginning --------------------------------------------------------------------------------------------------------


def gang_meeting(state: GridState, leader: Job, nodes: Sequence[str]) -> tuple[Gang, ...] | None:
    """The rendezvous data of each member on these nodes; None: no port is left."""
    facts = [state.nodes[name].facts for name in nodes]
    return meeting(f"{leader.id}.{leader.tries + 1}", facts, state.rendezvous, state.policy)


def start_gang(state: GridState, leader: Job, found: Sequence[Placement], met: Sequence[Gang]) -> None:
    """Grant and launch all members."""
    for job, placement, part in zip(gang_members(state, leader), found, met, strict=True):
        attempts.start(state, job, placement, part)


# --- ending -----------------------------------------------------------------------------------------------------------


def part_over(
    state: GridState, job: Job, allocation: Allocation, outcome: Outcome | None, text: str, again: bool = True
) -> None:
    """Handle the end of one member of a gang. Without an `outcome` it never began, since its node refused it. `again`:
    nothing of it is alive; false: that is not certain."""
    mates = [mate for one in gang_members(state, job) if (mate := state.allocations.get(one.allocation)) is not None]
    away = any(not _reachable(state, mate) for mate in mates if mate is not allocation)
    told = attempts.recorded_outcome(allocation, outcome) if outcome is not None else None
    kind = _kind_of_end(job, allocation, outcome) if again else EndKind.UNSURE
    allocation.outcome = outcome
    state.move(allocation, State.ENDED)
    state.become(job, MemberEnded(end=MemberEnd(state.now, kind, told, away), attempt=job.active.attempt), text)
    state.out.append(RecordAllocation(allocation))
    if len(mates) == 1:
        _decide_gang(state, gang_members(state, job))
        return
    if kind is not EndKind.DONE:
        attempts.request_gang_stop(state, job, f"{job.id} of its gang: {text}", -1.0)
    state.waits_for(job, gang_reason(state, job))
    state.changed(job)


def _reachable(state: GridState, allocation: Allocation) -> bool:
    node = state.nodes[allocation.node]
    return node.state is NodeState.UP and node.synced


def _kind_of_end(job: Job, allocation: Allocation, outcome: Outcome | None) -> EndKind:
    """Return what the end of a member means for its gang."""
    if outcome is None:
        return EndKind.NEVER_BEGAN
    if outcome.cause is Cause.EXITED and outcome.code == 0:
        return EndKind.DONE
    if attempts.RETRY_CLASSES.get(outcome.cause) is RetryOn.LOST:  # also where it had been told to end with the others
        cancelled = allocation.stop is not None and allocation.stop.cause not in attempts.BY_THE_GRID
        return EndKind.TO_RETRY if not cancelled and attempts.may_retry(job, outcome) else EndKind.FAILED
    if allocation.stop is not None and allocation.stop.cause == Cause.GANG.value:
        return EndKind.ENDED
    if attempts.was_evicted(job, allocation, outcome):
        return EndKind.EVICTED
    return EndKind.TO_RETRY if attempts.wants_retry(job, allocation, outcome) else EndKind.FAILED


def waiting_over(state: GridState, job: Job, outcome: Outcome, text: str) -> None:
    """End a member without an allocation, cancelled or never placed; the whole gang, once no member has one."""
    whole = gang_members(state, job)
    if not any(one.allocation in state.allocations for one in whole):
        for one in whole:  # some may have run in an earlier attempt
            began = one.retried > 0 or one.evicted > 0
            conclude(state, one, replace(outcome, started=outcome.started or began), text=text)
    elif (part := end_of_member(job)) is not None and part.kind not in (EndKind.DONE, EndKind.FAILED, EndKind.UNSURE):
        began = part.outcome is not None and part.outcome.started
        part = MemberEnd(state.now, EndKind.FAILED, replace(outcome, started=outcome.started or began))
        state.become(job, replace(job.phase, end=part))
        state.changed(job)


# --- the decision -----------------------------------------------------------------------------------------------------


def _decide_gang(state: GridState, whole: list[Job]) -> None:
    """The last member has ended: end or requeue the gang."""
    first = _first_ended(whole)
    parts = [part for one in whole if (part := end_of_member(one)) is not None]
    cancelled = any(part.outcome is not None and part.outcome.cause is Cause.CANCELLED for part in parts)
    unsure = any(part.kind is EndKind.UNSURE for part in parts)
    part = end_of_member(first) if first is not None else None
    if first is not None and part is not None and not cancelled and not unsure:
        request = _gang_request_after(state, first, part)
    else:
        request = None
    if first is not None and part is not None and request is not None:
        _requeue_gang(state, whole, first, part.kind, request)
    else:
        for one in whole:
            conclude(state, one, _outcome_of_member(one, first, cancelled))


def _gang_request_after(state: GridState, first: Job, part: MemberEnd) -> Request | None:
    """The request of the next attempt of a gang; None: it ends."""
    if part.kind is EndKind.FAILED:
        return None
    if part.kind is not EndKind.TO_RETRY or part.outcome is None:
        return first.request
    request = request_after(state, first, part.outcome)
    return request if request is not None and may_ever_run(state, request) else None


def _first_ended(whole: list[Job]) -> Job | None:
    """The member whose end ended the gang: first one that never began, since it may have made the others fail; and a
    member on a lost node before those that failed while that was unreachable."""
    found = [
        (part.kind is not EndKind.NEVER_BEGAN, part.away, part.at, one.index, one)
        for one in whole
        if (part := end_of_member(one)) is not None and part.kind in ORIGINS
    ]
    return min(found, key=lambda one: one[:4])[4] if found else None


def _outcome_of_member(job: Job, first: Job | None, cancelled: bool) -> Outcome:
    if (part := end_of_member(job)) is not None and part.outcome is not None:
        return part.outcome
    cause = Cause.CANCELLED if cancelled else Cause.GANG
    because = f"{first.id} of its gang has ended" if first is not None else ""
    return Outcome(cause=cause, text=because, started=job.retried > 0 or job.evicted > 0)


def _requeue_gang(state: GridState, whole: list[Job], first: Job, kind: EndKind, request: Request) -> None:
    """Requeue all members, with the turn of the first."""
    again = f"; to be run again{with_more(first.request, request)} ({first.retried + 1} of {request.retries})"
    text = f"its gang waits again, since {first.id} {_KINDS_IN_WORDS[kind]}{again if kind is EndKind.TO_RETRY else ''}"
    for one in whole:
        part = end_of_member(one)
        one.retried += kind is EndKind.TO_RETRY
        began = part is not None and part.outcome is not None and part.outcome.started
        one.evicted += kind is not EndKind.TO_RETRY and began
        one.amended = one.amended or request != one.request
        one.request = request
        state.become(one, Queued() if leads_gang(one) else HeldBack(), text)
        if leads_gang(one):
            state.enqueue(one)
        state.changed(one)


_KINDS_IN_WORDS = {
    EndKind.NEVER_BEGAN: "could not begin",
    EndKind.EVICTED: "lost its place",
    EndKind.TO_RETRY: "has ended",
}


# --- reasons and checks -----------------------------------------------------------------------------------------------


def gang_reason(state: GridState, job: Job) -> Reason:
    """Why a member outside of the queue waits."""
    whole = gang_members(state, job)
    if isinstance(job.phase, MemberEnded):
        left = sum(one.allocation in state.allocations for one in whole)
        return Reason("Gang", f"its part is over; {left} of the {len(whole)} of its gang go{'es' * (left == 1)} on")
    leader = whole[0]
    told = state.queue.line(leader.id).reason if leader.id in state.queue else leader.reason
    return told or Reason("Gang", f"it waits with {leader.id}, the first of its gang")


def check_gang(state: GridState, whole: list[Job], count: int) -> None:
    """Raise AssertionError where the members of a gang contradict each other."""
    name = whole[0].group
    assert [one.index for one in whole] == list(range(count)), f"members of the gang {name} are gone before the others"
    assert len({one.tries for one in whole}) == 1, f"members of the gang {name} are at different attempts"
    holding = [one for one in whole if one.allocation in state.allocations]
    assert not any(isinstance(one.phase, Earmarked) for one in whole[1:]), (
        f"not the first of the gang {name} has its places kept"
    )
    if not holding:
        assert all(end_of_member(one) is None for one in whole), f"the gang {name} is over, and nothing was decided"
        return
    waiting = isinstance(whole[0].phase, Queued | Earmarked)
    assert not waiting, f"the gang {name} holds something, and waits for places or has some kept for it"
    nodes = {one.active.attempt.node for one in holding}
    assert len(nodes) == len(holding), f"two members of the gang {name} are on one node"
    for one in whole:
        assert (end_of_member(one) is None) == (one in holding), f"{one.id} holds something and is over, or neither"
    broken = any((part := end_of_member(one)) is not None and part.kind is not EndKind.DONE for one in whole)
    for one in holding:
        asked = state.allocations[one.allocation].stop
        assert asked is not None or not broken, f"{one.id} goes on, though a part of its gang is over"


def over(state: GridState, job: Job, outcome: Outcome, allocation: Allocation, text: str, again: bool = True) -> None:
    """An attempt has ended; `again`: nothing of it is alive for sure. The job ends, is retried, or is requeued after an
    eviction; for a member of a gang that is decided with the others."""
    if (
        outcome.started and attempts.RETRY_CLASSES.get(outcome.cause) is not RetryOn.LOST
    ):  # where it is sure to have run
        state.has_started(job)
    if job.request.gang:
        part_over(state, job, allocation, outcome, text, again)
        return
    if again and attempts.was_evicted(job, allocation, outcome):
        allocation.outcome = outcome
        job.evicted += outcome.started
        requeue(state, job, allocation, f"{text}; it waits again" if outcome.started else f"{text}; it had not begun")
        return
    wanted = again and attempts.wants_retry(job, allocation, outcome)
    request = request_after(state, job, outcome) if wanted else None
    if request is not None:
        job.retried += 1
        allocation.outcome = outcome
        words = f"{text}; to be run again{with_more(job.request, request)} ({job.retried} of {request.retries})"
        job.request, job.amended = request, job.amended or request != job.request
        requeue(state, job, allocation, words)
    else:
        outcome = out_of_memory_for_good(outcome) if wanted else outcome
        finish(state, job, attempts.recorded_outcome(allocation, outcome), allocation, text)


def finish(state: GridState, job: Job, outcome: Outcome, allocation: Allocation | None = None, text: str = "") -> None:
    """End a job; for a member of a gang that is decided with the others."""
    if job.request.gang:
        waiting_over(state, job, outcome, text)
    else:
        conclude(state, job, outcome, allocation, text)
