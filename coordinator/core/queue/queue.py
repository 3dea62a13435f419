"""The queue of waiting jobs. Equal requests of one user form a line: if the first job of a line cannot be placed, none
behind it can, so a pass costs the number of different requests and not of jobs.

The lines of a user in a priority class with about the same time limit form a standing. Standings are ordered by rank
(`scheduler.py`), and the lines of one by the turn of their first job. Updates are incremental.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from heapq import heapify, heappop, heappush, heapreplace

import msgspec

from distributed_grid.coordinator.core.model import Condition, End, Group, Job
from distributed_grid.coordinator.core.policy import DEFAULT, Sharing
from distributed_grid.coordinator.core.queue.precedence import OVERDUE, RunTimes, lane_of
from distributed_grid.protocol.jobs import After, Priority, Reason, Request, State
from distributed_grid.protocol.resources import MILLI, Resources

BLOCK = 512
STALE_MOST = 64
"""Number of stale entries, beyond that of lines, from which on the heaps by need of a standing are made anew."""
ALIKE_BITS = 4
"""Needs are rounded down to so many significant bits."""
NOWHERE = (math.inf, 1 << 62)
"""The place of a standing that has no entry in the order."""

Stand = tuple[Priority, str, int]
"""The key of a standing: class, user and lane."""
Kept = tuple[str, str]
"""The job and the node of a reservation."""
Key = tuple[str, Request, float, bool]
"""Jobs with the same key share a line: user, request, maximum duration in seconds (0: unlimited), and whether they were
submitted by an operator."""


def key_of(job: Job) -> Key:
    """The key of a job's line."""
    limit = job.spec.time_limit
    return job.user, job.request, limit + job.spec.grace if limit else 0.0, job.by_operator


class Rank(msgspec.Struct, frozen=True, gc=False):
    """The rank of a standing by its first job, the `head`; an `overdue` head (its turn; below zero: it is not overdue)
    has a rank of its own, by the time when it was `due`."""

    rank: float
    head: str = ""
    overdue: int = -1
    due: float = 0.0


class Line:
    """Equal jobs, by turn. `blocked`: the first was refused, and no suitable capacity was freed since. `lasts`: maximum
    duration of one with its grace, in seconds; 0: unlimited. `operator`: an operator submitted them. `excluded`: a
    quota is reached, so that it has no place in the order of service. `need`: see `need_of`. `scale`: the factor of its
    size in the precedence, in a grid with the capacity `scale_at`."""

    __slots__ = (
        "_blocked", "count", "entered", "excluded", "heap", "lasts", "need", "operator", "reason", "request",
        "scale", "scale_at", "standing",
    )  # fmt: skip

    def __init__(self, request: Request, lasts: float, operator: bool, standing: "Standing") -> None:
        self.request = request
        self.need = need_of(request)
        self.scale = 0.0
        self.scale_at: Resources | None = None
        self.lasts = lasts
        self.operator = operator
        self.excluded = False
        self.standing = standing
        self.heap: list[tuple[int, str]] = []
        self.count = 0
        self._blocked = False
        standing.open[self] = None
        self.entered = -1
        """The turn of its valid entry in its standing; below zero: it has none."""
        self.reason: Reason | None = None
        """Why the first of the line waits, as last published; None: nobody watches it, or it is to be worded anew."""

    @property
    def blocked(self) -> bool:
        """Whether the first was refused, and no suitable capacity was freed since."""
        return self._blocked

    @blocked.setter
    def blocked(self, now: bool) -> None:
        if now is not self._blocked:
            self._blocked = now
            if now:
                self.standing.open.pop(self, None)
            elif self.count:
                self.standing.open[self] = None

    def __lt__(self, other: "Line") -> bool:
        """Breaks ties between entries with the same turn, of which one is stale."""
        return False


class Standing:
    """A user's lines in a priority class that are of one lane, and its rank there; the smallest is served first."""

    __slots__ = (
        "blocks", "by_need", "by_need_size", "count", "due", "excluded", "head", "included", "lane", "lines", "needs",
        "open", "overdue", "place", "priority", "rank", "served_at", "user",
    )  # fmt: skip

    def __init__(self, user: str, priority: Priority, lane: int) -> None:
        self.user = user
        self.priority = priority
        self.lane = lane
        self.count = 0
        self.included = 0
        """Number of its lines that are not excluded."""
        self.rank = 0.0
        self.head = ""
        """Its first job, by which it was ranked last."""
        self.overdue = -1
        """The turn of that job, if it was overdue then; below zero: it was not."""
        self.due = 0.0
        """Since when it is overdue."""
        self.served_at = 0.0
        """When a job was started last that was overdue; 0: never."""
        self.lines: list[Entry] = []
        """A heap; stale entries are removed by `Queue.first_line`."""
        self.excluded: list[Entry] = []
        """A heap of its excluded lines; stale entries are removed by `Queue.first_excluded`."""
        self.place: tuple[float, int] = NOWHERE
        """Rank and turn of its valid entry in the order."""
        self.blocks: dict[int, dict[int, None]] = {}
        """The waiting turns, in blocks of `BLOCK` turns, so that `Queue.ahead` counts blocks and not jobs."""
        self.open: dict[Line, None] = {}
        """Its lines that are not blocked."""
        self.needs: dict[Resources | None, int] = {}
        """How many of its lines need this (`need_of`)."""
        self.by_need: dict[Resources | None, list[Entry]] | None = None
        """Its lines by what they need (`need_of`), as heaps; None: not made yet. Every line that is not excluded is
        there, with a turn that is not after that of its first job; lines that are gone may be there, too."""
        self.by_need_size = 0
        """Number of entries in these heaps."""

    def __lt__(self, other: "Standing") -> bool:
        """Breaks ties between entries with the same rank and turn, of which one is stale."""
        return False

    def before(self, turn: int) -> int:
        """Return how many of its jobs have a turn before this one."""
        mine = turn // BLOCK
        count = sum(len(block) for number, block in self.blocks.items() if number < mine)
        return count + sum(other < turn for other in self.blocks.get(mine, ()))


class Queue:
    """All jobs that wait. A job's turn is its number in the order of submission, which never changes."""

    def __init__(self, sharing: Sharing = DEFAULT.sharing) -> None:
        self._sharing = sharing
        self.lines: dict[Key, Line] = {}
        self.standings: dict[Stand, Standing] = {}
        self.of_user: dict[str, dict[Standing, None]] = {}
        self.unranked: dict[Standing, None] = {}
        """Standings that may have another first job than when they were ranked."""
        self.run_times = RunTimes()
        self.turns: dict[str, int] = {}
        self._line_of: dict[str, Line] = {}
        self.order: dict[Priority, list[tuple[float, int, Standing]]] = {one: [] for one in reversed(Priority)}
        """By class, the highest first: a heap of its standings; stale entries are removed by `first`."""
        self.lowest = Resources()
        self.departed = 0
        self.needs: dict[Resources | None, int] = {}
        """How many lines need this (`need_of`)."""
        self.behind_reservation: dict[Kept, dict[Standing, int]] = {}
        """By reservation: the standings in which a line was refused because of it, and the least turn of such a line.
        They wait until they come before its job, or it is gone."""

    def __len__(self) -> int:
        return len(self.turns)

    def __contains__(self, job: str) -> bool:
        return job in self.turns

    def add(self, job: str, key: Key, turn: int) -> Line:
        """Enqueue a job."""
        user, request, lasts, operator = key
        line = self.lines.get(key)
        if line is None:
            stand = self.stand_of(user, request.priority, lasts)
            standing = self.standings.get(stand)
            if standing is None:
                standing = self.standings[stand] = Standing(user, request.priority, stand[2])
                self.of_user.setdefault(user, {})[standing] = None
            line = self.lines[key] = Line(request, lasts, operator, standing)
            standing.included += 1
            for needs in (self.needs, standing.needs):
                needs[line.need] = needs.get(line.need, 0) + 1
            self._note_least(request.resources)
        standing = line.standing
        if turn < standing.overdue:  # one comes back that is before the job by which it was ranked
            self._lose_head(standing)
        if line.excluded:
            self._keep_excluded(line, turn)
        else:
            self._place(line, turn)
        heappush(line.heap, (turn, job))
        line.count += 1
        standing.count += 1
        self.turns[job] = turn
        self._line_of[job] = line
        if (block := standing.blocks.get(turn // BLOCK)) is None:
            block = standing.blocks[turn // BLOCK] = {}
        block[turn] = None
        return line

    def stand_of(self, user: str, priority: Priority, lasts: float) -> Stand:
        """The key of the standing of such jobs."""
        return priority, user, lane_of(lasts, self._sharing)

    def _place(self, line: Line, turn: int) -> None:
        """Give a line, of which a job has this turn, its place in the order of service."""
        standing = line.standing
        if not 0 <= line.entered <= turn:
            line.entered = turn
            heappush(standing.lines, (turn, line))
            if standing.by_need is not None:
                self._add_by_need(standing, turn, line)
        if turn < standing.place[1]:
            self.enter(standing, turn)

    def lines_by_need(self, standing: Standing) -> dict[Resources | None, list["Entry"]]:
        """The lines of a standing by what they need, in heaps by turn."""
        if standing.by_need is None:
            standing.by_need, standing.by_need_size = {}, 0
            for turn, line in standing.lines:
                if turn == line.entered:
                    self._add_by_need(standing, turn, line)
        return standing.by_need

    def _add_by_need(self, standing: Standing, turn: int, line: Line) -> None:
        by_need = standing.by_need
        assert by_need is not None
        heappush(by_need.setdefault(line.need, []), (turn, line))
        standing.by_need_size += 1
        if standing.by_need_size > 2 * standing.included + STALE_MOST:  # made anew when they are needed next
            standing.by_need = None

    def exclude(self, line: Line) -> None:
        """Take a line out of the order of service; its jobs keep their turns."""
        line.excluded, line.entered = True, -1
        self._keep_excluded(line, self.head(line)[0])
        self.unranked[line.standing] = None
        self._leave(line.standing)

    def _keep_excluded(self, line: Line, turn: int) -> None:
        """Note that an excluded line has a job with this turn, if that may be its first."""
        heap, most = line.standing.excluded, 2 * line.standing.count + STALE_MOST
        if len(heap) > most:
            left = dict.fromkeys(one for _, one in heap if one.excluded and one.count)
            heap[:] = [(self.head(one)[0], one) for one in left]
            heapify(heap)
        if not line.heap or turn <= self.head(line)[0]:
            heappush(heap, (turn, line))

    def include(self, line: Line) -> None:
        """Put an excluded line back in the order of service."""
        line.excluded = False
        line.standing.included += 1
        self.unranked[line.standing] = None
        self._place(line, self.head(line)[0])

    def _lose_head(self, standing: Standing) -> None:
        """Another job is the first of this standing than the one by which it was ranked."""
        standing.head, standing.overdue = "", -1
        self.unranked[standing] = None

    def _leave(self, standing: Standing) -> None:
        standing.included -= 1
        if not standing.included:
            standing.place = NOWHERE

    def remove(self, job: str) -> None:
        """Dequeue a job. Its heap entry stays until it surfaces or too many are stale."""
        line = self._line_of.pop(job)
        turn = self.turns.pop(job)
        standing = line.standing
        block = standing.blocks[turn // BLOCK]
        del block[turn]
        if not block:
            del standing.blocks[turn // BLOCK]
        line.count -= 1
        standing.count -= 1
        if job == standing.head:
            self._lose_head(standing)
        if not line.count:
            del self.lines[(standing.user, line.request, line.lasts, line.operator)]
            line.entered = -1
            standing.open.pop(line, None)
            for needs in (self.needs, standing.needs):
                needs[line.need] -= 1
                if not needs[line.need]:
                    del needs[line.need]
            self.departed += 1
            if not line.excluded:
                self._leave(standing)
            if not standing.count:
                del self.standings[(standing.priority, standing.user, standing.lane)]
                del self.of_user[standing.user][standing]
                if not self.of_user[standing.user]:
                    del self.of_user[standing.user]
        elif len(line.heap) > 2 * line.count + 16:
            line.heap = self.waiting(line)
            heapify(line.heap)

    def line(self, job: str) -> Line:
        """The line of a waiting job."""
        return self._line_of[job]

    def waiting(self, line: Line) -> list[tuple[int, str]]:
        """Turn and job of all that wait in a line, in no order."""
        return [entry for entry in line.heap if self._waits(entry, line)]

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

    def rank(self, standing: Standing, rank: Rank) -> None:
        """Set the rank of a standing."""
        place = self._take(standing, rank)
        if place is not NOWHERE and standing.place != place:
            self.enter(standing, place[1])

    def rank_all(self, ranks: Iterable[tuple[Standing, Rank]]) -> None:
        """Set the ranks of most standings and rebuild the order, which costs less than moving each of them."""
        for standing, rank in ranks:
            standing.place = self._take(standing, rank)
        for order in self.order.values():
            order.clear()
        for standing in self.standings.values():
            if standing.place is not NOWHERE:
                self.order[standing.priority].append((*standing.place, standing))
        for order in self.order.values():
            heapify(order)

    def _take(self, standing: Standing, rank: Rank) -> tuple[float, int]:
        """Note a rank; returns the place of the standing by it."""
        standing.rank, standing.head, standing.overdue, standing.due = rank.rank, rank.head, rank.overdue, rank.due
        if standing.place is NOWHERE:
            return NOWHERE
        turn = self.turns.get(rank.head, standing.place[1])
        return self.rank_at(standing, turn), turn

    def rank_at(self, standing: Standing, turn: int) -> float:
        """The rank of a job with this turn in a standing: one that waits for a quota stays before the overdue ones
        behind it."""
        return standing.due - OVERDUE if turn <= standing.overdue else standing.rank

    def enter(self, standing: Standing, turn: int) -> None:
        """Give a standing, whose first job has this turn or a later one, its place in the order."""
        rank = self.rank_at(standing, turn)
        standing.place = (rank, turn)
        order = self.order[standing.priority]
        heappush(order, (rank, turn, standing))
        if len(order) > 4 * len(self.standings) + 64:  # ranks change often, and many stale entries never surface
            order[:] = [entry for entry in order if entry[:2] == entry[2].place]
            heapify(order)

    def first(self, priority: Priority) -> Standing | None:
        """The standing to serve first in this class, then at the top of its order; None: no entry is left there."""
        order = self.order[priority]
        while order:
            rank, turn, standing = order[0]
            if standing.place != (rank, turn):
                heappop(order)
                continue
            line = self.first_line(standing)
            now = turn if line is None else line.entered
            if now == turn:
                return standing
            standing.place = (self.rank_at(standing, now), now)
            heapreplace(order, (*standing.place, standing))
        return None

    def first_line(self, standing: Standing) -> Line | None:
        """The line of a standing to serve first, then at the top of `lines`; None: no entry is left there."""
        lines = standing.lines
        while lines:
            turn, line = lines[0]
            if turn == line.entered and self.head(line)[0] == turn:
                return line
            self.correct(standing)
        return None

    def first_excluded(self, standing: Standing) -> Line | None:
        """The excluded line of a standing with the first job; None: none is excluded."""
        heap = standing.excluded
        while heap:
            turn, line = heap[0]
            if not (line.excluded and line.count):
                heappop(heap)
            elif (now := self.head(line)[0]) == turn:
                return line
            else:
                heapreplace(heap, (now, line))
        return None

    def correct(self, standing: Standing) -> None:
        """Correct or remove the entry at the top of a standing's `lines`."""
        turn, line = standing.lines[0]
        if turn != line.entered:
            heappop(standing.lines)
        else:
            line.entered = self.head(line)[0]
            heapreplace(standing.lines, (line.entered, line))

    @property
    def least(self) -> Resources:
        """A lower bound of all requests, by kind: where this does not fit, no request does."""
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
        """Estimate how many waiting jobs are served before this one: all of higher classes, those of its standing with
        an earlier turn, and as many of every other one in its class (one more if that comes first), as if they took
        turns."""
        standing = self._line_of[job].standing
        mine = count = standing.before(self.turns[job])
        place = self.place(standing)
        for other in self.standings.values():
            if other.priority > standing.priority:
                count += other.count
            elif other.priority is standing.priority and other is not standing:
                count += min(other.count, mine + (self.place(other) < place))
        return count

    def place(self, standing: Standing) -> tuple[float, int]:
        """The sort key of a standing in its class: its rank, and the turn of its first job."""
        line = self.first_line(standing)
        turn = 1 << 62 if line is None else self.head(line)[0]
        return self.rank_at(standing, turn), turn


class Reranked(Queue):
    """A read-only overlay of a queue with other ranks for some standings, valid until the queue changes."""

    def __init__(self, queue: Queue, ranks: Mapping[Standing, Rank]) -> None:
        vars(self).update(vars(queue))
        self._ranks = ranks

    def rank_at(self, standing: Standing, turn: int) -> float:
        """The overlaid rank."""
        other = self._ranks.get(standing)
        if other is None:
            return super().rank_at(standing, turn)
        return other.due - OVERDUE if turn <= other.overdue else other.rank

    def first(self, priority: Priority) -> Standing | None:
        """Return the standing that would be served first in this class; None: no job waits there."""
        there = [one for one in self.standings.values() if one.priority is priority and one.included]
        return min(there, key=self.place, default=None)

    @property
    def least(self) -> Resources:
        """As `Queue.least`, without updating it."""
        return self._least_of_all() if self.departed > len(self.lines) else self.lowest


Entry = tuple[int, Line]
"""A line, and the turn of its first job or an earlier one."""


def need_of(request: Request) -> Resources | None:
    """Return the least amount that a request needs, rounded down so that similar requests share it. None: by its
    affinity, it may come to fit without more capacity."""
    asked, wanted = request.constraints, request.resources
    if asked is not None and (asked.near or asked.apart):
        return None
    whole = wanted.cpu // MILLI
    return Resources(_rounded(whole) * MILLI if whole else _rounded(wanted.cpu), _rounded(wanted.memory), wanted.gpu)


def _rounded(amount: int) -> int:
    rest = max(0, amount.bit_length() - ALIKE_BITS)
    return amount >> rest << rest


def lesser(one: Resources, other: Resources) -> Resources:
    """The minimum of two amounts, by kind."""
    if one.fits(other):
        return one
    return Resources(min(one.cpu, other.cpu), min(one.memory, other.memory), min(one.gpu, other.gpu))


# --- groups, jobs held back and reservations --------------------------------------------------------------------------


@dataclass(slots=True)
class Members:
    """A group that has not ended. `pending`: members that were not released to the queue yet, by index (possibly with
    some that have ended meanwhile); `active`: how many were released and have not ended."""

    group: Group
    live: dict[str, None] = field(default_factory=dict)
    pending: deque[str] = field(default_factory=deque)
    active: int = 0
    states: dict[State, int] = field(default_factory=dict)
    """Number of live members in each state."""
    ending: bool = False
    """Too many have failed, and the others were told to end."""

    @property
    def most(self) -> int:
        """Concurrency limit of its array; 0: none."""
        return self.group.array.most if self.group.array is not None else 0

    def moved(self, before: State, after: State) -> None:
        """A member went from one state to another."""
        self.states[before] -= 1
        self.states[after] = self.states.get(after, 0) + 1


@dataclass(slots=True)
class Waiters:
    """Jobs and whole groups that are held back from the queue."""

    unmet: dict[str, dict[Condition, None]] = field(default_factory=dict)
    """The unmet conditions of each waiter; empty where only its begin time is awaited."""
    on: dict[After, dict[str, dict[str, Condition]]] = field(default_factory=lambda: {kind: {} for kind in After})
    """Index of `unmet`: kind of condition, id of the dependency, id of the waiter."""
    unstarted: dict[str, set[str]] = field(default_factory=dict)
    """Groups whose start is awaited, and their members that have not started."""
    ends: dict[str, End] = field(default_factory=dict)
    """The latest ends of jobs and groups."""
    roots: dict[str, str] = field(default_factory=dict)
    """The original failure of jobs that ended by a failed dependency, until their own end was handled."""


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A node reserved for a waiting job. `at`: when it can start there at the latest; infinite: unknown. `after`: the
    allocations that have to end first. `progress`: when one of them last ended; `seen`: time of the last check."""

    job: str
    node: str
    at: float
    after: tuple[str, ...]
    progress: float
    seen: float


class Reservations(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Reservations by job: at most one for each user in a class, or one for each member of a gang, all with its first
    member as `job`. `look_again`: no search for another one before then; `left`: the node that was given up last."""

    by_job: dict[str, Reservation] = {}
    look_again: float = 0.0
    left: str = ""
