"""Opening a store: one is made where there is none; what is no store of ours or a newer one is refused; an older one is
brought up to date, step by step, with a copy kept of how it was."""

import os
import secrets
import shutil
import sqlite3
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import structlog

from distributed_grid.coordinator.core.rollback import Point
from distributed_grid.coordinator.store import head
from distributed_grid.coordinator.store.errors import StoreFailed, StoreRefused

APPLICATION_ID = 0x47524944  # "GRID", as `file` shows it
SCHEMA = 1
MIGRATIONS: dict[int, str] = {}
"""What makes a store of the next schema out of one of this. schema.sql says where they lead to."""
SPARE = 64 << 20
"""Bytes that must be left on the disk beside the copy of an older store, for one to be kept."""

log = structlog.get_logger("store")


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """A connection for writing: what it commits is on the disk. It is used by one thread at a time. `mode` "rwc": make
    the file where there is none."""
    name = f"file:{quote(str(path))}?mode={mode}"
    db = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False, timeout=5)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = 1", "cache_size = -16384"):
        try:
            db.execute(f"PRAGMA {pragma}")
        except UnicodeDecodeError as error:  # what SQLite says of a damaged file quotes it
            db.close()
            raise sqlite3.DatabaseError(str(error)) from None
    return db


def open_store(path: Path, grid: str = "") -> sqlite3.Connection:
    """A connection for writing to the store of this schema at `path`; one that is made is of this `grid`, or of a new
    one. Raises StoreFailed where there can be none, and sqlite3.Error."""
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
    """Raise StoreFailed for a database that is not a grid's, StoreRefused for one of a newer schema."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreFailed(f"{path} is not a store of a grid", hint="give another --state-dir")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise StoreRefused(
            f"{path} was written by a newer version",
            why=f"its schema is {version}, this software knows {SCHEMA}",
            hint="update this software, or give another --state-dir",
        )


def _create(db: sqlite3.Connection, grid: str) -> None:
    schema = files("distributed_grid.coordinator.store").joinpath("schema.sql").read_text()
    rows = f"('head', '{head.encode(Point(grid, 0, 0, 0.0))}'), ('clean', 1)"
    db.executescript(  # at once: a store that is killed here is there with all of it, or not at all
        f"BEGIN; {schema} INSERT INTO meta (name, value) VALUES {rows}; "  # noqa: S608
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA}; COMMIT;"
    )


def _keep_copy(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Keep the store as it is beside itself, for who wants to go back; where the disk is too full for it, do without:
    the step to the next schema is one transaction in any case."""
    kept = path.with_name(f"{path.name}.schema-{version}")
    pages, page = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    if shutil.disk_usage(path.parent).free < pages * page + SPARE:
        log.warning("no room to keep a copy of the store as it was", schema=version)
        return
    copy_whole(db, kept)
    log.info("a copy of the store as it was is kept", schema=version, copy=str(kept))


def copy_whole(db: sqlite3.Connection, to: Path) -> None:
    """Write a copy of what is committed to a file: whole and durable, or not at all; one that was there is replaced."""
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
    """Have a file, or the names in a directory, on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
