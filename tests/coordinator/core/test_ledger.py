"""The ledger as a whole: exact commands, restarts, and that the same events give the same commands."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest

from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.commands import (
    Accepted,
    AckExits,
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Over,
    Publish,
    RecordAllocation,
    RecordJob,
    RecordNode,
    Send,
    StoreFailing,
    Tick,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import MOVES, Allocation, Job
from distributed_grid.coordinator.core.state import STORY_MOST
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Stale, Started
from distributed_grid.protocol.nodes import Known, Sample
from distributed_grid.protocol.resources import GIB, Grant, Resources
from tests.coordinator.core.scene import facts, job, join, line, offer, state_of, step

ONE = Request(Resources(cpu=1000))


def started(name: str, node: str = "n1") -> MessageReceived:
    return MessageReceived(node, Started(allocation=name))


def exited(name: str, node: str = "n1", code: int = 0, returned: bool = False) -> MessageReceived:
    return MessageReceived(
        node, Exited(allocation=name, outcome=Outcome(cause=Cause.EXITED, code=code), returned=returned)
    )


def test_a_launch_comes_after_the_records_it_rests_on_and_nothing_else_is_said() -> None:
    ledger = Ledger(epoch=7)
    join(ledger, facts("n1"))
    a = job("a", ONE)
    assert ledger.handle(JobsSubmitted(5, (a,)), 1.0) == [RecordJob(a, new=True), Accepted(5, ("a",), 1, 1)]
    grant = Grant(cores=(0,))
    out = ledger.settle(1.0)
    launch = Launch(allocation="a.1", job="a", user="ann", epoch=7, grant=grant, spec=a.spec)
    view = views.job(ledger.state, "a")
    assert view is not None and view.state is State.STARTING and view.grant == grant
    assert out == [RecordAllocation(ledger.state.allocations["a.1"]), RecordJob(a), Publish(view), Send("n1", launch)]


def test_an_exit_is_acknowledged_after_it_is_recorded() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    step(ledger, JobsSubmitted(1, (job("a", ONE),)), 1.0)
    allocation, a = ledger.state.allocations["a.1"], ledger.state.jobs["a"]
    out = step(ledger, exited("a.1", code=7), 2.0)
    assert out[:2] == [RecordAllocation(allocation), RecordJob(a)]
    assert out[3:] == [AckExits("n1", ("a.1",))]
    assert a.outcome == Outcome(cause=Cause.EXITED, code=7)
    assert not ledger.state.jobs and not ledger.state.allocations and views.job(ledger.state, "a") is None


def test_a_heartbeat_says_nothing_and_keeps_the_node() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    for second in range(1, 40):
        assert step(ledger, HeartbeatReceived("n1", Sample(at=float(second))), float(second)) == []
    assert views.node_view(ledger.state.nodes["n1"], 40.0).silent_for == 1.0


def test_a_heartbeat_from_nowhere_is_nothing() -> None:
    assert Ledger().handle(HeartbeatReceived("n1", Sample(at=1.0)), 1.0) == []


def test_the_coordinators_own_delay_makes_no_node_silent() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    ledger.handle(HeartbeatReceived("n1", Sample(at=1.0)), 30.0)
    assert ledger.settle(30.0) == []
    assert ledger.state.nodes["n1"].state.value == "up"


def test_an_offer_that_has_expired_is_not_matched() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"), expires_in=5.0)
    step(ledger, HeartbeatReceived("n1", Sample(at=1.0)), 4.0)
    assert ledger.next_deadline() == 5.0
    out = step(ledger, JobsSubmitted(1, (job("a", ONE),)), 5.0)
    assert not any(isinstance(command, Send) for command in out)
    assert views.offer_view(ledger.state.nodes["n1"], 5.0) is None and views.allocations(ledger.state) == ()


def test_a_closed_connection_of_an_old_session_is_of_no_interest() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    ledger.handle(NodeUp(facts("n1"), "newer"), 1.0)
    assert step(ledger, NodeDown("n1", "session-n1"), 1.0) == []
    assert ledger.state.nodes["n1"].session == "newer"


def test_urgent_goes_before_low_and_then_who_came_first() -> None:
    ledger = Ledger()
    for name, priority in (("low", 0), ("first", 1), ("second", 1), ("urgent", 3)):
        step(ledger, JobsSubmitted(1, (job(name, Request(Resources(cpu=1000), Priority(priority))),)), 0.0)
    out = join(ledger, facts("n1", cores=4), 1.0)
    launches = [c.message.job for c in out if isinstance(c, Send) and isinstance(c.message, Launch)]
    assert launches == ["urgent", "first", "second", "low"]


def test_a_cancelled_job_that_never_started_ends_when_the_agent_says_stale() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    step(ledger, JobsSubmitted(1, (job("a", ONE),)), 1.0)
    a = ledger.state.jobs["a"]
    step(ledger, CancelRequested(2, ("a",)), 2.0)
    step(ledger, MessageReceived("n1", Stale(allocation="a.1", reason="busy")), 3.0)
    assert a.outcome == Outcome(cause=Cause.CANCELLED, text="cancelled", started=False)


def test_a_cancel_while_the_node_is_lost_is_told_when_it_returns_and_takes_effect_once() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    step(ledger, JobsSubmitted(1, (job("a", ONE),)), 0.0)
    step(ledger, started("a.1"), 1.0)
    step(ledger, NodeDown("n1", "session-n1"), 1.0)
    step(ledger, Tick(), 11.0)
    assert state_of(ledger, "a") is State.LOST
    assert not any(isinstance(c, Send) for c in step(ledger, CancelRequested(1, ("a",)), 12.0))
    step(ledger, NodeUp(facts("n1"), "new"), 13.0)
    out = step(ledger, MessageReceived("n1", Inventory(known=(Known("a.1", State.RUNNING),))), 13.0)
    assert [line(c) for c in out if isinstance(c, Send)] == ["n1 <- stop a.1 after 5 s: cancelled, cancelled"]
    assert state_of(ledger, "a") is State.STOPPING


def test_a_job_whose_node_is_lost_before_it_said_that_it_started_is_not_said_to_have_never_run() -> None:
    ledger = Ledger(epoch=1)
    join(ledger, facts("n1"))
    a = job("a", ONE)
    step(ledger, JobsSubmitted(1, (a,)), 1.0)
    ledger.settle(100.0)
    assert a.outcome is not None
    assert (a.outcome.cause, a.outcome.started) == (Cause.NODE_LOST, True)


def test_a_cancel_after_the_node_is_back_and_before_it_has_said_that_a_lost_job_started_is_told_at_once() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    step(ledger, JobsSubmitted(1, (job("a", ONE),)), 0.0)
    step(ledger, NodeDown("n1", "session-n1"), 1.0)
    step(ledger, Tick(), 11.0)
    step(ledger, NodeUp(facts("n1"), "new"), 12.0)
    step(ledger, MessageReceived("n1", Inventory(known=())), 12.0)  # the launch is said again
    assert state_of(ledger, "a") is State.LOST
    out = step(ledger, CancelRequested(1, ("a",)), 13.0)
    assert [line(c) for c in out if isinstance(c, Send)] == ["n1 <- stop a.1 after 5 s: cancelled, cancelled"]
    step(ledger, started("a.1"), 13.1)
    assert state_of(ledger, "a") is State.STOPPING


def test_a_job_that_is_cancelled_while_it_waits_to_be_run_again_is_not_said_never_to_have_run() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=1))
    again = msgspec.structs.replace(ONE, retry_on=(RetryOn.FAILED,), retries=1)
    step(ledger, JobsSubmitted(1, (job("a", again), job("b", ONE))), 0.0)
    a = ledger.state.jobs["a"]
    step(ledger, started("a.1"), 1.0)
    step(ledger, NodeDown("n1", "session-n1"), 1.5)
    step(ledger, NodeUp(facts("n1", cores=1), "new"), 2.0)
    step(ledger, MessageReceived("n1", Inventory(known=(Known("a.1", State.ENDED),))), 2.0)
    step(ledger, exited("a.1", code=3), 2.0)
    assert a.state is State.WAITING
    step(ledger, CancelRequested(1, ("a",)), 3.0)
    assert a.outcome == Outcome(cause=Cause.CANCELLED, text="cancelled", started=True)


def test_a_move_that_is_not_in_the_table_is_an_assertion() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    step(ledger, JobsSubmitted(1, (job("a", ONE),)), 0.0)
    allocation = ledger.state.allocations["a.1"]
    for state in set(State) - MOVES[State.STARTING]:
        with pytest.raises(AssertionError, match="cannot go from starting"):
            ledger.state.move(allocation, state)


def test_the_invariants_notice_a_core_that_is_held_twice() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    step(ledger, JobsSubmitted(1, (job("a", ONE), job("b", ONE))), 0.0)
    ledger.state.allocations["b.1"].grant = ledger.state.allocations["a.1"].grant
    with pytest.raises(AssertionError, match="core 0 of n1 is held"):
        ledger.check()


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"), expires_in=1e9)
    step(ledger, JobsSubmitted(1, (job("a", ONE),)), 0.0)
    now = 0.0
    for attempt in range(1, 80):
        now += 400.0
        step(ledger, MessageReceived("n1", Stale(allocation=f"a.{attempt}", reason=f"busy {attempt}")), now - 399.0)
        step(ledger, HeartbeatReceived("n1", Sample(at=now)), now)
    story = ledger.state.jobs["a"].story
    assert len(story) == STORY_MOST and story[0].text == "submitted" and "busy 79" in story[-2].text


# --- the same again -------------------------------------------------------------------------------------------------


def busy_ledger() -> Ledger:
    """Two nodes, jobs in every state that lives, and a queue."""
    ledger = Ledger(epoch=1)
    for name in ("n1", "n2"):
        join(ledger, facts(name, cores=2, gpus=1))
    jobs = [job(f"j{i}", Request(Resources(cpu=500 * (1 + i % 3), gpu=500 * (i % 2))), float(i)) for i in range(9)]
    for one in jobs:
        step(ledger, JobsSubmitted(1, (one,)), one.submitted)
    for name in list(ledger.state.allocations)[:3]:
        step(ledger, started(name, ledger.state.allocations[name].node), 9.0)
        step(ledger, HeartbeatReceived("n1", Sample(at=9.0)), 9.0)
        step(ledger, HeartbeatReceived("n2", Sample(at=9.0)), 9.0)
    step(ledger, CancelRequested(1, (next(iter(ledger.state.jobs)),)), 9.5)
    assert {State.WAITING, State.STARTING, State.RUNNING, State.STOPPING} <= {
        j.state for j in ledger.state.jobs.values()
    }
    return ledger


def the_rest(ledger: Ledger, now: float) -> list[bytes]:
    """Both agents return, and everything is played to its end."""
    out: list[Command] = []
    held = {name: list(ledger.state.nodes[name].allocations) for name in ("n1", "n2")}
    runs = {name for name, allocation in ledger.state.allocations.items() if allocation.started}
    for name, allocations in held.items():
        known = tuple(Known(one, State.RUNNING) for one in allocations if one in runs)
        out += step(ledger, NodeUp(ledger.state.nodes[name].facts, "again"), now)
        out += step(ledger, MessageReceived(name, Inventory(known=known)), now)
        out += step(ledger, HeartbeatReceived(name, Sample(at=now)), now)
        mine = ledger.state.nodes[name].facts
        out += step(
            ledger, MessageReceived(name, offer(mine, cores=(), gpus=(), memory=0, counting=tuple(allocations))), now
        )
    while ledger.state.allocations:
        now += 0.1
        first = next(iter(ledger.state.allocations.values()))
        out += step(ledger, exited(first.id, first.node, returned=True), now)
    assert not ledger.state.jobs
    return [msgspec.msgpack.encode(command) for command in out if not isinstance(command, Publish | RecordNode)]


def test_a_restored_ledger_goes_on_as_if_nothing_had_been() -> None:
    one = busy_ledger()
    # As a store keeps them.
    jobs = msgspec.msgpack.decode(msgspec.msgpack.encode(list(one.state.jobs.values())), type=list[Job])
    kept = msgspec.msgpack.encode(list(one.state.allocations.values()))
    allocations = msgspec.msgpack.decode(kept, type=list[Allocation])
    other = Ledger(epoch=1)
    assert other.restore(reversed(jobs), allocations, [node.facts for node in one.state.nodes.values()], 10.0) == []
    other.settle(10.0)
    other.check()
    for name in ("n1", "n2"):
        step(one, NodeDown(name, f"session-{name}"), 10.0)
    assert the_rest(other, 15.0) == the_rest(one, 15.0)


def test_a_restored_ledger_gives_agents_their_time_to_return() -> None:
    one = busy_ledger().state
    other = Ledger()
    other.restore(one.jobs.values(), one.allocations.values(), [n.facts for n in one.nodes.values()], 1000.0)
    other.settle(1000.0)
    assert other.next_deadline() is not None
    step(other, Tick(), 1069.9)
    assert len(other.state.jobs) == len(one.jobs)
    assert {a.state for a in other.state.allocations.values()} == {State.LOST}
    step(other, Tick(), 1070.0)
    assert not other.state.allocations


@pytest.mark.parametrize("end", ["runs", "has ended"])
def test_a_start_whose_record_was_lost_in_a_crash_is_told_again_by_the_agent(end: str) -> None:
    one = Ledger()
    join(one, facts("n1"))
    step(one, JobsSubmitted(1, (job("a", ONE),)), 1.0)
    jobs, allocations = deepcopy(list(one.state.jobs.values())), deepcopy(list(one.state.allocations.values()))
    soon = step(one, started("a.1"), 2.0)
    records = [command for command in soon if isinstance(command, RecordJob | RecordAllocation)]
    assert len(records) == 2 and all(record.soon for record in records)

    other = Ledger(epoch=1)
    other.restore(jobs, allocations, [facts("n1")], 10.0)
    step(other, NodeUp(facts("n1"), "again"), 11.0)
    outcome = Outcome(cause=Cause.EXITED, code=3)
    known = Known("a.1", State.RUNNING, None, 9.0) if end == "runs" else Known("a.1", State.ENDED, outcome)
    out = step(other, MessageReceived("n1", Inventory(known=(known,))), 11.0)
    assert not any(isinstance(command, Send) for command in out), "nothing is launched again"
    if end == "runs":
        assert other.state.jobs["a"].state is State.RUNNING and other.state.jobs["a"].started == 2.0
    else:
        assert not other.state.jobs and AckExits("n1", ("a.1",)) in out


def test_what_nobody_watches_is_not_published_and_recorded_all_the_same() -> None:
    watched, unwatched = Ledger(), Ledger(watched=())
    for ledger in (watched, unwatched):
        join(ledger, facts("n1"))
    for event in (JobsSubmitted(1, (job("a", ONE),)), started("a.1"), exited("a.1")):
        told, quiet = step(watched, deepcopy(event), 1.0), step(unwatched, deepcopy(event), 1.0)
        assert [line(c) for c in told if not isinstance(c, Publish)] == [
            line(c) for c in quiet if not isinstance(c, Over)
        ]
    assert [command for command in quiet if isinstance(command, Over)] == [Over("a", Cause.EXITED, waited=1.0, ran=0.0)]


def fingerprint() -> str:
    """All commands of a busy life, in words."""
    ledger = busy_ledger()
    return "\n".join(str(entry) for entry in the_rest(ledger, 12.0))


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_the_same_events_give_the_same_commands_whatever_the_hash_seed(seed: str) -> None:
    code = "from tests.coordinator.core.test_ledger import fingerprint; print(fingerprint())"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    root = Path(__file__).parents[3]
    run = subprocess.run([sys.executable, "-c", code], env=env, cwd=root, capture_output=True, text=True, timeout=60)
    assert run.stdout == fingerprint() + "\n", run.stderr


def test_a_thousand_equal_jobs_are_placed_in_their_order() -> None:
    ledger = Ledger()
    step(ledger, JobsSubmitted(1, tuple(job(f"j{i}", ONE) for i in range(1000))), 0.0)
    join(ledger, facts("n1", cores=64, memory=8 * GIB), 1.0)
    assert list(ledger.state.allocations) == [f"j{i}.1" for i in range(64)]
    view = views.job(ledger.state, "j999")
    assert view is not None and view.reason is not None and view.reason.text == "935 jobs are ahead in the queue"


def test_nothing_is_started_while_the_grid_holds_and_all_that_can_be_as_soon_as_it_goes_on() -> None:
    ledger = Ledger()
    join(ledger, facts("n1", cores=2))
    step(ledger, JobsSubmitted(1, tuple(job(name, ONE) for name in "abc")), 1.0)
    step(ledger, started("a.1"), 2.0)
    assert step(ledger, StoreFailing(True), 3.0) == []
    assert ledger.state.jobs["c"].state is State.WAITING
    ended = step(ledger, exited("a.1", code=7, returned=True), 4.0)
    assert AckExits("n1", ("a.1",)) in ended and not any(isinstance(command, Send) for command in ended)
    step(ledger, JobsSubmitted(2, (job("d", ONE),)), 5.0)
    why = views.job(ledger.state, "c")
    assert why is not None and why.reason is not None and why.reason.code == "Store"
    launched = [command.message for command in step(ledger, StoreFailing(False), 6.0) if isinstance(command, Send)]
    assert [message.allocation for message in launched if isinstance(message, Launch)] == ["c.1"]
    step(ledger, exited("c.1", returned=True), 7.0)
    assert ledger.state.jobs["d"].state is State.STARTING
