"""Asking for the receipts of preemptions."""

from distributed_grid.protocol.messages_hello import Message
from distributed_grid.protocol.numbers import Code, Number
from distributed_grid.protocol.receipts import Receipt


class GetReceipts(Message, frozen=True, tag="get-receipts"):
    """What was preempted, at most `limit`, the newest first. `job` (id, unique prefix, name or `last`): only where it
    took a place or gave one; `node`: only there. Answered by Receipts."""

    id: Number
    job: str = ""
    node: str = ""
    limit: Code = 100


class Receipts(Message, frozen=True, tag="receipts"):
    """The receipts, as they are on disk."""

    id: Number
    receipts: tuple[Receipt, ...]
