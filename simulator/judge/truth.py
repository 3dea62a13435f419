"""What really happened in a simulated grid: every process there ever was, and every answer that a client ever got."""

from distributed_grid.protocol.jobs import Outcome
from distributed_grid.protocol.resources import Grant
from distributed_grid.simulator.disk import Disk
from distributed_grid.simulator.judge.preemption import Preemptions
from distributed_grid.simulator.plan import JobPlan, NodePlan


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
    """Which planned job an id belongs to: ids are `j<number>x<try>`."""
    return int(job[1:].partition("x")[0])


def index_of(job: str) -> int:
    """Which member of its array a job is; 0 where it is none."""
    return int(job.partition("_")[2] or 0)


class Truth:
    """The record itself; whoever judges, reads it."""

    def __init__(self, jobs: tuple[JobPlan, ...], nodes: tuple[NodePlan, ...] = ()) -> None:
        self.plans = {job.number: job for job in jobs}
        self.nodes = {f"n{node.number}": node for node in nodes}
        self.runs: dict[str, Run] = {}
        self.of_key: dict[tuple[int, int], list[Run]] = {}
        self.living: dict[str, dict[str, Run]] = {}
        self.promised: dict[int, str] = {}
        self.ended: dict[str, Outcome] = {}
        self.disk: Disk | None = None
        self.preemptions = Preemptions()
        self.taken_back: set[str] = set()
        """Allocations whose nodes were told that the grid takes their place back."""
        self.closed: dict[str, frozenset[str]] = {}
        """Nodes that get no new job by what is on disk, with the allocations there were by then."""
