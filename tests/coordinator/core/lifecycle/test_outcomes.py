"""Gangs begin as one and end as one, whatever happens to one of their members."""

import pytest

from distributed_grid.coordinator.core import ledger as restore
from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    RecordAllocation,
    RecordGroup,
    RecordJob,
    Rejected,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.lifecycle.outcomes import end_of_member
from distributed_grid.coordinator.core.model import Allocation, Condition, Group, HeldBack, Job
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import After, Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Recalled, Stale, Started, Stop
from distributed_grid.protocol.nodes import Known, Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, resumed, step

CORE = Resources(cpu=1000)
GANG = Request(CORE, gang=2)
DONE = Outcome(Cause.EXITED)
FAILED = Outcome(Cause.EXITED, code=3)


def submitted(ledger: Ledger, name: str = "g", request: Request = GANG, now: float = 1.0) -> list[Command]:
    """A gang `name` is asked for."""
    one = job(name, request, at=now)
    group = Group(
        id=name, key=one.key, user=one.user, kind=GroupKind.GANG, spec=one.spec, request=request, submitted=now,
        count=request.gang, array=Array(((0, request.gang - 1, 1),)),
    )  # fmt: skip
    return step(ledger, JobsSubmitted(1, (one,), (group,)), now)


def grid(nodes: int = 2, policy: Policy | None = None) -> Ledger:
    """Nodes n0, n1, … with a core each."""
    ledger = Ledger(policy=policy or Policy())
    for number in range(nodes):
        join(ledger, facts(f"n{number}", cores=1))
    return ledger


def running(request: Request = GANG, nodes: int = 2) -> Ledger:
    """A gang of which all members run since 2 s."""
    ledger = grid(nodes)
    submitted(ledger, request=request)
    for allocation in list(ledger.state.allocations.values()):
        step(ledger, MessageReceived(allocation.node, Started(allocation=allocation.id)), 2.0)
    return ledger


def member(ledger: Ledger, rank: int) -> Job:
    return ledger.state.jobs[f"g_{rank}"]


def held(ledger: Ledger, rank: int) -> Allocation:
    return ledger.state.allocations[member(ledger, rank).allocation]


def ends(ledger: Ledger, rank: int, outcome: Outcome, now: float = 3.0) -> list[Command]:
    """The node of a member tells its end."""
    allocation = held(ledger, rank)
    return step(
        ledger, MessageReceived(allocation.node, Exited(allocation=allocation.id, outcome=outcome, returned=True)), now
    )


def refuses(ledger: Ledger, rank: int, now: float = 2.0, device: str = "") -> list[Command]:
    """The node of a member will not have it."""
    allocation = held(ledger, rank)
    return step(
        ledger, MessageReceived(allocation.node, Stale(allocation=allocation.id, reason="busy", device=device)), now
    )


def launches(commands: list[Command]) -> list[Launch]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


def stops(commands: list[Command]) -> list[tuple[str, str]]:
    sent = [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]
    return [(one.allocation, one.cause) for one in sent]


def results(commands: list[Command]) -> dict[str, tuple[str, int]]:
    """The jobs that are over by these commands: cause and code."""
    found = {}
    for one in commands:
        if isinstance(one, RecordJob) and one.job.outcome is not None:
            found[one.job.id] = (one.job.outcome.cause.value, one.job.outcome.code)
    return found


def waits(ledger: Ledger, attempt: int = 1) -> bool:
    """Whether the whole gang waits again, at the place of its first member."""
    jobs = [ledger.state.jobs[name] for name in ("g_0", "g_1")]
    return all(one.state is State.WAITING and end_of_member(one) is None and one.tries == attempt for one in jobs)


# --- beginning --------------------------------------------------------------------------------------------------------


def test_all_members_are_granted_and_launched_at_once_on_different_nodes() -> None:
    ledger = grid()
    sent = launches(submitted(ledger))
    assert [one.allocation for one in sent] == ["g_0.1", "g_1.1"]
    assert {ledger.state.allocations[one.allocation].node for one in sent} == {"n0", "n1"}
    first, second = (one.gang for one in sent)
    assert first is not None and second is not None
    assert (first.rank, second.rank) == (0, 1)
    assert first.nodes == second.nodes == tuple(ledger.state.allocations[one.allocation].node for one in sent)
    assert first.port == second.port


def test_nothing_is_launched_before_all_grants_are_to_be_on_disk() -> None:
    out = submitted(grid())
    last_record = max(at for at, one in enumerate(out) if isinstance(one, RecordAllocation))
    assert all(at > last_record or not isinstance(one, Send) for at, one in enumerate(out)) or len(launches(out)) == 2


def test_a_gang_holds_nothing_while_one_place_is_missing_and_others_pass_it() -> None:
    ledger = grid(2)
    step(ledger, JobsSubmitted(1, (job("first", Request(CORE)),)), 0.5)
    assert not launches(submitted(ledger)) and len(ledger.state.allocations) == 1
    sent = launches(step(ledger, JobsSubmitted(2, (job("other", Request(CORE), time_limit=9.0),)), 1.5))
    assert [one.job for one in sent] == ["other"]  # it will be over, and nobody knows when the first will
    node = ledger.state.jobs["first"].node
    assert not launches(
        step(ledger, MessageReceived(node, Exited(allocation="first.1", outcome=DONE, returned=True)), 2.0)
    )
    node = ledger.state.jobs["other"].node
    sent = launches(step(ledger, MessageReceived(node, Exited(allocation="other.1", outcome=DONE, returned=True)), 3.0))
    assert [one.job for one in sent] == ["g_0", "g_1"]


def test_two_gangs_that_want_the_same_nodes_follow_each_other() -> None:
    ledger = running()
    assert not launches(submitted(ledger, "h"))
    ends(ledger, 0, DONE)
    out = ends(ledger, 1, DONE)
    assert results(out) == {"g_0": ("exited", 0), "g_1": ("exited", 0)}
    assert [one.job for one in launches(out)] == ["h_0", "h_1"]


def test_a_gang_for_more_nodes_than_could_ever_run_it_is_refused_with_the_numbers() -> None:
    (answer,) = [one for one in submitted(grid(2), request=Request(CORE, gang=3)) if isinstance(one, Rejected)]
    assert answer.code == "never-fits" and "2 of 2 could ever run it" in answer.what


def test_two_gangs_that_run_at_once_meet_at_different_ports() -> None:
    ledger = Ledger()
    for name in ("n0", "n1"):
        join(ledger, facts(name, cores=40, address="127.0.0.1"))
    ports = [launches(submitted(ledger, f"g{number}"))[0].gang for number in range(40)]
    assert len({one.port for one in ports if one is not None}) == 40
    assert len(ledger.state.rendezvous) == 40


# --- one of them does not begin ---------------------------------------------------------------------------------------


def test_one_that_is_refused_takes_the_others_back_and_all_wait_again() -> None:
    ledger = grid()
    submitted(ledger)
    other = held(ledger, 1)
    step(ledger, MessageReceived(other.node, Started(allocation=other.id)), 1.5)
    assert stops(refuses(ledger, 0)) == [("g_1.1", "gang")]
    out = ends(ledger, 1, Outcome(Cause.GANG, signal=15))
    assert not results(out) and waits(ledger) and not launches(out)
    assert [member(ledger, rank).retried for rank in (0, 1)] == [0, 0]
    out = step(ledger, HeartbeatReceived("n0", Sample(at=7.5)), 7.5)  # the node that refused is left alone for a while
    assert [one.allocation for one in launches(out)] == ["g_0.2", "g_1.2"]


def test_a_port_that_is_taken_costs_no_node_and_the_next_attempt_has_another() -> None:
    ledger = grid()
    (first, _) = launches(submitted(ledger))
    assert not ledger.state.nodes[held(ledger, 0).node].closed
    refuses(ledger, 0, device="port")
    sent = launches(ends(ledger, 1, Outcome(Cause.GANG, signal=15, started=False)))
    assert [one.allocation for one in sent] == ["g_0.2", "g_1.2"]
    assert first.gang is not None and sent[0].gang is not None and first.gang.port != sent[0].gang.port


def test_what_others_made_of_one_that_never_began_is_no_failure() -> None:
    ledger = grid()
    submitted(ledger)
    other = held(ledger, 1)
    step(ledger, MessageReceived(other.node, Started(allocation=other.id)), 1.5)
    assert stops(ends(ledger, 1, FAILED)) == [("g_0.1", "gang")]
    out = refuses(ledger, 0, now=4.0)
    assert not results(out) and waits(ledger)


def test_all_refused_wait_again() -> None:
    ledger = grid()
    submitted(ledger)
    refuses(ledger, 0)
    refuses(ledger, 1)
    assert waits(ledger)


# --- one of them ends -------------------------------------------------------------------------------------------------


def test_one_that_is_done_waits_for_the_others_and_they_go_on() -> None:
    ledger = running()
    out = ends(ledger, 0, DONE)
    assert not stops(out) and not results(out)
    view = views.job(ledger.state, "g_0")
    assert view is not None and view.reason is not None and view.reason.code == "Gang"
    assert results(ends(ledger, 1, DONE)) == {"g_0": ("exited", 0), "g_1": ("exited", 0)}
    assert not ledger.state.jobs and not ledger.state.groups and not ledger.state.rendezvous


def test_one_that_fails_ends_the_others_and_its_failure_is_the_gangs() -> None:
    ledger = running()
    assert stops(ends(ledger, 1, FAILED)) == [("g_0.1", "gang")]
    out = ends(ledger, 0, Outcome(Cause.GANG, signal=15))
    assert results(out) == {"g_0": ("gang", 0), "g_1": ("exited", 3)}
    assert not launches(out)
    (group,) = [one.group for one in out if isinstance(one, RecordGroup) and one.group.ended][-1:]
    assert group.failed == 2


def test_one_that_fails_after_another_was_done_is_a_failure_and_that_one_stays_done() -> None:
    ledger = running()
    ends(ledger, 0, DONE)
    assert results(ends(ledger, 1, FAILED)) == {"g_0": ("exited", 0), "g_1": ("exited", 3)}


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED])
def test_one_whose_place_is_taken_back_takes_all_with_it_at_once_and_they_wait_with_their_age(cause: Cause) -> None:
    ledger = running()
    attempts.request_stop(ledger.state, held(ledger, 1), cause, "somebody else", 5.0)
    assert held(ledger, 0).stop is not None
    out = ends(ledger, 0, FAILED)  # it stumbles over the others' leaving
    out += ends(ledger, 1, Outcome(cause, signal=15))
    assert not results(out)
    assert [one.allocation for one in launches(out)] == ["g_0.2", "g_1.2"]
    assert (member(ledger, 1).evicted, member(ledger, 1).retried) == (1, 0)


def test_a_node_that_recalls_one_does_not_say_how_long_the_others_have_to_end() -> None:
    ledger = running()
    recall = Recalled(allocation=held(ledger, 1).id, why="mine", grace=1e10)
    step(ledger, MessageReceived(held(ledger, 1).node, recall), 3.0)
    stop, other = held(ledger, 1).stop, held(ledger, 0).stop
    assert stop is not None and other is not None
    assert (stop.grace, other.grace) == (1e10, member(ledger, 0).spec.grace)


def test_one_that_its_node_takes_back_before_its_start_takes_all_with_it_and_they_wait_again() -> None:
    ledger = running()
    assert stops(ends(ledger, 1, Outcome(Cause.WITHDRAWN, started=False))) == [("g_0.1", "gang")]
    out = ends(ledger, 0, Outcome(Cause.GANG, signal=15))
    assert [one.allocation for one in launches(out)] == ["g_0.2", "g_1.2"]
    assert member(ledger, 1).retried == 0


def test_one_that_was_done_runs_again_with_a_gang_whose_place_is_taken_back() -> None:
    ledger = running()
    ends(ledger, 0, DONE)
    attempts.request_stop(ledger.state, held(ledger, 1), Cause.PREEMPTED, "somebody else", 5.0)
    out = ends(ledger, 1, Outcome(Cause.PREEMPTED, signal=15))
    assert [one.allocation for one in launches(out)] == ["g_0.2", "g_1.2"]


def test_a_gang_that_is_not_to_wait_again_ends_when_its_place_is_taken_back() -> None:
    ledger = running(Request(CORE, gang=2, requeue=False))
    attempts.request_stop(ledger.state, held(ledger, 1), Cause.PREEMPTED, "somebody else", 5.0)
    ends(ledger, 0, Outcome(Cause.GANG, signal=15))
    out = ends(ledger, 1, Outcome(Cause.PREEMPTED, signal=15))
    assert results(out) == {"g_0": ("gang", 0), "g_1": ("preempted", 0)}


def test_a_failure_its_owner_wants_to_retry_runs_all_again_as_often_as_was_said() -> None:
    ledger = running(Request(CORE, gang=2, retry_on=(RetryOn.FAILED,), retries=1))
    ends(ledger, 1, FAILED)
    out = ends(ledger, 0, Outcome(Cause.GANG, signal=15))
    assert [one.allocation for one in launches(out)] == ["g_0.2", "g_1.2"]
    assert [member(ledger, rank).retried for rank in (0, 1)] == [1, 1]
    ends(ledger, 0, FAILED, 5.0)
    out = ends(ledger, 1, Outcome(Cause.GANG, signal=15), 6.0)
    assert results(out) == {"g_0": ("exited", 3), "g_1": ("gang", 0)}


# --- one of them is lost ----------------------------------------------------------------------------------------------


def silent(ledger: Ledger, until: float) -> list[Command]:
    """Nothing is heard of the node of rank 1 from now on, and of the other all the time."""
    other = held(ledger, 0).node if f"g_0.{member(ledger, 0).tries}" in ledger.state.allocations else "n0"
    out, now = [], ledger.state.now
    while now < until:
        now += 1.0
        out += step(ledger, HeartbeatReceived(other, Sample(at=now)), now)
    return out


def test_a_lost_node_ends_a_gang_and_nothing_is_run_beside_what_may_run_on() -> None:
    ledger = running()
    node = held(ledger, 1).node
    step(ledger, NodeDown(node, f"session-{node}"), 3.0)
    out = silent(ledger, 80.0)
    assert ("g_0.1", "gang") in stops(out)
    out = ends(ledger, 0, Outcome(Cause.GANG, signal=15), 81.0)
    assert results(out) == {"g_0": ("gang", 0), "g_1": ("node-lost", 0)}


def test_a_gang_that_may_be_run_again_when_lost_is_so_as_one_also_where_the_others_failed_of_it() -> None:
    ledger = running(Request(CORE, gang=2, retry_on=(RetryOn.LOST,), retries=1), nodes=3)
    node = held(ledger, 1).node
    step(ledger, NodeDown(node, f"session-{node}"), 3.0)
    ends(ledger, 0, FAILED, 4.0)  # its connection broke
    other = held(ledger, 1)
    assert other.stop is not None
    out = []
    for now in range(5, 90):
        for name in ledger.state.nodes:
            if name != node:
                out += step(ledger, HeartbeatReceived(name, Sample(at=float(now))), float(now))
    assert not results(out)
    assert [one.allocation for one in launches(out)] == ["g_0.2", "g_1.2"]
    assert node not in {held(ledger, rank).node for rank in (0, 1)}


def test_one_that_comes_back_is_ended_and_the_failure_of_the_other_counts() -> None:
    ledger = running(Request(CORE, gang=2, retry_on=(RetryOn.LOST,), retries=1))
    node = held(ledger, 1).node
    step(ledger, NodeDown(node, f"session-{node}"), 3.0)
    ends(ledger, 0, FAILED, 4.0)
    step(ledger, NodeUp(ledger.state.nodes[node].facts, "second"), 6.0)
    known = (Known("g_1.1", State.RUNNING, started_for=4.0),)
    assert stops(step(ledger, MessageReceived(node, Inventory(known=known)), 6.0)) == [("g_1.1", "gang")]
    out = ends(ledger, 1, Outcome(Cause.GANG, signal=15), 7.0)
    assert results(out) == {"g_0": ("exited", 3), "g_1": ("gang", 0)}


# --- cancel -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["g", "g_0", "g_1"])
def test_cancelling_a_gang_or_one_of_it_ends_all(name: str) -> None:
    ledger = running()
    assert sorted(stops(step(ledger, CancelRequested(2, (name,)), 3.0))) == [
        ("g_0.1", "cancelled"),
        ("g_1.1", "cancelled"),
    ]
    ends(ledger, 0, Outcome(Cause.CANCELLED, signal=15))
    out = ends(ledger, 1, Outcome(Cause.CANCELLED, signal=15))
    assert results(out) == {"g_0": ("cancelled", 0), "g_1": ("cancelled", 0)} and not ledger.state.jobs


@pytest.mark.parametrize("name", ["g", "g_1"])
def test_a_gang_that_waits_is_cancelled_as_one(name: str) -> None:
    ledger = grid(2)
    step(ledger, JobsSubmitted(1, (job("first", Request(CORE)),)), 0.5)
    submitted(ledger)
    out = step(ledger, CancelRequested(2, (name,)), 2.0)
    assert results(out) == {"g_0": ("cancelled", 0), "g_1": ("cancelled", 0)} and not ledger.state.queue.turns


def test_a_gang_that_is_cancelled_while_its_place_is_taken_back_does_not_wait_again() -> None:
    ledger = running()
    attempts.request_stop(ledger.state, held(ledger, 1), Cause.PREEMPTED, "somebody else", 5.0)
    ends(ledger, 1, Outcome(Cause.PREEMPTED, signal=15))
    step(ledger, CancelRequested(2, ("g",)), 3.5)
    out = ends(ledger, 0, Outcome(Cause.GANG, signal=15), 4.0)
    assert results(out) == {"g_0": ("cancelled", 0), "g_1": ("cancelled", 0)} and not ledger.state.jobs


def test_a_gang_that_is_cancelled_does_not_run_again_though_its_nodes_had_ended_it_before() -> None:
    ledger = running(Request(CORE, gang=2, retry_on=(RetryOn.LOST,), retries=1))
    step(ledger, CancelRequested(2, ("g",)), 3.0)
    expired = Outcome(Cause.LEASE_EXPIRED, signal=9)
    ends(ledger, 0, expired, 3.5)
    out = ends(ledger, 1, expired, 4.0)
    assert results(out) == {"g_0": ("lease-expired", 0), "g_1": ("lease-expired", 0)} and not ledger.state.jobs


def test_one_that_ran_and_is_cancelled_while_the_others_end_is_not_told_never_to_have_run() -> None:
    ledger = running(Request(CORE, gang=2, retry_on=(RetryOn.FAILED,), retries=1))
    ends(ledger, 0, FAILED)
    step(ledger, CancelRequested(2, ("g",)), 3.5)
    out = ends(ledger, 1, Outcome(Cause.GANG, signal=15), 4.0)
    ended = {one.job.id: one.job.outcome for one in out if isinstance(one, RecordJob) and one.job.outcome is not None}
    assert {name: (one.cause, one.started) for name, one in ended.items()} == {
        "g_0": (Cause.CANCELLED, True),
        "g_1": (Cause.CANCELLED, True),
    }


def test_a_gang_that_is_to_start_at_once_or_not_at_all_ends_as_one() -> None:
    ledger = grid(2)
    step(ledger, JobsSubmitted(1, (job("first", Request(CORE)),)), 0.5)
    out = submitted(ledger, request=Request(CORE, gang=2, immediate=True))
    assert results(out) == {"g_0": ("not-placed", 0), "g_1": ("not-placed", 0)}


# --- dependencies -----------------------------------------------------------------------------------------------------


def waiting_for_first() -> Ledger:
    """A gang that waits for a job to exit with 0."""
    ledger = grid(2)
    step(ledger, JobsSubmitted(1, (job("first", Request(CORE)),)), 0.5)
    one = job("g", GANG, at=1.0)
    one.phase = HeldBack(after=(Condition("first", After.OK),))
    group = Group(
        id="g", key=one.key, user=one.user, kind=GroupKind.GANG, spec=one.spec, request=GANG, submitted=1.0, count=2,
        array=Array(((0, 1, 1),)),
    )  # fmt: skip
    assert not launches(step(ledger, JobsSubmitted(2, (one,), (group,)), 1.0)) and "g_0" not in ledger.state.queue
    return ledger


@pytest.mark.parametrize("outcome", [DONE, FAILED])
def test_a_gang_waits_for_others_as_one_and_ends_as_one_where_they_fail(outcome: Outcome) -> None:
    ledger = waiting_for_first()
    node = ledger.state.jobs["first"].node
    out = step(ledger, MessageReceived(node, Exited(allocation="first.1", outcome=outcome, returned=True)), 2.0)
    if outcome is DONE:
        assert [one.job for one in launches(out)] == ["g_0", "g_1"]
    else:
        assert results(out) | {"first": ("exited", 3)} == {
            "first": ("exited", 3), "g_0": ("dependency-failed", 0), "g_1": ("dependency-failed", 0),
        }  # fmt: skip
        assert not ledger.state.jobs


def test_a_gang_that_waits_for_others_can_be_cancelled() -> None:
    ledger = waiting_for_first()
    assert results(step(ledger, CancelRequested(3, ("g",)), 2.0)) == {"g_0": ("cancelled", 0), "g_1": ("cancelled", 0)}
    assert list(ledger.state.jobs) == ["first"]


# --- restarts ---------------------------------------------------------------------------------------------------------


def restarted(ledger: Ledger, now: float) -> Ledger:
    """A new coordinator that has what was on disk."""
    was = ledger.state
    fresh = Ledger(epoch=was.epoch + 1)
    groups = [one.group for one in was.groups.values()]
    nodes = [node.facts for node in was.nodes.values()]
    fresh.restore(list(was.jobs.values()), list(was.allocations.values()), nodes, now, many=groups)
    fresh.check()
    return fresh


def back(ledger: Ledger, node: str, now: float, *known: Known) -> list[Command]:
    step(ledger, NodeUp(ledger.state.nodes[node].facts, f"again-{node}"), now)
    return step(ledger, MessageReceived(node, Inventory(known=known)), now)


def test_what_came_of_a_part_survives_a_restart_and_the_others_are_told_again_to_end() -> None:
    ledger = running()
    ends(ledger, 0, FAILED)
    node = held(ledger, 1).node
    fresh = restarted(ledger, 4.0)
    assert stops(back(fresh, node, 5.0, Known("g_1.1", State.RUNNING, started_for=3.0))) == [("g_1.1", "gang")]
    out = ends(fresh, 1, Outcome(Cause.GANG, signal=15), 6.0)
    assert results(out) == {"g_0": ("exited", 3), "g_1": ("gang", 0)} and not fresh.state.jobs


def test_a_launch_that_did_not_leave_is_said_again_with_the_same_meeting() -> None:
    ledger = grid()
    first, second = launches(submitted(ledger))
    fresh = restarted(ledger, 2.0)
    again = launches(back(fresh, held(fresh, 0).node, 3.0)) + launches(back(fresh, held(fresh, 1).node, 3.0))
    assert [(one.allocation, one.gang) for one in again] == [(one.allocation, one.gang) for one in (first, second)]
    assert fresh.state.rendezvous == ledger.state.rendezvous


def test_a_gang_that_waits_again_does_so_after_a_restart() -> None:
    ledger = grid()
    submitted(ledger)
    refuses(ledger, 0)
    ends(ledger, 1, Outcome(Cause.GANG, signal=15))
    fresh = restarted(ledger, 4.0)
    assert waits(fresh) and fresh.state.queue.turns.keys() == {"g_0"}


def test_a_checkpoint_of_a_gang_half_over_goes_on_as_the_ledger_does() -> None:
    ledger = running()
    ends(ledger, 0, DONE)
    other = resumed(ledger)
    other.check()
    assert other.state.rendezvous == ledger.state.rendezvous
    assert results(ends(other, 1, FAILED)) == results(ends(ledger, 1, FAILED))


def test_of_a_backup_a_gang_that_waits_is_held_back_and_one_that_runs_is_told_by_its_nodes() -> None:
    ledger = running()
    submitted(ledger, "h")
    ends(ledger, 0, DONE)
    fresh = restarted(ledger, 4.0)
    out = restore.end_after_restore(fresh.state, "a backup was restored")
    assert results(out) == {"h_0": ("restored", 0), "h_1": ("restored", 0)}
    fresh.check()
    out = back(fresh, held(fresh, 1).node, 5.0)
    assert results(out) == {"g_0": ("exited", 0), "g_1": ("node-lost", 0)}


@pytest.mark.parametrize("immediate", [False, True])
def test_of_a_gang_that_waits_again_it_is_told_who_has_run_and_who_has_not(immediate: bool) -> None:
    ledger = grid()
    submitted(ledger, request=Request(CORE, gang=2, immediate=immediate))
    step(ledger, MessageReceived(held(ledger, 1).node, Started(allocation="g_1.1")), 2.0)
    refuses(ledger, 0)
    ends(ledger, 1, Outcome(Cause.GANG, signal=15))
    assert waits(ledger)
    out = step(ledger, CancelRequested(2, ("g",)), 4.0)
    over = {one.job.id: one.job.outcome for one in out if isinstance(one, RecordJob)}
    assert {name: (one.cause, one.started) for name, one in over.items() if one} == {
        "g_0": (Cause.CANCELLED, False), "g_1": (Cause.CANCELLED, True)
    }  # fmt: skip


def test_what_is_asked_for_again_unchanged_is_not_stored_anew_after_a_restart_either() -> None:
    ledger = resumed(running())
    for rank in (0, 1):
        ends(ledger, rank, Outcome(Cause.RECALLED, signal=15))
    assert member(ledger, 0).tries == 2
    assert not any(member(ledger, rank).amended for rank in (0, 1))
