"""A ledger whose store has lost commits starts nothing, ends nothing by itself, and takes what nodes tell."""

from typing import Any

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    AckExits,
    Alarm,
    Audit,
    CancelRequested,
    Command,
    DrainRequested,
    JobsSubmitted,
    LossFound,
    MessageReceived,
    NodeDoubted,
    NodeUp,
    RecordAllocation,
    RecordJob,
    RecordLoss,
    RecordOrders,
    Send,
    Tick,
    UndrainRequested,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.nodes.agents import CLOCKS_APART
from distributed_grid.protocol.jobs import Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started, Stop
from distributed_grid.protocol.nodes import Known, Stamp
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer, state_of, step

CORE = Request(Resources(cpu=1000), retry_on=(RetryOn.LOST,), retries=3)
N1 = facts("n1", cores=2)
FOUND = "12 commits are missing"
STAMP = Stamp(2, 7, "proven")
EXITED = Outcome(Cause.EXITED, code=3, seconds=4.0)


def of(kind: type, out: list[Command]) -> list[Any]:
    return [one.message for one in out if isinstance(one, Send) and isinstance(one.message, kind)]


def grid(*names: str) -> Ledger:
    ledger = Ledger(epoch=3)
    join(ledger, N1)
    step(ledger, JobsSubmitted(1, tuple(job(name, CORE, 1.0) for name in names)), 1.0)
    return ledger


def back(ledger: Ledger, *known: Known, now: float = 10.0) -> list[Command]:
    out = step(ledger, NodeUp(N1, "s2"), now)
    out += step(ledger, MessageReceived("n1", Inventory(known)), now)
    return out + step(ledger, MessageReceived("n1", offer(N1)), now)


def test_what_waits_is_not_started_and_says_so() -> None:
    ledger = Ledger(epoch=3)
    ledger.restore([job("waits", CORE)], [], [N1], 5.0, loss=(FOUND,))
    assert not of(Launch, back(ledger))
    view = views.job(ledger.state, "waits")
    assert view is not None and view.reason is not None and view.reason.code == "Store"
    assert "lost something" in view.reason.text


def test_from_the_moment_it_is_found_nothing_is_started_and_that_is_made_durable() -> None:
    ledger = grid("a", "b", "waits")
    out = step(ledger, LossFound(FOUND), 2.0)
    assert out[:2] == [RecordLoss(FOUND), Alarm(FOUND)] and not of(Launch, out)
    assert step(ledger, LossFound(FOUND), 2.0) == []
    out = step(ledger, MessageReceived("n1", Exited("a.1", EXITED, returned=True)), 3.0)
    assert not of(Launch, out) and ledger.state.jobs["waits"].state is State.WAITING
    assert AckExits("n1", ("a.1",)) in out, "results are taken"


def test_what_a_node_does_not_know_any_more_stays_as_it_is() -> None:
    ledger = grid("a", "b")
    step(ledger, MessageReceived("n1", Started("a.1", 11)), 2.0)
    step(ledger, LossFound(FOUND), 2.0)
    out = back(ledger)
    assert not of(Launch, out) and not of(Stop, out)
    assert [one.state for one in ledger.state.jobs.values()] == [State.RUNNING, State.STARTING]


def test_a_node_that_stays_away_ends_nothing() -> None:
    ledger = grid("a")
    step(ledger, LossFound(FOUND), 2.0)
    for now in (20.0, 100.0, 1000.0):
        step(ledger, Tick(), now)
    assert state_of(ledger, "a") is State.LOST
    back(ledger, Known("a.1", State.RUNNING, started_for=990.0), now=1010.0)
    assert state_of(ledger, "a") is State.RUNNING


def test_a_stranger_is_not_ended() -> None:
    ledger = grid()
    step(ledger, LossFound(FOUND), 2.0)
    out = back(ledger, Known("x.1", State.RUNNING, started_for=3.0), Known("y.1", State.STARTING))
    assert not of(Stop, out)
    assert sum("it runs on" in one.what for one in out if isinstance(one, Audit)) == 2


def test_a_node_that_says_what_it_cannot_prove_gets_no_job_and_the_others_do() -> None:
    ledger = grid()
    join(ledger, facts("n2", cores=2))
    out = step(ledger, NodeDoubted("n1", "n1 knows of x.1"), 2.0)
    drain = ledger.state.nodes["n1"].orders.drain
    assert drain is not None and drain.by == "the grid" and "n1 knows of x.1" in drain.reason
    assert any(isinstance(one, RecordOrders) for one in out), "it holds over restarts"
    step(ledger, NodeDoubted("nobody", "it knows of x.1"), 2.0)
    out = step(ledger, JobsSubmitted(2, tuple(job(f"k{n}", CORE, 2.0) for n in range(4))), 2.0)
    assert {one.node for one in out if isinstance(one, Send)} == {"n2"} and ledger.state.loss == ()
    out = step(ledger, UndrainRequested(3, ("n1",)), 3.0)
    assert {one.node for one in out if isinstance(one, Send)} == {"n1"}, "until an operator says otherwise"


def test_an_operators_own_order_stays() -> None:
    ledger = grid()
    step(ledger, DrainRequested(2, ("n1",), "ann", "a new kernel"), 2.0)
    step(ledger, NodeDoubted("n1", "n1 knows of x.1"), 2.0)
    drain = ledger.state.nodes["n1"].orders.drain
    assert drain is not None and (drain.by, drain.reason) == ("ann", "a new kernel")


def test_the_result_of_an_attempt_whose_grant_was_lost_is_the_jobs_where_that_is_proven() -> None:
    for stamp, taken in ((None, False), (STAMP, True)):
        ledger = Ledger(epoch=3)
        ledger.restore([job("waits", CORE, 1.0)], [], [N1], 5.0, loss=(FOUND,))
        out = back(ledger, Known("waits.1", State.ENDED, stamp=stamp))
        out += step(ledger, MessageReceived("n1", Exited("waits.1", EXITED, returned=True, stamp=stamp)), 11.0)
        ended = [one.job for one in out if isinstance(one, RecordJob) and one.job.state is State.ENDED]
        said = [(one.id, one.outcome, one.tries, one.node) for one in ended]
        assert said == ([("waits", EXITED, 1, "n1")] if taken else [])
        assert AckExits("n1", ("waits.1",)) in out and not of(Launch, out)


def test_a_proof_of_an_attempt_that_is_known_ends_nothing() -> None:
    ledger = grid("a")
    step(ledger, LossFound(FOUND), 2.0)
    step(ledger, MessageReceived("n1", Exited("a.1", EXITED)), 3.0)
    for name in ("a.1", "a.0", "nobody.7", "a.x", "a"):
        step(ledger, MessageReceived("n1", Exited(name, EXITED, stamp=STAMP)), 4.0)
    assert ledger.state.jobs == {}


def test_a_start_that_is_heard_of_while_the_job_is_being_stopped_is_stored() -> None:
    ledger = grid("j")
    step(ledger, CancelRequested(2, ("j",)), 2.0)
    out = back(ledger, Known("j.1", State.RUNNING, started_for=8.0))
    assert [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Stop)] == ["j.1"]
    stored = [one for one in out if isinstance(one, RecordAllocation | RecordJob)]
    assert [type(one) for one in stored] == [RecordAllocation, RecordJob]
    assert ledger.state.allocations["j.1"].started == ledger.state.jobs["j"].started == 2.0


def test_no_node_makes_the_other_jobs_of_a_user_count_as_endless() -> None:
    ledger = grid("a", "b")
    for name, seconds in (("a", 1e15), ("b", -1e15)):
        step(ledger, MessageReceived("n1", Started(allocation=f"{name}.1")), 2.0)
        step(ledger, MessageReceived("n1", Exited(f"{name}.1", Outcome(Cause.EXITED, seconds=seconds))), 11.0)
    assert list(ledger.state.queue.run_times.last["ann"]) == [10.0 + CLOCKS_APART]
    assert [[*runs] for runs in ledger.state.chains.run_times.values()] == [[10.0 + CLOCKS_APART]]
