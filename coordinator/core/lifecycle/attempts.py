"""An attempt of a job while it lives: granted and launched, told to stop, suspended for the node's owner; and when
it is run again, with the lease that makes that safe.
"""

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Audit, Reserve, Send
from distributed_grid.coordinator.core.model import Active, Allocation, Job, Node, Placement, RayPlace
from distributed_grid.coordinator.core.placement.constraints import ray_bundle
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang, GroupKind
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, RetryOn, State, Suspension
from distributed_grid.protocol.messages import Launch, Recalled, Stop, Suspended
from distributed_grid.protocol.nodes import REASON_CHARS, NodeFacts, NodeState, lost_records
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.text import format_duration


def record_lost(facts: NodeFacts, allocation: Allocation) -> bool:
    """Whether the allocation was granted, in this boot, before the node lost its records."""
    return allocation.boot in ("", facts.boot_id) and lost_records(facts.instance, allocation.instance)


def of_unknown_fate(facts: NodeFacts, allocation: Allocation) -> bool:
    """Whether it may live there, and the node does not know."""
    return bool(facts.unknown) and record_lost(facts, allocation)


DRIFT = 1.01
"""A node's clock may run this much slower than ours."""
ENDING = 3.0
"""Seconds that a node may need to end a job whose lease has run out."""
RETRY_CLASSES: dict[Cause, RetryOn] = {
    Cause.NODE_LOST: RetryOn.LOST,
    Cause.SUPERVISOR_LOST: RetryOn.LOST,
    Cause.REBOOTED: RetryOn.LOST,
    Cause.LEASE_EXPIRED: RetryOn.LOST,
    Cause.EXITED: RetryOn.FAILED,
    Cause.SIGNALLED: RetryOn.FAILED,
    Cause.SPAWN_FAILED: RetryOn.FAILED,
    Cause.WORKDIR_FAILED: RetryOn.FAILED,
    Cause.OUT_OF_MEMORY: RetryOn.OOM,
    Cause.NODE_OUT_OF_MEMORY: RetryOn.OOM,
}
"""Ends after which an owner may want another attempt. A time limit, a cancel and a command that is not there are not
among them: the same would happen again."""


TAKEN_BACK_CAUSES = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED})
"""Ends that the grid itself made, to give the place to somebody else: the job waits again, and no retry is used up."""
BY_THE_GRID = TAKEN_BACK_CAUSES | {Cause.GANG}
"""Ends that no owner asked for: a cancel comes before them."""


def longest_lease(policy: Policy) -> float:
    """A lease that has run out, and its job has ended, by the time a silent node is taken for lost: counted there from
    the sending of what is counted here from its receipt."""
    return max(0.0, (policy.disconnected_after + policy.lost_after - ENDING) / DRIFT)


def lease_of(job: Job, policy: Policy) -> float:
    """The lease of the next attempt: only what may be run again when it is lost has one."""
    leased = RetryOn.LOST in job.request.retry_on and job.retried < job.request.retries
    return longest_lease(policy) if leased else 0.0


def lease_expired(allocation: Allocation, policy: Policy) -> bool:
    """Whether an allocation has ended for sure on a node that was silent for so long that it is taken for lost."""
    return 0.0 < allocation.lease <= longest_lease(policy)


def was_taken_back(job: Job, allocation: Allocation, outcome: Outcome) -> bool:
    """Whether the grid took the job's place away, so that it waits again: unless its owner forbade that, and it had
    begun already, or has cancelled it meanwhile."""
    cancelled = allocation.stop is not None and allocation.stop.cause not in TAKEN_BACK_CAUSES
    return outcome.cause in TAKEN_BACK_CAUSES and not cancelled and (job.request.requeue or not outcome.started)


def told_outcome(allocation: Allocation, outcome: Outcome) -> Outcome:
    """The end as its owner is told of it: cancelled, where that was asked while the grid took the place back."""
    stop = allocation.stop
    if stop is None or stop.cause in BY_THE_GRID or outcome.cause not in BY_THE_GRID:
        return outcome
    return msgspec.structs.replace(outcome, cause=Cause(stop.cause), text=stop.text)


def may_retry(job: Job, outcome: Outcome) -> bool:
    """Whether its owner wants another attempt after such an end, and there is one left."""
    return job.retried < job.request.retries and RETRY_CLASSES.get(outcome.cause) in job.request.retry_on


def wants_retry(job: Job, allocation: Allocation, outcome: Outcome) -> bool:
    """Whether its owner wants another attempt after this end."""
    stopped = allocation.stop is not None and allocation.stop.cause not in TAKEN_BACK_CAUSES
    if stopped or job.retried >= job.request.retries:
        return False
    if outcome.cause is Cause.EXITED and outcome.code == 0:
        return False
    return RETRY_CLASSES.get(outcome.cause) in job.request.retry_on


def start(state: GridState, job: Job, placement: Placement, gang: Gang | None = None) -> None:
    """Grant a waiting job its place and have it launched."""
    allocation = state.grant(job, placement, lease_of(job, state.policy), gang)
    on = state.nodes[allocation.node].ray
    if job.request.ray and (wanted := ray_bundle(on, allocation.grant.resources)):
        allocation.ray = RayPlace(on.id if on is not None else "", wanted)
    by_ray = allocation.awaits_ray
    more = "; Ray is to reserve it" if by_ray else ""
    state.tell(job, f"granted on {placement.node}, confidence {placement.confidence:.2f}{more}")
    state.changed(job, allocation)
    if by_ray:
        reserve(state, allocation)
    else:
        state.out.append(Send(placement.node, launch(state, job, allocation)))


def reserve(state: GridState, allocation: Allocation) -> None:
    """Have Ray reserve it; it has so long to answer."""
    place = allocation.ray
    assert place is not None, f"{allocation.id} is not placed by Ray"
    state.out.append(Reserve(allocation.id, place.node, place.resources))
    state.deadlines.arm("reserve", allocation.id, state.now + state.policy.reserve_within)


def launch(state: GridState, job: Job, allocation: Allocation) -> Launch:
    """The message that starts an allocation, the same however often it is sent."""
    return Launch(
        allocation=allocation.id,
        job=job.id,
        user=job.user,
        epoch=state.epoch,
        grant=allocation.grant,
        spec=_spec(state, job),
        gang=allocation.gang,
        lease=allocation.lease,
        walls=job.request.constraints.walls if job.request.constraints is not None else Walls.NONE,
        heard=sample.at if allocation.lease and (sample := state.nodes[allocation.node].sample) else 0.0,
    )


def _spec(state: GridState, job: Job) -> JobSpec:
    """What a job is started with: a member of a group is told which it is."""
    if not job.group:
        return job.spec
    group = state.groups[job.group].group
    if group.kind is GroupKind.GANG:
        return replace(job.spec, env={**job.spec.env, "GRID_GANG_ID": group.id})
    mine = {
        "GRID_ARRAY_ID": group.id,
        "GRID_ARRAY_INDEX": str(job.index),
        "GRID_ARRAY_COUNT": str(group.count),
    }
    return replace(job.spec, env={**job.spec.env, **mine})


def request_stop(state: GridState, allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    """Tell an allocation to stop: SIGTERM, `grace` seconds, SIGKILL. Once; but a cancel comes before a taking back, so
    that what its owner has ended is not run again. With a member of a gang the others stop. False: nothing was changed
    by it."""
    asked = _request_stop(state, allocation, cause, text, grace)
    job = state.jobs[allocation.job]
    if asked and job.request.gang:
        told = text if cause not in BY_THE_GRID else f"{job.id} of its gang is to end: {text}"
        request_gang_stop(state, job, told, grace, cause if cause not in BY_THE_GRID else Cause.GANG)
    return asked


def request_gang_stop(state: GridState, job: Job, text: str, grace: float = -1.0, cause: Cause = Cause.GANG) -> None:
    """Tell all other members of a job's gang to stop; `grace` below zero: each one's own."""
    for name in state.groups[job.group].live:
        other = state.jobs[name]
        held = state.allocations.get(other.allocation)
        if other is not job and held is not None:
            _request_stop(state, held, cause, text, other.spec.grace if grace < 0 else grace)


def _request_stop(state: GridState, allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    asked = allocation.stop
    if asked is not None and (asked.cause not in BY_THE_GRID or cause in BY_THE_GRID):
        return False
    allocation.stopped = state.now
    allocation.stop = Stop(allocation=allocation.id, grace=grace, cause=cause.value, text=text)
    state.preempting.gives.told(allocation.node)
    job, node = state.jobs[allocation.job], state.nodes[allocation.node]
    # It is lost also on a node that is back, from when its launch is said again until it has started.
    reached = node.synced and node.state is NodeState.UP and not of_unknown_fate(node.facts, allocation)
    if allocation.state is State.LOST and not reached:
        state.tell(job, f"to be stopped when {allocation.node} is back: {text}")
        state.changed(job, allocation)
        return True
    if allocation.state is State.STOPPING:
        state.tell(job, text)
    else:
        state.move(allocation, State.STOPPING, text)
    state.changed(job, allocation)
    if not allocation.awaits_ray:  # else its node has not heard of it: it ends with Ray's answer
        state.out.append(Send(allocation.node, allocation.stop))
    return True


def time_suspended(job: Job, now: float) -> float:
    """Seconds by which the time limit of this attempt ends later, as it was frozen for so long."""
    phase, attempt = job.phase, job.phase.attempt
    before = attempt.suspended_for if attempt is not None else 0.0
    if isinstance(phase, Active) and phase.suspended is not None:
        before += max(0.0, now - phase.suspended.since)
    return before


def suspended(state: GridState, node: Node, message: Suspended) -> None:
    """It was frozen, or goes on. Told again after a reconnect, when nothing new may have happened."""
    allocation = node.allocations.get(message.allocation)
    if allocation is None:
        state.out.append(Audit(node.facts.name, f"{message.allocation} is suspended there, and not known here"))
        return
    job = state.jobs[allocation.job]
    state.idle.pop(allocation.id, None)  # what it does not use while it is frozen says nothing
    active = job.active
    before = active.suspended
    active.attempt.suspended_for = max(0.0, message.in_all - (message.lasted if message.why else 0.0))
    if message.why:
        why = message.why[:REASON_CHARS]
        active.suspended = Suspension(before.since if before is not None else state.now - message.lasted, why)
        if before is not None:
            return
        state.tell(job, f"suspended: the owner of {node.facts.name} is back ({why})")
    else:
        active.suspended = None
        if before is None:
            return
        state.tell(job, f"goes on after {format_duration(message.lasted)}")
    state.refresh(node, grown=False)  # who waits for its end may be told of another moment
    state.changed(job, allocation, soon=True)


def recalled(state: GridState, node: Node, message: Recalled) -> None:
    """It was told to end, and waits again when it has."""
    allocation = node.allocations.get(message.allocation)
    if allocation is None or allocation.state is State.STOPPING:
        return
    name, said = node.facts.name, message.why[:REASON_CHARS]
    why = f"{name} stops lending ({said})" if message.closing else f"the owner of {name} is back ({said})"
    text = f"recalled: {why}; it has {message.grace:g} s to end"
    request_stop(state, allocation, Cause.RECALLED, text, message.grace)
