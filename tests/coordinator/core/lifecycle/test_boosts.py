"""A boost is lent once Ray shows it, not before; else it ends and says why."""

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    ExtensionRequested,
    Granted,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RayAnswered,
    RayletJoined,
    RayletLeft,
    Rejected,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import Cause, Outcome, Reason, Request, State
from distributed_grid.protocol.messages import Exited, Extend, Inventory, Launch, Recalled, Renice, Started, Stop
from distributed_grid.protocol.nodes import Known, Sample, Withheld
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import Resources, ResourceType
from tests.coordinator.core.scene import facts, job, join, state_of, step

LENT = Boost("gpu-master", "192.0.2.1:6379", ResourceType.CPU, 2000)
NODE = facts("lab")


def granted(limit: float = 3600.0) -> Ledger:
    """A boost of two cores that was granted and sent to its node."""
    ledger = Ledger()
    join(ledger, NODE)
    boost = job("b", Request(Resources(cpu=2000), requeue=False), boost=LENT, time_limit=limit)
    step(ledger, JobsSubmitted(1, (boost,)), 1.0)
    return ledger


def started(limit: float = 3600.0) -> Ledger:
    ledger = granted(limit)
    step(ledger, MessageReceived("lab", Started(allocation="b.1", pid=7)), 2.0)
    return ledger


def running(limit: float = 3600.0) -> Ledger:
    ledger = started(limit)
    step(ledger, RayletJoined("b.1", "f00d"), 4.0)
    return ledger


def stops(out: list[Command]) -> list[Stop]:
    return [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]


def sent(out: list[Command]) -> list[object]:
    return [one.message for one in out if isinstance(one, Send)]


def told(out: list[Command]) -> Outcome | None:
    return next((one.job.outcome for one in out if hasattr(one, "job") and not isinstance(one.job, str)), None)


def test_a_raylet_that_runs_is_no_boost_until_ray_shows_it() -> None:
    ledger = started()
    assert state_of(ledger, "b") is State.STARTING
    step(ledger, RayletJoined("b.1", "f00d"), 4.0)
    assert state_of(ledger, "b") is State.RUNNING
    assert [one.text for one in ledger.state.jobs["b"].story][-2:] == [
        "raylet started on lab, Ray is to show it",
        "in Ray as node f00d",
    ]


def test_its_duration_counts_from_when_it_is_lent_and_its_raylet_gives_way_from_then_on() -> None:
    ledger = granted()
    (launched,) = sent(step(granted(), MessageReceived("lab", Inventory(known=())), 1.5))
    assert isinstance(launched, Launch) and launched.spec.time_limit == 3600.0 + LENT.join_within
    step(ledger, MessageReceived("lab", Started(allocation="b.1", pid=7)), 2.0)
    out = step(ledger, RayletJoined("b.1", "f00d"), 42.0)
    assert sent(out) == [Extend(allocation="b.1", limit=3640.0), Renice(allocation="b.1")]
    assert ledger.state.jobs["b"].started == 42.0
    (held,) = views.allocations(ledger.state, "lab")
    assert held.ends == 3642.0


def test_both_are_told_again_to_a_node_that_is_back_but_not_while_it_joins() -> None:
    for make, expected in (
        (started, []),
        (running, [Extend(allocation="b.1", limit=3602.0), Renice(allocation="b.1")]),
    ):
        ledger = make()
        step(ledger, NodeDown("lab", "session-lab"), 5.0)
        step(ledger, NodeUp(NODE, "s2"), 6.0)
        known = Known("b.1", State.RUNNING, started_for=4.0)
        assert sent(step(ledger, MessageReceived("lab", Inventory(known=(known,))), 6.0)) == expected


def test_an_extension_while_it_joins_is_told_to_the_node_with_the_time_to_join() -> None:
    out = step(started(), ExtensionRequested(3, "b", 60.0), 10.0)
    assert sent(out) == [Extend(allocation="b.1", limit=3660.0 + LENT.join_within)]


def test_the_end_of_its_time_is_told_by_how_long_it_was_lent() -> None:
    outcome = Outcome(Cause.TIME_LIMIT, text="ran longer than its time limit of 3602.25 s")
    said = told(step(running(), MessageReceived("lab", Exited(allocation="b.1", outcome=outcome)), 3604.0))
    assert said is not None and said.text == "it was lent for 1h00m"


def test_how_long_it_may_take_to_join_is_its_own() -> None:
    ledger = Ledger()
    join(ledger, NODE)
    patient = replace(LENT, join_within=5.0)
    boost = job("b", Request(Resources(cpu=2000), requeue=False), boost=patient, time_limit=3600.0)
    step(ledger, JobsSubmitted(1, (boost,)), 1.0)
    step(ledger, MessageReceived("lab", Started(allocation="b.1", pid=7)), 2.0)
    assert stops(step(ledger, Tick(), 6.9)) == []
    assert [one.text for one in stops(step(ledger, Tick(), 7.0))] == ["Ray did not show it within 5 s"]


def test_an_owner_who_is_back_has_it_recalled_also_while_it_joins() -> None:
    ledger = started()
    why = Recalled(allocation="b.1", why="foreign CPU 87 % > 30 %", grace=15.0)
    (stop,) = stops(step(ledger, MessageReceived("lab", why), 3.0))
    assert (stop.cause, stop.grace, state_of(ledger, "b")) == ("recalled", 15.0, State.STOPPING)
    assert sent(step(ledger, RayletJoined("b.1", "f00d"), 4.0)) == [], "it is neither lent nor told to give way"


def test_what_ray_shows_before_its_raylet_was_told_of_or_after_its_end_changes_nothing() -> None:
    ledger = granted()
    assert step(ledger, RayletJoined("b.1", "f00d"), 1.5) == []
    assert state_of(ledger, "b") is State.STARTING
    assert step(ledger, RayletJoined("c.1", "f00d"), 1.6) == []


def test_one_that_ray_does_not_show_in_time_is_ended() -> None:
    ledger = started()
    for at in range(3, 62):
        assert stops(step(ledger, HeartbeatReceived("lab", Sample(at=float(at))), float(at))) == []
    assert stops(step(ledger, Tick(), 62.0)) == [
        Stop(allocation="b.1", grace=0.0, cause="not-joined", text="Ray did not show it within 60 s")
    ]
    step(ledger, MessageReceived("lab", Exited(allocation="b.1", outcome=Outcome(Cause.NOT_JOINED, text="no"))), 63.0)
    assert "b" not in ledger.state.jobs and not ledger.state.nodes["lab"].allocations


@pytest.mark.parametrize(
    ("ledger", "cause", "text"),
    [
        (started, Cause.NOT_JOINED, "its raylet did not join: RuntimeError: Version mismatch"),
        (running, Cause.EXITED, "its raylet ended: RuntimeError: Version mismatch"),
    ],
)
def test_a_raylet_that_ends_by_itself_says_why_in_rays_own_words(ledger: object, cause: Cause, text: str) -> None:
    made = ledger()  # type: ignore[operator]
    outcome = Outcome(Cause.EXITED, code=1, stderr_tail=b"starting\nRuntimeError: Version mismatch\n")
    said = told(step(made, MessageReceived("lab", Exited(allocation="b.1", outcome=outcome)), 9.0))
    assert said is not None and (said.cause, said.text) == (cause, text)


def test_one_that_ray_does_not_show_any_more_is_ended_at_once_and_one_that_it_never_showed_is_not() -> None:
    gone = RayletLeft("b.1", "its head was started anew")
    assert stops(step(started(), gone, 5.0)) == []
    ledger = running()
    said = Stop(allocation="b.1", grace=0.0, cause="not-joined", text="its head was started anew")
    assert stops(step(ledger, gone, 5.0)) == [said]
    assert stops(step(ledger, gone, 6.0)) == [], "it is asked once"
    step(ledger, MessageReceived("lab", Exited(allocation="b.1", outcome=Outcome(Cause.NOT_JOINED, text="no"))), 7.0)
    assert "b" not in ledger.state.jobs and not ledger.state.nodes["lab"].allocations
    assert stops(step(ledger, gone, 8.0)) == []


def test_a_release_while_it_joins_is_one_stop_however_often_it_is_asked_and_what_ray_shows_then_changes_nothing() -> (
    None
):
    ledger = started()
    assert [one.cause for one in stops(step(ledger, CancelRequested(5, ("b",), "released"), 3.0))] == ["cancelled"]
    assert stops(step(ledger, CancelRequested(6, ("b",), "released"), 3.1)) == []
    step(ledger, RayletJoined("b.1", "f00d"), 3.2)
    assert state_of(ledger, "b") is State.STOPPING
    out = step(ledger, ExtensionRequested(7, "b", 60.0), 3.3)
    assert [type(one) for one in out] == [Rejected]


def test_an_extension_while_it_waits_or_joins_lasts_as_long_as_one_while_it_runs() -> None:
    for make in (granted, started, running):
        ledger = make()
        step(ledger, ExtensionRequested(3, "b", 60.0), 10.0)
        assert ledger.state.jobs["b"].spec.time_limit == 3660.0


def test_a_node_that_is_back_has_its_boost_as_it_was() -> None:
    for make, state in ((started, State.STARTING), (running, State.RUNNING)):
        ledger = make()
        step(ledger, NodeDown("lab", "session-lab"), 5.0)
        step(ledger, NodeUp(NODE, "s2"), 6.0)
        out = step(
            ledger, MessageReceived("lab", Inventory(known=(Known("b.1", State.RUNNING, started_for=4.0),))), 6.0
        )
        assert (ledger.state.jobs["b"].state, stops(out)) == (state, [])


def test_one_whose_node_was_lost_while_it_was_to_join_is_ended_and_one_that_ray_had_shown_goes_on() -> None:
    for make, state in ((started, State.STOPPING), (running, State.RUNNING)):
        ledger = make()
        step(ledger, NodeDown("lab", "session-lab"), 5.0)
        step(ledger, Tick(), 20.0)
        assert state_of(ledger, "b") is State.LOST
        step(ledger, NodeUp(NODE, "s2"), 21.0)
        step(ledger, MessageReceived("lab", Inventory(known=(Known("b.1", State.RUNNING, started_for=19.0),))), 21.0)
        assert state_of(ledger, "b") is state


def test_one_whose_node_fell_silent_before_its_raylet_began_is_ended_too_and_never_taken_for_lent() -> None:
    ledger = granted()
    step(ledger, Tick(), 20.0)
    assert state_of(ledger, "b") is State.LOST
    step(ledger, HeartbeatReceived("lab", Sample(at=21.0)), 21.0)
    out = step(ledger, MessageReceived("lab", Started(allocation="b.1", pid=7)), 21.0)
    assert state_of(ledger, "b") is State.STOPPING and not ledger.state.jobs["b"].begun
    assert [(one.cause, one.text) for one in stops(out)] == [("not-joined", "lab was away while it was to join")]


def test_an_extension_is_told_to_the_node_and_adds_up() -> None:
    ledger = running()
    for more, limit in ((1800.0, 5402.0), (600.0, 6002.0)):
        out = step(ledger, ExtensionRequested(3, "b", more), 10.0)
        assert sent(out)[0] == Extend(allocation="b.1", limit=limit), "from the start of its raylet, 2 s earlier"
        assert any(isinstance(one, Granted) for one in out)
    assert ledger.state.jobs["b"].spec.time_limit == 6000.0


def test_what_cannot_be_extended_is_refused_and_nothing_changes() -> None:
    ledger = running()
    step(ledger, JobsSubmitted(1, (job("j", Request(Resources(cpu=1000))),)), 5.0)
    for name, more in (("j", 60.0), ("gone", 60.0), ("b", -5.0), ("b", 1e9)):
        out = step(ledger, ExtensionRequested(3, name, more), 10.0)
        assert [type(one) for one in out] == [Rejected]
    assert ledger.state.jobs["b"].spec.time_limit == 3600.0


def test_one_whose_time_is_over_is_not_extended_while_its_node_takes_it_back() -> None:
    ledger = running(5.0)
    out = step(ledger, ExtensionRequested(3, "b", 60.0), 9.0)
    (refused,) = [one for one in out if isinstance(one, Rejected)]
    assert refused.why == "its time is over, and Ray lets go of it"
    assert ledger.state.jobs["b"].spec.time_limit == 5.0


# --- failing before the join -----------------------------------------------------------------------------------------

WANTED = Request(Resources(cpu=2000), immediate=True, requeue=False, joins=LENT.address)


def asked_of(*names: str, request: Request = WANTED) -> Ledger:
    """A boost that was asked for where there are these nodes, and granted on one of them."""
    ledger = Ledger()
    for name in names:
        join(ledger, facts(name))
    step(ledger, JobsSubmitted(1, (job("b", request, boost=LENT, time_limit=3600.0),)), 1.0)
    return ledger


def heard(ledger: Ledger, now: float) -> None:
    """All nodes are there."""
    for name in ledger.state.nodes:
        step(ledger, HeartbeatReceived(name, Sample(at=now)), now)


def fails(ledger: Ledger, why: str, now: float, cause: Cause = Cause.NOT_JOINED, name: str = "b") -> list[Command]:
    """The node that has the boost cannot start its raylet."""
    heard(ledger, now)
    held = ledger.state.jobs[name]
    exited = Exited(allocation=held.allocation, outcome=Outcome(cause, text=why, started=False))
    return step(ledger, MessageReceived(held.node, exited), now)


def ask(ledger: Ledger, name: str, now: float, request: Request = WANTED) -> str:
    """Ask for another boost; where it is granted."""
    heard(ledger, now)
    step(ledger, JobsSubmitted(2, (job(name, request, boost=LENT, time_limit=3600.0),)), now)
    return ledger.state.jobs[name].node if name in ledger.state.jobs else ""


@pytest.mark.parametrize("cause", [Cause.NOT_JOINED, Cause.NOT_EXECUTABLE, Cause.SPAWN_FAILED, Cause.SIGNALLED])
def test_one_that_fails_on_a_node_is_tried_on_the_others_and_its_end_names_each_and_why(cause: Cause) -> None:
    ledger = asked_of("n1", "n2")
    first = ledger.state.jobs["b"].node
    fails(ledger, "no ray there", 2.0, cause)
    second = ledger.state.jobs["b"].node
    assert {first, second} == {"n1", "n2"} and state_of(ledger, "b") is State.STARTING
    end = told(fails(ledger, "no port is free", 3.0, cause))
    assert end is not None and end.cause is Cause.NOT_JOINED and not end.started
    assert f"{first} did not join: no ray there" in end.text and f"{second} did not join: no port is free" in end.text


def test_a_raylet_that_ends_before_it_has_joined_is_tried_elsewhere_and_is_lent_there_once_ray_shows_it() -> None:
    ledger = asked_of("n1", "n2")
    first = ledger.state.jobs["b"].node
    step(ledger, MessageReceived(first, Started(allocation="b.1", pid=7)), 2.0)
    ended = Exited(allocation="b.1", outcome=Outcome(Cause.EXITED, code=1, stderr_tail=b"timed out during startup"))
    heard(ledger, 33.0)
    step(ledger, MessageReceived(first, ended), 33.0)
    second = ledger.state.jobs["b"].node
    step(ledger, MessageReceived(second, Started(allocation="b.2", pid=8)), 34.0)
    assert (second != first, state_of(ledger, "b")) == (True, State.STARTING), "it is not lent before Ray shows it"
    step(ledger, RayletJoined("b.2", "f00d"), 36.0)
    assert state_of(ledger, "b") is State.RUNNING


def test_a_node_where_one_failed_is_left_alone_for_longer_and_longer_by_those_of_that_cluster_alone() -> None:
    ledger = asked_of("n1")
    assert told(fails(ledger, "no ray there", 2.0)) is not None
    assert ask(ledger, "c", 60.0) == ""
    elsewhere = replace(WANTED, joins="192.0.2.9:6379")
    assert ask(ledger, "other", 61.0, elsewhere) == "n1", "another cluster's is tried"
    assert ask(ledger, "d", 62.0) == "n1"
    fails(ledger, "no ray there", 63.0, name="d")
    assert (ask(ledger, "e", 181.0), ask(ledger, "f", 183.0)) == ("", "n1")


def test_one_that_waits_is_tried_again_when_its_nodes_are_left_alone_no_more_and_says_why_it_waits() -> None:
    ledger = asked_of("n1", request=replace(WANTED, immediate=False))
    fails(ledger, "no ray there", 2.0)
    assert state_of(ledger, "b") is State.WAITING
    why = "n1 did not join: no ray there; left alone for a while (--only-source NODE tries one at once)"
    assert reasons.now_for(ledger.state, ledger.state.jobs["b"]) == Reason("Unjoined", why)
    heard(ledger, 61.0)
    assert state_of(ledger, "b") is State.WAITING
    heard(ledger, 62.0)
    assert ledger.state.jobs["b"].allocation == "b.2"


def test_one_that_names_its_only_source_is_tried_there_at_once_however_often_it_fails() -> None:
    ledger = asked_of("n1", "n2")
    node = ledger.state.jobs["b"].node
    fails(ledger, "no ray there", 2.0)
    named = replace(WANTED, constraints=Constraints(only=(node,)), joins="")
    for at in (3.0, 4.0):
        assert ask(ledger, f"c{at}", at, named) == node
        end = told(fails(ledger, "no ray there", at, name=f"c{at}"))
        assert end is not None and end.text == "no ray there"


def test_a_node_where_one_has_joined_or_whose_agent_has_another_ray_is_left_alone_no_more() -> None:
    ledger = asked_of("n1")
    fails(ledger, "no ray there", 2.0)
    assert ask(ledger, "c", 3.0) == ""
    join(ledger, replace(facts("n1"), ray="2.60.0", incarnation=2), 4.0)
    assert ask(ledger, "d", 5.0) == "n1"
    fails(ledger, "no port is free", 6.0, name="d")
    assert ask(ledger, "e", 7.0, replace(WANTED, joins="")) == "n1"
    step(ledger, MessageReceived("n1", Started(allocation="e.1", pid=7)), 8.0)
    step(ledger, RayletJoined("e.1", "f00d"), 9.0)
    assert ask(ledger, "f", 10.0) == "n1"


def test_no_more_than_five_nodes_are_tried_for_one_that_does_not_wait() -> None:
    ledger = asked_of(*(f"n{number}" for number in range(9)))
    for at in range(2, 6):
        fails(ledger, "no ray there", float(at))
        assert state_of(ledger, "b") is State.STARTING
    end = told(fails(ledger, "no ray there", 6.0))
    assert end is not None and end.text.count("no ray there") == 5


def test_one_that_is_released_while_it_fails_ends_as_released_and_is_tried_nowhere_else() -> None:
    ledger = asked_of("n1", "n2")
    step(ledger, CancelRequested(5, ("b",), "released"), 1.5)
    fails(ledger, "no ray there", 2.0)
    assert "b" not in ledger.state.jobs


def test_a_plain_job_goes_to_a_node_where_boosts_failed_which_says_so_of_itself() -> None:
    ledger = asked_of("n1")
    fails(ledger, "no ray there", 2.0)
    step(ledger, JobsSubmitted(2, (job("j", replace(WANTED, immediate=False)),)), 3.0)
    assert ledger.state.jobs["j"].node == "n1"
    offered = views.offer_view(ledger.state.nodes["n1"], 3.0)
    assert offered is not None and offered.withheld == (
        Withheld(f"boosts for {LENT.address}", "did not join: no ray there"),
    )


def test_once_ray_answers_again_the_nodes_that_could_not_join_it_are_left_alone_no_more() -> None:
    ledger = asked_of("n1", request=replace(WANTED, immediate=False))
    fails(ledger, "connection refused", 2.0)
    step(ledger, RayAnswered("192.0.2.9:6379"), 3.0)
    assert state_of(ledger, "b") is State.WAITING, "that is another cluster"
    step(ledger, RayAnswered(LENT.address), 3.0)
    assert ledger.state.jobs["b"].allocation == "b.2"
