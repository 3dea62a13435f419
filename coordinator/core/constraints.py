"""What a request asks a node to be, beside having room: tested one by one, in the order of the funnel, each with words.

What follows from the node's facts and labels alone changes seldom, so the nodes that are so can be kept in a list;
a `Trait` is the key of such a list.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.core.model import Node
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import GpuFacts, NodeFacts
from distributed_grid.protocol.placing import Constraints, LabelRule, Sign, same_model
from distributed_grid.protocol.resources import MILLI, format_bytes

Labels = Mapping[str, str]
ALIKE_BITS = 4
"""Amounts of memory are nearly equal that begin with the same bits: so many, from the first one that is set on."""


class Trait(msgspec.Struct, frozen=True, cache_hash=True):
    """What of a request's constraints follows from facts and labels; where `gpus` are asked for, that one of them at
    least is of the model and has so much memory."""

    labels: tuple[LabelRule, ...] = ()
    gpus: bool = False
    gpu_model: str = ""
    gpu_memory: int = 0


def trait_of(request: Request) -> Trait | None:
    """The trait that a request asks for; None: none. Nearly equal amounts of memory make the same trait, of the least
    of them."""
    asked = request.constraints
    if asked is None:
        return None
    if not (asked.gpu_model or asked.gpu_memory) or not request.resources.gpu:
        return Trait(asked.labels) if asked.labels else None
    rest = max(0, asked.gpu_memory.bit_length() - ALIKE_BITS)
    return Trait(asked.labels, True, asked.gpu_model, asked.gpu_memory >> rest << rest)


def has_trait(trait: Trait, gpus: tuple[GpuFacts, ...], labels: Labels) -> bool:
    """Whether a node with these GPUs and labels is so."""
    for rule in trait.labels:
        if not rule.met(labels):
            return False
    if not trait.gpus:
        return True
    return any(gpu.memory >= trait.gpu_memory and same_model(trait.gpu_model, gpu.model) for gpu in gpus)


def devices(request: Request) -> int:
    """How many GPUs it takes."""
    return -(-request.resources.gpu // MILLI)


def _count(gpus: tuple[GpuFacts, ...], model: str, memory: int) -> int:
    return sum(same_model(model, gpu.model) and gpu.memory >= memory for gpu in gpus)


class Unmet(NamedTuple):
    """A constraint that a node does not meet: a short code, the constraint in words (what is left in the funnel is
    like this), and what is said of the node."""

    code: str
    step: str
    why: str


Met = Callable[[NodeFacts, Labels], bool]
"""Whether a node with these facts and labels meets a constraint."""


def conditions(asked: Constraints, gpus: int) -> list[tuple[str, Met]]:
    """The constraints in words, in the order in which they are tested, and how a node is tested."""
    found: list[tuple[str, Met]] = []
    if asked.only:
        found.append((_named(asked), lambda facts, _: facts.name in asked.only))
    if asked.exclude:
        found.append((_others(asked), lambda facts, _: facts.name not in asked.exclude))
    found += [(f"with label {rule}", _labelled(rule)) for rule in asked.labels]
    if asked.gpu_model:
        found.append((_model(asked, gpus), lambda facts, _: _count(facts.gpus, asked.gpu_model, 0) >= gpus))
    if asked.gpu_memory:
        model, memory = asked.gpu_model, asked.gpu_memory
        found.append((_memory(asked, gpus), lambda facts, _: _count(facts.gpus, model, memory) >= gpus))
    return found


def _labelled(rule: LabelRule) -> Met:
    return lambda _, labels: rule.met(labels)


def steps(asked: Constraints, gpus: int) -> list[str]:
    """The constraints in words, in the order in which they are tested."""
    return [words for words, _ in conditions(asked, gpus)]


def unmet(facts: NodeFacts, labels: Labels, request: Request) -> Unmet | None:
    """The first constraint that this node can not meet, whatever is free on it."""
    asked = request.constraints
    if asked is None:
        return None
    name = facts.name
    if asked.only and name not in asked.only:
        return Unmet("not-named", _named(asked), "is not one of those named with --only")
    if name in asked.exclude:
        return Unmet("excluded", _others(asked), "is excluded")
    for rule in asked.labels:
        if not rule.met(labels):
            return Unmet("label", f"with label {rule}", _label_words(rule, labels))
    if not (asked.gpu_model or asked.gpu_memory):
        return None
    gpus = devices(request)
    if asked.gpu_model and (count := _count(facts.gpus, asked.gpu_model, 0)) < gpus:
        models = ", ".join(dict.fromkeys(gpu.model for gpu in facts.gpus)) or "no GPU"
        some = f"has {count} such GPUs" if count else f"has {models}"
        return Unmet("gpu-model", _model(asked, gpus), some)
    if _count(facts.gpus, asked.gpu_model, asked.gpu_memory) < gpus:
        sizes = sorted((gpu.memory for gpu in facts.gpus if same_model(asked.gpu_model, gpu.model)), reverse=True)
        some = f"its GPUs have {', '.join(map(format_bytes, sizes))}" if sizes else "has no GPU"
        return Unmet("gpu-memory", _memory(asked, gpus), some)
    return None


def meets(node: Node, labels: Labels, request: Request) -> bool:
    """Whether the node is what is asked for, whatever is free on it."""
    asked = request.constraints
    if asked is None:
        return True
    name = node.facts.name
    if (asked.only and name not in asked.only) or name in asked.exclude:
        return False
    for rule in asked.labels:
        if not rule.met(labels):
            return False
    if not (asked.gpu_model or asked.gpu_memory):
        return True
    return _count(node.facts.gpus, asked.gpu_model, asked.gpu_memory) >= devices(request)


def _label_words(rule: LabelRule, labels: Labels) -> str:
    if rule.sign is Sign.IS_NOT:
        return f"has {rule.key}={rule.value}"
    return f"has {rule.key}={labels[rule.key]}" if rule.key in labels else f"has no label {rule.key}"


def _named(asked: Constraints) -> str:
    return f"named with --only ({_some(asked.only)})"


def _others(asked: Constraints) -> str:
    return f"not excluded ({_some(asked.exclude)})"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _model(asked: Constraints, gpus: int) -> str:
    return f"with {_gpus(gpus)} like {asked.gpu_model}"


def _memory(asked: Constraints, gpus: int) -> str:
    return f"with {_gpus(gpus)} of {format_bytes(asked.gpu_memory)} or more"


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else f"{count} GPUs"
