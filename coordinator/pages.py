"""What is more than one answer holds: the answer names the last that it has, most often a node, and the client asks for
what is behind that one.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from distributed_grid.coordinator import lookup
from distributed_grid.coordinator.core import views
from distributed_grid.coordinator.core.sight import Sight
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.messages import Boosts, BoostView, RayNode, Shared
from distributed_grid.protocol.nodes import AllocationView, NodeView, OfferView

T = TypeVar("T")


def nodes(state: GridState, now: float, past: str) -> tuple[tuple[NodeView, ...], str]:
    """The nodes behind the one named `past`, in the order of their names; and where to go on (empty: these are all)."""
    found, last = _page(((view.facts.name, view) for view in views.nodes(state, now)), past)
    return tuple(found), last


def shared(state: GridState, sight: Sight, now: float, number: int, only: str, past: str) -> Shared:
    """What is offered and what is lent on the nodes behind that one. All of one node is in one answer."""
    offers, allocations = views.offers(state, now, only), views.allocations(state, only)
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


def boosts(whole: Boosts, past: tuple[float, str] | None) -> Boosts:
    """Of all boosts, and then of Ray's nodes, as many as fit behind that boost and that node. Of boosts the time is
    told and not the id, which not everybody may know: those that were requested at one moment are in one answer."""
    after, node = past or (-1.0, "")
    size = 0
    found: list[BoostView] = []
    nodes: list[RayNode] = []
    for one in sorted(whole.boosts, key=lambda one: one.job.submitted):
        if one.job.submitted <= after:
            continue
        size += len(msgspec.msgpack.encode(one))
        if size > lookup.LIST_BYTES and found and one.job.submitted > found[-1].job.submitted:
            return msgspec.structs.replace(whole, boosts=tuple(found), nodes=(), past=(found[-1].job.submitted, node))
        found.append(one)
    after = found[-1].job.submitted if found else after
    for there in sorted(whole.nodes, key=lambda there: there.id):
        if there.id <= node:
            continue
        size += len(msgspec.msgpack.encode(there))
        if size > lookup.LIST_BYTES and (found or nodes):
            last = nodes[-1].id if nodes else node
            return msgspec.structs.replace(whole, boosts=tuple(found), nodes=tuple(nodes), past=(after, last))
        nodes.append(there)
    return msgspec.structs.replace(whole, boosts=tuple(found), nodes=tuple(nodes))


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
