"""The database of the history: minutes, quarters of an hour, and bounds."""

import ast
import re
import sqlite3
from pathlib import Path

import pytest

from distributed_grid.coordinator.history.database import (
    DAY,
    MINUTE,
    MINUTES_KEPT,
    QUARTER,
    QUARTERS_KEPT,
    HistoryDatabase,
    Row,
)
from distributed_grid.coordinator.history.series import COUNT, row, rows
from distributed_grid.protocol.messages.history import DayOfLoans

NOW = 1_800_000_000
FIRST = NOW // MINUTE


def minute(at: int, one: int = 7, node: str = "lab1") -> Row:
    return Row(node, at, row([one] * COUNT))


@pytest.fixture
def database(tmp_path: Path) -> HistoryDatabase:
    return HistoryDatabase(tmp_path / "history.db", 512 << 20)


def kept(database: HistoryDatabase, step: int = MINUTE, node: str = "lab1") -> list[int]:
    return [one.at for one in database.read([node], step, 0, 1 << 40).get(node, [])]


def test_rows_are_read_by_node_and_time(database: HistoryDatabase) -> None:
    database.write([minute(FIRST), minute(FIRST + 1, 8), minute(FIRST, 9, "lab2")])
    database.close()
    found = database.read(["lab1", "lab2", "gone"], MINUTE, FIRST, FIRST + 1)
    assert found == {"lab1": [minute(FIRST)], "lab2": [minute(FIRST, 9, "lab2")]}
    assert database.names() == ["lab1", "lab2"]


def test_a_minute_that_is_told_again_replaces_the_first(database: HistoryDatabase) -> None:
    database.write([minute(FIRST, 1)])
    database.write([minute(FIRST, 2)])
    assert database.read(["lab1"], MINUTE, FIRST, FIRST + 1)["lab1"] == [minute(FIRST, 2)]


def test_the_last_minute_of_a_quarter_completes_it(database: HistoryDatabase) -> None:
    database.write([minute(FIRST + at, 10 * at) for at in range(14)])
    assert kept(database, QUARTER) == []
    database.write([minute(FIRST + 14, 140)])
    (quarter,) = database.read(["lab1"], QUARTER, 0, 1 << 40)["lab1"]
    assert quarter.at == NOW // QUARTER and rows(quarter.codes)[2] == 70


def test_a_minute_that_comes_late_changes_its_quarter(database: HistoryDatabase) -> None:
    database.write([minute(FIRST + at, 100) for at in (0, 14, 20)])
    database.write([minute(FIRST + 7, 400), minute(FIRST + 21)])
    assert rows(database.read(["lab1"], QUARTER, 0, 1 << 40)["lab1"][0].codes)[2] == 200


def test_a_quarter_whose_last_minute_was_not_measured_is_completed_when_old_rows_are_removed(
    database: HistoryDatabase,
) -> None:
    database.write([minute(FIRST + 3)])
    database.prune(NOW + QUARTER + 1.0)
    assert kept(database, QUARTER) == [NOW // QUARTER]


def test_minutes_are_kept_for_two_days_and_quarters_for_ninety(database: HistoryDatabase) -> None:
    database.write([minute(FIRST + 14)])
    database.prune(NOW + MINUTES_KEPT + 3600.0)
    assert (kept(database), kept(database, QUARTER)) == ([], [NOW // QUARTER])
    database.prune(NOW + QUARTERS_KEPT + 3600.0)
    assert kept(database, QUARTER) == [] and database.names() == []


def test_rows_from_when_the_clock_was_ahead_are_removed(database: HistoryDatabase) -> None:
    ahead = FIRST + 365 * 24 * 60
    database.write([minute(FIRST - 1), minute(FIRST), minute(FIRST + 1)])
    database.write([minute(ahead + at) for at in range(30)])
    database.write([minute(ahead, node="gone")])
    days = [DayOfLoans(day, "ann", "ben", "lab1", 1.0, 1.0, 1.0, 0.0) for day in (NOW // DAY, NOW // DAY + 365)]
    database.lend(days)
    assert kept(database, QUARTER)
    database.prune(NOW)
    assert kept(database) == [FIRST - 1, FIRST, FIRST + 1] and not kept(database, QUARTER)[1:]
    assert database.names() == ["lab1"]
    assert database.lent(0, "", ("", ""), 10) == (days[:1], 0)


def test_beyond_its_size_the_oldest_goes_first(tmp_path: Path) -> None:
    database = HistoryDatabase(tmp_path / "history.db", 40 << 10)
    database.write([minute(FIRST - at) for at in range(2000)])
    database.prune(NOW)
    left = kept(database)
    assert 0 < len(left) < 1500 and left == [*range(FIRST - len(left) + 1, FIRST + 1)]
    database.close()
    db = sqlite3.connect(tmp_path / "history.db")
    pages, free = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
    assert (pages - free) * 4096 <= 40 << 10
    db.close()


def test_a_file_that_is_damaged_begins_anew_without_the_nodes_of_before(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    database = HistoryDatabase(path, 1 << 30)
    database.write([minute(FIRST + at) for at in range(1000)])
    database.close()
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * half)
    with pytest.raises(sqlite3.DatabaseError):
        database.read(["lab1"], MINUTE, 0, 1 << 40)
    assert database.names() == []
    database.write([minute(FIRST)])
    assert kept(database) == [FIRST]


def test_no_statement_of_the_coordinator_numbers_its_parameters() -> None:
    """Python counts `?1` as a named one, and from 3.14 on refuses a sequence for those."""
    files = sorted((Path(__file__).parents[3] / "coordinator").rglob("*.py"))
    texts = [
        (file.name, node.value)
        for file in files
        if re.search(r"\?[0-9]", text := file.read_text())  # to parse all that has none takes a second
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(files) > 50
    assert [one for one in texts if re.search(r"(?<![\w\])])\?[0-9]", one[1])] == []
