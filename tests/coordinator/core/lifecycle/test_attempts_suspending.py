"""What an agent tells of jobs that it froze since the node's owner is back: seen by everybody, and never a state."""

import msgspec

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    Audit,
    CancelRequested,
    Command,
    MessageReceived,
    NodeDown,
    NodeUp,
    RecordJob,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import AwaitsReader, Exited, Inventory, Launch, Recalled, Stop, Suspended
from distributed_grid.protocol.nodes import Known
from tests.coordinator.core.lifecycle.test_attempts_retries import CORE, N1, running
from tests.coordinator.core.scene import step

WHY = "foreign CPU 87 %"


def suspended(ledger: Ledger, now: float, why: str = WHY, lasted: float = 0.0, in_all: float = 0.0) -> list[Command]:
    return step(ledger, MessageReceived("n1", Suspended(allocation="j.1", why=why, lasted=lasted, in_all=in_all)), now)


def stops(commands: list[Command]) -> list[Stop]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]


def test_it_is_shown_and_kept_and_the_job_runs_on_for_the_ledger() -> None:
    ledger = running(Request(CORE))
    out = suspended(ledger, 5.0)
    view = views.job(ledger.state, "j")
    assert view is not None and view.suspended is not None
    assert (view.state, view.suspended.since, view.suspended.why) == (State.RUNNING, 5.0, WHY)
    assert view.story[-1].text == f"suspended: the owner of n1 is back ({WHY})"
    assert views.allocations(ledger.state)[0].suspended == WHY
    assert [one for one in out if isinstance(one, RecordJob)]


def test_when_it_goes_on_its_end_is_later_by_as_much() -> None:
    ledger = running(Request(CORE))
    ledger.state.jobs["j"].spec = msgspec.structs.replace(ledger.state.jobs["j"].spec, time_limit=100.0)
    suspended(ledger, 5.0)
    ledger.settle(9.0)
    assert views.allocations(ledger.state)[0].ends == 1.0 + 100.0 + 4.0
    suspended(ledger, 15.0, "", 10.0, 10.0)
    view, (lent,) = views.job(ledger.state, "j"), views.allocations(ledger.state)
    assert view is not None and (view.suspended, view.suspended_for) == (None, 10.0)
    assert view.story[-1].text == "goes on after 10s" and (lent.suspended, lent.ends) == ("", 111.0)


def test_it_is_told_again_after_a_reconnect_and_then_nothing_new_has_happened() -> None:
    ledger = running(Request(CORE))
    suspended(ledger, 5.0)
    lines = len(ledger.state.jobs["j"].story)
    step(ledger, NodeDown("n1", "session-n1"), 6.0)
    step(ledger, NodeUp(N1, "second"), 7.0)
    step(ledger, MessageReceived("n1", Inventory(known=(Known("j.1", State.RUNNING, started_for=6.0),))), 7.0)
    suspended(ledger, 7.0, lasted=2.0, in_all=2.0)
    assert len(ledger.state.jobs["j"].story) == lines
    found = ledger.state.jobs["j"].active.suspended
    assert found is not None and found.since == 5.0


def test_what_is_not_known_here_is_noted() -> None:
    ledger = running(Request(CORE))
    out = step(ledger, MessageReceived("n1", Suspended(allocation="x.1", why=WHY)), 5.0)
    assert [type(one) for one in out] == [Audit]


def test_an_end_is_an_end_also_of_a_suspended_job() -> None:
    ledger = running(Request(CORE))
    suspended(ledger, 5.0)
    assert [one.cause for one in stops(step(ledger, CancelRequested(2, ("j",)), 6.0))] == ["cancelled"]
    out = step(
        ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=Outcome(Cause.CANCELLED, suspended=1.0))), 7.0
    )
    (record,) = [one for one in out if isinstance(one, RecordJob)]
    assert record.job.state is State.ENDED and record.job.view(None).suspended is None


def test_a_recalled_job_waits_again_with_its_age_and_starts_anew() -> None:
    ledger = running(Request(CORE))
    suspended(ledger, 5.0)
    out = step(ledger, MessageReceived("n1", Recalled(allocation="j.1", why=WHY, grace=5.0)), 8.0)
    job = ledger.state.jobs["j"]
    assert job.state is State.STOPPING and [one.cause for one in stops(out)] == ["recalled"]
    assert job.story[-1].text == f"recalled: the owner of n1 is back ({WHY}); it has 5 s to end"
    again = step(ledger, MessageReceived("n1", Recalled(allocation="j.1", why=WHY, grace=4.0)), 9.0)
    assert stops(again) == []
    outcome = Outcome(Cause.RECALLED, signal=15, suspended=3.0)
    out = step(ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=outcome, returned=True)), 10.0)
    launches = [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]
    assert [one.allocation for one in launches] == ["j.2"]
    assert (job.evicted, job.retried) == (1, 0)
    assert (job.active.suspended, job.active.attempt.suspended_for) == (None, 0.0)


def test_a_recalled_job_that_is_not_to_wait_again_ends_as_recalled() -> None:
    ledger = running(Request(CORE, requeue=False))
    step(ledger, MessageReceived("n1", Recalled(allocation="j.1", why=WHY, grace=5.0)), 8.0)
    out = step(
        ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=Outcome(Cause.RECALLED, signal=15))), 10.0
    )
    (record,) = [one for one in out if isinstance(one, RecordJob)]
    assert record.job.state is State.ENDED and record.job.outcome is not None
    assert record.job.outcome.cause is Cause.RECALLED


# --- a job that waits for the reader of its output -------------------------------------------------------------------


UNREAD = "257M of stdout unread"


def awaits(ledger: Ledger, now: float, why: str = UNREAD) -> list[Command]:
    return step(ledger, MessageReceived("n1", AwaitsReader(allocation="j.1", why=why, lasted=1.0)), now)


def test_that_a_job_waits_for_its_reader_is_shown_and_told_once() -> None:
    ledger = running(Request(CORE))
    for now in (5.0, 7.0):
        awaits(ledger, now)
        view = views.job(ledger.state, "j")
        assert view is not None and view.awaits_reader is not None and view.suspended is None
        assert (view.state, view.awaits_reader.since, view.awaits_reader.why) == (State.RUNNING, now - 1.0, UNREAD)
        assert views.allocations(ledger.state)[0].awaits_reader == UNREAD
        awaits(ledger, now + 1.0, why="")
        assert ledger.state.jobs["j"].active.awaits_reader is None
        assert views.allocations(ledger.state)[0].awaits_reader == ""
    assert [UNREAD in step.text for step in ledger.state.jobs["j"].story].count(True) == 1


def test_the_owner_and_the_reader_are_told_apart() -> None:
    ledger = running(Request(CORE))
    awaits(ledger, 5.0)
    suspended(ledger, 6.0)
    awaits(ledger, 7.0, why="")
    active = ledger.state.jobs["j"].active
    assert active.suspended is not None and active.awaits_reader is None and active.frozen


def test_the_inventory_says_who_still_waits_for_its_reader() -> None:
    ledger = running(Request(CORE))
    awaits(ledger, 5.0)
    for why in (UNREAD, ""):
        step(ledger, NodeDown("n1", "session-n1"), 6.0)
        step(ledger, NodeUp(N1, "session-n1"), 7.0)
        known = Known("j.1", State.RUNNING, started_for=6.0, awaits_reader=why)
        step(ledger, MessageReceived("n1", Inventory(known=(known,))), 7.0)
        found = ledger.state.jobs["j"].active.awaits_reader
        assert (found.why if found is not None else "") == why


def test_a_node_that_waits_for_the_reader_of_a_job_it_does_not_have_is_not_heard() -> None:
    ledger = running(Request(CORE))
    assert step(ledger, MessageReceived("n1", AwaitsReader(allocation="x.1", why=UNREAD)), 5.0) == []
