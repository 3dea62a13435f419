"""What contradicts itself in a ledger is found, and said in words."""

from collections.abc import Callable

import pytest

from distributed_grid.coordinator.core.commands import JobsSubmitted
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import HeldBack
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


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lose_an_allocation, "runs is starting without an allocation"),
        (disagree_on_a_state, "runs is running, its allocation starting"),
        (hold_what_is_queued, "waits is HeldBack"),
        (leave_a_key, "a key is left of a job that is gone"),
        (have_room_twice, "of core 0 of n1 is room"),
    ],
)
def test_a_contradiction_is_said_in_words(spoil: Callable[[Ledger], None], words: str) -> None:
    spoiled = ledger()
    spoiled.check()
    spoil(spoiled)
    with pytest.raises(AssertionError, match=words):
        spoiled.check()
