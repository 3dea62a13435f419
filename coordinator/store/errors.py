"""Errors of the store, transient (the disk) and permanent; and the reserve: disk space that is kept free for results
when the disk is full."""

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from distributed_grid.protocol.errors import GridError


class StoreFailed(GridError):
    """The store cannot be trusted or used. The process ends, as its memory differs from what is stored."""


class DiskTrouble(StoreFailed):
    """A transient failure of the disk: full, read-only, failing, or locked by another process."""


class StoreRefused(StoreFailed):
    """The store may be intact but is not usable by this process: a newer version, a backup, inaccessible. It is never
    treated as damaged."""


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
"""SQLite's error names, and name prefixes, for the disk's state rather than the store's."""


CHOICE = "grid coordinator restore BACKUP --force; without one: grid coordinator accept-loss"


def damaged(path: Path, why: str, hint: str = CHOICE) -> StoreFailed:
    """The error for a store whose file is damaged."""
    return StoreFailed(f"the store {path} is damaged", why=why, hint=hint)


NEWEST_FORMAT = 2
"""The largest format number in the head of a file of SQLite; a file with a larger one cannot be written."""


def _write_format(path: Path) -> int:
    """The number by which SQLite tells whether it can write a file; 0: it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(19)[18]
    except (OSError, IndexError):
        return 0


def failure(path: Path, error: sqlite3.Error) -> StoreFailed:
    """Convert an error of SQLite; DiskTrouble if it is transient."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if name.startswith("SQLITE_FULL"):
        return DiskTrouble(f"no space left for {path}", why=str(error), hint="free some space on that disk")
    if name.startswith("SQLITE_READONLY") and _write_format(path) > NEWEST_FORMAT:
        hint = "grid coordinator backup DIR copies what is in it; then grid coordinator restore DIR --force"
        return damaged(path, "its head names a format that no SQLite writes", hint)
    if name.startswith("SQLITE_READONLY"):
        return DiskTrouble(f"{path} cannot be written", why=str(error), hint="see why its disk is read-only")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DiskTrouble(f"the store {path} is locked by another process", why=str(error), hint="end that process")
    if name.startswith(_PASSING):
        return DiskTrouble(f"the disk fails under {path}", why=f"{error} ({name})", hint="look at that disk")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or name == "DatabaseError":
        return damaged(path, str(error))
    return StoreFailed(f"the store {path} cannot be used", why=f"{name}: {error}", hint="look at the disk it is on")


def as_sqlite(error: OSError) -> sqlite3.OperationalError:
    """SQLite's error for the kernel's, so that fault points behave like real failures."""
    name, text = {
        errno.ENOSPC: ("SQLITE_FULL", "database or disk is full"),
        errno.EROFS: ("SQLITE_READONLY", "attempt to write a readonly database"),
    }.get(error.errno or 0, ("SQLITE_IOERR_FSYNC", "disk I/O error"))
    made = sqlite3.OperationalError(text)
    made.sqlite_errorname = name
    return made


RESERVE_BYTES = 16 << 20
SPARE_BYTES = 4 << 20
"""Free space needed beside the reserve: made from the last bytes, it would be given up at the next job."""
MIN_FREE_BYTES = 1 << 20
"""With less free space than this the disk counts as full at a start."""


class Reserve:
    """The file `reserve` under the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "reserve"

    def ease(self) -> None:
        """Before a start: give the reserve up if the disk is full, so that the coordinator can start and take
        results."""
        with suppress(OSError):
            if self._free() < MIN_FREE_BYTES:
                self.give_up()

    def make(self) -> str:
        """Create the reserve if it is missing. Empty, or why that failed."""
        try:
            if self._path.exists() and self._path.stat().st_blocks * 512 >= RESERVE_BYTES:
                return ""
            if (free := self._free()) < RESERVE_BYTES + SPARE_BYTES:
                return f"{free >> 20} MiB are free, {RESERVE_BYTES + SPARE_BYTES >> 20} MiB are needed for new jobs"
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)
        except OSError as error:
            self.give_up()
            return error.strerror or str(error)
        return ""

    def give_up(self) -> None:
        """Free its space for the store."""
        with suppress(OSError):  # read-only, or missing
            self._path.unlink()

    def _free(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize
