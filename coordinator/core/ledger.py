"""The ledger: all nodes, allocations and jobs that live, and the one door to change them.

Events go in with the time, commands come out for the shell to perform. Nothing here waits, reads a clock, draws a
number or talks to anybody; the same events give the same commands. Who deals with
each kind of event is in `events.py`; whatever they do to a state, they do through `move`.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping

from distributed_grid.coordinator.core import (
    accounts,
    attempts,
    by_ray,
    checks,
    deadlines,
    dependencies,
    events,
    following,
    gangs,
    granting,
    groups,
    homes,
    keys,
    preempting,
    reasons,
    rebuilding,
    restoring,
    serving,
    views,
)
from distributed_grid.coordinator.core.catalogue import Catalogue
from distributed_grid.coordinator.core.constraints import marked
from distributed_grid.coordinator.core.fairness import Shares
from distributed_grid.coordinator.core.feasible import Asked
from distributed_grid.coordinator.core.matching import Placement, usable
from distributed_grid.coordinator.core.model import (
    MOVES,
    Allocation,
    Command,
    Event,
    Group,
    Heard,
    Job,
    Node,
    Over,
    Publish,
    RecordAllocation,
    RecordJob,
    Send,
)
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.queue import Queue, key_of
from distributed_grid.coordinator.core.reserving import Kept
from distributed_grid.coordinator.core.unused import Idle
from distributed_grid.protocol.gangs import Gang
from distributed_grid.protocol.jobs import JobView, Outcome, State, Step
from distributed_grid.protocol.messages import Launch, Renewed
from distributed_grid.protocol.nodes import AllocationView, NodeFacts, NodeState, NodeView, OfferView
from distributed_grid.protocol.orders import NodeOrders
from distributed_grid.protocol.resources import Grant

STORY_MOST = 100
"""Lines of a job's story that are kept; of a longer one, the middle goes."""


class _Everything:
    def __contains__(self, job: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()


class Ledger:
    """The only owner of all states. `jobs` and `allocations` hold what lives; what has ended is on disk."""

    def __init__(self, epoch: int = 0, watched: Container[str] = EVERYTHING, policy: Policy = DEFAULT) -> None:
        self.epoch = epoch
        self.policy = policy
        self.watched = watched
        """Jobs whose changes are published; it decides about nothing else."""
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.allocations: dict[str, Allocation] = {}
        self.placements: dict[str, Placement] = {}
        """How the live allocations were decided, as far as it was since the start."""
        self.keys: dict[tuple[str, str], str] = {}
        self.past_keys: dict[tuple[str, str], str] = {}
        self.groups: dict[str, groups.Members] = {}
        """Those of which a member lives."""
        self.endings: deque[Job] = deque()
        """Jobs that have just ended, until what follows from that is done."""
        self.held = dependencies.Held()
        self.queue = Queue()
        self.shares = Shares()
        self.kept = Kept()
        """Nodes that are kept for those who would starve otherwise."""
        self.index = Catalogue(self.nodes, self.jobs)
        self.meetings: dict[tuple[str, int], str] = {}
        """The addresses and ports where gangs meet that hold their places."""
        self.deadlines = deadlines.Deadlines()
        self.turns: dict[str, int] = {}
        """The number of each live job in the order of submission."""
        self.next_turn = 1
        self.ever: dict[Asked, int] = {}
        """How many nodes could ever meet a request, as far as it was asked since the nodes last changed."""
        self.grown: dict[str, None] = {}
        """Nodes that have more room than at the last pass."""
        self.fresh: dict[str, None] = {}
        """Jobs that began to wait since the last pass."""
        self.failing: dict[str, str] = {}
        """What failed to start lately, and on which node: see `failing.py`."""
        self.idle: dict[str, Idle] = {}
        """Of the allocations that were told of, what of them is not used: see `unused.py`."""
        self.snapshot = 0
        """How often this ledger has settled: an explanation names the state that it was made of."""
        self.preempting = preempting.Book()
        self.holding = False
        """Nothing new is started until the disk takes what there is."""
        self.loss: tuple[str, ...] = ()
        """What shows that the store has lost commits: nothing is started until an operator has chosen."""
        self.ray_trouble = "it was not asked yet"
        """Why it is not known what Ray has; empty: it is."""
        self.unknown_before = 0.0
        """What began on a node before this may rightly be unknown here: a backup was restored then."""
        self.out: list[Command] = []

    # --- the doors --------------------------------------------------------------------------------------------------

    def restore(
        self,
        jobs: Iterable[Job],
        allocations: Iterable[Allocation],
        nodes: Iterable[NodeFacts],
        now: float,
        unknown_before: float = 0.0,
        ordered: Mapping[str, NodeOrders] = {},
        many: Iterable[Group] = (),
        past: Mapping[str, tuple[float, float]] = {},
        loss: tuple[str, ...] = (),
    ) -> list[Command]:
        """Take up what was on disk."""
        self.now, self.unknown_before, self.loss = now, unknown_before, loss
        restoring.take_up(self, jobs, allocations, nodes, ordered, many, past)
        return self._take_out()

    def handle(self, event: Event, now: float) -> list[Command]:
        """One thing happened."""
        self.now = now
        if type(event) is Heard:  # by far the most frequent, and nearly always without consequence
            if (node := self.nodes.get(event.node)) is None:
                return []
            node.heard, node.sample = now, event.sample
            if event.at and not node.strays:  # what was given up there is to end
                self.out.append(Send(event.node, Renewed(event.at)))
            if node.state is NodeState.UP:
                return self._take_out() if event.at else []
        events.ON[type(event)](self, event)
        following.follow(self)
        return self._take_out()

    def settle(self, now: float) -> list[Command]:
        """Let expire what is due, then give room to those who wait: once after a batch of events."""
        self.now = now
        self.snapshot += 1
        stirred = False
        for kind, name in self.deadlines.due(now):
            if kind == "reasons":
                stirred = True  # said after the matching, which may make them untrue
            else:
                events.DUE[kind](self, name)
        following.follow(self)
        preempting.serve(self)
        while (self.fresh or self.grown) and not self.halted:  # again where a node is not kept any more
            serving.match(self)
            following.follow(self)
        preempting.look(self)
        if stirred:
            reasons.refresh(self)
        return self._take_out()

    def next_deadline(self) -> float | None:
        """When to settle next even if nothing happens; None: never."""
        return self.deadlines.next()

    def check(self) -> None:
        """Raise AssertionError, in words, where what is held contradicts itself."""
        checks.check(self)

    @property
    def halted(self) -> bool:
        """Whether nothing new is started for now."""
        return self.holding or bool(self.loss)

    # --- what clients see -------------------------------------------------------------------------------------------

    def view(self, job: str) -> JobView | None:
        """A live job as it stands; None: not known here (it may have ended)."""
        found = self.jobs.get(job)
        return None if found is None else views.job_view(found, reasons.now_for(self, found))

    def shared(self, now: float, node: str = "") -> tuple[tuple[OfferView, ...], tuple[AllocationView, ...]]:
        """What is offered and what is lent, of one node or of all."""
        return views.offers(self, now, node), views.allocations(self, node)

    def node_views(self, now: float) -> tuple[NodeView, ...]:
        """All known nodes."""
        return views.nodes(self, now)

    # --- the one mutator of states ----------------------------------------------------------------------------------

    def move(self, thing: Allocation | Job, state: State, text: str = "") -> None:
        """Change the state of an allocation and with it that of its job, or of a job that has none."""
        if isinstance(thing, Allocation):
            assert state in MOVES[thing.state], f"{thing.id} cannot go from {thing.state.value} to {state.value}"
            thing.state = state
            job = self.jobs[thing.job]
            assert job.allocation == thing.id, f"{thing.id} is not the allocation of {job.id}, {job.allocation} is"
            if state is State.ENDED:
                thing.ended = self.now
                self._release(thing)
                return  # what becomes of the job is said next, by `finish` or `requeue`
        else:
            job = thing
            allowed = state in MOVES[job.state] or (state is State.WAITING and job.allocation not in self.allocations)
            assert allowed, f"{job.id} cannot go from {job.state.value} to {state.value}"
        if job.group:
            self.groups[job.group].moved(job.state, state)
        job.state = state
        if state is State.RUNNING:
            dependencies.started(self, job)
        self.tell(job, text)

    def tell(self, job: Job, text: str) -> None:
        """Add a line to a job's story."""
        if len(job.story) >= STORY_MOST:
            del job.story[STORY_MOST // 5]
        job.story.append(Step(self.now, job.state, text))

    def changed(self, job: Job, allocation: Allocation | None = None, soon: bool = False) -> None:
        """Make a job and its allocation durable, and tell who watches."""
        if allocation is not None:
            self.out.append(RecordAllocation(allocation, soon))
        self.out.append(RecordJob(job, soon=soon))
        self.publish(job)

    def publish(self, job: Job) -> None:
        """Tell who watches. A view costs as much as the change itself, and most jobs are watched by nobody."""
        if job.id in self.watched:
            self.out.append(Publish(views.job_view(job, job.reason)))
        elif job.outcome is not None:
            self.out.append(Over(job.id, job.outcome.cause))

    # --- what the events are made of ---------------------------------------------------------------------------------

    def enter(self, job: Job) -> None:
        """Put a job into the ledger, with the next turn."""
        self.jobs[job.id] = job
        job.request = by_ray.marked(self.policy, marked(self.policy, job.request, job.user), job.spec.boost is not None)
        self.turns[job.id] = self.next_turn
        self.next_turn += 1
        homes.entered(self, job)
        if job.group:
            groups.enter(self, job)
        else:
            self.keys[(job.user, job.key)] = job.id
            if job.state is State.WAITING and not job.tries and (job.after or job.begin > self.now):
                dependencies.hold(self, job)
            elif job.state is State.WAITING:
                self.wait(job)

    def start(self, job: Job, placement: Placement, gang: Gang | None = None) -> None:
        """Grant a waiting job its place and have it launched."""
        granting.start(self, job, placement, gang)

    def launch(self, job: Job, allocation: Allocation) -> Launch:
        """The message that starts an allocation, the same however often it is sent."""
        return granting.launch(self, job, allocation)

    def over(self, job: Job, outcome: Outcome, allocation: Allocation, text: str, again: bool = True) -> None:
        """An attempt has ended; `again`: nothing of it is alive for sure, so it may be run again."""
        attempts.over(self, job, outcome, allocation, text, again)

    def finish(self, job: Job, outcome: Outcome, allocation: Allocation | None = None, text: str = "") -> None:
        """The job is over."""
        if job.request.gang:
            gangs.waiting_over(self, job, outcome, text)
        else:
            self.conclude(job, outcome, allocation, text)

    def conclude(self, job: Job, outcome: Outcome, allocation: Allocation | None = None, text: str = "") -> None:
        """The job is over, and so is its gang if it has one."""
        active = not dependencies.is_held(self, job)
        if allocation is not None:
            self.move(allocation, State.ENDED)
        elif active:
            preempting.ended(self, job)
        job.outcome, job.ended, job.reason, job.suspended = outcome, self.now, None, None
        self.move(job, State.ENDED, text or outcome.text or outcome.cause.value)
        del self.jobs[job.id], self.turns[job.id]
        homes.left(self, job)
        if job.group:
            groups.gone(self, job, active)
        else:
            keys.put_by(self, job.user, job.key)
        self.endings.append(job)
        self.changed(job, allocation)

    def requeue(self, job: Job, allocation: Allocation, text: str) -> None:
        """The allocation is over and the job is not: it waits again, at its old place in the queue."""
        self.move(allocation, State.ENDED)
        job.node, job.grant, job.started = "", None, 0.0
        job.suspended, job.suspended_for = None, 0.0
        self.move(job, State.WAITING, text)
        self.wait(job)
        preempting.gave(self, job, allocation)
        self.changed(job, allocation)

    def wait(self, job: Job) -> None:
        """Put a job in the queue, or have it wait for what is kept for it."""
        if job.kept is not None:
            preempting.take_up(self, job, job.kept)
            return
        self.queue.add(job.id, key_of(job), self.turns[job.id])
        self.shares.stale[job.user] = None
        self.fresh[job.id] = None
        homes.waits(self, job)
        preempting.waits(self, job)

    def _release(self, allocation: Allocation) -> None:
        """What an ended allocation held is no more held. Whether the room grows by it depends on the offer: one that
        has taken it off already says so itself when it is back."""
        del self.allocations[allocation.id]
        gangs.released(self, allocation)
        by_ray.over(self, allocation)
        self.placements.pop(allocation.id, None)
        self.idle.pop(allocation.id, None)
        accounts.released(self, allocation)
        node = self.nodes[allocation.node]
        del node.allocations[allocation.id]
        homes.released(self, allocation)
        self.give_back(node, allocation.id, allocation.grant)

    def give_back(self, node: Node, name: str, grant: Grant) -> None:
        """What this allocation held on the node is nobody's any more."""
        if name in node.counting:
            del node.counting[name]
        elif node.room is not None:
            node.room.give(grant)
            self.refresh(node)

    def refresh(self, node: Node, grown: bool = True) -> None:
        """The node's room or its fitness for work has changed."""
        name = node.facts.name
        if usable(node):
            assert node.room is not None
            self.index.put(name, node.facts.priority, node.room)
            if grown:
                self.grown[name] = None
        else:
            self.index.drop(name)
            self.grown.pop(name, None)
        if self.queue.lines:
            self.deadlines.arm("reasons", "", self.now + reasons.EVERY)

    def rebuild(self, node: Node) -> None:
        """Work out the node's room anew from its offer and what is held there."""
        rebuilding.rebuild(self, node)

    def _take_out(self) -> list[Command]:
        out, self.out = self.out, []
        return out
