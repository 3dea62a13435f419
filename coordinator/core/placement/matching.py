"""Which node a request goes to: filters, then the scores of its strategy. A decision carries its reasons: a Placement
its scores, a Refusal what was in question. The explanation asks the same functions.
"""

from collections.abc import Iterable, Mapping

from distributed_grid.coordinator.core.model import Node, Placement, Refusal
from distributed_grid.coordinator.core.placement import ray_capacity
from distributed_grid.coordinator.core.placement.affinity import ANYWHERE, Bounds
from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.placement.catalogue import Pool, Shown
from distributed_grid.coordinator.core.placement.constraints import admitted, conditions, meets, unmet
from distributed_grid.coordinator.core.placement.index import Accept
from distributed_grid.coordinator.core.placement.scoring import parts, weighted
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import Drain, NodeFacts, NodeState
from distributed_grid.protocol.placement import NO_CONSTRAINTS, Strategy, called
from distributed_grid.protocol.resources import MILLI, Resources, format_bytes, format_milli

NO_ROOMS: Mapping[str, Room] = {}


# --- filters --------------------------------------------------------------------------------------------------------


def labels(node: Node) -> dict[str, str]:
    """The labels of a node: what the operator ordered stands over what its agent tells."""
    return node.orders.over(node.facts.labels)


def could_ever(facts: NodeFacts, wanted: Resources) -> bool:
    """Whether the node, with everything it may lend idle, could meet this."""
    most = facts.lendable
    if wanted.gpu > MILLI and wanted.gpu > len(facts.gpus) * MILLI:
        return False
    return wanted.cpu <= most.cpu and wanted.memory <= most.memory and wanted.gpu <= most.gpu


def able(node: Node, request: Request) -> bool:
    """Whether the node, with everything it may lend idle, could meet this request, with its constraints."""
    if not could_ever(node.facts, request.resources):
        return False
    if request.constraints is None:
        return not request.user or admitted(node.facts, request)
    return meets(node, labels(node), request)


def has_room(node: Node, request: Request, index: Shown, room: Room | None = None) -> bool:
    """Whether the request could start there now, if the node can be given work at all; in `room` instead of its own."""
    alone, room = room is not None, room or node.room
    if room is None or not room.fits(request.resources, request.constraints):
        return False
    if request.ray and not ray_capacity.fits(node, request, alone):
        return False
    if request.constraints is None:
        return not request.user or admitted(node.facts, request)
    name = node.facts.name
    near, apart, missing = index.homes.bounds(request.constraints)
    if missing or name in apart or (near is not None and name not in near):
        return False
    return meets(node, index.labels_of(name), request)


def blocker(node: Node, request: Request, bounds: Bounds = ANYWHERE) -> tuple[str, str]:
    """What keeps this request from starting on the node now, as a short code and in words; empty: nothing does.
    `bounds`: where it may go by what it is to be near to or apart from."""
    wanted = request.resources
    if (missed := unmet(node.facts, labels(node), request)) is not None:
        return "not-asked", missed.why
    if not could_ever(node.facts, wanted):
        return "too-small", f"lends {node.facts.lendable} at the most"
    if node.state is not NodeState.UP:
        return "away", f"is {node.state.value}"
    if (drain := node.orders.drain) is not None:
        return "drained", drained_words(drain)
    if (aside := node.orders.aside) is not None and aside.until:
        return "set-aside", f"is set aside for {aside.seconds:g} s: {aside.failures} launches failed, {aside.why}"
    if bounds.near is not None and node.facts.name not in bounds.near:
        asked = request.constraints or NO_CONSTRAINTS
        return "not-near", f"is not where {' and '.join(map(called, asked.near))} is"
    if node.facts.name in bounds.apart:
        return "not-apart", "has a job that this is to be apart from"
    if "" in node.closed:
        return "declined", "refused a moment ago and is left alone for a while"
    if not node.synced or node.room is None:
        return "no-offer", "offers nothing now"
    kind = node.room.lacks(wanted, request.constraints)
    ours = kind and ray_capacity.fits(node, request, alone=True)  # what Ray has no room for is what our own jobs hold
    if request.ray and not ours and (words := ray_capacity.blocker(node, request)):
        return "ray", words
    if not kind:
        return "", ""
    need = f"{amount(kind, wanted)} needed, {amount(kind, node.room.left)} free"
    if kind == "gpu" and node.room.fits(Resources(gpu=wanted.gpu)):
        words = conditions(request)[-1].step
        return "busy", f"a node {words} needed, {_free_gpus(node.room)}"
    if any(kind in ("cpu", "gpu") and _is_kind(device, kind, node) for device in node.closed):
        return "declined", f"{need}; refused some of it a moment ago"
    withheld = [item for item in (node.offer.withheld if node.offer else ()) if _is_kind(item.what, kind, node)]
    if withheld and _lent(node, kind) + _of(node.room.left, kind) < _of(wanted, kind):
        return "withheld", f"{need}; {withheld[0].what}: {withheld[0].why}"
    return "busy", need


def drained_words(drain: Drain) -> str:
    """By whom it was drained, and why: what follows a node's name."""
    return f"is drained{f' by {drain.by}' if drain.by else ''}{f': {drain.reason}' if drain.reason else ''}"


def _is_kind(what: str, kind: str, node: Node) -> bool:
    """Whether a withheld or declined thing (cpu, memory, gpu, node, a UUID, a core) is of this kind of resources."""
    if what in (kind, "node"):
        return True
    if kind == "gpu":
        return any(gpu.uuid == what for gpu in node.facts.gpus)
    return kind == "cpu" and what.isdigit()


def _of(resources: Resources, kind: str) -> int:
    return {"cpu": resources.cpu, "memory": resources.memory, "gpu": resources.gpu}[kind]


def _free_gpus(room: Room) -> str:
    """The devices of which something is free, with their memory that is nobody's."""
    free = [
        f"{room.offers[uuid].model} with {format_bytes(max(0, room.gpu_memory.get(uuid, 0)))}"
        for uuid, milli in room.gpus.items()
        if milli > 0 and uuid in room.offers
    ]
    return f"free are {', '.join(free)}"


def _lent(node: Node, kind: str) -> int:
    return sum(_of(allocation.grant.resources, kind) for allocation in node.allocations.values())


def amount(kind: str, resources: Resources) -> str:
    """One kind of an amount for people: `2 gpu`, `4G memory`."""
    if kind == "memory":
        return f"{format_bytes(resources.memory)} memory"
    return f"{format_milli(_of(resources, kind))} {kind}"


# --- the decision ---------------------------------------------------------------------------------------------------


def place(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy = DEFAULT,
    rooms: Mapping[str, Room] = NO_ROOMS,
) -> Placement | Refusal:  # fmt: skip
    """The best node of those that fit, by the request's strategy. `rooms` stand in for those of some nodes: copies in
    which something was taken or given back, to see where the request would go then."""
    chosen, best, sure = "", [0.0], -1.0
    strategy = parts(policy.weights_of(request.strategy))
    for name in candidates(nodes, index, request, policy, 0, rooms):
        node = nodes[name]
        room = rooms.get(name) or node.room
        assert room is not None
        values = [score(node, room, request) for score in strategy.scores]
        if (mean := weighted(strategy, values)) > sure:
            chosen, best, sure = name, values, mean
    if not chosen:
        return Refusal(len(index))
    room, wanted = rooms.get(chosen) or nodes[chosen].room, request.resources
    assert room is not None and room.fits(wanted), f"{chosen} was found for {wanted} and has no room for it"
    said = dict(zip(strategy.names, best, strict=True))
    return Placement(chosen, room.choose(wanted, request.constraints), sure, said)


def candidates(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy, least: int = 0,
    rooms: Mapping[str, Room] = NO_ROOMS,
) -> list[str]:  # fmt: skip
    """The nodes that are compared: the preferred ones that fit where there are any, else of each tier as many as the
    policy says, those that the strategy looks at first. At least so many in all where there are."""
    wanted, asked, strategy = request.resources, request.constraints, request.strategy or policy.strategy
    most = max(least, policy.candidates)

    def fitting(names: Iterable[str]) -> list[str]:
        return [name for name in names if name in index and has_room(nodes[name], request, index, rooms.get(name))]

    bounds = index.homes.bounds(asked) if asked is not None else ANYWHERE
    if bounds.missing:
        return []
    if request.nodes and (preferred := fitting(request.nodes)):
        return preferred
    if bounds.near is not None:
        return fitting(sorted(bounds.near))
    if asked is not None and asked.only:
        return fitting(asked.only)
    trait = index.trait(request)
    accept = _accept(nodes, request, rooms, bounds.apart) if asked is not None or rooms or request.ray else None
    loosest = strategy is Strategy.SPREAD or strategy is Strategy.LOAD_BALANCED
    first: list[str] = []
    if strategy is Strategy.PACK:
        first = index.search(wanted, most, trait, Pool.IN_USE, accept)
    elif strategy is Strategy.SPREAD:
        first = index.search(wanted, most, trait, Pool.FREE, accept, loosest=True)
    elif request.local is not None:
        first = fitting(index.near(request.local))
    if len(first) >= max(1, least) and request.local is None:
        return first
    others = index.search(wanted, most, trait, Pool.ALL, accept, loosest)
    if not (first or rooms):
        return others
    # A room that stands in for another may be wider than what the index knows of.
    return list(dict.fromkeys((*first, *others, *fitting(rooms))))


def _accept(
    nodes: Mapping[str, Node], request: Request, rooms: Mapping[str, Room], apart: frozenset[str]
) -> Accept | None:
    """What has to be asked of each node that the index finds, as far as it does not follow from its trait; None:
    nothing has to."""
    asked, wanted = request.constraints, request.resources
    exclude = apart.union(asked.exclude) if asked is not None else apart
    devices = asked is not None and bool(asked.gpu_model or asked.gpu_memory)
    if not (exclude or devices or rooms or request.ray):
        return None

    def accept(name: str) -> bool:
        if name in exclude:
            return False
        room = rooms.get(name)
        if request.ray and not ray_capacity.fits(nodes[name], request, room is not None):
            return False
        if room is None and not devices:
            return True
        room = room or nodes[name].room
        return room is not None and room.fits(wanted, asked)

    return accept
