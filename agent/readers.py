"""The attached readers of running jobs. The supervisor is told how far each has read; the coordinator is told which
jobs are frozen until their reader has read more."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from distributed_grid.agent.core.table import Table
from distributed_grid.agent.launch.launcher import Launcher
from distributed_grid.protocol.messages import AwaitsReader, WantOutput
from distributed_grid.protocol.nodes import Known
from distributed_grid.runtime.unix import boot_clock

STEP = 32
"""How far a reader has read is passed on when it has read this part of what is kept for it, or"""
AGAIN = 5.0
"""after so many seconds: as a sign of life."""
MOST = 4096
"""Readers that are remembered; of more, the oldest are passed on more often."""


class Readers:
    """`say` sends the coordinator a message."""

    def __init__(self, launcher: Launcher, table: Table, say: Callable[[Any], None]) -> None:
        self._launcher, self._table, self._say = launcher, table, say
        self._passed_on: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._waiting: dict[str, str] = {}
        launcher.awaits_reader = self._took

    def asked(self, want: WantOutput) -> None:
        """Handle a request for output: an attached reader has read everything before it."""
        if not want.reader or not self._table.runs(want.allocation):
            return
        key, now = (want.allocation, want.reader, want.stream), boot_clock()
        offset, at = self._passed_on.get(key, (-1, 0.0))
        if 0 <= offset <= want.offset < offset + self._launcher.keep_output // STEP and now < at + AGAIN:
            return
        self._passed_on.pop(key, None)
        self._passed_on[key] = want.offset, now
        if len(self._passed_on) > MOST:
            del self._passed_on[next(iter(self._passed_on))]
        self._launcher.read(*key, want.offset)

    def inventory(self, known: Iterable[Known]) -> tuple[Known, ...]:
        """Return these allocations, with why they wait for their reader."""
        return tuple(replace(one, awaits_reader=self._waiting.get(one.allocation, "")) for one in known)

    def _took(self, message: AwaitsReader) -> None:
        self._waiting = {key: why for key, why in self._waiting.items() if self._table.runs(key)}
        if not message.why and message.allocation not in self._waiting:
            return
        self._waiting.pop(message.allocation, None)
        if message.why:
            self._waiting[message.allocation] = message.why
        self._say(message)
