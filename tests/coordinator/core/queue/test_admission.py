"""Every request of a user is answered by exactly one command."""

import pytest

from distributed_grid.coordinator.core.commands import (
    Accepted,
    CancelRequested,
    Command,
    Granted,
    JobsSubmitted,
    Rejected,
    SignalRequested,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, step

CPU = Request(Resources(cpu=MILLI))


def ledger() -> Ledger:
    made = Ledger()
    join(made, facts("n1", cores=2))
    return made


def answers(out: list[Command]) -> list[Command]:
    return [one for one in out if isinstance(one, Accepted | Rejected | Granted)]


def test_a_key_that_is_known_stands_for_the_job_that_is_there() -> None:
    made = ledger()
    step(made, JobsSubmitted(1, (job("a", CPU, key="k"),)), 1.0)
    out = answers(step(made, JobsSubmitted(2, (job("b", CPU, key="k"),)), 2.0))
    assert out == [Accepted(2, ("a",), 1, 1)] and "b" not in made.state.jobs


@pytest.mark.parametrize(
    ("resources", "what"),
    [
        (Resources(), "nothing is asked for"),
        (Resources(gpu=1500), "1.5 gpu cannot be granted"),
        (Resources(cpu=3 * MILLI), "asks 3 cpu on one node; the only node lends 2 cpu (n1)"),
    ],
)
def test_of_jobs_asked_for_together_all_are_taken_or_none(resources: Resources, what: str) -> None:
    made = ledger()
    (said,) = answers(step(made, JobsSubmitted(1, (job("a", CPU), job("b", Request(resources)))), 1.0))
    assert isinstance(said, Rejected) and said.what == f"job 2 of 2: {what}"
    assert not made.state.jobs


def test_a_cancel_says_how_many_had_ended() -> None:
    made = ledger()
    step(made, JobsSubmitted(1, (job("a", CPU),)), 1.0)
    assert answers(step(made, CancelRequested(2, ("a", "gone")), 2.0)) == [Granted(2, "1 of 2 had ended already")]
    assert answers(step(made, CancelRequested(3, ("gone",)), 3.0)) == [Granted(3, "already ended")]


def test_a_signal_goes_to_running_jobs_only() -> None:
    made = ledger()
    step(made, JobsSubmitted(1, (job("a", CPU),)), 1.0)
    for number, name, code in ((2, "a", "unavailable"), (3, "gone", "not-allowed")):
        (said,) = answers(step(made, SignalRequested(number, name, 15), 2.0))
        assert isinstance(said, Rejected) and said.code == code
