"""What is kept on a node for one job is nobody else's, until it is dropped."""

import pytest

from distributed_grid.coordinator.core.commands import HeartbeatReceived, JobsSubmitted, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Earmark
from distributed_grid.coordinator.core.preemption import earmarks
from distributed_grid.protocol.jobs import Reason, Request, State
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import MILLI, Grant, Resources
from tests.coordinator.core.scene import facts, job, join, kept_for, step

ALL = Earmark("n1", Grant((0, 1)), 20.0)


def kept() -> Ledger:
    """A job waits for all of a node that is free: it is kept for it."""
    ledger = Ledger()
    step(ledger, JobsSubmitted(1, (job("waits", Request(Resources(cpu=2 * MILLI))),)), 1.0)
    join(ledger, facts("n0", cores=1))
    ledger.handle(Tick(), 1.0)
    join(ledger, facts("n1", cores=2), 1.0, cores=())
    earmarks.keep(ledger.state, ledger.state.jobs["waits"], ALL)
    ledger.check()
    return ledger


def test_what_is_kept_is_off_the_room_and_its_job_out_of_the_queue() -> None:
    ledger = kept()
    waits, node = ledger.state.jobs["waits"], ledger.state.nodes["n1"]
    assert earmarks.of(waits) is ALL and "waits" not in ledger.state.queue
    assert node.earmarks == {"waits": ALL.grant}
    assert node.capacity is not None and not node.capacity.left.cpu
    assert earmarks.whole(ledger.state, waits, ALL) is None, "the owner has all of it still"
    assert earmarks.reason(waits, 10.0) == Reason("Returning", "what it gave on n1 is kept for it until 00:00:20 UTC")


def test_what_is_dropped_is_everybodys_again() -> None:
    ledger = kept()
    waits = ledger.state.jobs["waits"]
    assert earmarks.drop(ledger.state, waits) is ALL
    ledger.state.enqueue(waits)
    ledger.check()
    assert not ledger.state.nodes["n1"].earmarks and kept_for(waits) is None
    with pytest.raises(AssertionError, match="nothing is earmarked for waits"):
        earmarks.of(waits)


def test_what_is_not_whole_in_time_is_given_up() -> None:
    ledger = kept()
    step(ledger, HeartbeatReceived("n1", Sample(at=19.0)), 19.0)
    step(ledger, Tick(), 20.5)
    waits = ledger.state.jobs["waits"]
    assert waits.state is State.WAITING and "waits" in ledger.state.queue
    assert "it did not become free as a whole on n1 in time" in waits.story[-1].text
