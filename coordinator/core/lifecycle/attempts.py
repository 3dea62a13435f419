"""What becomes of a job when an attempt of it is over."""

from distributed_grid.coordinator.core.lifecycle import oom, outcomes, retries
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.queue import gangs
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Outcome, RetryOn


def over(state: GridState, job: Job, outcome: Outcome, allocation: Allocation, text: str, again: bool = True) -> None:
    """An attempt has ended; `again`: nothing of it is alive for sure. The job is over, or is run again if its owner
    wants that after such an end, or waits again since its place was taken back. What becomes of a member of a gang is
    decided with the others."""
    if outcome.started and retries.CLASSES.get(outcome.cause) is not RetryOn.LOST:  # where it is sure to have run
        state.has_started(job)
    if job.request.gang:
        gangs.part_over(state, job, allocation, outcome, text, again)
        return
    if again and retries.was_taken_back(job, allocation, outcome):
        allocation.outcome = outcome
        job.taken_back += outcome.started
        outcomes.requeue(
            state, job, allocation, f"{text}; it waits again" if outcome.started else f"{text}; it had not begun"
        )
        return
    wanted = again and retries.wanted(job, allocation, outcome)
    request = oom.next_request(state, job, outcome) if wanted else None
    if request is not None:
        job.retried += 1
        allocation.outcome = outcome
        words = f"{text}; to be run again{oom.with_more(job.request, request)} ({job.retried} of {request.retries})"
        job.request = request
        outcomes.requeue(state, job, allocation, words)
    else:
        outcome = oom.in_vain(outcome) if wanted else outcome
        finish(state, job, retries.told(allocation, outcome), allocation, text)


def finish(state: GridState, job: Job, outcome: Outcome, allocation: Allocation | None = None, text: str = "") -> None:
    """The job is over; of a gang, what that means is decided with the others."""
    if job.request.gang:
        gangs.waiting_over(state, job, outcome, text)
    else:
        outcomes.conclude(state, job, outcome, allocation, text)
