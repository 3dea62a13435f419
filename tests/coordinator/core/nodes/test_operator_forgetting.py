"""A node that is no more is forgotten whole, and nothing that may still be in use ever is."""

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    Command,
    DrainRequested,
    Granted,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    RecordForgotten,
    RecordOrders,
    Rejected,
    RemovalRequested,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages import Started
from distributed_grid.protocol.nodes import NO_ORDERS
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, step

CORE = Request(Resources(cpu=1000))
N1 = facts("n1", cores=2, labels={"room": "a"})
N2 = facts("n2", cores=2)


def grid() -> Ledger:
    ledger = Ledger()
    join(ledger, N1)
    join(ledger, N2)
    return ledger


def gone(ledger: Ledger, name: str, at: float) -> None:
    step(ledger, NodeDown(name, ledger.state.nodes[name].session), at)


def answer(commands: list[Command]) -> Granted | Rejected:
    (found,) = [one for one in commands if isinstance(one, Granted | Rejected)]
    return found


def test_a_node_that_left_is_forgotten_with_what_was_ordered_for_it() -> None:
    ledger = grid()
    step(ledger, DrainRequested(1, ("n1",), "ann", "old", 50.0), 1.0)
    gone(ledger, "n1", 2.0)
    out = step(ledger, RemovalRequested(7, ("n1",), "ann"), 3.0)
    assert answer(out) == Granted(7, "n1 is forgotten")
    assert [one for one in out if not isinstance(one, Granted)] == [
        RecordOrders("n1", NO_ORDERS),
        RecordForgotten("n1"),
    ]
    assert set(ledger.state.nodes) == {"n2"}
    assert ledger.state.shares.capacity == N2.lendable
    for at in (20.0, 60.0, 500.0):  # nothing that was due for it comes up
        step(ledger, DrainRequested(2, ("n2",)), at)


def test_it_is_a_new_node_if_it_comes_back() -> None:
    ledger = grid()
    step(ledger, DrainRequested(1, ("n1",)), 1.0)
    gone(ledger, "n1", 2.0)
    step(ledger, RemovalRequested(7, ("n1",)), 3.0)
    join(ledger, N1)
    assert ledger.state.nodes["n1"].orders == NO_ORDERS
    step(ledger, JobsSubmitted(1, (job("j", Request(Resources(cpu=1000), nodes=("n1",))),)), 4.0)
    assert ledger.state.jobs["j"].node == "n1"


def test_a_connected_node_is_not_forgotten() -> None:
    ledger = grid()
    refused = answer(step(ledger, RemovalRequested(7, ("n1",)), 1.0))
    assert isinstance(refused, Rejected) and refused.code == "connected"
    assert set(ledger.state.nodes) == {"n1", "n2"}


def test_a_node_on_which_a_job_may_run_is_not_forgotten_and_no_other_either() -> None:
    ledger = grid()
    step(ledger, JobsSubmitted(1, (job("j", Request(Resources(cpu=1000), nodes=("n1",))),)), 0.5)
    step(ledger, MessageReceived("n1", Started(allocation="j.1")), 1.0)
    gone(ledger, "n1", 2.0)
    gone(ledger, "n2", 2.0)
    refused = answer(step(ledger, RemovalRequested(7, ("n2", "n1")), 3.0))
    assert isinstance(refused, Rejected) and refused.code == "in-use"
    assert set(ledger.state.nodes) == {"n1", "n2"}
    step(ledger, RemovalRequested(8, ("n2",)), 100.0)  # by now n1 is lost, and its job with it
    assert answer(step(ledger, RemovalRequested(9, ("n1",)), 101.0)) == Granted(9, "n1 is forgotten")


def test_an_unknown_node_is_not_forgotten() -> None:
    refused = answer(step(grid(), RemovalRequested(7, ("n3",)), 1.0))
    assert isinstance(refused, Rejected) and refused.code == "bad-value"


def test_a_checkpoint_after_it_is_of_the_same_ledger() -> None:
    ledger = grid()
    step(ledger, JobsSubmitted(1, tuple(job(f"j{n}", CORE) for n in range(9))), 0.5)
    for at in (2.0, 3.0):
        gone(ledger, "n1", at)
        gone(ledger, "n2", at)
    step(ledger, JobsSubmitted(2, (job("k", CORE),)), 100.0)
    step(ledger, RemovalRequested(7, ("n1",)), 200.0)
    taken = checkpoint.take(ledger)
    assert set(taken.nodes) == {"n2"}
    assert checkpoint.differs(taken, checkpoint.take(checkpoint.resume(taken))) == ""
