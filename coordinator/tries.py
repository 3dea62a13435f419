"""Tries that failed, by the address they came from: who fails too often is not heard for a while."""

import time
from collections import OrderedDict
from collections.abc import Callable

from distributed_grid.protocol.errors import GridError

FAILURES, PER = 10, 60.0
"""So many tries that fail are heard from one address in so many seconds."""
ADDRESSES = 10_000
"""Addresses whose failures are remembered; of more, the longest ago is forgotten."""


class Tries:
    """Those of one door. Secrets have 256 bits: this is for the log's sake, and many nodes may come by one address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def judge(self, peer: str) -> None:
        """Raise GridError for an address that has failed too often."""
        failures = [at for at in self._failures.get(peer, []) if at > self._clock() - PER]
        if len(failures) >= FAILURES:
            raise GridError("too many tries from this address have failed", hint=f"wait for {PER:g} s")

    def failed(self, peer: str) -> None:
        """This one did."""
        self._failures[peer] = [*self._failures.pop(peer, []), self._clock()][-FAILURES:]
        if len(self._failures) > ADDRESSES:
            self._failures.popitem(last=False)
