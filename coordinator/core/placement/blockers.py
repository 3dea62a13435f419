"""Why a request cannot start on a node now: a code, which costs little, and words for the nodes that are named."""

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement import constraints
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.catalogue import ANYWHERE, Bounds
from distributed_grid.coordinator.core.placement.constraints import amount, conditions, unmet
from distributed_grid.coordinator.core.placement.matching import could_ever, drained_words, labels, suits
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import NodeState, Withheld
from distributed_grid.protocol.placement import NO_CONSTRAINTS, called
from distributed_grid.protocol.resources import Resources, format_bytes


def blocker(node: Node, request: Request, bounds: Bounds = ANYWHERE) -> str:
    """Why this request cannot start on the node now, as a code, which `blocker_words` explains; empty: it can.
    `bounds`: from its affinity."""
    wanted, capacity = request.resources, node.capacity
    if not suits(node, request):
        return "not-asked"
    if not could_ever(node.facts, wanted):
        return "too-small"
    if node.state is not NodeState.UP:
        return "away"
    if node.orders.drain is not None:
        return "drained"
    if (aside := node.orders.aside) is not None and aside.until:
        return "set-aside"
    if bounds.near is not None and node.facts.name not in bounds.near:
        return "not-near"
    if node.facts.name in bounds.apart:
        return "not-apart"
    if "" in node.closed:
        return "declined"
    if constraints.left_alone(node, request):
        return "unjoined"
    if not node.synced or capacity is None:
        return "no-offer"
    kind = capacity.lacks(wanted, request.constraints)
    if request.ray and constraints.ray_blocker(node, request):
        ours = kind and constraints.fits_on_ray(node, request, alone=True)
        if not ours:  # what Ray has no room for is what our own jobs hold
            return "ray"
    if not kind:
        return ""
    if _lacks_suitable_gpu(capacity, wanted, kind):
        return "busy"
    if any(kind in ("cpu", "gpu") and _is_kind(device, kind, node) for device in node.closed):
        return "declined"
    if _withheld(node, kind) and _lent(node, kind) + getattr(capacity.left, kind) < getattr(wanted, kind):
        return "withheld"
    return "busy"


def blocker_words(node: Node, request: Request, code: str) -> str:
    """Why this request cannot start on the node now, by the code that `blocker` found: what follows the node's name."""
    asked, capacity = request.constraints or NO_CONSTRAINTS, node.capacity
    match code:
        case "not-asked":
            missed = unmet(node.facts, labels(node), request)
            return missed.why if missed is not None else ""
        case "too-small":
            return f"lends {node.facts.lendable} at the most"
        case "away":
            return f"is {node.state.value}"
        case "drained" if node.orders.drain is not None:
            return drained_words(node.orders.drain)
        case "set-aside" if (aside := node.orders.aside) is not None:
            return f"is set aside for {aside.seconds:g} s: {aside.failures} launches failed, {aside.why}"
        case "not-near":
            return f"is not where {' and '.join(map(called, asked.near))} is"
        case "not-apart":
            return "has a job that this is to be apart from"
        case "declined" if "" in node.closed:
            return "refused a moment ago and is left alone for a while"
        case "unjoined":
            return f"did not join: {node.unjoined.get(request.joins, '')}"
        case "no-offer":
            return "offers nothing now"
        case "ray":
            return constraints.ray_blocker(node, request)
    if not code or capacity is None:
        return ""
    kind = capacity.lacks(request.resources, request.constraints)
    if code == "busy" and _lacks_suitable_gpu(capacity, request.resources, kind):
        return f"a node {conditions(request)[-1].step} needed, {_free_gpus(capacity)}"
    need = f"{amount(kind, request.resources)} needed, {amount(kind, capacity.left)} free"
    if code == "declined":
        return f"{need}; refused some of it a moment ago"
    if code == "withheld":
        first = _withheld(node, kind)[0]
        return f"{need}; {first.what}: {first.why}"
    return need


def _lacks_suitable_gpu(capacity: Capacity, wanted: Resources, kind: str) -> bool:
    """Whether enough GPUs are free, but not such as the request asks for."""
    return kind == "gpu" and capacity.fits(Resources(gpu=wanted.gpu))


def _withheld(node: Node, kind: str) -> list[Withheld]:
    """What the node withholds of this kind of resources."""
    return [item for item in (node.offer.withheld if node.offer else ()) if _is_kind(item.what, kind, node)]


def _is_kind(what: str, kind: str, node: Node) -> bool:
    """Whether a withheld or declined thing (cpu, memory, gpu, node, a UUID, a core) is of this kind of resources."""
    if what in (kind, "node"):
        return True
    if kind == "gpu":
        return any(gpu.uuid == what for gpu in node.facts.gpus)
    return kind == "cpu" and what.isdigit()


def _free_gpus(capacity: Capacity) -> str:
    """Devices that are at least partly free, with their free memory."""
    free = [
        f"{capacity.offers[uuid].model} with {format_bytes(max(0, capacity.gpu_memory.get(uuid, 0)))}"
        for uuid, milli in capacity.gpus.items()
        if milli > 0 and uuid in capacity.offers
    ]
    return f"free are {', '.join(free)}"


def _lent(node: Node, kind: str) -> int:
    return sum(getattr(allocation.grant.resources, kind) for allocation in node.allocations.values())
