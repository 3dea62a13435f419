"""What a store that fails says: what will pass if somebody sees to the disk, and what will not."""

import errno
import sqlite3
from pathlib import Path

from distributed_grid.protocol.errors import GridError


class StoreFailed(GridError):
    """The store cannot be trusted or used. The process ends: what it remembers is not what is stored."""


class DiskTrouble(StoreFailed):
    """The disk did not take it now: full, read-only, failing, held by another. Once that has passed it may take it."""


class StoreRefused(StoreFailed):
    """The store may be whole, and is not for this process: of a newer version, a backup, out of its reach. It is never
    taken for damaged."""


_PASSING = (
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_PERM",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_PROTOCOL",
)
"""SQLite's own names, and with each those that begin so, for what is the disk's state and not the store's."""


def failure(path: Path, error: sqlite3.Error) -> StoreFailed:
    """An error of SQLite's in words for people; DiskTrouble where it may pass."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith("SQLITE_FULL"):
        return DiskTrouble(f"no space left for {path}", why=str(error), hint="free some space on that disk")
    if name.startswith("SQLITE_READONLY"):
        return DiskTrouble(f"{path} cannot be written", why=str(error), hint="see why its disk is read-only")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DiskTrouble(f"the store {path} is locked by another process", why=str(error), hint="end that process")
    if name.startswith(_PASSING):
        return DiskTrouble(f"the disk fails under {path}", why=f"{error} ({name})", hint="look at that disk")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or name == "DatabaseError":
        return StoreFailed(
            f"the store {path} is damaged",
            why=str(error),
            hint="grid coordinator restore BACKUP --force; without one: grid coordinator accept-loss",
        )
    return StoreFailed(f"the store {path} cannot be used", why=f"{name}: {error}", hint="look at the disk it is on")


def as_sqlite(error: OSError) -> sqlite3.OperationalError:
    """What SQLite would make of the kernel's error: for fault points, so that they are taken for the real thing."""
    name, text = {
        errno.ENOSPC: ("SQLITE_FULL", "database or disk is full"),
        errno.EROFS: ("SQLITE_READONLY", "attempt to write a readonly database"),
    }.get(error.errno or 0, ("SQLITE_IOERR_FSYNC", "disk I/O error"))
    made = sqlite3.OperationalError(text)
    made.sqlite_errorname = name
    return made
