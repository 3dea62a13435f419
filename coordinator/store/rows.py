"""The rows of the store: batched statements that write them; checksums, since SQLite does not detect a flipped bit in a
row; and the queries for receipts and for jobs by name or reference."""

import itertools
import math
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from distributed_grid.coordinator.core.model import Job, Phase
from distributed_grid.coordinator.core.scaling.state import Paused
from distributed_grid.protocol.groups import member_id, split_member
from distributed_grid.protocol.jobs import JobSpec, Request, Step, Used
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.resources import Count, Finite
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.sharing.policies import BalancingOrder

CHUNKS = (64, 16, 4, 1)
"""Rows per statement. Batches release the interpreter once instead of once per row, so that the writer thread and the
loop do not alternate at every row; few sizes, so that the statements stay prepared."""


@dataclass(slots=True)
class Snapshot:
    """Rows to commit in one transaction."""

    clock: float
    jobs: list[Sequence[Any]] = field(default_factory=list)
    changes: list[Sequence[Any]] = field(default_factory=list)
    ended: list[Sequence[Any]] = field(default_factory=list)
    past_allocations: list[Sequence[Any]] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    gone_nodes: list[Sequence[Any]] = field(default_factory=list)
    nodes: list[Sequence[Any]] = field(default_factory=list)
    gone_orders: list[Sequence[Any]] = field(default_factory=list)
    node_orders: list[Sequence[Any]] = field(default_factory=list)
    receipts: list[Sequence[Any]] = field(default_factory=list)
    shares: list[Sequence[Any]] = field(default_factory=list)
    loans: list[Sequence[Any]] = field(default_factory=list)
    gone_rights: list[Sequence[Any]] = field(default_factory=list)
    rights: list[Sequence[Any]] = field(default_factory=list)
    spent: list[Sequence[Any]] = field(default_factory=list)
    meta: list[Sequence[Any]] = field(default_factory=list)
    gone_meta: list[Sequence[Any]] = field(default_factory=list)
    machines: list[Sequence[Any]] = field(default_factory=list)
    audit: list[Sequence[Any]] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """Evidence that earlier commits are lost."""

    def tables(self) -> Iterator[tuple[str, list[Sequence[Any]]]]:
        """The names of the statements that have rows, in order, with these."""
        for name in _WRITES:
            if rows := getattr(self, name):
                yield name, rows


_WRITES = {
    "jobs": (
        "INSERT INTO jobs (id, key, user, name, submitted, body, sum) VALUES {} "
        "ON CONFLICT (id) DO UPDATE SET body = excluded.body, sum = excluded.sum",  # a commit that failed had succeeded
        7,
    ),
    # Before the changes: what ended makes room on the page that they share.
    "ended": (
        "INSERT INTO ended (n, user, ended, boost, failed, body, sum) "
        "SELECT jobs.n, column2, column3, column4, column5, column6, column7 "
        "FROM (VALUES {}) CROSS JOIN jobs ON jobs.id = column1 WHERE true "
        "ON CONFLICT (n) DO UPDATE SET ended = excluded.ended, boost = excluded.boost, failed = excluded.failed, "
        "body = excluded.body, sum = excluded.sum",
        7,
    ),
    "changes": (
        "INSERT INTO changes (n, state, node, body, allocation, sum, allocation_sum) "
        "SELECT jobs.n, column2, column3, column4, column5, column6, column7 "
        "FROM (VALUES {}) CROSS JOIN jobs ON jobs.id = column1 WHERE true "
        "ON CONFLICT (n) DO UPDATE SET state = excluded.state, node = excluded.node, body = excluded.body, "
        "allocation = coalesce(excluded.allocation, allocation), sum = excluded.sum, "
        "allocation_sum = coalesce(excluded.allocation_sum, allocation_sum)",
        7,
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
    "gone_orders": ("DELETE FROM node_orders WHERE name IN ({})", 1),
    "node_orders": ("INSERT OR REPLACE INTO node_orders (name, body, sum) VALUES {}", 3),
    "receipts": ("INSERT OR REPLACE INTO receipts (id, at, node, jobs, body) VALUES {}", 5),
    "shares": ("INSERT OR REPLACE INTO shares (user, past, at) VALUES {}", 3),
    "loans": ("INSERT OR REPLACE INTO loans (lender, borrower, past, at) VALUES {}", 4),
    "gone_rights": ("DELETE FROM rights WHERE name IN ({})", 1),
    "rights": ("INSERT OR REPLACE INTO rights (name, body, sum) VALUES {}", 3),
    "spent": ("INSERT OR REPLACE INTO spent (pool, day, cpu, gpu) VALUES {}", 4),
    "meta": ("INSERT OR REPLACE INTO meta (name, value) VALUES {}", 2),
    "gone_meta": ("DELETE FROM meta WHERE name IN ({})", 1),
    "machines": ("INSERT OR REPLACE INTO meta (name, value) VALUES {}", 2),
    "audit": ("INSERT INTO audit (at, node, what) VALUES {}", 3),
}
STATEMENTS = {
    (table, count): text.format(", ".join([f"({', '.join('?' * width)})"] * count))
    for table, (text, width) in _WRITES.items()
    for count in CHUNKS
}
OF_KNOWN = frozenset({"changes", "ended"})
"""Statements whose rows are of jobs that are stored: of others nothing is written."""


class Change(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The changes of a job after its submission. `spec` and `request`: None if they are as submitted."""

    phase: Phase
    story: list[Step] = []
    tries: Count = 0
    allocation: str = ""
    begun: bool = False
    retried: Count = 0
    evicted: Count = 0
    plans: Count = 0
    preempted_by: str = ""
    used: Used | None = None
    unused: str = ""
    walls: str = ""
    released: Finite = 0.0
    spec: JobSpec | None = None
    request: Request | None = None


_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode
_change = msgspec.msgpack.Decoder(Change).decode
_FIELDS = tuple(name for name in Change.__struct_fields__ if name not in ("spec", "request"))


def encode_change(job: Job) -> bytes:
    """Encode the changes of a job."""
    changed = Change(
        phase=job.phase,
        story=job.story,
        tries=job.tries,
        allocation=job.allocation,
        begun=job.begun,
        retried=job.retried,
        evicted=job.evicted,
        plans=job.plans,
        preempted_by=job.preempted_by,
        used=job.used,
        unused=job.unused,
        walls=job.walls,
        released=job.released,
        spec=job.spec if job.amended else None,
        request=job.request if job.amended else None,
    )
    return _encode(changed)


def decode_job(body: bytes, change: bytes | None) -> Job:
    """A job of its rows. Raises msgspec.DecodeError, and ValueError."""
    job = _job(body)
    if change is not None:
        changed = _change(change)
        for name in _FIELDS:
            setattr(job, name, getattr(changed, name))
        if changed.spec is not None and changed.request is not None:
            job.spec, job.request, job.amended = changed.spec, changed.request, True
    return job


MACHINE, PAUSED = "machine/", "paused-pools"
"""The rows of `meta` with a machine each, by its name behind this, and with the pools that are paused."""
RETURNS = "returns/"
"""The rows of `meta` with what owners' returns came to on a node, by its name behind this."""
BALANCING = "balancing"
"""The row of `meta` with what operators have set of mode and policy."""
META: dict[str, Callable[[Any], Any]] = {
    BALANCING: msgspec.msgpack.Decoder(BalancingOrder).decode,
    PAUSED: msgspec.msgpack.Decoder(dict[str, Paused]).decode,
    MACHINE: msgspec.msgpack.Decoder(Machine).decode,
    RETURNS: msgspec.msgpack.Decoder(tuple[int, int]).decode,
    "restored": float,
    "restored-epoch": int,
}
"""What decodes the rows of `meta` that a start needs; without one of them it goes on."""


def _read_meta(name: str, value: Any) -> None:
    kind, slash, _ = name.partition("/")
    if (decode := META.get(kind + slash)) is not None:
        decode(value)


def _read_receipt(name: str, body: bytes) -> None:
    _decode(body)


def _read_numbers(name: str, *values: float) -> None:
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{values} are not amounts")


class _Unchecked(NamedTuple):
    """How a table without checksums is read: the key as bytes, other columns, and their decoder."""

    key: str
    columns: str
    read: Callable[..., None]


_UNCHECKED = {
    "meta": _Unchecked("CAST(name AS BLOB)", "iif(typeof(value) = 'text', CAST(value AS BLOB), value)", _read_meta),
    "receipts": _Unchecked("CAST(id AS BLOB)", "body", _read_receipt),
    "shares": _Unchecked("CAST(user AS BLOB)", "past, at", _read_numbers),
    "loans": _Unchecked("CAST(lender || char(0) || borrower AS BLOB)", "past, at", _read_numbers),
    "spent": _Unchecked("CAST(pool AS BLOB)", "day, cpu, gpu", _read_numbers),
}


class _Checked(NamedTuple):
    """How a table is read for its checksums: the key, the checksum, the body, what else is in the checksum (the first
    is the name), and the condition."""

    key: str
    columns: str
    among: str
    live: str = ""


_OF_JOB = "CROSS JOIN jobs ON jobs.n = {0}.n"
_CHECKED = {
    "jobs": _Checked("jobs.n", "id, key, user, name, submitted", "jobs", "live CROSS JOIN jobs ON jobs.n = live.n"),
    "changes": _Checked("changes.n", "id, state, node", f"changes {_OF_JOB.format('changes')}"),
    "ended": _Checked("ended.n", "id, ended.user, ended, boost, failed", f"ended {_OF_JOB.format('ended')}", "-"),
    "past_allocations": _Checked("CAST(id AS BLOB)", "id, node", "past_allocations", "-"),
    "groups": _Checked("rowid", "id, key, user, submitted, ended", "groups"),
    "nodes": _Checked("CAST(name AS BLOB)", "name", "nodes"),
    "node_orders": _Checked("CAST(name AS BLOB)", "name", "node_orders"),
    "rights": _Checked("CAST(name AS BLOB)", "name", "rights"),
}
"""The tables with checksums; `live`: where to read only what is loaded at a start (`-`: nothing)."""
KEYS = {
    **{table: one.key for table, one in _CHECKED.items()},
    **{table: one.key for table, one in _UNCHECKED.items()},
    **{"jobs": "n", "live": "n", "changes": "n", "ended": "n"},
}
"""The key of each table by which damaged rows are removed. A text may be damaged, so it is compared as bytes."""
_STRAYS = {
    "live": ("live", "n NOT IN (SELECT n FROM jobs)", "a live job is missing"),
    "changes": ("changes", "n NOT IN (SELECT n FROM live)", "what has changed of a live job is of none"),
    "ended": ("ended", "n NOT IN (SELECT n FROM jobs)", "an ended job is missing"),
    "both": ("live", "n IN (SELECT n FROM ended)", "a job that has ended is live"),
    "neither": ("jobs", "n NOT IN (SELECT n FROM live) AND n NOT IN (SELECT n FROM ended)", "a job has no state"),
}
"""Rows that contradict those of other tables: the table, which, and a description."""
_QUICK = ("live", "changes")


class Damaged(NamedTuple):
    """A row whose checksum does not match, or that contradicts another: its table, key, and a description."""

    table: str
    key: Any
    what: str


def checksum(body: bytes, *values: Any) -> int:
    """The checksum of a row."""
    text = "\0".join([one if type(one) is str else _text(one) for one in values])
    return zlib.crc32(text.encode(errors="replace"), zlib.crc32(body))


def _text(value: Any) -> str:
    return str(float(value)) if isinstance(value, (int, float)) else str(value)


def damaged_rows(db: sqlite3.Connection, live: bool = False) -> Iterator[Damaged]:
    """The rows whose checksum does not match, that contradict others, or that cannot be decoded; `live`: only those
    loaded at a start. Raises sqlite3.Error."""
    before, db.text_factory = db.text_factory, lambda data: data.decode(errors="replace")
    try:
        yield from _damaged_rows(db, live)
    finally:
        db.text_factory = before
    yield from unreadable_rows(db)


def _damaged_rows(db: sqlite3.Connection, live: bool) -> Iterator[Damaged]:
    for table, (key, columns, among, if_live) in _CHECKED.items():
        if live and if_live == "-":
            continue
        more = "allocation, allocation_sum" if table == "changes" else "NULL, NULL"
        query = f"SELECT {key}, {table}.sum, {table}.body, {more}, {columns} "  # noqa: S608
        for found, kept, body, allocation, allocation_sum, *values in db.execute(
            f"{query} FROM {if_live if live and if_live else among}"
        ):
            if kept != checksum(body, *values) or (allocation is not None and allocation_sum != checksum(allocation)):
                yield Damaged(table, found, f"{table}: the row of {values[0]!s:.64} is not what was written")
    yield from stray_rows(db, live)


def unreadable_rows(db: sqlite3.Connection) -> Iterator[Damaged]:
    """The rows without a checksum that cannot be decoded. Raises sqlite3.Error."""
    for table, (key, columns, read) in _UNCHECKED.items():
        for found, *values in db.execute(f"SELECT {key}, {columns} FROM {table}"):  # noqa: S608
            try:
                read(found.decode(), *values)
            except (ValueError, TypeError, OverflowError):
                name = found.decode(errors="replace")
                yield Damaged(table, found, f"{table}: the row of {name:.64} cannot be read")


def stray_rows(db: sqlite3.Connection, live: bool = False) -> Iterator[Damaged]:
    """Rows of jobs that contradict those of other tables."""
    for table, which, what in (_STRAYS[name] for name in (_QUICK if live else _STRAYS)):
        for (found,) in db.execute(f"SELECT n FROM {table} WHERE {which}"):  # noqa: S608
            yield Damaged(table, found, f"{table}: {what}, number {found}")


RECEIPTS_KEPT = 10_000
"""Minimum number kept; trimmed at a tenth more."""
TRIM_RECEIPTS = "DELETE FROM receipts WHERE at < (SELECT at FROM receipts ORDER BY at DESC LIMIT 1 OFFSET ?)"

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
        rows = read("SELECT id FROM jobs WHERE user = ? ORDER BY submitted DESC, n DESC LIMIT 1", (user,))
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
