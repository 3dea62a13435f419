"""What becomes of a job when an attempt of it is over."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import dependencies, gangs, oom, retries
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.protocol.jobs import Outcome, RetryOn

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def over(ledger: "Ledger", job: Job, outcome: Outcome, allocation: Allocation, text: str, again: bool) -> None:
    """The job is over, or is run `again` if its owner wants that after such an end, or waits again since its place was
    taken back. What becomes of a member of a gang is decided with the others."""
    if outcome.started and retries.CLASSES.get(outcome.cause) is not RetryOn.LOST:  # where it is sure to have run
        dependencies.started(ledger, job)
    if job.request.gang:
        gangs.part_over(ledger, job, allocation, outcome, text, again)
        return
    if again and retries.was_taken_back(job, allocation, outcome):
        allocation.outcome = outcome
        job.taken_back += outcome.started
        ledger.requeue(job, allocation, f"{text}; it waits again" if outcome.started else f"{text}; it had not begun")
        return
    wanted = again and retries.wanted(job, allocation, outcome)
    request = oom.next_request(ledger, job, outcome) if wanted else None
    if request is not None:
        job.retried += 1
        allocation.outcome = outcome
        words = f"{text}; to be run again{oom.with_more(job.request, request)} ({job.retried} of {request.retries})"
        job.request = request
        ledger.requeue(job, allocation, words)
    else:
        outcome = oom.in_vain(outcome) if wanted else outcome
        ledger.finish(job, retries.told(allocation, outcome), allocation, text)
