"""The commands of the table: the shell on a node performs each of them, and so does the simulated one."""

import ast
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from distributed_grid.agent import runtime
from distributed_grid.agent.core.commands import Command, Event
from distributed_grid.agent.core.table import Table
from distributed_grid.simulator import agent as simulated


def matched(tree: ast.AST) -> set[str]:
    """The classes that are matched somewhere."""
    cases = (one.cls for one in ast.walk(tree) if isinstance(one, ast.MatchClass))
    return {one.id for one in cases if isinstance(one, ast.Name)}


@pytest.mark.parametrize("shell", [runtime, simulated])
def test_a_shell_performs_every_command(shell: ModuleType) -> None:
    tree = ast.parse(Path(str(shell.__file__)).read_text())
    assert {one.__name__ for one in get_args(Command)} <= matched(tree)


def test_the_table_handles_every_event() -> None:
    tree = ast.parse(Path(str(Table.handle.__code__.co_filename)).read_text())
    assert {one.__name__ for one in get_args(Event)} <= matched(tree)
