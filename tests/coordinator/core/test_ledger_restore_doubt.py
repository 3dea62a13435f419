"""After a backup was restored nothing is run a second time, and what runs on nodes is let be."""

from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core import ledger as restore
from distributed_grid.coordinator.core.commands import (
    AckExits,
    Audit,
    Command,
    JobsSubmitted,
    MessageReceived,
    NodeUp,
    RecordJob,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.protocol.jobs import Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started, Stop
from distributed_grid.protocol.nodes import Known
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer, step

RESTORED = 1000.0
CORE = Request(Resources(cpu=1000), retry_on=(RetryOn.LOST,), retries=3)
N1 = facts("n1", cores=2)


def as_it_was() -> Ledger:
    """A grid at the moment of its backup: `runs` runs, `starts` was sent, `waits` has no room."""
    ledger = Ledger(epoch=3)
    join(ledger, N1)
    step(ledger, JobsSubmitted(1, (job("runs", CORE), job("starts", CORE), job("waits", CORE))), 1.0)
    step(ledger, MessageReceived("n1", Started("runs.1", 11)), 2.0)
    assert [one.state for one in ledger.state.jobs.values()] == [State.RUNNING, State.STARTING, State.WAITING]
    return ledger


def copies(things: list[Any]) -> list[Any]:
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=type(one)) for one in things]


@pytest.fixture
def ledger() -> Ledger:
    """The same grid restored from that backup, its node not heard yet."""
    was = as_it_was().state
    jobs: list[Job] = copies(list(was.jobs.values()))
    allocations: list[Allocation] = copies(list(was.allocations.values()))
    found = Ledger(epoch=1_790_000_000)
    found.restore(jobs, allocations, [N1], RESTORED, unknown_before=RESTORED)
    restore.end_after_restore(found.state, "not known")
    found.check()
    return found


def back(ledger: Ledger, *known: Known) -> list[Command]:
    """The node returns and says what it knows, and then that it has room."""
    out = step(ledger, NodeUp(N1, "s2"), RESTORED + 5)
    out += step(ledger, MessageReceived("n1", Inventory(known)), RESTORED + 5)
    return out + step(ledger, MessageReceived("n1", offer(N1)), RESTORED + 5)


def of(kind: type, out: list[Command]) -> list[Any]:
    return [one.message for one in out if isinstance(one, Send) and isinstance(one.message, kind)]


def test_what_waited_is_ended_and_says_why() -> None:
    ledger = as_it_was()
    out = restore.end_after_restore(ledger.state, "not known")
    ledger.check()
    ended = [one.job for one in out if isinstance(one, RecordJob) and one.job.state is State.ENDED]
    assert [(one.id, one.outcome) for one in ended] == [
        ("waits", Outcome(Cause.RESTORED, text="not known", started=False))
    ]
    assert ended[0].story[-1].text == "not known"


def test_what_the_node_still_runs_runs_on(ledger: Ledger) -> None:
    out = back(ledger, Known("runs.1", State.RUNNING, started_for=9.0), Known("starts.1", State.RUNNING, None, 8.0))
    assert not of(Stop, out) and not of(Launch, out)
    assert [(one.id, one.state) for one in ledger.state.jobs.values()] == [
        ("runs", State.RUNNING),
        ("starts", State.RUNNING),
    ]


def test_a_result_that_the_node_still_has_is_taken(ledger: Ledger) -> None:
    out = back(ledger, Known("runs.1", State.ENDED), Known("starts.1", State.ENDED))
    out += step(ledger, MessageReceived("n1", Exited("starts.1", Outcome(Cause.EXITED, code=3))), RESTORED + 6)
    ended = {one.job.id: one.job.outcome for one in out if isinstance(one, RecordJob) and one.job.outcome}
    assert ended == {"starts": Outcome(Cause.EXITED, code=3)}
    assert not of(Launch, out)


def test_what_the_node_does_not_know_any_more_is_over_and_not_run_again(ledger: Ledger) -> None:
    out = back(ledger)
    assert not ledger.state.jobs and not of(Launch, out)
    ended = {one.job.id: one.job.outcome for one in out if isinstance(one, RecordJob) and one.job.outcome}
    assert {name: outcome and outcome.cause for name, outcome in ended.items()} == {
        "runs": Cause.NODE_LOST,
        "starts": Cause.NODE_LOST,
    }


def test_a_stranger_from_before_is_let_run_on_and_its_result_is_kept_in_the_audit(ledger: Ledger) -> None:
    stranger = Known("waits.1", State.RUNNING, started_for=6.0)
    out = back(ledger, stranger)
    assert not of(Stop, out)
    out = step(ledger, MessageReceived("n1", Exited("waits.1", Outcome(Cause.EXITED, code=7))), RESTORED + 7)
    assert AckExits("n1", ("waits.1",)) in out
    assert any(isinstance(one, Audit) and "exited with code 7" in one.what for one in out)


@pytest.mark.parametrize(
    "stranger",
    [Known("x.1", State.RUNNING, started_for=4.0), Known("x.1", State.STARTING)],
    ids=["began after the restore", "has not begun"],
)
def test_any_other_stranger_is_stopped_as_ever(ledger: Ledger, stranger: Known) -> None:
    assert [one.allocation for one in of(Stop, back(ledger, stranger))] == ["x.1"]


def test_on_a_grid_that_was_never_restored_every_stranger_is_stopped() -> None:
    ledger = Ledger(epoch=3)
    ledger.restore((), (), [N1], RESTORED)
    stranger = Known("x.1", State.RUNNING, started_for=900.0)
    assert [one.allocation for one in of(Stop, back(ledger, stranger))] == ["x.1"]
