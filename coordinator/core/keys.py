"""The keys of what has just ended: remembered until the shell is sure to find them on disk."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

KEPT = 4096


def put_by(ledger: "Ledger", user: str, key: str) -> None:
    """What this key stands for has ended."""
    ledger.past_keys[(user, key)] = ledger.keys.pop((user, key))
    if len(ledger.past_keys) > KEPT:
        del ledger.past_keys[next(iter(ledger.past_keys))]
