"""What becomes of a ledger whose store has lost commits: nothing is started, what is held stays as it is, and the
results that nodes tell are taken, also those of allocations of which only the node knows.
"""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.model import Audit, Job, Node
from distributed_grid.coordinator.core.rollback import Alarm, LossFound, RecordLoss
from distributed_grid.protocol.jobs import Outcome, State

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

MOST = 20
"""Findings that are kept of one ledger."""


def found(ledger: "Ledger", event: LossFound) -> None:
    """Something outside showed it."""
    lose(ledger, event.found)


def lose(ledger: "Ledger", text: str) -> None:
    """Start nothing from now on. An operator chooses what is to be done."""
    if text in ledger.loss or len(ledger.loss) >= MOST:
        return
    ledger.loss += (text,)
    ledger.out += (RecordLoss(text), Alarm(text))


def contradicts(ledger: "Ledger", node: Node, name: str, began: float = 0.0) -> Job | None:
    """Take note where a node knows of an attempt that was never granted as far as is known here: a grant is on disk
    before a node hears of it, so its commit is lost. The job, while it has no other attempt. What is from before a
    backup was restored is expected; `began`: when it did, where it runs."""
    job = ledger.jobs.get(name.rpartition(".")[0])
    number = name.rpartition(".")[2]
    if job is None or not number.isdecimal() or len(number) > 9 or int(number) <= job.tries:
        return None
    if max(job.submitted, began) <= ledger.unknown_before:
        return None
    where = node.facts.name
    lose(ledger, f"{where} knows of {name}, and the store has only {job.tries} attempts of {job.id}")
    return job if job.state is State.WAITING else None


def ended_there(ledger: "Ledger", node: Node, name: str, outcome: Outcome) -> bool:
    """A node tells the result of an attempt whose grant is lost: it is the result of the job. False: it is of no job
    that waits here."""
    job = contradicts(ledger, node, name)
    if job is None or job.request.gang or job.kept is not None:
        return False
    ledger.out.append(Audit(node.facts.name, f"{name} is over there: that is the result of {job.id} from now on"))
    job.tries = int(name.rpartition(".")[2])
    job.node = node.facts.name
    if outcome.started:
        job.started = max(job.submitted, ledger.now - outcome.seconds)
    ledger.finish(job, outcome, text=f"ended on {node.facts.name}, as {name}, whose grant was lost")
    return True
