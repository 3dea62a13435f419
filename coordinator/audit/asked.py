"""A request on its way to its answer. What came of it is written in the audit log, once, before the answer leaves."""

from typing import Any

from distributed_grid.coordinator.api.relay import Asker
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.audit.words import REASON_CHARS, about
from distributed_grid.protocol.messages import Failed, WantFile, WantFiles, WantOutput

REMEMBERED = 10_000
"""Allocations of one connection that are remembered as read from."""


class Asked:
    """`later`: its answer comes from the ledger, and who brings it says what came of it."""

    __slots__ = ("_about", "_log", "client", "later", "message")

    def __init__(self, log: RequestLog, client: Asker, message: Any) -> None:
        self._log = log
        self._about = about(message)
        self.client = client
        self.message = message
        self.later = False
        log.expect()

    @property
    def tag(self) -> str:
        """What its kind is called on the wire."""
        return str(self.message.__struct_config__.tag)

    def done(self, **more: Any) -> None:
        """It was done. Of output and files there is a line for each allocation, not one per piece."""
        if isinstance(self.message, WantOutput | WantFiles | WantFile):
            if self.message.allocation in self.client.read_from:
                return
            if len(self.client.read_from) >= REMEMBERED:
                self.client.read_from.clear()
            self.client.read_from.add(self.message.allocation)
        self._note("accepted", more)

    def refused(self, code: str, what: str) -> None:
        """It was not done; whoever asked is told by somebody else."""
        self._note("refused", {"code": code, "why": what[:REASON_CHARS]})

    def fail(self, code: str, what: str, why: str = "", hint: str = "") -> None:
        """It cannot be done: say so."""
        self.refused(code, what)
        self.client.connection.send(Failed(getattr(self.message, "id", 0), code, what, why, hint))

    def _note(self, result: str, more: dict[str, Any]) -> None:
        if self._about is not None:
            client = self.client
            self._log.request(client.user, self.tag, result, **client.who, **self._about, **more)
