"""What can be said of the jobs of a backup, or of a store that has lost commits. What it shows as waiting may have been
started since and be over by now, so starting it could be the second time; what it shows as started may be over, and its
node will tell.
"""

import msgspec

from distributed_grid.coordinator.core import attempts
from distributed_grid.coordinator.core.model import Command
from distributed_grid.coordinator.core.state import Facts, GridState, Held
from distributed_grid.protocol.jobs import Cause, Outcome, State


def hold_back(state: GridState, text: str, why: str = "a backup was restored") -> list[Command]:
    """End what waits, saying so in `text`, and leave what holds resources to the word of its node; nothing of it is run
    again, whatever its owner allowed. What there is to record."""
    for job in list(state.jobs.values()):
        allocation = state.allocations.get(job.allocation)
        if job.id not in state.jobs:
            continue  # it ended with its gang
        if allocation is None:
            attempts.finish(state, job, Outcome(cause=Cause.RESTORED, text=text, started=False))
            continue
        allocation.started = job.started = allocation.started or allocation.granted
        job.request = msgspec.structs.replace(job.request, retry_on=(), retries=0)
        said = f"{why}: {job.node} will say what became of it"
        if allocation.state is State.STARTING:  # it may have started since
            state.move(allocation, State.RUNNING, said)
        else:
            state.tell(job, said)
        state.changed(job, allocation)
    state.facts, state.held = Facts(), Held()  # nothing follows from them: all that waits has ended
    return state.take_out()
