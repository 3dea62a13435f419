"""Preemption from the plan to its end, in the ledger: who is told what, for whom the freed set is kept, who resumes."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeUp,
    RecordAllocation,
    RecordJob,
    RecordReceipt,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy, Preempting
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Stale, Started, Stop
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.nodes import Known, Sample
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from tests.coordinator.core.scene import facts, job, join, kept_for, offer, resumed, step

RULES = Preempting(min_hold=10.0, min_hold_most=100.0, notice=2.0, grace_most=30.0, hold=10.0)
CAUGHT = Outcome(cause=Cause.PREEMPTED, signal=15)


def policy(**other: float) -> Policy:
    """Silence is of no interest here."""
    return Policy(suspect_after=1e6, disconnected_after=2e6, preempting=msgspec.structs.replace(RULES, **other))


def ask(
    ledger: Ledger, name: str, now: float, cores: float = 1, priority: Priority = Priority.LOW, grace: float = 3.0,
    memory: int = 0, **spec: Any,
) -> list[Command]:  # fmt: skip
    wanted = Request(Resources(int(cores * MILLI), memory), priority)
    return step(ledger, JobsSubmitted(1, (job(name, wanted, now, grace=grace, **spec),)), now)


def urgent(ledger: Ledger, name: str, now: float, cores: float = 1, **more: Any) -> list[Command]:
    return ask(ledger, name, now, cores, Priority.URGENT, **more)


def full(count: int = 4, nodes: int = 1, low: Priority = Priority.LOW, rules: Policy | None = None) -> Ledger:
    """Nodes of so many cores, each full of jobs with one core: a0, a1 ... on n1, b0 ... on n2. They run since 1, 2,
    and so on, so a0 has most to lose."""
    ledger = Ledger(policy=rules or policy())
    for node in range(nodes):
        join(ledger, facts(f"n{node + 1}", count), 0.0)
        for number in range(count):
            ask(ledger, f"{'ab'[node]}{number}", 0.0, priority=low)
    for number in range(count):
        for node in range(nodes):
            step(ledger, MessageReceived(f"n{node + 1}", Started(allocation=f"{'ab'[node]}{number}.1")), number + 1.0)
    return ledger


def beats(ledger: Ledger, names: str, since: int, until: int) -> list[Command]:
    """These nodes are heard every second, up to that one."""
    return [
        command
        for now in range(since, until + 1)
        for name in names.split()
        for command in step(ledger, HeartbeatReceived(name, Sample(at=float(now))), float(now))
    ]


def ends(ledger: Ledger, allocation: str, now: float, outcome: Outcome = CAUGHT, on: str = "") -> list[Command]:
    node = on or ledger.state.allocations[allocation].node
    return step(ledger, MessageReceived(node, Exited(allocation=allocation, outcome=outcome)), now)


def stops(commands: Iterable[Command]) -> list[str]:
    return [one.message.allocation for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]


def launches(commands: Iterable[Command]) -> list[str]:
    return [one.message.allocation for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


def receipts(commands: Iterable[Command]) -> list[Receipt]:
    return [one.receipt for one in commands if isinstance(one, RecordReceipt)]


def test_who_loses_least_is_told_to_stop_with_notice_and_grace_and_its_core_goes_to_the_urgent_job() -> None:
    ledger = full()
    out = urgent(ledger, "u", 50.0)
    told = [one.message for one in out if isinstance(one, Send)]
    assert [(one.allocation, one.grace, one.cause, one.text) for one in told if isinstance(one, Stop)] == [
        ("a3.1", 5.0, "preempted", "gives way to u (urgent, ann)")
    ]
    assert len(told) == 1
    core = ledger.state.allocations["a3.1"].grant.cores
    out = ends(ledger, "a3.1", 52.0)
    assert launches(out) == ["u.1"] and ledger.state.allocations["u.1"].grant.cores == core
    assert ledger.state.jobs["a3"].state is State.WAITING and ledger.state.jobs["a3"].evicted == 1


def test_a_victim_waits_with_its_age_and_starts_before_younger_ones() -> None:
    ledger = full()
    ask(ledger, "young", 49.0)
    urgent(ledger, "u", 50.0)
    ends(ledger, "a3.1", 52.0)
    assert launches(ends(ledger, "a0.1", 60.0, Outcome(cause=Cause.EXITED))) == ["a3.2"]


def test_who_gives_way_to_whom_and_why_is_in_a_receipt_that_says_in_the_end_how_long_it_took() -> None:
    ledger = full(nodes=2)
    opened = receipts(urgent(ledger, "u", 50.0))
    assert [(one.id, one.job, one.user, one.node, one.result, one.lost) for one in opened] == [
        ("u.p1", "u", "ann", "n1", "", 46.0)
    ]
    assert [(v.job, v.user, v.priority, v.seconds, v.lost) for v in opened[0].victims] == [
        ("a3", "ann", Priority.LOW, 46.0, 46.0)
    ]
    assert [(one.node, one.victims, one.lost) for one in opened[0].alternatives] == [("n2", 1, 46.0)]
    closed = receipts(ends(ledger, "a3.1", 52.5))
    assert [(one.id, one.result, one.closed, one.waited) for one in closed] == [("u.p1", "started", 52.5, 2.5)]


def test_the_receipt_and_what_is_kept_are_recorded_before_anybody_is_told_to_stop() -> None:
    out = urgent(full(), "u", 50.0)
    kinds = [type(one) for one in out]
    assert RecordReceipt in kinds
    kept = [kept_for(one.job) for one in out if isinstance(one, RecordJob) and one.job.id == "u"]
    assert kept[-1] is not None and kept[-1].until == 65.0


def test_what_is_freed_in_part_is_seen_by_nobody_else() -> None:
    ledger = full()
    ask(ledger, "other", 40.0, priority=Priority.HIGH)
    assert sorted(stops(urgent(ledger, "u", 50.0, 2))) == ["a2.1", "a3.1"]
    assert launches(ends(ledger, "a2.1", 51.0)) == []
    assert launches(ends(ledger, "a3.1", 52.0)) == ["u.1"]
    assert launches(ends(ledger, "a1.1", 53.0, Outcome(cause=Cause.EXITED))) == ["other.1"]


def test_what_victims_free_beyond_what_is_needed_goes_to_others_at_once() -> None:
    ledger = Ledger(policy=policy())
    join(ledger, facts("n1", 2), 0.0)
    ask(ledger, "large", 0.0, 2)
    step(ledger, MessageReceived("n1", Started(allocation="large.1")), 1.0)
    ask(ledger, "small", 1.0, priority=Priority.HIGH)
    urgent(ledger, "u", 50.0)
    assert sorted(launches(ends(ledger, "large.1", 51.0))) == ["small.1", "u.1"]


def test_room_that_comes_back_with_an_offer_only_is_kept_as_well() -> None:
    ledger = full()
    of = facts("n1", 4)
    step(ledger, MessageReceived("n1", offer(of, cores=(), counting=("a0.1", "a1.1", "a2.1", "a3.1"))), 40.0)
    urgent(ledger, "u", 50.0)
    ask(ledger, "other", 50.5, priority=Priority.HIGH)
    assert launches(ends(ledger, "a3.1", 51.0)) == []
    core = kept_for(ledger.state.jobs["u"]).grant.cores  # type: ignore[union-attr]
    out = step(ledger, MessageReceived("n1", offer(of, cores=core, counting=("a0.1", "a1.1", "a2.1"))), 51.5)
    assert launches(out) == ["u.1"]


def test_where_the_owner_takes_what_was_kept_it_starts_elsewhere_on_the_node_if_there_is_room() -> None:
    ledger = full()
    of = facts("n1", 4)
    urgent(ledger, "u", 50.0)
    ends(ledger, "a2.1", 50.5, Outcome(cause=Cause.EXITED))
    core = ledger.state.allocations["a3.1"].grant.cores
    others = tuple(c for c in of.cores if c not in core)
    step(ledger, MessageReceived("n1", offer(of, cores=others)), 50.6)
    out = ends(ledger, "a3.1", 51.0)
    assert launches(out) == [] or ledger.state.jobs["u"].state is State.STARTING
    ledger.check()


def test_only_an_urgent_job_preempts_and_not_one_of_its_own_class_or_the_next_below() -> None:
    ledger = full()
    assert stops(ask(ledger, "h", 50.0, priority=Priority.HIGH)) == []
    ledger = full(low=Priority.HIGH)
    assert stops(urgent(ledger, "u", 50.0)) == []
    assert ledger.state.jobs["u"].reason is not None
    assert ledger.state.jobs["u"].reason.text.endswith("nobody two classes below holds enough on any one node")


def test_a_job_keeps_its_place_for_the_min_hold_and_twice_as_long_after_an_eviction() -> None:
    ledger = full()
    assert stops(urgent(ledger, "u", 9.0)) == []
    why = views.job(ledger.state, "u").reason  # type: ignore[union-attr]
    assert why is not None and why.text.endswith("min-hold protects who began lately, until 00:00:10 UTC")
    assert ledger.next_deadline() == 10.0
    assert stops(ledger.settle(10.0)) == ["a3.1"]
    ends(ledger, "a3.1", 11.0)
    ends(ledger, "u.1", 12.0, Outcome(cause=Cause.EXITED))
    assert ledger.state.allocations["a3.2"].granted == 12.0
    for name in ("a0", "a1", "a2"):
        ends(ledger, f"{name}.1", 12.5, Outcome(cause=Cause.EXITED))
        ask(ledger, f"h{name}", 12.5, priority=Priority.HIGH)
    step(ledger, MessageReceived("n1", Started(allocation="a3.2")), 13.0)
    assert stops(urgent(ledger, "v", 31.9)) == []
    assert stops(ledger.settle(32.0)) == ["a3.2"]


def test_the_worst_known_case_two_urgent_jobs_and_eleven_small_ones_evicts_nobody() -> None:
    """Eleven jobs hold what is no complete set for either of two that wait (spur#888): evicting them frees nothing of
    use, and so nobody is."""
    ledger = Ledger(policy=policy())
    for number in range(11):
        name = f"n{number}"
        join(ledger, facts(name, 4), 0.0)
        ask(ledger, f"high{number}", 0.0, 3, Priority.HIGH)
        ask(ledger, f"low{number}", 0.0, 1)
    for allocation in list(ledger.state.allocations.values()):
        step(ledger, MessageReceived(allocation.node, Started(allocation=allocation.id)), 1.0)
    assert len(ledger.state.allocations) == 22
    out = urgent(ledger, "u1", 100.0, 2) + urgent(ledger, "u2", 101.0, 4)
    for now in range(102, 200):
        out += step(ledger, Tick(), float(now))
    assert stops(out) == [] and receipts(out) == []
    assert all(ledger.state.jobs[f"low{number}"].state is State.RUNNING for number in range(11))


def test_a_second_urgent_job_waits_for_what_ends_already_and_takes_nobody_more() -> None:
    ledger = Ledger(policy=policy())
    join(ledger, facts("n1", 4), 0.0)
    ask(ledger, "large", 0.0, 3)
    ask(ledger, "small", 0.0, 1, Priority.MEDIUM)
    for name in ("large.1", "small.1"):
        step(ledger, MessageReceived("n1", Started(allocation=name)), 1.0)
    assert stops(urgent(ledger, "u", 50.0)) == ["large.1"]
    out = urgent(ledger, "v", 50.5, 2)
    assert stops(out) == []
    assert (
        ledger.state.jobs["v"].reason is not None and "1 job ends on n1 already" in ledger.state.jobs["v"].reason.text
    )
    assert sorted(launches(ends(ledger, "large.1", 51.0))) == ["u.1", "v.1"]


def test_two_urgent_jobs_take_different_victims_each_with_one_plan_of_its_own() -> None:
    ledger = full()
    assert stops(urgent(ledger, "u", 50.0)) == ["a3.1"]
    assert stops(urgent(ledger, "v", 50.0)) == ["a2.1"]
    assert stops(step(ledger, Tick(), 51.5)) == []
    assert launches(ends(ledger, "a2.1", 52.0)) == ["v.1"]
    assert launches(ends(ledger, "a3.1", 52.0)) == ["u.1"]


def test_a_preemptor_that_goes_away_gives_what_was_freed_back_to_its_victims_before_others() -> None:
    ledger = full()
    ask(ledger, "high", 40.0, 2, priority=Priority.HIGH)
    urgent(ledger, "u", 50.0, 2)
    core = ledger.state.allocations["a2.1"].grant
    ends(ledger, "a2.1", 51.0)
    out = step(ledger, CancelRequested(2, ("u",)), 52.0)
    assert launches(out) == ["a2.2"] and ledger.state.allocations["a2.2"].grant == core
    assert [(one.result, one.text) for one in receipts(out)] == [("returned", "u was ended")]
    # The other one was told already and still ends: it comes back too.
    assert launches(ends(ledger, "a3.1", 53.0)) == ["a3.2"]
    assert not ledger.state.nodes["n1"].earmarks and not ledger.state.preempting.preemptors


def test_a_victim_that_does_not_end_blocks_nobody_for_long_the_plan_is_made_elsewhere() -> None:
    ledger = full(nodes=2)
    urgent(ledger, "u", 50.0)
    kept = kept_for(ledger.state.jobs["u"])
    assert kept is not None and kept.node == "n1"
    out = step(ledger, Tick(), 66.5)
    kept = kept_for(ledger.state.jobs["u"])
    assert kept is not None and kept.receipt is not None and kept.receipt.id == "u.p2"
    assert {victim.allocation for victim in kept.receipt.victims} != {"a3.1"}
    told = [step for step in ledger.state.jobs["u"].story if "did not end" in step.text]
    assert told and "a3 did not end on n1 in time" in told[0].text
    victim = kept.receipt.victims[0].allocation
    assert launches(ends(ledger, victim, 67.0)) == ["u.1"], out
    # At last it ends, and has its place again: nobody took it.
    assert launches(ends(ledger, "a3.1", 90.0)) == ["a3.2"]


def test_what_gave_way_for_nothing_resumes_first_when_the_time_is_over() -> None:
    ledger = full()
    ask(ledger, "high", 40.0, 1, priority=Priority.HIGH)
    urgent(ledger, "u", 50.0, 2)
    ends(ledger, "a2.1", 51.0)
    out = step(ledger, Tick(), 65.0)
    assert launches(out) == ["a2.2"]
    kept = kept_for(ledger.state.jobs["u"])
    assert kept is not None and kept.receipt is not None
    assert {one.allocation for one in kept.receipt.victims} == {"a0.1", "a1.1"}, "who is stuck is not counted on again"


def test_a_node_that_is_cut_off_dissolves_the_plan_and_the_urgent_one_goes_elsewhere() -> None:
    ledger = full(nodes=2, rules=Policy(preempting=RULES))
    beats(ledger, "n1 n2", 5, 49)
    urgent(ledger, "u", 50.0, 2)
    ends(ledger, "a2.1", 51.0)
    out = beats(ledger, "n2", 52, 62)
    assert [one.result for one in receipts(out)] == ["returned", ""]
    kept = kept_for(ledger.state.jobs["u"])
    assert kept is not None and kept.node == "n2"
    assert ledger.state.jobs["a2"].state is State.WAITING and kept_for(ledger.state.jobs["a2"]) is None


@pytest.mark.parametrize("outcome", [Outcome(cause=Cause.EXITED, code=0), Outcome(cause=Cause.EXITED, code=3)])
def test_a_victim_that_ends_by_itself_meanwhile_is_over_and_the_plan_goes_on(outcome: Outcome) -> None:
    ledger = full()
    urgent(ledger, "u", 50.0)
    assert launches(ends(ledger, "a3.1", 51.0, outcome)) == ["u.1"]
    assert "a3" not in ledger.state.jobs


def test_a_victim_that_was_only_starting_waits_again_and_has_lost_nothing() -> None:
    ledger = Ledger(policy=policy())
    join(ledger, facts("n1", 1), 0.0)
    ask(ledger, "a", 0.0)
    opened = receipts(urgent(ledger, "u", 50.0))
    assert opened[0].lost == 0.0
    out = step(ledger, MessageReceived("n1", Stale(allocation="a.1", reason="told to stop", device="gone")), 50.5)
    assert ledger.state.jobs["a"].state is State.WAITING and "a" in ledger.state.queue
    ledger.check()
    assert not stops(out)


def test_a_victim_that_is_cancelled_is_cancelled_and_its_place_still_goes_to_the_urgent_one() -> None:
    ledger = full()
    urgent(ledger, "u", 50.0)
    step(ledger, CancelRequested(2, ("a3",)), 50.5)
    assert launches(ends(ledger, "a3.1", 51.0, Outcome(cause=Cause.CANCELLED, signal=15))) == ["u.1"]
    assert "a3" not in ledger.state.jobs


def test_work_that_was_lost_counts_for_an_hour_against_the_budget() -> None:
    ledger = full(rules=policy(badput_budget=150.0))
    assert stops(urgent(ledger, "u", 104.0)) == ["a3.1"]  # 100 core-seconds
    assert stops(urgent(ledger, "v", 104.5)) == []
    ends(ledger, "a3.1", 105.0)
    why = views.job(ledger.state, "v").reason  # type: ignore[union-attr]
    assert why is not None and "the badput budget has 50 left for this hour" in why.text
    for name in ("a0", "a1", "a2"):
        ends(ledger, f"{name}.1", 106.0, Outcome(cause=Cause.EXITED))
    assert ledger.state.jobs["v"].state is State.STARTING


def test_it_says_what_it_waits_for_and_the_victim_who_has_its_place() -> None:
    ledger = full()
    urgent(ledger, "u", 50.0, time_limit=600.0)
    why = views.job(ledger.state, "u").reason  # type: ignore[union-attr]
    assert why is not None and (why.code, why.text) == ("Preempting", "1 job ends on n1 until 00:00:55 UTC")
    ends(ledger, "a3.1", 52.0)
    step(ledger, MessageReceived("n1", Started(allocation="u.1")), 53.0)
    mine = views.job(ledger.state, "a3").reason  # type: ignore[union-attr]
    assert mine is not None and mine.text.startswith("u (urgent, ann) has its place until 00:10:53 UTC at the latest; ")


def test_nobody_is_told_to_stop_while_nothing_can_be_stored() -> None:
    from distributed_grid.coordinator.core.commands import StoreFailing

    ledger = full()
    step(ledger, StoreFailing(True), 49.0)
    assert stops(urgent(ledger, "u", 50.0)) == []
    assert stops(step(ledger, StoreFailing(False), 51.0)) == ["a3.1"]


def reborn(ledger: Ledger, now: float) -> Ledger:
    """The same after kill -9: from what was recorded."""
    again = Ledger(epoch=ledger.state.epoch + 1, policy=ledger.state.policy)
    again.restore(
        ledger.state.jobs.values(),
        ledger.state.allocations.values(),
        [n.facts for n in ledger.state.nodes.values()],
        now,
    )
    again.check()
    return again


def test_a_plan_outlives_the_coordinator() -> None:
    ledger = full()
    ask(ledger, "other", 40.0, priority=Priority.HIGH)
    urgent(ledger, "u", 50.0, 2)
    ends(ledger, "a2.1", 51.0)
    again = reborn(ledger, 52.0)
    of = facts("n1", 4)
    known = tuple(Known(f"{name}.1", State.RUNNING) for name in ("a0", "a1", "a3"))
    out = again.handle(NodeUp(of, "new"), 53.0) + step(again, MessageReceived("n1", Inventory(known=known)), 53.0)
    assert stops(out) == ["a3.1"]
    free = tuple(c for c in of.cores if all(c not in a.grant.cores for a in again.state.allocations.values()))
    out = step(
        again, MessageReceived("n1", offer(of, cores=free, counting=tuple(one.allocation for one in known))), 53.5
    )
    assert launches(out) == []
    out = step(again, MessageReceived("n1", Exited(allocation="a3.1", outcome=CAUGHT, returned=True)), 54.0)
    assert launches(out) == ["u.1"]
    assert [(one.id, one.result) for one in receipts(out)] == [("u.p1", "started")]


def test_a_plan_is_in_a_checkpoint() -> None:
    ledger = full()
    urgent(ledger, "u", 50.0, 2)
    ends(ledger, "a2.1", 51.0)
    again = resumed(ledger)
    again.check()
    assert again.state.preempting == ledger.state.preempting
    assert launches(ends(again, "a3.1", 52.0)) == ["u.1"]


def test_of_what_is_recorded_no_allocation_is_without_its_job() -> None:
    ledger = full()
    out = urgent(ledger, "u", 50.0, 2) + ends(ledger, "a2.1", 51.0)
    jobs = {one.job.id for one in out if isinstance(one, RecordJob)}
    assert {one.allocation.job for one in out if isinstance(one, RecordAllocation)} <= jobs


def test_with_memory_of_a_victim_to_come_it_starts_when_all_of_it_is_there() -> None:
    ledger = Ledger(policy=policy())
    join(ledger, facts("n1", 4), 0.0)
    ask(ledger, "a", 0.0, 1, memory=6 * GIB)
    step(ledger, MessageReceived("n1", Started(allocation="a.1")), 1.0)
    assert stops(urgent(ledger, "u", 50.0, 1, memory=4 * GIB)) == ["a.1"]
    assert launches(ends(ledger, "a.1", 51.0)) == ["u.1"]


def test_a_job_that_wants_to_be_apart_from_another_preempts_only_where_that_is_not() -> None:
    ledger = full(1, nodes=2)
    at = ledger.state.jobs["b0"].node
    wanted = Request(Resources(MILLI), Priority.URGENT, constraints=Constraints(apart=("a0",)))
    out = step(ledger, JobsSubmitted(1, (job("u", wanted, 50.0),)), 50.0)
    assert stops(out) == ["b0.1"]
    assert launches(ends(ledger, "b0.1", 51.0)) == ["u.1"] and ledger.state.jobs["u"].node == at


def test_one_whose_plan_is_given_up_waits_as_if_there_had_been_none() -> None:
    ledger = full(1, nodes=2)
    wanted = Request(Resources(MILLI), Priority.URGENT, constraints=Constraints(apart=("a0",)))
    step(ledger, JobsSubmitted(1, (job("u", wanted, 50.0),)), 50.0)
    ledger.settle(66.0)
    ledger.check()
    assert kept_for(ledger.state.jobs["u"]) is None and "u" in ledger.state.queue
    step(ledger, CancelRequested(2, ("u",)), 67.0)
    assert not ledger.state.index.affinity.waiting_for(ledger.state.jobs["a0"])
