"""The jobs that wait, in lines of equal requests of one user: if the first of a line cannot be placed, none behind it
can. So a pass over the queue costs the number of different requests, however many jobs there are.

The lines of a user in a class of priority stand together, by the turn of their first job; the users of a class stand by
their share (`fairness.py`). Nobody is moved but who has changed.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush, heapreplace

import msgspec

from distributed_grid.coordinator.core.model import Condition, End, Group, Job
from distributed_grid.protocol.jobs import After, Priority, Reason, Request, State
from distributed_grid.protocol.resources import Resources

BLOCK = 512
NOWHERE = (math.inf, 1 << 62)
"""The place of a standing without an entry in the order."""

Key = tuple[str, Request, float]
"""What makes jobs equal: the user, the request, and how long they take at the most (0: nobody knows)."""


def key_of(job: Job) -> Key:
    """What it is equal to others by."""
    limit = job.spec.time_limit
    return job.user, job.request, limit + job.spec.grace if limit else 0.0


class Line:
    """Equal jobs, by their turn. `blocked`: the first was refused, and no room has grown since. `lasts`: seconds that
    one takes at the most, with its grace; 0: nobody knows."""

    __slots__ = ("blocked", "count", "entered", "heap", "lasts", "reason", "request", "standing")

    def __init__(self, request: Request, lasts: float, standing: "Standing") -> None:
        self.request = request
        self.lasts = lasts
        self.standing = standing
        self.heap: list[tuple[int, str]] = []
        self.count = 0
        self.blocked = False
        self.entered = -1
        """The turn of its one entry in its standing that counts; below zero: it has none."""
        self.reason: Reason | None = None
        """Why the first of the line waits, as last told."""

    def __lt__(self, other: "Line") -> bool:
        """For entries with the same turn, of which one does not count any more."""
        return False


class Standing:
    """Where a user stands in a class: their lines there, and their rank among the others, the smallest first."""

    __slots__ = ("blocks", "count", "lines", "place", "priority", "rank", "user")

    def __init__(self, user: str, priority: Priority) -> None:
        self.user = user
        self.priority = priority
        self.count = 0
        self.rank = 0.0
        self.lines: list[tuple[int, Line]] = []
        """A heap. Entries are not taken out when they become untrue; `first` sees to that."""
        self.place: tuple[float, int] = NOWHERE
        """Rank and turn of its one entry in the order that counts."""
        self.blocks: dict[int, dict[int, None]] = {}
        """The turns that wait, in blocks of following turns: `Queue.ahead` counts blocks, not jobs."""

    def __lt__(self, other: "Standing") -> bool:
        """For entries with the same rank and turn, of which one does not count any more."""
        return False

    def before(self, turn: int) -> int:
        """How many of these jobs have a turn before this one."""
        mine = turn // BLOCK
        count = sum(len(block) for number, block in self.blocks.items() if number < mine)
        return count + sum(other < turn for other in self.blocks.get(mine, ()))


class Queue:
    """All jobs that wait. A job's turn is its number in the order of submission, and stays its own for life."""

    def __init__(self) -> None:
        self.lines: dict[Key, Line] = {}
        self.standings: dict[tuple[Priority, str], Standing] = {}
        self.turns: dict[str, int] = {}
        self._line_of: dict[str, Line] = {}
        self.order: dict[Priority, list[tuple[float, int, Standing]]] = {one: [] for one in reversed(Priority)}
        """By class, the highest first: a heap of the standings in it. Entries are not taken out when they become
        untrue; `first` sees to that."""
        self.lowest = Resources()
        self.departed = 0

    def __len__(self) -> int:
        return len(self.turns)

    def __contains__(self, job: str) -> bool:
        return job in self.turns

    def add(self, job: str, key: Key, turn: int) -> Line:
        """This job waits (again)."""
        user, request, lasts = key
        line = self.lines.get(key)
        if line is None:
            standing = self.standings.get((request.priority, user))
            if standing is None:
                standing = self.standings[(request.priority, user)] = Standing(user, request.priority)
            line = self.lines[key] = Line(request, lasts, standing)
            self._note_least(request.resources)
        standing = line.standing
        if not 0 <= line.entered <= turn:
            line.entered = turn
            heappush(standing.lines, (turn, line))
        if turn < standing.place[1]:
            self._enter(standing, turn)
        heappush(line.heap, (turn, job))
        line.count += 1
        standing.count += 1
        self.turns[job] = turn
        self._line_of[job] = line
        if (block := standing.blocks.get(turn // BLOCK)) is None:
            block = standing.blocks[turn // BLOCK] = {}
        block[turn] = None
        return line

    def remove(self, job: str) -> None:
        """This job waits no more. Its entry is left in the heap until it surfaces or there are too many such."""
        line = self._line_of.pop(job)
        turn = self.turns.pop(job)
        standing = line.standing
        block = standing.blocks[turn // BLOCK]
        del block[turn]
        if not block:
            del standing.blocks[turn // BLOCK]
        line.count -= 1
        standing.count -= 1
        if not line.count:
            del self.lines[(standing.user, line.request, line.lasts)]
            line.entered = -1
            self.departed += 1
            if not standing.count:
                del self.standings[(standing.priority, standing.user)]
                standing.place = NOWHERE
        elif len(line.heap) > 2 * line.count + 16:
            line.heap = [entry for entry in line.heap if self._waits(entry, line)]
            heapify(line.heap)

    def line(self, job: str) -> Line:
        """The line a waiting job stands in."""
        return self._line_of[job]

    def _waits(self, entry: tuple[int, str], line: Line) -> bool:
        return self.turns.get(entry[1]) == entry[0] and self._line_of[entry[1]] is line

    def head(self, line: Line) -> tuple[int, str]:
        """Turn and job of the first of a line."""
        heap, turns, line_of = line.heap, self.turns, self._line_of
        while True:
            turn, job = first = heap[0]
            if turns.get(job) == turn and line_of[job] is line:
                return first
            heappop(heap)

    # --- the order of service -----------------------------------------------------------------------------------------

    def rank(self, standing: Standing, rank: float) -> None:
        """This is the rank of a standing from now on."""
        if rank != standing.rank:
            standing.rank = rank
            if standing.place is not NOWHERE:
                self._enter(standing, standing.place[1])

    def rank_of(self, standing: Standing) -> float:
        """What it is."""
        return standing.rank

    def _enter(self, standing: Standing, turn: int) -> None:
        standing.place = (standing.rank, turn)
        order = self.order[standing.priority]
        heappush(order, (standing.rank, turn, standing))
        if len(order) > 4 * len(self.standings) + 64:  # ranks change often, and entries that surface never are many
            order[:] = [entry for entry in order if entry[:2] == entry[2].place]
            heapify(order)

    def first(self, priority: Priority) -> Standing | None:
        """Who is to be served first in this class, which is the first of its order then; None: nobody waits there, but
        for those whose entries were taken out of the order."""
        order = self.order[priority]
        while order:
            rank, turn, standing = order[0]
            if standing.place != (rank, turn):
                heappop(order)
                continue
            line = self.first_line(standing)
            now = turn if line is None else self.head(line)[0]
            if now == turn:
                return standing
            standing.place = (rank, now)
            heapreplace(order, (rank, now, standing))
        return None

    def first_line(self, standing: Standing) -> Line | None:
        """The line of a standing to be served first, which is `lines[0]` then; None: there is none, but for those
        whose entries were taken out."""
        lines = standing.lines
        while lines:
            turn, line = lines[0]
            if turn != line.entered:
                heappop(lines)
            elif (now := self.head(line)[0]) != turn:
                line.entered = now
                heapreplace(lines, (now, line))
            else:
                return line
        return None

    @property
    def least(self) -> Resources:
        """Of each kind, no more than anybody wants: where this finds no room, nobody does."""
        if self.departed > len(self.lines):
            self.lowest, self.departed = self._least_of_all(), 0
        return self.lowest

    def _least_of_all(self) -> Resources:
        return reduce(lesser, (line.request.resources for line in self.lines.values())) if self.lines else Resources()

    def _note_least(self, wanted: Resources) -> None:
        if len(self.lines) == 1:
            self.lowest, self.departed = wanted, 0
        else:
            self.lowest = lesser(self.lowest, wanted)

    def ahead(self, job: str) -> int:
        """How many waiting jobs are likely to be served before this one: all of higher classes, those of its user with
        an earlier turn, and as many of every other user in its class, since they take turns (one more of those who
        stand before). An estimate: whose jobs are small gets more turns."""
        standing = self._line_of[job].standing
        mine = count = standing.before(self.turns[job])
        place = self.place(standing)
        for (priority, _), other in self.standings.items():
            if priority > standing.priority:
                count += other.count
            elif priority == standing.priority and other is not standing:
                count += min(other.count, mine + (self.place(other) < place))
        return count

    def place(self, standing: Standing) -> tuple[float, int]:
        """Where a standing is among the others of its class: its rank, and the turn of its first job."""
        line = self.first_line(standing)
        return self.rank_of(standing), 1 << 62 if line is None else self.head(line)[0]


class Reranked(Queue):
    """A queue as it is, but for the ranks of some standings: to look at, between two passes. It shares all that it is
    made of, and changes nothing."""

    def __init__(self, queue: Queue, ranks: Mapping[Standing, float]) -> None:
        vars(self).update(vars(queue))
        self._ranks = ranks

    def rank_of(self, standing: Standing) -> float:
        """What it would be."""
        return self._ranks.get(standing, standing.rank)

    def first(self, priority: Priority) -> Standing | None:
        """Who would be served first in this class; None: nobody waits there."""
        there = [one for one in self.standings.values() if one.priority is priority]
        return min(there, key=self.place, default=None)

    @property
    def least(self) -> Resources:
        """As of the queue."""
        return self._least_of_all() if self.departed > len(self.lines) else self.lowest


def lesser(one: Resources, other: Resources) -> Resources:
    """Of each kind, the smaller of two amounts."""
    if one.fits(other):
        return one
    return Resources(min(one.cpu, other.cpu), min(one.memory, other.memory), min(one.gpu, other.gpu))


# --- who is not in the queue, or not alone in it ----------------------------------------------------------------------


@dataclass(slots=True)
class Members:
    """A group that lives. `pending` are those that were not let go yet, in the order of their indexes (those that have
    ended meanwhile are still in it), `active` how many were and have not ended."""

    group: Group
    live: dict[str, None] = field(default_factory=dict)
    pending: deque[str] = field(default_factory=deque)
    active: int = 0
    states: dict[State, int] = field(default_factory=dict)
    """How many of the live ones are in each state."""
    ending: bool = False
    """Too many have failed, and the others were told to end."""

    @property
    def most(self) -> int:
        """How many may be let go at once; 0: all."""
        return self.group.array.most if self.group.array is not None else 0

    def moved(self, before: State, after: State) -> None:
        """A member went from one state to another."""
        self.states[before] -= 1
        self.states[after] = self.states.get(after, 0) + 1


@dataclass(slots=True)
class Waiters:
    """Who is held back from the queue. A waiter is a job, or a group as a whole."""

    unmet: dict[str, dict[Condition, None]] = field(default_factory=dict)
    """The conditions of each waiter that are not met; none are left where only a time is waited for."""
    on: dict[After, dict[str, dict[str, Condition]]] = field(default_factory=lambda: {kind: {} for kind in After})
    """By what is waited for and its id: who waits, by which of its conditions."""
    unstarted: dict[str, set[str]] = field(default_factory=dict)
    """Of the groups whose start is waited for, the members that have not."""
    ends: dict[str, End] = field(default_factory=dict)
    """How those ended that did last."""
    roots: dict[str, str] = field(default_factory=dict)
    """What those that failed by their dependencies failed by at first, until their own end is followed."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A node kept for a waiting job. `at`: when it can start there at the latest; infinite: nobody knows. `after` are
    the allocations that have to end for it. `progress`: when something there last became free; `seen`: when it was
    last looked at."""

    job: str
    node: str
    at: float
    after: tuple[str, ...]
    progress: float
    seen: float


class Reservations(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is reserved, by the job that it is for: one of each user in a class at the most, or one for each member of
    its gang, of which the first is the `job` of all. `look_again`: nothing more is looked for before; `left`: the node
    that was given up last."""

    by_job: dict[str, Reservation] = {}
    look_again: float = 0.0
    left: str = ""
