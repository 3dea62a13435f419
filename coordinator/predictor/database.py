"""`usage.db`: a row for each ended attempt or recorded run, with what it requested, used and held, and how it ended.

The file is bounded in age and in rows. The oldest rows are removed first, of users with more than their share of the
rows: nobody can displace what is known of others.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from distributed_grid.coordinator.store.disposable import DisposableDatabase

VERSION = 1
ROWS = 200_000
"""Maximum number of rows."""
LONGEST = 8192
"""Characters of a row's texts; one that has more was not written here."""

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
_LENGTH = " + ".join(
    f"length({name})" for name in ("allocation", "user", "text", "program", "features", "ended", "cause")
)


class UsageRow(NamedTuple):
    """An attempt, or a recorded run: when it ended (grid time), its user, the shape of its command, the requested
    resources (milli-cores, bytes, milli-GPUs), what it used (seconds, bytes, the most cores at once, bytes of GPU
    memory), the memory that it held, how it `ended` for the predictor, and the cause. Of one that ran out of memory,
    `seconds` is the time to that."""

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


class UsageDatabase(DisposableDatabase):
    """The rows, by allocation."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _SCHEMA, VERSION, "the record of usage")

    def write(self, rows: Iterable[UsageRow]) -> None:
        """Keep these rows; one of an allocation that has one replaces it. Raises sqlite3.Error, OSError."""
        marks = ", ".join("?" * len(UsageRow._fields))
        with self.writing() as db:
            db.executemany(
                f"INSERT OR REPLACE INTO usage ({_COLUMNS}) VALUES ({marks})",  # noqa: S608 (both are ours)
                [one._replace(features=json.dumps(one.features)) for one in rows],  # type: ignore[arg-type]
            )

    def prune(self, oldest: float) -> None:
        """Remove what ended before that moment, and what is too much. Raises sqlite3.Error."""
        with self.reading() as db:
            db.execute("DELETE FROM usage WHERE at < ?", (oldest,))
            counts = _counts(db)
            share = share_of(counts.values(), ROWS)
            for user, count in counts.items():
                if count > share:
                    surplus = "SELECT id FROM usage WHERE user = ? ORDER BY id LIMIT ?"
                    db.execute(f"DELETE FROM usage WHERE id IN ({surplus})", (user, count - share))  # noqa: S608 (ours)

    def newest(self, count: int) -> list[UsageRow]:
        """Return the newest rows, oldest first, with at most a share of them from one user, without those that are too
        long or cannot be read. Raises sqlite3.Error."""
        turn = "row_number() OVER (PARTITION BY user ORDER BY id DESC) AS turn"
        inner = f"SELECT id, {turn}, {_COLUMNS} FROM usage WHERE {_LENGTH} <= ?"  # noqa: S608 (all are ours)
        query = f"SELECT {_COLUMNS} FROM ({inner}) WHERE turn <= ? ORDER BY id DESC LIMIT ?"  # noqa: S608
        with self.reading() as db:
            share = share_of(_counts(db).values(), count)
            found = db.execute(query, (LONGEST, share, count)).fetchall()
        return [row for one in reversed(found) if (row := _row(one)) is not None]


def share_of(counts: Iterable[int], most: int) -> int:
    """Return the most rows that a user may have, so that all together have at most `most`: as equal as the users' rows
    allow."""
    left = most
    ordered = sorted(counts)
    for at, count in enumerate(ordered):
        if count > (share := left // (len(ordered) - at)):
            return share
        left -= count
    return most


def _counts(db: sqlite3.Connection) -> dict[str, int]:
    return dict(db.execute("SELECT user, count(*) FROM usage GROUP BY user").fetchall())


def _row(found: Sequence[object]) -> UsageRow | None:
    """Decode a row; None if it is invalid."""
    row = UsageRow(*found)  # type: ignore[arg-type]
    try:
        pairs = json.loads(str(row.features))
        features = tuple((str(name), float(value)) for name, value in pairs)
        numbers = [float(one) for one in (row.at, row.seconds, row.memory, row.cores, row.gpu_memory, row.held_memory)]
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return None
    keys = all(isinstance(one, int) for one in (row.shape, row.program_key, row.user_key))
    return row._replace(features=features) if keys and len(numbers) == 6 else None
