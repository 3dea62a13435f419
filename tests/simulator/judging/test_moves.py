"""A move that is not as it must be is a violation, with the reason; each of these worlds is right but for one thing."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.operator import Receipt, Victim
from distributed_grid.protocol.resources import MILLI, Grant, Resources
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from distributed_grid.protocol.sharing.policies import POLICIES, Balancing, PolicyName
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.moves import Moves
from tests.simulator.plans import job, node

ONE = Resources(MILLI)
GRANT = Grant((0,), 0)
VALUES = POLICIES[PolicyName.PREDICTIVE]
NODES = {"n0": node(0, stays=0.1), "n1": node(1, stays=0.9)}


def receipt(number: int = 1, at: float = 5000.0, lost: float = 10.0, **other: Any) -> Receipt:
    victim = Victim(f"j0x1.{number}", "j0x1", "u", Priority.MEDIUM, GRANT, lost, lost)
    known: dict[str, Any] = {
        "id": f"j0x1.p{number}", "job": "j0x1", "user": "u", "priority": Priority.MEDIUM, "wanted": ONE, "node": "n0",
        "grant": GRANT, "at": at, "victims": (victim,), "lost": lost, "why": "", "result": "moved", "closed": at,
    }  # fmt: skip
    return Receipt(**(known | other))


def judge(*known: Receipt, nodes: Any = NODES, stayed: tuple[str, ...] = (), **asked: Any) -> None:
    """The last one is stored now."""
    plan = job(request=replace(Request(ONE), **asked))
    Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0).stored(known[-1], known, plan, nodes, stayed)


def test_a_job_may_leave_a_node_that_does_not_stay_idle_for_one_that_does() -> None:
    judge(receipt())
    judge(receipt(1, 1000.0), receipt(2, 1000.0 + 2 * VALUES.min_hold))


@pytest.mark.parametrize(
    ("known", "asked", "nodes", "why"),
    [
        ([receipt(victims=())], {}, NODES, "j0x1.p1 moves"),
        ([receipt()], {"requeue": False}, NODES, "may not be run again at another's will"),
        ([receipt()], {"immediate": True}, NODES, "may not be run again at another's will"),
        ([receipt(node="n1")], {}, NODES, "it leaves n1, which stays idle: 0.9"),
        ([receipt()], {}, {"n0": node(0)}, "it leaves n0, which stays idle: None"),
        ([receipt()], {}, NODES | {"n1": node(1, stays=0.5)}, "no other node stays idle for longer"),
        ([receipt(1, 1000.0), receipt(2, 1599.0)], {}, NODES, "for the 2th time within its min-hold of 600 s"),
        ([receipt(1, 1000.0, 60.0), receipt(2, 3000.0, 60.0)], {}, NODES, "120.0 core-seconds are lost in this hour"),
    ],
)  # fmt: skip
def test_any_other_move_is_a_violation(known: list[Receipt], asked: dict[str, Any], nodes: Any, why: str) -> None:
    with pytest.raises(Violation, match=why):
        judge(*known, nodes=nodes, **asked)


def test_a_job_that_ended_before_it_left_was_not_moved() -> None:
    judge(receipt(1, 1000.0), receipt(2, 1599.0), stayed=("j0x1.1",))


def test_a_member_of_a_gang_is_never_moved_by_itself() -> None:
    victim = Victim("j0x1_0.1", "j0x1_0", "u", Priority.MEDIUM, GRANT, 10.0, 10.0)
    with pytest.raises(Violation, match="a member of a gang is moved by itself"):
        judge(receipt(job="j0x1_0", victims=(victim,)), gang=2)


def lend(at: float, **other: Any) -> Move:
    known: dict[str, Any] = {
        "kind": MoveKind.LEND, "source": "n0", "target": "n9", "resources": ONE, "boost": f"j{at:.0f}x1",
        "reason": "1 task waits", "undone_by": "nothing", "gain": 10.0, "cost": 1.0, "at": at,
    }  # fmt: skip
    return Move(**(known | other))


def back(at: float, of: Move, why: str = "idle for 60 s") -> Move:
    return replace(of, kind=MoveKind.GIVE_BACK, at=at, reason=why, cost=10.0)


FIRST = lend(1000.0)
LATER = 1000.0 + VALUES.min_hold


def test_boosts_are_lent_and_given_back_in_time() -> None:
    of = Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0)
    for move in (FIRST, back(LATER, FIRST), lend(LATER + VALUES.min_hold)):
        of.made((move,), "c1", move.at)


def test_a_boost_of_a_killed_coordinator_is_held_from_when_it_was_lent() -> None:
    of = Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0)
    of.restored({FIRST.boost: FIRST.at})
    early = back(LATER - 1.0, FIRST)
    with pytest.raises(Violation, match="s after it was lent"):
        of.made((early,), "c2", early.at)
    of.made((back(LATER, FIRST),), "c2", LATER)


@pytest.mark.parametrize(
    ("moves", "why"),
    [
        ([lend(1000.0, reason="because")], "is not explained"),
        ([lend(1000.0, undone_by="")], "is not explained"),
        ([lend(1000.0, cost=7.0)], "gains 10 and costs 7"),
        ([FIRST, lend(1000.0 + VALUES.cooldown - 1)], "comes 119.00 s after lend"),
        ([FIRST, back(LATER - 1, FIRST, "7 s; it gives way")], "comes 299.00 s after it was lent"),
        ([FIRST, back(LATER, FIRST), lend(LATER + 299)], "comes 299.00 s after give-back"),
        ([FIRST, lend(2000.0, source="n9", target="n5")], "n9 lends and borrows"),
    ],
)
def test_any_other_order_of_moves_is_a_violation(moves: list[Move], why: str) -> None:
    of = Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0)
    *before, last = moves
    for move in before:
        of.made((move,), "c1", move.at)
    with pytest.raises(Violation, match=why):
        of.made((last,), "c1", last.at)


def test_a_move_where_nothing_has_changed_for_long_is_a_violation() -> None:
    of = Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0)
    of.seen("the same", 100.0)
    of.seen("the same", 150.0)
    with pytest.raises(Violation, match="nothing has changed for 50 s"):
        of.made((FIRST,), "c1", 150.0)
    of.seen("another", 150.0)
    of.made((lend(1000.0, source="n1"),), "c1", 151.0)


def test_a_job_that_had_to_leave_before_may_leave_again_when_it_is_protected_no_more() -> None:
    leaves = lend(1600.0, kind=MoveKind.LEAVE, job="j0x1", boost="")
    ran = ["j0x1.1", "j0x1.2", "j1x1.1", "j1x1.2", "j1x1.3"]
    of = Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0)
    of.seen("the same", 100.0)
    held = 100.0 + 2 * VALUES.min_hold
    of.made((leaves,), "c1", held + 1.0, ran)
    with pytest.raises(Violation, match="nothing has changed for"):
        of.made((replace(leaves, at=2000.0),), "c1", held + 10.0, ran)


def test_more_moves_than_the_policy_makes_in_a_pass_are_a_violation() -> None:
    of = Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0)
    with pytest.raises(Violation, match="3 moves are made in one pass, 2 may be"):
        of.made(tuple(lend(1000.0, source=f"n{at}") for at in range(3)), "c1", 1000.0)
