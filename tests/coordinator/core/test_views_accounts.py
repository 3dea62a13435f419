"""What is held and was held outlasts the coordinator, is written seldom, and is shown as it decides."""

from copy import deepcopy

import pytest

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import Command, JobsSubmitted, MessageReceived, RecordShare, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy, Sharing
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, step

DAY = 86_400.0
PATIENT = Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9, sharing=Sharing(weights={"cleo": 2.0}))
NODE = facts("n1", 4)


def grid() -> Ledger:
    ledger = Ledger(policy=PATIENT)
    join(ledger, NODE, 1.0, expires_in=1e9)
    return ledger


def submit(ledger: Ledger, user: str, count: int, now: float, priority: Priority = Priority.MEDIUM) -> list[Command]:
    first = ledger.state.next_turn
    request = Request(Resources(cpu=1000), priority)
    return step(
        ledger, JobsSubmitted(1, tuple(job(f"{user}{first + n}", request, now, user) for n in range(count))), now
    )


def run_for(ledger: Ledger, name: str, began: float, ended: float) -> list[Command]:
    out = step(ledger, MessageReceived("n1", Started(allocation=f"{name}.1")), began)
    return out + step(ledger, MessageReceived("n1", Exited(f"{name}.1", Outcome(cause=Cause.EXITED), True)), ended)


def saved(out: list[Command]) -> dict[str, tuple[float, float]]:
    return {one.user: (one.past, one.at) for one in out if isinstance(one, RecordShare)}


def test_a_thousand_changes_of_a_minute_are_written_once() -> None:
    ledger = grid()
    for number in range(1, 101):
        assert not saved(submit(ledger, "ann", 1, 1.0 + number / 10))
        run_for(ledger, f"ann{number}", 1.0 + number / 10, 1.05 + number / 10)
    out = saved(step(ledger, Tick(), 62.0))
    assert list(out) == ["ann"] and out["ann"][0] > 0.0
    assert not saved(step(ledger, Tick(), 200.0)), "nothing has changed"


def test_what_a_user_held_is_known_after_a_restart_and_what_they_hold_went_on() -> None:
    ledger = grid()
    submit(ledger, "ann", 2, 1.0)
    submit(ledger, "ben", 1, 1.0)
    past = saved(run_for(ledger, "ben3", 1.0, 1000.0))
    jobs, held = deepcopy(list(ledger.state.jobs.values())), deepcopy(list(ledger.state.allocations.values()))

    other = Ledger(policy=PATIENT)
    other.restore(jobs, held, [NODE], DAY, past=past)
    for user in ("ann", "ben"):
        before = ledger.state.shares.share(user, DAY, PATIENT.sharing)
        assert other.state.shares.share(user, DAY, PATIENT.sharing) == pytest.approx(before, rel=1e-9) and before > 0


def test_an_account_that_counts_no_more_is_forgotten_on_disk_too() -> None:
    ledger = grid()
    submit(ledger, "ann", 1, 1.0)
    run_for(ledger, "ann1", 1.0, 100.0)
    step(ledger, Tick(), 200.0)
    submit(ledger, "ben", 1, 60 * DAY)
    assert saved(step(ledger, Tick(), 60 * DAY + 61.0))["ann"] == (0.0, 0.0)
    assert "ann" not in ledger.state.shares.accounts


def test_users_are_shown_in_the_order_in_which_they_are_served() -> None:
    ledger = grid()
    submit(ledger, "ann", 5, 1.0)
    submit(ledger, "ben", 2, 2.0)
    submit(ledger, "cleo", 1, 3.0, Priority.LOW)
    submit(ledger, "dan", 1, 4.0)
    submit(ledger, "dan", 1, 4.0, Priority.HIGH)
    shown = views.shares(ledger.state, 5.0)
    assert [(one.user, one.position) for one in shown] == [("dan", 1), ("ben", 2), ("ann", 3), ("cleo", 4)]
    ann, cleo = shown[2], shown[3]
    assert (ann.held, ann.running, ann.waiting, ann.holds) == (1.0, 4, {"medium": 1}, Resources(cpu=4000))
    assert shown[0].waiting == {"high": 1, "medium": 1} and cleo.weight == 2.0
    run_for(ledger, "ann1", 6.0, 7.0)
    assert ledger.state.jobs["dan10"].allocation, "whoever is shown first is served first"
