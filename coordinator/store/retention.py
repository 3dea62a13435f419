"""Retention of ended jobs: bounded by age, number and size; the oldest are removed first.

Removal runs in steps, in a thread with its own connection. A step is one statement, so the write lock is held only
inside SQLite, for milliseconds, also while other threads have the interpreter. It is not synced: a power cut only
repeats it. Freed pages are reused, so the file does not shrink, but backups do.
"""

import json
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from distributed_grid.coordinator.store.open import MIN_RETENTION, connect
from distributed_grid.runtime.logs import get_logger

DAY = 86400.0
CHECK_INTERVAL = 60.0
"""Interval between checks (s)."""
STEP_SECONDS = 0.01
"""Target duration of a step; the number of rows is adapted to it."""
MOST_ROWS = 1000
SHARE = 10
"""After a step the thread pauses for this many times its duration."""
SPARE = 64 << 20
"""Bytes that must stay free on the disk: removal needs some at first."""

_BOUNDARY = "SELECT ended FROM ended INDEXED BY ended_at ORDER BY ended {} LIMIT 1 OFFSET ?"
_REMOVE = (
    "DELETE FROM ended WHERE n IN (SELECT n FROM ended INDEXED BY ended_at WHERE ended <= ? ORDER BY ended LIMIT ?)"
)
_SEEN = "UPDATE nodes SET seen = ? WHERE name IN (SELECT value FROM json_each(?))"

log = get_logger("retention")


@dataclass(frozen=True)
class Keep:
    """Retention of ended jobs: days, number and bytes; live ones are always kept."""

    days: float = 30.0
    jobs: int = 1_000_000
    size: int = 2 << 30


class Retention:
    """Keeps a store within its bounds, from `start` to `close`. `clock` returns grid time, `connected` the connected
    nodes, whose last-seen time is updated once a day."""

    def __init__(
        self, path: Path, keep: Keep, clock: Callable[[], float], connected: Callable[[], Iterable[str]]
    ) -> None:
        self._path = path
        self._keep = keep
        self._clock = clock
        self._connected = connected
        self._rows = 50
        self._seen_at = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop after the current step."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        said = ""
        while not self._stop.is_set():
            try:
                if removed := self.prune():
                    log.info("removed what ended long ago or is too much", jobs=removed)
                said = ""
            except (sqlite3.Error, OSError) as error:
                if str(error) != said:  # not repeated every minute
                    said = str(error)
                    log.warning("old jobs cannot be removed now", error=said)
            self._stop.wait(CHECK_INTERVAL)

    def prune(self) -> int:
        """Remove the excess in steps; the number of jobs removed."""
        if shutil.disk_usage(self._path.parent).free < SPARE:
            return 0
        db = connect(self._path)
        db.execute("PRAGMA synchronous = NORMAL")
        try:
            now = self._clock()
            if now - self._seen_at >= DAY:
                db.execute(_SEEN, (now, json.dumps(list(self._connected()))))
                self._seen_at = now
            return self._remove(db, self._boundary(db, now))
        finally:
            db.close()

    def _boundary(self, db: sqlite3.Connection, now: float) -> float:
        """Jobs that ended up to this time are removed."""
        boundary = now - self._keep.days * DAY
        if (newest := db.execute(_BOUNDARY.format("DESC"), (self._keep.jobs,)).fetchone()) is not None:
            boundary = max(boundary, newest[0])
        pages, free, page = (
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        used = (pages - free) * page
        if used > self._keep.size:
            ended = db.execute("SELECT count(*) FROM ended INDEXED BY ended_at").fetchone()[0]
            share = math.ceil(ended * (1 - self._keep.size / used))
            if share and (last := db.execute(_BOUNDARY.format("ASC"), (share - 1,)).fetchone()) is not None:
                boundary = max(boundary, last[0])
        return min(boundary, now - MIN_RETENTION)

    def _remove(self, db: sqlite3.Connection, boundary: float) -> int:
        removed = 0
        while not self._stop.is_set():
            rows = self._rows
            began = time.monotonic()
            went = db.execute(_REMOVE, (boundary, rows)).rowcount
            took = time.monotonic() - began
            removed += went
            if went < rows:
                break
            self._rows = max(1, min(MOST_ROWS, int(rows * min(2.0, STEP_SECONDS / max(took, 1e-6)))))
            self._stop.wait(took * SHARE)
        return removed
