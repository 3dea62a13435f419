"""The coordinator's store: SQLite with one writer, and what is read from it.

What lives is in the ledger's memory; the store is what it is rebuilt from at start, and where ended jobs are looked up.
A commit goes in two steps: `snapshot` on the loop, which encodes the records as they are at that moment, and `commit`,
which may run in a thread of its own. What is looked up is what is committed.
"""

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.core.model import (
    Allocation,
    Audit,
    Job,
    RecordAllocation,
    RecordJob,
    RecordNode,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.nodes import NodeFacts

APPLICATION_ID = 0x47524944  # "GRID", as `file` shows it
SCHEMA = 1
CHECKED_BYTES = 256 << 20
"""A larger store is not read through after a crash: WAL does not need it, and a restart has to be quick."""
AUDIT_ROWS = 10_000
"""The newest lines about late and stray messages that are kept: a peer that sends only such fills no disk."""
AUDIT_TEXT = 500
"""Characters of such a line, in which there are names that peers chose."""
_TRIM_AUDIT = "DELETE FROM audit WHERE rowid <= (SELECT max(rowid) FROM audit) - ?"
_CHUNKS = (64, 16, 4, 1)
"""Rows per statement. One statement for many rows lets go of the interpreter once instead of once a row, so that the
writer thread and the loop do not take turns at every row; few sizes, so that the statements stay prepared."""

Record = RecordJob | RecordAllocation | RecordNode | Audit


class StoreFailed(GridError):
    """The disk did not take what must not be lost. The process ends: what it remembers is not what is stored."""


@dataclass(slots=True)
class Snapshot:
    """Rows to commit in one transaction."""

    clock: float
    jobs: list[Sequence[Any]] = field(default_factory=list)
    past_allocations: list[Sequence[Any]] = field(default_factory=list)
    nodes: list[Sequence[Any]] = field(default_factory=list)
    audit: list[Sequence[Any]] = field(default_factory=list)


@dataclass(slots=True)
class Living:
    """What a restart begins with: jobs not ended (oldest first), allocations not ended, all nodes ever seen."""

    jobs: list[Job]
    allocations: list[Allocation]
    nodes: list[NodeFacts]


_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode
_allocation = msgspec.msgpack.Decoder(Allocation).decode
_facts = msgspec.msgpack.Decoder(NodeFacts).decode

_UPSERTS = {
    "jobs": (
        "INSERT INTO jobs (id, key, user, name, state, submitted, ended, node, body, allocation) VALUES {} "
        "ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended = excluded.ended, node = excluded.node, "
        "body = excluded.body, allocation = coalesce(excluded.allocation, allocation)",
        10,
    ),
    "past_allocations": ("INSERT OR REPLACE INTO past_allocations (id, node, body) VALUES {}", 3),
    "nodes": ("INSERT INTO nodes (name, body) VALUES {} ON CONFLICT (name) DO UPDATE SET body = excluded.body", 2),
    "audit": ("INSERT INTO audit (at, node, what) VALUES {}", 3),
}
_STATEMENTS = {
    (table, count): text.format(", ".join([f"({', '.join('?' * width)})"] * count))
    for table, (text, width) in _UPSERTS.items()
    for count in _CHUNKS
}


class Store:
    """One open store. Opening it begins a new epoch, durably."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._audited = 0
        try:
            self._writer = self._open()
            self.epoch = self._begin()
            self._reader = sqlite3.connect(path, isolation_level=None)
            self._reader.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            raise _failure(path, error) from error
        self.grid = str(self._meta("grid"))
        self.clock = float(self._meta("clock"))

    def _open(self) -> sqlite3.Connection:
        # The writer is used here and then by the driver's one writer thread only.
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = 1", "cache_size = -16384"):
            db.execute(f"PRAGMA {pragma}")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            self._create(db)
        elif db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreFailed(f"{self._path} is not a store of a grid", hint="give another --state-dir")
        elif version > SCHEMA:
            raise StoreFailed(
                f"{self._path} was written by a newer version",
                why=f"its schema is {version}, this software knows {SCHEMA}",
                hint="update this software, or give another --state-dir",
            )
        return db

    @staticmethod
    def _create(db: sqlite3.Connection) -> None:
        schema = files("distributed_grid.coordinator").joinpath("schema.sql").read_text()
        grid = secrets.token_hex(8)
        db.executescript(
            f"BEGIN; {schema} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA}; COMMIT;"
        )
        rows = {"grid": grid, "epoch": 0, "clock": 0.0, "clean": 1}
        db.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", rows.items())

    def _begin(self) -> int:
        db = self._writer
        clean = db.execute("SELECT value FROM meta WHERE name = 'clean'").fetchone()
        if not (clean and clean[0]) and self._path.stat().st_size <= CHECKED_BYTES:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
        db.execute("UPDATE meta SET value = 0 WHERE name = 'clean'")
        db.execute(_TRIM_AUDIT, (AUDIT_ROWS,))
        epoch: int = db.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()[0]
        db.execute("COMMIT")
        return epoch

    def _meta(self, name: str) -> Any:
        return self._reader.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]

    def close(self) -> None:
        """Close after all commits are done; the next start need not look for damage."""
        self._reader.close()
        self._writer.execute("UPDATE meta SET value = 1 WHERE name = 'clean'")
        self._writer.close()

    def abandon(self) -> None:
        """Close after a failure: what was not committed is not there."""
        self._reader.close()
        self._writer.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def snapshot(self, records: Iterable[Record], clock: float) -> Snapshot:
        """Encode records as they are now. Of several records of one thing the newest state is all that is kept."""
        out = Snapshot(clock)
        jobs: dict[str, Job] = {}
        allocations: dict[str, Allocation] = {}
        nodes: dict[str, NodeFacts] = {}
        for record in records:
            match record:
                case RecordJob(job):
                    jobs[job.id] = job
                case RecordAllocation(allocation):
                    allocations[allocation.id] = allocation
                case RecordNode(facts):
                    nodes[facts.name] = facts
                case Audit(node, what):
                    out.audit.append((clock, node, what[:AUDIT_TEXT]))
        newest: dict[str, bytes] = {}
        for a in allocations.values():
            of = jobs.get(a.job)
            if of is not None and of.allocation == a.id:
                newest[a.job] = _encode(a)
            elif a.state is not State.ENDED:
                raise ValueError(f"{a.id} is recorded without its job")
            if a.state is State.ENDED and (of is None or of.state is not State.ENDED):
                out.past_allocations.append((a.id, a.node, _encode(a)))
        for id_, j in jobs.items():
            searched = (id_, j.key, j.user, j.spec.name, j.state.value, j.submitted, j.ended, j.node)
            out.jobs.append((*searched, _encode(j), newest.get(id_)))
        out.nodes = [(facts.name, _encode(facts)) for facts in nodes.values()]
        return out

    def commit(self, snapshot: Snapshot) -> None:
        """Make it durable: when this returns, it is on the disk. Raises StoreFailed, after which the store must not be
        used any more (what the disk has taken is not known)."""
        execute = self._writer.execute
        try:
            execute("BEGIN IMMEDIATE")
            for table, rows in (
                ("jobs", snapshot.jobs),
                ("past_allocations", snapshot.past_allocations),
                ("nodes", snapshot.nodes),
                ("audit", snapshot.audit),
            ):
                at = 0
                for count in _CHUNKS:
                    while len(rows) - at >= count:
                        execute(_STATEMENTS[table, count], [value for row in rows[at : at + count] for value in row])
                        at += count
            self._audited += len(snapshot.audit)
            if self._audited >= AUDIT_ROWS // 10:
                self._audited = 0
                execute(_TRIM_AUDIT, (AUDIT_ROWS,))
            execute("UPDATE meta SET value = ? WHERE name = 'clock'", (snapshot.clock,))
            execute("COMMIT")
        except sqlite3.Error as error:
            raise _failure(self._path, error) from error

    # --- reading ------------------------------------------------------------------------------------------------------

    def load(self) -> Living:
        """What lives: all that a restart has to read, however much history there is."""
        read = self._reader.execute
        live = read("SELECT body, allocation, state FROM jobs INDEXED BY jobs_live WHERE state <> 'ended'").fetchall()
        return Living(
            sorted((_job(body) for body, _, _ in live), key=lambda job: (job.submitted, job.id)),
            [_allocation(held) for _, held, state in live if state != State.WAITING],
            [_facts(row[0]) for row in read("SELECT body FROM nodes ORDER BY name")],
        )

    def known(self, user: str, keys: Sequence[str]) -> dict[str, str]:
        """Which of a user's keys were submitted before, and the ids of their jobs."""
        found: dict[str, str] = {}
        for at in range(0, len(keys), 500):
            part = keys[at : at + 500]
            marks = ", ".join("?" * len(part))
            rows = self._reader.execute(
                f"SELECT key, id FROM jobs WHERE user = ? AND key IN ({marks})",  # noqa: S608
                (user, *part),
            )
            found.update(rows.fetchall())
        return found

    def job(self, job: str) -> Job | None:
        """A job as it was last stored, by its id."""
        row = self._reader.execute("SELECT body FROM jobs WHERE id = ?", (job,)).fetchone()
        return _job(row[0]) if row else None

    def find(self, ref: str, user: str) -> list[str]:
        """The ids of the jobs that a person may mean: one, none, or (several fit the prefix) up to 6.

        An id, `last` (this user's newest), a name (the newest so called, this user's before others'), or the beginning
        of an id, with or without `j-`.
        """
        read = self._reader.execute
        if ref == "last":
            rows = read("SELECT id FROM jobs WHERE user = ? ORDER BY submitted DESC, rowid DESC LIMIT 1", (user,))
            return [row[0] for row in rows]
        if exact := read("SELECT id FROM jobs WHERE id = ?", (ref,)).fetchone():
            return [exact[0]]
        named = "SELECT id FROM jobs WHERE name = ? AND name <> '' ORDER BY user = ? DESC, submitted DESC LIMIT 1"
        if newest := read(named, (ref, user)).fetchone():
            return [newest[0]]
        prefix = ref.lower() if ref.lower().startswith("j-") else f"j-{ref.lower()}"
        if len(prefix) < 3:
            return []
        rows = read("SELECT id FROM jobs WHERE id >= ? AND id < ? LIMIT 6", (prefix, prefix + "~"))
        return [row[0] for row in rows]

    def newest_names(self, user: str, limit: int = 200) -> list[str]:
        """Ids and names of a user's newest jobs, for a suggestion."""
        rows = self._reader.execute(
            "SELECT id, name FROM jobs WHERE user = ? ORDER BY submitted DESC LIMIT ?", (user, limit)
        )
        return [text for row in rows for text in row if text]

    def list_ended(self, limit: int, user: str = "") -> list[Job]:
        """The jobs that ended last, newest end first; of one user only if one is given."""
        rows = self._reader.execute(
            "SELECT body FROM jobs WHERE state = 'ended' AND (? = '' OR user = ?) ORDER BY ended DESC LIMIT ?",
            (user, user, limit),
        )
        return [_job(row[0]) for row in rows]

    def node_of(self, allocation: str) -> str:
        """The node an allocation was granted on that came to nothing; empty if there is no such allocation."""
        row = self._reader.execute("SELECT node FROM past_allocations WHERE id = ?", (allocation,)).fetchone()
        return row[0] if row else ""


def _failure(path: Path, error: sqlite3.Error) -> StoreFailed:
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith("SQLITE_FULL"):
        return StoreFailed(f"no space left for {path}", why=str(error), hint="free some space and start again")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or name == "DatabaseError":
        return StoreFailed(
            f"the store {path} is damaged", why=str(error), hint="restore a copy, or move it away to begin a new grid"
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreFailed(f"the store {path} is locked by another process", why=str(error))
    return StoreFailed(f"the store {path} cannot be used", why=f"{name}: {error}", hint="look at the disk it is on")
