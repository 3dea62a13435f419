"""What the ledger holds: jobs, groups, allocations and nodes, and the tables of their states. Data only."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import msgspec

from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.protocol.groups import Array, Gang, GroupKind
from distributed_grid.protocol.jobs import (
    After,
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
from distributed_grid.protocol.messages import Stop
from distributed_grid.protocol.messages.operator import Place, Receipt
from distributed_grid.protocol.nodes import NO_ORDERS, NodeFacts, NodeOrders, NodeState, Offer, Sample
from distributed_grid.protocol.resources import Count, Finite, Grant, Resources

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


class RayPlace(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What Ray is to reserve for an allocation, or has (`granted`), and on which of its nodes; empty: it had
    none there any more."""

    node: str
    resources: Resources
    granted: bool = False


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


# --- jobs: each is in one phase, which has the data of that phase alone -----------------------------------------------


class Attempt(msgspec.Struct, gc=False):
    """Where an attempt runs or ran, since when (0: it did not start), and for how many seconds it was suspended before
    it was last. `grant`: None where only its node knows."""

    node: str
    grant: Grant | None
    started: Finite = 0.0
    suspended_for: Finite = 0.0


_NOWHERE = Attempt("", None)


class Waiting(msgspec.Struct, kw_only=True, gc=False):
    """What the phases of a job have in common that holds nothing. `reason`: why it waits, as it was told last."""

    state: ClassVar[State] = State.WAITING
    reason: Reason | None = None


class Queued(Waiting, tag="queued"):
    """It waits in the queue, for any place."""

    attempt: ClassVar[None] = None


class Held(Waiting, tag="held"):
    """It waits outside of the queue: until the conditions in `after` are met and its time has come, for its turn in its
    array, or for the first member of its gang."""

    attempt: ClassVar[None] = None
    after: tuple[Condition, ...] = ()


class Earmarked(Waiting, tag="earmarked"):
    """It waits outside of the queue, for what is kept for it and for nothing else."""

    attempt: ClassVar[None] = None
    kept: Kept


class GangPart(Waiting, tag="gang-part"):
    """A member of a gang whose part is over, while others still have theirs."""

    part: Part
    attempt: Attempt


class Active(msgspec.Struct, kw_only=True, gc=False, tag="active"):
    """It holds its allocation, whose state is the job's. `suspended`: it is frozen, as its node's owner is back."""

    state: State
    attempt: Attempt
    suspended: Suspension | None = None


class Ended(msgspec.Struct, kw_only=True, gc=False, tag="ended"):
    """It is over, `at` that time. `attempt`: the last one; None: it held nothing. `after`: what it still waited for."""

    state: ClassVar[State] = State.ENDED
    outcome: Outcome
    at: Finite
    attempt: Attempt | None = None
    after: tuple[Condition, ...] = ()


Phase = Queued | Held | Earmarked | GangPart | Active | Ended
PHASES: dict[type, frozenset[type]] = {
    Held: frozenset({Held, Queued, Active, Ended}),  # of a gang all others become active with the first
    Queued: frozenset({Queued, Held, Earmarked, Active, Ended}),  # held again after a restart, in its array
    Earmarked: frozenset({Queued, Active, Ended}),
    Active: frozenset({Queued, GangPart, Ended}),
    GangPart: frozenset({GangPart, Queued, Held, Ended}),
    Ended: frozenset(),
}
"""Which phase may follow which; only `GridState.become` changes one."""


class Job(msgspec.Struct, kw_only=True, gc=False):
    """A user's command, from submit to outcome. `tries` counts allocations made; the last one is `allocation`."""

    id: str
    key: str
    user: str
    spec: JobSpec
    request: Request
    submitted: Finite
    begin: Finite = 0.0
    """When it may begin (grid time); of a member its group has it."""
    group: str = ""
    index: Count = 0
    """Which member of its group it is."""
    phase: Phase = msgspec.field(default_factory=Queued)
    story: list[Step] = []
    tries: Count = 0
    allocation: str = ""
    begun: bool = False
    """It has run at some time."""
    retried: Count = 0
    """How often it was run again after an attempt had ended."""
    taken_back: Count = 0
    """How often its place was taken back after it had begun."""
    plans: Count = 0
    taken_by: str = ""
    """For how many plans others were to give way to it; and the job that it gave way to last."""
    used: Used | None = None
    """What its last attempt used, as far as its node told."""
    unused: str = ""
    """What it holds and does not use, and what would have been enough, as its owner was told."""
    walls: str = ""
    """The walls behind which its last attempt ran."""

    @property
    def state(self) -> State:
        """WAITING, ENDED, or the state of its allocation."""
        return self.phase.state

    @property
    def active(self) -> Active:
        """Its phase, of a job that holds its allocation."""
        phase = self.phase
        assert type(phase) is Active, f"{self.id} is {phase.state.value} and holds nothing"
        return phase

    @property
    def node(self) -> str:
        """Where its attempt is or was; empty: nowhere."""
        attempt = self.phase.attempt
        return attempt.node if attempt is not None else ""

    @property
    def grant(self) -> Grant | None:
        """What its attempt holds or held there."""
        attempt = self.phase.attempt
        return attempt.grant if attempt is not None else None

    @property
    def started(self) -> float:
        """When its attempt began to run; 0: it did not."""
        attempt = self.phase.attempt
        return attempt.started if attempt is not None else 0.0

    @property
    def reason(self) -> Reason | None:
        """Why it waits, as it was told last; None: it does not, or nobody was told yet."""
        phase = self.phase
        return phase.reason if isinstance(phase, Waiting) else None

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: it has not."""
        phase = self.phase
        return phase.outcome if type(phase) is Ended else None

    @property
    def ended(self) -> float:
        """When it ended; 0: it has not."""
        phase = self.phase
        return phase.at if isinstance(phase, Ended) else 0.0

    @property
    def after(self) -> tuple[Condition, ...]:
        """What it waits for to happen, or waited for when it ended."""
        phase = self.phase
        return phase.after if type(phase) is Held or type(phase) is Ended else ()

    @property
    def has_begun(self) -> bool:
        """Whether it has ever started to run."""
        return self.begun or self.started > 0

    def view(self, reason: Reason | None) -> JobView:
        """What clients see of it, with this reason for waiting. Also of jobs that are read from the store."""
        phase, attempt = self.phase, self.phase.attempt or _NOWHERE
        return JobView(
            id=self.id,
            user=self.user,
            state=phase.state,
            spec=self.spec,
            request=self.request,
            submitted=self.submitted,
            attempt=self.tries,
            allocation=self.allocation,
            node=attempt.node,
            grant=attempt.grant,
            started=attempt.started,
            ended=phase.at if type(phase) is Ended else 0.0,
            reason=reason,
            outcome=phase.outcome if type(phase) is Ended else None,
            story=tuple(self.story),
            retried=self.retried,
            taken_back=self.taken_back,
            group=self.group,
            index=self.index,
            suspended=phase.suspended if type(phase) is Active else None,
            suspended_for=attempt.suspended_for,
            used=self.used,
            unused=self.unused,
            after=dependencies(self.after),
            begin=self.begin,
            walls=self.walls,
        )


class OnRay(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What Ray has on one of our nodes: its own node of this id, what that has in all, and what of it others than the
    grid's jobs use or have reserved."""

    id: str
    total: Resources = Resources()
    others: Resources = Resources()


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
