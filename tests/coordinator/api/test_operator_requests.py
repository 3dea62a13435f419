"""An order for nodes is checked before it gets a token, and becomes one event of the ledger."""

import math
from typing import Any

import pytest

from distributed_grid.coordinator.api.operator_requests import NODES_MOST, AccessRequests, NoAuthority, order
from distributed_grid.coordinator.core.commands import (
    DrainRequested,
    LabelsRequested,
    RemovalRequested,
    SettingsRequested,
    UndrainRequested,
)
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import DrainNodes, ForgetNodes, LabelNodes, ListAccess, SetNodes, UndrainNodes
from distributed_grid.protocol.nodes import REASON_CHARS, Lending, OwnerPolicy


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (DrainNodes(1, ("a", "b"), "x" * 9_999, 60.0), DrainRequested(7, ("a", "b"), "ada", "x" * REASON_CHARS, 60.0)),
        (UndrainNodes(1, ("a",)), UndrainRequested(7, ("a",), "ada")),
        (LabelNodes(1, ("a",), {"room": "b"}), LabelsRequested(7, ("a",), {"room": "b"}, "ada")),
        (
            SetNodes(1, ("a",), Lending(max_share_cpu=2.0), ("can_share",)),
            SettingsRequested(7, ("a",), Lending(max_share_cpu=2.0), ("can_share",), "ada"),
        ),
        (ForgetNodes(1, ("a",)), RemovalRequested(7, ("a",), "ada")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_order_is_an_event_with_the_name_of_the_operator(message: Any, event: Any) -> None:
    assert order(message, "ada", lambda: 7) == event


@pytest.mark.parametrize(
    "message",
    [
        DrainNodes(1, ()),
        UndrainNodes(1, ("a",) * (NODES_MOST + 1)),
        DrainNodes(1, ("a",), "", math.inf),
        LabelNodes(1, ("a",), {"not a label": "x"}),
        SetNodes(1, ("a",)),
        SetNodes(1, ("a",), Lending(owner_policy=OwnerPolicy.CONTINUE)),
        SetNodes(1, ("a",), unset=("priority",)),
    ],
    ids=["no node", "too many", "no deadline", "no label", "nothing set", "not by orders", "not unset by orders"],
)
def test_an_order_that_cannot_be_draws_no_token(message: Any) -> None:
    drawn: list[int] = []
    with pytest.raises(BadValue):
        order(message, "ada", lambda: drawn.append(1) or 1)  # type: ignore[func-returns-value]
    assert drawn == []


def test_a_grid_without_an_authority_gives_nobody_access_and_cuts_nobody() -> None:
    cut: list[Any] = []
    requests = AccessRequests(None, lambda *who: cut.append(who) or 0, None)  # type: ignore[func-returns-value]
    with pytest.raises(NoAuthority) as refused:
        requests.answer("ada", ListAccess(1))
    assert refused.value.code == "no-authority" and cut == []
