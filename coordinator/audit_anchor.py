"""The anchor of the audit log in the store: the number and the hash of a line that was on the disk, and the number of
the oldest line that has to be there."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from distributed_grid.coordinator.audit import NOTHING
from distributed_grid.protocol.errors import GridError

NAME = "audit"


class StoreAnchor:
    """Opens the store for each word: that is once in a few seconds, and from a thread of its own."""

    def __init__(self, store: Path) -> None:
        self._store = store

    def read(self) -> tuple[int, str, int]:
        """What was written last; 0: nothing. Raises GridError."""
        with _opened(self._store, "ro") as db:
            row = db.execute("SELECT value FROM meta WHERE name = ?", (NAME,)).fetchone()
        parts = str(row[0]).split(" ") if row else []
        number, hashed, oldest = [*parts, *("0", NOTHING, "0")[len(parts) :]][:3]
        if not (number.isdecimal() and oldest.isdecimal()):
            raise GridError(f"the anchor of the audit log in {self._store} is damaged", hint="grid coordinator check")
        return int(number), hashed, int(oldest)

    def write(self, number: int, hashed: str, oldest: int) -> None:
        """Keep this one. Raises GridError."""
        with _opened(self._store, "rw") as db:
            said = f"{number} {hashed} {oldest}"
            db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (NAME, said))


@contextmanager
def _opened(store: Path, mode: str) -> Iterator[sqlite3.Connection]:
    try:
        db = sqlite3.connect(f"file:{quote(str(store))}?mode={mode}", uri=True, timeout=5, isolation_level=None)
        try:
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise GridError(f"the anchor of the audit log in {store} is out of reach", why=str(error)) from None
