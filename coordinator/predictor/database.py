"""`usage.db`: a row for each attempt that has ended, with what it asked for, used and held, and how it ended.

All calls are made by one thread that is not the coordinator's. The file is bounded in age and in rows, the oldest go
first. A damaged one is put aside and another begun: what is lost is history."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from distributed_grid.runtime.logs import get_logger

VERSION = 1
ROWS = 200_000
"""Maximum number of rows."""
SPARE = 64 << 20
"""Bytes that must stay free on the disk: below, nothing is written."""

_SCHEMA = """
CREATE TABLE usage (
    id INTEGER PRIMARY KEY, allocation TEXT NOT NULL UNIQUE, at REAL NOT NULL, user TEXT NOT NULL,
    shape INTEGER NOT NULL, program_key INTEGER NOT NULL, user_key INTEGER NOT NULL, text TEXT NOT NULL,
    program TEXT NOT NULL, features TEXT NOT NULL,
    asked_cpu INTEGER NOT NULL, asked_memory INTEGER NOT NULL, asked_gpu INTEGER NOT NULL,
    seconds REAL NOT NULL, memory INTEGER NOT NULL, cores REAL NOT NULL, gpu_memory INTEGER NOT NULL,
    held_memory INTEGER NOT NULL, ended TEXT NOT NULL, cause TEXT NOT NULL
);
CREATE INDEX usage_at ON usage (at);
"""
_COLUMNS = (
    "allocation, at, user, shape, program_key, user_key, text, program, features, asked_cpu, asked_memory,"
    " asked_gpu, seconds, memory, cores, gpu_memory, held_memory, ended, cause"
)

log = get_logger("usage")


class UsageRow(NamedTuple):
    """An attempt: when it ended (grid time), whose it was, the shape of its command, what was asked for (milli-cores,
    bytes, milli-GPUs), what it used (seconds, bytes, the most cores at once, bytes of GPU memory), the memory that it
    held, how it `ended` for the predictor, and the cause. Of one that ran out of memory, `seconds` is the time to
    that."""

    allocation: str
    at: float
    user: str
    shape: int
    program_key: int
    user_key: int
    text: str
    program: str
    features: tuple[tuple[str, float], ...]
    asked_cpu: int
    asked_memory: int
    asked_gpu: int
    seconds: float
    memory: int
    cores: float
    gpu_memory: int
    held_memory: int
    ended: str
    cause: str


class UsageDatabase:
    """Opened when it is first used, and again after an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def write(self, rows: Iterable[UsageRow]) -> None:
        """Keep these rows; one of an allocation that has one replaces it. Raises sqlite3.Error, OSError."""
        space = os.statvfs(self._path.parent)
        if space.f_bavail * space.f_frsize < SPARE:
            raise sqlite3.OperationalError("less than 64 MiB are free on the disk")
        marks = ", ".join("?" * len(UsageRow._fields))
        self._do(
            lambda db: db.executemany(
                f"INSERT OR REPLACE INTO usage ({_COLUMNS}) VALUES ({marks})",  # noqa: S608 (both are ours)
                [one._replace(features=json.dumps(one.features)) for one in rows],  # type: ignore[arg-type]
            )
        )

    def prune(self, oldest: float) -> None:
        """Remove what ended before that moment, and what is too much. Raises sqlite3.Error."""

        def remove(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM usage WHERE at < ?", (oldest,))
            db.execute("DELETE FROM usage WHERE id <= (SELECT max(id) FROM usage) - ?", (ROWS,))

        self._do(remove)

    def newest(self, count: int) -> list[UsageRow]:
        """The newest rows, oldest first; those that cannot be read are left out. Raises sqlite3.Error."""
        found: list[Sequence[object]] = []
        query = f"SELECT {_COLUMNS} FROM usage ORDER BY id DESC LIMIT ?"  # noqa: S608
        self._do(lambda db: found.extend(db.execute(query, (count,))))
        return [row for one in reversed(found) if (row := _row(one)) is not None]

    def _do(self, work: Callable[[sqlite3.Connection], object]) -> None:
        try:
            db = self._open()
            db.execute("BEGIN")
            work(db)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            self._failed(error)
            raise

    # --- the file -----------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            try:
                self._db = self._opened()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                self._put_aside(error)
                self._db = self._opened()
        return self._db

    def _opened(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"it has the format {version}, and {VERSION} is written")
            os.chmod(self._path, 0o600)
        except BaseException:
            db.close()
            raise
        return db

    def _failed(self, error: sqlite3.Error) -> None:
        self.close()
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(
            error, sqlite3.OperationalError | sqlite3.IntegrityError
        ):
            self._put_aside(error)

    def _put_aside(self, error: sqlite3.Error) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        log.error(
            "the record of usage is damaged: it is put aside, and begins anew", error=str(error), aside=str(aside)
        )
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")
        with suppress(FileNotFoundError):
            os.replace(self._path, aside)

    def close(self) -> None:
        """Close the file; it is opened again when it is used."""
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = None


def _row(found: Sequence[object]) -> UsageRow | None:
    """A row as it was written; None where somebody else wrote it."""
    row = UsageRow(*found)  # type: ignore[arg-type]
    try:
        pairs = json.loads(str(row.features))
        features = tuple((str(name), float(value)) for name, value in pairs)
        numbers = [float(one) for one in (row.at, row.seconds, row.memory, row.cores, row.gpu_memory, row.held_memory)]
    except (ValueError, TypeError):
        return None
    keys = all(isinstance(one, int) for one in (row.shape, row.program_key, row.user_key))
    return row._replace(features=features) if keys and len(numbers) == 6 else None
