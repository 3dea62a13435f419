"""A node that fails launch after launch is set aside, longer each time; a job that fails everywhere sets aside none."""

from collections.abc import Iterator
from itertools import count

import pytest

from distributed_grid.coordinator.core.commands import (
    Audit,
    Command,
    DrainRequested,
    Granted,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    RecordOrders,
    Send,
    UndrainRequested,
)
from distributed_grid.coordinator.core.explain import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request
from distributed_grid.protocol.messages import Exited, Launch, Stale, Started
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join, offer, resumed, step

N1, N2 = facts("n1", cores=1), facts("n2", cores=1)
CORE = Request(Resources(cpu=1000))
BROKEN = Outcome(Cause.SPAWN_FAILED, text="no process was made", started=False)


class Stage:
    """Jobs that come one after the other, each of a program of its own, and what becomes of each."""

    def __init__(self, *nodes: str) -> None:
        self.ledger = Ledger()
        for name in nodes or ("n1",):
            join(self.ledger, N1 if name == "n1" else N2)
        self.numbers: Iterator[int] = count(1)
        self.log: list[Command] = []

    def launch(self, program: str = "", workdir: str = "") -> str:
        """The allocation of one more job; empty: it waits."""
        name = f"j{next(self.numbers)}"
        made = job(name, CORE)
        made.spec = JobSpec(argv=(program or name,), workdir=workdir)
        out = self.do(JobsSubmitted(1, (made,)))
        sent = (one.message for one in out if isinstance(one, Send))
        return next((one.allocation for one in sent if isinstance(one, Launch)), "")

    def do(self, event: object) -> list[Command]:
        out = step(self.ledger, event, self.ledger.state.now + 0.01)  # type: ignore[arg-type]
        self.log += out
        return out

    def fail(self, allocation: str, outcome: Outcome = BROKEN) -> None:
        node = self.ledger.state.allocations[allocation].node
        self.do(MessageReceived(node, Exited(allocation=allocation, outcome=outcome, returned=True)))

    def start(self, allocation: str) -> None:
        self.do(MessageReceived(self.ledger.state.allocations[allocation].node, Started(allocation=allocation)))

    def fails(self, times: int, **more: str) -> None:
        """So many launches fail, one after the other."""
        for _ in range(times):
            allocation = self.launch(**more)
            assert allocation, "no node took it"
            self.fail(allocation)

    def wait(self, seconds: float) -> None:
        """All nodes offer what they have all the time."""
        until = self.ledger.state.now + seconds
        while self.ledger.state.now < until:
            at = min(self.ledger.state.now + 5.0, until)
            for name, node in self.ledger.state.nodes.items():
                self.log += step(
                    self.ledger, MessageReceived(name, offer(node.facts, counting=tuple(node.allocations))), at
                )

    def usable(self, name: str = "n1") -> bool:
        return self.ledger.state.nodes[name].usable


def launches(command: Command) -> bool:
    return isinstance(command, Send) and isinstance(command.message, Launch)


def test_after_three_failed_launches_in_a_row_a_node_is_set_aside_and_says_why() -> None:
    stage = Stage()
    stage.fails(2)
    assert stage.usable()
    stage.fails(1)
    assert not stage.usable()
    assert not stage.launch("waits")
    reason = why.why(stage.ledger.state, "j4", None, stage.ledger.state.now).reason
    text = "n1 is set aside for 30 s: 3 launches failed, no process was made"
    assert (reason.code, reason.text) == ("SetAside", text)
    assert [one.what for one in stage.log if isinstance(one, Audit)] == [
        "set aside for 30 s after 3 launches failed in a row: no process was made"
    ]


def test_a_start_in_between_begins_the_row_anew() -> None:
    stage = Stage()
    stage.fails(2)
    runs = stage.launch()
    stage.start(runs)
    stage.do(MessageReceived("n1", Exited(allocation=runs, outcome=Outcome(Cause.EXITED, code=1), returned=True)))
    stage.fails(2)
    assert stage.usable()


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Cause.NOT_FOUND, text="no such program", started=False),
        Outcome(Cause.EXITED, code=1),
        Outcome(Cause.CANCELLED, started=False),
    ],
)
def test_what_is_not_the_nodes_fault_is_not_held_against_it(outcome: Outcome) -> None:
    stage = Stage()
    for _ in range(9):
        stage.fail(stage.launch(), outcome)
    assert stage.usable() and not [one for one in stage.log if isinstance(one, RecordOrders)]


def test_a_directory_that_the_user_named_is_not_the_nodes_fault() -> None:
    stage = Stage()
    stage.fails(9, workdir="/data")
    assert stage.usable()


def test_a_launch_that_the_disk_of_its_node_refused_goes_to_another_node() -> None:
    stage = Stage("n1", "n2")
    allocation = stage.launch()
    first = stage.ledger.state.allocations[allocation].node
    stage.fail(allocation, Outcome(Cause.DISK_FAILED, text="the journal on the node cannot be written", started=False))
    again = [one for one in stage.log if launches(one)][-1]
    assert isinstance(again, Send) and again.node != first
    assert not [one for one in stage.log if isinstance(one, RecordOrders)], "only left alone for a while"


def test_a_launch_that_was_declined_counts_as_nothing() -> None:
    stage = Stage()
    allocation = stage.launch()
    for number in range(2, 9):
        stage.do(MessageReceived("n1", Stale(allocation=allocation, reason="busy", device="0")))
        stage.wait(300.0)
        allocation = f"j1.{number}"
    assert stage.ledger.state.nodes["n1"].orders.aside is None


def test_its_time_is_over_by_itself_and_the_next_failure_doubles_it_up_to_a_bound() -> None:
    stage = Stage()
    stage.fails(3)
    for seconds in (30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0):
        stage.wait(seconds - 1.0)
        assert not stage.usable(), f"before {seconds} s"
        stage.wait(1.0)
        assert stage.usable(), f"after {seconds} s"
        stage.fails(1)


def test_one_start_on_trial_and_all_is_forgotten() -> None:
    stage = Stage()
    stage.fails(3)
    stage.wait(30.0)
    runs = stage.launch()
    stage.start(runs)
    stage.do(MessageReceived("n1", Exited(allocation=runs, outcome=Outcome(Cause.EXITED), returned=True)))
    assert stage.ledger.state.nodes["n1"].orders.aside is None
    stage.fails(2)
    assert stage.usable()


def test_who_waits_starts_when_the_time_is_over() -> None:
    stage = Stage()
    stage.fails(3)
    stage.launch()
    assert "j4.1" not in stage.ledger.state.allocations
    stage.wait(30.0)
    assert "j4.1" in stage.ledger.state.allocations


def test_undrain_takes_it_back() -> None:
    stage = Stage()
    stage.fails(3)
    assert Granted(5, "n1 is given jobs again") in stage.do(UndrainRequested(5, ("n1",)))
    assert stage.usable() and stage.ledger.state.nodes["n1"].orders.aside is None
    stage.fails(2)
    assert stage.usable()


def test_a_node_that_is_drained_meanwhile_stays_drained_when_its_time_is_over() -> None:
    stage = Stage()
    stage.fails(3)
    stage.do(DrainRequested(5, ("n1",)))
    stage.wait(40.0)
    assert not stage.usable()


def test_a_command_that_fails_everywhere_sets_nobody_aside() -> None:
    stage = Stage("n1", "n2")
    first, second = stage.launch("broken"), stage.launch("broken")
    stage.fail(first)
    stage.fail(second)
    stage.fails(20, program="broken")
    assert stage.usable("n1") and stage.usable("n2")


def test_a_node_is_forgiven_when_what_failed_there_fails_elsewhere_too() -> None:
    stage = Stage("n1", "n2")
    stage.do(DrainRequested(5, ("n2",)))
    stage.fails(3, program="broken")
    assert not stage.usable("n1")
    stage.do(UndrainRequested(6, ("n2",)))
    stage.fails(1, program="broken")
    assert stage.usable("n1") and stage.usable("n2")


def test_it_outlasts_the_coordinator() -> None:
    stage = Stage()
    stage.fails(3)
    stored = {one.node: one.orders for one in stage.log if isinstance(one, RecordOrders)}
    after = Ledger()
    after.restore((), (), [N1], stage.ledger.state.now, ordered=stored)
    join(after, N1, stage.ledger.state.now)
    assert not after.state.nodes["n1"].usable
    for at in range(2, 32, 2):
        step(after, HeartbeatReceived("n1", Sample(at=at)), stage.ledger.state.now + at)
    assert after.state.nodes["n1"].usable


def test_a_checkpoint_keeps_the_row_and_what_failed_elsewhere() -> None:
    stage = Stage()
    stage.fails(2)
    stage.ledger = resumed(stage.ledger)
    stage.fails(1)
    assert not stage.usable() and len(stage.ledger.state.failing_commands) == 3
