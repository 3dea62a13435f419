"""The rows of the store: batched statements that write them; checksums, since SQLite does not detect a flipped bit in a
row; and the queries for receipts and for jobs by the names that people give them."""

import itertools
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from distributed_grid.protocol.groups import member_id, split_member
from distributed_grid.protocol.messages.operator import Receipt

CHUNKS = (64, 16, 4, 1)
"""Rows per statement. Batches release the interpreter once instead of once per row, so that the writer thread and the
loop do not alternate at every row; few sizes, so that the statements stay prepared."""


@dataclass(slots=True)
class Snapshot:
    """Rows to commit in one transaction."""

    clock: float
    jobs: list[Sequence[Any]] = field(default_factory=list)
    past_allocations: list[Sequence[Any]] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    gone_nodes: list[Sequence[Any]] = field(default_factory=list)
    nodes: list[Sequence[Any]] = field(default_factory=list)
    node_orders: list[Sequence[Any]] = field(default_factory=list)
    receipts: list[Sequence[Any]] = field(default_factory=list)
    shares: list[Sequence[Any]] = field(default_factory=list)
    audit: list[Sequence[Any]] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Evidence that earlier commits are lost."""

    def tables(self) -> Iterator[tuple[str, list[Sequence[Any]]]]:
        """The statements' names in order, with the rows of each."""
        for name in _WRITES:
            yield name, getattr(self, name)


_WRITES = {
    "jobs": (
        "INSERT INTO jobs (id, key, user, name, state, submitted, ended, node, body, allocation, boost, sum, "
        "allocation_sum) VALUES {} "
        "ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended = excluded.ended, node = excluded.node, "
        "body = excluded.body, allocation = coalesce(excluded.allocation, allocation), sum = excluded.sum, "
        "allocation_sum = coalesce(excluded.allocation_sum, allocation_sum)",
        13,
    ),
    "past_allocations": ("INSERT OR REPLACE INTO past_allocations (id, node, body, sum) VALUES {}", 4),
    "groups": (
        "INSERT INTO groups (id, key, user, submitted, ended, body, sum) VALUES {} "
        "ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, body = excluded.body, sum = excluded.sum",
        7,
    ),
    "gone_nodes": ("DELETE FROM nodes WHERE name IN ({})", 1),
    "nodes": (
        "INSERT INTO nodes (name, seen, body, sum) VALUES {} "
        "ON CONFLICT (name) DO UPDATE SET seen = excluded.seen, body = excluded.body, sum = excluded.sum",
        4,
    ),
    "node_orders": ("INSERT OR REPLACE INTO node_orders (name, body, sum) VALUES {}", 3),
    "receipts": ("INSERT OR REPLACE INTO receipts (id, at, node, jobs, body) VALUES {}", 5),
    "shares": ("INSERT OR REPLACE INTO shares (user, past, at) VALUES {}", 3),
    "audit": ("INSERT INTO audit (at, node, what) VALUES {}", 3),
}
STATEMENTS = {
    (table, count): text.format(", ".join([f"({', '.join('?' * width)})"] * count))
    for table, (text, width) in _WRITES.items()
    for count in CHUNKS
}


JOB_COLUMNS = ("id", "key", "user", "name", "state", "submitted", "ended", "node", "boost")
COLUMNS: dict[str, tuple[str, ...]] = {
    "jobs": JOB_COLUMNS,
    "past_allocations": ("id", "node"),
    "groups": ("id", "key", "user", "submitted", "ended"),
    "nodes": ("name",),
    "node_orders": ("name",),
}
"""Columns in a row's checksum beside the body; the first is the key."""
_LIVE_ROWS = {"jobs": " INDEXED BY jobs_live WHERE state <> 'ended'", "past_allocations": " WHERE 0"}


class Damaged(NamedTuple):
    """A row whose checksum does not match: its table, key, and a description."""

    table: str
    key: Any
    what: str


def checksum(body: bytes, *values: Any) -> int:
    """The checksum of a row."""
    text = "\0".join(str(float(one)) if isinstance(one, int | float) else str(one) for one in values)
    return zlib.crc32(text.encode(errors="replace"), zlib.crc32(body))


def damaged_rows(db: sqlite3.Connection, live: bool = False) -> Iterator[Damaged]:
    """The rows whose checksum does not match; `live`: only those loaded at a start. Raises sqlite3.Error."""
    before, db.text_factory = db.text_factory, lambda data: data.decode(errors="replace")
    try:
        yield from _damaged_rows(db, live)
    finally:
        db.text_factory = before


def _damaged_rows(db: sqlite3.Connection, live: bool) -> Iterator[Damaged]:
    for table, names in COLUMNS.items():
        more = ", allocation, allocation_sum" if table == "jobs" else ", NULL, NULL"
        key = "rowid" if table in ("jobs", "groups") else names[0]
        query = f"SELECT {key}, sum, body{more}, {', '.join(names)} FROM {table}"  # noqa: S608
        for found, kept, body, held, held_sum, *values in db.execute(
            query + (_LIVE_ROWS.get(table, "") if live else "")
        ):
            if kept != checksum(body, *values) or (held is not None and held_sum != checksum(held)):
                yield Damaged(table, found, f"{table}: the row of {values[0]!s:.64} is not what was written")


def remove_damaged(db: sqlite3.Connection, rows: list[Damaged]) -> None:
    """Remove them in the open transaction, with the live jobs that depend on them: those that held resources of such a
    node, and members of such a group."""
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


RECEIPTS_KEPT = 10_000
"""Minimum number kept; trimmed at a tenth more."""
TRIM_RECEIPTS = "DELETE FROM receipts WHERE at < (SELECT at FROM receipts ORDER BY at DESC LIMIT 1 OFFSET ?)"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Receipt).decode


def receipt_row(receipt: Receipt) -> tuple[str, float, str, str, bytes]:
    """The receipt's row."""
    jobs = " ".join((receipt.job, *(victim.job for victim in receipt.victims)))
    nodes = " ".join((receipt.node, *(place.node for place in receipt.more)))
    return receipt.id, receipt.at, nodes, f" {jobs} ", _encode(receipt)


def find_receipts(
    db: sqlite3.Connection, limit: int, job: str = "", node: str = "", since: float = 0.0, only: str = ""
) -> list[Receipt]:
    """Newest first; of one job (preempting or preempted), of one node, since a time; `only`: those in which this user
    had a part."""
    which: list[tuple[str, Any]] = [("at >= ?", since)]
    which += [("instr(jobs, ?) > 0", f" {job} ")] if job else []
    which += [("instr(' ' || node || ' ', ?) > 0", f" {node} ")] if node else []
    which += [("instr(body, ?) > 0", only.encode())] if only else []  # decodes few others
    rows = db.execute(
        f"SELECT body FROM receipts WHERE {' AND '.join(text for text, _ in which)} "  # noqa: S608
        "ORDER BY at DESC, id DESC LIMIT ?",
        (*(value for _, value in which), -1 if only else limit),
    )
    found = (_decode(body) for (body,) in rows)
    theirs = (one for one in found if not only or only in (one.user, *(victim.user for victim in one.victims)))
    return list(itertools.islice(theirs, limit))


MAX_MATCHES = 6
"""Matches after which a search stops."""
Read = Callable[..., Any]


def find_jobs(read: Read, ref: str, user: str, only: str = "", by_name: bool = True) -> list[str]:
    """The ids of matching jobs or groups: one, none, or (ambiguous prefix) up to 6. `only`: this user's jobs alone; not
    `by_name`: names do not match.

    `ref` is an id, `last` (this user's newest), a name (the newest, this user's before others'), or a prefix of an id,
    with or without `j-`. A name or prefix that matches members of a group means the group, with the suffix `_7` its
    member 7."""
    if ref == "last":
        rows = read("SELECT id FROM jobs WHERE user = ? ORDER BY submitted DESC, rowid DESC LIMIT 1", (user,))
        return [_whole(read, row[0]) for row in rows]
    for table in ("jobs", "groups"):
        if exact := read(f"SELECT id FROM {table} WHERE id = ? AND ? IN ('', user)", (ref, only)).fetchone():  # noqa: S608
            return [exact[0]]
    named = (
        "SELECT id FROM jobs WHERE name = ? AND name <> '' AND ? IN ('', user) "
        "ORDER BY user = ? DESC, submitted DESC LIMIT 1"
    )
    if by_name and (newest := read(named, (ref, only, user)).fetchone()):
        return [_whole(read, newest[0])]
    if (member := split_member(ref)) is not None:
        return _members(read, find_jobs(read, member[0], user, only, by_name), member[1])
    prefix = ref.lower() if ref.lower().startswith("j-") else f"j-{ref.lower()}"
    return _beginning_with(read, prefix, only) if len(prefix) >= 3 else []


def _whole(read: Read, job: str) -> str:
    """The group of a member; otherwise the job itself."""
    if (member := split_member(job)) is not None and _is_group(read, member[0]):
        return member[0]
    return job


def _is_group(read: Read, name: str) -> bool:
    return read("SELECT 1 FROM groups WHERE id = ?", (name,)).fetchone() is not None


def _members(read: Read, groups: list[str], index: int) -> list[str]:
    names = [member_id(group, index) for group in groups]
    return [name for name in names if read("SELECT 1 FROM jobs WHERE id = ?", (name,)).fetchone()]


def _beginning_with(read: Read, prefix: str, only: str) -> list[str]:
    """Ids with this prefix; a group counts once, and its members are skipped at once."""
    found: list[str] = []
    at = prefix
    while len(found) < MAX_MATCHES:
        among = "SELECT id FROM jobs WHERE id > ? AND id < ? AND ? IN ('', user) ORDER BY id LIMIT 1"
        row = read(among, (at, prefix + "~", only)).fetchone()
        if row is None:
            break
        found.append(_whole(read, row[0]))
        at = found[-1] if found[-1] == row[0] else found[-1] + "_~"
    return found
