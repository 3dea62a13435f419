"""Checksums of the rows of a store. SQLite finds damage to the form of its file, but not a flipped bit in what a row
says."""

import sqlite3
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

JOB = ("id", "key", "user", "name", "state", "submitted", "ended", "node", "boost")
COLUMNS: dict[str, tuple[str, ...]] = {
    "jobs": JOB,
    "past_allocations": ("id", "node"),
    "groups": ("id", "key", "user", "submitted", "ended"),
    "nodes": ("name",),
    "node_orders": ("name",),
}
"""What besides the body is in the sum of a row; the first names it."""
_LIVE = {"jobs": " INDEXED BY jobs_live WHERE state <> 'ended'", "past_allocations": " WHERE 0"}


class Damaged(NamedTuple):
    """A row that is not what was written: its table, the number or name by which it is found, and what it is of."""

    table: str
    key: Any
    what: str


def of(body: bytes, *values: Any) -> int:
    """The sum of a row."""
    text = "\0".join(str(float(one)) if isinstance(one, int | float) else str(one) for one in values)
    return zlib.crc32(text.encode(errors="replace"), zlib.crc32(body))


def damaged(db: sqlite3.Connection, live: bool = False) -> Iterator[Damaged]:
    """The rows that are not what was written; `live`: only those that a start loads. Raises sqlite3.Error."""
    before, db.text_factory = db.text_factory, lambda data: data.decode(errors="replace")
    try:
        yield from _damaged(db, live)
    finally:
        db.text_factory = before


def _damaged(db: sqlite3.Connection, live: bool) -> Iterator[Damaged]:
    for table, names in COLUMNS.items():
        more = ", allocation, allocation_sum" if table == "jobs" else ", NULL, NULL"
        key = "rowid" if table in ("jobs", "groups") else names[0]
        query = f"SELECT {key}, sum, body{more}, {', '.join(names)} FROM {table}"  # noqa: S608
        for found, kept, body, held, held_sum, *values in db.execute(query + (_LIVE.get(table, "") if live else "")):
            if kept != of(body, *values) or (held is not None and held_sum != of(held)):
                yield Damaged(table, found, f"{table}: the row of {values[0]!s:.64} is not what was written")


def remove(db: sqlite3.Connection, rows: list[Damaged]) -> None:
    """Take them out, in the transaction that is open; and the live jobs that nothing could be done with without them:
    those that held resources of such a node, and those of such a group."""
    for row in rows:
        key = "rowid" if row.table in ("jobs", "groups") else COLUMNS[row.table][0]
        db.execute(f"DELETE FROM {row.table} WHERE {key} = ?", (row.key,))  # noqa: S608
    tables = {row.table for row in rows}
    if "nodes" in tables:
        db.execute("DELETE FROM jobs WHERE state NOT IN ('ended', 'waiting') AND node NOT IN (SELECT name FROM nodes)")
    if "groups" in tables:
        db.execute(
            "DELETE FROM jobs WHERE state <> 'ended' AND instr(id, '_') > 0 "
            "AND substr(id, 1, instr(id, '_') - 1) NOT IN (SELECT id FROM groups)"
        )
