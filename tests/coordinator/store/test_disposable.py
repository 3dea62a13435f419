"""A file whose loss harms nobody: how it begins, what is put aside, and what is left alone."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from distributed_grid.coordinator.store import disposable
from distributed_grid.coordinator.store.disposable import DisposableDatabase, FullDisk

SCHEMA = "CREATE TABLE numbers (one INTEGER PRIMARY KEY);"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "numbers.db"


def of(path: Path, version: int = 1) -> DisposableDatabase:
    return DisposableDatabase(path, SCHEMA, version, "the record of numbers")


def keep(database: DisposableDatabase, *numbers: int) -> None:
    with database.writing() as db:
        db.executemany("INSERT INTO numbers VALUES (?)", [(one,) for one in numbers])


def kept(database: DisposableDatabase) -> list[int]:
    with database.reading() as db:
        return [one for (one,) in db.execute("SELECT one FROM numbers ORDER BY one")]


def test_it_is_made_when_it_is_first_used_and_nobody_else_may_read_it(path: Path) -> None:
    database = of(path)
    assert not path.exists()
    keep(database, 1, 2)
    assert kept(database) == [1, 2]
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_is_opened_again_after_it_was_closed(path: Path) -> None:
    database = of(path)
    keep(database, 1)
    database.close()
    assert kept(database) == [1]
    assert kept(of(path)) == [1]


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_put_aside_and_another_begun(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    database = of(path)
    keep(database, 1)
    assert kept(database) == [1]
    assert path.with_name("numbers.db.damaged").read_bytes() == content


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("content", ["CREATE TABLE numbers (two TEXT)", "CREATE TABLE others (one INTEGER)"])
def test_a_file_of_something_else_is_put_aside_whatever_its_version(path: Path, version: int, content: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"{content}; PRAGMA user_version = {version};")
    database = of(path)
    keep(database, 1)
    assert kept(database) == [1]
    with closing(sqlite3.connect(path.with_name("numbers.db.damaged"))) as db:
        assert db.execute("SELECT sql FROM sqlite_master").fetchall() == [(content,)]


def test_a_file_that_is_damaged_while_it_is_used_is_put_aside(path: Path) -> None:
    database = of(path)
    keep(database, *range(20000))
    database.close()
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * half)
    with pytest.raises(sqlite3.DatabaseError):
        kept(database)
    assert path.with_name("numbers.db.damaged").exists()
    assert kept(database) == []


def test_a_file_of_another_version_is_put_aside(path: Path) -> None:
    keep(of(path), 1)
    database = of(path, version=2)
    assert kept(database) == []
    assert path.with_name("numbers.db.damaged").exists()


def test_a_transaction_that_fails_keeps_nothing_and_is_no_damage(path: Path) -> None:
    database = of(path)
    keep(database, 1)
    with pytest.raises(sqlite3.IntegrityError):
        keep(database, 2, 1)
    with pytest.raises(ZeroDivisionError), database.writing() as db:
        db.execute("INSERT INTO numbers VALUES (?)", (3,))
        1 / 0  # noqa: B018
    keep(database, 4)
    assert kept(database) == [1, 4]
    assert not path.with_name("numbers.db.damaged").exists()


def test_a_disk_that_is_nearly_full_is_left_to_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = of(path)
    keep(database, 1)
    with monkeypatch.context() as patched, pytest.raises(FullDisk, match="less than 64 MiB"):
        patched.setattr(disposable, "SPARE", 1 << 62)
        keep(database, 2)
    keep(database, 3)
    assert kept(database) == [1, 3]


def test_a_folder_that_is_not_there_is_an_error_and_no_damage(tmp_path: Path) -> None:
    database = of(tmp_path / "none" / "numbers.db")
    with pytest.raises(sqlite3.OperationalError):
        kept(database)
    assert not (tmp_path / "none").exists()
