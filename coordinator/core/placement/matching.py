"""The choice of a node for a request, or of nodes for a gang: filters, then the scores of its strategy, each from 0 to
1. Their weighted mean is the confidence."""

import functools
import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Node, Placement, Refusal
from distributed_grid.coordinator.core.placement import constraints
from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.placement.catalogue import ANYWHERE, Pool, Shown
from distributed_grid.coordinator.core.placement.constraints import admitted, meets
from distributed_grid.coordinator.core.placement.fragmentation import RequestMix
from distributed_grid.coordinator.core.placement.index import Accept, Order
from distributed_grid.coordinator.core.policy import DEFAULT, Policy, Weights, with_lasting
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import Drain, NodeFacts
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import MILLI, Resources

SHORT = 60.0
"""Where a job that is expected to end within so many seconds goes, is not decided by forecasts."""
LOOKED_AT = 256
"""Nodes whose forecast is looked at for one that stays idle long enough, the first in the search order."""

UNKNOWN = 0.5
"""How likely a node of which nothing is forecast stays idle."""

Score = Callable[[Node, Capacity, Request, "Context"], float]


class Context(NamedTuple):
    """What scores depend on beside the node and the request: the request mix, and the expected run time of the job (s;
    0: unknown)."""

    mix: RequestMix
    lasts: float = 0.0


class Scoring(NamedTuple):
    """The scores with a weight above zero: names, functions, weights. `others`: all but the first, the weightiest of
    them first, with their numbers."""

    names: tuple[str, ...]
    scores: tuple[Score, ...]
    weights: tuple[float, ...]
    others: tuple[tuple[int, Score, float], ...]


def _fit(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Best fit: how little of what the node lends is left over, so that large nodes stay free."""
    lendable, wanted = node.facts.lendable, request.resources
    over, cpu, memory = 0.0, capacity.cpu_left - wanted.cpu, capacity.free_memory - wanted.memory
    if cpu > 0 and lendable.cpu:
        over += cpu / lendable.cpu
    if memory > 0 and lendable.memory:
        over += memory / lendable.memory
    if wanted.gpu and lendable.gpu:
        return 1.0 - min(1.0, (over + (capacity.gpu_left - wanted.gpu) / lendable.gpu) / 3)
    return 1.0 - min(1.0, over / 2)


def _fragmentation(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Score a node by how few GPUs are lost for the requests of the mix that could use them: 1 / (1 + GPUs)."""
    return 1.0 / (1.0 + max(0.0, context.mix.losses(((node, capacity),), request)[0]))


def _gpus_spared(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Keeps jobs without GPUs away from nodes with idle GPUs, which need cores to be of use."""
    if request.resources.gpu or not node.facts.gpus:
        return 1.0
    return 1.0 - capacity.whole_gpus / len(node.facts.gpus)


def _quiet(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Score a node by how little foreign use there is."""
    if node.sample is None:
        return 0.5
    return 1.0 - min(1.0, node.sample.foreign_cpu / (len(node.facts.cores) or 1))


def _preferred(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Whether it is a node the user named; 1 where none was named."""
    return 1.0 if not request.nodes or node.facts.name in request.nodes else 0.0


def _priority(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """The node's own `priority`: 1 is ordinary and scores 0.5."""
    priority = max(0.0, node.facts.priority)
    return priority / (1.0 + priority)


def _idle(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Score a node by the part of its offer that would still be free, of the scarcest kind."""
    lendable, left, wanted = node.facts.lendable, capacity.left, request.resources
    least = 1.0
    if lendable.cpu:
        least = min(least, (left.cpu - wanted.cpu) / lendable.cpu)
    if lendable.memory:
        least = min(least, (left.memory - wanted.memory) / lendable.memory)
    if wanted.gpu and lendable.gpu:
        least = min(least, (left.gpu - wanted.gpu) / lendable.gpu)
    return max(0.0, least)


def _in_use(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Whether the grid's jobs run there already, so that others stay whole and may sleep."""
    return 1.0 if node.allocations else 0.0


def _alone(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Score a node by how few of the grid's jobs run there: 1 with none, 1/2 with one, 1/3 with two."""
    return 1.0 / (1.0 + len(node.allocations))


def _local(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Locality: 1 on the submitter's machine, 1/2 where the shipped files were sent before."""
    local = request.local
    if local is None:
        return 0.0
    if local.host and node.facts.hostname == local.host:
        return 1.0
    return 0.5 if local.bundle and local.bundle in node.bundles else 0.0


def _lasting(node: Node, capacity: Capacity, request: Request, context: Context) -> float:
    """Score a node by the probability that it stays idle for as long as the job runs, less the part of it that its
    owner would miss meanwhile."""
    return endurance(node, capacity, request.resources, context.lasts)


def endurance(node: Node, capacity: Capacity | None, wanted: Resources, seconds: float) -> float:
    """Return the probability that a node stays idle for this many seconds, times the part of it that a job of this size
    leaves to what its owner uses even while it counts as idle; UNKNOWN without a forecast. `capacity`: its own, or that
    of a trial."""
    forecast = node.forecast
    if forecast is None or (likely := forecast.stays(seconds)) is None:
        return UNKNOWN
    whole = len(node.facts.cores) * MILLI
    if not forecast.peak or not whole or capacity is None or node.capacity is None:
        return likely
    held = sum(one.grant.resources.cpu for one in node.allocations.values())
    left = whole - held + capacity.cpu_left - node.capacity.cpu_left - wanted.cpu  # a capacity for trials has more
    return likely * (1.0 - max(0.0, forecast.peak - max(0, left) / whole))


SCORES: dict[str, Score] = {
    "fragmentation": _fragmentation,
    "fit": _fit,
    "gpus-spared": _gpus_spared,
    "quiet": _quiet,
    "preferred": _preferred,
    "priority": _priority,
    "idle": _idle,
    "in-use": _in_use,
    "alone": _alone,
    "local": _local,
    "lasting": _lasting,
}
"""By the names of `policy.Weights`, in their order."""


@functools.cache
def scoring(weights: Weights) -> Scoring:
    """A strategy by its weights."""
    amounts = msgspec.structs.astuple(weights)
    counting = [one for one in zip(SCORES, SCORES.values(), amounts, strict=True) if one[2]]
    names, functions, parts = zip(*counting, strict=True)
    others = [(number, functions[number], parts[number]) for number in range(1, len(parts))]
    return Scoring(names, functions, parts, tuple(sorted(others, key=lambda one: -one[2])))


def weights_for(request: Request, policy: Policy, index: Shown, lasts: float) -> Weights:
    """Return the weights for a request of a job with this expected run time (s). Idleness does not count without
    forecasts, or if the job is over before it could matter."""
    weights = policy.weights_of(request)
    return with_lasting(weights) if lasts >= SHORT and index.forecasts else weights


def scores(node: Node, capacity: Capacity, request: Request, weights: Weights, context: Context) -> dict[str, float]:
    """The scores of a node with this capacity."""
    strategy = scoring(weights)
    return {
        name: score(node, capacity, request, context)
        for name, score in zip(strategy.names, strategy.scores, strict=True)
    }


def confidence(said: Mapping[str, float], weights: Weights) -> float:
    """The weighted mean of the scores."""
    strategy = scoring(weights)
    return weighted(strategy, [said[name] for name in strategy.names])


def weighted(strategy: Scoring, values: Sequence[float]) -> float:
    """The weighted mean of scores in the order of the strategy."""
    # fsum: what sum() makes of floats depends on the version of Python, and a replay must come to the same node.
    return min(1.0, math.fsum(map(operator.mul, strategy.weights, values)))


NO_OVERLAY: Mapping[str, Capacity] = {}
ROUNDING = 1e-9
"""More than the rounding errors of a confidence."""


# --- filters --------------------------------------------------------------------------------------------------------


def labels(node: Node) -> dict[str, str]:
    """The labels of a node: the operator's override those of its agent."""
    return node.orders.over(node.facts.labels)


def could_ever(facts: NodeFacts, wanted: Resources) -> bool:
    """Whether the node, with everything it may lend idle, could meet this."""
    most = facts.lendable
    if wanted.gpu > MILLI and wanted.gpu > len(facts.gpus) * MILLI:
        return False
    return wanted.cpu <= most.cpu and wanted.memory <= most.memory and wanted.gpu <= most.gpu


def able(node: Node, request: Request) -> bool:
    """Whether the node, with everything it may lend idle, could meet this request, with its constraints."""
    return could_ever(node.facts, request.resources) and suits(node, request)


def suits(node: Node, request: Request) -> bool:
    """Whether the node meets the constraints of this request, whatever it may lend."""
    if request.constraints is None:
        return admitted(node.facts, request)
    return meets(node, labels(node), request)


def has_room(node: Node, request: Request, index: Shown, capacity: Capacity | None = None) -> bool:
    """Whether a request could start on a node now, if the node is usable. `capacity` overrides the node's own."""
    alone, capacity = capacity is not None, capacity or node.capacity
    if capacity is None or not capacity.fits(request.resources, request.constraints):
        return False
    return open_to(node, request, index, alone)


def open_to(node: Node, request: Request, index: Shown, alone: bool = False) -> bool:
    """Whether nothing but its capacity keeps the request from the node now; `alone`: Ray's without the grid's jobs."""
    if request.ray and not constraints.fits_on_ray(node, request, alone):
        return False
    if constraints.left_alone(node, request):
        return False
    if request.constraints is None:
        return admitted(node.facts, request)
    name = node.facts.name
    near, apart, missing = index.affinity.bounds(request.constraints)
    if missing or name in apart or (near is not None and name not in near):
        return False
    return meets(node, index.labels_of(name), request)


def drained_words(drain: Drain) -> str:
    """Describe who drained a node, and why, as text that follows its name."""
    return f"is drained{f' by {drain.by}' if drain.by else ''}{f': {drain.reason}' if drain.reason else ''}"


# --- the decision ---------------------------------------------------------------------------------------------------


def place(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy = DEFAULT,
    capacities: Mapping[str, Capacity] = NO_OVERLAY, lasts: float = 0.0,
) -> Placement | Refusal:  # fmt: skip
    """Return the best node of those that fit, by the request's strategy. `capacities` overrides that of some nodes, for
    trials; `lasts`: the expected run time of the job (s; 0: unknown)."""
    strategy, context = scoring(weights_for(request, policy, index, lasts)), Context(index.mix, lasts)
    first, weight, others = strategy.scores[0], strategy.weights[0], strategy.others
    found: list[tuple[Node, Capacity]] = []
    for name in candidates(nodes, index, request, policy, 0, capacities, lasts):
        node = nodes[name]
        capacity = capacities.get(name) or node.capacity
        assert capacity is not None
        found.append((node, capacity))
    if not found:
        return Refusal(len(index))
    if len(found) == 1:  # nothing to compare
        node, capacity = found[0]
        said = [score(node, capacity, request, context) for score in strategy.scores]
        return _placed(node, capacity, request, strategy, said, weighted(strategy, said))
    if first is _fragmentation:  # all at once, which costs less
        values = [1.0 / (1.0 + max(0.0, lost)) for lost in context.mix.losses(found, request)]
    else:
        values = [first(node, capacity, request, context) for node, capacity in found]
    chosen, best, sure = -1, [0.0], -1.0
    top = values.index(max(values))
    for at in (top, *range(top), *range(top + 1, len(found))):
        most = 1.0 - weight * (1.0 - values[at]) + ROUNDING  # if the other scores are 1
        if most <= sure:
            continue
        node, capacity = found[at]
        said = [values[at]] * len(strategy.scores)
        for number, score, counts in others:
            value = said[number] = score(node, capacity, request, context)
            most -= counts * (1.0 - value)
            if most <= sure:
                break
        else:
            mean = weighted(strategy, said)
            if mean > sure or (mean == sure and at < chosen):
                chosen, best, sure = at, said, mean
    return _placed(*found[chosen], request, strategy, best, sure)


def _placed(
    node: Node, capacity: Capacity, request: Request, strategy: Scoring, said: Sequence[float], sure: float
) -> Placement:
    """The placement of a request on a node with these scores and this mean of them."""
    name, wanted = node.facts.name, request.resources
    assert capacity.fits(wanted), f"{name} was found for {wanted} and has no room for it"
    return Placement(
        name, capacity.choose(wanted, request.constraints), sure, dict(zip(strategy.names, said, strict=True))
    )


def candidates(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy, least: int = 0,
    capacities: Mapping[str, Capacity] = NO_OVERLAY, lasts: float = 0.0,
) -> list[str]:  # fmt: skip
    """Return the nodes to compare: the preferred ones that fit, if any, else of each tier as many as the policy says,
    in the strategy's search order; at least `least` in all, if there are so many. Among nodes that the request does not
    name, only those that are likely to stay idle for `lasts` seconds are returned, if enough of them have room: with
    the probability that the policy demands, else with the next lower one."""
    wanted, asked, strategy = request.resources, request.constraints, request.strategy or policy.strategy
    most, order = max(least, policy.candidates), Order.TIGHTEST

    def fitting(names: Iterable[str]) -> list[str]:
        return [name for name in names if name in index and has_room(nodes[name], request, index, capacities.get(name))]

    bounds = index.affinity.bounds(asked) if asked is not None else ANYWHERE
    if bounds.missing:
        return []
    if request.nodes and (preferred := fitting(request.nodes)):
        return preferred
    if bounds.near is not None:
        return fitting(sorted(bounds.near))
    if asked is not None and asked.only:
        return fitting(asked.only)
    trait = index.trait(request)
    accept = (
        _accept(nodes, request, capacities, bounds.apart)
        if asked is not None or capacities or request.ray or request.joins
        else None
    )
    if strategy is Strategy.SPREAD or strategy is Strategy.LOAD_BALANCED:
        order = Order.WIDEST
    elif policy.weights_of(request).fragmentation and not least:
        most, order = policy.gpu_candidates, Order.ENDS

    def search(accept: Accept | None) -> list[str]:
        first: list[str] = []
        if strategy is Strategy.PACK:
            first = index.search(wanted, most, trait, Pool.IN_USE, accept)
        elif strategy is Strategy.SPREAD:
            first = index.search(wanted, most, trait, Pool.FREE, accept, Order.WIDEST)
        elif request.local is not None:
            first = [name for name in fitting(index.near(request.local)) if accept is None or accept(name)]
        if len(first) >= max(1, least) and request.local is None:
            return first
        others = index.search(wanted, most, trait, Pool.ALL, accept, order)
        if not (first or capacities):
            return others
        # A capacity that stands in for another may be larger than what the index knows of.
        more = (name for name in fitting(capacities) if accept is None or accept(name))
        return list(dict.fromkeys((*first, *others, *more)))

    if lasts >= SHORT and index.forecasts:
        for likely in policy.balancing.values.confidences:
            staying = search(Staying(nodes, likely, lasts, wanted, capacities, accept))
            if len(staying) >= max(1, least):
                return staying
    return search(accept)


class Staying:
    """The test of nodes that `accept` takes and whose endurance is at least this `likely`. After `LOOKED_AT` nodes none
    is taken any more."""

    def __init__(
        self, nodes: Mapping[str, Node], likely: float, seconds: float, wanted: Resources,
        capacities: Mapping[str, Capacity] = NO_OVERLAY, accept: Accept | None = None,
    ) -> None:  # fmt: skip
        self._nodes, self._capacities = nodes, capacities
        self._likely, self._seconds, self._wanted = likely, seconds, wanted
        self._accept = accept
        self._left = LOOKED_AT

    def lasts(self, name: str) -> bool:
        """Whether a node is likely to stay idle for as long as the job runs."""
        node = self._nodes[name]
        capacity = self._capacities.get(name) or node.capacity
        return capacity is None or endurance(node, capacity, self._wanted, self._seconds) >= self._likely

    def __call__(self, name: str) -> bool:
        """Whether it is a candidate."""
        self._left -= 1
        return self._left >= 0 and self.lasts(name) and (self._accept is None or self._accept(name))


def _accept(
    nodes: Mapping[str, Node], request: Request, capacities: Mapping[str, Capacity], apart: frozenset[str]
) -> Accept | None:
    """The test of nodes that the index finds, for what their trait does not tell; None: no test is necessary."""
    asked, wanted = request.constraints, request.resources
    exclude = apart.union(asked.exclude) if asked is not None else apart
    devices = asked is not None and bool(asked.gpu_model or asked.gpu_memory)
    if not (exclude or devices or capacities or request.ray or request.joins):
        return None

    def accept(name: str) -> bool:
        if name in exclude:
            return False
        capacity = capacities.get(name)
        if request.ray and not constraints.fits_on_ray(nodes[name], request, capacity is not None):
            return False
        if constraints.left_alone(nodes[name], request):
            return False
        if capacity is None and not devices:
            return True
        capacity = capacity or nodes[name].capacity
        return capacity is not None and capacity.fits(wanted, asked)

    return accept


_LOOPBACK = ("127.", "::1")


def gang_places(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy = DEFAULT, lasts: float = 0.0
) -> tuple[Placement, ...] | Refusal:
    """Return the places of all members by their rank, the best node first; preferred nodes come before others. All
    members ask for the same amount and none shares a node, so there are places for all if as many nodes fit, whichever
    is taken first."""
    fitting = gang_candidates(nodes, index, request, policy, lasts)
    if len(fitting) < request.gang:
        return Refusal(len(index))
    ranked: list[tuple[float, int, str, dict[str, float]]] = []
    weights, context = weights_for(request, policy, index, lasts), Context(index.mix, lasts)
    for number, name in enumerate(fitting):
        node = nodes[name]
        assert node.capacity is not None
        parts = scores(node, node.capacity, request, weights, context)
        ranked.append((-confidence(parts, weights), number, name, parts))
    ranked.sort(key=lambda one: one[:2])
    found = []
    for sure, _, name, parts in ranked[: request.gang]:
        capacity = nodes[name].capacity
        assert capacity is not None and capacity.fits(request.resources, request.constraints), f"{name} has no room"
        found.append(Placement(name, capacity.choose(request.resources, request.constraints), -sure, parts))
    return tuple(found)


def gang_candidates(
    nodes: Mapping[str, Node], index: Shown, request: Request, policy: Policy = DEFAULT, lasts: float = 0.0
) -> list[str]:
    """Return nodes with room for a member: as many as the gang needs and some more, if there are any."""
    fitting = dict.fromkeys(candidates(nodes, index, request, policy, request.gang, NO_OVERLAY, lasts))
    if len(fitting) < request.gang:
        others = replace(request, nodes=())
        fitting |= dict.fromkeys(candidates(nodes, index, others, policy, request.gang + len(fitting)))
    return list(fitting)


def meeting(
    gang: str, members: Sequence[NodeFacts], taken: Container[tuple[str, int]], policy: Policy = DEFAULT
) -> tuple[Gang, ...] | None:
    """The rendezvous data of each member on these nodes, by rank. No other gang has the port at that address; the first
    one tried depends on `gang`, a name unique to the attempt. None: no port is left."""
    addresses = _addresses(members)
    first, last = policy.gang_ports
    count = last - first + 1
    start = crc32(gang.encode())
    for step in range(count):
        port = first + (start + step) % count
        if (addresses[0], port) not in taken:
            break
    else:
        return None
    names = tuple(facts.name for facts in members)
    whole = Gang(0, names, addresses, port)
    return tuple(replace(whole, rank=rank) for rank in range(len(names)))


def _addresses(members: Sequence[NodeFacts]) -> tuple[str, ...]:
    """The addresses at which members reach each other. For a node on the coordinator's own machine, which connects from
    a loopback address, it is the host name, unless all are there."""
    here = [facts.address.startswith(_LOOPBACK) or not facts.address for facts in members]
    if all(here):
        return tuple(facts.address or "127.0.0.1" for facts in members)
    return tuple(facts.hostname if local else facts.address for facts, local in zip(members, here, strict=True))
