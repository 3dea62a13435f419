"""What the supervisor reports to its agent of an allocation, and the coordinator's message for it."""

import msgspec

from distributed_grid.agent.supervisor.job import OWNER, READER
from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.messages import AwaitsReader, Suspended


class SupervisorReport(msgspec.Struct):
    """A report about an allocation: started; exited with `outcome`; or (`op` is `frozen`) frozen for this `cause` and
    the reason `why`, or that cause is over if `why` is empty. Other values of `op`: `proven`: nothing of loss `id` is
    alive. `nameless`: new jobs have no user name any more. `warning`: `why` is for the operator. `unended`: it was
    killed and something of it is alive, see `text`; `noted`: `text` is an additional remark."""

    id: str
    op: str = ""
    pid: int = 0
    outcome: Outcome | None = None
    cause: str = OWNER
    why: str = ""
    lasted: float = 0.0
    in_all: float = 0.0
    slot: str = ""
    walls: str = ""
    text: str = ""


REPORTS = msgspec.json.Decoder(SupervisorReport)


def frozen(said: SupervisorReport) -> Suspended | AwaitsReader:
    """Convert a report into the coordinator's message."""
    if said.cause == READER:
        return AwaitsReader(allocation=said.id, why=said.why, lasted=said.lasted)
    return Suspended(allocation=said.id, why=said.why, lasted=said.lasted, in_all=said.in_all)
