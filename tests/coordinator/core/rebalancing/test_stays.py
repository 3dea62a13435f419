"""Jobs that leave before the owner comes, in the ledger."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    DemandReported,
    ForecastsReported,
    JobsSubmitted,
    MessageReceived,
    Rebalanced,
    RecordReceipt,
    RecordReturns,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle.attempts import RETURNS
from distributed_grid.coordinator.core.policy import DEFAULT, Policy, Preempting
from distributed_grid.coordinator.core.rebalancing import passes
from distributed_grid.coordinator.core.rebalancing.stays import stays
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.history.trends import IdleChance
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State, Suspension
from distributed_grid.protocol.messages import Exited, Recalled, Started, Stop, Suspended
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.moves import MoveKind
from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode, PolicyName
from tests.coordinator.core.scene import facts, job, join, resumed, state_of, step

TWO = Request(Resources(cpu=2000))
LONG = 36_000.0
BEGAN = 1000.0
NEVER_SILENT: dict[str, Any] = {"suspect_after": 1e9, "disconnected_after": 2e9, "lost_after": 3e9}


def forecast(likely: float) -> IdleForecast:
    return IdleForecast(0.0, 600.0, tuple(IdleChance(seconds, likely, 31, 25) for seconds in (1800.0, 7200.0, 14400.0)))


class Grid:
    """`lab1` with a job that has run for ten minutes, and `lab2`: both of four cores."""

    def __init__(
        self, policy: str = "predictive", mode: str = "dynamic_balancing", preempting: Preempting = DEFAULT.preempting,
        request: Request = TWO, **spec: Any,
    ) -> None:  # fmt: skip
        balancing = Balancing(mode=OffloadingMode(mode), policy=PolicyName(policy))
        self.ledger = Ledger(policy=Policy(balancing=balancing, preempting=preempting, **NEVER_SILENT))
        self.state = self.ledger.state
        join(self.ledger, facts("lab1"), BEGAN, expires_in=1e6)
        one = job("j-1", request, BEGAN, **({"time_limit": LONG} | spec))
        step(self.ledger, JobsSubmitted(1, (one,)), BEGAN)
        step(self.ledger, MessageReceived("lab1", Started(allocation="j-1.1", pid=1)), BEGAN)
        join(self.ledger, facts("lab2"), BEGAN, expires_in=1e6)
        self.expect(lab1=0.05, lab2=0.95)

    def expect(self, **likely: float) -> None:
        known: dict[str, IdleForecast | None] = {name: forecast(one) for name, one in likely.items()}
        step(self.ledger, ForecastsReported(known), BEGAN)

    def look(self, now: float = BEGAN + 600.0) -> list[Command]:
        return step(self.ledger, DemandReported(None), now)

    def ends(self, now: float = BEGAN + 610.0) -> None:
        outcome = Outcome(cause=Cause.DRAINED, signal=15, seconds=600.0)
        allocation = self.state.jobs["j-1"].allocation
        node = self.state.jobs["j-1"].node
        step(self.ledger, MessageReceived(node, Exited(allocation=allocation, outcome=outcome, returned=True)), now)


def stops(commands: list[Command]) -> list[Stop]:
    return [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Stop)]


def test_a_job_leaves_in_time_with_notice_and_a_receipt_and_goes_on_elsewhere() -> None:
    grid = Grid()
    commands = grid.look()
    (stop,) = stops(commands)
    assert (stop.allocation, stop.cause) == ("j-1.1", "drained")
    assert stop.grace == grid.state.policy.preempting.notice + grid.state.jobs["j-1"].spec.grace
    (receipt,) = (one.receipt for one in commands if isinstance(one, RecordReceipt))
    assert (receipt.job, receipt.node, receipt.result, receipt.lost) == ("j-1", "lab1", "moved", 1200.0)
    assert receipt.victims[0].seconds == 600.0 and "the owner of lab1 may be back within 3h50m" in receipt.why
    (told,) = (one for one in commands if isinstance(one, Rebalanced))
    assert [(one.kind, one.job, one.target) for one in told.moves] == [(MoveKind.LEAVE, "j-1", "lab2")]
    grid.ends()
    one = grid.state.jobs["j-1"]
    assert (one.node, one.submitted, one.retried) == ("lab2", BEGAN, 0), "at its age, and no retry is used up"
    grid.ledger.check()


@pytest.mark.parametrize("limit", [0.0, 600_000.0])
def test_a_job_goes_where_it_was_said_to_go_also_where_it_runs_for_days_or_nobody_knows(limit: float) -> None:
    grid = Grid(time_limit=limit)
    join(grid.ledger, facts("lab0"), BEGAN, expires_in=1e6)
    join(grid.ledger, facts("lab3"), BEGAN, expires_in=1e6)
    grid.expect(lab0=0.1, lab1=0.05, lab2=0.95, lab3=0.1)
    (told,) = (one for one in grid.look() if isinstance(one, Rebalanced))
    grid.ends()
    assert grid.state.jobs["j-1"].node == told.moves[0].target == "lab2"


@pytest.mark.parametrize("policy", ["conservative", "balanced", "aggressive"])
def test_no_other_policy_moves_jobs(policy: str) -> None:
    assert not stops(Grid(policy).look())


@pytest.mark.parametrize("mode", ["share_and_offload", "offload_only"])
def test_in_other_modes_it_is_only_proposed(mode: str) -> None:
    grid = Grid(mode=mode)
    assert not stops(grid.look())
    last = grid.state.balancing.last
    assert last is not None and [(one.kind, one.job) for one in last.moves] == [(MoveKind.LEAVE, "j-1")]
    assert not last.applied


@pytest.mark.parametrize(
    "grid",
    [
        lambda: Grid(request=replace(TWO, requeue=False)),
        lambda: Grid(request=replace(TWO, immediate=True)),
        lambda: Grid(stdin=True),
        lambda: Grid(time_limit=660.0),
        lambda: Grid(preempting=Preempting(badput_budget=0.0)),
    ],
    ids=["not restartable", "somebody waits for it", "fed by its submitter", "over soon", "no budget"],
)
def test_it_stays(grid: Any) -> None:
    made = grid()
    assert not stops(made.look())
    assert state_of(made.ledger, "j-1") is State.RUNNING


def test_a_job_whose_owner_is_there_stays_and_one_may_go_to_a_node_that_was_just_left() -> None:
    def used(likely: float) -> IdleForecast:
        return replace(forecast(likely), idle=0.0)

    grid = Grid()
    step(grid.ledger, ForecastsReported({"lab1": used(0.05)}), BEGAN)
    assert not stops(grid.look()), "that is for when its owner has left"
    grid = Grid()
    step(grid.ledger, ForecastsReported({"lab2": used(0.95)}), BEGAN)
    assert stops(grid.look())


def freezes(grid: Grid, times: int, **parts: Any) -> None:
    """The owner of `lab1` is back for a moment, so many times."""
    for _ in range(times):
        for why in ("ann is back", ""):
            told = Suspended(allocation="j-1.1", why=why, lasted=1.0, in_all=1.0, **parts)
            step(grid.ledger, MessageReceived("lab1", told), BEGAN)


def test_where_an_owner_only_ever_came_for_a_moment_a_job_stays() -> None:
    grid = Grid()
    freezes(grid, 40)
    assert (grid.state.nodes["lab1"].thawed, grid.state.nodes["lab1"].recalled) == (40, 0)
    assert not stops(grid.look())
    grid.state.nodes["lab1"].recalled = 160
    (told,) = (one for one in grid.look(BEGAN + 660.0) if isinstance(one, Rebalanced))
    assert "of whose returns 80% end jobs there" in told.moves[0].reason


def test_what_owners_returns_came_to_is_recorded_and_known_after_a_restart() -> None:
    grid = Grid()
    told = Suspended(allocation="j-1.1", why="ann is back", lasted=1.0, in_all=1.0)
    assert RecordReturns not in map(type, step(grid.ledger, MessageReceived("lab1", told), BEGAN))
    thawed = step(grid.ledger, MessageReceived("lab1", replace(told, why="")), BEGAN)
    back = Recalled(allocation="j-1.1", why="ann is back", grace=1.0)
    recalled = step(grid.ledger, MessageReceived("lab1", back), BEGAN)
    records = [one for one in (*thawed, *recalled) if isinstance(one, RecordReturns)]
    assert [(one.node, one.thawed, one.recalled) for one in records] == [("lab1", 1, 0), ("lab1", 1, 1)]
    again = Ledger(policy=grid.state.policy)
    again.restore([], [], [facts("lab1")], BEGAN, returns={"lab1": (1, 1), "gone": (7, 7)})
    assert (again.state.nodes["lab1"].thawed, again.state.nodes["lab1"].recalled) == (1, 1)
    assert [*again.state.nodes] == ["lab1"]


@pytest.mark.parametrize("recalled", [True, False], ids=["recalled", "cancelled"])
def test_a_job_that_is_thawed_to_end_does_not_go_on(recalled: bool) -> None:
    grid = Grid()
    told = Suspended(allocation="j-1.1", why="ann is back", lasted=1.0, in_all=1.0)
    step(grid.ledger, MessageReceived("lab1", told), BEGAN)
    if recalled:
        step(grid.ledger, MessageReceived("lab1", Recalled(allocation="j-1.1", why="ann is back", grace=1.0)), BEGAN)
    else:
        step(grid.ledger, CancelRequested(3, ("j-1",), "by ann"), BEGAN)
    step(grid.ledger, MessageReceived("lab1", replace(told, why="")), BEGAN)
    one = grid.state.jobs["j-1"]
    assert one.active.suspended is None and not any("goes on" in each.text for each in one.story)
    assert (grid.state.nodes["lab1"].thawed, grid.state.nodes["lab1"].recalled) == (0, int(recalled))


def test_habits_change_so_half_of_many_returns_are_forgotten() -> None:
    grid = Grid()
    node = grid.state.nodes["lab1"]
    node.thawed, node.recalled = RETURNS - 1, 0
    freezes(grid, 1)
    assert (node.thawed, node.recalled) == (RETURNS, 0)
    step(grid.ledger, MessageReceived("lab1", Recalled(allocation="j-1.1", why="ann is back", grace=1.0)), BEGAN)
    assert (node.thawed, node.recalled) == (RETURNS // 2, 1)


def test_one_thaw_does_not_outweigh_what_nobody_knows_yet() -> None:
    grid = Grid()
    freezes(grid, 1)
    assert stops(grid.look())


def test_only_what_an_owner_does_counts_as_their_return() -> None:
    for parts in ({"by_holder": True}, {"closing": True}):
        grid = Grid()
        freezes(grid, 3, by_holder=True)
        told = Recalled(allocation="j-1.1", why="the holder wants its cores", grace=1.0, **parts)
        step(grid.ledger, MessageReceived("lab1", told), BEGAN)
        assert (grid.state.nodes["lab1"].thawed, grid.state.nodes["lab1"].recalled) == (0, 0)
    grid = Grid()
    for _ in range(2):  # it is told again after a reconnect
        step(grid.ledger, MessageReceived("lab1", Recalled(allocation="j-1.1", why="ann is back", grace=1.0)), BEGAN)
    assert (grid.state.nodes["lab1"].thawed, grid.state.nodes["lab1"].recalled) == (0, 1)


def test_a_frozen_job_and_one_whose_node_is_not_forecast_stay() -> None:
    grid = Grid()
    grid.state.jobs["j-1"].active.suspended = Suspension(BEGAN + 500.0, "ann is back")
    assert not stops(grid.look())
    grid = Grid()
    step(grid.ledger, ForecastsReported({"lab1": None}), BEGAN)
    assert not stops(grid.look())


def test_a_job_on_all_cores_leaves_an_owner_who_uses_some_of_them_for_one_who_does_not() -> None:
    """And goes to no other such owner."""
    for peak, moved in ((0.0, 1), (0.3, 0)):
        grid = Grid(request=Request(Resources(cpu=4000)))
        known = {"lab1": replace(forecast(0.99), peak=0.3), "lab2": replace(forecast(0.95), peak=peak)}
        step(grid.ledger, ForecastsReported({**known}), BEGAN)
        assert len(stops(grid.look())) == moved
    half = Grid()  # it has two of four cores
    step(half.ledger, ForecastsReported({"lab1": replace(forecast(0.99), peak=0.3)}), BEGAN)
    assert not stops(half.look())


def test_without_a_node_that_is_known_to_stay_idle_it_stays() -> None:
    for likely in (0.05, 0.7):
        grid = Grid()
        grid.expect(lab2=likely)
        assert not stops(grid.look())
    grid = Grid()
    step(grid.ledger, ForecastsReported({"lab2": None}), BEGAN)
    assert not stops(grid.look())


def test_it_does_not_go_back_while_there_is_another_node_and_does_if_there_is_none() -> None:
    grid = Grid(request=replace(TWO, nodes=("lab1",)))
    grid.look()
    grid.ends()
    assert grid.state.jobs["j-1"].node == "lab2", "also where it was named"
    grid = Grid()
    grid.look()
    step(grid.ledger, JobsSubmitted(2, (job("j-2", replace(TWO, resources=Resources(cpu=4000))),)), BEGAN + 605.0)
    assert grid.state.jobs["j-2"].node == "lab2"
    grid.ends()
    assert grid.state.jobs["j-1"].node == "lab1"


def test_it_is_protected_longer_with_each_time() -> None:
    grid = Grid()
    grid.state.jobs["j-1"].evicted = 2
    (one,) = stays(grid.state, grid.state.policy.balancing.values, BEGAN + 600.0)
    assert one.protected == BEGAN + 4 * 300.0
    assert not stops(grid.look()) and stops(grid.look(BEGAN + 1201.0))


def test_the_work_that_is_lost_counts_against_the_budget_of_preemption() -> None:
    grid = Grid(preempting=Preempting(badput_budget=2000.0))
    grid.state.preempting.lose(900.0, BEGAN)
    assert not stops(grid.look()), "1,200 core-seconds are more than 1,100"
    grid = Grid(preempting=Preempting(badput_budget=2000.0))
    assert stops(grid.look())
    assert grid.state.preempting.spent == [(BEGAN + 600.0, 1200.0)]


def test_a_question_and_a_replay_say_the_same() -> None:
    grid = Grid()
    again = resumed(grid.ledger)
    asked = passes.proposed(grid.state, passes.NO_RAY, BEGAN + 600.0)
    grid.look()
    step(again, DemandReported(None), BEGAN + 600.0)
    last = grid.state.balancing.last
    assert last is not None and last.moves == asked.moves
    assert checkpoint.encode(checkpoint.take(again)) == checkpoint.encode(checkpoint.take(grid.ledger))
