"""The operator's orders for nodes: drain, undrain, label, lend and forget, for all of the named nodes or none. Orders
are on disk before they are answered, and survive restarts.

A node that is connected, or that has allocations or earmarks, cannot be forgotten. A forgotten node that comes back is
a new one.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    Audit,
    Configure,
    DrainRequested,
    Granted,
    LabelsRequested,
    NodeDoubted,
    RecordForgotten,
    RecordOrders,
    Rejected,
    RemovalRequested,
    SettingsRequested,
    UndrainRequested,
)
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.nodes import quarantine
from distributed_grid.coordinator.core.placement.matching import drained_words, labels
from distributed_grid.coordinator.core.queue.admission import unknown_node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.nodes import NO_ORDERS, Drain, Lending, LendingOrder, NodeOrders
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import counted, listed

THE_GRID = "the grid"
"""Who drains a node that has made an impossible claim."""
NAMED = 5
"""Maximum number of nodes named in an answer."""


def restore(state: GridState, orders: Mapping[str, NodeOrders]) -> None:
    """Restore the orders."""
    for name, one in orders.items():
        if (node := state.nodes.get(name)) is not None:
            node.orders = one
            state.index.learn(node, labels(node))
            arm_drain(state, node)
            quarantine.arm(state, node)


def drain(state: GridState, event: DrainRequested) -> None:
    """Drain these nodes. For a drained node the new order replaces the old one, except its reason if none is given."""
    nodes = _known(state, event)
    jobs = 0
    deadline = state.now + event.deadline if event.deadline >= 0 else 0.0
    for node in nodes:
        before = node.orders.drain
        order = Drain(
            since=before.since if before is not None else state.now,
            by=event.by,
            reason=event.reason or (before.reason if before is not None else ""),
            deadline=deadline,
        )
        _set(state, node, replace(node.orders, drain=order))
        arm_drain(state, node)
        jobs += len(node.launched)
    if nodes:
        still = f"; {counted(jobs, 'job')}{_are(jobs)} still there" if jobs else ", and no job is there"
        when = f"in {event.deadline:g} s" if event.deadline else "now"
        until = f", and taken back {when}" if jobs and deadline else ""
        state.out.append(Granted(event.token, f"{_names(nodes)} drained{still}{until}"))


def arm_drain(state: GridState, node: Node) -> None:
    """Set the timer of a drained node; if its deadline is over, all that runs there is stopped in this turn."""
    drain = node.orders.drain
    if drain is not None and drain.deadline:
        state.deadlines.arm("drain", node.facts.name, drain.deadline)


def drain_due(state: GridState, name: str) -> None:
    """Handle the deadline of a drain: stop what still runs there, unless a newer order says otherwise."""
    node = state.nodes[name]
    drain = node.orders.drain
    if drain is None or not drain.deadline:
        return
    if state.now < drain.deadline:
        arm_drain(state, node)
        return
    text = f"{name} {drained_words(drain)}"
    for allocation in (*node.allocations.values(), *node.inside.values()):
        attempts.request_stop(state, allocation, Cause.DRAINED, text, state.jobs[allocation.job].spec.grace)


def doubted(state: GridState, event: NodeDoubted) -> None:
    """Drain a node that has made an impossible claim, until an operator undrains it. An existing drain stays."""
    node = state.nodes.get(event.node)
    if node is None:
        return
    state.out.append(Audit(event.node, f"it cannot prove what it says: {event.found}"))
    if node.orders.drain is None:
        why = f"it says what it cannot prove: {event.found}"
        _set(state, node, replace(node.orders, drain=Drain(since=state.now, by=THE_GRID, reason=why)))


def undrain(state: GridState, event: UndrainRequested) -> None:
    """End the drain of these nodes, and also that they are set aside."""
    nodes = _known(state, event)
    changed = [node for node in nodes if not node.orders.open]
    for node in nodes:
        node.failed.clear()
        if node.orders.drain is not None or node.orders.aside is not None:
            _set(state, node, replace(node.orders, drain=None, aside=None))
    if nodes:
        text = f"{_names(changed)} given jobs again" if changed else f"{_names(nodes)} not drained"
        state.out.append(Granted(event.token, text))


def label(state: GridState, event: LabelsRequested) -> None:
    """Set labels. A removal is only remembered for labels that the node's agent reports."""
    nodes = _known(state, event)
    for node in nodes:
        both = {**node.orders.labels, **event.labels}
        told = node.facts.labels
        kept = {key: value for key, value in both.items() if value is not None or key in told}
        _set(state, node, replace(node.orders, labels=kept))
    if nodes:
        state.feasible_nodes.clear()
        state.out.append(Granted(event.token, f"{_names(nodes)} labelled"))


def lend(state: GridState, event: SettingsRequested) -> None:
    """Set what these nodes lend at most, over the configuration. What was set before stays, where this does not say."""
    nodes = _known(state, event)
    if agentless := [node.facts.name for node in nodes if node.facts.declared is not None]:
        what, why = f"{agentless[0]} has no agent", "what it has and lends is declared"
        state.out.append(Rejected(event.token, "bad-value", what, why, "see register_worker in docs/seed-names.md"))
        return
    for node in nodes:
        before = node.orders.lending
        values = event.values.given()
        kept = before.values.given() if before is not None else {}
        both = {name: value for name, value in (kept | values).items() if name in values or name not in event.unset}
        order = LendingOrder(values=Lending(**both), since=state.now, by=event.by) if both else None
        _set(state, node, replace(node.orders, lending=order))
        state.out.append(Configure(node.facts.name))
    if nodes:
        state.out.append(Granted(event.token, f"{_names(nodes)} to lend as ordered"))


def _known(
    state: GridState, event: DrainRequested | UndrainRequested | LabelsRequested | SettingsRequested
) -> list[Node]:
    """The named nodes, each once; none if one is unknown, which is answered by a rejection."""
    for name in event.nodes:
        if name not in state.nodes:
            state.out.append(unknown_node(state, event.token, name))
            return []
    return [state.nodes[name] for name in dict.fromkeys(event.nodes)]


def _set(state: GridState, node: Node, orders: NodeOrders) -> None:
    node.orders = orders
    state.index.learn(node, labels(node))
    state.out.append(RecordOrders(node.facts.name, orders))
    state.refresh(node)


def _names(nodes: list[Node]) -> str:
    return listed([node.facts.name for node in nodes], NAMED) + _are(len(nodes))


def _are(count: int) -> str:
    return " is" if count == 1 else " are"


DUE = ("silence", "offer", "decline", "drain", "set-aside")
"""The kinds of timers of nodes."""


def forget(state: GridState, event: RemovalRequested) -> None:
    """Forget these nodes, all or none."""
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
        drop(state, node)
    names = ", ".join(node.facts.name for node in nodes)
    state.out.append(Granted(event.token, f"{names}{_are(len(nodes))} forgotten"))


def _refusal(token: int, node: Node) -> Rejected | None:
    name = node.facts.name
    if node.session:
        hint = f"stop its agent first, or have it out at once: grid access revoke agent {name}"
        return Rejected(token, "connected", f"{name} cannot be forgotten", "its agent is connected", hint)
    held = len(node.allocations) + len(node.inside) or len(node.earmarks)
    if held:
        why = f"{counted(held, 'job')} may still run there, or hold a place there"
        hint = f"drain it, or wait until they count as lost: grid node drain {name} --deadline 0"
        return Rejected(token, "in-use", f"{name} cannot be forgotten", why, hint)
    return None


def drop(state: GridState, node: Node) -> None:
    """Remove a node on which nothing is held."""
    name = node.facts.name
    for job in [one.job for one in state.reservations.by_job.values() if one.node == name]:
        state.unreserve(job)
    for kind in DUE:
        state.deadlines.disarm(kind, name)
    state.shares.know(node.facts.lendable, Resources())
    state.freed_nodes.pop(name, None)
    state.index.forget(name)
    state.feasible_nodes.clear()
    del state.nodes[name]
    if node.orders != NO_ORDERS:
        state.out.append(RecordOrders(name, NO_ORDERS))
    state.out.append(RecordForgotten(name))
