"""What is more than one answer holds, node by node: the answer names the last node it has, and the client asks for what
is behind that one.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from distributed_grid.coordinator import lookup
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.sight import Sight
from distributed_grid.protocol.messages import Shared
from distributed_grid.protocol.nodes import AllocationView, NodeView, OfferView

T = TypeVar("T")


def nodes(ledger: Ledger, now: float, past: str) -> tuple[tuple[NodeView, ...], str]:
    """The nodes behind the one named `past`, in the order of their names; and where to go on (empty: these are all)."""
    found, last = _page(((view.facts.name, view) for view in ledger.node_views(now)), past)
    return tuple(found), last


def shared(ledger: Ledger, sight: Sight, now: float, number: int, only: str, past: str) -> Shared:
    """What is offered and what is lent on the nodes behind that one. All of one node is in one answer."""
    offers, allocations = ledger.shared(now, only)
    of: dict[str, tuple[list[OfferView], list[AllocationView]]] = {}
    for offer in offers:
        of.setdefault(offer.node, ([], []))[0].append(offer)
    for allocation in allocations:
        of.setdefault(allocation.node, ([], []))[1].append(sight.allocation(allocation))
    found, last = _page(of.items(), past)
    return Shared(
        number,
        tuple(offer for on_one, _ in found for offer in on_one),
        tuple(allocation for _, on_one in found for allocation in on_one),
        last,
    )


def _page(of: Iterable[tuple[str, T]], past: str) -> tuple[list[T], str]:
    size, last = 0, ""
    found: list[T] = []
    for name, view in sorted((pair for pair in of if pair[0] > past), key=lambda pair: pair[0]):
        size += len(msgspec.msgpack.encode(view))
        if size > lookup.LIST_BYTES and found:
            return found, last
        found.append(view)
        last = name
    return found, ""
