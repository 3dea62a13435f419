"""The records of the ledger (jobs, groups, allocations, nodes) and the tables of their state transitions. Data only."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

import msgspec

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.trends.stay import IdleForecast
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

# Legal transitions. A job without an allocation is WAITING or ENDED; else it has the state of its allocation.
# So a job whose allocation ENDED without ever having started (the agent answered stale) is WAITING again.
MOVES: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.STARTING, State.ENDED}),
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.LOST, State.ENDED}),
    State.RUNNING: frozenset({State.STOPPING, State.LOST, State.ENDED}),
    State.STOPPING: frozenset({State.LOST, State.ENDED}),
    State.LOST: frozenset({State.RUNNING, State.STOPPING, State.ENDED}),
    State.ENDED: frozenset(),
}


# A node is silent for longer and longer, where a late check may skip a state; or it is back. LOST is only left for UP.
NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.UP: frozenset({NodeState.SUSPECT, NodeState.DISCONNECTED, NodeState.LOST}),
    NodeState.SUSPECT: frozenset({NodeState.UP, NodeState.DISCONNECTED, NodeState.LOST}),
    NodeState.DISCONNECTED: frozenset({NodeState.UP, NodeState.LOST}),
    NodeState.LOST: frozenset({NodeState.UP}),
}


class End(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a job or group ended, for those that depend on it: whether all of it exited with 0, whether all of it ever
    `started`, and a text. `root`: the original failure, if it never ran because a dependency had failed."""

    ok: bool
    started: bool
    text: str = ""
    root: str = ""


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dependency on another job or group. `name` is the other's name, `end` how it ended if it had ended already."""

    on: str
    kind: After
    name: str = ""
    end: End | None = None


def dependencies(after: tuple[Condition, ...]) -> tuple[Dependency, ...]:
    """The unmet dependencies of a job or group, as clients see them."""
    return tuple(Dependency(one.on, one.kind) for one in after) if after else ()


class Group(msgspec.Struct, kw_only=True, gc=False):
    """Many jobs of one submission. Its members are jobs that have its id as their `group`; the counts are of members
    that did not exit with 0."""

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
    """How many of these never started."""
    ended: Finite = 0.0
    """When the last member ended; 0: not yet."""
    after: tuple[Condition, ...] = ()
    begin: Finite = 0.0


class Earmark(msgspec.Struct, frozen=True, gc=False):
    """Resources of one node earmarked for a waiting job, `until` a time. `receipt`: the preemption that frees them;
    without one, they are what the job itself gave up in a preemption that was called off. The first member of a gang
    has this for all of them: `more` are the places of the others, by rank."""

    node: str
    grant: Grant
    until: float
    receipt: Receipt | None = None
    ends: float = 0.0
    """When the last of the victims has ended at the latest."""
    more: tuple[Place, ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """All earmarked places; of a gang, by rank."""
        return (Place(self.node, self.grant), *self.more)


class EndKind(StrEnum):
    """What the end of one member means for its gang."""

    DONE = "done"
    """It exited with 0: the others run on."""
    NEVER_BEGAN = "never-began"
    """Its node refused the launch: the gang is requeued."""
    EVICTED = "evicted"
    """It was preempted, recalled or drained: the gang is requeued."""
    TO_RETRY = "to-retry"
    """It failed or was lost in a way that its retry policy covers: the gang is retried."""
    FAILED = "failed"
    """It failed or was cancelled: the gang ends."""
    ENDED = "ended"
    """It was stopped because another member had ended."""
    UNSURE = "unsure"
    """It may still run on a lost node: the gang ends, since no second attempt may run beside it."""


class MemberEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member of a gang that ended `at` this time. `outcome`: None if it never began. `away`: another member's node
    was unreachable then, which may have caused this end."""

    at: float
    kind: EndKind
    outcome: Outcome | None = None
    away: bool = False


class RayPlace(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The reservation for an allocation in Ray, requested or `granted`, and the Ray node it is on; empty: Ray has no
    node there any more."""

    node: str
    resources: Resources
    granted: bool = False


class Allocation(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
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
    """The stop order, once sent; sent again to an agent that reconnects."""
    lease: Finite = 0.0
    """Seconds without renewal after which its node ends it; 0: never."""
    outcome: Outcome | None = None
    """How it ended, if the job was requeued after it; else the job has it."""
    boot: str = ""
    instance: str = ""
    """Boot id of the node and instance of its agent when it was granted: another one cannot know of it."""
    gang: Gang | None = None
    """What the member of a gang gets in its environment."""
    stopped: Finite = 0.0
    """When the stop order was sent."""
    ray: RayPlace | None = None
    """Its reservation in Ray; None: it needs none."""
    walls: str = ""
    """The walls behind which it runs or ran, as its node reported."""
    predecessor: str = ""
    """It is the successor of this allocation on the same node, and holds nothing until nothing of that one is alive."""
    hold: bool = False
    """It is a hold: nothing runs in it, and its node is not told of it."""
    within: str = ""
    """It is inside of this allocation, a hold, and holds nothing by itself until that has ended."""
    handed_over: bool = False
    """Its successor has started, so that nothing of it is alive, and it holds nothing; its end was not told yet."""

    @property
    def awaits_ray(self) -> bool:
        """Whether its reservation in Ray is pending, so that nothing was sent to its node yet."""
        return self.ray is not None and not self.ray.granted


# --- jobs: each is in one phase, which has the data of that phase alone -----------------------------------------------


class Attempt(msgspec.Struct, gc=False, omit_defaults=True):
    """An attempt: its node, when it `started` (0: it did not), and the seconds of its completed suspensions. A boost
    counts as started once Ray has shown it. `grant`: None if only its node knows it. `awaited`: its story mentions that
    it has waited for its reader."""

    node: str
    grant: Grant | None
    started: Finite = 0.0
    suspended_for: Finite = 0.0
    awaited: bool = False


_NOWHERE = Attempt("", None)


class Waiting(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """The common data of the phases without an allocation. `reason`: why the job waits, as published last."""

    state: ClassVar[State] = State.WAITING
    reason: Reason | None = None


class Queued(Waiting, tag="queued"):
    """The job waits in the queue, for any node."""

    attempt: ClassVar[None] = None


class HeldBack(Waiting, tag="held-back"):
    """The job waits outside of the queue: for the conditions in `after` and its begin time, for the concurrency limit
    of its array, or for the first member of its gang."""

    attempt: ClassVar[None] = None
    after: tuple[Condition, ...] = ()


class Earmarked(Waiting, tag="earmarked"):
    """The job waits outside of the queue, for the resources that are earmarked for it."""

    attempt: ClassVar[None] = None
    earmark: Earmark


class AwaitsHold(Waiting, tag="awaits-hold"):
    """The job waits outside of the queue, for room in the hold that it names."""

    attempt: ClassVar[None] = None


class MemberEnded(Waiting, tag="member-ended"):
    """A member of a gang that has ended, while others have not."""

    end: MemberEnd
    attempt: Attempt


class Active(msgspec.Struct, kw_only=True, gc=False, tag="active", omit_defaults=True):
    """The job has an allocation, whose state is the job's. `suspended`: it is frozen because the node's owner is
    active; `awaits_reader`: because the reader of its output is far behind."""

    state: State
    attempt: Attempt
    suspended: Suspension | None = None
    awaits_reader: Suspension | None = None
    predecessor: str = ""
    """It waits on its node for the end of this allocation, whose room it takes over; empty: it has its own."""
    advised: Count = 0
    """Memory (bytes) that would have been enough for runs like it, where it runs out of what it has; 0: not known."""

    @property
    def frozen(self) -> bool:
        """Whether it is frozen for any reason."""
        return self.suspended is not None or self.awaits_reader is not None


class Ended(msgspec.Struct, kw_only=True, gc=False, tag="ended", omit_defaults=True):
    """The job ended at the time `at`. `attempt`: the last one; None: it had none. `after`: its unmet conditions."""

    state: ClassVar[State] = State.ENDED
    outcome: Outcome
    at: Finite
    attempt: Attempt | None = None
    after: tuple[Condition, ...] = ()


Phase = Queued | HeldBack | Earmarked | AwaitsHold | MemberEnded | Active | Ended
PHASES: dict[type, frozenset[type]] = {
    # Of a gang all others become active with the first.
    HeldBack: frozenset({HeldBack, Queued, AwaitsHold, Active, Ended}),
    # One of an array is held back again after a restart.
    Queued: frozenset({Queued, HeldBack, Earmarked, AwaitsHold, Active, Ended}),
    Earmarked: frozenset({Queued, Active, Ended}),
    AwaitsHold: frozenset({HeldBack, Active, Ended}),
    Active: frozenset({Queued, AwaitsHold, MemberEnded, Ended}),
    MemberEnded: frozenset({MemberEnded, Queued, HeldBack, Ended}),
    Ended: frozenset(),
}
"""Legal transitions of phases; only `GridState.become` makes one."""


class Job(msgspec.Struct, kw_only=True, gc=False, omit_defaults=True):
    """A user's command, from submit to outcome. `tries` counts allocations made; the last one is `allocation`."""

    id: str
    key: str
    user: str
    spec: JobSpec
    request: Request
    submitted: Finite
    begin: Finite = 0.0
    """When it may begin (grid time); a member has its group's."""
    group: str = ""
    index: Count = 0
    """Its index in its group."""
    phase: Phase = msgspec.field(default_factory=Queued)
    story: list[Step] = []
    tries: Count = 0
    allocation: str = ""
    begun: bool = False
    """It has run at some time."""
    retried: Count = 0
    """Retries used."""
    evicted: Count = 0
    """How often it was preempted, recalled or drained while it ran."""
    plans: Count = 0
    preempted_by: str = ""
    """Number of preemptions in its favour; and the job that preempted it last."""
    used: Used | None = None
    """Usage of its last attempt, as its node reported."""
    unused: str = ""
    """The warning about resources that it holds and does not use."""
    walls: str = ""
    """The walls behind which its last attempt ran."""
    by_operator: bool = False
    """It was submitted by an operator, for whom the default rights do not hold."""
    amended: bool = False
    """Its spec or request is no longer as submitted."""
    planned: Finite = 0.0
    """Run time (s) that nine in ten runs like it stay within, as predicted while it waited; 0: not known."""
    released: Finite = 0.0
    """When it was released to the queue first, if it was held back before; else 0."""

    @property
    def state(self) -> State:
        """WAITING, ENDED, or the state of its allocation."""
        return self.phase.state

    @property
    def waits_since(self) -> float:
        """Since when it waits for capacity: its submission, its begin time or its release."""
        return max(self.submitted, self.begin, self.released)

    @property
    def active(self) -> Active:
        """The phase of a job that has an allocation."""
        phase = self.phase
        assert type(phase) is Active, f"{self.id} is {phase.state.value} and holds nothing"
        return phase

    @property
    def node(self) -> str:
        """Node of its attempt; empty: none."""
        attempt = self.phase.attempt
        return attempt.node if attempt is not None else ""

    @property
    def grant(self) -> Grant | None:
        """Grant of its attempt."""
        attempt = self.phase.attempt
        return attempt.grant if attempt is not None else None

    @property
    def started(self) -> float:
        """When its attempt started; 0: it did not."""
        attempt = self.phase.attempt
        return attempt.started if attempt is not None else 0.0

    @property
    def reason(self) -> Reason | None:
        """Why it waits, as published last; None: it does not wait, or nothing was published yet."""
        phase = self.phase
        return phase.reason if isinstance(phase, Waiting) else None

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome; None: it has not ended."""
        phase = self.phase
        return phase.outcome if type(phase) is Ended else None

    @property
    def ended(self) -> float:
        """When it ended; 0: it has not."""
        phase = self.phase
        return phase.at if isinstance(phase, Ended) else 0.0

    @property
    def after(self) -> tuple[Condition, ...]:
        """Its conditions that are not met, or were not when it ended."""
        phase = self.phase
        return phase.after if type(phase) is HeldBack or type(phase) is Ended else ()

    @property
    def has_begun(self) -> bool:
        """Whether it has ever started to run."""
        return self.begun or self.started > 0

    def view(self, reason: Reason | None) -> JobView:
        """The view for clients, with this reason for waiting. Also for jobs that are read from the store."""
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
            evicted=self.evicted,
            group=self.group,
            index=self.index,
            suspended=phase.suspended if type(phase) is Active else None,
            suspended_for=attempt.suspended_for,
            awaits_reader=phase.awaits_reader if type(phase) is Active else None,
            used=self.used,
            unused=self.unused,
            after=dependencies(self.after),
            begin=self.begin,
            walls=self.walls,
            next_after=phase.predecessor.rpartition(".")[0] if type(phase) is Active else "",
        )


def time_limit(job: Job, allocation: Allocation) -> float:
    """The time limit of an attempt on its node, in seconds from its start; 0: none. That of a boost counts from when it
    is lent, which is not known before."""
    limit, boost = job.spec.time_limit, job.spec.boost
    if boost is None or not limit:
        return limit
    return limit + (job.started - allocation.started if job.begun else boost.join_within)


def is_over(boost: Job | JobView, now: float) -> bool:
    """Whether the time is over for which a boost was lent. Its node takes it back then, and tells its end later."""
    limit = boost.spec.time_limit
    return boost.state is State.RUNNING and limit > 0 and now >= boost.started + limit


class OnRay(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The Ray node on a node of the grid: its id, its total resources, and what of them others than the grid's jobs use
    or have reserved."""

    id: str
    total: Resources = Resources()
    others: Resources = Resources()


@dataclass(slots=True)
class Node:
    """A node: its facts, its connection, its newest offer and sample, and its allocations."""

    facts: NodeFacts
    state: NodeState = NodeState.DISCONNECTED
    session: str = ""
    last_seen: float = 0.0
    offer: Offer | None = None
    offer_until: float = 0.0
    sample: Sample | None = None
    allocations: dict[str, Allocation] = field(default_factory=dict)
    not_holding: dict[str, Allocation] = field(default_factory=dict)
    """Its allocations that hold nothing: successors, and those that a successor has taken over from."""
    inside: dict[str, Allocation] = field(default_factory=dict)
    """Its allocations inside of holds, which are in `allocations`."""
    declined: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Back-off of refused devices ("" is the whole node): device to (until, seconds)."""
    closed: frozenset[str] = frozenset()
    """Devices that are in back-off now."""
    capacity: Capacity | None = None
    """What is left of the offer; None without one."""
    counting: dict[str, None] = field(default_factory=dict)
    """The allocations that the offer has already taken off."""
    orphans: dict[str, Grant] = field(default_factory=dict)
    """Grants of allocations that were ended here when the node was lost, and may still run there."""
    synced: bool = False
    """Whether the agent has sent its inventory in this session."""
    orders: NodeOrders = NO_ORDERS
    """The operator's orders, and whether it is set aside. They outlive agents and coordinators."""
    bundles: dict[str, None] = field(default_factory=dict)
    """Bundles shipped to it lately, the newest last: it may still have those files."""
    failed: list[str] = field(default_factory=list)
    """Commands that failed to start here since the last one that started: see `quarantine.what`."""
    earmarks: dict[str, Grant] = field(default_factory=dict)
    """Earmarked grants, by the ids of the jobs that wait for them."""
    ray: OnRay | None = None
    """The Ray node there; None: none, or not known yet."""
    ray_refusal: str = ""
    """Why Ray refused a reservation there last."""
    unjoined: dict[str, str] = field(default_factory=dict)
    """Why boosts failed there last before they had joined, by the address of their Ray cluster."""
    forecast: IdleForecast | None = None
    """How long it is expected to stay idle, or would if its owner left now; None: nothing is known."""
    thawed: int = 0
    """How often a job here went on after its owner had been back; of old returns half are forgotten now and then."""
    recalled: int = 0
    """How often one was recalled instead."""

    @property
    def known(self) -> list[Allocation]:
        """All allocations of this node; those that hold resources come first."""
        return [*self.allocations.values(), *self.not_holding.values(), *self.inside.values()]

    @property
    def launched(self) -> list[Allocation]:
        """All allocations that the agent has been told of."""
        return [one for one in self.known if not one.hold] if self.allocations else self.known

    def at_work(self, allocation: str) -> Allocation | None:
        """Return the allocation with this id if it runs there, or may; None: there is none."""
        found = self.allocations.get(allocation) or self.inside.get(allocation)
        return found if found is not None and not found.hold else None

    @property
    def usable(self) -> bool:
        """Whether the node can get work now: up, synced, with an offer that has not expired (its capacity goes with
        it), not in back-off, and neither drained nor set aside."""
        there = self.state is NodeState.UP and self.synced and self.capacity is not None
        return there and "" not in self.closed and self.orders.open


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The node of a request, with the cores and GPUs granted there; `confidence` is the weighted mean of the scores, 0
    to 1."""

    node: str
    grant: Grant
    confidence: float
    scores: dict[str, float]


class Refusal(msgspec.Struct, frozen=True):
    """No node has room now. `offering`: the number of nodes that were considered; `reserved`: nodes that have room but
    are reserved, each with the job of its reservation; `ending`: other nodes have room, but they are machines that end
    before the job is over, and another machine may come."""

    offering: int
    reserved: tuple[tuple[str, str], ...] = ()
    ending: bool = False
