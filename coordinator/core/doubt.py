"""What can be said of the jobs of a backup, or of a store that has lost commits. What it shows as waiting may have been
started since and be over by now, so starting it could be the second time; what it shows as started may be over, and its
node will tell.
"""

from typing import TYPE_CHECKING

import msgspec

from distributed_grid.coordinator.core.dependencies import Held
from distributed_grid.coordinator.core.model import Command
from distributed_grid.protocol.jobs import Cause, Outcome, State

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def hold_back(ledger: "Ledger", text: str, why: str = "a backup was restored") -> list[Command]:
    """End what waits, saying so in `text`, and leave what holds resources to the word of its node; nothing of it is run
    again, whatever its owner allowed. What there is to record."""
    for job in list(ledger.jobs.values()):
        allocation = ledger.allocations.get(job.allocation)
        if job.id not in ledger.jobs:
            continue  # it ended with its gang
        if allocation is None:
            ledger.finish(job, Outcome(cause=Cause.RESTORED, text=text, started=False))
            continue
        allocation.started = job.started = allocation.started or allocation.granted
        job.request = msgspec.structs.replace(job.request, retry_on=(), retries=0)
        said = f"{why}: {job.node} will say what became of it"
        if allocation.state is State.STARTING:  # it may have started since
            ledger.move(allocation, State.RUNNING, said)
        else:
            ledger.tell(job, said)
        ledger.changed(job, allocation)
    ledger.endings.clear()  # nothing follows from them: all that waits has ended
    ledger.held = Held()
    out, ledger.out = ledger.out, []
    return out
