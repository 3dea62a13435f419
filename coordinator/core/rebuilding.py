"""The room of a node, made anew from its offer and from what is held and kept there."""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.room import Room

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


def rebuild(ledger: "Ledger", node: Node) -> None:
    """Work out the node's room anew."""
    offer = node.offer
    node.closed = frozenset(device for device, (until, _) in node.declined.items() if until > ledger.now)
    if offer is None:
        node.room = None
        node.counting = {}
    else:
        held = {one.id: one.grant for one in node.allocations.values()} | node.strays
        node.counting = dict.fromkeys(name for name in offer.counting if name in held)
        room = Room(node.facts, offer, node.closed)
        if held:
            room.cap(held[name] for name in node.counting)
            for name, grant in held.items():
                if name not in node.counting:
                    room.take(grant)
        for grant in node.kept.values():
            room.take(grant)
        node.room = room
    ledger.refresh(node)
