"""The attempts of a job: grant and launch, stop, suspension and recall for the node's owner; the rules for a retry; and
the leases that make retries safe."""

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Audit, MemoryAdvised, RecordReturns, Reserve, Send
from distributed_grid.coordinator.core.lending import slack
from distributed_grid.coordinator.core.model import Active, Allocation, Job, Node, Placement, RayPlace, time_limit
from distributed_grid.coordinator.core.placement.constraints import ray_bundle
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.queue.chains import Kind
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang, GroupKind
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Priority, RetryOn, State, Suspension
from distributed_grid.protocol.messages import AwaitsReader, Launch, Recalled, Stop, Suspended
from distributed_grid.protocol.nodes import REASON_CHARS, NodeFacts, NodeState, lost_records
from distributed_grid.protocol.placement import Walls
from distributed_grid.protocol.text import format_duration


def record_lost(facts: NodeFacts, allocation: Allocation) -> bool:
    """Whether the allocation was granted, in this boot, before the node lost its records."""
    return allocation.boot in ("", facts.boot_id) and lost_records(facts.instance, allocation.instance)


def may_be_alive_unknown(facts: NodeFacts, allocation: Allocation) -> bool:
    """Whether it may be alive there without the node knowing."""
    return bool(facts.unknown) and record_lost(facts, allocation)


RETURNS = 256
"""Returns of an owner to jobs on a node from which on half of those counted are forgotten."""
DRIFT = 1.01
"""Maximum clock drift: a node's clock may run this much slower."""
ENDING = 3.0
"""Seconds that a node may need to end a job whose lease has expired."""
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
"""Causes that can be retried. A time limit, a cancel and a missing command are not among them: a retry would end the
same way."""


EVICTION_CAUSES = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED, Cause.WITHDRAWN, Cause.DISK_FAILED})
"""Evictions by the grid: the job is requeued without using up a retry."""
BY_THE_GRID = EVICTION_CAUSES | {Cause.GANG}
"""Causes that the submitter did not ask for: a cancel overrides them."""


def longest_lease(policy: Policy) -> float:
    """The longest lease of which it is sure that the job has ended when a silent node is taken for lost: the node
    counts from sending a heartbeat, the coordinator from receiving it."""
    return max(0.0, (policy.disconnected_after + policy.lost_after - ENDING) / DRIFT)


def lease_of(job: Job, policy: Policy) -> float:
    """The lease of the next attempt: only jobs that are retried when lost have one."""
    leased = RetryOn.LOST in job.request.retry_on and job.retried < job.request.retries
    return longest_lease(policy) if leased else 0.0


def lease_expired(allocation: Allocation, policy: Policy) -> bool:
    """Whether an allocation has ended for sure when its node is taken for lost."""
    return 0.0 < allocation.lease <= longest_lease(policy)


def advise_memory(state: GridState, event: MemoryAdvised) -> None:
    """Note how much memory the next attempt asks for, if this one ran out of it."""
    allocation = state.allocations.get(event.allocation)
    if allocation is not None:
        state.jobs[allocation.job].active.advised = event.memory


def was_evicted(job: Job, allocation: Allocation, outcome: Outcome) -> bool:
    """Whether the grid evicted the job and it is requeued: not if it was cancelled meanwhile, or had started and must
    not be requeued."""
    cancelled = allocation.stop is not None and allocation.stop.cause not in EVICTION_CAUSES
    return outcome.cause in EVICTION_CAUSES and not cancelled and (job.request.requeue or not outcome.started)


def recorded_outcome(allocation: Allocation, outcome: Outcome) -> Outcome:
    """The outcome to record: cancelled, if that was asked for during an eviction."""
    stop = allocation.stop
    if stop is None or stop.cause in BY_THE_GRID or outcome.cause not in BY_THE_GRID:
        return outcome
    return msgspec.structs.replace(outcome, cause=Cause(stop.cause), text=stop.text)


def may_retry(job: Job, outcome: Outcome) -> bool:
    """Whether the retry policy covers this cause, with a retry left."""
    return job.retried < job.request.retries and RETRY_CLASSES.get(outcome.cause) in job.request.retry_on


def wants_retry(job: Job, allocation: Allocation, outcome: Outcome) -> bool:
    """Whether the job is retried after this end: never after a stop on request or exit code 0."""
    stopped = allocation.stop is not None and allocation.stop.cause not in EVICTION_CAUSES
    if stopped or job.retried >= job.request.retries:
        return False
    if outcome.cause is Cause.EXITED and outcome.code == 0:
        return False
    return RETRY_CLASSES.get(outcome.cause) in job.request.retry_on


def start(state: GridState, job: Job, placement: Placement, gang: Gang | None = None) -> None:
    """Grant a placement to a waiting job and launch it."""
    lease, hold = lease_of(job, state.policy), state.jobs.get(job.request.within)
    if hold is not None:
        allocation = state.grant_inside(job, placement, lease, state.allocations[hold.allocation])
    else:
        allocation = state.grant(job, placement, lease, gang)
    on = state.nodes[allocation.node].ray
    if job.request.ray and (wanted := ray_bundle(on, allocation.grant.resources)):
        allocation.ray = RayPlace(on.id if on is not None else "", wanted)
    if is_plain(job, allocation.lease):
        state.chains.allow(allocation.id, kind_of(job))
    if allocation.hold:
        _begin_hold(state, job, allocation)
        return
    by_ray = allocation.awaits_ray
    more = "; Ray is to reserve it" if by_ray else ""
    state.tell(job, f"granted on {placement.node}, confidence {placement.confidence:.2f}{more}")
    state.changed(job, allocation)
    if by_ray:
        reserve(state, allocation)
    else:
        state.out.append(Send(placement.node, launch(state, job, allocation)))


def _begin_hold(state: GridState, job: Job, allocation: Allocation) -> None:
    """A hold begins with its grant: nothing is launched."""
    allocation.started = job.active.attempt.started = state.now
    state.move(allocation, State.RUNNING, f"{allocation.grant.resources} of {allocation.node} are held")
    state.deadlines.arm("hold", allocation.id, state.now + job.spec.time_limit)
    state.holds.changed[job.id] = None
    state.changed(job, allocation)


def kind_of(job: Job) -> Kind:
    """Return the kind of a job: what it has in common with jobs that may succeed it on its resources."""
    return job.request, job.spec.bundle


def is_plain(job: Job, lease: float) -> bool:
    """Whether a job with this lease may have or be a successor: it needs nothing but its command, what is shipped
    with it and what it is granted, and no word from here while it runs."""
    spec, request = job.spec, job.request
    asked = request.constraints
    if (
        spec.boost is not None
        or spec.hold
        or spec.stdin
        or request.within
        or request.gang
        or request.ray
        or request.immediate
        or lease
    ):
        return False
    if request.revocable:
        return False
    return request.priority is not Priority.URGENT and (asked is None or not (asked.near or asked.apart))


def is_restartable(job: Job) -> bool:
    """Whether a job that runs alone may be moved to another node although its resources are not needed: its owner
    allows restarts, its first output is not awaited, and its input is not fed by a client."""
    spec, request = job.spec, job.request
    return request.requeue and not (request.gang or request.immediate or spec.stdin or spec.boost is not None)


def reserve(state: GridState, allocation: Allocation) -> None:
    """Ask Ray for a reservation, with a deadline."""
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
        spec=_spec(state, job, allocation),
        gang=allocation.gang,
        lease=allocation.lease,
        walls=job.request.constraints.walls if job.request.constraints is not None else Walls.NONE,
        heard=sample.at if allocation.lease and (sample := state.nodes[allocation.node].sample) else 0.0,
        predecessor=allocation.predecessor,
    )


def _spec(state: GridState, job: Job, allocation: Allocation) -> JobSpec:
    """The spec to launch: members of a group get its id and their index in the environment; a boost has time to join
    Ray beside its duration."""
    if not job.group:
        limit = time_limit(job, allocation)
        return job.spec if limit == job.spec.time_limit else replace(job.spec, time_limit=limit)
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
    """Tell an allocation to stop: SIGTERM, `grace` seconds, SIGKILL. Other members of its gang stop with it. A second
    stop has no effect, except that a cancel overrides an eviction, so that the job is not requeued. Returns whether
    anything has changed."""
    asked = _request_stop(state, allocation, cause, text, grace)
    job = state.jobs[allocation.job]
    if asked and job.request.gang:
        told = text if cause not in BY_THE_GRID else f"{job.id} of its gang is to end: {text}"
        # A node that recalls says how long its own job has, which is nothing for the other nodes to keep to.
        grace = grace if cause is not Cause.RECALLED else -1.0
        request_gang_stop(state, job, told, grace, cause if cause not in BY_THE_GRID else Cause.GANG)
    return asked


def request_gang_stop(state: GridState, job: Job, text: str, grace: float = -1.0, cause: Cause = Cause.GANG) -> None:
    """Tell all other members of a job's gang to stop; `grace` below zero: the grace of each."""
    for name in state.groups[job.group].live:
        other = state.jobs[name]
        held = state.allocations.get(other.allocation)
        if other is not job and held is not None:
            _request_stop(state, held, cause, text, other.spec.grace if grace < 0 else grace)


def _request_stop(state: GridState, allocation: Allocation, cause: Cause, text: str, grace: float) -> bool:
    asked = allocation.stop
    if asked is not None and not asked.unless_started and (asked.cause not in BY_THE_GRID or cause in BY_THE_GRID):
        return False
    allocation.stopped = state.now
    allocation.stop = Stop(allocation=allocation.id, grace=grace, cause=cause.value, text=text)
    state.preempting.preemptible.invalidate(allocation.node)
    job, node = state.jobs[allocation.job], state.nodes[allocation.node]
    # It is LOST also on a node that is back, from the resent launch until it has started.
    reached = node.synced and node.state is NodeState.UP and not may_be_alive_unknown(node.facts, allocation)
    if allocation.state is State.LOST and not reached:
        state.tell(job, f"to be stopped when {allocation.node} is back: {text}")
        state.changed(job, allocation)
        return True
    if allocation.state is State.STOPPING:
        state.tell(job, text)
    else:
        state.move(allocation, State.STOPPING, text)
    state.changed(job, allocation)
    if allocation.hold:
        state.deadlines.arm("hold", allocation.id, state.now)
    elif not allocation.awaits_ray:  # else its node has not heard of it: it ends with Ray's answer
        state.out.append(Send(allocation.node, allocation.stop))
    return True


def time_suspended(job: Job, now: float) -> float:
    """Seconds that this attempt was suspended, which extend its time limit."""
    phase, attempt = job.phase, job.phase.attempt
    before = attempt.suspended_for if attempt is not None else 0.0
    if isinstance(phase, Active) and phase.suspended is not None:
        before += max(0.0, now - phase.suspended.since)
    return before


def suspended(state: GridState, node: Node, message: Suspended) -> None:
    """An allocation was frozen or resumed. Reported again after a reconnect, possibly without news."""
    allocation = node.at_work(message.allocation)
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
        since = before.since if before is not None else state.now - message.lasted
        active.suspended = Suspension(since, why, message.by_holder)
        if before is not None:
            return
        by = f": the owner of {node.facts.name} is back ({why})" if not message.by_holder else f": {why}"
        state.tell(job, f"suspended{by}")
    else:
        active.suspended = None
        if before is None:
            return
        if allocation.state is not State.STOPPING:  # else it is thawed so that it can end
            if not before.by_holder:
                _owner_returned(state, node, recalls=False)
            state.tell(job, f"goes on after {format_duration(message.lasted)}")
    state.refresh(node, grown=False)  # who waits for its end may be told of another moment
    state.changed(job, allocation, soon=True)


def _owner_returned(state: GridState, node: Node, recalls: bool) -> None:
    """Count what an owner's return came to for a job."""
    if node.thawed + node.recalled >= RETURNS:  # habits change
        node.thawed, node.recalled = node.thawed // 2, node.recalled // 2
    node.thawed, node.recalled = node.thawed + (not recalls), node.recalled + recalls
    state.out.append(RecordReturns(node.facts.name, node.thawed, node.recalled))


def awaits_reader(state: GridState, node: Node, message: AwaitsReader) -> None:
    """An allocation was frozen as its attached reader is far behind, or resumed. Its story says so once an attempt."""
    allocation = node.at_work(message.allocation)
    if allocation is None:
        return
    job = state.jobs[allocation.job]
    active = job.active
    if bool(message.why) == (active.awaits_reader is not None):
        return
    state.idle.pop(allocation.id, None)  # what it does not use while it is frozen says nothing
    active.awaits_reader = None
    if message.why:
        active.awaits_reader = Suspension(state.now - message.lasted, why := message.why[:REASON_CHARS])
        if not active.attempt.awaited:
            active.attempt.awaited = True
            state.tell(job, f"waits for the reader of its output ({why}), now and whenever it is so far behind")
    state.changed(job, allocation, soon=True)


def recalled(state: GridState, node: Node, message: Recalled) -> None:
    """The node's owner recalls an allocation: it is stopped, and then requeued."""
    allocation = node.at_work(message.allocation)
    if allocation is None or allocation.state is State.STOPPING:
        return
    name, said = node.facts.name, message.why[:REASON_CHARS]
    why = f"{name} stops lending ({said})" if message.closing else f"the owner of {name} is back ({said})"
    if message.by_holder:
        why = said
        slack.wanted_back(state, allocation)
    elif not message.closing:
        _owner_returned(state, node, recalls=True)
    text = f"recalled: {why}; it has {message.grace:g} s to end"
    request_stop(state, allocation, Cause.RECALLED, text, message.grace)
