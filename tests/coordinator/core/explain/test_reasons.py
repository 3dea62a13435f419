"""Why jobs wait, in one code and one sentence."""

from collections.abc import Container

import pytest

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import JobsSubmitted, NodeDown, StoreFailing, Tick
from distributed_grid.coordinator.core.data import EVERYTHING
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Reason, Request
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, step

TWO = Request(Resources(cpu=2 * MILLI))


def full(*waiting: str, watched: Container[str] = EVERYTHING) -> Ledger:
    """One node, which the first job holds; these wait."""
    ledger = Ledger(watched=watched)
    join(ledger, facts("n1", cores=2))
    for number, name in enumerate(("first", *waiting)):
        step(ledger, JobsSubmitted(number, (job(name, TWO),)), 1.0 + number)
    return ledger


def why(ledger: Ledger, name: str) -> Reason | None:
    return reasons.now_for(ledger.state, ledger.state.jobs[name])


def test_who_waits_for_room_is_told_what_is_free_and_who_is_behind_how_many_are_ahead() -> None:
    ledger = full("second", "third")
    assert why(ledger, "first") is None
    second, third = why(ledger, "second"), why(ledger, "third")
    assert second is not None and second.code == "Resources" and "n1 has 0 cpu free" in second.text
    assert third == Reason("Priority", "1 job is ahead in the queue")


def test_what_is_kept_from_starting_at_all_comes_before_what_a_job_lacks() -> None:
    ledger = full("second")
    step(ledger, StoreFailing(True), 5.0)
    assert reasons.find(ledger.state, TWO).code == "Store"
    assert reasons.find(Ledger().state, TWO).code == "NoOffers"


def test_a_reason_that_is_no_longer_true_is_told_anew_within_a_second() -> None:
    ledger = full("second")
    session = ledger.state.nodes["n1"].session
    step(ledger, NodeDown("n1", session), 5.0)
    step(ledger, Tick(), 6.5)
    said = why(ledger, "second")
    assert said is not None and said.code == "NoOffers" and "cannot be reached" in said.text
    assert ledger.state.jobs["second"].reason == said


def test_whether_somebody_watches_changes_no_answer_and_nothing_is_worded_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched, unwatched = full("second", "third"), full("second", "third", watched=frozenset())
    for ledger in (watched, unwatched):
        step(ledger, NodeDown("n1", ledger.state.nodes["n1"].session), 5.0)
        step(ledger, Tick(), 6.5)
    assert [one.reason for one in unwatched.state.jobs.values()] == [None] * 3
    assert [why(unwatched, name) for name in unwatched.state.jobs] == [
        why(watched, name) for name in watched.state.jobs
    ]
    assert checkpoint.differs(checkpoint.take(watched), checkpoint.take(unwatched)) == ""
    assert unwatched.state.deadlines.next() == watched.state.deadlines.next()
    monkeypatch.setattr(reasons, "find", None)  # nothing may call it
    step(unwatched, Tick(), 8.0)


def test_an_answer_about_many_words_so_many_lines_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = full(watched=frozenset())
    for number in range(reasons.LINES + 5):
        wanted = Request(Resources(cpu=2 * MILLI, memory=1 + number))
        step(ledger, JobsSubmitted(9, tuple(job(f"j{number}-{copy}", wanted) for copy in "ab")), 9.0)
    found, find = list[Request](), reasons.find

    def counted(state: GridState, request: Request, job: str = "") -> Reason:
        found.append(request)
        return find(state, request, job)

    monkeypatch.setattr(reasons, "find", counted)
    wording = reasons.Wording(ledger.state)
    said = [wording.of(one) for _ in range(2) for one in ledger.state.jobs.values() if one.id.endswith("-a")]
    assert len(found) == len({*found}) == reasons.LINES
    assert sum(one is None for one in said) == 2 * 5
    behind = wording.of(ledger.state.jobs["j3-b"])
    assert behind is not None and behind.code == "Priority"
