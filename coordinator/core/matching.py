"""Which node a request goes to: filters, then the scores of its strategy. A decision carries its reasons: a Placement
its scores, a Refusal what was in question. The explanation asks the same functions.
"""

from collections.abc import Mapping

import msgspec

from distributed_grid.coordinator.core.catalogue import Catalogue, Pool
from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.strategies import confidence, scores
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import NodeFacts, NodeState
from distributed_grid.protocol.orders import Drain
from distributed_grid.protocol.placing import Strategy
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


# --- filters --------------------------------------------------------------------------------------------------------


def usable(node: Node) -> bool:
    """Whether the node can be given work at all now: up, with its inventory told and an offer that has not expired
    (the ledger takes the room away when it does), and neither drained nor set aside."""
    there = node.state is NodeState.UP and node.synced and node.room is not None
    return there and "" not in node.closed and node.orders.open


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
    if (aside := node.orders.aside) is not None and aside.until:
        return "set-aside", f"is set aside for {aside.seconds:g} s: {aside.failures} launches failed, {aside.why}"
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


def place(
    nodes: Mapping[str, Node], index: Catalogue, request: Request, policy: Policy = DEFAULT
) -> Placement | Refusal:
    """The best node of those that fit, by the request's strategy."""
    chosen, said, sure = "", {}, -1.0
    weights = policy.weights_of(request.strategy)
    for name in candidates(nodes, index, request, policy):
        node = nodes[name]
        assert node.room is not None
        parts = scores(node, node.room, request, weights)
        if (mean := confidence(parts, weights)) > sure:
            chosen, said, sure = name, parts, mean
    if not chosen:
        return Refusal(len(index))
    room, wanted = nodes[chosen].room, request.resources
    assert room is not None and room.fits(wanted), f"{chosen} was found for {wanted} and has no room for it"
    return Placement(chosen, room.choose(wanted), sure, said)


def candidates(
    nodes: Mapping[str, Node], index: Catalogue, request: Request, policy: Policy, least: int = 0
) -> list[str]:
    """The nodes that are compared: the preferred ones that fit where there are any, else of each tier as many as the
    policy says, those that the strategy looks at first. At least so many in all where there are."""
    wanted, strategy = request.resources, request.strategy or policy.strategy
    most = max(least, policy.candidates)
    fitting = [name for name in request.nodes if name in index and _room_fits(nodes[name], wanted)]
    if fitting:
        return fitting
    loosest = strategy in (Strategy.SPREAD, Strategy.LOAD_BALANCED)
    first: list[str] = []
    if strategy is Strategy.PACK:
        first = index.view(Pool.IN_USE).candidates(wanted, most)
    elif strategy is Strategy.SPREAD:
        first = index.view(Pool.FREE).candidates(wanted, most, loosest=True)
    elif request.local is not None:
        first = [name for name in index.near(request.local) if _room_fits(nodes[name], wanted)]
    if len(first) >= max(1, least) and request.local is None:
        return first
    others = index.candidates(wanted, most, loosest=loosest)
    return list(dict.fromkeys((*first, *others))) if first else others


def _room_fits(node: Node, wanted: Resources) -> bool:
    return node.room is not None and node.room.fits(wanted)
