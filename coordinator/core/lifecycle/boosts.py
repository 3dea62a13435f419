"""Boosts: a started raylet stays STARTING until it has joined Ray, and is ended if it does not join in time. A boost
that fails before it has joined is tried on other nodes, and its node gets no boosts for a while. Otherwise a boost is a
job like any other."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    ExtensionRequested,
    Granted,
    RayAnswered,
    RayletJoined,
    RayletLeft,
    RecordAllocation,
    RecordJob,
    Rejected,
    Send,
)
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import Allocation, Job, Node, is_over, time_limit
from distributed_grid.coordinator.core.nodes import quarantine
from distributed_grid.coordinator.core.placement.constraints import left_alone, unjoined_key
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import Boost, last_words
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, State
from distributed_grid.protocol.messages import Extend, Renice
from distributed_grid.protocol.text import format_duration

MOST = 366 * 86400.0
GRACE = 15.0
"""Seconds from the SIGTERM to a raylet to its end: Ray drains it for ten of them."""
TRIES = 5
"""Nodes that are tried for a boost that does not wait."""
ALONE = (60.0, 1800.0)
"""Seconds for which a node gets no boosts for a Ray cluster after one for it has failed there, doubled from the first
to the second."""
WHY_CHARS = 400
"""Characters of a failure that are kept."""
_NOT_STARTED = frozenset({Cause.SPAWN_FAILED, Cause.WORKDIR_FAILED, Cause.NOT_FOUND, Cause.NOT_EXECUTABLE})
FAILED = _NOT_STARTED | {Cause.NOT_JOINED, Cause.SIGNALLED}
"""Causes of ends before the join that are due to the node."""
DRAINED = "; exited with code 1"
"""How `ray start --block` ends after any SIGTERM: omitted, since it looks like an error."""


def spec(boost: Boost, lasts: float) -> JobSpec:
    """Return the spec of a job that runs this boost for `lasts` seconds."""
    return JobSpec(("ray", "start", "--block"), name="", time_limit=lasts, grace=GRACE, boost=boost)


def awaited(job: Job) -> bool:
    """Whether it is a boost that has not joined Ray yet."""
    return job.spec.boost is not None and not job.begun


def started(state: GridState, job: Job, allocation: Allocation) -> None:
    """Handle the start of a boost's raylet: it has to join Ray from now on."""
    state.tell(job, f"raylet started on {allocation.node}, Ray is to show it")
    state.out += (RecordAllocation(allocation), RecordJob(job))
    state.publish(job)
    arm(state, allocation)


def found(state: GridState, job: Job, allocation: Allocation) -> None:
    """Handle a report that a boost's raylet runs, for the first time or after its node has reconnected. A raylet that
    had not joined Ray when its node disconnected is ended, since it may have given up meanwhile."""
    if allocation.state is State.LOST:
        attempts.request_stop(
            state, allocation, Cause.NOT_JOINED, f"{allocation.node} was away while it was to join", 0.0
        )
    else:
        started(state, job, allocation)


def arm(state: GridState, allocation: Allocation) -> None:
    """Set the deadline for joining."""
    state.deadlines.arm("join", allocation.id, allocation.started + _join_within(state, allocation))


def _join_within(state: GridState, allocation: Allocation) -> float:
    boost = state.jobs[allocation.job].spec.boost
    return boost.join_within if boost is not None else 0.0


def joined(state: GridState, event: RayletJoined) -> None:
    """Ray shows the raylet with all of its resources: the boost is lent from now on."""
    allocation = state.allocations.get(event.allocation)
    if allocation is None or allocation.state is not State.STARTING or not allocation.started:
        return
    job = state.jobs[allocation.job]
    if job.spec.boost is not None:
        _has_joined(state, state.nodes[allocation.node], job.spec.boost)
    state.move(allocation, State.RUNNING, f"in Ray as node {event.node[:12]}")
    job.active.attempt.started = state.now
    state.changed(job, allocation)
    again(state, job)


def failed(state: GridState, node: Node, allocation: Allocation, outcome: Outcome) -> bool:
    """An attempt has ended: if its raylet failed before it had joined, leave its node alone for boosts of that cluster.
    Returns whether other nodes are tried; nothing of the raylet is alive."""
    job = state.jobs[allocation.job]
    boost, stop = job.spec.boost, allocation.stop
    asked = stop is not None and stop.cause != Cause.NOT_JOINED.value
    if boost is None or job.begun or asked or outcome.cause not in FAILED:
        return False
    node.unjoined[boost.address] = outcome.text[:WHY_CHARS] or outcome.cause.value
    quarantine.back_off(state, node, unjoined_key(boost.address), *ALONE)
    return bool(job.request.joins) and (job.tries < TRIES or not job.request.immediate)


def with_all_failures(state: GridState, job: Job, outcome: Outcome) -> Outcome:
    """The outcome of a boost for which no other node is tried after this end, with all nodes that failed."""
    if not job.request.joins or outcome.cause not in FAILED or job.begun:
        return outcome
    others = [node for node in state.nodes.values() if left_alone(node, job.request)]
    if len(others) < 2:
        return outcome
    text = "; ".join(f"{node.facts.name} did not join: {node.unjoined[job.request.joins]}" for node in others[:TRIES])
    return replace(outcome, text=f"{text}; tried no more after {TRIES} nodes")


def _has_joined(state: GridState, node: Node, boost: Boost) -> None:
    """Boosts for its cluster may go to this node."""
    node.unjoined.pop(boost.address, None)
    if node.declined.pop(unjoined_key(boost.address), None) is not None:
        state.rebuild(node)


def answered(state: GridState, event: RayAnswered) -> None:
    """Ray is back: what failed while it was away may have failed for that, on any node."""
    for node in state.nodes.values():
        if node.unjoined.pop(event.address, None) is not None:
            node.declined.pop(unjoined_key(event.address), None)
            state.rebuild(node)


def forget_failures(node: Node) -> None:
    """The agent of the node is another one, or has other facts: it may be able now to join what it could not."""
    for address in node.unjoined:
        node.declined.pop(unjoined_key(address), None)
    node.unjoined.clear()


def left(state: GridState, event: RayletLeft) -> None:
    """The raylet has left Ray: end the boost."""
    allocation = state.allocations.get(event.allocation)
    if allocation is not None and allocation.state is State.RUNNING:
        attempts.request_stop(state, allocation, Cause.NOT_JOINED, event.why, 0.0)


def due(state: GridState, name: str) -> None:
    """Handle the deadline for joining."""
    allocation = state.allocations.get(name)
    if allocation is None or allocation.state is not State.STARTING:
        return
    within = _join_within(state, allocation)
    if state.now < allocation.started + within:
        arm(state, allocation)
        return
    text = f"Ray did not show it within {within:g} s"
    attempts.request_stop(state, allocation, Cause.NOT_JOINED, text, 0.0)


def outcome_of(job: Job, outcome: Outcome) -> Outcome:
    """The outcome of a boost, with the last error message of its raylet instead of a meaningless exit code."""
    if job.spec.boost is None:
        return outcome
    if outcome.cause is Cause.TIME_LIMIT and job.begun:
        return replace(outcome, text=f"it was lent for {format_duration(job.spec.time_limit)}")
    if outcome.cause is not Cause.EXITED:
        return replace(outcome, text=outcome.text.removesuffix(DRAINED))
    printed = (tail.decode(errors="replace") for tail in (outcome.stderr_tail, outcome.stdout_tail))
    said = last_words(*printed) or f"exit code {outcome.code}"
    if job.begun:
        return replace(outcome, text=f"its raylet ended: {said}")
    return replace(outcome, cause=Cause.NOT_JOINED, text=f"its raylet did not join: {said}")


def extend(state: GridState, event: ExtensionRequested) -> None:
    """Extend the time limit of a boost."""
    job = state.jobs.get(event.job)
    if job is None or job.spec.boost is None or job.state is State.STOPPING:
        what = f"{event.job} has ended" if job is None else f"{job.id} is no boost that could be extended"
        state.out.append(Rejected(event.token, "not-allowed", what, "", "see `grid boost status`"))
        return
    if is_over(job, state.now):
        what, why = f"{job.id} cannot be extended", "its time is over, and Ray lets go of it"
        state.out.append(Rejected(event.token, "not-allowed", what, why, "request another one"))
        return
    limit = job.spec.time_limit + event.seconds
    if not event.seconds > 0 or limit > MOST:
        what, why = f"it cannot be extended by {event.seconds:g} s", f"a boost lasts {format_duration(MOST)} at most"
        state.out.append(Rejected(event.token, "bad-value", what, why))
        return
    if (refused := rights.extension_refusal(state, event.token, job, limit)) is not None:
        state.out.append(refused)
        return
    job.spec, job.amended = replace(job.spec, time_limit=limit), True
    state.quotas.forget_used()
    state.tell(job, f"extended by {format_duration(event.seconds)}")
    state.changed(job)
    again(state, job)
    state.out.append(Granted(event.token, f"{job.id} lasts {format_duration(limit)} in all"))


def again(state: GridState, job: Job) -> None:
    """Send its node the time limit, and that Ray shows it; again where the messages may have been lost."""
    allocation = state.allocations.get(job.allocation)
    if job.spec.boost is None or allocation is None or not allocation.started:
        return
    state.out.append(Send(job.node, Extend(allocation=allocation.id, limit=time_limit(job, allocation))))
    if job.begun:
        state.out.append(Send(job.node, Renice(allocation=allocation.id)))
