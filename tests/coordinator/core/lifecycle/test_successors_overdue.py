"""A job that was overdue when it became a successor is so again when it is taken back before its start."""

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import DrainRequested, MessageReceived, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle.successors import OVERDUE
from distributed_grid.coordinator.core.policy import DEFAULT, Sharing
from distributed_grid.coordinator.core.queue.queue import Standing
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import Exited
from tests.coordinator.core.lifecycle.test_successors import Grid
from tests.coordinator.core.scene import facts, join, resumed

WAITED = 4.0
"""Seconds after which the jobs of the scene are overdue: its policy says three."""


def overdue_after_three_seconds(cores: int) -> Grid:
    """Short jobs of ann's run on each core, and successors wait behind them; others wait, and one of ben's."""
    grid = Grid()
    sharing = Sharing(overdue_after=0.05)  # of a minute
    grid.ledger = Ledger(policy=replace(DEFAULT, suspect_after=1e9, disconnected_after=1e9, sharing=sharing))
    join(grid.ledger, facts("n1", cores), grid.now, expires_in=1e9)
    grid.submit(20)
    grid.submit(1, user="ben", time_limit=36000.0)
    grid.learn()
    return grid


@pytest.fixture
def scene() -> Grid:
    """j5 runs, and j6, which was overdue, is its successor."""
    grid = overdue_after_three_seconds(1)
    grid.start("j4.1")
    grid.now += WAITED
    grid.end("j4.1")
    grid.start("j5.1")
    assert grid.waiting() == {"j6.1": "j5.1"}
    assert served_at(grid) == grid.ledger.state.allocations["j6.1"].granted
    return grid


def served_at(grid: Grid) -> float:
    return of_ann(grid).served_at


def of_ann(grid: Grid) -> Standing:
    return next(one for one in grid.ledger.state.queue.standings.values() if one.user == "ann")


def withdrawn(grid: Grid, name: str) -> None:
    gone = Outcome(cause=Cause.WITHDRAWN, started=False)
    grid.step(MessageReceived("n1", Exited(allocation=name, outcome=gone)))


def newcomer(grid: Grid) -> str:
    """Carl's job, which has a higher precedence than all others."""
    grid.submit(1, user="carl", time_limit=1.0)
    return f"j{grid.count - 1}.1"


def test_nobody_who_would_come_after_it_in_the_queue_has_it_taken_back(scene: Grid) -> None:
    newcomer(scene)
    assert scene.taken_back() == []


def test_one_that_was_not_overdue_is_taken_back(scene: Grid) -> None:
    scene.end("j5.1")
    assert scene.waiting() == {"j7.1": "j6.1"}
    newcomer(scene)
    assert scene.taken_back() == ["j7.1"]


@pytest.mark.parametrize("made_anew", [False, True])
def test_one_that_is_taken_back_comes_before_whoever_it_came_before(scene: Grid, made_anew: bool) -> None:
    scene.now += OVERDUE
    scene.step(Tick())
    assert scene.taken_back() == ["j6.1"]
    if made_anew:
        scene.ledger = resumed(scene.ledger)
    withdrawn(scene, "j6.1")
    his = newcomer(scene)
    scene.end("j5.1", returned=True)
    launched = scene.launched()
    assert launched["j6.2"] == "" and his not in launched
    assert scene.ledger.state.chains.overdue.keys() <= {*scene.waiting(), "j6.2"}, "who has not started yet"


def test_so_does_one_whose_node_takes_no_new_jobs(scene: Grid) -> None:
    scene.step(DrainRequested(1, ("n1",), "ann", ""))
    withdrawn(scene, "j6.1")
    newcomer(scene)
    join(scene.ledger, facts("n2", 1), scene.now)
    assert [*scene.ledger.state.nodes["n2"].allocations] == ["j6.2"]


def test_one_that_starts_all_the_same_was_served(scene: Grid) -> None:
    granted = served_at(scene)
    scene.now += OVERDUE
    scene.step(Tick())
    scene.start("j6.1")
    his = newcomer(scene)
    scene.end("j5.1")
    scene.end("j6.1", returned=True)
    launched = scene.launched()
    assert launched[his] == "" and launched["j7.1"] == his, "the next one of its lane is not overdue"
    assert served_at(scene) == granted


# --- several of a lane ------------------------------------------------------------------------------------------------


@pytest.fixture
def two() -> Grid:
    """Two were overdue when they became successors, the second one when the first had waited for an order to be taken
    back to be answered for longer than makes one overdue."""
    grid = overdue_after_three_seconds(2)
    for number in (4, 5):
        grid.start(f"j{number}.1")
    assert grid.waiting() == {"j6.1": "j4.1", "j7.1": "j5.1"}
    grid.ledger.state.chains.overdue = {"j6.1": (5.0, 0.0), "j7.1": (9.0, 5.0)}
    of_ann(grid).served_at = grid.now = 9.0
    grid.step(Tick())
    assert grid.taken_back() == ["j6.1", "j7.1"]
    return grid


@pytest.mark.parametrize("names", [("j6.1", "j7.1"), ("j7.1", "j6.1")])
def test_nobody_of_the_lane_was_served_once_all_were_taken_back_in_whatever_order(
    names: tuple[str, str], two: Grid
) -> None:
    state = two.ledger.state
    for name in names:
        assert served_at(two) > 0.0
        withdrawn(two, name)
    assert served_at(two) == 0.0
    assert state.chains.overdue == {}


def test_one_that_is_taken_back_after_a_later_one_has_started_waits_for_its_turn(two: Grid) -> None:
    two.end("j5.1")
    two.start("j7.1")
    withdrawn(two, "j6.1")
    assert served_at(two) == 9.0
