"""Chains of successors, and the learned run times of the jobs of a line. A successor is an allocation that was granted
what another one holds, for when that has ended, so that no slot waits for the coordinator (docs/successors.md). Data
only: lifecycle/successors.py decides which job gets a successor."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from distributed_grid.protocol.jobs import Request

MOST = 16
"""Maximum number of successors that wait one behind another."""
SHORT = 0.5
"""Maximum run time of the jobs of a line that get or are successors (s)."""
LEARNED = 4
"""Number of ends after which the run time of a line is known."""
SAMPLES = 16
"""Number of ends that are remembered for it."""
LINES = 1024
"""Number of lines whose run times are remembered."""

Kind = tuple[Request, str]
"""What jobs that may follow each other have in common: what they ask for, and the hash of the files that are shipped
with them (empty: none)."""
Tails = list[dict[str, None]]


@dataclass(slots=True)
class Chains:
    """The chains of allocations that wait for each other."""

    successors: dict[str, str] = field(default_factory=dict)
    """The successor of an allocation."""
    predecessors: dict[str, str] = field(default_factory=dict)
    """The allocation that a successor waits for."""
    members: dict[str, deque[str]] = field(default_factory=dict)
    """The whole chain of each allocation that has a successor or is one, from its head on."""
    tails: dict[Kind, Tails] = field(default_factory=dict)
    """The allocations that may get a successor, by kind and by how many of their chain are before them."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    """The kind of each allocation that may get a successor, or has one."""
    run_times: dict[tuple[str, Request], deque[float]] = field(default_factory=dict)
    """The last run times of the jobs of a user and request (s); the line that ended a job last comes last."""
    short: set[tuple[str, Request]] = field(default_factory=set)
    """Those whose jobs may have successors and be some: none of the last ran for longer than `SHORT`."""

    overdue: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The allocations of jobs that were overdue in the queue: when each was granted, and when an overdue job of its
    lane had been granted something before that (0: never)."""
    closed_nodes: dict[str, None] = field(default_factory=dict)
    """Nodes with successors that take no new jobs any more."""

    # --- chains -------------------------------------------------------------------------------------------------------

    def allow(self, allocation: str, kind: Kind) -> None:
        """An allocation may get successors of its kind."""
        self.kinds[allocation] = kind
        self.mark(allocation)

    def join(self, before: str, allocation: str) -> None:
        """Append an allocation to the chain of the allocation `before`, which was a tail."""
        self._unmark(before)
        self.successors[before], self.predecessors[allocation] = allocation, before
        chain = self.members.setdefault(before, deque((before,)))
        for name in self.members.get(allocation, (allocation,)):  # others wait for it already where they are restored
            chain.append(name)
            self.members[name] = chain

    def take_over(self, ended: str, allocation: str) -> None:
        """The first of a chain is over, and the next one holds its room."""
        tail = self.tail(allocation)
        self._unmark(tail)
        del self.predecessors[allocation]
        self.successors.pop(ended, None)
        self._drop(ended)
        self.mark(tail)

    def ended(self, allocation: str) -> str | None:
        """Handle the end of an allocation that held resources: it gets no other successor. Returns its successor; None:
        it has none."""
        self.close(allocation)
        return self.successors.get(allocation)

    def leave(self, allocation: str) -> tuple[str, str]:
        """Remove a successor that has ended without holding anything. Returns the allocations before and behind it
        (empty: none), which follow each other from now on."""
        tail = self.tail(allocation)
        self._unmark(tail)
        self.kinds.pop(allocation, None)
        before, behind = self.predecessors.pop(allocation, ""), self.successors.pop(allocation, "")
        if before:
            self.successors.pop(before, None)
        if behind:
            del self.predecessors[behind]
        if before and behind:
            self.successors[before], self.predecessors[behind] = behind, before
        self._drop(allocation)
        self.mark(tail if tail != allocation else before)
        return before, behind

    def _drop(self, allocation: str) -> None:
        """Remove an allocation from its chain, and the chain itself once only one member is left."""
        chain = self.members.pop(allocation, None)
        if chain is not None:
            chain.remove(allocation)  # the first one, nearly always
            if len(chain) == 1:
                del self.members[chain[0]]

    def close(self, allocation: str) -> None:
        """Exclude an allocation from getting a successor."""
        self._unmark(allocation)
        self.kinds.pop(allocation, None)

    def tail(self, allocation: str) -> str:
        """The last one that waits behind it, or itself."""
        chain = self.members.get(allocation)
        return chain[-1] if chain is not None else allocation

    def successors_of(self, allocation: str) -> Iterator[str]:
        """Yield all successors behind an allocation, the next one first."""
        while (name := self.successors.get(allocation)) is not None:
            allocation = name
            yield name

    def mark(self, tail: str) -> None:
        """Let a tail get a successor, if its kind is known."""
        kind, depth = self.kinds.get(tail), self._before(tail)
        if kind is None or depth >= MOST:
            return
        if (tails := self.tails.get(kind)) is None:
            tails = self.tails[kind] = [{} for _ in range(MOST)]
        tails[depth][tail] = None

    def _unmark(self, tail: str) -> None:
        kind = self.kinds.get(tail)
        tails = self.tails.get(kind) if kind is not None else None
        depth = self._before(tail)
        if tails is None or kind is None or depth >= MOST:
            return
        part = tails[depth]
        part.pop(tail, None)
        if not part and not any(tails):
            del self.tails[kind]

    def _before(self, tail: str) -> int:
        """Return how many members of its chain are before a tail."""
        chain = self.members.get(tail)
        return len(chain) - 1 if chain is not None else 0

    # --- run times ----------------------------------------------------------------------------------------------------

    def learn(self, user: str, request: Request, seconds: float) -> None:
        """Record the run time (s) of a job."""
        line = user, request
        runs = self.run_times.pop(line, None)
        if runs is None:
            runs = deque(maxlen=SAMPLES)
            if len(self.run_times) >= LINES:
                oldest = next(iter(self.run_times))
                self.short.discard(oldest)
                del self.run_times[oldest]
        runs.append(seconds)
        self.run_times[line] = runs
        if len(runs) >= LEARNED and max(runs) <= SHORT:
            self.short.add(line)
        else:
            self.short.discard(line)

    def longest(self, user: str, request: Request) -> float | None:
        """The longest of the last run times (s); None: too few are known."""
        runs = self.run_times.get((user, request))
        return max(runs) if runs is not None and len(runs) >= LEARNED else None

    def is_short(self, user: str, request: Request) -> bool:
        """Whether such jobs may have successors and be some."""
        return (user, request) in self.short

    def typical(self, user: str, request: Request) -> float:
        """The median of the last run times (s), of which at least one is known."""
        runs = sorted(self.run_times[(user, request)])
        return runs[len(runs) // 2]
