"""What really happened in a simulated grid, which all judges read: every process there ever was, every answer a client
ever got, and the receipts on disk.
"""

from collections.abc import Callable

from distributed_grid.coordinator.core.model import Allocation
from distributed_grid.coordinator.core.preemption.plan import may
from distributed_grid.protocol.groups import member_id, split_member
from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.messages.operator import Place, Receipt
from distributed_grid.protocol.nodes import Aside, Drain
from distributed_grid.protocol.resources import Grant
from distributed_grid.simulator.disk import Disk
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.moves import Moves
from distributed_grid.simulator.plan import NodePlan
from distributed_grid.simulator.workload import JobPlan


class Preemptions:
    """All receipts that the coordinator has made durable."""

    def __init__(self) -> None:
        self.known: dict[str, Receipt] = {}

    def stored(self, receipt: Receipt, last_of: Callable[[str], Allocation | None]) -> None:
        """Take in a receipt that is on disk; `last_of`: the last allocation of a job on disk."""
        before = self.known.get(receipt.id)
        self.known[receipt.id] = receipt
        if before is not None and before.result and before != receipt:
            raise Violation(receipt.job, f"{receipt.id} was {before.result} and becomes {receipt.result or 'open'}")
        if receipt.result == "moved":
            return
        for victim in receipt.victims:
            if not may(receipt.priority, victim.priority):
                raise Violation(victim.job, f"it is {victim.priority.word} and gives way to {receipt.priority.word}")
        if not receipt.result:
            others = [one.id for one in self.known.values() if one.job == receipt.job and not one.result]
            if len(others) > 1:
                raise Violation(receipt.job, f"{' and '.join(others)} are open at once")
        elif receipt.result == "started":
            places = (Place(receipt.node, receipt.grant), *receipt.more)
            gang, _ = split_member(receipt.job) or ("", 0)
            for rank, place in enumerate(places):
                self._started(receipt, place, last_of(member_id(gang, rank) if receipt.more else receipt.job))
            if receipt.more and len({place.node for place in places}) < len(places):
                raise Violation(receipt.job, f"{receipt.id} has two places on one node")

    def _started(self, receipt: Receipt, place: Place, last: Allocation | None) -> None:
        if last is None or last.granted < receipt.closed:
            raise Violation(receipt.job, f"{receipt.id} says that it started on {place.node}, and it did not")
        # It may have been granted something else since, if the disk was slow.
        here = last.node == place.node and (last.grant == place.grant or bool(receipt.text))
        if last.granted == receipt.closed and not here:
            raise Violation(receipt.job, f"{receipt.id} freed a set on {place.node}, and it started on another")

    def unfinished(self) -> tuple[str, str] | None:
        """A receipt that at the end of the run has neither led to a start nor been rolled back."""
        for receipt in self.known.values():
            if not receipt.result:
                return receipt.job, f"{receipt.id} has neither led to its start nor been rolled back"
        return None


class Run:
    """A process that really ran: the truth about one attempt. `code` and `signal` once it is over."""

    def __init__(self, allocation: str, node: str, grant: Grant, began: float) -> None:
        self.allocation = allocation
        self.job, _, attempt = allocation.rpartition(".")
        self.attempt = int(attempt)
        self.node = node
        self.grant = grant
        self.began = began
        self.alive = True
        self.code: int | None = None
        self.signal = 0
        self.frozen_at: float | None = None
        self.frozen_for = 0.0
        self.done: tuple[int | None, float] | None = None
        """What was to be its end while it was frozen: its code, and the frozen seconds that were counted then."""


def number_of(job: str) -> int:
    """The number of the planned job that an id belongs to: ids are `j<number>x<try>`."""
    return int(job[1:].partition("x")[0])


def index_of(job: str) -> int:
    """The index of a job in its array; 0 if it is in none."""
    return int(job.partition("_")[2] or 0)


class Truth:
    """The record of what really happened, which all judges read."""

    def __init__(self, jobs: tuple[JobPlan, ...], nodes: tuple[NodePlan, ...] = (), moves: Moves | None = None) -> None:
        self.moves = moves
        self.plans = {job.number: job for job in jobs}
        self.nodes = {f"n{node.number}": node for node in nodes}
        self.runs: dict[str, Run] = {}
        self.of_key: dict[tuple[int, int], list[Run]] = {}
        self.living: dict[str, dict[str, Run]] = {}
        self.promised: dict[int, str] = {}
        self.ended: dict[str, Outcome] = {}
        self.disk: Disk | None = None
        self.preemptions = Preemptions()
        self.evicted: set[str] = set()
        """Allocations whose nodes were told that the grid takes their place back."""
        self.ended_before: set[str] = set()
        """Those that were over, as by the end of a lease, when they were to leave: nobody knew that yet."""
        self.never: set[str] = set()
        """Allocations of which a node said that they never ran."""
        self.entitled: set[str] = set()
        """Whose rights the disk took at some time, or that they are taken back."""
        self.relabelled: set[str] = set()
        """Nodes of which operators change labels: where a job may run is looked at when it is granted."""
        self.closed: dict[str, frozenset[str]] = {}
        """Nodes that get no new job by what is on disk, with the allocations there were by then."""
        self.closed_by: dict[str, tuple[Drain | None, Aside | None]] = {}
        """By what these nodes get none."""
