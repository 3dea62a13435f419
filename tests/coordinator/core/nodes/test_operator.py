"""What the operator orders for nodes holds: over the deadline, over restarts, for all the named nodes or for none."""

import pytest

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    Configure,
    DrainRequested,
    Granted,
    HeartbeatReceived,
    JobsSubmitted,
    LabelsRequested,
    MessageReceived,
    NodeDown,
    NodeUp,
    RecordOrders,
    Rejected,
    Send,
    SettingsRequested,
    Tick,
    UndrainRequested,
)
from distributed_grid.coordinator.core.explain import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.placement.matching import labels
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started, Stop
from distributed_grid.protocol.nodes import NO_ORDERS, Known, Lending, LendingOrder, NodeOrders, Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer, resumed, step

CORE = Request(Resources(cpu=1000))
N1 = facts("n1", cores=2, labels={"room": "a", "ssd": "yes"})
N2 = facts("n2", cores=2)


def grid(*nodes: str) -> Ledger:
    ledger = Ledger()
    for name in nodes:
        join(ledger, N1 if name == "n1" else N2)
    return ledger


def running(ledger: Ledger, name: str = "j", request: Request = CORE) -> str:
    """A job is started; the node that has it."""
    (launch,) = launches(step(ledger, JobsSubmitted(1, (job(name, request),)), 0.5))
    node = ledger.state.allocations[launch.allocation].node
    step(ledger, MessageReceived(node, Started(allocation=launch.allocation)), 1.0)
    return node


def launches(commands: list[Command]) -> list[Launch]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


def stops(commands: list[Command]) -> list[Stop]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]


def heard(ledger: Ledger, until: float) -> list[Command]:
    """The nodes are heard all the time until then."""
    out: list[Command] = []
    while (at := min(ledger.state.now + 2.0, until)) > ledger.state.now:
        for name in ledger.state.nodes:
            out += step(ledger, HeartbeatReceived(name, Sample(at=at)), at)
    return out


def answer(commands: list[Command]) -> Granted | Rejected:
    (found,) = [one for one in commands if isinstance(one, Granted | Rejected)]
    return found


def restarted(ledger: Ledger, commands: list[Command], now: float) -> Ledger:
    """A ledger of what is on disk, and the agents are back."""
    stored = {one.node: one.orders for one in commands if isinstance(one, RecordOrders)}
    after = Ledger()
    nodes = [node.facts for node in ledger.state.nodes.values()]
    after.restore(ledger.state.jobs.values(), ledger.state.allocations.values(), nodes, now, ordered=stored)
    after.check()
    return after


def test_a_drained_node_gets_no_new_job_and_keeps_those_it_has() -> None:
    ledger = grid("n1")
    running(ledger)
    out = step(ledger, DrainRequested(7, ("n1",), "ann", "a new kernel"), 2.0)
    assert answer(out) == Granted(7, "n1 is drained; 1 job is still there")
    assert not stops(out) and ledger.state.jobs["j"].state is State.RUNNING
    assert not launches(step(ledger, JobsSubmitted(2, (job("k", CORE),)), 3.0))
    assert not launches(step(ledger, MessageReceived("n1", offer(N1, 2, counting=("j.1",))), 4.0))
    reason = why.why(ledger.state, "k", None, 4.0).reason
    assert (reason.code, reason.text) == ("Drained", "n1 is drained by ann: a new kernel")


def test_work_goes_round_a_drained_node() -> None:
    ledger = grid("n1", "n2")
    step(ledger, DrainRequested(7, ("n1",)), 0.2)
    assert {running(ledger, name) for name in ("a", "b")} == {"n2"}
    assert not launches(step(ledger, JobsSubmitted(1, (job("c", CORE),)), 1.0))


def test_undrain_starts_who_waits_at_once() -> None:
    ledger = grid("n1")
    step(ledger, DrainRequested(7, ("n1",)), 0.2)
    step(ledger, JobsSubmitted(1, (job("j", CORE),)), 0.5)
    out = step(ledger, UndrainRequested(8, ("n1",)), 3.0)
    assert answer(out) == Granted(8, "n1 is given jobs again")
    assert [one.allocation for one in launches(out)] == ["j.1"]
    assert answer(step(ledger, UndrainRequested(9, ("n1",)), 3.5)) == Granted(9, "n1 is not drained")


@pytest.mark.parametrize("order", [DrainRequested(7, ("n1", "n1x")), LabelsRequested(7, ("n1", "n1x"), {"room": "b"})])
def test_an_unknown_node_among_several_changes_nothing(order: DrainRequested | LabelsRequested) -> None:
    ledger = grid("n1", "n2")
    out = step(ledger, order, 1.0)
    refused = answer(out)
    assert isinstance(refused, Rejected) and refused.code == "bad-value" and "did you mean" in refused.hint
    assert not [one for one in out if isinstance(one, RecordOrders)]
    assert ledger.state.nodes["n1"].orders == NO_ORDERS


def test_the_order_is_recorded_before_it_is_answered() -> None:
    out = step(grid("n1"), DrainRequested(7, ("n1",)), 1.0)
    kinds = [type(one) for one in out]
    assert kinds.index(RecordOrders) < kinds.index(Granted)


# --- the deadline -----------------------------------------------------------------------------------------------------


def test_what_runs_at_the_deadline_is_taken_back_and_runs_elsewhere() -> None:
    ledger = grid("n1")
    running(ledger)
    assert not stops(step(ledger, DrainRequested(7, ("n1",), "ann", deadline=60.0), 2.0))
    assert not stops(heard(ledger, 61.9))
    (stop,) = stops(heard(ledger, 62.0))
    assert (stop.cause, stop.text, stop.grace) == (Cause.DRAINED, "n1 is drained by ann", 5.0)
    ended = Outcome(Cause.DRAINED, signal=15, text=stop.text)
    assert not launches(
        step(ledger, MessageReceived("n1", Exited(allocation="j.1", outcome=ended, returned=True)), 63.0)
    )
    assert ledger.state.jobs["j"].state is State.WAITING and ledger.state.jobs["j"].retried == 0
    assert [one.allocation for one in launches(join(ledger, N2, 64.0))] == ["j.2"]


def test_a_job_that_had_to_start_at_once_did_and_waits_for_its_next_place() -> None:
    ledger = grid("n1")
    running(ledger, request=Request(Resources(cpu=1000), immediate=True))
    step(ledger, DrainRequested(7, ("n1",), deadline=0.0), 2.0)
    step(
        ledger,
        MessageReceived("n1", Exited(allocation="j.1", outcome=Outcome(Cause.DRAINED, signal=15), returned=True)),
        3.0,
    )
    assert ledger.state.jobs["j"].state is State.WAITING


def test_a_deadline_of_zero_is_now() -> None:
    ledger = grid("n1")
    running(ledger)
    assert [one.allocation for one in stops(step(ledger, DrainRequested(7, ("n1",), deadline=0.0), 2.0))] == ["j.1"]


@pytest.mark.parametrize("order", [UndrainRequested(8, ("n1",)), DrainRequested(8, ("n1",), "bob")])
def test_a_later_order_takes_the_deadline_away(order: UndrainRequested | DrainRequested) -> None:
    ledger = grid("n1")
    running(ledger)
    step(ledger, DrainRequested(7, ("n1",), deadline=60.0), 2.0)
    step(ledger, order, 3.0)
    assert not stops(heard(ledger, 100.0))


def test_a_later_deadline_stands_instead_of_the_one_before() -> None:
    ledger = grid("n1")
    running(ledger)
    step(ledger, DrainRequested(7, ("n1",), "ann", "a new kernel", deadline=60.0), 2.0)
    step(ledger, DrainRequested(8, ("n1",), "bob", deadline=100.0), 3.0)
    drain = ledger.state.nodes["n1"].orders.drain
    assert drain is not None and (drain.since, drain.by, drain.reason) == (2.0, "bob", "a new kernel")
    assert not stops(heard(ledger, 70.0))
    assert stops(heard(ledger, 103.0))


def test_what_is_cancelled_while_it_is_drained_does_not_wait_again() -> None:
    ledger = grid("n1", "n2")
    node = running(ledger)
    step(ledger, DrainRequested(7, (node,), deadline=0.0), 2.0)
    step(ledger, CancelRequested(8, ("j",)), 2.5)
    ended = Outcome(Cause.DRAINED, signal=15)
    assert (
        not launches(step(ledger, MessageReceived(node, Exited(allocation="j.1", outcome=ended)), 3.0))
        and not ledger.state.jobs
    )


def test_a_node_that_is_away_at_the_deadline_is_told_when_it_is_back() -> None:
    ledger = grid("n1")
    running(ledger)
    step(ledger, DrainRequested(7, ("n1",), deadline=20.0), 2.0)
    step(ledger, NodeDown("n1", "session-n1"), 3.0)
    step(ledger, Tick(), 14.0)
    assert not stops(step(ledger, Tick(), 22.0))
    step(ledger, NodeUp(N1, "back"), 30.0)
    known = (Known("j.1", State.RUNNING, started_for=29.0),)
    assert [one.allocation for one in stops(step(ledger, MessageReceived("n1", Inventory(known=known)), 30.0))] == [
        "j.1"
    ]


# --- over restarts ----------------------------------------------------------------------------------------------------


def test_orders_outlast_agents_and_coordinators() -> None:
    ledger = grid("n1")
    running(ledger)
    out = step(ledger, DrainRequested(7, ("n1",), deadline=60.0), 2.0)
    out += step(ledger, LabelsRequested(8, ("n1",), {"room": "b"}), 3.0)
    after = restarted(ledger, out, 10.0)
    step(after, NodeUp(N1, "back"), 11.0)
    step(after, MessageReceived("n1", Inventory(known=(Known("j.1", State.RUNNING, started_for=10.0),))), 11.0)
    step(after, MessageReceived("n1", offer(N1, 1, counting=("j.1",))), 11.0)
    assert labels(after.state.nodes["n1"])["room"] == "b"
    assert not launches(step(after, JobsSubmitted(9, (job("k", CORE),)), 12.0))
    assert [one.allocation for one in stops(heard(after, 62.0))] == ["j.1"]


def test_a_deadline_that_passed_while_the_coordinator_was_away_is_kept_at_its_start() -> None:
    ledger = grid("n1")
    running(ledger)
    after = restarted(ledger, step(ledger, DrainRequested(7, ("n1",), deadline=60.0), 2.0), 100.0)
    step(after, Tick(), 100.0)
    step(after, NodeUp(N1, "back"), 101.0)
    known = (Known("j.1", State.RUNNING, started_for=100.0),)
    assert [one.allocation for one in stops(step(after, MessageReceived("n1", Inventory(known=known)), 101.0))] == [
        "j.1"
    ]


def test_a_ledger_from_a_checkpoint_keeps_the_deadline() -> None:
    ledger = grid("n1")
    running(ledger)
    step(ledger, DrainRequested(7, ("n1",), deadline=60.0), 2.0)
    after = resumed(ledger)
    assert after.state.nodes["n1"].orders == ledger.state.nodes["n1"].orders
    assert stops(heard(after, 62.0))


# --- labels -----------------------------------------------------------------------------------------------------------


def test_the_operators_labels_stand_over_those_of_the_agent() -> None:
    ledger = grid("n1")
    step(ledger, LabelsRequested(7, ("n1",), {"room": "b", "ssd": None, "gone": None, "new": "1"}), 1.0)
    assert labels(ledger.state.nodes["n1"]) == {"room": "b", "new": "1"}
    assert ledger.state.nodes["n1"].orders.labels == {"room": "b", "ssd": None, "new": "1"}
    step(ledger, NodeUp(facts("n1", cores=2, labels={"room": "c", "ssd": "no"}), "again"), 2.0)
    assert labels(ledger.state.nodes["n1"]) == {"room": "b", "new": "1"}
    step(ledger, LabelsRequested(8, ("n1",), {"new": None}), 3.0)
    assert labels(ledger.state.nodes["n1"]) == {"room": "b"}


# --- what nodes lend ------------------------------------------------------------------------------------------------


def ordered(ledger: Ledger, name: str = "n1") -> Lending | None:
    order = ledger.state.nodes[name].orders.lending
    return order.values if order is not None else None


def test_what_a_node_lends_is_set_by_one_order_over_another_until_it_is_unset() -> None:
    ledger = grid("n1", "n2")
    out = step(ledger, SettingsRequested(1, ("n1", "n2"), Lending(max_share_cpu=2.0, can_share=True), by="ann"), 1.0)
    order = LendingOrder(values=Lending(max_share_cpu=2.0, can_share=True), since=1.0, by="ann")
    assert [one for one in out if isinstance(one, RecordOrders | Configure | Granted)] == [
        RecordOrders("n1", NodeOrders(lending=order)),
        Configure("n1"),
        RecordOrders("n2", NodeOrders(lending=order)),
        Configure("n2"),
        Granted(1, "n1, n2 are to lend as ordered"),
    ]
    step(ledger, SettingsRequested(2, ("n1",), Lending(max_share_gpu=0), ("can_share",), "bob"), 2.0)
    assert ordered(ledger) == Lending(max_share_cpu=2.0, max_share_gpu=0)
    step(ledger, SettingsRequested(3, ("n1",), Lending(max_share_cpu=1.0), ("max_share_cpu", "max_share_gpu")), 3.0)
    assert ordered(ledger) == Lending(max_share_cpu=1.0), "what is set and unset at once is set"
    step(ledger, SettingsRequested(4, ("n1",), Lending(), ("max_share_cpu",)), 4.0)
    assert ordered(ledger) is None and ordered(ledger, "n2") == order.values


def test_nothing_is_set_where_one_of_the_nodes_is_not_known() -> None:
    ledger = grid("n1")
    (refused,) = step(ledger, SettingsRequested(1, ("n1", "n9"), Lending(can_share=False)), 1.0)
    assert isinstance(refused, Rejected) and refused.code == "bad-value"
    assert ordered(ledger) is None


def test_what_is_set_holds_over_a_restart_and_a_snapshot() -> None:
    ledger = grid("n1")
    step(ledger, SettingsRequested(1, ("n1",), Lending(max_share_cpu=1.0), by="ann"), 1.0)
    assert ordered(resumed(ledger)) == Lending(max_share_cpu=1.0)
    again = Ledger(2)
    again.restore((), (), (N1,), 5.0, ordered={"n1": ledger.state.nodes["n1"].orders})
    assert ordered(again) == Lending(max_share_cpu=1.0)
