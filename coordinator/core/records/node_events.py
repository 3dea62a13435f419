"""What operators and doubts bring about nodes, and what is to be durable about them."""

import msgspec

from distributed_grid.protocol.nodes import NodeFacts, NodeOrders


class DrainAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator `by` this name wants these nodes to get no new job; `deadline` seconds from now what still runs
    there is taken back (below zero: never)."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""
    reason: str = ""
    deadline: float = -1.0


class UndrainAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to get jobs again."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class LabelAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to have these labels; None: not to have them."""

    token: int
    nodes: tuple[str, ...]
    labels: dict[str, str | None]
    by: str = ""


class NodeDoubted(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """A node says what cannot be, as `found` has it, and nothing proves it."""

    node: str
    found: str


class ForgetAsked(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """The operator wants these nodes to be no more."""

    token: int
    nodes: tuple[str, ...]
    by: str = ""


class RecordNode(msgspec.Struct, frozen=True, gc=False):
    """Make what is known of this node durable, so that never-fits can be said also after a restart."""

    facts: NodeFacts


class RecordOrders(msgspec.Struct, frozen=True, gc=False):
    """Make what is ordered for this node durable."""

    node: str
    orders: NodeOrders


class RecordForgotten(msgspec.Struct, frozen=True, gc=False):
    """This node is no more."""

    node: str
