"""What speaks for a node that could take a request: scores from 0 to 1. A strategy is a tuple of them, each with its
weight; the weighted mean is the confidence.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement.capacity import Room
from distributed_grid.coordinator.core.policy import Weights
from distributed_grid.protocol.jobs import Request

Score = Callable[[Node, Room, Request], float]


class Strategy(NamedTuple):
    """The scores that count for anything, by name, each with its weight."""

    names: tuple[str, ...]
    scores: tuple[Score, ...]
    weights: tuple[float, ...]


def _fit(node: Node, room: Room, request: Request) -> float:
    """How little is left over of what the node lends: full nodes first, so that large rooms stay whole."""
    lendable, wanted = node.facts.lendable, request.resources
    over, cpu, memory = 0.0, room.cpu_left - wanted.cpu, room.free_memory - wanted.memory
    if cpu > 0 and lendable.cpu:
        over += cpu / lendable.cpu
    if memory > 0 and lendable.memory:
        over += memory / lendable.memory
    if wanted.gpu and lendable.gpu:
        return 1.0 - min(1.0, (over + (room.gpu_left - wanted.gpu) / lendable.gpu) / 3)
    return 1.0 - min(1.0, over / 2)


def _gpus_spared(node: Node, room: Room, request: Request) -> float:
    """Work without GPUs is kept away from nodes with idle ones, which need their cores to be of use."""
    if request.resources.gpu or not node.facts.gpus:
        return 1.0
    return 1.0 - room.whole_gpus / len(node.facts.gpus)


def _quiet(node: Node, room: Room, request: Request) -> float:
    """How little the owner's own programs do there."""
    if node.sample is None:
        return 0.5
    return 1.0 - min(1.0, node.sample.foreign_cpu / (len(node.facts.cores) or 1))


def _preferred(node: Node, room: Room, request: Request) -> float:
    """Whether it is a node the user named; 1 where none was named."""
    return 1.0 if not request.nodes or node.facts.name in request.nodes else 0.0


def _priority(node: Node, room: Room, request: Request) -> float:
    """The node's own `priority`: 1 is ordinary and scores 0.5."""
    priority = max(0.0, node.facts.priority)
    return priority / (1.0 + priority)


def _idle(node: Node, room: Room, request: Request) -> float:
    """How much of what the node lends would still be free: of the kind there is least of."""
    lendable, left, wanted = node.facts.lendable, room.left, request.resources
    least = 1.0
    if lendable.cpu:
        least = min(least, (left.cpu - wanted.cpu) / lendable.cpu)
    if lendable.memory:
        least = min(least, (left.memory - wanted.memory) / lendable.memory)
    if wanted.gpu and lendable.gpu:
        least = min(least, (left.gpu - wanted.gpu) / lendable.gpu)
    return max(0.0, least)


def _in_use(node: Node, room: Room, request: Request) -> float:
    """Whether the grid's jobs run there already, so that others stay whole and may sleep."""
    return 1.0 if node.allocations else 0.0


def _alone(node: Node, room: Room, request: Request) -> float:
    """How few of the grid's jobs run there: 1 with none, 1/2 with one, 1/3 with two."""
    return 1.0 / (1.0 + len(node.allocations))


def _local(node: Node, room: Room, request: Request) -> float:
    """How near it is to who asks: 1 on the same machine, 1/2 where the files that are shipped were sent before."""
    local = request.local
    if local is None:
        return 0.0
    if local.host and node.facts.hostname == local.host:
        return 1.0
    return 0.5 if local.bundle and local.bundle in node.bundles else 0.0


SCORES: dict[str, Score] = {
    "fit": _fit,
    "gpus-spared": _gpus_spared,
    "quiet": _quiet,
    "preferred": _preferred,
    "priority": _priority,
    "idle": _idle,
    "in-use": _in_use,
    "alone": _alone,
    "local": _local,
}
"""By the names of `policy.Weights`, in their order."""


@functools.cache
def parts(weights: Weights) -> Strategy:
    """A strategy by its weights."""
    amounts = msgspec.structs.astuple(weights)
    counting = [one for one in zip(SCORES, SCORES.values(), amounts, strict=True) if one[2]]
    return Strategy(*zip(*counting, strict=True)) if counting else Strategy((), (), ())


def scores(node: Node, room: Room, request: Request, weights: Weights) -> dict[str, float]:
    """What each score of a strategy says of a node with this room."""
    strategy = parts(weights)
    return {name: score(node, room, request) for name, score in zip(strategy.names, strategy.scores, strict=True)}


def confidence(said: Mapping[str, float], weights: Weights) -> float:
    """The weighted mean of the scores."""
    strategy = parts(weights)
    return weighted(strategy, [said[name] for name in strategy.names])


def weighted(strategy: Strategy, values: Sequence[float]) -> float:
    """The same, of what the scores of a strategy say, in their order."""
    # fsum: what sum() makes of floats depends on the version of Python, and a replay must come to the same node.
    return min(1.0, math.fsum(map(operator.mul, strategy.weights, values)))
