"""Nodes that are no more: the operator has them forgotten, with all that was ordered for them. One that comes back is a
new node. Nothing that may still be in use is forgotten: a node that is connected, or on which something is held, stays.
"""

from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import reserving
from distributed_grid.coordinator.core.model import ForgetAsked, Granted, Node, RecordForgotten, RecordOrders, Rejected
from distributed_grid.coordinator.core.requests import unknown_node
from distributed_grid.protocol.orders import NO_ORDERS
from distributed_grid.protocol.resources import Resources

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

DUE = ("silence", "offer", "decline", "drain", "aside")
"""What is due for nodes."""


def forget(ledger: "Ledger", event: ForgetAsked) -> None:
    """These nodes are no more; all of them, or none."""
    nodes = []
    for name in dict.fromkeys(event.nodes):
        node = ledger.nodes.get(name)
        refusal = unknown_node(ledger, event.token, name) if node is None else _refusal(event.token, node)
        if node is None or refusal is not None:
            assert refusal is not None
            ledger.out.append(refusal)
            return
        nodes.append(node)
    for node in nodes:
        _drop(ledger, node)
    names = ", ".join(node.facts.name for node in nodes)
    ledger.out.append(Granted(event.token, f"{names} {'is' if len(nodes) == 1 else 'are'} forgotten"))


def _refusal(token: int, node: Node) -> Rejected | None:
    name = node.facts.name
    if node.session:
        hint = f"stop its agent first, or have it out at once: grid access revoke agent {name}"
        return Rejected(token, "connected", f"{name} cannot be forgotten", "its agent is connected", hint)
    held = len(node.allocations) or len(node.kept)
    if held:
        why = f"{held} job{'s' if held > 1 else ''} may still run there, or hold a place there"
        hint = f"drain it, or wait until they count as lost: grid node drain {name} --deadline 0"
        return Rejected(token, "in-use", f"{name} cannot be forgotten", why, hint)
    return None


def _drop(ledger: "Ledger", node: Node) -> None:
    name = node.facts.name
    for job in [one.job for one in ledger.kept.by_job.values() if one.node == name]:
        reserving.release(ledger, job)
    for kind in DUE:
        ledger.deadlines.disarm(kind, name)
    ledger.shares.know(node.facts.lendable, Resources())
    ledger.grown.pop(name, None)
    ledger.index.forget(name)
    ledger.ever.clear()
    del ledger.nodes[name]
    if node.orders != NO_ORDERS:
        ledger.out.append(RecordOrders(name, NO_ORDERS))
    ledger.out.append(RecordForgotten(name))
