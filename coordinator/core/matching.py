"""Which node a request goes to: filters, then scores from 0 to 1. A decision carries its reasons: a Placement its
scores, a Refusal what was in question. The explanation asks the same functions.
"""

import math
from collections.abc import Callable, Mapping

import msgspec

from distributed_grid.coordinator.core.index import Index
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.policy import DEFAULT, Policy, Weights
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import NodeFacts, NodeState
from distributed_grid.protocol.orders import Drain
from distributed_grid.protocol.resources import MILLI, Grant, Resources, format_bytes, format_milli


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and with which cores and GPUs; `confidence` is the weighted mean of the scores, 0 to 1."""

    node: str
    grant: Grant
    confidence: float
    scores: dict[str, float]


class Refusal(msgspec.Struct, frozen=True):
    """No node has room now. `offering` is how many nodes were in question."""

    offering: int


# --- scores ---------------------------------------------------------------------------------------------------------


def _fit(node: Node, request: Request) -> float:
    """How little is left over of what the node lends: full nodes first, so that large rooms stay whole."""
    assert node.room is not None
    lendable, left, wanted = node.facts.lendable, node.room.left, request.resources
    cpu = (left.cpu - wanted.cpu) / lendable.cpu if lendable.cpu else 0.0
    memory = (left.memory - wanted.memory) / lendable.memory if lendable.memory else 0.0
    over = max(0.0, cpu) + max(0.0, memory)
    if wanted.gpu and lendable.gpu:
        return 1.0 - min(1.0, (over + (left.gpu - wanted.gpu) / lendable.gpu) / 3)
    return 1.0 - min(1.0, over / 2)


def _gpus_spared(node: Node, request: Request) -> float:
    """Work without GPUs is kept away from nodes with idle ones, which need their cores to be of use."""
    assert node.room is not None
    if request.resources.gpu or not node.facts.gpus:
        return 1.0
    return 1.0 - node.room.whole_gpus / len(node.facts.gpus)


def _quiet(node: Node, request: Request) -> float:
    """How little the owner's own programs do there."""
    if node.sample is None:
        return 0.5
    return 1.0 - min(1.0, node.sample.foreign_cpu / max(1, len(node.facts.cores)))


def _preferred(node: Node, request: Request) -> float:
    """Whether it is a node the user named; 1 where none was named."""
    return 1.0 if not request.nodes or node.facts.name in request.nodes else 0.0


def _priority(node: Node, request: Request) -> float:
    """The node's own `priority`: 1 is ordinary and scores 0.5."""
    priority = max(0.0, node.facts.priority)
    return priority / (1.0 + priority)


Score = Callable[[Node, Request], float]
BEST_FIT: tuple[tuple[str, Score], ...] = (
    ("fit", _fit),
    ("gpus-spared", _gpus_spared),
    ("quiet", _quiet),
    ("preferred", _preferred),
    ("priority", _priority),
)
"""In the order of the fields of `policy.Weights`."""


def scores(node: Node, request: Request) -> dict[str, float]:
    """What each scoring function says of a node with room for the request."""
    return {name: score(node, request) for name, score in BEST_FIT}


def confidence(parts: Mapping[str, float], weights: Weights) -> float:
    """The weighted mean of the scores."""
    # fsum: what sum() makes of floats depends on the version of Python, and a replay must come to the same node.
    weighted = [
        weight * parts[name] for (name, _), weight in zip(BEST_FIT, msgspec.structs.astuple(weights), strict=True)
    ]
    return min(1.0, math.fsum(weighted))


# --- filters --------------------------------------------------------------------------------------------------------


def usable(node: Node) -> bool:
    """Whether the node can be given work at all now: not drained, up, with its inventory told, and an offer that has
    not expired. (The ledger takes the room away when the offer expires.)"""
    there = node.state is NodeState.UP and node.synced and node.room is not None
    return there and "" not in node.closed and node.orders.drain is None


def labels(node: Node) -> dict[str, str]:
    """The labels of a node: what the operator ordered stands over what its agent tells."""
    return node.orders.over(node.facts.labels)


def could_ever(facts: NodeFacts, wanted: Resources) -> bool:
    """Whether the node, with everything it may lend idle, could meet this."""
    most = facts.lendable
    if wanted.gpu > MILLI and wanted.gpu > len(facts.gpus) * MILLI:
        return False
    return wanted.cpu <= most.cpu and wanted.memory <= most.memory and wanted.gpu <= most.gpu


def blocker(node: Node, wanted: Resources) -> tuple[str, str]:
    """What keeps this amount from starting on the node now, as a short code and in words; empty: nothing does."""
    if not could_ever(node.facts, wanted):
        return "too-small", f"lends {node.facts.lendable} at the most"
    if node.state is not NodeState.UP:
        return "away", f"is {node.state.value}"
    if (drain := node.orders.drain) is not None:
        return "drained", drained_words(drain)
    if "" in node.closed:
        return "declined", "refused a moment ago and is left alone for a while"
    if not node.synced or node.room is None:
        return "no-offer", "offers nothing now"
    kind = node.room.lacks(wanted)
    if not kind:
        return "", ""
    need = f"{amount(kind, wanted)} needed, {amount(kind, node.room.left)} free"
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


def _lent(node: Node, kind: str) -> int:
    return sum(_of(allocation.grant.resources, kind) for allocation in node.allocations.values())


def amount(kind: str, resources: Resources) -> str:
    """One kind of an amount for people: `2 gpu`, `4G memory`."""
    if kind == "memory":
        return f"{format_bytes(resources.memory)} memory"
    return f"{format_milli(_of(resources, kind))} {kind}"


# --- the decision ---------------------------------------------------------------------------------------------------


def place(nodes: Mapping[str, Node], index: Index, request: Request, policy: Policy = DEFAULT) -> Placement | Refusal:
    """The best node of those that fit; a preferred one where any of them fits, else any."""
    wanted = request.resources
    fitting = candidates(nodes, index, request, policy)
    if not fitting:
        return Refusal(len(index))
    best: Placement | None = None
    chosen, parts, sure = "", {}, -1.0
    for name in fitting:
        said = scores(nodes[name], request)
        if (mean := confidence(said, policy.weights)) > sure:
            chosen, parts, sure = name, said, mean
    room = nodes[chosen].room
    assert room is not None and room.fits(wanted), f"{chosen} was found for {wanted} and has no room for it"
    best = Placement(chosen, room.choose(wanted), sure, parts)
    return best


def candidates(nodes: Mapping[str, Node], index: Index, request: Request, policy: Policy, most: int = 0) -> list[str]:
    """The nodes that are compared: the preferred ones that fit where there are any, else up to `most` of each tier (or
    as many as the policy says, if that is more)."""
    wanted = request.resources
    fitting = [name for name in request.nodes if name in index and _room_fits(nodes[name], wanted)]
    return fitting or index.candidates(wanted, max(most, policy.candidates))


def _room_fits(node: Node, wanted: Resources) -> bool:
    return node.room is not None and node.room.fits(wanted)
