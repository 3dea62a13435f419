"""`history.db`: a row for each node and minute of the last two days, and for each quarter of an hour of ninety days;
and what users lent each other, by day.

A batch of rows is one statement, during which the interpreter's lock is free. The file is bounded in size; the oldest
rows are removed first.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.history.series import BYTES, COUNT, Series, joined, row, rows
from distributed_grid.coordinator.store.disposable import DisposableDatabase
from distributed_grid.protocol.messages.history import DayOfLoans

MINUTE, QUARTER = 60, 900
DAY = 86400
MINUTES_KEPT, QUARTERS_KEPT = 2 * DAY, 90 * DAY
"""How long rows are kept (s)."""
VERSION = 1
RECENT = 12
"""Maximum age, in quarters of an hour, at which a quarter without its last minute is completed."""
NODES_AT_ONCE = 100
"""Number of nodes whose old rows are removed in one transaction."""

_SCHEMA = """
CREATE TABLE nodes (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE minutes (node INTEGER NOT NULL, at INTEGER NOT NULL, codes BLOB NOT NULL, PRIMARY KEY (node, at))
    WITHOUT ROWID;
CREATE TABLE quarters (node INTEGER NOT NULL, at INTEGER NOT NULL, codes BLOB NOT NULL, PRIMARY KEY (node, at))
    WITHOUT ROWID;
CREATE TABLE learned (node INTEGER PRIMARY KEY, memory BLOB NOT NULL);
CREATE TABLE loans (
    day INTEGER NOT NULL, lender TEXT NOT NULL, borrower TEXT NOT NULL, node TEXT NOT NULL,
    share REAL NOT NULL, cpu REAL NOT NULL, memory REAL NOT NULL, gpu REAL NOT NULL,
    PRIMARY KEY (day, lender, borrower, node)
) WITHOUT ROWID;
"""
_LEND = (
    "INSERT INTO loans VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET share = share + excluded.share,"
    " cpu = cpu + excluded.cpu, memory = memory + excluded.memory, gpu = gpu + excluded.gpu"
)
_LENT = (
    "SELECT *, count(*) OVER () FROM loans WHERE day >= :since AND (:node = '' OR node = :node)"
    " AND (:one = '' OR :one IN (lender, borrower)) AND (:other = '' OR :other IN (lender, borrower))"
    " ORDER BY day DESC, share DESC LIMIT :limit"
)
_OLD = "DELETE FROM {} WHERE node = ? AND at < ?"
_NEW = "DELETE FROM {} WHERE node = ? AND at > ?"
_OLDEST = "SELECT min(at) FROM {}"
_READ = "SELECT at, codes FROM {} WHERE node = ? AND at >= ? AND at < ? ORDER BY at"
_GONE = (
    "DELETE FROM nodes WHERE NOT EXISTS (SELECT 1 FROM minutes WHERE node = nodes.id)"
    " AND NOT EXISTS (SELECT 1 FROM quarters WHERE node = nodes.id)"
)
_INCOMPLETE = (
    "SELECT DISTINCT at / :size FROM minutes WHERE node = :node AND at >= :first * :size AND at < :behind * :size"
    " EXCEPT SELECT at FROM quarters WHERE node = :node AND at >= :first"
)
_PUT = (
    "INSERT OR REPLACE INTO {} (node, at, codes) SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " substr(:codes, 1 + key * :size, :size) FROM json_each(:keys)"
)


class Row(NamedTuple):
    """The codes of a node over one interval, by the number of the interval."""

    node: str
    at: int
    codes: bytes


class HistoryDatabase(DisposableDatabase):
    """`size`: maximum size of the file (bytes)."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, _SCHEMA, VERSION, "the history")
        self._size = size
        self._ids: dict[str, int] = {}

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, minutes: Sequence[Row], learned: Mapping[str, bytes] | None = None) -> None:
        """Save these minutes, the quarters of an hour that they complete or change, and the memories of forecasters.
        Raises sqlite3.Error."""
        with self.writing() as db:
            numbered = [(self._id(db, one.node), one.at, one.codes) for one in minutes]
            _put(db, "minutes", numbered)
            _put(db, "quarters", self._quarters(db, numbered))
            memories = [(self._id(db, name), memory) for name, memory in (learned or {}).items()]
            db.executemany("INSERT OR REPLACE INTO learned (node, memory) VALUES (?, ?)", memories)

    def lend(self, days: Iterable[DayOfLoans]) -> None:
        """Add these loans to those of their days. Raises sqlite3.Error."""
        with self.writing() as db:
            db.executemany(_LEND, map(msgspec.structs.astuple, days))

    def lent(self, since: int, node: str, users: tuple[str, str], limit: int) -> tuple[list[DayOfLoans], int]:
        """The loans since a day, the newest and largest first: on this node, and of both of these users (empty: all);
        and how many there are beyond the limit. Raises sqlite3.Error."""
        with self.reading() as db:
            asked = {"since": since, "node": node, "one": users[0], "other": users[1], "limit": limit}
            found = db.execute(_LENT, asked).fetchall()
        return [DayOfLoans(*row) for *row, _ in found], found[0][-1] - len(found) if found else 0

    def _id(self, db: sqlite3.Connection, name: str) -> int:
        if (known := self._ids.get(name)) is None:
            db.execute("INSERT OR IGNORE INTO nodes (name) VALUES (?)", (name,))
            (known,) = db.execute("SELECT id FROM nodes WHERE name = ?", (name,)).fetchone()
            self._ids[name] = known
        return int(known)

    def _quarters(
        self, db: sqlite3.Connection, minutes: Sequence[tuple[int, int, bytes]]
    ) -> list[tuple[int, int, bytes]]:
        """The quarters that these minutes complete (their last minute), or change after that."""
        size = QUARTER // MINUTE
        newest = max((at for _, at, _ in minutes), default=0)
        due = {(node, at // size) for node, at, _ in minutes if at % size == size - 1 or at // size < newest // size}
        found = []
        for node, quarter in sorted(due):
            query = "SELECT codes FROM minutes WHERE node = ? AND at BETWEEN ? AND ?"
            there = db.execute(query, (node, quarter * size, quarter * size + size - 1)).fetchall()
            codes = rows(b"".join(data for (data,) in there))
            found.append((node, quarter, row([joined(codes[one::COUNT], one) for one in Series])))
        return found

    def _complete(self, db: sqlite3.Connection, now: float) -> None:
        """Write the quarters of the last hours that ended without their last minute."""
        size = QUARTER // MINUTE
        behind = int(now) // QUARTER
        for number in self._ids.values():
            missing = db.execute(
                _INCOMPLETE, {"node": number, "first": behind - RECENT, "behind": behind, "size": size}
            ).fetchall()
            due = [(number, quarter * size + size - 1, b"") for (quarter,) in missing]
            if due:
                _put(db, "quarters", self._quarters(db, due))

    def prune(self, now: float) -> None:
        """Remove rows that are too old or too many, those that are later than now, and nodes without rows. Raises
        sqlite3.Error."""
        with self.reading() as db:
            oldest = {"minutes": int(now - MINUTES_KEPT) // MINUTE, "quarters": int(now - QUARTERS_KEPT) // QUARTER}
            self._complete(db, now)
            self._remove(db, _OLD, oldest)
            # What came while the clock was ahead would stay until then, and take the room of what is measured now.
            self._remove(db, _NEW, {"minutes": int(now) // MINUTE + 1, "quarters": int(now) // QUARTER})
            while (used := _used(db)) > self._size:
                oldest = self._later(db, now, used)
                if not self._remove(db, _OLD, oldest):
                    break
            first = min(oldest["quarters"] * QUARTER // DAY, int(now) // DAY)
            db.execute("DELETE FROM loans WHERE day < ? OR day > ?", (first, int(now) // DAY))
            db.execute(_GONE)
            db.execute("DELETE FROM learned WHERE node NOT IN (SELECT id FROM nodes)")
            self._ids = dict(db.execute("SELECT name, id FROM nodes"))

    def _remove(self, db: sqlite3.Connection, statement: str, bounds: dict[str, int]) -> int:
        """Remove rows of all nodes by this statement, with the bound of each table; how many."""
        removed = 0
        numbers = [number for (number,) in db.execute("SELECT id FROM nodes")]
        for first in range(0, len(numbers), NODES_AT_ONCE):
            db.execute("BEGIN")
            for table, at in bounds.items():
                for node in numbers[first : first + NODES_AT_ONCE]:
                    removed += db.execute(statement.format(table), (node, at)).rowcount
            db.execute("COMMIT")
        return removed

    def _later(self, db: sqlite3.Connection, now: float, used: int) -> dict[str, int]:
        """Return, by table, the time before which all rows are removed: the part of the span by which the file is too
        large, and a tenth more."""
        ends = []
        for table, step in (("minutes", MINUTE), ("quarters", QUARTER)):
            (at,) = db.execute(_OLDEST.format(table)).fetchone()
            ends += [at * step] if at is not None else []
        begin = min(ends, default=now)
        moment = begin + (now - begin) * max(0.1, 1 - self._size / used)
        return {"minutes": int(moment) // MINUTE + 1, "quarters": int(moment) // QUARTER + 1}

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, nodes: Iterable[str], step: int, first: int, behind: int) -> dict[str, list[Row]]:
        """The rows of these nodes, in minutes or quarters, from interval `first` to before `behind`. Raises
        sqlite3.Error."""
        table = "minutes" if step == MINUTE else "quarters"
        found: dict[str, list[Row]] = {}
        with self.reading() as db:
            for name in nodes:
                if (node := self._ids.get(name)) is not None:
                    told = db.execute(_READ.format(table), (node, first, behind))
                    found[name] = [Row(name, at, codes) for at, codes in told if len(codes) == BYTES]
        return found

    def recall(self, name: str) -> bytes | None:
        """Return the saved memory of a node's forecaster; None: there is none. Raises sqlite3.Error."""
        with self.reading() as db:
            found = db.execute("SELECT memory FROM learned WHERE node = ?", (self._ids.get(name),)).fetchone()
        return bytes(found[0]) if found is not None else None

    def names(self) -> list[str]:
        """The nodes with rows. Raises sqlite3.Error."""
        with self.reading():
            return sorted(self._ids)

    # --- the file -----------------------------------------------------------------------------------------------------

    def _opened(self, db: sqlite3.Connection) -> None:
        self._ids = dict(db.execute("SELECT name, id FROM nodes"))

    def close(self) -> None:
        """Close the file; it is opened again when it is used."""
        super().close()
        self._ids = {}


def _put(db: sqlite3.Connection, table: str, found: Sequence[tuple[int, int, bytes]]) -> None:
    if found:
        keys = json.dumps([(node, at) for node, at, _ in found])
        codes = b"".join(codes for *_, codes in found)
        db.execute(_PUT.format(table), {"keys": keys, "codes": codes, "size": BYTES})


def _used(db: sqlite3.Connection) -> int:
    pages, free, page = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int(pages - free) * int(page)
