"""Beginning on a store: it is compared with what else is known of it before anything is taken from it. Then the new
epoch is made durable, with the loss that was found if there was one.
"""

import os
import secrets
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

import structlog

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
from distributed_grid.coordinator.store import head, receipts, sums, wal
from distributed_grid.coordinator.store import mark as store_mark
from distributed_grid.coordinator.store.errors import StoreRefused, as_sqlite
from distributed_grid.coordinator.store.open import copy_whole, open_store
from distributed_grid.coordinator.store.sums import Damaged
from distributed_grid.runtime.faults import fault

CHECKED_BYTES = 256 << 20
"""A larger store is not read through at a start, which has to be quick: `grid coordinator check` does that."""
THOROUGH_BYTES = 32 << 20
"""Up to this size its indexes are compared with its tables, too, and that at every start."""
AUDIT_ROWS = 10_000
"""The newest lines about late and stray messages that are kept: a peer that sends only such fills no disk."""
TRIM_AUDIT = "DELETE FROM audit WHERE rowid <= (SELECT max(rowid) FROM audit) - ?"
BESIDE = ("-wal", "-shm")
NO_TRACES = Traces()
YOUNG = 600.0
"""Seconds for which a job that has ended is kept in any case, as in retention.py."""

log = structlog.get_logger("store")


class Outside(NamedTuple):
    """What was read of a store from outside, before it was opened: whether there is one, its log and its mark."""

    there: bool
    log: wal.Log
    mark: Marked


class Examined(NamedTuple):
    """What a store says of itself, and what shows that it has lost commits; how many are known to be lost."""

    point: Point
    found: list[str]
    lost: int


class Begun(NamedTuple):
    """A store that was begun on: the connection that writes, how far it is, the loss that stands, the key of its
    stamps, and how many commits it had when it was found."""

    writer: sqlite3.Connection
    point: Point
    loss: Loss | None
    key: bytes
    found: int


@fault("coordinator.epoch", error=as_sqlite)
def _commit_epoch(db: sqlite3.Connection) -> None:
    db.execute("COMMIT")


def look_outside(path: Path) -> Outside:
    """What can be known of a store without SQLite. Raises StoreRefused where it is out of reach."""
    try:
        mark = store_mark.read(path)  # before the log: a coordinator that is at work only adds to that
        there = path.exists() and path.stat().st_size > 0
        return Outside(there, wal.read(path), mark)
    except OSError as error:
        hint = "see that the coordinator's user may read it"
        raise StoreRefused(f"{error.filename or path} cannot be read", error.strerror or str(error), hint) from None


def examine(db: sqlite3.Connection, outside: Outside, traces: Traces) -> Examined:
    """Compare what an opened store says of itself with what is known outside of it. Raises sqlite3.DatabaseError where
    that is not what was written."""
    point = head.read(db)
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'meta'").fetchone()[0]
    # Commits of the coordinator itself all write the head; what is removed by age may be lost, it goes again.
    behind = sum(root in pages for pages in outside.log.lost)
    found = gone_back(point, outside.mark, behind, outside.log.damaged, traces)
    if not outside.mark.same_boot:  # else that is exact
        found += _not_there(db, point, traces)
    return Examined(point, found, lost_commits(point, outside.mark))


def _not_there(db: sqlite3.Connection, point: Point, traces: Traces) -> list[str]:
    """Jobs that were taken, as the audit log says, and are not in the store. They are on disk before that is said;
    those of more than ten minutes before its last commit may have been removed since."""
    row = db.execute("SELECT value FROM meta WHERE name = 'restored'").fetchone()
    since = max(point.clock - YOUNG, float(row[0]) if row else 0.0)
    gone = [
        name
        for name, at in traces.accepted
        if at > since
        and not db.execute(
            "SELECT 1 FROM jobs WHERE id = ?1 UNION SELECT 1 FROM groups WHERE id = ?1", (name,)
        ).fetchone()
    ]
    return [f"the audit log says that {gone[-1]} was taken, and it is not in the store"] if gone else []


def begin(path: Path, traces: Traces) -> Begun:
    """Open the store at `path`, or make one, and begin the next epoch. Raises StoreFailed and sqlite3.Error."""
    outside = look_outside(path)
    found = [] if outside.there else missing(outside.mark, traces)
    marked = outside.mark.point
    if not outside.there:
        _set_aside(path)
    db = open_store(path, marked.grid if marked is not None else traces.grid)
    try:
        bad: list[Damaged] = []
        if outside.there:
            bad = _look_for_damage(db, path, outside)
        point, gone, lost = examine(db, outside if outside.there else Outside(False, wal.Log(), Marked()), traces)
        if outside.there:
            found += gone + [one.what for one in bad]
            if outside.mark.why == "damaged":
                log.warning("the high-water mark of the store is damaged and made anew")
        if bad:
            _keep_copy(db, path)
        key = head.key_of(db) or outside.mark.key or secrets.token_bytes(store_mark.KEY_BYTES)
        begun, loss = _next(db, point, marked, traces, found, lost, bad, key)
        return Begun(db, begun, loss, key, point.commits)
    except UnicodeDecodeError as error:  # words that are none, also in what SQLite says of them
        db.close()
        raise sqlite3.DatabaseError(str(error)) from None
    except BaseException:
        db.close()
        raise


def _set_aside(path: Path) -> None:
    """What belongs to a store that is gone is not SQLite's to remove: it may be all that is left of it."""
    for end in BESIDE:
        left = path.with_name(path.name + end)
        if left.exists():
            aside = path.with_name(f"{left.name}.left-{time.strftime('%Y%m%d-%H%M%S')}")
            os.replace(left, aside)
            log.warning("what was left of a store is set aside", file=str(aside))


def _look_for_damage(db: sqlite3.Connection, path: Path, outside: Outside) -> list[Damaged]:
    """The rows that are not what was written, of a large store those that are loaded. Raises sqlite3.DatabaseError with
    what SQLite itself finds."""
    size = path.stat().st_size
    clean = db.execute("SELECT value FROM meta WHERE name = 'clean'").fetchone()
    thorough = size <= THOROUGH_BYTES or outside.log.damaged >= 0
    if thorough or not ((clean and clean[0]) or size > CHECKED_BYTES):
        said = db.execute(f"PRAGMA {'integrity_check' if thorough else 'quick_check'}(1)").fetchone()[0]
        if said != "ok":
            raise sqlite3.DatabaseError(said)
    return list(sums.damaged(db, live=not thorough))


def _keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Damaged rows are taken out: the store with them is kept."""
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    copy_whole(db, aside)
    log.warning("the store has damaged rows, which are taken out; a copy with them is kept", copy=str(aside))


def _next(
    db: sqlite3.Connection,
    point: Point,
    marked: Point | None,
    traces: Traces,
    found: list[str],
    lost: int,
    bad: list[Damaged],
    key: bytes,
) -> tuple[Point, Loss | None]:
    before = head.standing_loss(db)
    loss = joined(before, secrets.token_hex(4), max(time.time(), point.clock), found, lost)
    epoch, commits, clock = max(point.epoch, traces.epoch), point.commits, point.clock
    if marked is not None:
        epoch, commits = max(epoch, marked.epoch), max(commits, marked.commits)
        clock = max(clock, marked.clock) if marked.grid == point.grid else clock
    if loss != before and marked is None:  # how far the lost one had come is not known, and agents must obey this one
        epoch = max(epoch, int(time.time()))
    now = Point(point.grid, epoch + 1, commits + 1, clock)
    db.execute("BEGIN IMMEDIATE")
    head.put(db, now)
    head.put_key(db, key)
    sums.remove(db, bad)
    db.execute("UPDATE meta SET value = 0 WHERE name = 'clean'")
    if loss is not None and loss != before:
        head.put_loss(db, loss)
    db.execute(TRIM_AUDIT, (AUDIT_ROWS,))
    db.execute(receipts.TRIM, (receipts.ROWS,))
    _commit_epoch(db)
    return now, loss
