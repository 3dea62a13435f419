"""Messages by which the operator orders something for nodes (all of the named nodes, or none; each is answered by Done
once it is on disk, or by Failed), and asks for the receipts of preemptions.
"""

from distributed_grid.protocol.bounds import Code, Finite, Number
from distributed_grid.protocol.messages.handshake import Message
from distributed_grid.protocol.preemption import Receipt


class DrainNodes(Message, frozen=True, tag="drain-nodes"):
    """Give these nodes no new job; all of them, or none if one is not known. What still runs there `deadline` seconds
    from now is taken back (below zero: nothing is). Answered by Done once it is on disk."""

    id: Number
    nodes: tuple[str, ...]
    reason: str = ""
    deadline: Finite = -1.0


class UndrainNodes(Message, frozen=True, tag="undrain-nodes"):
    """Give these nodes jobs again. Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]


class LabelNodes(Message, frozen=True, tag="label-nodes"):
    """These nodes have these labels from now on, None: not (any more). Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]
    labels: dict[str, str | None]


class ForgetNodes(Message, frozen=True, tag="forget-nodes"):
    """These nodes are no more: neither they nor what was ordered for them is known afterwards. Refused of a node that
    is connected, or on which something is held. Answered as DrainNodes."""

    id: Number
    nodes: tuple[str, ...]


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
