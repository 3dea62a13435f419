"""Events and commands: the input and output of the ledger; and the decisions among the commands, which are in the event
log and compared by `grid replay`.

Events come in with the time (grid time: seconds since the epoch that never jump). Commands go out in order, and the
driver makes every Record of a batch durable before it performs anything else of that batch.
"""

from typing import get_args

import msgspec

from distributed_grid.coordinator.core.model import Allocation, Group, Job, OnRay
from distributed_grid.coordinator.core.queue.quotas import Spent
from distributed_grid.coordinator.core.rebalancing.view import RayLook
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachineMismatched,
    MachineOver,
    MachinesListed,
    RecordMachine,
    RecordPauses,
    ScalingConfigured,
    ScalingRequested,
)
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.jobs import Cause, JobView
from distributed_grid.protocol.messages import (
    AwaitsReader,
    Exited,
    Extend,
    InEffect,
    InUse,
    Inventory,
    Launch,
    Noted,
    OpenData,
    Recalled,
    Renewed,
    Renice,
    Signal,
    Stale,
    Started,
    Stop,
    Suspended,
)
from distributed_grid.protocol.messages.history import DayOfLoans
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.messages.rights import Rights, Whose
from distributed_grid.protocol.nodes import Lending, NodeFacts, NodeOrders, Offer, Sample
from distributed_grid.protocol.resources import Resources, ResourceType
from distributed_grid.protocol.sharing.moves import Move
from distributed_grid.protocol.sharing.policies import Balancing, BalancingOrder, OffloadingMode, PolicyName

# --- events: what happened --------------------------------------------------------------------------------------------
# They are logged as arrays that begin with their name (eventlog/format.py): fields are only ever added at the end.


class NodeUp(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """An agent has connected; `session` is this connection's id. Its Inventory is the next message."""

    facts: NodeFacts
    session: str


class NodeDown(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The connection of this session is closed. Ignored if the node has a newer session."""

    node: str
    session: str


class HeartbeatReceived(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A heartbeat. `at`: when it was sent, on the node's own clock, where it asks for its leases to be renewed."""

    node: str
    sample: Sample
    at: float = 0.0


class MessageReceived(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A message from the agent of this node about its offer or allocations."""

    node: str
    message: (
        Offer | Inventory | Started | Stale | Exited | Suspended | AwaitsReader | Recalled | Noted | InUse | InEffect
    )


class JobsSubmitted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user submits these jobs, all or none; ids and keys are made outside. `token` identifies the answer. A job with
    the id of a group stands for all of its members."""

    token: int
    jobs: tuple[Job, ...]
    groups: tuple[Group, ...] = ()


class CancelRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user (or the grid) cancels these jobs; `grace` below zero: the job's own."""

    token: int
    jobs: tuple[str, ...]
    reason: str = ""
    grace: float = -1.0


class SignalRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user wants a signal sent to a running job."""

    token: int
    job: str
    signal: int


class StoreFailing(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The store cannot write to its disk; nothing new is started while this is `on`."""

    on: bool


class Tick(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Time has passed."""


class DrainRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name drains these nodes: no new jobs, and after `deadline` seconds the rest is stopped
    (below zero: never)."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""
    reason: str = ""
    deadline: float = -1.0


class UndrainRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator ends the drain of these nodes."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class LabelsRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator sets labels of these nodes; None removes one."""

    token: int
    nodes: tuple[str, ...]
    labels: dict[str, str | None]
    by: str = ""


class SettingsRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator sets what these nodes lend at most; settings named in `unset` are as configured again."""

    token: int
    nodes: tuple[str, ...]
    values: Lending
    unset: tuple[str, ...] = ()
    by: str = ""


class NodeDeclared(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name declares what a node without agent has, and how much of that is `free`; `known`: it
    has to be declared already, and as much of the `kept` kinds is free as before. `gpu_memory`: bytes of each GPU."""

    token: int
    node: str
    whole: Resources
    free: Resources
    gpu_model: str = ""
    gpu_memory: int = 0
    labels: dict[str, str] = {}
    known: bool = False
    by: str = ""
    kept: tuple[ResourceType, ...] = ()


class RemovalRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator removes these nodes from the grid."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class NodeDoubted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A node has made an impossible claim without proof, described by `found`."""

    node: str
    found: str


class RayReported(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The resources of Ray on these nodes (None: none any more); or the `trouble` because of which they are unknown."""

    nodes: dict[str, OnRay | None]
    trouble: str = ""


class Reserved(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray has reserved this allocation."""

    allocation: str


class ReserveRefused(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Ray has refused to reserve this allocation, or could not be reached; `why` follows a colon in messages."""

    allocation: str
    why: str


class RayletJoined(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The raylet of this allocation has joined Ray as its node of this id, with all resources."""

    allocation: str
    node: str


class RayletLeft(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The raylet of this allocation has left Ray; `why` is for its submitter."""

    allocation: str
    why: str


class RayAnswered(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The Ray cluster at this address answers again, after it did not."""

    address: str


class ExtensionRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A user extends a boost by this many seconds."""

    token: int
    job: str
    seconds: float


class LossFound(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """There is evidence outside of the ledger that commits of the store are lost."""

    found: str


class RightsSet(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name sets these rights of a user, a group or all; None: takes back all that was set."""

    token: int
    whose: Whose
    name: str
    rights: Rights | None
    by: str = ""


class DemandReported(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A pass of rebalancing is due, and this is what Ray told for it; None: it could not be asked, because of this
    `trouble` (empty: there is no Ray). `ids` are for boosts that the pass may lend."""

    look: RayLook | None
    ids: tuple[str, ...] = ()
    trouble: str = ""


class ForecastsReported(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """New forecasts of how long these nodes stay idle; None: there is no forecast for that node any more."""

    nodes: dict[str, IdleForecast | None]


class BalancingRequested(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name sets mode and policy; None: as they are. `unset`: as configured, but for what is
    set."""

    token: int
    mode: OffloadingMode | None = None
    policy: PolicyName | None = None
    unset: bool = False
    by: str = ""


class BalancingConfigured(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The configuration was read again, and says this of rebalancing."""

    balancing: Balancing


class RunTimesPredicted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Predicted run times of these waiting jobs (s): nine in ten runs like them stay within."""

    planned: tuple[tuple[str, float], ...]


class MemoryAdvised(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """For a retry with more memory: the bytes that were enough for runs like this allocation's (docs/needs.md)."""

    allocation: str
    memory: int


Event = (
    NodeUp
    | NodeDown
    | HeartbeatReceived
    | MessageReceived
    | JobsSubmitted
    | CancelRequested
    | SignalRequested
    | StoreFailing
    | Tick
    | DrainRequested
    | UndrainRequested
    | LabelsRequested
    | SettingsRequested
    | NodeDeclared
    | RayletJoined
    | RayletLeft
    | RayAnswered
    | ExtensionRequested
    | RemovalRequested
    | RayReported
    | Reserved
    | ReserveRefused
    | LossFound
    | NodeDoubted
    | RightsSet
    | DemandReported
    | ForecastsReported
    | MemoryAdvised
    | RunTimesPredicted
    | BalancingRequested
    | BalancingConfigured
    | ScalingConfigured
    | ScalingRequested
    | MachineAnswered
    | MachinesListed
    | MachineMismatched
)


# --- commands: what the shell has to do -------------------------------------------------------------------------------


class RecordJob(msgspec.Struct, frozen=True, gc=False):
    """Make this job durable, together with its allocation if it has one. `new`: it has no record yet. `soon`: it may
    wait a moment for a group commit (decisions/0003)."""

    job: Job
    new: bool = False
    soon: bool = False


class RecordAllocation(msgspec.Struct, frozen=True, gc=False):
    """Make this allocation durable. `soon` as in RecordJob."""

    allocation: Allocation
    soon: bool = False


class RecordGroup(msgspec.Struct, frozen=True, gc=False):
    """Make this group durable, always together with the members that changed it."""

    group: Group
    soon: bool = True


class RecordNode(msgspec.Struct, frozen=True, gc=False):
    """Make the facts of this node durable, so that requests that never fit are rejected also after a restart."""

    facts: NodeFacts


class RecordOrders(msgspec.Struct, frozen=True, gc=False):
    """Make the operator's orders for this node durable."""

    node: str
    orders: NodeOrders


class RecordForgotten(msgspec.Struct, frozen=True, gc=False):
    """Remove this node from the store."""

    node: str


class RecordReceipt(msgspec.Struct, frozen=True, gc=False):
    """Make this receipt of a preemption durable; it replaces the one with the same id."""

    receipt: Receipt


class RecordShare(msgspec.Struct, frozen=True, gc=False):
    """Make the past use of this user at that moment durable."""

    user: str
    past: float
    at: float
    soon: bool = False


class RecordLoan(msgspec.Struct, frozen=True, gc=False):
    """Make durable what one user has lent another on average, as of that moment; 0: nothing worth knowing."""

    lender: str
    borrower: str
    past: float
    at: float
    soon: bool = False


class RecordReturns(msgspec.Struct, frozen=True, gc=False):
    """Make durable how often jobs on this node went on after its owner's return, and how often one was recalled."""

    node: str
    thawed: int
    recalled: int
    soon: bool = True


class RecordRights(msgspec.Struct, frozen=True, gc=False):
    """Make the rights durable that operators have set under this key; None: none."""

    key: str
    rights: Rights | None


class RecordBalancing(msgspec.Struct, frozen=True, gc=False):
    """Make durable what operators have set of mode and policy."""

    order: BalancingOrder


class RecordSpent(msgspec.Struct, frozen=True, gc=False):
    """Make durable what a pool has spent of a day."""

    pool: str
    spent: Spent
    soon: bool = True


class RecordLoss(msgspec.Struct, frozen=True, gc=False):
    """Make a finding of lost commits durable."""

    found: str


class Audit(msgspec.Struct, frozen=True, gc=False):
    """Write a line about an unexpected message, which changed nothing, to the audit log."""

    node: str
    what: str


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send this to the agent of this node, if it is connected."""

    node: str
    message: Launch | Stop | Signal | Extend | Renice | OpenData | Renewed


class AckExits(msgspec.Struct, frozen=True, gc=False):
    """Acknowledge to the agent that these outcomes are on disk."""

    node: str
    allocations: tuple[str, ...]


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Send the new view of a job to its watchers."""

    view: JobView


class Over(msgspec.Struct, frozen=True, gc=False):
    """A job without watchers has ended. `waited` and `ran` in seconds, below 0: it never started; `used` and `held` in
    core-seconds. `hold`: it is a hold."""

    job: str
    cause: Cause
    waited: float = -1.0
    ran: float = -1.0
    used: float = 0.0
    held: float = 0.0
    hold: bool = False


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """Answer a submit: these jobs are accepted (for known keys: the existing jobs)."""

    token: int
    jobs: tuple[str, ...]
    fit: int
    nodes: int


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Answer a request: it is refused. `code` as in messages.Failed."""

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
    """Ask Ray to reserve these resources for this allocation on the Ray node with this id; sent again after a
    restart."""

    allocation: str
    node: str
    resources: Resources


class Unreserve(msgspec.Struct, frozen=True, gc=False):
    """Release Ray's reservation for this allocation, if there is one."""

    allocation: str


class Configure(msgspec.Struct, frozen=True, gc=False):
    """Send the agent of this node the grid's settings for it: they have changed."""

    node: str


class Rebalanced(msgspec.Struct, frozen=True, gc=False):
    """A pass of rebalancing has found these moves; `applied`: and made them, so that new boosts are to be looked
    after."""

    moves: tuple[Move, ...]
    applied: bool


class Lent(msgspec.Struct, frozen=True, gc=False):
    """Add these loans to the history."""

    days: tuple[DayOfLoans, ...]


class Alarm(msgspec.Struct, frozen=True, gc=False):
    """Alert the operator that commits are lost and nothing is started any more."""

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
    | RecordLoan
    | RecordReturns
    | RecordRights
    | RecordBalancing
    | RecordMachine
    | RecordPauses
    | RecordSpent
    | RecordLoss
    | Audit
)
Command = (
    Record
    | Send
    | AckExits
    | Publish
    | Over
    | Accepted
    | Rejected
    | Granted
    | Reserve
    | Unreserve
    | Configure
    | Rebalanced
    | Lent
    | CreateMachine
    | EndMachine
    | ListMachines
    | MachineOver
    | Alarm
)
RECORDS = get_args(Record)
MAY_WAIT = (RecordJob, RecordAllocation, RecordGroup, RecordShare, RecordLoan, RecordReturns, RecordSpent)
"""Records that may wait if they are marked `soon`."""
