"""While the disk does not take what must not be lost: what is said of it, and how what waits for it stays small."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, assert_never

import structlog

from distributed_grid.coordinator.core.model import (
    AckExits,
    Audit,
    Command,
    Publish,
    RecordAllocation,
    RecordJob,
    RecordNode,
    Send,
)
from distributed_grid.coordinator.store import Record
from distributed_grid.coordinator.store_failed import DiskTrouble
from distributed_grid.protocol.durations import format_duration
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.messages import Launch, Stop

LINES_KEPT = 1000
"""Lines for the audit table that wait at the most; the newest stay."""

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


def newest_records(records: Iterable[Record]) -> list[Record]:
    """Each job, allocation and node once. (Records hold the things themselves, so each is as new as any.)"""
    kept: dict[tuple[str, str], Record] = {}
    lines: deque[Record] = deque(maxlen=LINES_KEPT)
    for record in records:
        match record:
            case RecordJob(job):
                kept["job", job.id] = record
            case RecordAllocation(allocation):
                kept["allocation", allocation.id] = record
            case RecordNode(facts):
                kept["node", facts.name] = record
            case Audit():
                lines.append(record)
            case _:
                assert_never(record)
    return [*kept.values(), *lines]


def newest_commands(commands: Iterable[Command]) -> list[Command]:
    """In order; what would be said several times only once, at the place of the first, in the words of the last."""
    kept: dict[Any, Command] = {}
    for number, command in enumerate(commands):
        match command:
            case Publish(view):
                kept["publish", view.id] = command
            case Send(node, Launch() | Stop() as order):
                kept[node, type(order), order.allocation] = command
            case AckExits(node, allocations):
                kept[node, allocations] = command
            case _:
                kept[number] = command
    return list(kept.values())
