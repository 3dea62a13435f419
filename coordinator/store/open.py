"""Opens a store: a missing one is created, a foreign or newer one is refused, an older one is migrated step by step
with a copy kept. Its head is one row with a checksum, which each commit writes with its number. Before a store is used
it is compared with the evidence outside (evidence.py); then the next epoch is begun durably, with the loss that was
found, if any."""

import os
import secrets
import shutil
import sqlite3
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from distributed_grid.coordinator.core.rollback import (
    Loss,
    Marked,
    Point,
    Traces,
    gone_back,
    joined,
    lost_commits,
    missing,
)
from distributed_grid.coordinator.store import evidence, rows
from distributed_grid.coordinator.store.damage import remove_damaged
from distributed_grid.coordinator.store.errors import StoreFailed, StoreRefused, as_sqlite, damaged
from distributed_grid.coordinator.store.rows import Damaged
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.logs import get_logger

SET_HEAD = "UPDATE meta SET value = ? WHERE name = 'head'"
"""Part of every commit."""
_PUT = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


def encode_head(point: Point) -> str:
    """The head as it is stored."""
    text = f"{point.grid} {point.epoch} {point.commits} {point.clock!r}"
    return f"{text} {zlib.crc32(text.encode()):08x}"


def decode_head(text: object) -> Point | None:
    """The head in this text; None if it is damaged."""
    said, _, check = str(text).rpartition(" ")
    parts = said.split(" ")
    try:
        if len(parts) == 4 and check == f"{zlib.crc32(said.encode()):08x}":
            return Point(parts[0], int(parts[1]), int(parts[2]), float(parts[3]))
    except ValueError:
        pass
    return None


def read_head(db: sqlite3.Connection) -> Point:
    """The last commit by the store's own head. Raises sqlite3.DatabaseError if that is damaged."""
    row = db.execute("SELECT value FROM meta WHERE name = 'head'").fetchone()
    head = decode_head(row[0]) if row is not None else None
    if head is None:
        raise sqlite3.DatabaseError("its head is not what was written")
    return head


def put_head(db: sqlite3.Connection, point: Point) -> None:
    """Store this head in the open transaction."""
    db.execute(_PUT, ("head", encode_head(point)))


def standing_loss(db: sqlite3.Connection) -> Loss | None:
    """The loss not yet accepted by an operator. Raises sqlite3.DatabaseError if it cannot be read."""
    row: Any = db.execute("SELECT value FROM meta WHERE name = 'loss'").fetchone()
    if row is None:
        return None
    try:
        return msgspec.json.decode(row[0], type=Loss)
    except (msgspec.DecodeError, TypeError) as error:
        raise sqlite3.DatabaseError(f"what it says of a loss cannot be read: {error}") from None


def put_loss(db: sqlite3.Connection, loss: Loss) -> None:
    """Store a loss, until it is accepted, in the open transaction."""
    db.execute(_PUT, ("loss", msgspec.json.encode(loss).decode()))


def accept_loss(db: sqlite3.Connection, at: float, epoch: int) -> None:
    """Remove the loss, from this epoch on."""
    db.execute("DELETE FROM meta WHERE name = 'loss'")
    put_restored(db, at, epoch)


def put_restored(db: sqlite3.Connection, at: float, epoch: int) -> None:
    """Record that allocations that nodes began before `at`, or messages sent to them before this epoch, may be unknown
    to this store."""
    db.execute(_PUT, ("restored", at))
    db.execute(_PUT, ("restored-epoch", epoch))


def key_of(db: sqlite3.Connection) -> bytes:
    """The key of the store's stamps; empty: none that can be read."""
    row = db.execute("SELECT CAST(value AS BLOB) FROM meta WHERE name = 'key'").fetchone()
    with suppress(ValueError):
        return bytes.fromhex(row[0].decode()) if row is not None else b""
    return b""


def put_key(db: sqlite3.Connection, key: bytes) -> None:
    """Store the key of its stamps in the open transaction."""
    db.execute(_PUT, ("key", key.hex()))


APPLICATION_ID = 0x47524944  # "GRID", as `file` shows it
SCHEMA = 2
NEWER_MOST = 100
"""A schema that is newer by more than this was not written, but comes of damage."""
PAGE = 1024
"""Bytes of a page of a new store. A commit writes whole pages, and of most it changes a row: small ones are less to
write; but too small for a job's row they would be more of them."""
MIGRATIONS = {
    1: "CREATE TABLE loans (lender TEXT NOT NULL, borrower TEXT NOT NULL, past REAL NOT NULL, at REAL NOT NULL,"
    " PRIMARY KEY (lender, borrower)) STRICT, WITHOUT ROWID;"
}
"""SQL that migrates a store from this schema to the next; schema.sql is the result."""
SPARE = 64 << 20
"""Bytes that must stay free beside a copy of an older store, for one to be kept."""

log = get_logger("store")


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """A connection for durable writes, for one thread at a time. `mode` "rwc" creates a missing file."""
    name = f"file:{quote(str(path))}?mode={mode}"
    db = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
    for pragma in (
        f"page_size = {PAGE}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = 1",
        "cache_size = -16384",
    ):
        try:
            db.execute(f"PRAGMA {pragma}")
        except UnicodeDecodeError as error:  # what SQLite says of a damaged file quotes it
            db.close()
            raise sqlite3.DatabaseError(str(error)) from None
    return db


def open_store(path: Path, grid: str = "") -> sqlite3.Connection:
    """A connection for writing to the store at `path`, migrated if necessary; a new store is of this `grid`, or of a
    new one. Raises StoreFailed and sqlite3.Error."""
    db = connect(path, "rwc")
    try:
        _bring_up_to_date(db, path, grid)
    except BaseException:
        db.close()
        raise
    return db


def _bring_up_to_date(db: sqlite3.Connection, path: Path, grid: str) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0 and not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        _create(db, grid or secrets.token_hex(8))
        return
    refuse_strangers(db, path)
    if db.execute("SELECT 1 FROM meta WHERE name = 'backup'").fetchone():
        raise StoreRefused(
            f"{path} is a backup",
            why="run as it is, it would start again what ran after it was taken",
            hint=f"grid coordinator restore {path.parent}",
        )
    while version < SCHEMA:
        _keep_copy(db, path, version)
        db.executescript(f"BEGIN IMMEDIATE; {MIGRATIONS[version]} PRAGMA user_version = {version + 1}; COMMIT;")
        version += 1
        log.info("the store was brought up to date", schema=version)


def refuse_strangers(db: sqlite3.Connection, path: Path) -> None:
    """Raise StoreFailed for a database that is not a grid's, or whose head is damaged, StoreRefused for one of a newer
    schema."""
    if (said := db.execute("PRAGMA application_id").fetchone()[0]) != APPLICATION_ID:
        if not _has_head(db):
            raise StoreFailed(f"{path} is not a store of a grid", hint="give another --state-dir")
        raise damaged(path, f"its tables are those of a grid, and its head says that it is of program {said:#x}")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if not 0 < version <= SCHEMA + NEWER_MOST:
        raise damaged(path, f"its head says that its schema is {version}, which no version has written")
    if version > SCHEMA:
        raise StoreRefused(
            f"{path} was written by a newer version",
            why=f"its schema is {version}, this software knows {SCHEMA}",
            hint="update this software, or give another --state-dir; if no newer version was ever run here, its head is"
            " damaged: grid coordinator restore BACKUP --force",
        )


def _has_head(db: sqlite3.Connection) -> bool:
    """Whether a database has what every store of a grid has."""
    try:
        return db.execute("SELECT 1 FROM meta WHERE name = 'head'").fetchone() is not None
    except sqlite3.OperationalError:  # there is no such table
        return False


def _create(db: sqlite3.Connection, grid: str) -> None:
    schema = Path(__file__).with_name("schema.sql").read_text()
    rows = f"('head', '{encode_head(Point(grid, 0, 0, 0.0))}'), ('clean', 1)"
    db.executescript(  # at once: a store that is killed here is there with all of it, or not at all
        f"BEGIN; {schema} INSERT INTO meta (name, value) VALUES {rows}; "  # noqa: S608
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA}; COMMIT;"
    )


def _keep_copy(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Keep a copy of the store before a migration, if the disk has space: a migration is one transaction in any
    case."""
    kept = path.with_name(f"{path.name}.schema-{version}")
    pages, page = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if shutil.disk_usage(path.parent).free < pages * page + SPARE:
        log.warning("no room to keep a copy of the store as it was", schema=version)
        return
    copy_whole(db, kept)
    log.info("a copy of the store as it was is kept", schema=version, copy=str(kept))


def copy_whole(db: sqlite3.Connection, to: Path) -> None:
    """Write a durable copy of what is committed to a file, atomically replacing an existing one."""
    fresh = to.with_name(f".{to.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        db.execute("VACUUM INTO ?", (str(fresh),))
        sync(fresh)
        os.replace(fresh, to)
    finally:
        fresh.unlink(missing_ok=True)
    sync(to.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


CHECKED_BYTES = 256 << 20
"""A larger store is not checked at a start, which has to be quick, but by `grid coordinator check`."""
THOROUGH_BYTES = 32 << 20
"""Up to this size, indexes are compared with tables too, at every start."""
AUDIT_ROWS = 10_000
"""Lines kept about late and stray messages, so that a peer cannot fill the disk with them."""
TRIM_AUDIT = """
    DELETE FROM audit WHERE rowid IN (
        SELECT rowid FROM (SELECT rowid, row_number() OVER (PARTITION BY node ORDER BY rowid DESC) AS place FROM audit)
        ORDER BY place, rowid DESC LIMIT -1 OFFSET ?
    )
"""
"""The newest lines of each node stay: a node that says a lot cannot push out what is told of others."""
BESIDE = ("-wal", "-shm")
NO_TRACES = Traces()
MIN_RETENTION = 600.0
"""Minimum retention of an ended job (s), whatever the bounds are: a client may be waiting for the result."""


class Outside(NamedTuple):
    """What was read of a store before it was opened: whether it exists, its log and its mark."""

    there: bool
    log: evidence.Wal
    mark: Marked


class Examined(NamedTuple):
    """The store's head, the evidence of lost commits, and how many are known to be lost."""

    point: Point
    found: list[str]
    lost: int


class OpenedStore(NamedTuple):
    """A store in a new epoch: the writing connection, its head, the standing loss, the key of its stamps, and its
    number of commits when it was found."""

    writer: sqlite3.Connection
    point: Point
    loss: Loss | None
    key: bytes
    found: int


@fault("coordinator.epoch", error=as_sqlite)
def _commit_epoch(db: sqlite3.Connection) -> None:
    db.execute("COMMIT")


def read_outside(path: Path) -> Outside:
    """Read what can be known of a store without SQLite. Raises StoreRefused if it is inaccessible."""
    try:
        mark = evidence.read_mark(path)  # before the log: a coordinator that is at work only adds to that
        there = path.exists() and path.stat().st_size > 0
        return Outside(there, evidence.read_wal(path), mark)
    except OSError as error:
        hint = "see that the coordinator's user may read it"
        raise StoreRefused(f"{error.filename or path} cannot be read", error.strerror or str(error), hint) from None


def examine(db: sqlite3.Connection, outside: Outside, traces: Traces) -> Examined:
    """Compare an opened store's head with the evidence outside. Raises sqlite3.DatabaseError if the head is damaged."""
    point = read_head(db)
    # What is removed by age may be lost, it goes again.
    found = gone_back(point, outside.mark, sum(outside.log.lost), outside.log.damaged, traces)
    if not outside.mark.same_boot:  # else that is exact
        found += _missing_jobs(db, point, traces)
    return Examined(point, found, lost_commits(point, outside.mark))


def _missing_jobs(db: sqlite3.Connection, point: Point, traces: Traces) -> list[str]:
    """Jobs that the audit log says were accepted and that the store lacks: they are committed before that is logged;
    those of more than ten minutes before the last commit may have been removed since."""
    row = db.execute("SELECT value FROM meta WHERE name = 'restored'").fetchone()
    since = max(point.clock - MIN_RETENTION, float(row[0]) if row else 0.0)
    gone = [
        name
        for name, at in traces.accepted
        if at > since
        and not db.execute(
            "SELECT 1 FROM jobs WHERE id = ? UNION SELECT 1 FROM groups WHERE id = ?", (name, name)
        ).fetchone()
    ]
    return [f"the audit log says that {gone[-1]} was taken, and it is not in the store"] if gone else []


def begin(path: Path, traces: Traces) -> OpenedStore:
    """Open or create the store at `path`, and begin the next epoch. Raises StoreFailed and sqlite3.Error."""
    outside = read_outside(path)
    found = [] if outside.there else missing(outside.mark, traces)
    marked = outside.mark.point
    if not outside.there:
        _set_aside(path)
    db = open_store(path, marked.grid if marked is not None else traces.grid)
    try:
        bad: list[Damaged] = []
        if outside.there:
            bad = _find_damage(db, path, outside)
        point, gone, lost = examine(db, outside if outside.there else Outside(False, evidence.Wal(), Marked()), traces)
        if outside.there:
            found += gone + [one.what for one in bad]
            if outside.mark.why == "damaged":
                log.warning("the high-water mark of the store is damaged and written again")
        if bad:
            _keep_damaged(db, path)
        key = key_of(db) or outside.mark.key or secrets.token_bytes(evidence.KEY_BYTES)
        begun, loss = _begin_epoch(db, point, marked, traces, found, lost, bad, key)
        return OpenedStore(db, begun, loss, key, point.commits)
    except UnicodeDecodeError as error:  # invalid UTF-8 in the store, or in SQLite's message
        db.close()
        raise sqlite3.DatabaseError(str(error)) from None
    except BaseException:
        db.close()
        raise


def _set_aside(path: Path) -> None:
    """Rename the log of a missing store, which SQLite would delete: it may be all that is left."""
    for end in BESIDE:
        left = path.with_name(path.name + end)
        if left.exists():
            aside = path.with_name(f"{left.name}.left-{time.strftime('%Y%m%d-%H%M%S')}")
            os.replace(left, aside)
            log.warning("what was left of a store is set aside", file=str(aside))


def _find_damage(db: sqlite3.Connection, path: Path, outside: Outside) -> list[Damaged]:
    """The damaged rows; of a large store those that are loaded. Raises sqlite3.DatabaseError with what SQLite finds."""
    size = path.stat().st_size
    clean = db.execute("SELECT value FROM meta WHERE name = 'clean'").fetchone()
    thorough = size <= THOROUGH_BYTES or outside.log.damaged >= 0
    if thorough or not ((clean and clean[0]) or size > CHECKED_BYTES):
        said = db.execute(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)").fetchone()[0]
        if said != "ok":
            raise sqlite3.DatabaseError(said)
    return list(rows.damaged_rows(db, live=not thorough))


def _keep_damaged(db: sqlite3.Connection, path: Path) -> None:
    """Keep a copy of the store, as damaged rows are removed."""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    copy_whole(db, aside)
    log.warning("the store has damaged rows, which are taken out; a copy with them is kept", copy=str(aside))


def _begin_epoch(
    db: sqlite3.Connection,
    point: Point,
    marked: Point | None,
    traces: Traces,
    found: list[str],
    lost: int,
    bad: list[Damaged],
    key: bytes,
) -> tuple[Point, Loss | None]:
    db.execute("BEGIN IMMEDIATE")
    if bad:
        found = found + remove_damaged(db, bad)
    before = standing_loss(db)
    loss = joined(before, secrets.token_hex(4), max(time.time(), point.clock), found, lost)
    epoch, commits, clock = max(point.epoch, traces.epoch), point.commits, point.clock
    if marked is not None:
        epoch, commits = max(epoch, marked.epoch), max(commits, marked.commits)
        clock = max(clock, marked.clock) if marked.grid == point.grid else clock
    if loss != before and marked is None:  # the lost store's epoch is unknown, and agents must obey this one
        epoch = max(epoch, int(time.time()))
    now = Point(point.grid, epoch + 1, commits + 1, clock)
    put_head(db, now)
    put_key(db, key)
    db.execute("UPDATE meta SET value = 0 WHERE name = 'clean'")
    if loss is not None and loss != before:
        put_loss(db, loss)
    db.execute(TRIM_AUDIT, (AUDIT_ROWS,))
    db.execute(rows.TRIM_RECEIPTS, (rows.RECEIPTS_KEPT,))
    _commit_epoch(db)
    return now, loss
