"""Events and commands: what goes into the ledger and what comes out of it; and the decisions among the commands, which
the event log keeps and `grid replay` compares.

Events come in with the time (grid time: seconds since the epoch that never jump). Commands go out in order, and the
driver makes every Record of a batch durable before it performs anything else of that batch.
"""

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from distributed_grid.coordinator.core.model import Allocation, Ended, Group, Job, OnRay
from distributed_grid.protocol.jobs import Cause, JobView
from distributed_grid.protocol.messages import (
    Exited,
    Extend,
    InUse,
    Inventory,
    Launch,
    Noted,
    OpenData,
    Recalled,
    Renewed,
    Signal,
    Stale,
    Started,
    Stop,
    Suspended,
)
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders, Offer, Sample
from distributed_grid.protocol.resources import Resources

# --- events: what happened --------------------------------------------------------------------------------------------
# They are logged as arrays that begin with their name (eventlog/format.py): fields are only ever added at the end.


class NodeUp(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An agent said hello and was let in; `session` is this connection's. Its Inventory follows before all else."""

    facts: NodeFacts
    session: str


class NodeDown(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The connection of this session is closed. (A session that is not the node's newest is of no interest.)"""

    node: str
    session: str


class Heard(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A heartbeat. `at`: when it was sent, on the node's own clock, where it asks for its leases to be renewed."""

    node: str
    sample: Sample
    at: float = 0.0


class Told(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message from the agent of this node about its offer or allocations."""

    node: str
    message: Offer | Inventory | Started | Stale | Exited | Suspended | Recalled | Noted | InUse


class JobsSubmitted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user asks for these jobs, all or none; ids and keys are made outside. `token`: who waits for the answer. A job
    with the id of a group stands for all of its members."""

    token: int
    jobs: tuple[Job, ...]
    groups: tuple[Group, ...] = ()


class CancelAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user (or the grid) wants these jobs ended; `grace` below zero: the job's own."""

    token: int
    jobs: tuple[str, ...]
    reason: str = ""
    grace: float = -1.0


class SignalAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user wants a signal sent to a running job."""

    token: int
    job: str
    signal: int


class Hold(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """From now on nothing new is started (`on`), or it is again: what is started has to be on disk first."""

    on: bool


class Tick(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Nothing happened but time."""


class DrainAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name wants these nodes to get no new job; `deadline` seconds from now what still runs
    there is taken back (below zero: never)."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""
    reason: str = ""
    deadline: float = -1.0


class UndrainAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to get jobs again."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class LabelAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to have these labels; None: not to have them."""

    token: int
    nodes: tuple[str, ...]
    labels: dict[str, str | None]
    by: str = ""


class ForgetAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to be no more."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class NodeDoubted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A node says what cannot be, as `found` has it, and nothing proves it."""

    node: str
    found: str


class RayLooked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """What Ray has on these nodes is this from now on (None: nothing any more); or it could not be asked, which is the
    `trouble`, and of no node it is known."""

    nodes: dict[str, OnRay | None]
    trouble: str = ""


class Reserved(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray has reserved this allocation."""

    allocation: str


class ReserveRefused(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray has not reserved this allocation, or could not be asked; `why` follows a colon."""

    allocation: str
    why: str


class Joined(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray shows the raylet of this allocation, with what was borrowed, as its node of this id."""

    allocation: str
    node: str


class Left(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray does not show the raylet of this allocation any more, which it did; `why` is for its owner."""

    allocation: str
    why: str


class ExtendAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user wants a boost to end so many seconds later."""

    token: int
    job: str
    seconds: float


class LossFound(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Something outside of the ledger showed that commits of the store are lost."""

    found: str


Event = (
    NodeUp
    | NodeDown
    | Heard
    | Told
    | JobsSubmitted
    | CancelAsked
    | SignalAsked
    | Hold
    | Tick
    | DrainAsked
    | UndrainAsked
    | LabelAsked
    | Joined
    | Left
    | ExtendAsked
    | ForgetAsked
    | RayLooked
    | Reserved
    | ReserveRefused
    | LossFound
    | NodeDoubted
)


# --- commands: what somebody else has to do ---------------------------------------------------------------------------


class RecordJob(msgspec.Struct, frozen=True, gc=False):
    """Make this job, as it is now, durable; one that holds an allocation is recorded together with that. `new`: it was
    not there before. `soon`: it may wait a moment for a record that may not (decisions/0003)."""

    job: Job
    new: bool = False
    soon: bool = False


class RecordAllocation(msgspec.Struct, frozen=True, gc=False):
    """Make this allocation, as it is now, durable. `soon` as in RecordJob."""

    allocation: Allocation
    soon: bool = False


class RecordGroup(msgspec.Struct, frozen=True, gc=False):
    """Make this group, as it is now, durable. It is never without the records of its members that changed it."""

    group: Group
    soon: bool = True


class RecordNode(msgspec.Struct, frozen=True, gc=False):
    """Make what is known of this node durable, so that it is known after a restart what never fits."""

    facts: NodeFacts


class RecordOrders(msgspec.Struct, frozen=True, gc=False):
    """Make what is ordered for this node durable."""

    node: str
    orders: NodeOrders


class RecordForgotten(msgspec.Struct, frozen=True, gc=False):
    """This node is no more."""

    node: str


class RecordReceipt(msgspec.Struct, frozen=True, gc=False):
    """Make this receipt of a preemption durable, in the place of what was said of it before."""

    receipt: Receipt


class RecordShare(msgspec.Struct, frozen=True, gc=False):
    """Make durable what the past of this user was at that moment."""

    user: str
    past: float
    at: float
    soon: bool = False


class RecordLoss(msgspec.Struct, frozen=True, gc=False):
    """Make durable that commits are lost, as this shows."""

    found: str


class Audit(msgspec.Struct, frozen=True, gc=False):
    """Keep a line about a message that came too late or from nowhere; nothing was changed by it."""

    node: str
    what: str


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send this to the agent of this node, if it is connected."""

    node: str
    message: Launch | Stop | Signal | Extend | OpenData | Renewed


class AckExits(msgspec.Struct, frozen=True, gc=False):
    """Tell the agent that these outcomes are on disk (so it comes after the records)."""

    node: str
    allocations: tuple[str, ...]


class Publish(msgspec.Struct, frozen=True, gc=False):
    """This job changed: tell who watches it. `view` is the job as it is now."""

    view: JobView


class Over(msgspec.Struct, frozen=True, gc=False):
    """This job has ended, and nobody watched it."""

    job: str
    cause: Cause


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Answer the submit: these jobs are taken (with keys already known: the jobs that are there)."""

    token: int
    jobs: tuple[str, ...]
    fit: int
    nodes: int


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Answer a request: it cannot be done. `code` as in messages.Failed."""

    token: int
    code: str
    what: str
    why: str = ""
    hint: str = ""


class Granted(msgspec.Struct, frozen=True, gc=False):
    """Answer a request: done."""

    token: int
    text: str = ""


class Reserve(msgspec.Struct, frozen=True, gc=False):
    """Have Ray reserve so much for this allocation on its node of this id, and say what came of it. Said again after a
    restart, where that is not known."""

    allocation: str
    node: str
    resources: Resources


class Unreserve(msgspec.Struct, frozen=True, gc=False):
    """Let go of what Ray reserved for this allocation, if it did."""

    allocation: str


class Alarm(msgspec.Struct, frozen=True, gc=False):
    """Tell the operator that commits are lost, as this shows, and that nothing is started any more."""

    found: str


Record = (
    RecordJob
    | RecordAllocation
    | RecordGroup
    | RecordNode
    | RecordOrders
    | RecordForgotten
    | RecordReceipt
    | RecordShare
    | RecordLoss
    | Audit
)
Command = Record | Send | AckExits | Publish | Over | Accepted | Rejected | Granted | Reserve | Unreserve | Alarm
RECORDS = get_args(Record)
MAY_WAIT = (RecordJob, RecordAllocation, RecordGroup, RecordShare)
"""Those of which some may wait: see `soon`."""


# --- decisions: the commands, in short --------------------------------------------------------------------------------
# A decision is a tuple of plain things. It begins with what kind it is and whom it concerns:
#
#    ("start", allocation, node, grant)    launch it there (also when the launch is said again)
#    ("job", job, state, node, cause)      the job is in this state now; the cause once it has ended
#    ("send", node, what, allocation)      anything else that an agent is told
#    ("refuse", token, code, what)         a request is refused
#    ("accept", token, jobs)               jobs are taken, or were already
#    ("orders", node, what)                what the operator ordered for a node is now this
#    ("audit", node, what)                 an agent's word that changed nothing
#    ("loss", found)                       commits of the store are lost, so nothing is started any more
#    ("reserve", allocation, node)         Ray is to reserve it on its node of this id
#    ("unreserve", allocation)             Ray is to let go of it

Decision = tuple[Any, ...]


def decisions(commands: Iterable[Command]) -> list[Decision]:
    """The decisions among these commands, in order. It is on the path of every job, so the frequent come first."""
    found: list[Decision] = []
    for command in commands:
        if type(command) is RecordJob:
            if command.new:
                continue  # it was accepted
            job, phase = command.job, command.job.phase
            node = phase.attempt.node if phase.attempt is not None else ""
            found.append(("job", job.id, phase.state, node, phase.outcome.cause if isinstance(phase, Ended) else ""))
        elif type(command) is RecordAllocation or type(command) is AckExits:
            continue  # the job says it, or the agent
        elif type(command) is Send:
            message = command.message
            if type(message) is Launch:
                found.append(("start", message.allocation, command.node, message.grant))
            elif not isinstance(message, Renewed):  # said with every heartbeat
                what = type(message).__name__.lower()
                found.append(("send", command.node, what, getattr(message, "allocation", "")))
        elif type(command) is Accepted:
            found.append(("accept", command.token, command.jobs))
        elif type(command) is Rejected:
            found.append(("refuse", command.token, command.code, command.what))
        elif type(command) is RecordOrders:
            found.append(("orders", command.node, command.orders))
        elif type(command) is RecordForgotten:
            found.append(("forget", command.node))
        elif type(command) is Audit:
            found.append(("audit", command.node, command.what))
        elif type(command) is RecordLoss:
            found.append(("loss", command.found))
        elif type(command) is Reserve:
            found.append(("reserve", command.allocation, command.node))
        elif type(command) is Unreserve:
            found.append(("unreserve", command.allocation))
    return found
