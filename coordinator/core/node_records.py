"""What is to be durable about nodes: that they are there, what is ordered for them, and that they are no more."""

import msgspec

from distributed_grid.protocol.nodes import NodeFacts, NodeOrders


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
