"""Who gets a successor, what becomes of it, and when it is taken back. Random grids: test_ledger_honest_agents.py."""

from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    DrainRequested,
    JobsSubmitted,
    LossFound,
    MessageReceived,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.explain import why as explain
from distributed_grid.coordinator.core.ledger import CHAIN_SECONDS, START_SECONDS, Ledger
from distributed_grid.coordinator.core.lifecycle.successors import OVERDUE, PASSED
from distributed_grid.coordinator.core.views import allocations
from distributed_grid.coordinator.core.views import job as view_of
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, RetryOn, State
from distributed_grid.protocol.messages import Exited, Launch, Stale, Started, Stop
from distributed_grid.protocol.placement import Constraints
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.core.scene import facts, job, join, step

CPU = Request(Resources(1000, GIB))


class Grid:
    """One node of so many cores, on which jobs named j0, j1, … of 20 ms end in turn."""

    def __init__(self, cores: int = 1) -> None:
        self.ledger, self.now, self.count = Ledger(), 1.0, 0
        self.sent: list[Launch | Stop] = []
        join(self.ledger, facts("n1", cores), self.now)

    def step(self, event: Any) -> list[Command]:
        self.now += 0.001
        out = step(self.ledger, event, self.now)
        self.sent += [one.message for one in out if isinstance(one, Send) and isinstance(one.message, Launch | Stop)]
        return out

    def submit(self, many: int = 1, request: Request = CPU, user: str = "ann", **spec: Any) -> None:
        new = tuple(job(f"j{self.count + n}", request, self.now, user=user, **spec) for n in range(many))
        self.count += many
        self.step(JobsSubmitted(1, new))

    def start(self, name: str) -> None:
        self.step(MessageReceived("n1", Started(allocation=name)))

    def end(self, name: str, seconds: float = 0.02, **more: Any) -> None:
        outcome = Outcome(cause=Cause.EXITED, seconds=seconds)
        self.step(MessageReceived("n1", Exited(allocation=name, outcome=outcome, **more)))

    def learn(self, seconds: float = 0.02) -> None:
        """The first four jobs have run for so long."""
        for number in range(4):
            self.start(f"j{number}.1")
            self.end(f"j{number}.1", seconds, returned=True)

    def waiting(self) -> dict[str, str]:
        """The successors, and what they wait for."""
        return dict(self.ledger.state.chains.predecessors)

    def launched(self) -> dict[str, str]:
        """Every launch so far, and what it follows."""
        return {one.allocation: one.predecessor for one in self.sent if isinstance(one, Launch)}

    def taken_back(self) -> list[str]:
        return [one.allocation for one in self.sent if isinstance(one, Stop) and one.unless_started]

    def state(self, name: str) -> State:
        return self.ledger.state.jobs[name].state


@pytest.fixture
def busy() -> Grid:
    """j4 runs, j5 and j6 wait behind it, and others wait."""
    grid = Grid()
    grid.submit(20)
    grid.learn(0.021)
    grid.start("j4.1")
    assert grid.waiting() == {"j5.1": "j4.1", "j6.1": "j5.1"}
    return grid


def test_a_successor_whose_end_is_the_first_that_is_told_of_it_has_run(busy: Grid) -> None:
    busy.end("j4.1")
    busy.now += 1.0
    over = busy.ledger.state.jobs["j5"]
    busy.end("j5.1", seconds=0.25, walls="user")
    assert (over.state, over.walls, over.started) == (State.ENDED, "user", busy.now - 0.25)
    assert [step.text for step in over.story][-2:] == ["started on n1, walls user", "exited with code 0"]
    assert busy.state("j6") is State.STARTING and "j6.1" in busy.ledger.state.nodes["n1"].allocations


# --- who gets one ---------------------------------------------------------------------------------------------------


def test_short_jobs_get_successors_that_are_launched_at_once(busy: Grid) -> None:
    launched = busy.launched()
    assert (launched["j4.1"], launched["j5.1"], launched["j6.1"]) == ("", "j4.1", "j5.1")
    node = busy.ledger.state.nodes["n1"]
    assert [*node.allocations] == ["j4.1"], "they hold nothing"
    assert busy.state("j5") is State.STARTING and busy.state("j7") is State.WAITING


def test_where_one_line_waits_a_chain_is_as_long_as_before_when_its_first_job_has_ended(busy: Grid) -> None:
    busy.end("j4.1")
    assert busy.waiting() == {"j6.1": "j5.1", "j7.1": "j6.1"}


def test_the_shorter_the_jobs_the_longer_the_chain_up_to_sixteen() -> None:
    grid = Grid()
    grid.submit(40)
    grid.learn(0.001)
    assert [*grid.waiting()] == [f"j{number}.1" for number in range(5, 21)]


def test_one_job_that_was_slow_does_not_shorten_the_chains() -> None:
    grid = Grid()
    grid.submit(40)
    grid.learn(0.021)
    for name in ("j4.1", "j5.1"):
        grid.end(name, 0.3 if name == "j5.1" else 0.021)
    assert len(grid.waiting()) == 2


def test_an_end_may_wait_for_others_only_where_several_wait_behind_it(busy: Grid) -> None:
    ledger, over = busy.ledger, Outcome(cause=Cause.EXITED)

    def end(name: str) -> MessageReceived:
        return MessageReceived("n1", Exited(allocation=name, outcome=over))

    assert [ledger.patience(end(name)) for name in ("j4.1", "j5.1", "j6.1")] == [CHAIN_SECONDS, 0.0, 0.0]
    starts = [MessageReceived("n1", Started(allocation=name)) for name in ("j4.1", "j5.1")]
    assert [ledger.patience(start) for start in starts] == [CHAIN_SECONDS, START_SECONDS], "its end may be near"
    assert ledger.patience(JobsSubmitted(1, (job("j99", CPU, busy.now),))) == 0.0


@pytest.mark.parametrize("seconds", [0.0, 0.6])
def test_nobody_follows_where_jobs_are_long_or_their_run_time_is_unknown(seconds: float) -> None:
    grid = Grid()
    grid.submit(20)
    grid.learn(seconds)
    assert grid.waiting() == {}


@pytest.mark.parametrize(
    ("request_", "spec"),
    [
        (Request(Resources(1000, GIB), Priority.URGENT), {}),
        (CPU, {"stdin": True}),
        (Request(Resources(1000, GIB), retry_on=(RetryOn.LOST,), retries=1), {}),
        (Request(Resources(1000, GIB), constraints=Constraints(apart=("j-x",))), {}),
    ],
    ids=["urgent", "stdin", "leased", "apart"],
)
def test_jobs_that_are_not_plain_have_no_successors(request_: Request, spec: dict[str, Any]) -> None:
    grid = Grid()
    grid.submit(12, request_, **spec)
    grid.learn()
    assert grid.state("j4") is State.STARTING and grid.waiting() == {}


def test_jobs_with_shipped_files_follow_those_with_the_same_files() -> None:
    grid = Grid()
    grid.submit(6, bundle="0" * 64)
    grid.learn()
    grid.submit(20, bundle="1" * 64)
    assert grid.waiting() == {"j5.1": "j4.1"}, "j6 has other files"
    for name in ("j4.1", "j5.1"):
        grid.end(name, returned=True)
    assert grid.waiting() == {"j7.1": "j6.1", "j8.1": "j7.1"}, "and they have followed each other"


def test_how_long_a_shipped_job_takes_is_counted_from_its_turn_as_its_files_are_unpacked_then() -> None:
    grid = Grid()
    grid.submit(20, bundle="0" * 64)
    for number in range(4):
        grid.now += 0.6
        grid.end(f"j{number}.1", 0.01, returned=True)
    assert grid.waiting() == {}, "each had its node for half a second and more"


def test_the_last_jobs_of_a_line_wait_for_whatever_is_free_first() -> None:
    grid = Grid(cores=2)
    grid.submit(10)
    grid.learn()
    assert grid.waiting() == {"j6.1": "j4.1", "j7.1": "j5.1"}
    assert grid.state("j8") is grid.state("j9") is State.WAITING


def test_each_job_has_one_successor_at_most_while_somebody_else_waits() -> None:
    grid = Grid()
    grid.submit(20)
    grid.submit(5, Request(Resources(1000, GIB), Priority.LOW), user="ben")
    grid.learn(0.001)
    assert grid.waiting() == {"j5.1": "j4.1"}


def test_nobody_follows_while_another_comes_first() -> None:
    grid = Grid(cores=2)
    grid.submit(20)
    grid.learn(0.05)
    assert grid.waiting() == {"j6.1": "j4.1", "j7.1": "j5.1"}
    grid.submit(1, Request(Resources(2000, GIB), Priority.HIGH), user="ben")
    for name in ("j4.1", "j6.1", "j5.1", "j7.1"):
        grid.end(name, returned=name > "j6")
    assert grid.launched()["j20.1"] == "", "both cores were left to it"


# --- behind others that cannot start ----------------------------------------------------------------------------------


def beside_a_long_job(cores: int, *first: Request) -> Grid:
    """All cores of a node are in use: one by ann's short jobs, the others by a long job of ben's. Jobs of carl's with
    these requests wait since, and come first."""
    grid = Grid(cores)
    grid.submit(1, Request(Resources(1000 * (cores - 1), GIB)), user="ben")
    grid.start("j0.1")
    for request in first:
        grid.submit(1, request, user="carl")
    for number in range(8):
        grid.submit(1)
        name = f"j{grid.count - 1}.1"
        if number < 4:
            grid.start(name)
            grid.end(name, returned=True)
    grid.submit(20)
    return grid


def high(cores: int, **more: Any) -> Request:
    return Request(Resources(1000 * cores, GIB), Priority.HIGH, **more)


def test_short_jobs_follow_each_other_while_a_larger_one_that_comes_first_waits_for_others() -> None:
    grid = beside_a_long_job(3, high(2))
    assert grid.state("j1") is State.WAITING
    assert grid.waiting() == {"j7.1": "j6.1"}
    grid.end("j6.1")
    assert grid.waiting() == {"j8.1": "j7.1"}
    grid.end("j0.1", 5.0, returned=True)
    assert grid.state("j1") is State.STARTING, "it starts as soon as what it waits for has ended"


@pytest.mark.parametrize(("cores", "short", "long"), [(2, 2, 0), (4, 1, 1), (5, 2, 1)])
def test_nobody_follows_where_short_jobs_have_what_a_reservation_needs(cores: int, short: int, long: int) -> None:
    """It waits for so many short jobs, which end first, and long ones."""
    grid = Grid(5)
    grid.submit(1, Request(Resources(3000, GIB)), user="ben")
    grid.start("j0.1")
    grid.submit(40)
    for number in range(1, 5):
        grid.end(f"j{number}.1", returned=True)
    earlier = grid.launched()
    grid.submit(1, high(cores), user="carl")
    after = grid.ledger.state.reservations.by_job["j41"].after
    assert (len(after), "j0.1" in after) == (short + long, bool(long))
    assert set(grid.taken_back()) == set(earlier) - set(after) - {f"j{n}.1" for n in range(7)}
    for name in grid.taken_back():
        gone = Outcome(cause=Cause.WITHDRAWN, started=False)
        grid.step(MessageReceived("n1", Exited(allocation=name, outcome=gone)))
    while waits := grid.waiting():
        before = next(name for name in waits.values() if name not in waits)
        grid.end(before)
    assert grid.state("j41") is State.WAITING
    assert grid.launched() == earlier, "those that followed already are the last ones"


def test_nobody_follows_where_one_that_comes_first_could_start_but_for_something_else() -> None:
    grid = beside_a_long_job(3, high(1, constraints=Constraints(apart=("j0",))))
    assert grid.state("j1") is State.WAITING
    assert grid.waiting() == {}


def test_one_that_can_only_run_elsewhere_keeps_nobody_waiting_there() -> None:
    grid = beside_a_long_job(3)
    join(grid.ledger, facts("n2", 1), grid.now)
    assert [*grid.ledger.state.nodes["n2"].allocations] == ["j8.1"], "ann's, too"
    grid.submit(1, high(1, constraints=Constraints(only=("n2",))), user="carl")
    assert {grid.ledger.state.allocations[name].node for name in grid.taken_back()} == {"n2"}
    grid.end("j6.1")
    grid.end("j7.1")
    assert grid.state(f"j{grid.count - 1}") is State.WAITING
    state = grid.ledger.state
    goes_on = [name for name in grid.waiting() if state.allocations[name].stop is None]
    assert [state.allocations[name].node for name in goes_on] == ["n1"], "nobody follows on n2"


def test_only_so_many_are_passed_over() -> None:
    larger = [Request(Resources(2000, GIB + n), Priority.HIGH) for n in range(PASSED + 1)]
    assert beside_a_long_job(3, *larger[:PASSED]).waiting() != {}
    assert beside_a_long_job(3, *larger).waiting() == {}


def test_somebody_who_comes_between_them_has_successors_taken_back() -> None:
    grid = beside_a_long_job(3, high(2))
    grid.submit(1, high(1), user="ben")
    assert grid.taken_back() == ["j7.1"]
    grid.step(MessageReceived("n1", Exited(allocation="j7.1", outcome=Outcome(cause=Cause.WITHDRAWN, started=False))))
    grid.end("j6.1", returned=True)
    assert grid.launched()[f"j{grid.count - 1}.1"] == ""


# --- its start --------------------------------------------------------------------------------------------------------


def test_a_successor_has_the_room_once_the_one_before_it_has_ended(busy: Grid) -> None:
    state = busy.ledger.state
    node = state.nodes["n1"]
    assert node.capacity is not None
    before = node.capacity.left
    busy.end("j4.1")
    assert [*node.allocations] == ["j5.1"] and node.capacity.left == before
    assert busy.waiting()["j6.1"] == "j5.1"
    busy.start("j5.1")
    assert busy.state("j5") is State.RUNNING
    assert state.shares.accounts["ann"].held == CPU.resources


def test_one_that_follows_nobody_any_more_wakes_nobody_a_second_later(busy: Grid) -> None:
    def timers() -> set[str]:
        return {name for kind, name in busy.ledger.state.deadlines.armed if kind == "successor"}

    assert timers() == {"j5.1", "j6.1"}
    busy.end("j4.1")
    assert timers() == {*busy.waiting()} and "j5.1" not in timers(), "it holds the room"
    busy.end("j6.1")
    assert timers() == {*busy.waiting()} and "j6.1" not in timers(), "it has ended"


def test_one_whose_launch_was_still_on_its_way_has_the_room_all_the_same(busy: Grid) -> None:
    node = busy.ledger.state.nodes["n1"]
    assert node.capacity is not None
    before = node.capacity.left
    busy.end("j4.1", returned=True)
    assert [*node.allocations] == ["j5.1"] and node.capacity.left == before


def test_a_start_that_is_heard_before_the_end_of_the_one_before_it_takes_over(busy: Grid) -> None:
    busy.start("j5.1")
    node = busy.ledger.state.nodes["n1"]
    assert [*node.allocations] == ["j5.1"] and busy.state("j5") is State.RUNNING
    busy.end("j4.1")
    assert [*node.allocations] == ["j5.1"] and "j4" not in busy.ledger.state.jobs


def test_a_refused_successor_waits_again_and_its_node_is_not_left_alone(busy: Grid) -> None:
    busy.step(MessageReceived("n1", Stale(allocation="j5.1", reason="what it follows holds something else")))
    assert busy.ledger.state.nodes["n1"].closed == frozenset()
    assert busy.waiting()["j6.1"] == "j4.1"
    assert busy.state("j5") is State.WAITING


# --- taken back -------------------------------------------------------------------------------------------------------


def test_a_successor_is_taken_back_for_somebody_who_comes_first(busy: Grid) -> None:
    busy.submit(1, Request(Resources(1000, GIB), Priority.HIGH), user="ben")
    assert busy.taken_back() == ["j5.1", "j6.1"]
    for name in ("j5.1", "j6.1"):
        gone = Outcome(cause=Cause.WITHDRAWN, started=False)
        busy.step(MessageReceived("n1", Exited(allocation=name, outcome=gone)))
    assert busy.state("j5") is State.WAITING
    busy.end("j4.1", returned=True)
    assert busy.launched().get("j20.1") == ""


def test_somebody_who_needs_more_than_there_will_be_takes_nothing_back(busy: Grid) -> None:
    busy.submit(1, Request(Resources(1000, GIB * 9), Priority.HIGH), user="ben")
    assert busy.taken_back() == []


def test_one_that_had_started_runs_on_and_ends_as_it_does(busy: Grid) -> None:
    busy.submit(1, Request(Resources(1000, GIB), Priority.HIGH), user="ben")
    busy.end("j4.1")
    busy.start("j5.1")
    assert busy.state("j5") is State.RUNNING
    assert busy.ledger.state.allocations["j5.1"].stop is None
    busy.end("j5.1")
    assert "j5" not in busy.ledger.state.jobs


def test_the_successors_of_a_drained_node_are_taken_back(busy: Grid) -> None:
    busy.step(DrainRequested(1, ("n1",), "ann", ""))
    assert busy.taken_back() == ["j5.1", "j6.1"]


def test_one_that_had_started_when_its_node_was_drained_is_stopped_at_the_deadline(busy: Grid) -> None:
    busy.step(DrainRequested(1, ("n1",), "ann", "", deadline=0.0))
    busy.end("j4.1")
    busy.start("j5.1")
    stop = busy.sent[-1]
    assert isinstance(stop, Stop) and (stop.allocation, stop.cause) == ("j5.1", Cause.DRAINED)
    assert not stop.unless_started and busy.state("j5") is State.STOPPING


def test_before_the_deadline_it_runs_on(busy: Grid) -> None:
    busy.step(DrainRequested(1, ("n1",), "ann", "", deadline=2.0))
    busy.end("j4.1")
    busy.start("j5.1")
    assert busy.state("j5") is State.RUNNING
    busy.now += 2.0
    busy.step(Tick())
    assert busy.state("j5") is State.STOPPING


def test_a_successor_goes_elsewhere_where_the_one_before_it_takes_long(busy: Grid) -> None:
    busy.now += OVERDUE
    busy.step(Tick())
    assert busy.taken_back() == ["j5.1", "j6.1"]
    assert "runs longer" in busy.ledger.state.jobs["j5"].story[-1].text


def test_none_is_taken_back_while_the_store_has_lost_commits_as_it_may_have_run(busy: Grid) -> None:
    busy.step(LossFound("commits are missing"))
    busy.now += OVERDUE
    busy.step(Tick())
    assert busy.taken_back() == []


def test_a_cancelled_successor_ends_and_the_next_one_follows_in_its_place(busy: Grid) -> None:
    busy.step(CancelRequested(1, ("j5",)))
    stop = busy.sent[-1]
    assert isinstance(stop, Stop) and (stop.allocation, stop.unless_started) == ("j5.1", False)
    busy.step(MessageReceived("n1", Exited(allocation="j5.1", outcome=Outcome(cause=Cause.CANCELLED, started=False))))
    assert "j5" not in busy.ledger.state.jobs and busy.waiting()["j6.1"] == "j4.1"
    assert busy.ledger.state.allocations["j6.1"].predecessor == "j4.1", "as it is recorded, for the next coordinator"


# --- how it is shown --------------------------------------------------------------------------------------------------


def test_it_is_shown_as_what_it_is(busy: Grid) -> None:
    state = busy.ledger.state
    shown = view_of(state, "j5")
    assert shown is not None and (shown.state, shown.node, shown.next_after) == (State.STARTING, "n1", "j4")
    assert [(one.job, one.next_after) for one in allocations(state)] == [("j4", ""), ("j5", "j4"), ("j6", "j5")]
    said = explain.why(state, "j5", None, busy.now).reason
    assert (said.code, said.text) == ("Next", "it is next on n1: it starts there as soon as j4 has ended")
    assert shown.story[-1].text == "next on n1, after j4"
