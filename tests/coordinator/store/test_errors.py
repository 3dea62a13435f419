"""What a store that fails raises, by SQLite's own errors; and the disk space that is kept back for results."""

import contextlib
import errno
import os
import sqlite3
from pathlib import Path

import pytest

from distributed_grid.coordinator.store.errors import (
    RESERVE_BYTES,
    DiskTrouble,
    Reserve,
    StoreFailed,
    as_sqlite,
    failure,
)


def test_the_reserve_is_made_only_where_as_much_is_left_and_given_up_at_a_start_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = Reserve(tmp_path)
    monkeypatch.setattr(reserve, "_free", lambda: RESERVE_BYTES)
    assert "16 MiB are free, 20 MiB are needed" in reserve.make()
    assert not (tmp_path / "reserve").exists()
    monkeypatch.undo()
    assert reserve.make() == ""
    reserve.ease()
    assert (tmp_path / "reserve").exists()
    monkeypatch.setattr(reserve, "_free", lambda: 0)
    assert reserve.make() == "", "what is there is not asked for again"
    reserve.ease()
    assert not (tmp_path / "reserve").exists()


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("SQLITE_FULL", True),
        ("SQLITE_IOERR_FSYNC", True),
        ("SQLITE_READONLY_DBMOVED", True),
        ("SQLITE_CANTOPEN", True),
        ("SQLITE_BUSY_SNAPSHOT", True),
        ("SQLITE_CORRUPT_INDEX", False),
        ("SQLITE_NOTADB", False),
        ("SQLITE_CONSTRAINT_UNIQUE", False),
        ("SQLITE_ERROR", False),
    ],
)
def test_what_may_pass_is_told_from_what_will_not(name: str, passes: bool) -> None:
    path = Path("/var/lib/grid/grid.db")
    error = sqlite3.OperationalError("it failed")
    error.sqlite_errorname = name
    said = failure(path, error)
    assert isinstance(said, DiskTrouble) is passes
    assert str(path) in said.what and said.hint


def failing(path: Path, statement: str) -> StoreFailed:
    """What an error that SQLite really raises is taken for."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=0.0)) as database:
            database.execute(statement)
    except sqlite3.Error as error:
        return failure(path, error)
    raise AssertionError(f"{statement} did not fail")


def test_a_store_that_another_process_writes_is_locked_and_that_may_pass(tmp_path: Path) -> None:
    path = tmp_path / "grid.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE jobs (id)")
    other.execute("BEGIN EXCLUSIVE")
    said = failing(path, "INSERT INTO jobs VALUES (1)")
    other.close()
    assert isinstance(said, DiskTrouble) and said.what == f"the store {path} is locked by another process"


def test_a_store_that_cannot_be_opened_is_trouble_of_its_disk(tmp_path: Path) -> None:
    said = failing(tmp_path / "gone" / "grid.db", "SELECT 1")
    assert isinstance(said, DiskTrouble) and said.what.startswith("the disk fails under")


def test_a_file_that_is_no_database_is_damage_with_the_way_back(tmp_path: Path) -> None:
    path = tmp_path / "grid.db"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 20)
    said = failing(path, "SELECT * FROM sqlite_master")
    assert not isinstance(said, DiskTrouble)
    assert said.what == f"the store {path} is damaged" and "grid coordinator restore BACKUP" in said.hint


@pytest.mark.parametrize(
    ("number", "what"),
    [
        (errno.ENOSPC, "no space left for /grid.db"),
        (errno.EROFS, "/grid.db cannot be written"),
        (errno.EIO, "the disk fails under /grid.db"),
    ],
)
def test_an_error_of_the_kernel_is_taken_for_what_sqlite_makes_of_it(number: int, what: str) -> None:
    said = failure(Path("/grid.db"), as_sqlite(OSError(number, os.strerror(number))))
    assert isinstance(said, DiskTrouble) and said.what == what
