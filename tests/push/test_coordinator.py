"""What an operator asks the coordinator while a node is added, in messages."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import (
    Access,
    DrainNodes,
    GetStatus,
    ListAccess,
    MakeToken,
    MemberView,
    Status,
    TokenMade,
    Withdraw,
)
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.push.coordinator import Coordinator, Invited
from tests.coordinator.core.scene import facts

NODE = NodeView(facts=facts("n1"), state=NodeState.UP)
STATUS = Status(
    id=1, grid="g", software="1", epoch=1, up_for=1.0, nodes=(NODE,), counts={}, ended={}, at=1.0
)  # fmt: skip


class Refused(GridError):
    code = "no-authority"


def coordinator(asked: list[Any], access: Access | GridError) -> Coordinator:
    """It answers from these values; `asked` keeps the questions."""

    def ask(make: Callable[[int], Any]) -> Any:
        asked.append(message := make(1))
        match message:
            case GetStatus():
                return STATUS
            case ListAccess():
                if isinstance(access, GridError):
                    raise access
                return access
            case MakeToken():
                return TokenMade(id=1, token="grid1.pin.t1.secret")
        return None

    return Coordinator(ask, lambda: "ann", "m:1")


def member(expires: float, revoked: float = 0.0) -> MemberView:
    return MemberView(role=Role.AGENT, name="n1", serial="1", issued=0.0, expires=expires, revoked=revoked)


@pytest.mark.parametrize(
    ("access", "certified"),
    [
        (Access(id=1, members=(member(time.time() + 999),)), True),
        (Access(id=1, members=(member(time.time() + 999, revoked=1.0),)), False),
        (Access(id=1, members=(member(1.0),)), False),
        (Refused("there is no authority"), False),
    ],
)
async def test_a_node_is_known_with_its_certificate(access: Access | GridError, certified: bool) -> None:
    known = await coordinator([], access).known("n1")
    assert (known.grid, known.there, known.up, known.certified) == ("g", True, True, certified)
    assert not (await coordinator([], access).known("other")).there


async def test_another_refusal_is_not_taken_for_a_grid_without_authority() -> None:
    with pytest.raises(GridError, match="busy"):
        await coordinator([], GridError("busy")).known("n1")


async def test_an_invitation_has_the_address_and_certificates_are_revoked_only_if_there_are_any() -> None:
    asked: list[Any] = []
    none = coordinator(asked, Access(id=1))
    assert await none.invite("n1", {"a": "1"}) == Invited("t1", "grid://m:1/grid1.pin.t1.secret")
    await none.revoke("n1")
    await none.drain("n1", now=True)
    assert not [one for one in asked if isinstance(one, Withdraw)]
    assert [one.deadline for one in asked if isinstance(one, DrainNodes)] == [0.0]
