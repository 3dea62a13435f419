"""Leaving before the owner comes, as a pure decision."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from distributed_grid.coordinator.core.rebalancing.leaving import (
    leave,
    loss_by_leaving,
    loss_by_staying,
    obstacle,
    recalled,
)
from distributed_grid.coordinator.core.rebalancing.view import MARGIN, Moved, Stay, View
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from distributed_grid.protocol.sharing.policies import POLICIES, PolicyName
from tests.coordinator.core.rebalancing.world import LOOK
from tests.depth import tries

VALUES = POLICIES[PolicyName.PREDICTIVE]
NOW = 10_000.0


def stay(job: str = "j-1", source: str = "lab1", target: str = "lab2", **parts: Any) -> Stay:
    """A job that has run on two cores for ten minutes, whose owner is all but sure to come within half an hour."""
    usual = {"ran": 600.0, "within": 1800.0, "returns": 0.95, "soon": 0.95, "looked": 1800.0, "work": 2.0}
    usual |= {"target_returns": 0.05, "target_soon": 0.05}
    amount = Resources(2 * MILLI)
    return Stay(job=job, source=source, target=target, resources=amount, **(usual | parts))


def moves(
    *stays: Stay, badput: float = 1e9, moved: dict[str, Moved] | None = None, made: tuple[Move, ...] = ()
) -> list[Move]:
    found = [*made]
    leave(View(look=LOOK, stays=stays, badput_left=badput, moved=moved or {}), VALUES, NOW, found)
    return found[len(made) :]


def why(one: Stay, **moved: Moved) -> str:
    return obstacle(one, moved, VALUES, NOW)


def test_who_would_lose_more_by_staying_leaves_with_the_numbers_told() -> None:
    (move,) = moves(stay())
    assert (move.kind, move.job, move.source, move.target) == (MoveKind.LEAVE, "j-1", "lab1", "lab2")
    assert (move.gain, move.cost) == (0.95 * 1500 * 2, (600 + 10 + 0.05 * 900) * 2)
    assert move.reason == (
        "the owner of lab1 may be back within 30m00s (95%; 95% within 30m00s), that of lab2 less likely (5%; 5%); j-1"
        " has run for 10m00s and may be run again"
    )
    assert move.undone_by


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"ran": 7200.0}, "it would lose 14510 core-seconds by that, and 15390 by staying"),
        ({"returns": 0.55}, "it would lose"),
        ({"target_soon": 0.25}, "lab2, where it would go, stays idle with 75% only (80% wanted)"),
        ({"soon": 0.15}, "lab1 stays idle with 85% for as long as is looked ahead"),
        ({"protected": NOW + 90.0}, "it is protected for 1m30s more (min_hold)"),
    ],
)
def test_it_stays_where_that_is_better_and_says_so(parts: dict[str, Any], said: str) -> None:
    assert why(stay(**parts)).startswith(said) and not moves(stay(**parts))


def test_an_owner_who_mostly_returns_for_minutes_is_no_reason_to_lose_what_was_done() -> None:
    assert why(stay(recalls=0.2)).startswith("it would lose")
    (move,) = moves(stay(recalls=0.8))
    assert move.reason.startswith("the owner of lab1, of whose returns 80% end jobs there, may be back within 30m00s")
    assert move.gain == pytest.approx((1 - 0.05**0.8) * 1500 * 2, abs=0.01) and move.gain < 0.95 * 1500 * 2


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_recall_is_never_likelier_than_a_return_and_the_likelier_the_more_returns_end_in_one(
    returns: float, one: float, other: float
) -> None:
    low, high = recalled(returns, min(one, other)), recalled(returns, max(one, other))
    assert 0.0 <= low <= high + 1e-12 and high <= returns + 1e-9
    assert recalled(returns, 1.0) == pytest.approx(returns) and recalled(returns, 0.0) == 0.0
    rate = max(one, 0.001)  # of fewer than the digits that count nothing is left
    assert recalled(returns, rate) == pytest.approx(1.0 - (1.0 - returns) ** rate, abs=1e-5)


def test_without_another_node_it_stays() -> None:
    assert why(stay(target="")) == "no other node has room and is known to stay idle" and not moves(stay(target=""))


def test_a_node_moves_once_a_cooldown_and_nobody_goes_to_where_a_job_just_left() -> None:
    lent, left = (Moved(NOW - 100.0, kind, "head") for kind in (MoveKind.LEND, MoveKind.LEAVE))
    assert why(stay(), lab1=lent) == "lab1 made a move 100 s ago (cooldown)"
    assert why(stay(), lab1=replace(lent, at=NOW - 120.0)) == ""
    assert why(stay(), lab2=left) == "a job left lab2 100 s ago (min_hold)" and why(stay(), lab2=lent) == ""
    assert why(stay(), lab2=replace(left, at=NOW - 300.0)) == ""


def test_a_pass_makes_as_many_moves_as_the_policy_says_and_one_a_node() -> None:
    many = [stay(f"j-{at}", f"lab{at}", f"free{at}", ran=100.0 * at) for at in range(1, 5)]
    assert [one.job for one in moves(*many)] == ["j-1", "j-2"], "those that gain most"
    assert [one.job for one in moves(*many, made=tuple(moves(many[0])))] == ["j-2"]
    assert [one.job for one in moves(stay("a"), stay("b"), stay("c", "lab3", "lab2"))] == ["a"]


def test_no_more_work_is_lost_than_the_badput_budget_has_left() -> None:
    assert [one.job for one in moves(stay("a", "x", "y", ran=900.0), stay("b", ran=60.0), badput=200.0)] == ["b"]
    assert not moves(stay(), badput=0.0)


STAYS = st.builds(
    stay,
    job=st.sampled_from(["a", "b", "c", "d"]),
    source=st.sampled_from(["n1", "n2", "n3"]),
    target=st.sampled_from(["", "n1", "n2", "n3"]),
    ran=st.floats(0, 1e5),
    within=st.floats(0, 1800),
    returns=st.floats(0, 1),
    soon=st.floats(0, 1),
    target_returns=st.floats(0, 1),
    target_soon=st.floats(0, 1),
    work=st.floats(0.01, 64),
    protected=st.sampled_from([0.0, NOW + 1.0]),
)


@settings(max_examples=tries(200, 60), deadline=None)
@given(st.lists(STAYS, max_size=8), st.floats(0, 1e6))
def test_every_move_gains_is_explained_within_budget_and_no_node_gives_and_takes(
    stays: list[Stay], badput: float
) -> None:
    by_job = {one.job: one for one in stays if one.source != one.target}
    found = moves(*by_job.values(), badput=badput)
    assert len(found) <= VALUES.moves
    assert sum(by_job[one.job].ran * by_job[one.job].work for one in found) <= badput
    for move in found:
        one = by_job[move.job]
        assert loss_by_staying(one) > MARGIN * loss_by_leaving(one) and one.protected <= NOW
        assert 1.0 - one.target_soon >= VALUES.confidence > 1.0 - one.soon
        assert move.reason and move.undone_by and move.gain > move.cost
    ends = [name for one in found for name in (one.source, one.target)]
    assert len(ends) == len(set(ends)), "no circle of nodes, nor one that takes what another gives"
