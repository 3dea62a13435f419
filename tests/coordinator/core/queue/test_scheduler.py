"""A pass starts who can be placed, in order, and looks at nobody again without a reason."""

from distributed_grid.coordinator.core.commands import Command, JobsSubmitted, MessageReceived, Send, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Refusal
from distributed_grid.coordinator.core.queue import scheduler
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, offer, step


def cores(count: int, priority: Priority = Priority.NORMAL) -> Request:
    return Request(Resources(cpu=count * MILLI), priority)


def launched(out: list[Command]) -> list[str]:
    return [one.message.job for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]


def waiting(*jobs: tuple[str, int, Priority]) -> Ledger:
    """These wait, in this order, and there is no node yet."""
    ledger = Ledger()
    for number, (name, count, priority) in enumerate(jobs):
        step(ledger, JobsSubmitted(number, (job(name, cores(count, priority)),)), 1.0 + number)
    return ledger


def test_classes_go_by_priority_and_equals_by_age() -> None:
    normal, high = Priority.NORMAL, Priority.HIGH
    ledger = waiting(("a", 1, normal), ("b", 1, high), ("c", 1, normal), ("d", 1, high))
    assert launched(join(ledger, facts("n1", cores=3), 9.0)) == ["b", "d", "a"]


def test_who_does_not_fit_keeps_nobody_smaller_from_another_node() -> None:
    ledger = waiting(("large", 4, Priority.NORMAL), ("small", 1, Priority.NORMAL))
    assert launched(join(ledger, facts("n1", cores=1), 9.0)) == ["small"]
    assert "large" in ledger.state.queue


def test_a_line_that_was_refused_waits_until_a_node_has_grown() -> None:
    ledger = waiting(("a", 4, Priority.NORMAL))
    of = facts("n1", cores=4)
    join(ledger, of, 9.0, cores=(0, 1))
    assert launched(step(ledger, Tick(), 10.0)) == [] and ledger.state.queue.line("a").blocked
    assert launched(step(ledger, MessageReceived("n1", offer(of)), 11.0)) == ["a"]


def test_where_a_job_would_start_is_asked_without_a_change() -> None:
    ledger = waiting()
    join(ledger, facts("n1", cores=2), 1.0)
    found = scheduler.would(ledger.state, cores(2), "ann", 0.0, 2.0)
    assert not isinstance(found, Refusal) and found[0].node == "n1"
    assert isinstance(scheduler.would(ledger.state, cores(3), "ann", 0.0, 2.0), Refusal)
    assert not ledger.state.jobs and not ledger.state.allocations
