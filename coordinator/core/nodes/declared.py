"""Declared nodes: machines without an agent, whose resources an operator declares. Holds that name one take capacity of
it, and nothing is ever started there. A declared node is up until it is forgotten, since no agent reports on it. If an
agent connects by its name, it becomes an ordinary node."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Granted, NodeDeclared, RecordNode, Rejected
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.nodes import agents
from distributed_grid.coordinator.core.queue.admission import unknown_node
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.nodes import GpuFacts, GpuOffer, NodeFacts, NodeState, Offer
from distributed_grid.protocol.resources import MILLI, Resources


def declare(state: GridState, event: NodeDeclared) -> None:
    """Create a declared node, or update its resources."""
    name, node = event.node, state.nodes.get(event.node)
    if node is None and event.known:
        state.out.append(unknown_node(state, event.token, name))
        return
    if node is not None and node.facts.declared is None:
        what, seen = f"{name} has an agent", node.state is NodeState.UP
        why = "its agent tells what it has" if seen else f"its agent told what it has, and is {node.state} now"
        hint = f"grid nodes shows it; a node that is no more: grid node remove {name} --forget"
        state.out.append(Rejected(event.token, "not-allowed", what, why, hint))
        return
    if name in state.scaling.machines:
        what, why = f"{name} is a machine of a pool", "its agent will tell what it has"
        state.out.append(Rejected(event.token, "not-allowed", what, why, "grid scale status"))
        return
    facts = _facts(event)
    if node is not None and event.known:
        old = node.facts
        free = replace(event.free, **{kind: getattr(old.declared, kind) for kind in event.kept})
        facts = replace(old, declared=free)
        if not free.fits(old.lendable):
            what, why = f"{free} cannot be free on {name}", f"it was declared to have {old.lendable}"
            state.out.append(Rejected(event.token, "bad-value", what, why, "register the worker anew with all it has"))
            return
    if node is None or node.facts != facts:
        state.out.append(RecordNode(facts))
    offer(state, agents.know(state, facts))
    capacity = state.nodes[name].capacity
    left = capacity.left if capacity is not None else Resources()
    can = "all" if left == facts.lendable else str(left or "nothing")
    state.out.append(Granted(event.token, f"{name} is declared: {facts.lendable}; {can} of it can be held now"))


def offer(state: GridState, node: Node) -> None:
    """Make the offer of a declared node: its free resources, with devices that holds have already first."""
    facts, free = node.facts, node.facts.declared
    assert free is not None, f"{facts.name} has an agent"
    held = [one.grant for one in node.allocations.values()]
    cores_held = {core for one in held for core in (*one.cores, one.shared_core)}
    gpus_held = {gpu.uuid for one in held for gpu in one.gpus}
    cores = sorted(facts.cores, key=lambda core: (core not in cores_held, core))
    devices = sorted(facts.gpus, key=lambda gpu: (gpu.uuid not in gpus_held, gpu.index))
    whole, part = divmod(free.cpu, MILLI)
    gpus = []
    for at, gpu in enumerate(devices):
        if (milli := min(MILLI, free.gpu - at * MILLI)) > 0:
            gpus.append(GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory * milli // MILLI, milli))
    number = node.offer.number + 1 if node.offer is not None else 1
    shares = {cores[whole]: part} if part else {}
    node.offer = Offer(
        number=number, expires_in=0.0, cores=tuple(cores[:whole]), shares=shares, memory=free.memory, gpus=tuple(gpus)
    )
    node.synced, node.last_seen = True, state.now
    state.move_node(node, NodeState.UP)
    state.rebuild(node)


def restore(state: GridState) -> None:
    """Make the offers of declared nodes after a restart."""
    for node in state.nodes.values():
        if node.facts.declared is not None:
            offer(state, node)


def _facts(event: NodeDeclared) -> NodeFacts:
    count = -(-event.whole.gpu // MILLI)
    model = event.gpu_model or "GPU"
    gpus = tuple(GpuFacts(f"{event.node}/gpu{at}", at, model, event.gpu_memory) for at in range(count))
    return NodeFacts(
        name=event.node,
        hostname="",
        boot_id="",
        incarnation=0,
        cores=tuple(range(-(-event.whole.cpu // MILLI))),
        memory=event.whole.memory,
        lendable=event.whole,
        virtual=True,
        gpus=gpus,
        labels=event.labels,
        declared=event.free,
    )
