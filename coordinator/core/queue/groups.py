"""Groups: many jobs of one submission; how many members of an array are released to the queue at once, and when too
many failures end the rest. Members that are not released yet are not in the queue and cost a pass nothing."""

from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.lifecycle.attempts import request_stop
from distributed_grid.coordinator.core.model import AwaitsHold, Earmarked, Group, HeldBack, Job, Queued, dependencies
from distributed_grid.coordinator.core.preemption import earmarks
from distributed_grid.coordinator.core.queue.queue import Members
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import Cause, Outcome, Reason, State


def enter(state: GridState, job: Job) -> None:
    """Add a member, new or restored."""
    members = state.groups[job.group]
    members.live[job.id] = None
    members.states[job.state] = members.states.get(job.state, 0) + 1
    if job.request.gang:
        if outcomes.leads_gang(job) and isinstance(job.phase, Queued | HeldBack | Earmarked):
            _hold(state, members, job)
        return
    if isinstance(job.phase, Queued | HeldBack | AwaitsHold) and not job.tries:
        _hold(state, members, job)
        return
    members.active += 1
    if job.state is State.WAITING:  # again
        earmarks.wait(state, job)


def _hold(state: GridState, members: Members, job: Job) -> None:
    members.pending.append(job.id)
    if isinstance(job.phase, Queued | AwaitsHold):  # it was released before the restart
        state.become(job, HeldBack(reason=job.reason))


def release_all(state: GridState) -> None:
    """After a restore, once all members were added: release those that may run."""
    for members in state.groups.values():
        release(state, members)


def release(state: GridState, members: Members) -> None:
    """Release as many members to the queue as the limit allows."""
    if members.group.id in state.dependencies.unmet:
        return
    while members.pending and (not members.most or members.active < members.most):
        job = state.jobs.get(members.pending.popleft())
        if job is not None:
            members.active += not job.request.gang
            if members.most and not job.released and state.now > job.submitted:
                job.released = state.now
            state.waits_for(job, None)
            earmarks.wait(state, job)


def reason(state: GridState, job: Job) -> Reason:
    """Why a member is held back."""
    if job.request.gang:
        return outcomes.gang_reason(state, job)
    members = state.groups[job.group]
    return Reason("ArrayLimit", f"{members.active} of its array are at work, and at most {members.most} may be at once")


def follow_end(state: GridState, job: Job) -> None:
    """After the end of a member: release the next one, or end the rest."""
    members = state.groups.get(job.group)
    if members is None:
        return
    array, failed = members.group.array, members.group.failed
    if array is not None and 0 <= array.max_fails < failed:
        if members.ending:
            return
        members.ending = True
        text = f"{failed} of its array have failed, and --max-fails is {array.max_fails}"
        for name in list(members.live):
            end(state, state.jobs[name], text, -1.0)
    else:
        release(state, members)


def end(state: GridState, job: Job, text: str, grace: float) -> None:
    """Cancel a job; `grace` below zero: its own."""
    allocation = state.allocations.get(job.allocation)
    if job.state is State.WAITING or allocation is None:
        # If an earlier attempt may have run, the outcome does not say that it never did.
        outcomes.finish(
            state, job, Outcome(cause=Cause.CANCELLED, text=text, started=job.retried > 0 or job.evicted > 0)
        )
    else:
        request_stop(state, allocation, Cause.CANCELLED, text, job.spec.grace if grace < 0 else grace)


def view(group: Group, states: dict[State, int], why: Reason | None = None) -> GroupView:
    """A group as clients see it."""
    counted = {state.value: number for state, number in states.items() if number and state is not State.ENDED}
    if over := group.count - sum(counted.values()):
        counted[State.ENDED.value] = over
    return GroupView(
        id=group.id,
        user=group.user,
        kind=group.kind,
        spec=group.spec,
        request=group.request,
        submitted=group.submitted,
        count=group.count,
        array=group.array,
        states=counted,
        failed=group.failed,
        cancelled=group.cancelled,
        ended=group.ended,
        reason=why,
        after=dependencies(group.after),
        begin=group.begin,
    )
