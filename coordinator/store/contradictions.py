"""Messages of agents that contradict the store. A commit precedes every message about it to a node, so a node that
knows more than the store proves that the store has lost commits.

A node's claim alone proves nothing, or one node could stop a grid. What is sent to a node carries a *stamp*: the
store's commit number, authenticated with a key that is in the store and in the mark beside it, so that an older copy or
a replacement of the store recognises it. A claim with a valid stamp stops the grid until an operator has decided; a
claim without one counts against its node.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import LossFound, NodeDoubted
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.net.limits import LogThrottle
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Exited, Hello, Inventory, Launch
from distributed_grid.protocol.nodes import Known, Stamp

MOST = 1000
"""Maximum number of allocations of a connection's first inventory looked up in the store."""
SEAL_BYTES = 16

_encode = msgspec.msgpack.Encoder().encode


class Contradictions:
    """Checks what agents say of themselves, and reports contradictions by `put`. `instance`: that of this process."""

    def __init__(
        self,
        store: Store,
        state: GridState,
        put: Callable[[LossFound | NodeDoubted], None],
        clock: Callable[[], float],
        instance: str,
        throttle: LogThrottle,
    ) -> None:
        self._store = store
        self._state = state
        self._put = put
        self._clock = clock
        self._instance = instance
        self._throttle = throttle
        self._new: set[str] = set()

    # --- what goes out ------------------------------------------------------------------------------------------------

    def welcome_stamp(self, node: str) -> Stamp:
        """A stamp that proves later that the node was welcomed here."""
        return self._stamp(node, self._instance)

    def stamped(self, node: str, launch: Launch) -> Launch:
        """The launch with a stamp that proves later that it was granted here."""
        return replace(launch, stamp=self._stamp(node, launch.allocation))

    def _stamp(self, node: str, what: str) -> Stamp:
        store = self._store
        return Stamp(store.epoch, store.commits, self._seal(node, what, store.epoch, store.commits))

    def _seal(self, *said: str | int) -> str:
        body = _encode((self._store.grid, *said))
        return hashlib.blake2b(body, key=self._store.key, digest_size=SEAL_BYTES).hexdigest()

    def _proves(self, stamp: Stamp | None, node: str, what: str) -> bool:
        """Whether we told this node this, since the last restore: what was told before may be unknown here."""
        if stamp is None or stamp.epoch < self._store.restored_epoch:
            return False
        return hmac.compare_digest(self._seal(node, what, stamp.epoch, stamp.commits).encode(), stamp.seal.encode())

    def _is_lost(self, stamp: Stamp) -> bool:
        """Whether its commit was missing when the store was opened."""
        return stamp.epoch < self._store.epoch and stamp.commits > self._store.found

    # --- what comes in ------------------------------------------------------------------------------------------------

    def hello(self, hello: Hello) -> None:
        """Check which coordinator the agent obeyed last. To be called when the ledger knows the node."""
        self._new.add(hello.name)
        store = self._store
        if not hello.obeyed or hello.obeyed[0] != store.grid:
            return
        _, epoch, other = hello.obeyed
        proven = hello.stamp is not None and hello.stamp.epoch == epoch
        proven = proven and self._proves(hello.stamp, hello.name, other)
        found = ""
        if epoch > store.epoch:
            found = f"{hello.name} has obeyed epoch {epoch} of this grid, and the store is at epoch {store.epoch}"
        elif epoch == store.epoch and other and other != self._instance:
            found = f"{hello.name} has obeyed another coordinator of this grid at the same epoch {epoch}"
        elif proven and hello.stamp is not None and self._is_lost(hello.stamp):
            found = f"{hello.name} was welcomed after the last commit of the store that was started from"
        if found:
            self._tell(hello.name, found, proven)

    def check(self, node: str, message: Any) -> Any:
        """Check a message of an agent. Returns the message to believe: an unknown allocation's end keeps its stamp only
        if that is valid."""
        if type(message) is Exited:
            if message.stamp is None or message.allocation in self._state.allocations:
                return message
            proven = self._proves(message.stamp, node, message.allocation)
            self._check_known(node, Known(message.allocation, State.ENDED, stamp=message.stamp), proven)
            return message if proven else replace(message, stamp=None)
        if type(message) is Inventory:
            first = node in self._new
            self._new.discard(node)
            for at, item in enumerate(message.known):
                if item.allocation not in self._state.allocations:
                    proven = self._proves(item.stamp, node, item.allocation)
                    self._check_known(node, item, proven, first and at < MOST)
        return message

    def _check_known(self, node: str, item: Known, proven: bool, in_store: bool = False) -> None:
        """Check an allocation that is not live here, and report a contradiction."""
        store, (name, _, number) = self._store, item.allocation.rpartition(".")
        if not number.isascii() or not number.isdecimal() or len(number) > 9:
            return
        job: Job | None = self._state.jobs.get(name) or (store.job(name) if in_store else None)
        if job is not None and job.tries < int(number):
            began = self._clock() - item.started_for if item.state is State.RUNNING else 0.0
            if proven or max(job.submitted, began) > store.restored:
                found = f"{node} knows of {item.allocation}, and the store has only {job.tries} attempts of {name}"
                self._tell(node, found, proven)
        elif job is None and in_store and proven and item.stamp is not None and self._is_lost(item.stamp):
            found = f"{node} knows of {item.allocation}, which was granted after the last commit of the store"
            self._tell(node, f"{found} that was started from", proven)

    def _tell(self, node: str, found: str, proven: bool) -> None:
        if proven:
            self._put(LossFound(found))
            return
        self._throttle.warning("a node's word contradicts the store, and nothing proves it", node, said=found)
        self._put(NodeDoubted(node, found))
