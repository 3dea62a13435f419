"""Passes while the grid changes: nodes that are none, one, renamed or measured in impossible ways, and orders that come
while a boost is on its way."""

import math
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    BalancingRequested,
    DemandReported,
    HeartbeatReceived,
    MessageReceived,
    NodeDown,
)
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.rebalancing import passes
from distributed_grid.coordinator.core.rebalancing.view import Waiting
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Exited, Inventory, Started
from distributed_grid.protocol.nodes import Known, Sample
from distributed_grid.protocol.resources import GIB
from distributed_grid.protocol.sharing.moves import Move, MoveKind, Pass
from distributed_grid.protocol.sharing.policies import LONGEST_BAR, OffloadingMode, PolicyName
from tests.coordinator.core.rebalancing.test_passes import EVERY, FOUR, LOOK, Grid, stops
from tests.coordinator.core.scene import step
from tests.depth import tries


def last(grid: Grid) -> Pass:
    found = grid.state.balancing.last
    assert found is not None
    return found


def live(grid: Grid) -> list[Job]:
    """The boosts that are lent, and not ending."""
    return [one for one in grid.boosts() if one.state in (State.STARTING, State.RUNNING)]


def look(grid: Grid, told: dict[str, Sample], *waiting: Waiting, idle: dict[str, float] | None = None) -> None:
    """A pass, before which these nodes alone are heard, with these samples."""
    grid.now += EVERY
    for name, sample in told.items():
        step(grid.ledger, HeartbeatReceived(name, sample), grid.now)
    shown = replace(LOOK, waiting=waiting, idle=idle or {})
    step(grid.ledger, DemandReported(shown, (f"j-{grid.now:012.0f}",)), grid.now)


def quiet(grid: Grid, **parts: Any) -> Sample:
    """A sample of the next pass of a machine that nobody uses, but for these parts."""
    return Sample(**({"at": grid.now + EVERY, "memory_total": 16 * GIB} | parts))


# --- few nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PolicyName)
def test_without_a_node_what_waits_is_told_and_nothing_lent(policy: str) -> None:
    grid = Grid(policy=policy)
    for _ in range(40):
        grid.look(FOUR)
    assert not grid.boosts() and not last(grid).moves
    assert [(one.asks, one.why) for one in last(grid).unserved] == [("4 CPU", "no node lends by itself now")]


@pytest.mark.parametrize("policy", PolicyName)
def test_the_only_node_is_the_head_and_lends_itself_nothing(policy: str) -> None:
    grid = Grid("head", policy=policy)
    for _ in range(40):
        grid.look(FOUR)
    assert not grid.boosts()
    assert "it is a node of this Ray cluster itself" in last(grid).unserved[0].why


# --- a node that is renamed -------------------------------------------------------------------------------------------


def test_a_lender_that_is_renamed_is_another_node_and_what_it_had_lent_is_ended_under_both_names() -> None:
    """The agent has its records with the new name: it is told to end what the old one lent, which is lost with the old
    name. No bar of the old name holds for the new one, and what waits again gets one boost."""
    grid = Grid("old", policy="aggressive")
    boost = grid.lend()
    step(grid.ledger, NodeDown("old", "session-old"), grid.now)
    grid.add("new")
    known = Inventory(known=(Known(boost.allocation, State.RUNNING),))
    assert len(stops(step(grid.ledger, MessageReceived("new", known), grid.now))) == 1
    made: list[Move] = []
    while not made:  # Ray has lost the raylet, and the task waits again
        look(grid, {"new": quiet(grid)}, FOUR)
        made += last(grid).moves
        assert grid.now < 1300.0
    assert [(one.kind, one.source) for one in made] == [(MoveKind.LEND, "new")]
    (second,) = (one for one in live(grid) if one.id != boost.id)
    grid.joins(second)
    until = grid.now + LONGEST_BAR + 120.0
    while grid.now < until:
        look(grid, {"new": quiet(grid)}, idle={second.id: 0.0})
        assert not last(grid).moves
    assert boost.state is State.ENDED and live(grid) == [second]
    assert not grid.state.balancing.moved, "what moved long ago is forgotten by both names"
    assert passes.lender_view(grid.state, grid.state.nodes["old"], grid.now).why == "it is lost"


# --- impossible samples -----------------------------------------------------------------------------------------------

IMPOSSIBLE: list[dict[str, Any]] = [
    {"foreign_cpu": math.nan},
    {"foreign_cpu": math.inf},
    {"foreign_cpu": 1e300},
    {"memory_foreign": 1 << 62},
    {"pressure": {"cpu": math.nan}},
    {"pressure": {"memory": math.inf}},
]


@pytest.mark.parametrize("parts", IMPOSSIBLE, ids=str)
def test_a_node_whose_measurements_are_impossible_lends_nothing(parts: dict[str, Any]) -> None:
    """Numbers that are none do not come through the wire; the decision does not rely on that."""
    grid = Grid("odd", "lab1", policy="aggressive")
    grid.state.nodes["odd"].facts = replace(grid.state.nodes["odd"].facts, priority=9.0)
    for _ in range(4):
        look(grid, {"odd": quiet(grid, **parts), "lab1": quiet(grid)}, FOUR)
    (boost,) = grid.boosts()
    assert boost.node == "lab1"
    assert "pressure is 1.00 (low mark 0.3)" in passes.lender_view(grid.state, grid.state.nodes["odd"], grid.now).why


FLOATS = st.floats()


@settings(max_examples=tries(50, 20), deadline=None)
@example([(0.0, 0.0, 0.0, 0, 0.0)] * 4 + [(math.inf, 0.0, 0.0, 0, 0.0)])
@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS, st.integers(0, 1 << 63), FLOATS), min_size=4, max_size=8))
def test_whatever_a_node_tells_the_ledger_holds_and_moves_have_costs(told: list[tuple[Any, ...]]) -> None:
    grid = Grid("odd", "lab1", policy="aggressive")
    for at, foreign, own, memory, waited in told:
        waited_for = {"cpu": waited, "memory": waited}
        odd = quiet(grid, at=at, foreign_cpu=foreign, own_cpu=own, memory_foreign=memory, pressure=waited_for)
        look(grid, {"odd": odd, "lab1": quiet(grid)}, FOUR)
    assert len(live(grid)) <= 1
    assert all(math.isfinite(one.gain) and math.isfinite(one.cost) for one in grid.state.balancing.recent)


# --- orders in between ------------------------------------------------------------------------------------------------


def order(grid: Grid, mode: OffloadingMode | None = None, policy: PolicyName | None = None) -> list[str]:
    """An operator sets it; why boosts are told to end."""
    return stops(step(grid.ledger, BalancingRequested(9, mode=mode, policy=policy, by="op"), grid.now))


@pytest.mark.parametrize("mode", [OffloadingMode.SHARE_AND_OFFLOAD, OffloadingMode.OFFLOAD_ONLY])
@pytest.mark.parametrize("told", ["launch", "start", "join"])
def test_a_mode_that_is_set_while_a_boost_is_on_its_way_takes_it_back_and_no_pass_lends_again(
    told: str, mode: OffloadingMode
) -> None:
    grid = Grid("lab1", "lab2", policy="aggressive")
    while not grid.boosts():
        grid.look(FOUR)
    (boost,) = grid.boosts()
    if told == "start":
        step(grid.ledger, MessageReceived(boost.node, Started(allocation=boost.allocation, pid=1)), grid.now)
    elif told == "join":
        grid.joins(boost)
    assert order(grid, mode) == [f"given back: the grid's mode is {mode} now"]
    for _ in range(10):
        assert not stops(grid.look(FOUR)), "it is told once"
    assert grid.boosts() == [boost] and not live(grid) and not last(grid).applied
    ended = Outcome(signal=15, cause=Cause.CANCELLED)
    step(grid.ledger, MessageReceived(boost.node, Exited(boost.allocation, ended, True)), grid.now)
    assert not grid.boosts() and not grid.state.balancing.lent


def test_what_ray_told_before_an_order_is_decided_by_the_order() -> None:
    """Ray is asked, an operator sets the mode, and then Ray's answer comes."""
    grid = Grid("lab1", policy="aggressive")
    grid.look(FOUR)
    order(grid, OffloadingMode.SHARE_AND_OFFLOAD)
    grid.look(FOUR)
    assert [(one.kind, one.source) for one in last(grid).moves] == [(MoveKind.LEND, "lab1")]
    assert not last(grid).applied and not grid.boosts()
    assert not grid.state.balancing.moved, "what is only proposed bars nobody"


def test_a_policy_that_is_set_while_a_boost_is_on_its_way_lends_no_other_and_gives_it_back_by_its_own_numbers() -> None:
    grid = Grid("lab1", "lab2", policy="aggressive")
    while not grid.boosts():
        grid.look(FOUR)
    (boost,) = grid.boosts()
    assert order(grid, policy=PolicyName.CONSERVATIVE) == []
    grid.look(FOUR)
    grid.joins(boost)
    joined = grid.now
    while not (why := stops(grid.look(idle={boost.id: 300.0}))):
        assert grid.boosts() == [boost] and grid.now < joined + 2000.0
    assert grid.now - joined == 900.0, "conservative: a boost lasts a quarter of an hour"
    assert why == ["given back: Ray has used nothing of it for 5m00s (sustained: 300 s)"]


@settings(max_examples=tries(50, 20), deadline=None)
@given(st.integers(0, 1 << 30))
def test_whatever_is_ordered_between_passes_one_task_has_one_boost_and_no_other_mode_any(seed: int) -> None:
    chance, grid = random.Random(seed), Grid("lab1", "lab2")
    for _ in range(60):
        match chance.randrange(4):
            case 0:
                order(grid, chance.choice(list(OffloadingMode)), chance.choice(list(PolicyName)))
            case 1:
                for boost in live(grid):
                    if not boost.begun:
                        grid.joins(boost)
            case 2:
                for boost in grid.boosts():
                    if boost.state is State.STOPPING:
                        ended = Outcome(signal=15, cause=Cause.CANCELLED)
                        step(grid.ledger, MessageReceived(boost.node, Exited(boost.allocation, ended, True)), grid.now)
            case _:
                works = [one.id for one in live(grid) if one.begun]
                grid.look(*(() if works else (FOUR,)), idle=dict.fromkeys(works, chance.choice((0.0, 1000.0))))
        assert len(live(grid)) <= 1
        if grid.state.policy.balancing.mode is not OffloadingMode.DYNAMIC_BALANCING:
            assert not live(grid)
