"""When a job is run again: where its owner said so, after such an end, and when the last attempt is over."""

from itertools import product

import pytest

from distributed_grid.coordinator.core.commands import (
    AckExits,
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MemoryAdvised,
    MessageReceived,
    NodeDown,
    NodeUp,
    RecordAllocation,
    Send,
)
from distributed_grid.coordinator.core.explain.why import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Cause, Outcome, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Renewed, Started, Stop
from distributed_grid.protocol.nodes import Known, Sample
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Pool, Scaling, Shape
from tests.coordinator.core.scene import facts, job, join, offer, state_of, step

N1 = facts("n1", cores=1, instance="first")
N2 = facts("n2", cores=1)
CORE = Resources(cpu=1000)
LOST = Request(CORE, retry_on=(RetryOn.LOST,), retries=2)


def running(request: Request, policy: Policy | None = None) -> Ledger:
    """A job that runs on n1 since 1 s."""
    ledger = Ledger(policy=policy or Policy())
    join(ledger, N1)
    step(ledger, JobsSubmitted(1, (job("j", request),)), 0.5)
    step(ledger, MessageReceived("n1", Started(allocation="j.1")), 1.0)
    assert ledger.state.jobs["j"].state is State.RUNNING
    return ledger


def launches(commands: list[Command]) -> list[Launch]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Launch)]


def exits(ledger: Ledger, outcome: Outcome, attempt: int = 1, now: float = 2.0) -> list[Command]:
    return step(ledger, MessageReceived("n1", Exited(allocation=f"j.{attempt}", outcome=outcome, returned=True)), now)


def again(ledger: Ledger, boot: str = "b1", instance: str = "first", known: tuple[Known, ...] = ()) -> list[Command]:
    """n1's agent comes back at 5 s, perhaps not the one it was."""
    step(ledger, NodeDown("n1", "session-n1"), 4.0)
    step(ledger, NodeUp(facts("n1", cores=1, boot=boot, instance=instance), "second"), 5.0)
    return step(ledger, MessageReceived("n1", Inventory(known=known)), 5.0)


def test_one_that_its_node_takes_back_before_its_start_waits_again_and_uses_no_retry() -> None:
    ledger = Ledger()
    join(ledger, N1)
    step(ledger, JobsSubmitted(1, (job("j", Request(CORE, requeue=False)),)), 0.5)
    out = exits(ledger, Outcome(Cause.WITHDRAWN, text="its slot was lost", started=False))
    assert [one.allocation for one in launches(out)] == ["j.2"]
    waiting = ledger.state.jobs["j"]
    assert (waiting.retried, waiting.evicted) == (0, 0)
    assert any(step.text == "withdrawn: its slot was lost; it had not begun" for step in waiting.story)


def silent(ledger: Ledger, until: float) -> list[Command]:
    """Nothing is heard of n1 from now on, and of n2 all the time."""
    out, now = [], ledger.state.now
    while now < until:
        now += 1.0
        out += step(ledger, HeartbeatReceived("n2", Sample(at=now)), now)
    return out


@pytest.mark.parametrize("cause, on", [*product(Cause, RetryOn)])
def test_it_is_run_again_after_the_ends_that_were_named_and_after_no_others(cause: Cause, on: RetryOn) -> None:
    ledger = running(Request(CORE, retry_on=(on,), retries=2))
    made = launches(exits(ledger, Outcome(cause, code=1)))
    made += launches(
        step(ledger, HeartbeatReceived("n1", Sample(at=7.5)), 7.5)
    )  # a node without memory is left alone for 5 s
    again = attempts.RETRY_CLASSES.get(cause) is on or cause in attempts.EVICTION_CAUSES
    assert [one.allocation for one in made] == (["j.2"] if again else [])
    assert ("j" in ledger.state.jobs) == bool(made)


def test_what_ended_well_is_not_run_again() -> None:
    ledger = running(Request(CORE, retry_on=tuple(RetryOn), retries=5))
    assert not launches(exits(ledger, Outcome(Cause.EXITED, code=0))) and not ledger.state.jobs


def test_it_is_run_as_often_as_was_allowed_and_the_last_end_is_the_jobs_end() -> None:
    ledger = running(Request(CORE, retry_on=(RetryOn.FAILED,), retries=2))
    for attempt in (1, 2, 3):
        assert ledger.state.jobs["j"].retried == attempt - 1
        out = exits(ledger, Outcome(Cause.EXITED, code=attempt), attempt, now=float(attempt + 1))
        ended = [one.allocation for one in out if isinstance(one, RecordAllocation) and one.allocation.outcome]
        assert [one.outcome.code for one in ended if one.outcome] == ([attempt] if attempt < 3 else [])
        assert AckExits("n1", (f"j.{attempt}",)) in out
        if attempt < 3:
            step(ledger, MessageReceived("n1", Started(allocation=f"j.{attempt + 1}")), attempt + 1.5)
    assert not ledger.state.jobs


def test_what_was_cancelled_is_not_run_again_however_it_ends() -> None:
    ledger = running(Request(CORE, retry_on=tuple(RetryOn), retries=5))
    step(ledger, CancelRequested(2, ("j",)), 1.5)
    assert not launches(exits(ledger, Outcome(Cause.SIGNALLED, signal=15))) and not ledger.state.jobs


def evicted(request: Request) -> Ledger:
    """A job that is told to give its place back, and ends by that."""
    ledger = running(request)
    assert attempts.request_stop(ledger.state, ledger.state.allocations["j.1"], Cause.PREEMPTED, "for j2", 5.0)
    exits(ledger, Outcome(Cause.PREEMPTED, signal=15, text="for j2"))
    return ledger


def test_what_was_taken_back_waits_again_at_its_old_place_and_uses_no_retry_up() -> None:
    again = evicted(Request(CORE)).state.jobs["j"]
    assert (again.state, again.allocation) == (State.STARTING, "j.2")
    assert (again.retried, again.evicted, again.submitted) == (0, 1, 0.0)


def test_what_was_taken_back_ends_so_where_its_owner_wants_no_second_run() -> None:
    ledger = evicted(Request(CORE, requeue=False))
    assert not ledger.state.jobs


def test_what_had_not_begun_when_it_was_taken_back_waits_again_in_any_case() -> None:
    ledger = running(Request(CORE, requeue=False))
    attempts.request_stop(ledger.state, ledger.state.allocations["j.1"], Cause.DRAINED, "", 5.0)
    exits(ledger, Outcome(Cause.DRAINED, started=False))
    assert ledger.state.jobs["j"].allocation == "j.2" and ledger.state.jobs["j"].evicted == 0


def test_what_is_cancelled_while_it_is_taken_back_ends_as_cancelled() -> None:
    ledger = running(Request(CORE))
    one = ledger.state.jobs["j"]
    assert attempts.request_stop(ledger.state, ledger.state.allocations["j.1"], Cause.PREEMPTED, "for j2", 5.0)
    assert not attempts.request_stop(ledger.state, ledger.state.allocations["j.1"], Cause.DRAINED, "", 5.0)
    out = step(ledger, CancelRequested(2, ("j",), "not needed"), 1.5)
    stops = [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Stop)]
    assert [stop.cause for stop in stops] == ["preempted", "cancelled"]
    exits(ledger, Outcome(Cause.PREEMPTED, signal=15, text="for j2"))
    assert not ledger.state.jobs
    assert one.outcome == Outcome(Cause.CANCELLED, signal=15, text="not needed")


def test_what_ended_well_before_it_could_be_taken_back_is_over() -> None:
    ledger = running(Request(CORE))
    attempts.request_stop(ledger.state, ledger.state.allocations["j.1"], Cause.PREEMPTED, "", 5.0)
    exits(ledger, Outcome(Cause.EXITED, code=0))
    assert not ledger.state.jobs


def test_a_late_word_about_an_attempt_before_changes_nothing() -> None:
    ledger = running(Request(CORE, retry_on=(RetryOn.FAILED,), retries=2))
    exits(ledger, Outcome(Cause.EXITED, code=1))
    before = (ledger.state.jobs["j"].state, ledger.state.jobs["j"].allocation)
    for late in (Started(allocation="j.1"), Exited(allocation="j.1", outcome=Outcome(Cause.EXITED, code=0))):
        step(ledger, MessageReceived("n1", late), 3.0)
        assert (ledger.state.jobs["j"].state, ledger.state.jobs["j"].allocation) == before


def test_only_what_is_run_again_when_lost_is_leased_and_its_last_attempt_is_not() -> None:
    ledger = Ledger()
    join(ledger, N1)
    step(ledger, HeartbeatReceived("n1", Sample(at=77.0)), 0.2)
    (plain,) = launches(step(ledger, JobsSubmitted(1, (job("p", Request(CORE)),)), 0.5))
    assert (plain.lease, plain.heard) == (0.0, 0.0)
    ledger = running(Request(CORE, retry_on=(RetryOn.LOST,), retries=1))
    assert ledger.state.allocations["j.1"].lease == pytest.approx((10 + 60 - 3) / 1.01)
    step(ledger, HeartbeatReceived("n1", Sample(at=77.0), 78.0), 1.5)
    (last,) = launches(exits(ledger, Outcome(Cause.SUPERVISOR_LOST)))
    assert (last.lease, last.heard) == (0.0, 0.0)


def test_a_lease_begins_where_the_node_was_last_heard_of() -> None:
    ledger = Ledger()
    join(ledger, N1)
    step(ledger, HeartbeatReceived("n1", Sample(at=77.0)), 0.2)
    (launch,) = launches(step(ledger, JobsSubmitted(1, (job("j", LOST),)), 0.5))
    assert launch.heard == 77.0 and launch.lease > 0


def test_a_heartbeat_that_asks_for_it_is_answered_and_one_that_does_not_is_not() -> None:
    ledger = running(LOST)
    assert step(ledger, HeartbeatReceived("n1", Sample(at=3.0)), 2.0) == []
    assert step(ledger, HeartbeatReceived("n1", Sample(at=3.0), 4.5), 2.0) == [Send("n1", Renewed(4.5))]


def test_a_silent_node_is_lost_after_all_patience_and_only_what_was_leased_runs_again() -> None:
    ledger = running(LOST)
    join(ledger, N2, now=1.0)
    assert not launches(silent(ledger, 70.0)), "the lease may still run"
    assert ledger.state.jobs["j"].state is State.LOST
    (launch,) = launches(silent(ledger, 72.0))
    assert launch.allocation == "j.2" and ledger.state.jobs["j"].node == "n2"
    plain = running(Request(CORE))
    join(plain, N2, now=1.0)
    assert not launches(silent(plain, 200.0)) and not plain.state.jobs


def test_a_lease_is_never_longer_than_what_is_waited_for_it() -> None:
    for lost_after in (0.5, 5.0, 60.0, 86400.0):
        policy = Policy(lost_after=lost_after)
        lease = attempts.longest_lease(policy)
        assert lease * attempts.DRIFT + attempts.ENDING <= policy.disconnected_after + lost_after + 1e-9


def test_a_lease_from_before_a_change_of_patience_is_no_proof() -> None:
    before = running(LOST, Policy(lost_after=600.0))
    after = Ledger(policy=Policy(lost_after=5.0))
    after.restore(before.state.jobs.values(), before.state.allocations.values(), [N1], 2.0)
    join(after, N2, now=2.0)
    assert not launches(silent(after, 40.0)) and not after.state.jobs


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(
    "boot, instance, cause, runs_again",
    [
        ("b2", "first", Cause.REBOOTED, True),
        ("b2", "second", Cause.REBOOTED, True),
        ("b1", "second", Cause.NODE_LOST, False),  # it may still run, and who is there now does not know
    ],
)
def test_what_a_returning_agent_does_not_know(
    seen: bool, boot: str, instance: str, cause: Cause, runs_again: bool
) -> None:
    ledger = running(LOST)
    if not seen:  # its start was not heard of
        ledger = Ledger()
        join(ledger, N1)
        step(ledger, JobsSubmitted(1, (job("j", LOST),)), 0.5)
    out = again(ledger, boot, instance)
    assert not launches(out)
    assert ("j" in ledger.state.jobs) == runs_again
    ended = next(one.allocation for one in out if isinstance(one, RecordAllocation))
    assert ended.state is State.ENDED and (ended.outcome is None or ended.outcome.cause is cause)
    more = step(ledger, MessageReceived("n1", offer(facts("n1", cores=1))), 6.0)
    assert [one.allocation for one in launches(more)] == (["j.2"] if runs_again else [])


def test_after_a_start_of_the_coordinator_nobody_is_lost_before_there_was_time_to_return() -> None:
    before = running(LOST)
    after = Ledger()
    after.restore(before.state.jobs.values(), before.state.allocations.values(), [N1], 1000.0)
    join(after, N2, now=1000.0)
    assert not launches(silent(after, 1069.0)) and state_of(after, "j") is State.LOST
    known = (Known("j.1", State.RUNNING, started_for=1068.0),)
    step(after, NodeUp(N1, "back"), 1069.5)
    step(after, MessageReceived("n1", Inventory(known=known)), 1069.5)
    assert state_of(after, "j") is State.RUNNING and after.state.jobs["j"].retried == 0


def test_what_was_given_up_on_a_node_is_not_renewed_and_told_to_stop() -> None:
    ledger = running(LOST)
    join(ledger, N2, now=1.0)
    out = silent(ledger, 72.0)
    assert [one.message.allocation for one in out if isinstance(one, Send) and isinstance(one.message, Stop)] == ["j.1"]
    said = step(ledger, HeartbeatReceived("n1", Sample(at=80.0), 80.0), 73.0)
    assert not [one for one in said if isinstance(one, Send) and isinstance(one.message, Renewed)]


def test_a_job_that_must_start_at_once_waits_for_its_next_attempt() -> None:
    ledger = running(Request(CORE, immediate=True, retry_on=(RetryOn.LOST,), retries=1))
    silent(ledger, 80.0)
    assert ledger.state.jobs["j"].state is State.WAITING


# --- want of memory ---------------------------------------------------------------------------------------------------


def test_a_job_that_fell_to_its_neighbours_memory_is_run_again_elsewhere_with_the_same() -> None:
    asked = Request(Resources(cpu=1000, memory=1 << 20), retry_on=(RetryOn.OOM,), retries=1)
    ledger = Ledger(policy=Policy())
    join(ledger, N1)
    step(ledger, JobsSubmitted(1, (job("j", asked),)), 0.5)
    join(ledger, N2)
    made = launches(exits(ledger, Outcome(Cause.NODE_OUT_OF_MEMORY, signal=9)))
    assert [one.allocation for one in made] == ["j.2"]
    assert (ledger.state.jobs["j"].node, ledger.state.jobs["j"].request) == ("n2", asked)


def out_of(
    memory: int, most: int, factor: int, retries: int = 1, cause: Cause = Cause.OUT_OF_MEMORY,
    pools: tuple[Pool, ...] = (),
) -> Ledger:  # fmt: skip
    """A job asked for so much memory, on a grid that lends `most`, and has just run out of it."""
    ledger = Ledger(policy=Policy(scaling=Scaling(pools=pools)))
    for name in ("n1", "n2"):
        join(ledger, facts(name, cores=1, memory=most))
    asked = Resources(cpu=1000, memory=memory)
    request = Request(asked, nodes=("n1",), retry_on=(RetryOn.OOM,), retries=retries, retry_memory=factor)
    step(ledger, JobsSubmitted(1, (job("j", request),)), 0.5)
    exits(ledger, Outcome(cause, signal=9, text="used too much"))
    return ledger


def test_a_job_that_ran_out_of_its_memory_asks_for_more() -> None:
    ledger = out_of(GIB, most=8 * GIB, factor=2000, retries=2)
    assert ledger.state.jobs["j"].request.resources == Resources(cpu=1000, memory=2 * GIB)
    grant = ledger.state.jobs["j"].grant
    assert grant is not None and grant.memory == 2 * GIB
    assert "to be run again with 2G of memory (1 of 2)" in " ".join(line.text for line in ledger.state.jobs["j"].story)
    exits(ledger, Outcome(Cause.OUT_OF_MEMORY, signal=9), attempt=2, now=3.0)
    assert ledger.state.jobs["j"].request.resources.memory == 4 * GIB
    ledger.check()


def test_the_next_attempt_asks_for_what_would_have_been_enough_for_runs_like_it() -> None:
    ledger = Ledger(policy=Policy())
    join(ledger, facts("n1", cores=1, memory=8 * GIB))
    request = Request(
        Resources(cpu=1000, memory=2 * GIB), retry_on=(RetryOn.OOM,), retries=2, retry_memory=2000, nodes=("n1",)
    )
    step(ledger, JobsSubmitted(1, (job("j", request),)), 0.5)
    assert step(ledger, MemoryAdvised("gone.1", GIB), 0.6) == []
    step(ledger, MemoryAdvised("j.1", 2 * GIB + GIB // 2), 0.7)
    exits(ledger, Outcome(Cause.OUT_OF_MEMORY, signal=9))
    assert ledger.state.jobs["j"].request.resources.memory == 2 * GIB + GIB // 2
    exits(ledger, Outcome(Cause.OUT_OF_MEMORY, signal=9), attempt=2, now=3.0)  # nothing is advised for this one
    assert ledger.state.jobs["j"].request.resources.memory == 5 * GIB
    ledger.check()


def test_what_would_have_been_enough_is_asked_for_without_a_factor_too() -> None:
    ledger = Ledger(policy=Policy())
    join(ledger, facts("n1", cores=1, memory=8 * GIB))
    request = Request(Resources(cpu=1000, memory=GIB), retry_on=(RetryOn.OOM,), retries=2)
    step(ledger, JobsSubmitted(1, (job("j", request),)), 0.5)
    step(ledger, MemoryAdvised("j.1", 3 * GIB), 0.7)
    exits(ledger, Outcome(Cause.OUT_OF_MEMORY, signal=9))
    assert ledger.state.jobs["j"].request.resources.memory == 3 * GIB
    exits(ledger, Outcome(Cause.OUT_OF_MEMORY, signal=9), attempt=2, now=3.0)
    assert ledger.state.jobs["j"].request.resources.memory == 3 * GIB, "nothing is known that would be enough"
    ledger.check()


def test_less_than_it_had_is_no_advice() -> None:
    ledger = Ledger(policy=Policy())
    join(ledger, facts("n1", cores=1, memory=8 * GIB))
    request = Request(Resources(cpu=1000, memory=GIB), retry_on=(RetryOn.OOM,), retries=1, retry_memory=2000)
    step(ledger, JobsSubmitted(1, (job("j", request),)), 0.5)
    step(ledger, MemoryAdvised("j.1", GIB // 2), 0.7)
    exits(ledger, Outcome(Cause.OUT_OF_MEMORY, signal=9))
    assert ledger.state.jobs["j"].request.resources.memory == 2 * GIB


def test_more_memory_is_never_more_than_any_node_could_lend() -> None:
    ledger = out_of(3 * GIB, most=4 * GIB, factor=2000)
    assert ledger.state.jobs["j"].request.resources.memory == 4 * GIB


def test_a_job_that_had_all_the_memory_there_is_is_not_run_again() -> None:
    assert "j" not in out_of(4 * GIB, most=4 * GIB, factor=2000).state.jobs


@pytest.mark.parametrize(("most", "asks"), [(16, 8), (6, 6)])
def test_more_memory_than_nodes_have_is_asked_for_where_a_machine_of_a_pool_has_it(most: int, asks: int) -> None:
    pool = Pool(name="a", provider="p", shapes=(Shape(resources=Resources(1000, most * GIB)),))
    ledger = out_of(4 * GIB, most=4 * GIB, factor=2000, pools=(pool,))
    assert ledger.state.jobs["j"].request.resources.memory == asks * GIB
    reason = why(ledger.state, "j", None, 2.0).reason
    assert reason.code == "Machine" and "a machine of pool a would be" in reason.text


def test_more_memory_is_asked_for_only_after_the_jobs_own_limit_and_only_if_its_owner_said_so() -> None:
    assert out_of(GIB, most=8 * GIB, factor=0).state.jobs["j"].request.resources.memory == GIB
    node = out_of(GIB, most=8 * GIB, factor=2000, cause=Cause.NODE_OUT_OF_MEMORY)
    assert node.state.jobs["j"].request.resources.memory == GIB
