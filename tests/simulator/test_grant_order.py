"""Every grant is looked at before it is made: one that passes somebody is refused, one that passes nobody is made."""

import pytest

from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.model import Attempt, Ended, Placement
from distributed_grid.coordinator.core.policy import DEFAULT
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request
from distributed_grid.protocol.messages import Inventory
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.grant_order import Watched, _not_given_up_early
from tests.coordinator.core.scene import facts, job, offer


def waiting(first: Request, second: Request, users: tuple[str, str] = ("ann", "ann")) -> Watched:
    """Two jobs wait since before a node came that has just offered two cores."""
    ledger = Watched(1, DEFAULT)
    for number, (request, user) in enumerate(zip((first, second), users, strict=True), 1):
        ledger.handle(JobsSubmitted(number, (job(f"j{number}", request, float(number), user),)), float(number))
        ledger.settle(float(number))
    node = facts("n0", cores=2)
    for event in (NodeUp(node, "s"), MessageReceived("n0", Inventory(())), MessageReceived("n0", offer(node))):
        ledger.handle(event, 3.0)
    return ledger


def grant(ledger: Watched, name: str) -> None:
    """One core of the node goes to this job."""
    state = ledger.state
    state.grant(state.jobs[name], Placement("n0", Grant((len(state.allocations),)), 1.0, {}), 0.0)


def asked(cpu: int = 1000, priority: Priority = Priority.MEDIUM) -> Request:
    return Request(Resources(cpu), priority)


def test_nobody_passes_an_earlier_job_of_the_same_user_that_has_room() -> None:
    ledger = waiting(asked(cpu=500), asked())
    with pytest.raises(Violation, match="j2: it is granted n0; j1 of ann comes before it and has room there"):
        grant(ledger, "j2")


def test_nobody_passes_a_job_of_a_higher_priority_that_has_room() -> None:
    ledger = waiting(asked(), asked(priority=Priority.URGENT), ("ann", "ben"))
    with pytest.raises(Violation, match="j1: it is granted n0; j2 of ben comes before it"):
        grant(ledger, "j1")
    grant(ledger, "j2")


def test_who_has_no_room_there_is_not_passed() -> None:
    grant(waiting(asked(cpu=4000), asked()), "j2")


def test_what_the_ledger_decides_by_itself_passes_nobody() -> None:
    ledger = waiting(asked(), asked())
    ledger.settle(3.0)
    assert [*ledger.state.allocations] == ["j1.1", "j2.1"]


def test_a_job_is_not_given_up_before_its_node_was_silent_for_long() -> None:
    ledger = waiting(asked(), asked())
    state = ledger.state
    lost = job("j3", asked())
    lost.phase = Ended(outcome=Outcome(Cause.NODE_LOST), at=3.0, attempt=Attempt("n0", None))
    patience = state.policy.disconnected_after + state.policy.lost_after
    state.now = 3.0 + patience
    _not_given_up_early(state, lost)
    state.now -= 1.0
    with pytest.raises(Violation, match=f"j3: it is given up, n0 was heard {patience - 1.0:.1f} s ago"):
        _not_given_up_early(state, lost)
