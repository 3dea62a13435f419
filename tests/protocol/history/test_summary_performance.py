"""The four figures of how well the grid serves its users."""

from distributed_grid.protocol.history.summary import core_seconds, performance
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Durations, Status
from distributed_grid.protocol.resources import Grant, Resources

EMPTY = Status(id=1, grid="g", software="1", epoch=1, up_for=1800.0, nodes=(), counts={}, ended={}, at=0.0)


def test_nothing_is_claimed_of_a_grid_in_which_nothing_has_ended() -> None:
    assert performance(EMPTY).plain() == {
        "task_execution_time": None,
        "resource_efficiency": None,
        "allocation_success_rate": None,
        "rebalancing_frequency": 0.0,
    }


def test_each_figure_is_of_what_has_ended() -> None:
    status = Status(
        id=1, grid="g", software="1", epoch=1, up_for=1800.0, nodes=(), counts={}, at=0.0, moves=3,
        ended={"exited": 3, "not-placed": 1}, runs=Durations(3, 2.0, 9.0, 9.9), placed=3,
        core_seconds_used=30.0, core_seconds_held=40.0,
    )  # fmt: skip
    assert performance(status).plain() == {
        "task_execution_time": {"median": 2.0, "p95": 9.0},
        "resource_efficiency": 0.75,
        "allocation_success_rate": 0.75,
        "rebalancing_frequency": 6.0,
    }


def test_use_beyond_the_grant_counts_for_nothing_and_a_hold_holds_for_what_runs_inside() -> None:
    grant, request = Grant((0, 1)), Request(Resources(2000))
    assert core_seconds(request, grant, Outcome(Cause.EXITED, seconds=10.0, cpu_seconds=5.0)) == (5.0, 20.0)
    assert core_seconds(request, grant, Outcome(Cause.EXITED, seconds=10.0, cpu_seconds=1e9)) == (20.0, 20.0)
    inside = Request(Resources(2000), within="j-hold")
    assert core_seconds(inside, grant, Outcome(Cause.EXITED, seconds=10.0, cpu_seconds=5.0)) == (5.0, 0.0)
    assert core_seconds(request, None, Outcome(Cause.NOT_PLACED)) == (0.0, 0.0)
