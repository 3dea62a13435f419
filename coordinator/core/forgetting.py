"""Nodes that are no more: the operator has them forgotten, with all that was ordered for them. One that comes back is a
new node. Nothing that may still be in use is forgotten: a node that is connected, or on which something is held, stays.
"""

from distributed_grid.coordinator.core.model import ForgetAsked, Granted, Node, RecordForgotten, RecordOrders, Rejected
from distributed_grid.coordinator.core.requests import unknown_node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.nodes import NO_ORDERS
from distributed_grid.protocol.resources import Resources

DUE = ("silence", "offer", "decline", "drain", "aside")
"""What is due for nodes."""


def forget(state: GridState, event: ForgetAsked) -> None:
    """These nodes are no more; all of them, or none."""
    nodes = []
    for name in dict.fromkeys(event.nodes):
        node = state.nodes.get(name)
        refusal = unknown_node(state, event.token, name) if node is None else _refusal(event.token, node)
        if node is None or refusal is not None:
            assert refusal is not None
            state.out.append(refusal)
            return
        nodes.append(node)
    for node in nodes:
        _drop(state, node)
    names = ", ".join(node.facts.name for node in nodes)
    state.out.append(Granted(event.token, f"{names} {'is' if len(nodes) == 1 else 'are'} forgotten"))


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


def _drop(state: GridState, node: Node) -> None:
    name = node.facts.name
    for job in [one.job for one in state.reservations.by_job.values() if one.node == name]:
        state.unreserve(job)
    for kind in DUE:
        state.deadlines.disarm(kind, name)
    state.shares.know(node.facts.lendable, Resources())
    state.grown.pop(name, None)
    state.index.forget(name)
    state.ever.clear()
    del state.nodes[name]
    if node.orders != NO_ORDERS:
        state.out.append(RecordOrders(name, NO_ORDERS))
    state.out.append(RecordForgotten(name))
