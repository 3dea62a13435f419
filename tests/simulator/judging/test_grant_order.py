"""Every grant is looked at before it is made: one that passes somebody is refused, one that passes nobody is made."""

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import JobsSubmitted, LabelsRequested, MessageReceived, NodeUp, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Attempt, Ended, Placement
from distributed_grid.coordinator.core.policy import DEFAULT, Policy, Sharing
from distributed_grid.coordinator.core.queue import ranking
from distributed_grid.coordinator.core.queue.reservations import STARTING
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, ServiceOrder
from distributed_grid.protocol.messages import Exited, Inventory, Started
from distributed_grid.protocol.placement import Constraints, parse_label
from distributed_grid.protocol.resources import Grant, Resources
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.grant_order import (
    SLACK,
    FirstOverdue,
    Watched,
    _is_likely_over,
    _not_given_up_early,
)
from tests.coordinator.core.scene import facts, job, join, offer, step


def waiting(first: Request, second: Request, users: tuple[str, str] = ("ann", "ann")) -> Watched:
    """Two jobs wait since before a node came that has just offered two cores."""
    ledger = Watched(1, DEFAULT)
    for number, (request, user) in enumerate(zip((first, second), users, strict=True), 1):
        ledger.handle(JobsSubmitted(number, (job(f"j{number}", request, float(number), user),)), float(number))
        ledger.settle(float(number))
    node = facts("n0", cores=2)
    for event in (NodeUp(node, "s"), MessageReceived("n0", Inventory(())), MessageReceived("n0", offer(node))):
        ledger.handle(event, 3.0)
    return ledger


def grant(ledger: Watched, name: str) -> None:
    """One core of the node goes to this job."""
    state = ledger.state
    state.grant(state.jobs[name], Placement("n0", Grant((len(state.allocations),)), 1.0, {}), 0.0)


def asked(cpu: int = 1000, priority: Priority = Priority.MEDIUM) -> Request:
    return Request(Resources(cpu), priority)


def test_nobody_passes_an_earlier_job_of_the_same_user_that_has_room() -> None:
    ledger = waiting(asked(cpu=500), asked())
    with pytest.raises(Violation, match="j2: it is granted n0; j1 of ann comes before it and has room there"):
        grant(ledger, "j2")


def test_nobody_passes_a_job_of_a_higher_priority_that_has_room() -> None:
    ledger = waiting(asked(), asked(priority=Priority.URGENT), ("ann", "ben"))
    with pytest.raises(Violation, match="j1: it is granted n0; j2 of ben comes before it"):
        grant(ledger, "j1")
    grant(ledger, "j2")


def test_who_has_no_room_there_is_not_passed() -> None:
    grant(waiting(asked(cpu=4000), asked()), "j2")


def test_a_job_gets_no_place_on_a_node_without_its_label() -> None:
    request = replace(asked(), constraints=Constraints(labels=(parse_label("zone=a"),)))
    ledger = waiting(request, asked())
    with pytest.raises(Violation, match="j1: it is granted n0"):
        grant(ledger, "j1")
    ledger.handle(LabelsRequested(9, ("n0",), {"zone": "a"}), 3.0)
    grant(ledger, "j1")


def test_what_the_ledger_decides_by_itself_passes_nobody() -> None:
    ledger = waiting(asked(), asked())
    ledger.settle(3.0)
    assert [*ledger.state.allocations] == ["j1.1", "j2.1"]


def test_a_job_is_not_given_up_before_its_node_was_silent_for_long() -> None:
    ledger = waiting(asked(), asked())
    state = ledger.state
    lost = job("j3", asked())
    lost.phase = Ended(outcome=Outcome(Cause.NODE_LOST), at=3.0, attempt=Attempt("n0", None))
    patience = state.policy.disconnected_after + state.policy.lost_after
    state.now = 3.0 + patience
    _not_given_up_early(state, lost)
    state.now -= 1.0
    with pytest.raises(Violation, match=f"j3: it is given up, n0 was heard {patience - 1.0:.1f} s ago"):
        _not_given_up_early(state, lost)


def test_who_is_predicted_to_be_over_in_time_delays_nobody_who_could_take_its_place() -> None:
    ledger = waiting(asked(), asked())
    state, job, large = ledger.state, ledger.state.jobs["j2"], asked(cpu=2000, priority=Priority.URGENT)
    by = state.now + STARTING + 20.0
    assert not _is_likely_over(state, job, large, by), "nothing is predicted"
    job.planned = 10.0
    hold = state.policy.preempting.min_hold
    assert _is_likely_over(state, job, large, by + hold)
    assert not _is_likely_over(state, job, large, state.now + STARTING + min(10.0, hold) / 2)
    assert not _is_likely_over(state, job, asked(cpu=2000), by + hold), "it takes the place of nobody of its class"


# --- who is overdue ---------------------------------------------------------------------------------------------------

SHARING = Sharing(head_start=1.0, shortest=1.0, overdue_after=2.0)


PATIENT = Policy(suspect_after=1e9, disconnected_after=1e9, lost_after=1e9, sharing=SHARING)


def grid(sharing: Sharing = SHARING) -> Ledger:
    """See `scene`."""
    ledger = Ledger(policy=replace(PATIENT, sharing=sharing))
    scene(ledger)
    return ledger


def scene(ledger: Ledger) -> None:
    """One core is held until 101; one job waits for both, and is overdue from 12 on."""
    join(ledger, facts("n1", 2), expires_in=1e9)
    for name, cores, limit in (("held", 1000, 99.0), ("wide", 2000, 5.0)):
        asked = job(name, Request(Resources(cores)), 2.0, time_limit=limit, grace=0.0)
        step(ledger, JobsSubmitted(1, (asked,)), 2.0)
    step(ledger, MessageReceived("n1", Started(allocation="held.1")), 2.0)


def look(ledger: Ledger, watch: FirstOverdue, now: float) -> None:
    step(ledger, Tick(), now)
    watch.see(ledger.state)


def test_nobody_is_watched_before_it_is_overdue() -> None:
    ledger, watch = grid(), FirstOverdue()
    look(ledger, watch, 11.0)
    assert not watch.watched
    look(ledger, watch, 12.1)
    assert (watch.watched, watch.latest) == ("wide", 101.0)


def end_without_a_pass(ledger: Ledger, now: float) -> None:
    """All is over that was running, and nothing starts."""
    over = Exited("held.1", Outcome(Cause.EXITED, seconds=99.0), True)
    ledger.handle(MessageReceived("n1", over), now)


def see(ledger: Ledger, watch: FirstOverdue, now: float) -> None:
    ledger.handle(Tick(), now)
    watch.see(ledger.state)


def test_who_has_not_started_when_all_is_over_is_a_violation() -> None:
    ledger, watch = grid(), FirstOverdue()
    look(ledger, watch, 20.0)
    end_without_a_pass(ledger, 101.0)
    see(ledger, watch, 101.0 + SLACK)
    with pytest.raises(Violation, match="wide: it is overdue and the first, and should have started 4.1 s ago"):
        see(ledger, watch, 101.1 + SLACK)


def test_who_waits_for_what_should_be_over_on_a_node_that_went_is_not_watched() -> None:
    ledger, watch = grid(), FirstOverdue()
    for now in (20.0, 101.0, 101.0 + SLACK):
        look(ledger, watch, now)
        assert (watch.watched, watch.latest) == ("wide", 101.0)
    look(ledger, watch, 101.1 + SLACK)
    assert not watch.watched


def test_who_waits_for_what_ended_long_ago_by_the_clock_of_a_new_coordinator_is_not_watched() -> None:
    ledger, watch = grid(), FirstOverdue()
    for now in (86400.0, 86400.1):
        look(ledger, watch, now)
        assert not watch.watched


def test_where_the_node_lends_something_else_it_is_watched_anew() -> None:
    ledger, watch = grid(), FirstOverdue()
    look(ledger, watch, 20.0)
    end_without_a_pass(ledger, 101.0)
    ledger.state.nodes["n1"].closed = frozenset({"0"})
    see(ledger, watch, 200.0)
    assert (watch.watched, watch.latest) == ("wide", 200.0)


def test_who_is_overdue_is_so_until_it_was_granted_what_another_one_holds() -> None:
    sharing = Sharing(shortest=1.0, overdue_after=0.05)
    ledger = Watched(1, replace(PATIENT, sharing=sharing))
    join(ledger, facts("n1", 1), expires_in=1e9)

    def submit(now: float, user: str, *names: str, limit: float = 0.0) -> None:
        new = tuple(job(name, asked(), now, user, time_limit=limit, grace=0.0) for name in names)
        step(ledger, JobsSubmitted(1, new), now)

    def runs(now: float, *names: str) -> None:
        for name in names:
            step(ledger, MessageReceived("n1", Started(allocation=f"{name}.1")), now)
            over = Exited(f"{name}.1", Outcome(Cause.EXITED, seconds=0.02), True)
            step(ledger, MessageReceived("n1", over), now)

    submit(1.0, "ann", "j0", "j1", "j2", "j3")
    runs(1.1, "j0", "j1", "j2", "j3")
    submit(2.0, "ann", *(f"j{number}" for number in range(4, 12)))
    assert ledger.state.chains.predecessors == {"j5.1": "j4.1", "j6.1": "j5.1"}
    submit(2.06, "ben", "his", limit=1.0)
    runs(2.07, "j4", "j5")
    assert ledger.state.chains.predecessors == {"j7.1": "j6.1"}


def test_who_was_overdue_is_so_again_when_it_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing = Sharing(shortest=1.0, overdue_after=0.05)

    def play() -> None:
        ledger = Watched(1, replace(PATIENT, sharing=sharing))
        join(ledger, facts("n1", 1), expires_in=1e9)
        new = tuple(job(f"j{number}", asked(), 1.0) for number in range(12))
        step(ledger, JobsSubmitted(1, new), 1.0)
        step(ledger, JobsSubmitted(2, (job("his", asked(), 1.0, "ben", time_limit=36000.0),)), 1.0)
        for number in range(5):
            over = Exited(f"j{number}.1", Outcome(Cause.EXITED, seconds=0.01), True)
            step(ledger, MessageReceived("n1", over), 1.01 if number < 4 else 3.0)
        assert ledger.state.chains.predecessors == {"j6.1": "j5.1"}
        gone = Exited("j6.1", Outcome(Cause.WITHDRAWN, started=False))
        step(ledger, MessageReceived("n1", gone), 3.1)

    play()
    monkeypatch.setattr(ranking, "not_served", lambda state, job: None)
    with pytest.raises(Violation, match="j6: it was taken back before it started, and its lane waits as if j6.1 had"):
        play()


@pytest.mark.parametrize("priority", [Priority.MEDIUM, Priority.HIGH])
def test_where_somebody_of_a_higher_class_started_in_between_it_is_watched_anew(priority: Priority) -> None:
    ledger = Watched(1, PATIENT)
    scene(ledger)
    step(ledger, Tick(), 12.1)
    assert (ledger.overdue.watched, ledger.overdue.latest) == ("wide", 101.0)
    new = job("new", asked(priority=priority), 50.0, "ben", time_limit=50.0, grace=0.0)
    step(ledger, JobsSubmitted(1, (new,)), 50.0)
    assert ledger.overdue.latest == (101.0 if priority is Priority.MEDIUM else 102.0)


def test_by_share_nobody_is_overdue() -> None:
    ledger, watch = grid(Sharing(order=ServiceOrder.SHARE)), FirstOverdue()
    look(ledger, watch, 1000.0)
    assert not watch.watched
