"""When a job is run again, and the leases that make it safe. Never unless its owner said so, and never before the last
attempt is known to be over: by its node's word, by a reboot, or because its lease has run out there.
"""

import msgspec

from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Cause, Outcome, RetryOn

DRIFT = 1.01
"""A node's clock may run this much slower than ours."""
ENDING = 3.0
"""Seconds that a node may need to end a job whose lease has run out."""
CLASSES: dict[Cause, RetryOn] = {
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


TAKEN_BACK = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED})
"""Ends that the grid itself made, to give the place to somebody else: the job waits again, and no retry is used up."""
BY_THE_GRID = TAKEN_BACK | {Cause.GANG}
"""Ends that no owner asked for: a cancel comes before them."""


def longest_lease(policy: Policy) -> float:
    """A lease that has run out, and its job has ended, by the time a silent node is taken for lost: counted there from
    the sending of what is counted here from its receipt."""
    return max(0.0, (policy.disconnected_after + policy.lost_after - ENDING) / DRIFT)


def lease(job: Job, policy: Policy) -> float:
    """The lease of the next attempt: only what may be run again when it is lost has one."""
    leased = RetryOn.LOST in job.request.retry_on and job.retried < job.request.retries
    return longest_lease(policy) if leased else 0.0


def is_over(allocation: Allocation, policy: Policy) -> bool:
    """Whether an allocation has ended for sure on a node that was silent for so long that it is taken for lost."""
    return 0.0 < allocation.lease <= longest_lease(policy)


def was_taken_back(job: Job, allocation: Allocation, outcome: Outcome) -> bool:
    """Whether the grid took the job's place away, so that it waits again: unless its owner forbade that, and it had
    begun already, or has cancelled it meanwhile."""
    cancelled = allocation.stop is not None and allocation.stop.cause not in TAKEN_BACK
    return outcome.cause in TAKEN_BACK and not cancelled and (job.request.requeue or not outcome.started)


def told(allocation: Allocation, outcome: Outcome) -> Outcome:
    """The end as its owner is told of it: cancelled, where that was asked while the grid took the place back."""
    stop = allocation.stop
    if stop is None or stop.cause in BY_THE_GRID or outcome.cause not in BY_THE_GRID:
        return outcome
    return msgspec.structs.replace(outcome, cause=Cause(stop.cause), text=stop.text)


def listed(job: Job, outcome: Outcome) -> bool:
    """Whether its owner wants another attempt after such an end, and there is one left."""
    return job.retried < job.request.retries and CLASSES.get(outcome.cause) in job.request.retry_on


def wanted(job: Job, allocation: Allocation, outcome: Outcome) -> bool:
    """Whether its owner wants another attempt after this end."""
    stopped = allocation.stop is not None and allocation.stop.cause not in TAKEN_BACK
    if stopped or job.retried >= job.request.retries:
        return False
    if outcome.cause is Cause.EXITED and outcome.code == 0:
        return False
    return CLASSES.get(outcome.cause) in job.request.retry_on
