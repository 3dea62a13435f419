"""Moves say what they do in words that stay the same."""

from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.moves import Move, MoveKind, Pass


def test_a_move_that_was_only_proposed_has_no_boost_and_its_pass_was_not_applied() -> None:
    move = Move(kind=MoveKind.LEND, source="lab1", target="head", resources=Resources(1000))
    assert (str(move.kind), move.boost) == ("lend", "")
    assert not Pass(at=1.0, moves=(move,)).applied
