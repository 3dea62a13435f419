"""What the operator orders for nodes: no new jobs, jobs again, labels. For all the named nodes, or for none of them;
what was ordered is on disk before it is answered, and stands until it is ordered otherwise, whoever restarts meanwhile.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from distributed_grid.coordinator.core import failing, stopping
from distributed_grid.coordinator.core.matching import drained_words, labels
from distributed_grid.coordinator.core.model import (
    Audit,
    DrainAsked,
    Granted,
    LabelAsked,
    Node,
    NodeDoubted,
    RecordOrders,
    UndrainAsked,
)
from distributed_grid.coordinator.core.requests import unknown_node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.nodes import Drain, NodeOrders

THE_GRID = "the grid"
"""Who drains a node that says what cannot be."""
NAMED = 5
"""So many nodes are named in an answer."""


def restore(state: GridState, orders: Mapping[str, NodeOrders]) -> None:
    """Take up what was ordered before the start."""
    for name, one in orders.items():
        if (node := state.nodes.get(name)) is not None:
            node.orders = one
            state.index.learn(node, labels(node))
            _arm(state, node)
            failing.arm(state, node)


def drain(state: GridState, event: DrainAsked) -> None:
    """No new job starts on these nodes. Said again of a drained node, the new order replaces the old one; its reason
    stays where none is given."""
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
        _arm(state, node)
        jobs += len(node.allocations)
    if nodes:
        still = f"; {_count(jobs, 'job')} still there" if jobs else ", and no job is there"
        when = f"in {event.deadline:g} s" if event.deadline else "now"
        until = f", and taken back {when}" if jobs and deadline else ""
        state.out.append(Granted(event.token, f"{_names(nodes)} drained{still}{until}"))


def _arm(state: GridState, node: Node) -> None:
    drain = node.orders.drain
    if drain is not None and drain.deadline:
        state.deadlines.arm("drain", node.facts.name, drain.deadline)


def drain_due(state: GridState, name: str) -> None:
    """The deadline of a drained node may have come: what still runs there is taken back. Where an order came in
    between, that one counts."""
    node = state.nodes[name]
    drain = node.orders.drain
    if drain is None or not drain.deadline:
        return
    if state.now < drain.deadline:
        _arm(state, node)
        return
    text = f"{name} {drained_words(drain)}"
    for allocation in list(node.allocations.values()):
        stopping.ask(state, allocation, Cause.DRAINED, text, state.jobs[allocation.job].spec.grace)


def doubted(state: GridState, event: NodeDoubted) -> None:
    """A node says what cannot be, and cannot prove it: it gets no new job until an operator says otherwise. An order
    that it has already stays."""
    node = state.nodes.get(event.node)
    if node is None:
        return
    state.out.append(Audit(event.node, f"it cannot prove what it says: {event.found}"))
    if node.orders.drain is None:
        why = f"it says what it cannot prove: {event.found}"
        _set(state, node, replace(node.orders, drain=Drain(since=state.now, by=THE_GRID, reason=why)))


def undrain(state: GridState, event: UndrainAsked) -> None:
    """Jobs start on these nodes again, also on those that were set aside: all is forgotten."""
    nodes = _known(state, event)
    changed = [node for node in nodes if not node.orders.open]
    for node in nodes:
        node.failed.clear()
        if node.orders.drain is not None or node.orders.aside is not None:
            _set(state, node, replace(node.orders, drain=None, aside=None))
    if nodes:
        text = f"{_names(changed)} given jobs again" if changed else f"{_names(nodes)} not drained"
        state.out.append(Granted(event.token, text))


def label(state: GridState, event: LabelAsked) -> None:
    """These nodes have these labels. One that is removed is kept in mind only where the node's agent tells it."""
    nodes = _known(state, event)
    for node in nodes:
        both = {**node.orders.labels, **event.labels}
        told = node.facts.labels
        kept = {key: value for key, value in both.items() if value is not None or key in told}
        _set(state, node, replace(node.orders, labels=kept))
    if nodes:
        state.ever.clear()
        state.out.append(Granted(event.token, f"{_names(nodes)} labelled"))


def _known(state: GridState, event: DrainAsked | UndrainAsked | LabelAsked) -> list[Node]:
    """The nodes that are named, each once; none of them if one is not known, which is answered."""
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
    names = [node.facts.name for node in nodes]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more + (" is" if len(names) == 1 else " are")


def _count(number: int, what: str) -> str:
    return f"1 {what} is" if number == 1 else f"{number} {what}s are"
