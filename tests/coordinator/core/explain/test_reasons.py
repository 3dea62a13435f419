"""Why jobs wait, in one code and one sentence."""

from collections.abc import Container

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    StoreFailing,
    Tick,
)
from distributed_grid.coordinator.core.data import EVERYTHING
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Priority, Reason, Request
from distributed_grid.protocol.messages import Started
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


def test_who_is_next_in_a_line_does_not_wait_for_what_the_one_before_did() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=2), expires_in=1e9)
    one = Request(Resources(cpu=MILLI))
    step(ledger, JobsSubmitted(1, (job("runs", one, user="cat", time_limit=50.0),)), 1.0)
    step(ledger, MessageReceived("n1", Started(allocation="runs.1")), 1.0)
    large = Request(Resources(cpu=2 * MILLI), Priority.HIGH)
    step(ledger, JobsSubmitted(2, (job("large", large, user="ben"),)), 2.0)
    step(ledger, JobsSubmitted(3, (job("s1", one), job("s2", one))), 3.0)
    for name in ("s1", "s2"):
        assert (said := why(ledger, name)) is not None and said.code in ("Reserved", "Priority")
    step(ledger, CancelRequested(4, ("large",)), 4.0)
    for second in (5.0, 7.0):
        step(ledger, Tick(), second)
    assert why(ledger, "s1") is None
    assert why(ledger, "s2") == Reason("Resources", "needs 1 cpu; n1 has 0 cpu free")


def test_a_gang_that_a_reservation_keeps_from_a_node_with_room_is_told_so() -> None:
    ledger = Ledger()
    for name in ("n1", "n2"):
        join(ledger, facts(name), expires_in=1e9)
    half, whole = Request(Resources(2 * MILLI)), Request(Resources(4 * MILLI), Priority.HIGH)
    for name, node in (("a", "n1"), ("b", "n2")):
        wanted = replace(half, nodes=(node,))
        step(ledger, JobsSubmitted(1, (job(name, wanted, user="cat", time_limit=600.0),)), 1.0)
        step(ledger, MessageReceived(node, Started(allocation=f"{name}.1")), 1.0)
    step(ledger, JobsSubmitted(2, (job("large", whole, user="ben"),)), 2.0)
    step(ledger, JobsSubmitted(3, (job("behind", Request(Resources(MILLI)), user="eve"),)), 3.0)
    assert set(ledger.state.reservations.by_job) == {"large"}
    said = reasons.find(ledger.state, Request(Resources(MILLI), gang=2))
    assert said.code == "Reserved" and "is kept for large, which needs 4 cpu" in said.text


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
