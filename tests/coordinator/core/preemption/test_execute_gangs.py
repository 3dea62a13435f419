"""An urgent gang takes its places as one: nobody gives way unless all members get one, what becomes free is kept for
all of them, and they start together or those who gave way resume."""

import random
from collections import Counter
from typing import Any

import msgspec

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import CancelRequested, Command, MessageReceived, NodeUp, Tick
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.queue.admission import refusal
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Started
from distributed_grid.protocol.messages.rights import Rights, Rules
from distributed_grid.protocol.nodes import Known
from distributed_grid.protocol.resources import MILLI, Resources
from tests.coordinator.core.explain.test_why_changes import grid, request
from tests.coordinator.core.lifecycle.test_outcomes import submitted
from tests.coordinator.core.preemption.test_candidates import PATIENT
from tests.coordinator.core.preemption.test_execute import (
    ask,
    beats,
    ends,
    full,
    launches,
    policy,
    receipts,
    stops,
    urgent,
)
from tests.coordinator.core.scene import facts, kept_for, offer, resumed, step
from tests.depth import tries

DONE = Outcome(cause=Cause.EXITED)
RESERVED_FIRST = 1868
"""A seed with an urgent job that waits, for which the next pass reserves a node that the gang would have started on."""


def gang(ledger: Ledger, now: float, many: int = 2, cores: int = 1, **more: Any) -> list[Command]:
    """The urgent gang g is asked for: so many nodes with so many cores each."""
    wanted = Request(Resources(cores * MILLI), Priority.URGENT, gang=many, **more)
    return submitted(ledger, request=wanted, now=now)


def test_who_loses_least_on_each_node_gives_way_and_all_members_start_on_just_these_places_together() -> None:
    ledger = full(2, nodes=2)
    out = gang(ledger, 50.0)
    assert sorted(stops(out)) == ["a1.1", "b1.1"]
    places = {ledger.state.allocations[name].node: ledger.state.allocations[name].grant for name in ("a1.1", "b1.1")}
    assert launches(ends(ledger, "a1.1", 51.0)) == []
    assert sorted(launches(ends(ledger, "b1.1", 52.0))) == ["g_0.1", "g_1.1"]
    assert {one.node: one.grant for one in ledger.state.allocations.values() if one.job.startswith("g_")} == places
    assert {ledger.state.jobs[name].state for name in ("a1", "b1")} == {State.WAITING}
    assert {ledger.state.jobs[name].state for name in ("a0", "b0")} == {State.RUNNING}


def test_where_not_all_members_would_have_a_place_nobody_is_touched() -> None:
    ledger = full(1, nodes=2)
    ends(ledger, "b0.1", 40.0, DONE)
    ask(ledger, "high", 40.0, priority=Priority.HIGH)
    assert stops(gang(ledger, 50.0)) == [] and stops(step(ledger, Tick(), 60.0)) == []
    why = views.job(ledger.state, "g_0").reason  # type: ignore[union-attr]
    text = "no preemption: with all who may give way there is room on 1 of the 2 nodes that it needs at once"
    assert why is not None and why.code == "Resources" and why.text.endswith(text)
    assert all(node.earmarks == {} for node in ledger.state.nodes.values())


def test_a_free_node_is_kept_for_it_too_while_somebody_gives_way_on_another() -> None:
    ledger = full(1, nodes=2)
    ends(ledger, "b0.1", 40.0, DONE)
    assert stops(gang(ledger, 50.0)) == ["a0.1"]
    assert launches(ask(ledger, "high", 51.0, priority=Priority.HIGH)) == [], "the free node is not lent meanwhile"
    assert sorted(launches(ends(ledger, "a0.1", 52.0))) == ["g_0.1", "g_1.1"]


def test_one_receipt_names_all_who_gave_way_where_and_all_the_places_and_says_when_it_started() -> None:
    ledger = full(2, nodes=2)
    (opened,) = receipts(gang(ledger, 50.0))
    assert (opened.id, opened.job, opened.lost) == ("g_0.p1", "g_0", 96.0)
    assert sorted((one.job, one.node) for one in opened.victims) == [("a1", "n1"), ("b1", "n2")]
    assert sorted([opened.node, *(place.node for place in opened.more)]) == ["n1", "n2"]
    assert opened.why == "needs 1 cpu on each of 2 nodes, which nobody had free; least is lost by these"
    ends(ledger, "a1.1", 51.0)
    (closed,) = receipts(ends(ledger, "b1.1", 52.5))
    assert (closed.id, closed.result, closed.waited) == ("g_0.p1", "started", 2.5)


def test_all_members_say_what_is_waited_for() -> None:
    ledger = full(1, nodes=2)
    gang(ledger, 50.0)
    for name in ("g_0", "g_1"):
        why = views.job(ledger.state, name).reason  # type: ignore[union-attr]
        assert why is not None and (why.code, why.text) == ("Preempting", "2 jobs end on n1, n2 until 00:00:55 UTC")
    mine = views.job(ledger.state, "a0")
    assert mine is not None and mine.state is State.STOPPING


def test_a_gang_that_is_cancelled_gives_what_was_freed_back_to_its_victims_before_others() -> None:
    ledger = full(1, nodes=2)
    ask(ledger, "high", 40.0, priority=Priority.HIGH)
    gang(ledger, 50.0)
    ends(ledger, "b0.1", 51.0)
    out = step(ledger, CancelRequested(2, ("g_1",)), 52.0)
    assert launches(out) == ["b0.2"] and ledger.state.jobs["b0"].node == "n2"
    assert [(one.result, one.text) for one in receipts(out)] == [("returned", "g_0 was ended")]
    assert launches(ends(ledger, "a0.1", 53.0)) == ["a0.2"]
    assert not ledger.state.preempting.preemptors and not any(node.earmarks for node in ledger.state.nodes.values())
    assert not any(name.startswith("g_") for name in ledger.state.jobs)


def test_when_the_time_is_over_and_one_node_is_not_free_all_is_given_back() -> None:
    ledger = full(1, nodes=2)
    gang(ledger, 50.0)
    ends(ledger, "b0.1", 51.0)
    out = step(ledger, Tick(), 65.0)
    assert launches(out) == ["b0.2"]
    assert [one.result for one in receipts(out)] == ["returned"]
    assert kept_for(ledger.state.jobs["g_0"]) is None and "g_0" in ledger.state.queue
    told = [step.text for step in ledger.state.jobs["g_0"].story if "did not end" in step.text]
    assert told == ["a0 did not end on n1, n2 in time: it waits for any place again"]


def test_a_node_that_is_cut_off_dissolves_all_of_it() -> None:
    ledger = full(1, nodes=2, rules=msgspec.structs.replace(policy(), suspect_after=3.0, disconnected_after=6.0))
    beats(ledger, "n1 n2", 5, 49)
    gang(ledger, 50.0)
    ends(ledger, "b0.1", 51.0)
    out = beats(ledger, "n2", 52, 64)
    assert [one.result for one in receipts(out)] == ["returned"]
    assert launches(out) == ["b0.2"] and not any(node.earmarks for node in ledger.state.nodes.values())


def test_an_urgent_job_and_an_urgent_gang_take_different_victims() -> None:
    ledger = full(2, nodes=2)
    assert sorted(stops(gang(ledger, 50.0))) == ["a1.1", "b1.1"]
    assert stops(urgent(ledger, "u", 50.0)) == ["a0.1"]
    assert launches(ends(ledger, "a1.1", 51.0)) == []
    assert len(launches(ends(ledger, "b1.1", 52.0))) == 2


def test_a_gang_gives_way_to_a_gang_as_a_whole_and_waits_again() -> None:
    ledger = full(1, nodes=2)
    for name in ("a0.1", "b0.1"):
        ends(ledger, name, 20.0, DONE)
    submitted(ledger, "low", Request(Resources(MILLI), Priority.LOW, gang=2), now=20.0)
    for name in ("low_0.1", "low_1.1"):
        step(ledger, MessageReceived(ledger.state.allocations[name].node, Started(allocation=name)), 21.0)
    out = gang(ledger, 50.0)
    (opened,) = receipts(out)
    assert sorted(stops(out)) == ["low_0.1", "low_1.1"]
    assert [(one.gang, one.lost) for one in opened.victims] == [(2, 58.0)] and opened.lost == 58.0
    assert launches(ends(ledger, "low_0.1", 51.0)) == []
    assert sorted(launches(ends(ledger, "low_1.1", 52.0))) == ["g_0.1", "g_1.1"]
    assert {ledger.state.jobs[f"low_{rank}"].state for rank in (0, 1)} == {State.WAITING}


def test_a_plan_outlives_the_coordinator() -> None:
    ledger = full(1, nodes=2)
    gang(ledger, 50.0)
    ends(ledger, "b0.1", 51.0)
    kept, groups = kept_for(ledger.state.jobs["g_0"]), [one.group for one in ledger.state.groups.values()]
    again = Ledger(epoch=1, policy=ledger.state.policy)
    nodes = [node.facts for node in ledger.state.nodes.values()]
    again.restore(ledger.state.jobs.values(), ledger.state.allocations.values(), nodes, 52.0, many=groups)
    again.check()
    assert kept_for(again.state.jobs["g_0"]) == kept and again.state.preempting.preemptors.keys() == {"a0.1", "b0.1"}
    out = list[Command]()
    for name, held in (("n1", ("a0.1",)), ("n2", ())):
        of = facts(name, 1)
        known = tuple(Known(one, State.RUNNING) for one in held)
        out += again.handle(NodeUp(of, "new"), 53.0) + step(again, MessageReceived(name, Inventory(known=known)), 53.0)
        out += step(again, MessageReceived(name, offer(of, cores=() if held else of.cores, counting=held)), 53.5)
    assert stops(out) == ["a0.1"] and launches(out) == []
    caught = Exited(allocation="a0.1", outcome=Outcome(cause=Cause.PREEMPTED, signal=15), returned=True)
    assert sorted(launches(step(again, MessageReceived("n1", caught), 54.0))) == ["g_0.1", "g_1.1"]


def test_what_is_kept_for_a_gang_counts_once_in_a_quota_also_after_a_restart() -> None:
    limited = Rules(users={"ann": Rights(cores=4 * MILLI)})
    ledger = full(1, nodes=2, rules=msgspec.structs.replace(policy(), rights=limited))
    gang(ledger, 50.0)
    again, groups = Ledger(epoch=1, policy=ledger.state.policy), [one.group for one in ledger.state.groups.values()]
    nodes = [node.facts for node in ledger.state.nodes.values()]
    again.restore(ledger.state.jobs.values(), ledger.state.allocations.values(), nodes, 52.0, many=groups)
    (mine,) = again.state.quotas.all_pools()
    assert mine.held == Resources(4 * MILLI)  # two held by those who give way, and two kept
    again.check()


def test_a_plan_is_in_a_checkpoint() -> None:
    ledger = full(1, nodes=2)
    gang(ledger, 50.0)
    ends(ledger, "b0.1", 51.0)
    again = resumed(ledger)
    again.check()
    assert again.state.preempting == ledger.state.preempting
    assert sorted(launches(ends(again, "a0.1", 52.0))) == ["g_0.1", "g_1.1"]


def test_where_no_port_is_left_to_meet_at_nobody_gives_way() -> None:
    rules = msgspec.structs.replace(policy(), gang_ports=(29500, 29500))
    ledger = full(1, nodes=2, rules=rules)
    ledger.state.rendezvous[("127.0.0.1", 29500)] = "other"
    assert stops(gang(ledger, 50.0)) == []
    why = views.job(ledger.state, "g_0").reason  # type: ignore[union-attr]
    assert why is not None and why.text.endswith("no preemption: no port is left where its gang could meet")


def test_whom_a_dry_run_of_a_gang_names_gives_way_in_the_next_pass_and_nobody_else() -> None:
    seen = Counter[str]()
    for seed in sorted({*range(tries(300, 150)), RESERVED_FIRST}):
        lot = random.Random(f"gang {seed}")
        ledger = grid(lot, PATIENT)
        wanted = msgspec.structs.replace(request(lot), priority=Priority.URGENT, gang=lot.choice((2, 2, 3)))
        wanted = msgspec.structs.replace(wanted, resources=Resources(wanted.resources.cpu, wanted.resources.memory))
        if refusal(ledger.state, 1, wanted) is not None:
            continue
        ledger.settle(50.0)
        why = explain.why(ledger.state, None, wanted, 50.0, "ann")
        (opened,) = receipts(submitted(ledger, "asked", wanted, now=50.0)) or (None,)
        seen["preempts" if why.preempts else why.reason.code] += 1
        if why.preempts is None or opened is None:
            assert (why.preempts, opened) == (None, None), f"seed {seed}"
            continue
        said = why.preempts
        assert why.reason.text.startswith(f"it would start on {said.node}, ")
        assert (said.node, said.grant, said.more, said.victims, said.lost, said.alternatives) == (
            opened.node, opened.grant, opened.more, opened.victims, opened.lost, opened.alternatives
        ), f"seed {seed}"  # fmt: skip
        kept = kept_for(ledger.state.jobs["asked_0"])
        assert kept is not None and kept.ends == 50.0 + said.within
    assert seen["preempts"] > 5 and seen["Fits"] > 5 and seen["Resources"] > 5, seen
