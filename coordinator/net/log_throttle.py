"""Log lines about peers that are turned away: what is wrong with an address is said once in a while, however often it
comes back."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import structlog

SECONDS = 10.0
LINES = 20
"""The most lines about one address in that time, where a new thing is wrong with it each time."""
ADDRESSES = 10_000
"""Addresses that are remembered; of more, the one whose time began the longest ago is forgotten."""

log = structlog.get_logger("door")


@dataclass(slots=True)
class _Said:
    since: float
    lines: set[str] = field(default_factory=set)
    unsaid: int = 0


class Seldom:
    """Writes warnings. The first line of an address's next interval says how many were left out (`unsaid`)."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, _Said] = OrderedDict()

    def warning(self, event: str, peer: str, now: float | None = None, **more: Any) -> bool:
        """Log this about a peer, unless the same was said of it in this interval, or enough; whether it was logged."""
        now = time.monotonic() if now is None else now
        said = self._said.get(peer)
        unsaid = 0
        if said is None or now - said.since >= SECONDS:
            unsaid = said.unsaid if said is not None else 0
            said = self._said[peer] = _Said(now)
            self._said.move_to_end(peer)
            if len(self._said) > ADDRESSES:
                self._said.popitem(last=False)
        line = f"{event} {more}"
        if line in said.lines or len(said.lines) >= LINES:
            said.unsaid += 1
            return False
        said.lines.add(line)
        log.warning(event, peer=peer, **more, **({"unsaid": unsaid} if unsaid else {}))
        return True
