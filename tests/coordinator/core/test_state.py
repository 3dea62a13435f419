"""What has a state has one mutator, which goes by a table."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.coordinator.core import state
from distributed_grid.coordinator.core.commands import NodeDown, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import MOVES, NODE_MOVES
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.nodes import NodeState
from tests.coordinator.core.scene import facts, join, step

CORE = Path(state.__file__).parent
OTHERS = {"line", "self"}
"""The lines of the queue have a reason as well, which is the queue's."""


def assigned(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """What is assigned to which attribute of what, and in which line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.value.id if isinstance(node.value, ast.Name) else "?", node.attr, node.lineno


@functools.cache
def stores() -> list[tuple[Path, str, str, int]]:
    """All that the core assigns to attributes, by the file in which it stands."""
    return [(path, *one) for path in sorted(CORE.rglob("*.py")) for one in assigned(ast.parse(path.read_text()))]


def test_only_the_state_says_what_state_a_thing_is_in_and_why_a_job_waits() -> None:
    found = [
        f"{path.relative_to(CORE)}:{line}: {of}.{name}"
        for path, of, name, line in stores()
        if name in ("state", "reason") and path.name != "state.py" and of not in OTHERS
    ]
    assert not found, found


def test_only_the_state_puts_a_job_in_another_phase() -> None:
    found = [
        f"{path.relative_to(CORE)}:{line}: {of}.{name}"
        for path, of, name, line in stores()
        if name == "phase" and path.name not in ("state.py", "checkpoint.py")  # a fork has copies of its own
    ]
    assert not found, found


def test_every_state_has_its_moves_and_to_stay_is_none() -> None:
    assert set(MOVES) == set(State) and set(NODE_MOVES) == set(NodeState)
    assert not any(one in targets for moves in (MOVES, NODE_MOVES) for one, targets in moves.items())


def test_a_silent_node_gets_worse_and_only_its_agent_brings_it_back() -> None:
    ledger = Ledger()
    join(ledger, facts("n1"))
    node = ledger.state.nodes["n1"]
    step(ledger, NodeDown("n1", node.session), 1.0)
    states = [node.state]
    for now in (12.0, 13.0, 100.0):
        step(ledger, Tick(), now)
        states.append(node.state)
    assert states == [NodeState.SUSPECT, NodeState.DISCONNECTED, NodeState.DISCONNECTED, NodeState.LOST]
    for to in (NodeState.SUSPECT, NodeState.DISCONNECTED):
        with pytest.raises(AssertionError, match=f"n1 cannot go from lost to {to.value}"):
            ledger.state.move_node(node, to)
    states = [node.state]
    join(ledger, facts("n1"), 101.0)
    assert [*states, node.state] == [NodeState.LOST, NodeState.UP]
