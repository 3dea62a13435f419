"""Boosts: what is borrowed is lent only once Ray shows it. Until then a raylet that was started is still STARTING, and
where Ray does not show it in time, it ends. All else about a boost is as with any job.
"""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    ExtendAsked,
    Granted,
    Joined,
    Left,
    RecordAllocation,
    RecordJob,
    Rejected,
    Send,
)
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import last_words
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Extend
from distributed_grid.protocol.text import format_duration

MOST = 366 * 86400.0
DRAINED = "; exited with code 1"
"""How `ray start --block` ends after each SIGTERM: that it did is no news, and looks like trouble."""


def awaited(job: Job) -> bool:
    """Whether it is a boost that Ray has not shown yet."""
    return job.spec.boost is not None and not job.begun


def started(state: GridState, job: Job, allocation: Allocation) -> None:
    """Its raylet runs. Now Ray has to show it."""
    state.tell(job, f"raylet started on {allocation.node}, Ray is to show it")
    state.out += (RecordAllocation(allocation), RecordJob(job))
    state.publish(job)
    arm(state, allocation)


def found(state: GridState, job: Job, allocation: Allocation) -> None:
    """Its node is back, and its raylet runs there. One that Ray had not shown when the node fell silent is ended: it
    may have given up meanwhile, and nobody uses it."""
    if allocation.state is State.LOST:
        attempts.request_stop(
            state, allocation, Cause.NOT_JOINED, f"{allocation.node} was away while it was to join", 0.0
        )
    else:
        started(state, job, allocation)


def arm(state: GridState, allocation: Allocation) -> None:
    """Have it looked at when Ray should show it."""
    state.deadlines.arm("join", allocation.id, allocation.started + state.policy.join_within)


def joined(state: GridState, event: Joined) -> None:
    """Ray shows it, with all that was borrowed."""
    allocation = state.allocations.get(event.allocation)
    if allocation is None or allocation.state is not State.STARTING or not allocation.started:
        return
    state.move(allocation, State.RUNNING, f"in Ray as node {event.node[:12]}")
    state.changed(state.jobs[allocation.job], allocation)


def left(state: GridState, event: Left) -> None:
    """Nobody can use it any more: its node has it back."""
    allocation = state.allocations.get(event.allocation)
    if allocation is not None and allocation.state is State.RUNNING:
        attempts.request_stop(state, allocation, Cause.NOT_JOINED, event.why, 0.0)


def due(state: GridState, name: str) -> None:
    """It should be in Ray by now."""
    allocation = state.allocations.get(name)
    if allocation is None or allocation.state is not State.STARTING:
        return
    if state.now < allocation.started + state.policy.join_within:
        arm(state, allocation)
        return
    text = f"Ray did not show it within {state.policy.join_within:g} s"
    attempts.request_stop(state, allocation, Cause.NOT_JOINED, text, 0.0)


def told(job: Job, outcome: Outcome) -> Outcome:
    """How it ended, where its raylet ended by itself: it has an exit code that tells nobody anything, and has said
    why."""
    if job.spec.boost is None:
        return outcome
    if outcome.cause is not Cause.EXITED:
        return replace(outcome, text=outcome.text.removesuffix(DRAINED))
    printed = (tail.decode(errors="replace") for tail in (outcome.stderr_tail, outcome.stdout_tail))
    said = last_words(*printed) or f"exit code {outcome.code}"
    if job.begun:
        return replace(outcome, text=f"its raylet ended: {said}")
    return replace(outcome, cause=Cause.NOT_JOINED, text=f"its raylet did not join: {said}")


def extend(state: GridState, event: ExtendAsked) -> None:
    """Have it end so much later than it would."""
    job = state.jobs.get(event.job)
    if job is None or job.spec.boost is None or job.state is State.STOPPING:
        what = f"{event.job} has ended" if job is None else f"{job.id} is no boost that could be extended"
        state.out.append(Rejected(event.token, "not-allowed", what, "", "see `grid boost status`"))
        return
    limit = job.spec.time_limit + event.seconds
    if not event.seconds > 0 or limit > MOST:
        what, why = f"it cannot be extended by {event.seconds:g} s", f"a boost lasts {format_duration(MOST)} at most"
        state.out.append(Rejected(event.token, "bad-value", what, why))
        return
    job.spec = replace(job.spec, time_limit=limit)
    state.tell(job, f"extended by {format_duration(event.seconds)}")
    state.changed(job)
    again(state, job)
    state.out.append(Granted(event.token, f"{job.id} lasts {format_duration(limit)} in all"))


def again(state: GridState, job: Job) -> None:
    """Tell its node how long it lasts: said again where that may not have been heard."""
    if job.spec.boost is not None and job.allocation in state.allocations:
        state.out.append(Send(job.node, Extend(allocation=job.allocation, limit=job.spec.time_limit)))
