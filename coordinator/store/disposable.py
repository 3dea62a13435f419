"""A SQLite file whose loss harms nobody, such as a history: opened at first use and again after an error, renamed when
it is damaged, and not written while the disk is nearly full.

All calls are made by one thread that is not the coordinator's main thread. Subclasses decide how much is kept.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from distributed_grid.runtime.logs import get_logger

SPARE = 64 << 20
"""Bytes that must stay free on the disk: below, nothing is written."""


class FullDisk(sqlite3.OperationalError):
    """The disk is nearly full, and its rest is left to others."""


class DisposableDatabase:
    """`schema` creates the tables of a new file. A file of another `version`, or with other tables, is put aside like a
    damaged one, and a new one is created. `what`: its content, for the log."""

    def __init__(self, path: Path, schema: str, version: int, what: str) -> None:
        self._path = path
        self._schema = schema
        self._version = version
        self._what = what
        self._db: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The open file. After an error it is closed, and put aside if it is damaged. Raises sqlite3.Error."""
        if self._db is None:
            self._db = self._open_or_begin()
        try:
            yield self._db
        except sqlite3.Error as error:
            self.close()
            if _is_damage(error):
                self._put_aside(error)
            raise
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: all of it is kept, or nothing. Raises sqlite3.Error, and FullDisk before it begins."""
        with self.reading() as db:
            if shutil.disk_usage(self._path.parent).free < SPARE:
                raise FullDisk("less than 64 MiB are free on the disk")
            db.execute("BEGIN")
            yield db
            db.execute("COMMIT")

    def close(self) -> None:
        """Close the file; it is opened again when it is used."""
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    def _opened(self, db: sqlite3.Connection) -> None:
        """Called with the file when it has been opened, for subclasses."""

    def _open_or_begin(self) -> sqlite3.Connection:
        try:
            return self._open()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._put_aside(error)
            return self._open()

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0 and not _tables(db):
                db.executescript(f"BEGIN; {self._schema} PRAGMA user_version = {self._version}; COMMIT;")
            elif version != self._version:
                raise sqlite3.DatabaseError(f"it has the format {version}, and {self._version} is written")
            elif not self._wanted().items() <= _tables(db).items():
                raise sqlite3.DatabaseError("it has not the tables of this version: it is of something else")
            os.chmod(self._path, 0o600)
            self._opened(db)
        except BaseException:
            db.close()
            raise
        return db

    def _wanted(self) -> dict[str, tuple[str, ...]]:
        """The tables of a new file."""
        with closing(sqlite3.connect(":memory:")) as db:
            db.executescript(self._schema)
            return _tables(db)

    def _put_aside(self, error: sqlite3.Error) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        log = get_logger(self._path.stem)
        log.error(f"{self._what} is damaged: it is renamed, and a new one is made", error=str(error), aside=str(aside))
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")
        with suppress(FileNotFoundError):
            os.replace(self._path, aside)


def _tables(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """The columns of each table."""
    columns = "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"
    found: dict[str, tuple[str, ...]] = {}
    for table, column in db.execute(f"{columns} ORDER BY m.name, c.cid"):
        found[table] = (*found.get(table, ()), column)
    return found


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether this is an error of the file itself, and not of the disk, of a lock or of the written data."""
    passing = sqlite3.OperationalError | sqlite3.IntegrityError
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, passing)
