"""What becomes of a ledger whose store has lost commits: nothing is started, what is held stays as it is, and the
results that nodes tell are taken, also those of allocations of which only the node knows.
"""

from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import Audit, Node
from distributed_grid.coordinator.core.rollback import Alarm, LossFound, RecordLoss
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Exited

MOST = 20
"""Findings that are kept of one ledger."""


def found(state: GridState, event: LossFound) -> None:
    """Something outside showed it."""
    lose(state, event.found)


def lose(state: GridState, text: str) -> None:
    """Start nothing from now on. An operator chooses what is to be done."""
    if text in state.loss or len(state.loss) >= MOST:
        return
    state.loss += (text,)
    state.out += (RecordLoss(text), Alarm(text))


def ended_there(state: GridState, node: Node, exited: Exited) -> bool:
    """A node tells the result of an attempt whose grant is lost, which it proves: it is the result of the job. False:
    it proves nothing, or is of no job that waits here."""
    name, _, number = exited.allocation.rpartition(".")
    job = state.jobs.get(name)
    if exited.stamp is None or job is None or not number.isdecimal() or int(number) <= job.tries:
        return False
    if job.state is not State.WAITING or job.request.gang or job.kept is not None:
        return False
    said = f"{exited.allocation} is over there: that is the result of {job.id} from now on"
    state.out.append(Audit(node.facts.name, said))
    job.tries = int(number)
    job.node = node.facts.name
    if exited.outcome.started:
        job.started = min(state.now, max(job.submitted, state.now - exited.outcome.seconds))
    text = f"ended on {node.facts.name}, as {exited.allocation}, whose grant was lost"
    attempts.finish(state, job, exited.outcome, text=text)
    return True
