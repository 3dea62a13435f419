"""What contradicts itself in a ledger is found, and said in words."""

from collections.abc import Callable

import msgspec
import pytest

from distributed_grid.coordinator.core.commands import JobsSubmitted
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import AwaitsHold, HeldBack
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, step


def ledger() -> Ledger:
    """One job runs on the only node, and one waits."""
    made = Ledger()
    join(made, facts("n1", cores=2))
    jobs = tuple(job(name, Request(Resources(cpu=2 * MILLI))) for name in ("runs", "waits"))
    step(made, JobsSubmitted(1, jobs), 1.0)
    return made


def lose_an_allocation(of: Ledger) -> None:
    del of.state.allocations["runs.1"]


def disagree_on_a_state(of: Ledger) -> None:
    of.state.jobs["runs"].active.state = State.RUNNING


def hold_what_is_queued(of: Ledger) -> None:
    of.state.jobs["waits"].phase = HeldBack()


def leave_a_key(of: Ledger) -> None:
    of.state.keys["ann", "of-nobody"] = "gone"


def have_room_twice(of: Ledger) -> None:
    capacity = of.state.nodes["n1"].capacity
    assert capacity is not None
    capacity.cores[0] = MILLI


def miscount_free_cores(of: Ledger) -> None:
    capacity = of.state.nodes["n1"].capacity
    assert capacity is not None
    capacity.whole += 1


def miscount_needs(of: Ledger) -> None:
    of.state.queue.needs.clear()


def miscount_lines(of: Ledger) -> None:
    for standing in of.state.queue.standings.values():
        standing.included += 1


def exclude_a_line(of: Ledger) -> None:
    for line in of.state.queue.lines.values():
        line.excluded = True


def wait_for_a_hold(of: Ledger) -> None:
    of.state.queue.remove("waits")
    of.state.jobs["waits"].phase = AwaitsHold()


def leave_an_allocation_on_its_node(of: Ledger) -> None:
    node = of.state.nodes["n1"]
    node.inside["gone.1"] = msgspec.structs.replace(node.allocations["runs.1"], within="runs.1")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lose_an_allocation, "runs is starting without an allocation"),
        (disagree_on_a_state, "runs is running, its allocation starting"),
        (hold_what_is_queued, "waits is HeldBack"),
        (leave_a_key, "a key is left of a job that is gone"),
        (have_room_twice, "of core 0 of n1 is room"),
        (miscount_free_cores, "the counts of n1 are off"),
        (miscount_needs, "the queue miscounts what its lines need"),
        (miscount_lines, "ann has 1 lines to serve"),
        (exclude_a_line, "a line of ann is excluded and would not be reviewed"),
        (wait_for_a_hold, "{'waits': ''} wait for holds, and {} are known"),
        (leave_an_allocation_on_its_node, "gone.1 is inside of runs.1, which is no hold there"),
    ],
)
def test_a_contradiction_is_said_in_words(spoil: Callable[[Ledger], None], words: str) -> None:
    spoiled = ledger()
    spoiled.check()
    spoil(spoiled)
    with pytest.raises(AssertionError, match=words):
        spoiled.check()
