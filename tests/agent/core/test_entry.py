"""Every stage of an allocation on its node, and every move between stages, by events alone."""

import ast
from pathlib import Path

import pytest

from distributed_grid.agent.core import table as table_module
from distributed_grid.agent.core.commands import Event, Ready
from distributed_grid.agent.core.entry import (
    ENTRY_MOVES,
    Ended,
    Entry,
    IllegalMove,
    Preparing,
    Running,
    Stage,
    Starting,
    Stopping,
)
from distributed_grid.agent.core.table import Table
from distributed_grid.protocol.messages import Ack, Exited, Stale, Started, Stop
from tests.agent.core.test_table import DONE, launch

STAGES: dict[type[Stage], Stage] = {
    type(one): one for one in (Preparing(launch()), Starting(), Running(1.0, 7), Stopping(), Ended(DONE))
}
WITHDRAW = Stop(allocation="j.1", unless_started=True)
READY, STARTED, STOP = Ready("j.1"), Started(allocation="j.1", pid=7), Stop(allocation="j.1")
EXITED, STALE, ACK = Exited(allocation="j.1", outcome=DONE), Stale(allocation="j.1", reason="x"), Ack(("j.1",))
TO_RUN = (launch(), READY, STARTED)
HOW: dict[tuple[type[Stage] | None, type[Stage] | None], tuple[Event, ...]] = {
    (None, Preparing): (launch(),),
    (None, Starting): (WITHDRAW,),
    (None, Running): (STARTED,),
    (None, Stopping): (STOP,),
    (None, Ended): (EXITED,),
    (Preparing, Starting): (launch(), READY),
    (Preparing, Running): (launch(), STARTED),
    (Preparing, Stopping): (launch(), STOP),
    (Preparing, Ended): (launch(), EXITED),
    (Preparing, None): (launch(), STALE),
    (Starting, Running): TO_RUN,
    (Starting, Stopping): (launch(), READY, STOP),
    (Starting, Ended): (launch(), READY, EXITED),
    (Running, Stopping): (*TO_RUN, STOP),
    (Running, Ended): (*TO_RUN, EXITED),
    (Stopping, Ended): (STOP, EXITED),
    (Ended, None): (EXITED, ACK),
}
"""An event that makes each move, after those that lead there."""
LOST = {(stage, None) for stage in (Starting, Running, Stopping)}
"""The moves that no event makes, but a loss of the launcher's records."""


def at(table: Table) -> type[Stage] | None:
    return type(table.entries["j.1"].stage) if "j.1" in table.entries else None


def test_every_move_of_the_law_is_made_and_no_other_one() -> None:
    assert {*HOW} | LOST == {(one, other) for one, others in ENTRY_MOVES.items() for other in others}
    for (before, after), events in HOW.items():
        table = Table()
        for event in events[:-1]:
            table.handle(event, 1.0)
        assert at(table) is before
        table.handle(events[-1], 1.0)
        assert at(table) is after
    for stage, _ in LOST:
        table = Table()
        table.entries["j.1"] = Entry(STAGES[stage])
        table.lose(())
        assert not table.entries


def test_a_move_that_is_not_in_the_law_is_an_error_and_changes_nothing() -> None:
    for before in (None, *STAGES):
        for after in {None, *STAGES} - ENTRY_MOVES[before] - ({before} if before else set()):
            table = Table()
            if before is not None:
                table.entries["j.1"] = Entry(STAGES[before])
            with pytest.raises(IllegalMove, match="^j.1 cannot go from "):
                table._move("j.1", STAGES[after] if after is not None else None)
            assert at(table) is before
    with pytest.raises(IllegalMove, match="^j.1 cannot go from Ended to Running$"):
        table = Table()
        table.handle(EXITED, 1.0)
        table._move("j.1", Running(1.0))


def test_nothing_but_the_mutator_changes_where_an_entry_stands() -> None:
    tree = ast.parse(Path(table_module.__file__).read_text())
    (table,) = (one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Table")
    changing = {
        method.name
        for method in table.body
        for one in ast.walk(method)
        if isinstance(method, ast.FunctionDef)
        and (
            (isinstance(one, ast.Attribute) and one.attr == "stage" and not isinstance(one.ctx, ast.Load))
            or (
                isinstance(one, ast.Subscript)
                and "self.entries" in ast.unparse(one)
                and not isinstance(one.ctx, ast.Load)
            )
        )
    }
    assert changing == {"_move"}
