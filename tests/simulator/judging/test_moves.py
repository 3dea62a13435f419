"""A move that is not as it must be is a violation, with the reason; each of these worlds is right but for one thing."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.operator import Receipt, Victim
from distributed_grid.protocol.resources import MILLI, Grant, Resources
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


def judge(*known: Receipt, nodes: Any = NODES, **asked: Any) -> None:
    """The last one is stored now."""
    plan = job(request=replace(Request(ONE), **asked))
    Moves(Balancing(policy=PolicyName.PREDICTIVE), 100.0).stored(known[-1], known, plan, nodes)


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


def test_a_member_of_a_gang_is_never_moved_by_itself() -> None:
    victim = Victim("j0x1_0.1", "j0x1_0", "u", Priority.MEDIUM, GRANT, 10.0, 10.0)
    with pytest.raises(Violation, match="a member of a gang is moved by itself"):
        judge(receipt(job="j0x1_0", victims=(victim,)), gang=2)
