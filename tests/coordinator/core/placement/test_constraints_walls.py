"""Walls and owners: which nodes run whose jobs, and what is said where none does."""

from typing import Any

import pytest

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived, NodeUp, Rejected, Send
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Placement
from distributed_grid.coordinator.core.placement import catalogue, constraints
from distributed_grid.coordinator.core.placement.matching import place
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.preemption import candidates
from distributed_grid.coordinator.core.queue import reservations
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started
from distributed_grid.protocol.nodes import Known, NodeFacts
from distributed_grid.protocol.placement import Walls, parse_placing
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, kept_for, offer, resumed, step

ONE, WHOLE = Resources(cpu=1000), Resources(cpu=4000)
RULE = Policy(owner_rule=True)
PATIENT = Policy(owner_rule=True, suspect_after=1e6, disconnected_after=2e6)


def node(name: str, walls: str = "none", owners: tuple[str, ...] = ("ann",), **more: Any) -> NodeFacts:
    return facts(name, walls=walls, owners=owners, **more)


def grid(*nodes: NodeFacts, policy: Policy = RULE) -> Ledger:
    ledger = Ledger(policy=policy)
    for one in nodes:
        join(ledger, one)
    return ledger


def asked(**said: Any) -> Request:
    return Request(ONE, **parse_placing(gpu=0, **said))


def submit(ledger: Ledger, name: str, user: str, request: Request | None = None, at: float = 1.0) -> str:
    """Where it starts; empty: it waits."""
    step(ledger, JobsSubmitted(1, (job(name, request or Request(ONE), user=user),)), at)
    return ledger.state.jobs[name].node


def refused(ledger: Ledger, user: str, request: Request | None = None) -> Rejected:
    (answer,) = ledger.handle(JobsSubmitted(1, (job("refused", request or Request(ONE), user=user),)), 1.0)
    assert isinstance(answer, Rejected) and "refused" not in ledger.state.jobs
    return answer


# --- the owner rule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("walls", ["landlock", "none", "", "moat"])
def test_below_namespace_a_node_runs_jobs_of_its_owners_only(walls: str) -> None:
    ledger = grid(node("n1", walls), node("n2", "user", ()))
    assert [submit(ledger, f"eve{number}", "eve") for number in range(5)] == ["n2", "n2", "n2", "n2", ""]
    assert submit(ledger, "ann", "ann") == "n1"


@pytest.mark.parametrize("walls", ["user", "namespace"])
def test_from_namespace_on_a_node_runs_jobs_of_everyone(walls: str) -> None:
    assert submit(grid(node("n1", walls)), "j", "eve") == "n1"


def test_a_node_that_trusts_everyone_runs_jobs_of_everyone() -> None:
    assert submit(grid(node("n1", trusts="everyone")), "j", "eve") == "n1"


def test_without_the_rule_nobody_is_asked_who_it_is() -> None:
    assert submit(grid(node("n1"), policy=DEFAULT), "j", "eve") == "n1"


def test_a_client_cannot_say_whose_its_request_is() -> None:
    ledger = grid(node("n1"), node("n2", "user"))
    assert submit(ledger, "j", "eve", Request(ONE, user="ann", nodes=("n1",))) == "n2"
    assert ledger.state.jobs["j"].request.user == "eve"
    assert explain.why(ledger.state, None, Request(ONE, user="ann", nodes=("n1",)), 1.0, "eve").chosen == "n2"


def test_what_one_user_cannot_have_is_no_reason_to_refuse_it_to_another() -> None:
    """Within one pass: what is hopeless for eve, who may use n2 alone, is there for ann."""
    ledger = grid(node("n1"), node("n2", "user"))
    for number in range(4):
        submit(ledger, f"full{number}", "eve")
    both = job("eve", Request(ONE, Priority.HIGH), user="eve"), job("ann", Request(ONE), user="ann")
    step(ledger, JobsSubmitted(1, both), 2.0)
    assert [ledger.state.jobs["eve"].node, ledger.state.jobs["ann"].node] == ["", "n1"]


def test_a_gang_takes_nodes_that_run_its_users_jobs() -> None:
    ledger = grid(node("n1"), node("n2", "user"), node("n3", "namespace"), node("n4", owners=("eve",)))
    why = explain.why(ledger.state, None, Request(ONE, gang=3), 1.0, "eve")
    assert why.reason.text == "it would start now on " + why.reason.text.partition(" on ")[2]
    assert set(why.reason.text.partition(" on ")[2].split(", ")) == {"n2", "n3", "n4"}
    answer = refused(ledger, "eve", Request(ONE, gang=4))
    assert answer.what == "asks 1 cpu on each of 4 nodes; 3 of 4 could ever run it"


def test_an_urgent_job_takes_no_place_on_a_node_that_does_not_run_its_users_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(candidates, "TRIED", 1)  # and such nodes are not among the few that are gone through
    ledger = crowded()
    step(ledger, JobsSubmitted(1, (job("eve", Request(WHOLE, Priority.URGENT), user="eve"),)), 100.0)
    assert [ledger.state.jobs[name].state for name in ("ann", "bob")] == [State.RUNNING, State.STOPPING]


def crowded() -> Ledger:
    """Ann has all of n1, which is hers, and bob all of n2, which is everyone's."""
    ledger = grid(node("n1"), node("n2", "user"), policy=PATIENT)
    assert submit(ledger, "bob", "bob", Request(WHOLE, Priority.LOW), 1.0) == "n2"
    assert submit(ledger, "ann", "ann", Request(WHOLE, Priority.LOW), 2.0) == "n1"
    for name, job_id in (("n1", "ann"), ("n2", "bob")):
        step(ledger, MessageReceived(name, Started(f"{job_id}.1", 7)), 3.0)
    return ledger


def test_what_others_gave_way_for_is_not_granted_where_the_node_lost_its_walls_meanwhile() -> None:
    ledger = crowded()
    step(ledger, JobsSubmitted(1, (job("eve", Request(WHOLE, Priority.URGENT), user="eve"),)), 100.0)
    assert kept_for(ledger.state.jobs["eve"]) is not None
    weak = node("n2")
    step(ledger, NodeUp(weak, "again"), 101.0)
    step(ledger, MessageReceived("n2", Inventory((Known("bob.1", State.STOPPING),))), 101.0)
    step(ledger, MessageReceived("n2", offer(weak, 2, counting=("bob.1",), cores=())), 101.0)
    over = Outcome(cause=Cause.PREEMPTED, signal=15)
    step(ledger, MessageReceived("n2", Exited("bob.1", over, returned=True)), 102.0)
    assert (ledger.state.jobs["eve"].state, ledger.state.jobs["eve"].node) == (State.WAITING, "")


def test_a_node_is_kept_for_who_waits_only_where_it_runs_the_users_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "COMPARED_MOST", 1)
    ledger = grid(node("n1"), node("n2", "user"), policy=PATIENT)
    for name, user in (("n1", "ann"), ("n2", "bob")):
        asked_for = asked(only=[name])
        step(ledger, JobsSubmitted(1, (job(user, asked_for, user=user, time_limit=60.0),)), 1.0)
        step(ledger, MessageReceived(name, Started(f"{user}.1", 7)), 1.0)
    assert reservations._nearest(ledger.state, Request(WHOLE, user="eve")) == ["n2"]


# --- what is said -----------------------------------------------------------------------------------------------------


def test_who_may_use_no_node_is_refused_with_the_next_step() -> None:
    answer = refused(grid(node("n1", owners=("ann", "bob"))), "eve")
    assert answer.code == "never-fits"
    assert answer.what == "asks for a node that runs jobs of eve; there is none"
    assert answer.why == "n1 runs jobs of its owners only (ann, bob), as its walls are none"
    assert answer.hint == "agent.trust: everyone on n1, or walls there (`grid agent detect` says why it has none)"


def test_a_node_with_an_older_agent_is_named_as_that() -> None:
    answer = refused(grid(node("n1", "", ())), "ann")
    assert answer.why == (
        "n1 runs jobs of its owners only (nobody), as it has an older agent, which does not tell its walls"
    )


def test_a_job_whose_nodes_lose_their_walls_waits_with_the_reason_and_runs_when_they_are_back() -> None:
    ledger = grid(node("n1", "user"))
    for number in range(4):
        submit(ledger, f"full{number}", "eve")
    assert submit(ledger, "j", "eve") == ""
    step(ledger, NodeUp(node("n1"), "again"), 2.0)
    known = tuple(Known(f"full{number}.1", State.RUNNING) for number in range(4))
    step(ledger, MessageReceived("n1", Inventory(known)), 2.0)
    for number in range(4):
        over = Exited(f"full{number}.1", Outcome(cause=Cause.EXITED))
        step(ledger, MessageReceived("n1", over), 3.0)
    step(ledger, MessageReceived("n1", offer(node("n1"), 2)), 4.0)
    ledger.settle(6.0)
    reason = explain.why(ledger.state, "j", None, 6.0).reason
    assert reason.code == "NeverFits"
    assert reason.text.startswith(
        "asks for a node that runs jobs of eve; there is none; n1 runs jobs of its owners only"
    )
    assert "agent.trust: everyone on n1" in reason.text
    join(ledger, node("n1", trusts="everyone"), 7.0)
    assert ledger.state.jobs["j"].node == "n1"


def test_the_funnel_has_a_step_for_whose_jobs_nodes_run_only_where_nodes_differ_in_it() -> None:
    ledger = grid(node("n1"), node("n2", "user"))
    why = explain.why(ledger.state, None, Request(ONE), 1.0, "eve")
    assert [(one.what, one.left, one.lost) for one in why.funnel[:2]] == [
        ("known", 2, ""),
        ("that runs jobs of eve", 1, "n1"),
    ]
    assert {one.node: one.why for one in why.verdicts}["n1"] == (
        "runs jobs of its owners only (ann), as its walls are none"
    )
    plain = explain.why(grid(node("n2", "user")).state, None, Request(ONE), 1.0, "eve")
    assert "jobs of" not in "".join(one.what for one in plain.funnel)


def test_why_says_which_owner_could_help_where_nothing_else_would() -> None:
    ledger = grid(node("n1"), node("n2", "user"))
    for number in range(4):
        submit(ledger, f"full{number}", "eve")
    why = explain.why(ledger.state, None, Request(ONE), 1.0, "eve")
    assert why.hint == (
        "agent.trust: everyone on n1, or walls there (`grid agent detect` says why it has none): it could lend this"
    )


# --- walls that are asked for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "nodes"),
    [("user", {"user"}), ("namespace", {"user", "namespace"}), ("landlock", {"user", "namespace", "landlock"})],
)
def test_a_level_is_met_by_itself_and_by_stronger_ones(least: str, nodes: set[str]) -> None:
    ledger = grid(*(node(walls, walls) for walls in ("none", "landlock", "namespace", "user")))
    found = set()
    for number in range(16):
        found.add(submit(ledger, f"j{number}", "ann", asked(walls=least)))
    assert found - {""} == nodes


def test_a_level_that_no_node_has_is_refused_with_the_strongest_there_is() -> None:
    ledger = grid(node("n1", "none"), node("n2", "landlock"))
    answer = refused(ledger, "ann", asked(walls="user"))
    assert answer.what == "asks for a node with walls user; there is none"
    assert answer.why == "the strongest are landlock (n2)"
    assert answer.hint.startswith("ask for --walls landlock; ")
    answer = refused(ledger, "ann", asked(walls="namespace", only=["n1"]))
    assert answer.what == (
        "asks for a node with walls namespace or stronger; there is none among the 1 node named with --only (n1)"
        " and that runs jobs of ann"
    )
    assert answer.why == "their jobs run without walls"


def test_why_says_which_weaker_walls_would_do_now() -> None:
    ledger = grid(node("n1", "landlock"), node("n2", "user"))
    for number in range(4):
        submit(ledger, f"full{number}", "ann", asked(only=["n2"]))
    why = explain.why(ledger.state, None, asked(walls="namespace"), 1.0, "ann")
    assert why.hint == "with --walls landlock it would start now on n1"
    assert {one.node: one.why for one in why.verdicts}["n1"] == "has walls landlock"


def test_the_reason_for_weak_walls_is_repeated_to_who_asks_for_stronger_ones() -> None:
    ledger = grid(node("n1", walls_why="not root"), node("n2", "user"))
    why = explain.why(ledger.state, None, asked(walls="user"), 1.0, "ann")
    assert {one.node: one.why for one in why.verdicts}["n1"] == "has walls none (not root)"


# --- the record -------------------------------------------------------------------------------------------------------


def test_each_attempt_has_the_walls_that_its_node_told_first() -> None:
    ledger = grid(node("n1", "user"))
    submit(ledger, "j", "ann", Request(ONE, retries=1, retry_on=(RetryOn.FAILED,)))
    step(ledger, MessageReceived("n1", Started("j.1", 7, "user")), 2.0)
    assert ledger.state.allocations["j.1"].walls == ledger.state.jobs["j"].walls == "user"
    assert ledger.state.jobs["j"].story[-1].text == "started on n1, walls user"
    step(ledger, NodeUp(node("n1", "landlock"), "again"), 3.0)
    step(ledger, MessageReceived("n1", Inventory((Known("j.1", State.RUNNING, walls="landlock"),))), 3.0)
    assert ledger.state.jobs["j"].walls == "user"
    step(ledger, MessageReceived("n1", Exited("j.1", Outcome(cause=Cause.EXITED, code=1))), 4.0)
    step(ledger, MessageReceived("n1", offer(node("n1"), 2)), 4.0)
    assert ledger.state.jobs["j"].allocation == "j.2" and ledger.state.jobs["j"].walls == ""
    view = views.job(ledger.state, "j")
    assert view is not None and view.walls == ""


def test_the_walls_of_what_started_unheard_are_in_the_inventory() -> None:
    ledger = grid(node("n1", "user"))
    submit(ledger, "j", "ann")
    step(ledger, NodeUp(node("n1", "user"), "again"), 2.0)
    step(ledger, MessageReceived("n1", Inventory((Known("j.1", State.RUNNING, walls="user"),))), 2.0)
    assert ledger.state.jobs["j"].walls == "user"


def test_a_level_that_is_none_is_not_recorded() -> None:
    ledger = grid(node("n1", "user"))
    submit(ledger, "j", "ann")
    step(ledger, MessageReceived("n1", Started("j.1", 7, "x" * 100_000)), 2.0)
    assert (ledger.state.jobs["j"].walls, ledger.state.jobs["j"].state) == ("", State.RUNNING)


# --- many nodes -------------------------------------------------------------------------------------------------------


def test_a_ledger_made_again_keeps_the_rule() -> None:
    ledger = grid(node("n1"), node("n2", "user"))
    again = resumed(ledger)
    assert submit(again, "j", "eve") == "n2"
    assert again.state.policy.owner_rule


def test_jobs_that_were_taken_before_there_was_the_rule_keep_to_it() -> None:
    old = job("j", Request(ONE), user="eve")
    ledger = Ledger(policy=RULE)
    ledger.restore((old,), (), (), 0.0)
    join(ledger, node("n1"))
    assert ledger.state.jobs["j"].node == ""
    join(ledger, node("n2", "user"), 1.0)
    assert ledger.state.jobs["j"].node == "n2"


def test_a_search_looks_at_nodes_that_run_the_users_jobs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand nodes of others none is looked at one by one, neither for the first nor for the next place."""
    ledger = grid(*(node(f"n{number}", owners=("bob",)) for number in range(1000)))
    for name, owners in (("ann1", ("ann",)), ("ann2", ("ann", "eve"))):
        join(ledger, node(name, owners=owners))
    looked: list[str] = []

    def count(trait: constraints.Trait, of: constraints.Known) -> bool:
        looked.append(of.host)
        return constraints.has_trait(trait, of)

    monkeypatch.setattr(catalogue, "has_trait", count)
    request = Request(ONE, user="ann")
    for _ in range(3):
        found = place(ledger.state.nodes, ledger.state.index, request, ledger.state.policy)
        assert isinstance(found, Placement) and found.node in ("ann1", "ann2")
    assert sorted(looked) == ["ann1", "ann2"]


def test_users_who_own_no_node_share_one_list() -> None:
    ledger = grid(node("n1"), node("n2", "user"))
    assert {ledger.state.index.whose(user) for user in ("eve", "bob", "cleo")} == {""}
    assert ledger.state.index.whose("ann") == "ann"
    join(ledger, node("n1", "user"), 1.0)
    assert ledger.state.index.whose("eve") is None


def test_a_launch_says_which_walls_it_needs_so_that_the_node_can_refuse_it() -> None:
    ledger = grid(node("n1", "user"))
    out = step(ledger, JobsSubmitted(1, (job("j", asked(walls="namespace"), user="eve"),)), 1.0)
    (launch,) = [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]
    assert (launch.walls, launch.user) == (Walls.NAMESPACE, "eve")
