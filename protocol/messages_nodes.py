"""Messages by which the operator orders something for nodes. All of the named nodes, or none; each is answered by Done
once it is on disk, or by Failed."""

from distributed_grid.protocol.messages_hello import Message
from distributed_grid.protocol.numbers import Finite, Number


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
