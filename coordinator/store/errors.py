"""What a store that fails raises: trouble that passes when somebody sees to the disk, and what does not pass. And
the reserve: disk space kept back, so that results still fit when others have filled the rest.
"""

import errno
import os
import sqlite3
from contextlib import suppress
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


RESERVE_BYTES = 16 << 20
SPARE_BYTES = 4 << 20
"""What has to be free besides: made from the last bytes, the reserve would be given up at the next job."""
HARDLY_ANY = 1 << 20
"""With less than this free the disk counts as full already at a start."""


class Reserve:
    """The file `reserve` under the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "reserve"

    def ease(self) -> None:
        """Before a start: give it up where there is no other room. A coordinator that ended on a full disk has to be
        able to come back and take the results."""
        with suppress(OSError):
            if self._free() < HARDLY_ANY:
                self.give_up()

    def make(self) -> str:
        """Have it, made now if it is not there. Empty, or why not."""
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
        """Leave its room to the store."""
        with suppress(OSError):  # read-only, or it is not there: then there is none to be had
            self._path.unlink()

    def _free(self) -> int:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize
