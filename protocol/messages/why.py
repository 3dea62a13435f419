"""Messages between a client and the coordinator about why a job waits or runs where it does, or where a new one would
run."""

import msgspec

from distributed_grid.protocol.jobs import JobView, Precedence, Reason, Request
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.messages.operator import Preemption
from distributed_grid.protocol.nodes import AllocationView
from distributed_grid.protocol.resources import Count, Finite, Grant, Number, Span, Text


class AskWhy(Message, frozen=True, tag="ask-why"):
    """Why is this job where it is; or, with `request` instead of `job`, where would it go (a dry run). `lasts`: the
    time limit of such a job with its grace, in seconds; 0: it has none."""

    id: Number
    job: str = ""
    request: Request | None = None
    lasts: Span = 0.0


class NodeVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of matching for one node: `ok` with its scores by name and their weighted mean `confidence`, or the
    reason why not."""

    node: str
    ok: bool
    why: str = ""
    confidence: Finite = 0.0
    scores: dict[str, Finite] = {}


class FunnelStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many nodes are left after one more condition; `lost` names those that went, for people."""

    what: str
    left: Count
    lost: str = ""


class Why(Message, frozen=True, tag="why"):
    """The explanation: a dominant reason, the funnel from all nodes to those that fit, and the verdict per node.
    `chosen` is the node it is on or would go to, with `grant`; `ahead` counts jobs before it in the queue; `hint` is
    the smallest single change that would start it now. `holders` hold what it lacks, those that end first at the front.
    `snapshot` numbers the state of the ledger that was evaluated, since the start that `epoch` counts. `preempts`: the
    preemption by which a request without room would start. `precedence`: of a job in the queue, unless it is served by
    share. `lasting`: how long the chosen node stays idle, by its own past. `prospects`: the run time of runs like it,
    and the probability that it is over by the time its submitter wants."""

    id: Number
    reason: Reason
    funnel: tuple[FunnelStep, ...] = ()
    verdicts: tuple[NodeVerdict, ...] = ()
    chosen: str = ""
    grant: Grant | None = None
    ahead: Count = 0
    hint: str = ""
    job: JobView | None = None
    holders: tuple[AllocationView, ...] = ()
    snapshot: Number = 0
    epoch: Number = 0
    preempts: Preemption | None = None
    precedence: Precedence | None = None
    lasting: Text = ""
    prospects: Text = ""
