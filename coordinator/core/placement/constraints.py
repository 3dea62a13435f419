"""The constraints of a request on nodes, each with a test and a description; and the resources that Ray has left."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.model import Node, OnRay
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import GpuFacts, NodeFacts
from distributed_grid.protocol.placement import (
    NO_CONSTRAINTS,
    Constraints,
    LabelRule,
    Sign,
    Walls,
    admits,
    level_of,
    open_to_all,
    same_model,
)
from distributed_grid.protocol.resources import MILLI, Resources, format_bytes, format_milli
from distributed_grid.protocol.text import counted, listed

REFUSED_BY_RAY = "ray"
"""The key in `Node.declined` of the back-off after Ray refused a reservation."""
KINDS = ("gpu", "cpu", "memory")


def marked_for_ray(policy: Policy, request: Request, boost: bool = False) -> Request:
    """The request, marked if it needs a reservation in Ray; boosts do not, since they are lent to Ray."""
    by_ray = policy.by_ray and not boost
    joins = request.joins if boost else ""
    return request if request.ray == by_ray and request.joins == joins else replace(request, ray=by_ray, joins=joins)


def unjoined_key(address: str) -> str:
    """The key in `Node.declined` of the back-off after a boost for the Ray cluster at this address failed there."""
    return f"boosts for {address}"


def left_alone(node: Node, request: Request) -> bool:
    """Whether the node failed to join the Ray cluster of this boost, and is left alone for a while."""
    return bool(request.joins) and unjoined_key(request.joins) in node.closed


def ray_bundle(on: OnRay | None, wanted: Resources) -> Resources:
    """Return the resources to reserve in Ray for this amount."""
    return Resources(wanted.cpu, wanted.memory, on.total.gpu if wanted.gpu and on is not None else 0)


def fits_on_ray(node: Node, request: Request, alone: bool = False) -> bool:
    """Whether Ray has room for this there; `alone`: without the grid's other jobs."""
    on = node.ray
    return on is not None and REFUSED_BY_RAY not in node.closed and not _lacks(node, on, request, alone)


def _left(node: Node, on: OnRay, kind: str, alone: bool) -> int:
    """Free amount of one kind; below zero: overcommitted."""
    left: int = getattr(on.total, kind) - getattr(on.others, kind)
    if not alone:
        for one in node.allocations.values():
            if one.ray is not None:
                left -= getattr(one.ray.resources, kind)
    return left


def _lacks(node: Node, on: OnRay, request: Request, alone: bool) -> str:
    """The first kind of which Ray has too little; empty: none."""
    wanted = ray_bundle(on, request.resources)
    return next((kind for kind in KINDS if (need := getattr(wanted, kind)) and need > _left(node, on, kind, alone)), "")


def ray_blocker(node: Node, request: Request) -> str:
    """Why Ray has no room for this there, as text that follows the node's name; empty: it has."""
    on = node.ray
    if on is None:
        return "has no node of Ray on it that takes work"
    if REFUSED_BY_RAY in node.closed:
        return f"was refused by Ray a moment ago: {node.ray_refusal}"
    kind = _lacks(node, on, request, False)
    if not kind:
        return ""
    wanted = ray_bundle(on, request.resources)
    if kind == "gpu" and on.others.gpu == 0:
        return "has a job of ours with GPUs, and Ray does not say which ones it keeps free beside it"
    has = f"{amount(kind, on.total)} in Ray, {amount(kind, on.others)} of it used by Ray's programs"
    return f"has {has}; {amount(kind, wanted)} needed"


def amount(kind: str, resources: Resources) -> str:
    """Format one kind of an amount: `2 gpu`, `4G memory`."""
    if kind == "memory":
        return f"{format_bytes(resources.memory)} memory"
    return f"{format_milli(getattr(resources, kind))} {kind}"


Labels = Mapping[str, str]
SILENT = "an older agent, which does not tell its walls"
NAMED = 5
"""Maximum number of owners of a node, or nodes of a request, named in a text."""
USER_CHARS, WHY_CHARS = 64, 200
"""Maximum length of quoted texts of a node."""
ALIKE_BITS = 4
"""Amounts of memory are rounded down to so many significant bits."""


class Known(NamedTuple):
    """The indexed properties of a node. `only`: the users whose jobs it runs; None: it runs everyone's."""

    host: str
    labels: dict[str, str]
    gpus: tuple[GpuFacts, ...]
    walls: Walls
    only: tuple[str, ...] | None


def known(facts: NodeFacts, labels: dict[str, str]) -> Known:
    """The indexed properties of a node with these facts and labels."""
    only = None if open_to_all(facts.walls, facts.trusts) else facts.owners
    only = () if facts.declared is not None else only
    return Known(facts.hostname, labels, facts.gpus, level_of(facts.walls), only)


class Trait(msgspec.Struct, frozen=True, cache_hash=True):
    """The part of a request's constraints that can be indexed by facts and labels; with `gpus`, at least one GPU of the
    model with so much memory. `user`: the node has to run jobs of this user; empty: of all users."""

    labels: tuple[LabelRule, ...] = ()
    gpus: bool = False
    gpu_model: str = ""
    gpu_memory: int = 0
    walls: Walls = Walls.NONE
    user: str | None = None


def trait_of(request: Request, user: str | None = None) -> Trait | None:
    """The trait that a request asks for; None: none. GPU memory is rounded down, so that similar requests share a
    trait. `user`: as in Trait."""
    asked = request.constraints
    if asked is None:
        return None if user is None else Trait(user=user)
    if not (asked.gpu_model or asked.gpu_memory) or not request.resources.gpu:
        plain = not asked.labels and asked.walls is Walls.NONE and user is None
        return None if plain else Trait(asked.labels, walls=asked.walls, user=user)
    rest = max(0, asked.gpu_memory.bit_length() - ALIKE_BITS)
    return Trait(asked.labels, True, asked.gpu_model, asked.gpu_memory >> rest << rest, asked.walls, user)


def has_trait(trait: Trait, node: Known) -> bool:
    """Whether a node has a trait."""
    if trait.user is not None and node.only is not None and trait.user not in node.only:
        return False
    if trait.walls is not Walls.NONE and not node.walls.meets(trait.walls):
        return False
    for rule in trait.labels:
        if not rule.met(node.labels):
            return False
    if not trait.gpus:
        return True
    return any(gpu.memory >= trait.gpu_memory and same_model(trait.gpu_model, gpu.model) for gpu in node.gpus)


def marked(policy: Policy, request: Request, user: str, hold: bool = False) -> Request:
    """The request, with its user if that decides which nodes may run it, and whether it is of a hold."""
    whose = user if policy.owner_rule else ""
    same = request.user == whose and request.hold is hold
    return request if same else msgspec.structs.replace(request, user=whose, hold=hold)


def admitted(facts: NodeFacts, request: Request) -> bool:
    """Whether the node runs jobs of the request's user, if it has one. A node without agent runs none, and takes the
    holds that name it."""
    if facts.declared is not None:
        return request.hold and request.constraints is not None and facts.name in request.constraints.only
    return not request.user or admits(facts.walls, facts.owners, facts.trusts, request.user)


def devices(request: Request) -> int:
    """Return the number of GPUs that a request takes."""
    return -(-request.resources.gpu // MILLI)


def _count(gpus: tuple[GpuFacts, ...], model: str, memory: int) -> int:
    return sum(same_model(model, gpu.model) and gpu.memory >= memory for gpu in gpus)


class Unmet(NamedTuple):
    """A constraint that a node does not meet: its code, its description (the funnel's step), and why the node fails."""

    code: str
    step: str
    why: str


Met = Callable[[NodeFacts, Labels], bool]
"""Whether a node with these facts and labels meets a constraint."""


class Condition(NamedTuple):
    """A constraint: its code, its description, its test; and the rule, if it is about a label."""

    code: str
    step: str
    met: Met
    rule: LabelRule | None = None


def conditions(request: Request, owners: bool = False) -> list[Condition]:
    """The constraints of a request in the order in which they are tested. `owners`: also whose jobs nodes run."""
    asked, gpus = request.constraints or NO_CONSTRAINTS, devices(request)
    found: list[Condition] = []
    if asked.only:
        found.append(Condition("not-named", _named(asked), lambda facts, _: facts.name in asked.only))
    if asked.exclude:
        found.append(Condition("excluded", _others(asked), lambda facts, _: facts.name not in asked.exclude))
    if owners and request.user:
        found.append(Condition("owner", _runs_jobs_of(request), lambda facts, _: admitted(facts, request)))
    if asked.walls is not Walls.NONE:
        found.append(Condition("walls", _walls(asked), lambda facts, _: level_of(facts.walls).meets(asked.walls)))
    found += [Condition("label", f"with label {rule}", _labelled(rule), rule) for rule in asked.labels]
    if asked.gpu_model:
        model = asked.gpu_model
        found.append(Condition("gpu-model", _model(asked, gpus), lambda facts, _: _count(facts.gpus, model, 0) >= gpus))
    if asked.gpu_memory:
        model, memory = asked.gpu_model, asked.gpu_memory
        enough: Met = lambda facts, _: _count(facts.gpus, model, memory) >= gpus  # noqa: E731
        found.append(Condition("gpu-memory", _memory(asked, gpus), enough))
    return found


def _labelled(rule: LabelRule) -> Met:
    return lambda _, labels: rule.met(labels)


def unmet(facts: NodeFacts, labels: Labels, request: Request) -> Unmet | None:
    """The first constraint that this node does not meet, whatever is free on it."""
    asked, name = request.constraints or NO_CONSTRAINTS, facts.name
    if asked.only and name not in asked.only:
        return Unmet("not-named", _named(asked), "is not one of those named with --only")
    if name in asked.exclude:
        return Unmet("excluded", _others(asked), "is excluded")
    if not admitted(facts, request):
        step = _runs_jobs_of(request) if facts.declared is None else "with an agent"
        return Unmet("owner" if facts.declared is None else "no-agent", step, owners_words(facts))
    if not level_of(facts.walls).meets(asked.walls):
        return Unmet("walls", _walls(asked), walls_words(facts))
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
    """Whether the node meets all constraints, whatever is free on it. (`unmet` without texts.)"""
    if (request.user or node.facts.declared is not None) and not admitted(node.facts, request):
        return False
    asked = request.constraints
    if asked is None:
        return True
    name = node.facts.name
    if (asked.only and name not in asked.only) or name in asked.exclude:
        return False
    if asked.walls is not Walls.NONE and not level_of(node.facts.walls).meets(asked.walls):
        return False
    for rule in asked.labels:
        if not rule.met(labels):
            return False
    if not (asked.gpu_model or asked.gpu_memory):
        return True
    return _count(node.facts.gpus, asked.gpu_model, asked.gpu_memory) >= devices(request)


def owners_words(facts: NodeFacts) -> str:
    """Why it does not run everybody's jobs: what follows a node's name."""
    if facts.declared is not None:
        return "has no agent, so nothing can be started there: it only takes holds that name it"
    owners = listed([owner[:USER_CHARS] for owner in facts.owners], NAMED) or "nobody"
    return f"runs jobs of its owners only ({owners}), as {_level(facts)}"


def opened(node: str) -> str:
    """Describe what the owner of a node can do so that it runs jobs of all users."""
    return f"agent.trust: everyone on {node}, or walls there (`grid agent detect` says why it has none)"


def walls_words(facts: NodeFacts) -> str:
    """Describe the walls of a node, and why they are not stronger, as text that follows its name."""
    return f"has walls {level_of(facts.walls)}{_because(facts)}" if facts.walls else f"has {SILENT}"


def _level(facts: NodeFacts) -> str:
    return f"its walls are {level_of(facts.walls)}" if facts.walls else f"it has {SILENT}"


def _because(facts: NodeFacts) -> str:
    why = facts.walls_why
    return f" ({why if len(why) <= WHY_CHARS else why[: WHY_CHARS - 1] + '…'})" if why else ""


def _label_words(rule: LabelRule, labels: Labels) -> str:
    if rule.sign is Sign.IS_NOT:
        return f"has {rule.key}={rule.value}"
    return f"has {rule.key}={labels[rule.key]}" if rule.key in labels else f"has no label {rule.key}"


def _runs_jobs_of(request: Request) -> str:
    return f"that runs jobs of {request.user}"


def _walls(asked: Constraints) -> str:
    return f"with walls {asked.walls}" + ("" if asked.walls is Walls.USER else " or stronger")


def _named(asked: Constraints) -> str:
    return f"named with --only ({listed(asked.only, NAMED)})"


def _others(asked: Constraints) -> str:
    return f"not excluded ({listed(asked.exclude, NAMED)})"


def _model(asked: Constraints, gpus: int) -> str:
    return f"with {_gpus(gpus)} like {asked.gpu_model}"


def _memory(asked: Constraints, gpus: int) -> str:
    return f"with {_gpus(gpus)} of {format_bytes(asked.gpu_memory)} or more"


def _gpus(count: int) -> str:
    return "a GPU" if count == 1 else counted(count, "GPU")
