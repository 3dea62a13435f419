"""All data of the grid, without the operations that keep it consistent (state.py): nodes, live jobs and allocations,
queue, shares, index and deadlines, and figures derived from them."""

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import msgspec

from distributed_grid.coordinator.core.commands import (
    Command,
)
from distributed_grid.coordinator.core.lending.loans import Loans
from distributed_grid.coordinator.core.model import (
    Allocation,
    Group,
    Job,
    Node,
    Placement,
)
from distributed_grid.coordinator.core.placement.catalogue import Catalogue
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.queue.chains import Chains
from distributed_grid.coordinator.core.queue.fairness import Shares
from distributed_grid.coordinator.core.queue.queue import Members, Queue, Reservations, Waiters
from distributed_grid.coordinator.core.queue.quotas import Quotas
from distributed_grid.coordinator.core.rebalancing.state import BalancingState
from distributed_grid.coordinator.core.scaling.state import ScalingState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Resources

HOUR = 3600.0
"""Lost work counts for so many seconds."""
Asked = tuple[Resources, Constraints | None, str | None, bool]
"""The parts of a request that decide whether a node could ever meet it."""


class _Everything:
    def __contains__(self, job: object) -> bool:
        return True


EVERYTHING: Container[str] = _Everything()


# --- parts of the state -----------------------------------------------------------------------------------------------


class Deadlines:
    """Timers: at most one for each pair of kind and name, the earliest that was armed."""

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, str, str]] = []
        self.armed: dict[tuple[str, str], float] = {}
        self.number = 0

    def arm(self, kind: str, name: str, at: float) -> None:
        """Fire at this time or earlier; the handler checks whether it is time."""
        armed = self.armed.get((kind, name))
        if armed is None or at < armed:
            self.armed[(kind, name)] = at
            self.number += 1
            heappush(self.heap, (at, self.number, kind, name))

    def disarm(self, kind: str, name: str) -> None:
        """Cancel a timer."""
        self.armed.pop((kind, name), None)

    def some_due(self, now: float) -> bool:
        """Whether a timer may have expired."""
        return bool(self.heap) and self.heap[0][0] <= now

    def due(self, now: float) -> Iterator[tuple[str, str]]:
        """Expired timers, the earliest first, including those that are armed meanwhile."""
        while self.heap and self.heap[0][0] <= now:
            at, _, kind, name = heappop(self.heap)
            if self.armed.get((kind, name)) == at:
                del self.armed[(kind, name)]
                yield kind, name

    def next(self) -> float | None:
        """Return when the next timer fires; None: no timer is set."""
        while self.heap and self.armed.get(self.heap[0][2:]) != self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][0] if self.heap else None


@dataclass(slots=True)
class Facts:
    """State changes whose consequences were not handled yet: see `ledger.handle_facts`."""

    held_back: deque[str] = field(default_factory=deque)
    """Jobs and groups that were held back."""
    started: deque[Job] = field(default_factory=deque)
    """Jobs that have started, if any condition is on a start."""
    ended: deque[Job] = field(default_factory=deque)
    groups_ended: deque[Group] = field(default_factory=deque)

    def __bool__(self) -> bool:
        return bool(self.held_back or self.started or self.ended or self.groups_ended)


class Streak(msgspec.Struct, frozen=True):
    """Consecutive samples below the threshold, `since` a time: their number, the total use (core-seconds) and the peak
    (cores)."""

    since: float
    samples: int = 0
    used: float = 0.0
    peak: float = 0.0


class Idle(msgspec.Struct, frozen=True):
    """Idle tracking of an allocation: time of the last report, the streaks of its cores and of each GPU, for which of
    them its submitter was warned, and since when it uses none of its GPUs."""

    reported: float
    streaks: dict[str, Streak]
    warned_devices: tuple[str, ...] = ()
    warned: float = 0.0


class Usual(msgspec.Struct, frozen=True, gc=False):
    """The cores' worth that an allocation did not exceed in 99 of 100 samples of ten minutes, told `at` (grid time)."""

    cores: float
    at: float


@dataclass(slots=True)
class PreemptibleCache:
    """Cache of what preemption could free on each node, valid while the node has the same allocations. Their number and
    the last one tell that, since allocations are only appended."""

    known: dict[str, tuple[int, str, int, int, int, float]] = field(default_factory=dict)
    """By node: number of allocations, the last one, the cores, memory and GPUs that may be freed, and the time of the
    newest grant among these."""

    def invalidate(self, node: str) -> None:
        """An allocation of this node was told to stop."""
        self.known.pop(node, None)


@dataclass(slots=True)
class Preemptions:
    """The state of preemption, except what is in the records of jobs."""

    urgent: dict[str, float] = field(default_factory=dict)
    """Urgent jobs in the queue, and the time of their next plan."""
    preemptors: dict[str, str] = field(default_factory=dict)
    """Preempted allocations of open plans, and the job that each was preempted for."""
    spent: list[tuple[float, float]] = field(default_factory=list)
    """Lost work of the last hour: time, core-seconds."""
    refusals: dict[Request, str] = field(default_factory=dict)
    """Why nobody is preempted for a request, as last found; for explanations only."""
    preemptible: PreemptibleCache = field(default_factory=PreemptibleCache, compare=False)

    def lose(self, lost: float, now: float) -> None:
        """Record this much lost work (core-seconds) at the time `now`."""
        self.spent = [one for one in self.spent if one[0] > now - HOUR]
        self.spent.append((now, lost))

    def remember(self, receipts: Iterable[Receipt]) -> None:
        """Restore the lost work from receipts."""
        self.spent = sorted((receipt.at, receipt.lost) for receipt in receipts)


@dataclass(slots=True)
class Inside:
    """The jobs that wait for room in one hold. `jobs`: their requests and turns; `new`: those whose reason for waiting
    is not published yet."""

    jobs: dict[str, tuple[Request, int]] = field(default_factory=dict)
    new: dict[str, None] = field(default_factory=dict)
    lines: dict[Request, list[tuple[int, str]]] = field(default_factory=dict)
    """Equal requests, which have room or none together: turns and jobs, as heaps. One that waits no more is dropped
    when it comes up."""

    def first(self, request: Request) -> tuple[int, str] | None:
        """The turn and the job that comes first with this request; None: none waits with it."""
        line = self.lines.get(request, ())
        while line:
            turn, job = line[0]
            if self.jobs.get(job) == (request, turn):
                return turn, job
            heappop(line)
        self.lines.pop(request, None)
        return None


@dataclass(slots=True)
class Holds:
    """The jobs that wait for room in holds, by hold, and the holds where that may have changed since they were last
    served."""

    waiting: dict[str, Inside] = field(default_factory=dict)
    changed: dict[str, None] = field(default_factory=dict)

    def wait(self, job: Job, turn: int) -> None:
        """Add a job that waits for room in the hold that it names."""
        hold, request = job.request.within, job.request
        inside = self.waiting.setdefault(hold, Inside())
        inside.jobs[job.id] = request, turn
        heappush(inside.lines.setdefault(request, []), (turn, job.id))
        if job.reason is None:
            inside.new[job.id] = None
        self.changed[hold] = None

    def leave(self, hold: str, job: str) -> None:
        """Remove a job that waits for room in a hold."""
        inside = self.waiting[hold]
        del inside.jobs[job]
        inside.new.pop(job, None)
        if not inside.jobs:
            del self.waiting[hold]
            self.changed.pop(hold, None)


# --- all data ---------------------------------------------------------------------------------------------------------


class GridData:
    """The data of the whole grid. `jobs` and `allocations` hold what has not ended; what has ended is on disk."""

    def __init__(self, epoch: int = 0, watched: Container[str] = EVERYTHING, policy: Policy = DEFAULT) -> None:
        self.epoch = epoch
        self.policy = policy
        self.watched = watched
        """Jobs whose changes are published."""
        self.now = 0.0
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.allocations: dict[str, Allocation] = {}
        self.placements: dict[str, Placement] = {}
        """The decisions behind live allocations that were granted since the start."""
        self.keys: dict[tuple[str, str], str] = {}
        self.past_keys: dict[tuple[str, str], str] = {}
        self.groups: dict[str, Members] = {}
        """Groups that have not ended."""
        self.dependencies = Waiters()
        self.queue = Queue(policy.sharing)
        self.shares = Shares()
        self.loans = Loans()
        self.quotas = Quotas(policy.rights)
        self.reservations = Reservations()
        """Nodes reserved against starvation."""
        self.index = Catalogue(self.nodes, self.jobs)
        self.rendezvous: dict[tuple[str, int], str] = {}
        """Rendezvous address and port of each running gang."""
        self.chains = Chains()
        self.holds = Holds()
        self.deadlines = Deadlines()
        self.turns: dict[str, int] = {}
        """The number of each live job in the order of submission."""
        self.next_turn = 1
        self.feasible_nodes: dict[Asked, int] = {}
        """Cache: how many nodes could ever meet a request; cleared when nodes change."""
        self.freed_nodes: dict[str, None] = {}
        """Nodes with capacity freed since the last pass."""
        self.fresh: dict[str, None] = {}
        """Jobs enqueued since the last pass."""
        self.failing_commands: dict[str, str] = {}
        """Commands that failed to start lately, and on which node: see `nodes/quarantine.py`."""
        self.idle: dict[str, Idle] = {}
        """Idle tracking of allocations: see `idle.py`."""
        self.usual: dict[str, Usual] = {}
        """What allocations use of their cores, as their nodes told last: see `lending/slack.py`."""
        self.kept_back: dict[str, float] = {}
        """Until when allocations lend nothing on, as they wanted their cores back."""
        self.on_slack: dict[str, dict[str, None]] = {}
        """The allocations on the slack of another one, by that one's id."""
        self.recalls: dict[str, str] = {}
        """Allocations on the slack of one that does not hold it any more, and why; to be told to end."""
        self.snapshot = 0
        """Number of times that this state was settled, by which an explanation names it."""
        self.preempting = Preemptions()
        self.balancing = BalancingState(policy.balancing)
        self.scaling = ScalingState()
        self.store_failing = False
        """Nothing new is started while the disk fails."""
        self.loss: tuple[str, ...] = ()
        """Evidence that the store has lost commits: nothing is started until an operator has chosen."""
        self.ray_trouble = "it was not asked yet"
        """Why Ray's resources are unknown; empty: they are known."""
        self.unknown_before = 0.0
        """When a backup was restored: allocations from before may be unknown here, and are not stopped."""
        self.facts = Facts()
        self.out: list[Command] = []

    @property
    def halted(self) -> bool:
        """Whether nothing new is started for now."""
        return self.store_failing or bool(self.loss)

    def take_out(self) -> list[Command]:
        """The commands since the last call, for the shell to perform."""
        out, self.out = self.out, []
        return out
