"""The record of usage: rows and bounds."""

import sqlite3
from pathlib import Path

import pytest

from distributed_grid.coordinator.predictor import database as module
from distributed_grid.coordinator.predictor.database import UsageDatabase, UsageRow


def row(number: int, at: float = 1000.0) -> UsageRow:
    features = (("size", 5.0), ("argument-1", float(number)))
    return UsageRow(
        f"j-{number}.1", at, "ann", 1, 2, 3, "train #", "train", features, 1000, 1 << 30, 0, 12.5, 1 << 29, 1.5, 0,
        1 << 30, "done", "exited",
    )  # fmt: skip


@pytest.fixture
def database(tmp_path: Path) -> UsageDatabase:
    return UsageDatabase(tmp_path / "usage.db")


def test_rows_come_back_as_they_were_written_the_newest_in_their_order(database: UsageDatabase) -> None:
    database.write([row(1), row(2)])
    database.write([row(3)])
    database.close()
    assert database.newest(2) == [row(2), row(3)]


def test_an_attempt_has_one_row_however_often_its_end_is_told(database: UsageDatabase) -> None:
    database.write([row(1)])
    database.write([row(1, 2000.0)])
    assert database.newest(9) == [row(1, 2000.0)]


def test_what_is_too_old_and_too_much_goes(database: UsageDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database.write([row(number, 100.0 * number) for number in range(10)])
    database.prune(250.0)
    assert [one.at for one in database.newest(99)] == [100.0 * number for number in range(3, 10)]
    monkeypatch.setattr(module, "ROWS", 2)
    database.prune(0.0)
    assert database.newest(99) == [row(8, 800.0), row(9, 900.0)]


def test_nobody_pushes_out_what_is_known_of_others(database: UsageDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [row(number, 1.0)._replace(user="bob") for number in range(2)]
    many = [row(number, 2.0)._replace(user="ann") for number in range(2, 12)]
    database.write([*few, *many])
    assert database.newest(4) == [*few, *many[-2:]], "the half that ann does not need is bob's"
    monkeypatch.setattr(module, "ROWS", 5)
    database.prune(0.0)
    assert database.newest(99) == [*few, *many[-3:]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("features", "{"),
        ("features", "[" * 100_000),
        ("features", '[["size", 1' + "0" * 400 + "]]"),
        ("features", '[["size", 1' + "0" * 5000 + "]]"),
        ("features", "7"),
        ("shape", "x"),
        ("seconds", "long"),
        ("memory", b"\xff"),
        ("text", "z" * 100_000),
        ("cause", "z" * 100_000),
    ],
    ids=["cut", "deep", "large", "larger", "number", "key", "word", "bytes", "long text", "long cause"],
)
def test_rows_that_somebody_else_wrote_are_left_out(
    tmp_path: Path, database: UsageDatabase, column: str, value: object
) -> None:
    database.write([row(1), row(2)])
    database.close()
    with sqlite3.connect(tmp_path / "usage.db") as db:
        db.execute(f"UPDATE usage SET {column} = ? WHERE allocation = 'j-1.1'", (value,))  # noqa: S608
    assert database.newest(9) == [row(2)]
