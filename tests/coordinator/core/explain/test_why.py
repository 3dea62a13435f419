"""What is said of a request is what is done with it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    Accepted,
    DrainRequested,
    ForecastsReported,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    Rejected,
    Tick,
)
from distributed_grid.coordinator.core.explain import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Condition, HeldBack
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.boosts import Boost, needs
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import After, Request, State
from distributed_grid.protocol.messages import Started
from distributed_grid.protocol.nodes import Withheld
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources, ResourceType
from tests.coordinator.core.scene import facts, job, join, step
from tests.depth import tries

AMOUNT = st.builds(
    Resources,
    cpu=st.sampled_from([500, 1000, 2000, 3000]),
    memory=st.sampled_from([0, GIB, 6 * GIB]),
    gpu=st.sampled_from([0, 500, 1000, 2000]),
)
NODES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(0, 2), st.booleans()), max_size=4)


def grid(nodes: list[tuple[int, int, int, bool]], running: list[Resources]) -> Ledger:
    ledger = Ledger()
    for number, (cores, memory, gpus, up) in enumerate(nodes):
        join(ledger, facts(f"n{number}", cores, memory * GIB, gpus))
        if not up:
            step(ledger, NodeDown(f"n{number}", f"session-n{number}"), 0.0)
    for number, amount in enumerate(running):
        step(ledger, JobsSubmitted(1, (job(f"r{number}", Request(amount, immediate=True)),)), 0.0)
    return ledger


@settings(max_examples=tries(75, 30), deadline=None)
@given(NODES, st.lists(AMOUNT, max_size=4), AMOUNT)
def test_a_dry_run_foretells_what_the_submit_does(
    nodes: list[tuple[int, int, int, bool]], running: list[Resources], wanted: Resources
) -> None:
    ledger = grid(nodes, running)
    said = why.why(ledger.state, None, Request(wanted), 1.0)
    assert said.funnel[0].left == len(nodes)
    assert [step.left for step in said.funnel] == sorted((step.left for step in said.funnel), reverse=True)
    assert {v.node for v in said.verdicts if v.ok} == ({said.chosen} | {v.node for v in said.verdicts if v.ok}) - {""}
    answers = step(ledger, JobsSubmitted(1, (job("a", Request(wanted)),)), 1.0)
    if said.reason.code == "NeverFits":
        assert any(isinstance(answer, Rejected) and answer.code == "never-fits" for answer in answers)
        return
    assert any(isinstance(answer, Accepted) for answer in answers)
    if said.chosen:
        assert said.reason.code == "Fits" and said.funnel[-1].left > 0
        assert ledger.state.jobs["a"].node == said.chosen and ledger.state.jobs["a"].grant == said.grant
    else:
        assert ledger.state.jobs["a"].state is State.WAITING and not any(verdict.ok for verdict in said.verdicts)
        view = views.job(ledger.state, "a")
        assert view is not None and view.reason == said.reason


def test_many_nodes_are_all_counted_and_some_judged() -> None:
    ledger = grid([(1, 1, 0, True)] * 300, [])
    said = why.why(ledger.state, None, Request(Resources(cpu=1000)), 1.0)
    assert [(step.what, step.left) for step in said.funnel][-1] == ("with 1 cpu free", 300)
    assert len(said.verdicts) == why.VERDICTS


def test_a_placed_job_shows_the_scores_it_was_placed_by() -> None:
    ledger = grid([(2, 2, 0, True)], [])
    step(ledger, JobsSubmitted(1, (job("a", Request(Resources(cpu=1000))),)), 1.0)
    said = why.why(ledger.state, "a", None, 2.0)
    assert said.chosen == "n0" and said.reason.code == "Placed"
    assert set(said.verdicts[0].scores) == {"fit", "gpus-spared", "quiet", "preferred", "priority"}
    assert 0.0 < said.verdicts[0].confidence <= 1.0
    assert why.why(ledger.state, "gone", None, 2.0).reason.code == "Ended"


def test_a_job_on_a_silent_node_is_lost_and_not_placed() -> None:
    ledger = grid([(2, 2, 0, True)], [])
    step(ledger, JobsSubmitted(1, (job("a", Request(Resources(cpu=1000))),)), 1.0)
    step(ledger, MessageReceived("n0", Started(allocation="a.1")), 2.0)
    step(ledger, NodeDown("n0", "session-n0"), 3.0)
    step(ledger, Tick(), 20.0)
    said = why.why(ledger.state, "a", None, 20.0)
    assert (said.reason.code, said.chosen) == ("Lost", "n0") and "has not said what became of it" in said.reason.text


def test_who_holds_what_it_needs_is_named_and_who_ends_first_comes_first() -> None:
    ledger = grid([(2, 4, 0, True), (1, 4, 1, True)], [])
    for name, limit, wanted in (("long", 900.0, 1000), ("short", 60.0, 1000), ("open", 0.0, 1000)):
        step(ledger, JobsSubmitted(1, (job(name, Request(Resources(cpu=wanted)), time_limit=limit),)), 0.0)
        step(ledger, MessageReceived(ledger.state.jobs[name].node, Started(allocation=f"{name}.1")), 1.0)
    said = why.why(ledger.state, None, Request(Resources(cpu=1000)), 2.0)
    assert [(one.job, one.ends) for one in said.holders] == [("short", 61.0), ("long", 901.0), ("open", 0.0)]
    assert not why.why(ledger.state, None, Request(Resources(memory=GIB)), 2.0).holders


def test_an_explanation_names_the_state_of_the_ledger_that_it_was_made_of() -> None:
    ledger = grid([(1, 1, 0, True)], [])
    first = why.why(ledger.state, None, Request(Resources(cpu=1000)), 1.0).snapshot
    assert why.why(ledger.state, None, Request(Resources(cpu=1000)), 9.0).snapshot == first
    ledger.settle(10.0)
    assert why.why(ledger.state, None, Request(Resources(cpu=1000)), 10.0).snapshot == first + 1


def test_where_a_drained_node_could_serve_that_is_what_would_help() -> None:
    ledger = grid([(2, 4, 0, True)], [])
    step(ledger, DrainRequested(1, ("n0",), "ann", "new disk"), 1.0)
    said = why.why(ledger.state, None, Request(Resources(cpu=1000)), 2.0)
    assert (said.reason.code, said.hint) == ("Drained", "grid node undrain n0: it could lend this")


def test_where_others_use_what_is_asked_for_the_way_out_is_named() -> None:
    ledger = Ledger()
    use = (Withheld("cpu", "the owner is back (foreign CPU 95 % > 30 %)"),)
    join(ledger, facts("master"), cores=(), withheld=use)
    said = why.why(ledger.state, None, Request(Resources(cpu=1000)), 2.0)
    assert said.reason.code == "Thresholds" and "the owner is back" in said.reason.text
    assert said.hint.startswith("master lends it again when others use less there") and "cpu_percent_max" in said.hint
    assert "grid dev up --cpu-percent-max 100" in said.hint and said.hint.endswith("or add nodes")


def boost_that_waits(ledger: Ledger, kind: ResourceType, amount: int, **about: Any) -> str:
    """What would help a boost that starts nowhere now."""
    asked = Request(needs(kind, amount), requeue=False, **about)
    boost = job("b", asked, boost=Boost("n9", "192.0.2.1:1", kind, amount))
    step(ledger, JobsSubmitted(2, (boost,)), 1.0)
    return why.why(ledger.state, "b", None, 2.0).hint


@pytest.mark.parametrize(
    ("kind", "amount", "said"),
    [
        (ResourceType.CPU, 3000, "a boost of 2 cpu would start now on n0"),
        (ResourceType.MEMORY, 7 * GIB, "a boost of 6.5 GB memory would start now on n0"),
    ],
)
def test_of_a_boost_that_waits_the_smaller_one_is_named_and_no_option_of_a_job(
    kind: ResourceType, amount: int, said: str
) -> None:
    ledger = grid([(3, 8, 0, True)], [])
    step(ledger, JobsSubmitted(1, (job("a", Request(Resources(cpu=1000, memory=GIB))),)), 0.0)
    assert boost_that_waits(ledger, kind, amount) == said


def test_a_boost_is_not_told_to_use_a_node_whose_ray_cannot_join() -> None:
    ledger = grid([(1, 8, 0, True), (4, 8, 0, True)], [])
    step(
        ledger, JobsSubmitted(1, (job("a", Request(Resources(cpu=1000), constraints=Constraints(only=("n0",)))),)), 0.0
    )
    hint = boost_that_waits(ledger, ResourceType.CPU, 1000, constraints=Constraints(exclude=("n1",)))
    assert "exclude" not in hint and "n1" not in hint


def test_a_job_that_waits_for_another_is_not_said_to_wait_for_nodes() -> None:
    ledger = grid([(2, 4, 0, True)], [])
    step(ledger, JobsSubmitted(1, (job("a", Request(Resources(cpu=1000))),)), 1.0)
    later = job("b", Request(Resources(cpu=1000)))
    later.phase = HeldBack(after=(Condition("a", After.ENDED),))
    step(ledger, JobsSubmitted(2, (later,)), 1.0)
    said = why.why(ledger.state, "b", None, 2.0)
    assert said.reason.code == "Dependency" and not (said.funnel or said.verdicts or said.hint or said.chosen)


def test_how_long_the_chosen_node_stays_idle_is_told_by_its_own_past() -> None:
    ledger = grid([(4, 8, 0, True), (4, 8, 0, True)], [])
    known: dict[str, IdleForecast | None] = {
        f"n{number}": IdleForecast(0.0, 11_400.0, (IdleChance(7200.0, likely, 31, 25),))
        for number, likely in enumerate((0.1, 0.9))
    }
    step(ledger, ForecastsReported(known), 0.0)
    step(ledger, JobsSubmitted(1, (job("a", Request(Resources(1000)), time_limit=7000.0),)), 0.0)
    ledger.state.queue.run_times.learn("bob", 7000.0)
    said = why.why(ledger.state, "a", None, 1.0)
    assert said.chosen == "n1"
    assert said.lasting == "n1 is idle for 3h10m; of 31 times that it was so, 25 lasted 2h00m more"
    dry = why.why(ledger.state, None, Request(Resources(1000)), 1.0, "bob")
    assert dry.chosen == "n1" and dry.lasting == said.lasting
    assert [(one.node, round(one.scores["lasting"], 2), one.why) for one in dry.verdicts] == [
        ("n1", 0.9, ""),
        ("n0", 0.12, "its owner is expected before it ends: 12% that it stays idle"),
    ]


def test_why_others_come_first_says_what_owners_would_miss_or_that_nothing_is_known() -> None:
    ledger = grid([(4, 8, 0, True), (4, 8, 0, True), (4, 8, 0, True)], [])
    known: dict[str, IdleForecast | None] = {
        f"n{number}": IdleForecast(0.0, 11_400.0, (IdleChance(7200.0, 0.99, 31, 25),), peak)
        for number, peak in enumerate((0.25, 0.0))
    }
    step(ledger, ForecastsReported(known), 0.0)
    ledger.state.queue.run_times.learn("bob", 7000.0)
    said = why.why(ledger.state, None, Request(Resources(4000)), 1.0, "bob")
    assert [(one.node, one.why) for one in said.verdicts] == [
        ("n1", ""),
        ("n0", "its owner uses up to 25% of it even while it is idle, and would miss that"),
        ("n2", "of how long it stays idle nothing is known"),
    ]


def test_of_a_node_that_is_not_forecast_nothing_is_told() -> None:
    ledger = grid([(4, 8, 0, True)], [])
    said = why.why(ledger.state, None, Request(Resources(1000)), 1.0, "bob")
    assert said.chosen == "n0" and said.lasting == "" and "lasting" not in said.verdicts[0].scores
