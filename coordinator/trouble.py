"""While the disk does not take what must not be lost, or the store has lost commits: what is said, what is refused."""

import time
from collections.abc import Callable

import structlog

from distributed_grid.coordinator.core.rollback import CHOOSE, loss_words
from distributed_grid.coordinator.store_failed import DiskTrouble
from distributed_grid.protocol.durations import format_duration
from distributed_grid.protocol.errors import GridError

log = structlog.get_logger("disk")


class Trouble:
    """Whether there is any. `told` is called with the words when it begins, and with none when it is over."""

    def __init__(self) -> None:
        self.error: DiskTrouble | None = None
        self.found: tuple[str, ...] = ()
        """What shows that the store has lost commits."""
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
        self.told(self.words())

    def alarm(self, *found: str) -> None:
        """The store has lost commits, as this shows: that is not over before an operator has chosen."""
        self.found += tuple(one for one in found if one not in self.found)
        for one in found:
            log.error("nothing is started: the store has lost commits", found=one, hint=CHOOSE)
        self.told(self.words())

    def words(self) -> str:
        """It in one sentence, for who asks how the grid is; empty: there is none."""
        said = [loss_words(self.found)] if self.found else []
        if self.error is not None:
            since = format_duration(time.monotonic() - self._began)
            said.append(f"no new jobs are taken since {since}: {self.error.what} ({self.error.why}); {self.error.hint}")
        return "; ".join(said)

    def refuse_new(self) -> None:
        """Raise GridError for who would have something started."""
        if self.found:
            hint = f"an operator is to {CHOOSE}; what runs is not affected"
            raise GridError("the grid takes no new jobs now: its store has lost commits", self.found[0], hint)
        self.refuse()

    def refuse(self) -> None:
        """Raise GridError for a request that would need the disk."""
        if self.error is not None:
            why = f"{self.error.what}: {self.error.why}"
            hint = f"{self.error.hint}; the grid goes on by itself, and what runs is not affected"
            raise GridError("the grid takes no new jobs and orders now", why, hint)
