"""While the disk does not take what must not be lost: what is said of it, and what is refused."""

import time
from collections.abc import Callable

import structlog

from distributed_grid.coordinator.store_failed import DiskTrouble
from distributed_grid.protocol.durations import format_duration
from distributed_grid.protocol.errors import GridError

log = structlog.get_logger("disk")


class Trouble:
    """Whether there is any. `told` is called with the words when it begins, and with none when it is over."""

    def __init__(self) -> None:
        self.error: DiskTrouble | None = None
        self.told: Callable[[str], None] = lambda words: None
        self._began = 0.0

    def begin(self, error: DiskTrouble) -> bool:
        """It is here, for this reason; whether it was not before."""
        first, self.error = self.error is None, error
        if first:
            self._began = time.monotonic()
            log.error("the grid takes no new jobs: the disk is in trouble", what=error.what, why=error.why)
            self.told(self.words())
        return first

    def end(self) -> None:
        """It is over."""
        log.warning("the disk is well again, new jobs are taken", seconds=round(time.monotonic() - self._began, 1))
        self.error = None
        self.told("")

    def words(self) -> str:
        """It in one sentence, for who asks how the grid is; empty: there is none."""
        if self.error is None:
            return ""
        since = format_duration(time.monotonic() - self._began)
        return f"no new jobs are taken since {since}: {self.error.what} ({self.error.why}); {self.error.hint}"

    def refuse(self) -> None:
        """Raise GridError for a request that would need the disk."""
        if self.error is not None:
            why = f"{self.error.what}: {self.error.why}"
            hint = f"{self.error.hint}; the grid goes on by itself, and what runs is not affected"
            raise GridError("the grid takes no new jobs and orders now", why, hint)
