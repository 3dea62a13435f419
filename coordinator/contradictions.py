"""What agents say that cannot be where the store is whole: a commit comes before everything that a node hears of it. So
a node that knows more than the store shows that the store has gone back.

The ledger sees that by itself for jobs that live; here is what takes a look into the store.
"""

from collections.abc import Callable
from typing import Any

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.rollback import LossFound
from distributed_grid.coordinator.store import Store
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Hello, Inventory
from distributed_grid.protocol.nodes import Known

MOST = 1000
"""Allocations of one inventory that are looked up."""


class Contradictions:
    """Looks at what agents say of themselves, and tells by `put` what it shows. `instance`: that of this process."""

    def __init__(
        self, store: Store, ledger: Ledger, put: Callable[[LossFound], None], clock: Callable[[], float], instance: str
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._put = put
        self._clock = clock
        self._instance = instance

    def hello(self, hello: Hello) -> None:
        """An agent introduces itself."""
        self._tell(of_hello(self._store, hello, self._instance))

    def told(self, node: str, message: Any) -> None:
        """An agent says something; what tells all that it knows of is looked at."""
        if type(message) is Inventory:
            self._tell(of_inventory(self._store, self._ledger, node, message, self._clock()))

    def _tell(self, found: str) -> None:
        if found:
            self._put(LossFound(found))


def of_hello(store: Store, hello: Hello, instance: str) -> str:
    """What an agent that introduces itself shows; empty: nothing. It tells whom it has obeyed last."""
    if not hello.obeyed or hello.obeyed[0] != store.grid:
        return ""
    _, epoch, other = hello.obeyed
    if epoch > store.epoch:
        return f"{hello.name} has obeyed epoch {epoch} of this grid, and the store is at epoch {store.epoch}"
    if epoch == store.epoch and other and other != instance:
        return f"{hello.name} has obeyed another coordinator of this grid at the same epoch {epoch}"
    return ""


def of_inventory(store: Store, ledger: Ledger, node: str, inventory: Inventory, now: float) -> str:
    """What the first inventory of a connection shows; empty: nothing."""
    for item in inventory.known[:MOST]:
        job, _, number = item.allocation.rpartition(".")
        if job in ledger.jobs or not number.isdecimal() or len(number) > 9:
            continue  # the ledger looks at it itself
        began = now - item.started_for if item.state is State.RUNNING else 0.0
        if (kept := store.job(job)) is not None:
            if kept.tries < int(number) and max(kept.submitted, began) > store.restored:
                return f"{node} knows of {item.allocation}, and the store has only {kept.tries} attempts of {job}"
        elif _is_new(item, began, store):
            return (
                f"{node} runs {item.allocation}, which began after the last commit of the store that was started from"
            )
    return ""


def _is_new(item: Known, began: float, store: Store) -> bool:
    """Whether it began after all that the store knew of, and before it was opened. What is older may have been removed
    by its age, or come from before a restore; what is newer is in the store, or was removed from it."""
    return item.state is State.RUNNING and max(store.clock, store.restored) < began < store.opened
