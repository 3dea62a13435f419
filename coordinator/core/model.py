"""What the ledger holds and what goes in and out of it: nodes, jobs, groups, allocations, the tables of their
states, events and commands. Data only.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import get_args

import msgspec

from distributed_grid.coordinator.core.commands import DrainAsked as DrainAsked
from distributed_grid.coordinator.core.commands import ExtendAsked as ExtendAsked
from distributed_grid.coordinator.core.commands import ForgetAsked as ForgetAsked
from distributed_grid.coordinator.core.commands import Joined as Joined
from distributed_grid.coordinator.core.commands import LabelAsked as LabelAsked
from distributed_grid.coordinator.core.commands import Left as Left
from distributed_grid.coordinator.core.commands import NodeDoubted as NodeDoubted
from distributed_grid.coordinator.core.commands import (
    OnRay,
    RayLooked,
    RayPlace,
    Reserve,
    Reserved,
    ReserveRefused,
    Unreserve,
)
from distributed_grid.coordinator.core.commands import RecordForgotten as RecordForgotten
from distributed_grid.coordinator.core.commands import RecordNode as RecordNode
from distributed_grid.coordinator.core.commands import RecordOrders as RecordOrders
from distributed_grid.coordinator.core.commands import UndrainAsked as UndrainAsked
from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.queue.fairness import RecordShare
from distributed_grid.coordinator.core.rollback import Alarm as Alarm
from distributed_grid.coordinator.core.rollback import LossFound as LossFound
from distributed_grid.coordinator.core.rollback import RecordLoss as RecordLoss
from distributed_grid.protocol.groups import Array, Gang, GroupKind
from distributed_grid.protocol.jobs import (
    After,
    Cause,
    Dependency,
    JobSpec,
    JobView,
    Outcome,
    Reason,
    Request,
    State,
    Step,
    Suspension,
    Used,
)
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
from distributed_grid.protocol.messages.operator import Place, Receipt
from distributed_grid.protocol.nodes import NO_ORDERS, NodeFacts, NodeOrders, NodeState, Offer, Sample
from distributed_grid.protocol.resources import Count, Finite, Grant


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job or group ended, as far as it matters to those that wait for it: all of it with exit code 0, all of it
    `started` at some time, and in words. `root`: by whom it failed, if it never ran since another one had failed."""

    ok: bool
    started: bool
    text: str = ""
    root: str = ""


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a job or group waits for: something to become of another one. `name` is what that is called, `end` how it
    had ended before."""

    on: str
    kind: After
    name: str = ""
    end: End | None = None


def dependencies(after: tuple[Condition, ...]) -> tuple[Dependency, ...]:
    """What a job or group waits for still, as clients see it."""
    return tuple(Dependency(one.on, one.kind) for one in after) if after else ()


class Group(msgspec.Struct, kw_only=True, gc=False):
    """Many jobs of one submission. Its members are jobs that have its id as their `group`; what is counted here are
    those that have ended otherwise than with exit code 0."""

    id: str
    key: str
    user: str
    kind: GroupKind
    spec: JobSpec
    request: Request
    submitted: Finite
    count: Count
    array: Array | None = None
    failed: Count = 0
    cancelled: Count = 0
    never: Count = 0
    """How many of them had never started."""
    ended: Finite = 0.0
    """When the last member had ended; 0: not yet."""
    after: tuple[Condition, ...] = ()
    begin: Finite = 0.0


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A set of one node that is kept for a job that waits, `until` it is given up. `receipt`: the preemption that frees
    it; without one, it is what the job itself gave to somebody who does not need it after all. The first member of a
    gang has this for all of them: `more` are the places of the others, by their rank."""

    node: str
    grant: Grant
    until: float
    receipt: Receipt | None = None
    ends: float = 0.0
    """By when all have ended that it waits for."""
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All that is kept; of a gang, by rank."""
        return (Place(self.node, self.grant), *self.more)


class RecordReceipt(msgspec.Struct, frozen=True, gc=False):
    """Make this receipt of a preemption durable, in the place of what was said of it before."""

    receipt: Receipt


class Fate(StrEnum):
    """What the end of a part means to the gang."""

    DONE = "done"
    """It exited with 0: the others go on."""
    NEVER_BEGAN = "never-began"
    """Its node would not have it: all wait again."""
    TAKEN_BACK = "taken-back"
    """The grid took its place: all wait again."""
    TO_RETRY = "to-retry"
    """It failed or was lost, and its owner wants another attempt after such an end, of all."""
    FAILED = "failed"
    """It failed or was cancelled: all are over."""
    ENDED = "ended"
    """It was ended since another part was over."""
    UNSURE = "unsure"
    """It may run on, on a node that was lost: all are over, since nothing may run beside it."""


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of one member, over since `at`. `outcome`: how it ended; None: it never began. `away`: the node of
    another member could not be reached then, so that its end may have come of that."""

    at: float
    fate: Fate
    outcome: Outcome | None = None
    away: bool = False


# The law. A job without an allocation is WAITING or ENDED; its allocation's state is the job's state otherwise.
# So a job whose allocation ENDED without ever having started (the agent answered stale) is WAITING again.
MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.STARTING, State.ENDED}),
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.LOST, State.ENDED}),
    State.RUNNING: frozenset({State.STOPPING, State.LOST, State.ENDED}),
    State.STOPPING: frozenset({State.LOST, State.ENDED}),
    State.LOST: frozenset({State.RUNNING, State.STOPPING, State.ENDED}),
    State.ENDED: frozenset(),
}

# A node is silent for longer and longer, and may be looked at late; or it is there again. LOST is never left otherwise.
NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.UP: frozenset({NodeState.SUSPECT, NodeState.DISCONNECTED, NodeState.LOST}),
    NodeState.SUSPECT: frozenset({NodeState.UP, NodeState.DISCONNECTED, NodeState.LOST}),
    NodeState.DISCONNECTED: frozenset({NodeState.UP, NodeState.LOST}),
    NodeState.LOST: frozenset({NodeState.UP}),
}


class Allocation(msgspec.Struct, kw_only=True, gc=False):
    """Resources of one node granted to one job, for one attempt. Never used twice: a retry is a new allocation.
    Its id is `<job>.<attempt>`. STARTING, RUNNING, STOPPING and LOST hold the grant."""

    id: str
    job: str
    node: str
    grant: Grant
    state: State
    granted: Finite
    started: Finite = 0.0
    ended: Finite = 0.0
    stop: Stop | None = None
    """Set once the end was asked for; told again to an agent that comes back."""
    lease: Finite = 0.0
    """Seconds after which its node ends it by itself without our word; 0: never."""
    outcome: Outcome | None = None
    """How it ended, where the job was run again after it; else the job has it."""
    boot: str = ""
    instance: str = ""
    """The life of the node, and the state directory of its agent, that it was granted on: another one cannot know of
    it."""
    gang: Gang | None = None
    """What a member of a gang is told of it."""
    stopped: Finite = 0.0
    """When it was told to stop."""
    ray: RayPlace | None = None
    """Where Ray reserves it; None: it was not asked to."""
    walls: str = ""
    """The walls behind which it runs or ran, as its node told."""

    @property
    def awaits_ray(self) -> bool:
        """Whether Ray has still to say that it is reserved: its node has not heard of it."""
        return self.ray is not None and not self.ray.granted


class Job(msgspec.Struct, kw_only=True, gc=False):
    """A user's command, from submit to outcome. `tries` counts allocations made; the last one is `allocation`."""

    id: str
    key: str
    user: str
    spec: JobSpec
    request: Request
    submitted: Finite
    state: State = State.WAITING
    tries: Count = 0
    allocation: str = ""
    node: str = ""
    grant: Grant | None = None
    started: Finite = 0.0
    ended: Finite = 0.0
    reason: Reason | None = None
    outcome: Outcome | None = None
    story: list[Step] = []
    retried: Count = 0
    """How often it was run again after an attempt had ended."""
    taken_back: Count = 0
    """How often its place was taken back after it had begun."""
    group: str = ""
    index: Count = 0
    """Which member of its group it is."""
    suspended: Suspension | None = None
    """It is frozen, as its node's owner is back."""
    suspended_for: Finite = 0.0
    """Seconds that this attempt was frozen before that."""
    part: Part | None = None
    """What came of its part in a gang of which others still have theirs."""
    used: Used | None = None
    """What its last attempt used, as far as its node told."""
    unused: str = ""
    """What it holds and does not use, and what would have been enough, as its owner was told."""
    after: tuple[Condition, ...] = ()
    """What is still to happen before it is let into the queue; of a member its group has it."""
    begin: Finite = 0.0
    """When it may begin (grid time); of a member its group has it."""
    kept: Kept | None = None
    """What is kept for it while it waits; then it does not wait in the queue."""
    plans: Count = 0
    taken_by: str = ""
    """For how many plans others were to give way to it; and the job that it gave way to last."""
    begun: bool = False
    """It has run at some time."""
    walls: str = ""
    """The walls behind which its last attempt ran."""

    @property
    def has_begun(self) -> bool:
        """Whether it has ever started to run."""
        return self.begun or self.started > 0

    def view(self, reason: Reason | None) -> JobView:
        """What clients see of it, with this reason for waiting. Also of jobs that are read from the store."""
        return JobView(
            id=self.id,
            user=self.user,
            state=self.state,
            spec=self.spec,
            request=self.request,
            submitted=self.submitted,
            attempt=self.tries,
            allocation=self.allocation,
            node=self.node,
            grant=self.grant,
            started=self.started,
            ended=self.ended,
            reason=reason,
            outcome=self.outcome,
            story=tuple(self.story),
            retried=self.retried,
            taken_back=self.taken_back,
            group=self.group,
            index=self.index,
            suspended=self.suspended,
            suspended_for=self.suspended_for,
            used=self.used,
            unused=self.unused,
            after=dependencies(self.after),
            begin=self.begin,
            walls=self.walls,
        )


@dataclass(slots=True)
class Node:
    """A node as the ledger knows it: its facts, its link, its newest offer and sample, who holds what there."""

    facts: NodeFacts
    state: NodeState = NodeState.DISCONNECTED
    session: str = ""
    heard: float = 0.0
    offer: Offer | None = None
    offer_until: float = 0.0
    sample: Sample | None = None
    allocations: dict[str, Allocation] = field(default_factory=dict)
    declined: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Device ("" for the whole node) to (until, seconds): what an agent answered stale for is left alone so long."""
    closed: frozenset[str] = frozenset()
    """Those of them that are left alone now."""
    room: Room | None = None
    """What is left of the offer; None without one."""
    counting: dict[str, None] = field(default_factory=dict)
    """The allocations that the offer has taken off already."""
    strays: dict[str, Grant] = field(default_factory=dict)
    """What was given up here after a long silence and may still run there, or start: held until the agent says not."""
    synced: bool = False
    """Whether the agent has told its whole inventory on this session."""
    orders: NodeOrders = NO_ORDERS
    """What the operator ordered for it, and whether it is set aside. It outlives agents and coordinators."""
    bundles: dict[str, None] = field(default_factory=dict)
    """What was shipped to it last, the newest last: it may have those files still."""
    failed: list[str] = field(default_factory=list)
    """What failed to start here since something did: see `quarantine.what`."""
    kept: dict[str, Grant] = field(default_factory=dict)
    """What is kept for jobs that wait for just that, by their ids."""
    ray: OnRay | None = None
    """What Ray has there; None: nothing, or nobody asked."""
    ray_said: str = ""
    """Why it refused something there last."""

    @property
    def usable(self) -> bool:
        """Whether it can be given work at all now: up, with its inventory told and an offer that has not expired (the
        room is taken away when it does), and neither drained nor set aside."""
        there = self.state is NodeState.UP and self.synced and self.room is not None
        return there and "" not in self.closed and self.orders.open


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and with which cores and GPUs; `confidence` is the weighted mean of the scores, 0 to 1."""

    node: str
    grant: Grant
    confidence: float
    scores: dict[str, float]


class Refusal(msgspec.Struct, frozen=True):
    """No node has room now. `offering` is how many nodes were in question; `kept_for`: the job for which a node is kept
    that has room."""

    offering: int
    kept_for: str = ""


# --- events: what happened ----------------------------------------------------------------------------------------
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


# --- commands: what somebody else has to do -----------------------------------------------------------------------


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
