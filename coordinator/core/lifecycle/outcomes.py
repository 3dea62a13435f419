"""A job is over, or its allocation is and it waits again. Everything else that ends a job comes here."""

from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.preemption import held_sets
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Outcome, State


def conclude(
    state: GridState, job: Job, outcome: Outcome, allocation: Allocation | None = None, text: str = ""
) -> None:
    """The job is over, and so is its gang if it has one."""
    active = not state.is_held(job)
    if allocation is not None:
        state.move(allocation, State.ENDED)
    elif job.kept is not None:
        held_sets.give_back(state, job, f"{job.id} was ended")
    elif active:
        state.dequeue(job)
    job.outcome, job.ended, job.suspended = outcome, state.now, None
    state.waits_for(job, None)
    state.move(job, State.ENDED, text or outcome.text or outcome.cause.value)
    state.remove(job, active)
    state.changed(job, allocation)


def requeue(state: GridState, job: Job, allocation: Allocation, text: str) -> None:
    """The allocation is over and the job is not: it waits again, at its old place in the queue."""
    state.move(allocation, State.ENDED)
    job.node, job.grant, job.started = "", None, 0.0
    job.suspended, job.suspended_for = None, 0.0
    state.move(job, State.WAITING, text)
    state.enqueue(job)
    held_sets.gave(state, job, allocation)
    state.changed(job, allocation)
