"""A node that lost its records: what was granted there is held, and nothing of it is started twice."""

import pytest

from distributed_grid.coordinator.core.commands import (
    Audit,
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RecordJob,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Started
from distributed_grid.protocol.nodes import Known, NodeFacts, Sample, loss_suffix, lost_records
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer, step

WHY = "unknown what ran before 12:00: the journal is empty"
CORE = Resources(cpu=1000)
LOST = Request(CORE, retry_on=(RetryOn.LOST,), retries=2)


def n1(instance: str = "first", unknown: str = "", boot: str = "b1") -> NodeFacts:
    return facts("n1", cores=1, boot=boot, instance=instance, unknown=unknown)


def granted(request: Request = LOST, started: bool = True) -> Ledger:
    """A job that was launched on n1, and runs there if it was heard that it `started`."""
    ledger = Ledger()
    join(ledger, n1())
    step(ledger, JobsSubmitted(1, (job("j", request),)), 0.5)
    if started:
        step(ledger, MessageReceived("n1", Started(allocation="j.1")), 1.0)
    return ledger


def back(ledger: Ledger, of: NodeFacts, now: float, *known: Known) -> list[Command]:
    """n1's agent is back and knows of these, and offers its core."""
    step(ledger, NodeDown("n1", ledger.state.nodes["n1"].session), now)
    out = step(ledger, NodeUp(of, f"session at {now}"), now)
    out += step(ledger, MessageReceived("n1", Inventory(known=known)), now)
    return out + step(ledger, MessageReceived("n1", offer(of)), now)


def sent(commands: list[Command]) -> list[object]:
    return [one.message for one in commands if isinstance(one, Send)]


@pytest.mark.parametrize("started", [True, False], ids=["it was heard to start", "it was only launched"])
def test_what_the_node_does_not_know_is_held_and_not_started_again(started: bool) -> None:
    ledger = granted(started=started)
    out = back(ledger, n1("first~a", WHY), 5.0)
    assert sent(out) == [] and Audit("n1", WHY) in out
    assert ledger.state.allocations["j.1"].state is State.LOST
    assert ledger.state.jobs["j"].story[-1].text == f"n1 does not know what became of it: {WHY}"
    again = back(ledger, n1("first~a", WHY), 6.0)
    assert sent(again) == [] and not any(isinstance(one, Audit) for one in again)
    assert ledger.state.allocations["j.1"].state is State.LOST


@pytest.mark.parametrize("started", [True, False], ids=["it was heard to start", "it was only launched"])
def test_once_nothing_of_it_lives_it_is_run_again_as_another_attempt(started: bool) -> None:
    ledger = granted(started=started)
    back(ledger, n1("first~a", WHY), 5.0)
    out = back(ledger, n1("first~a"), 9.0)
    assert [getattr(one, "allocation", "") for one in sent(out)] == ["j.2"]
    assert ledger.state.allocations["j.2"].instance == "first~a"
    assert ledger.state.jobs["j"].retried == 1


def test_a_job_that_is_not_to_be_run_again_is_over_and_may_have_run() -> None:
    ledger = granted(Request(CORE), started=False)
    back(ledger, n1("first~a", WHY), 5.0)
    out = back(ledger, n1("first~a"), 9.0)
    assert sent(out) == [] and ledger.state.allocations == {}
    (outcome,) = {one.job.outcome for one in out if isinstance(one, RecordJob)}
    assert outcome == Outcome(Cause.NODE_LOST, text="n1 lost its records of it, and nothing of it lives there")
    assert outcome.started


def test_the_word_that_nothing_lives_counts_also_for_a_coordinator_that_did_not_hear_of_the_loss() -> None:
    ledger = granted(started=False)
    out = back(ledger, n1("first~a"), 9.0)
    assert [getattr(one, "allocation", "") for one in sent(out)] == ["j.2"]


def test_what_the_node_found_all_the_same_goes_on() -> None:
    ledger = granted()
    out = back(ledger, n1("first~a", WHY), 5.0, Known("j.1", State.RUNNING, started_for=4.0))
    assert sent(out) == [] and ledger.state.allocations["j.1"].state is State.RUNNING
    back(ledger, n1("first~a"), 9.0, Known("j.1", State.RUNNING, started_for=8.0))
    assert ledger.state.allocations["j.1"].state is State.RUNNING
    step(ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=Outcome(Cause.EXITED), returned=True)), 10.0)
    assert ledger.state.jobs == {}


def test_a_stop_is_not_sent_where_it_would_be_answered_that_it_never_ran() -> None:
    ledger = granted()
    back(ledger, n1("first~a", WHY), 5.0)
    assert sent(step(ledger, CancelRequested(2, ("j",)), 6.0)) == []
    assert ledger.state.allocations["j.1"].state is State.LOST
    back(ledger, n1("first~a"), 9.0)
    assert ledger.state.jobs == {} and ledger.state.allocations == {}


def test_who_asks_why_is_told_that_the_node_does_not_know_and_what_to_do() -> None:
    ledger = granted()
    back(ledger, n1("first~a", WHY), 5.0)
    said = why(ledger.state, "j", None, 6.0).reason.text
    assert said == f"it is lost on n1, which does not know what became of it: {WHY}"


def test_a_node_that_was_silent_and_speaks_again_does_not_make_it_run() -> None:
    ledger = granted()
    back(ledger, n1("first~a", WHY), 5.0)
    step(ledger, Tick(), 17.0)
    assert sent(step(ledger, HeartbeatReceived("n1", Sample(at=18.0)), 18.0)) == []
    assert ledger.state.allocations["j.1"].state is State.LOST


def test_a_node_that_is_lost_before_it_knows_has_its_job_ended_and_not_run_again() -> None:
    ledger = granted()
    join(ledger, facts("n2", cores=1), 2.0)
    assert ledger.state.allocations["j.1"].lease > 0
    back(ledger, n1("first~a", WHY), 5.0)
    for now in range(6, 100):
        step(ledger, MessageReceived("n2", offer(facts("n2", cores=1))), now)
    assert ledger.state.jobs == {} and ledger.state.allocations == {}


def test_a_reboot_proves_that_nothing_lives() -> None:
    ledger = granted()
    back(ledger, n1("first~a", WHY), 5.0)
    back(ledger, n1("first~a", boot="b2"), 9.0)
    assert ledger.state.jobs["j"].retried == 1 and "rebooted" in " ".join(
        step.text for step in ledger.state.jobs["j"].story
    )


def test_another_state_directory_is_no_loss_of_records() -> None:
    ledger = granted()
    back(ledger, n1("other~a"), 5.0)
    assert ledger.state.jobs == {}  # it may run on there: it is not run again


def test_each_loss_is_told_apart() -> None:
    once, twice = loss_suffix("first", "a"), loss_suffix(loss_suffix("first", "a"), "b")
    assert (once, twice) == ("first~a", "first~b")
    assert [lost_records(once, before) for before in ("first", "", once, twice, "other")] == [
        True, True, False, True, False,
    ]  # fmt: skip
    assert not lost_records("first", "first") and not lost_records("first", "other")
