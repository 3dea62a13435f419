"""Requests that no node of the grid could ever meet, and why not, with numbers."""

from collections.abc import Iterable
from difflib import get_close_matches

from distributed_grid.coordinator.core.model import Node
from distributed_grid.coordinator.core.placement.constraints import (
    Condition,
    admitted,
    amount,
    conditions,
    opened,
    owners_words,
)
from distributed_grid.coordinator.core.placement.matching import able, could_ever, labels
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import NO_CONSTRAINTS, LabelRule, Sign, level_of, same_model
from distributed_grid.protocol.resources import Resources, format_bytes
from distributed_grid.protocol.text import counted, listed

ASKED_KEPT = 10_000
"""Size of the cache of how many nodes could ever meet a request."""
NAMED = 5
"""Maximum number of values, models or nodes named in a sentence."""
AGENT = "start an agent on a machine that may lend: grid agent run"
FEW = 3
"""Maximum number of nodes with the reason why they do not run a user's jobs."""


def can_fit(state: GridState, request: Request) -> int:
    """Return how many of the known nodes could ever meet this request."""
    key = (request.resources, request.constraints, state.index.whose(request.user), request.hold)
    count = state.feasible_nodes.get(key)
    if count is None:
        if len(state.feasible_nodes) >= ASKED_KEPT:
            state.feasible_nodes.clear()
        asked = request.constraints
        nodes: Iterable[Node] = state.nodes.values()
        if asked is not None and asked.only:  # no other node meets it
            nodes = (state.nodes[name] for name in set(asked.only) if name in state.nodes)
        count = state.feasible_nodes[key] = sum(able(node, request) for node in nodes)
    return count


def may_ever_run(state: GridState, request: Request) -> bool:
    """Whether enough of the known nodes could ever meet this, or machines of pools."""
    if can_fit(state, request) >= max(1, request.gang):
        return True
    if not state.policy.scaling.pools:
        return False
    from distributed_grid.coordinator.core.scaling.packing import pool_for  # only where there are pools

    return bool(pool_for(state, request))


def unknown_name(state: GridState, request: Request) -> str:
    """Return an unknown node that the request names; empty: there is none."""
    asked = request.constraints
    names = request.nodes if asked is None else (*request.nodes, *asked.only, *asked.exclude)
    return next((name for name in names if name not in state.nodes), "") if names else ""


def never_fits(state: GridState, request: Request) -> tuple[str, str, str]:
    """Describe why no known node could ever meet a request: what is refused, why, and a hint, with the numbers."""
    known = [*state.nodes.values()]
    nodes = [node for node in known if node.facts.declared is None or admitted(node.facts, request)]
    if len(nodes) < len(known) and (missed := _no_agent(state, request, nodes)) is not None:
        return missed
    tests = conditions(request, owners=state.index.whose(request.user) is not None)
    for done, one in enumerate(tests):
        left = [node for node in nodes if one.met(node.facts, labels(node))]
        if not left:
            return _no_node(state, request, nodes, tests[: done + 1])
        nodes = left
    return _too_much(nodes, request.resources, " in question" if len(nodes) < len(state.nodes) else "")


def _no_agent(state: GridState, request: Request, nodes: list[Node]) -> tuple[str, str, str] | None:
    """Describe why a request finds only nodes without agent, by its node names or since there are no others; None: it
    finds others."""
    only = request.constraints.only if request.constraints is not None else ()
    names = [name for name in only if name in state.nodes]
    why = "nothing can be started there: it only takes holds that name it"
    if names and all(state.nodes[name].facts.declared is not None for name in names) and not request.hold:
        return f"{listed(names, NAMED)} {'has' if len(names) == 1 else 'have'} no agent", why, "see `grid nodes`"
    return None if nodes else ("no node has an agent", "nodes without one only take holds that name them", AGENT)


def _no_node(state: GridState, request: Request, nodes: list[Node], tests: list[Condition]) -> tuple[str, str, str]:
    """Describe a request whose last constraint no node meets, although some meet all the others."""
    asked, missed = request.constraints or NO_CONSTRAINTS, tests[-1]
    so_far = " and ".join(one.step for one in tests[:-1])
    among = "" if len(nodes) == len(state.nodes) else f" among the {counted(len(nodes), 'node')} {so_far}"
    what = f"asks for a node {missed.step}; there is none{among}"
    if missed.code in ("not-named", "excluded"):
        return what, "no node could ever run it", "see `grid nodes`"
    if missed.code == "owner":
        some = "; ".join(f"{node.facts.name} {owners_words(node.facts)}" for node in nodes[:FEW])
        more = f" and so do {len(nodes) - FEW} more" if len(nodes) > FEW else ""
        return what, some + more, opened(nodes[0].facts.name)
    if missed.code == "walls":
        return what, *_about_walls(nodes)
    if missed.rule is not None:
        return what, *_about_label(missed.rule, nodes)
    gpus = [gpu for node in nodes for gpu in node.facts.gpus]
    models = list(dict.fromkeys(gpu.model for gpu in gpus))
    if asked.gpu_model and not any(same_model(asked.gpu_model, model) for model in models):
        near = get_close_matches(asked.gpu_model, models, 1, 0.4)
        there = f"there are {listed(models, NAMED)}" if models else "they have no GPU"
        return what, there, f"did you mean --gpu-model {near[0]!r}?" if near else ""
    such = [gpu for gpu in gpus if same_model(asked.gpu_model, gpu.model)]
    if not such:
        return what, "they have no GPU", "see `grid nodes`"
    largest = max(such, key=lambda gpu: gpu.memory)
    return what, f"the largest has {format_bytes(largest.memory)} ({largest.model})", "ask for fewer or smaller GPUs"


def _about_walls(nodes: list[Node]) -> tuple[str, str]:
    """The strongest walls of these nodes, and a hint."""
    best = max(nodes, key=lambda node: level_of(node.facts.walls).strength).facts
    level, hint = level_of(best.walls), "`grid agent detect` on a node says why it has no stronger ones"
    if not level.strength:
        return "their jobs run without walls", hint
    return f"the strongest are {level} ({best.name})", f"ask for --walls {level}; {hint}"


def _about_label(rule: LabelRule, nodes: list[Node]) -> tuple[str, str]:
    """The labels that these nodes have instead, and a hint."""
    all_labels = [labels(node) for node in nodes]
    values = sorted({one[rule.key] for one in all_labels if rule.key in one})
    if rule.sign is Sign.IS_NOT:
        return f"all have {rule.key}={rule.value}", f"leave out --label {rule}"
    if values:
        near = get_close_matches(rule.value, values, 1)
        hint = f"did you mean --label {rule.key}={near[0]}?" if near else "see `grid nodes`"
        return f"nodes have {listed([f'{rule.key}={value}' for value in values], NAMED)}", hint
    keys = sorted({key for one in all_labels for key in one})
    near = get_close_matches(rule.key, keys, 1)
    hint = f"did you mean {near[0]}?" if near else "`grid node label NODE K=V` labels one"
    return f"no node has a label {rule.key}" + (f"; there are {listed(keys, NAMED)}" if keys else ""), hint


def _too_much(among: list[Node], wanted: Resources, of: str) -> tuple[str, str, str]:
    nodes = [node.facts for node in among]
    many = f"the {len(nodes)} nodes{of}" if len(nodes) > 1 else f"the only node{of}"
    for kind in ("gpu", "cpu", "memory"):
        single = Resources(**{kind: getattr(wanted, kind)})
        if single and not any(could_ever(facts, single) for facts in nodes):
            largest = max(nodes, key=lambda facts: int(getattr(facts.lendable, kind)))
            if not getattr(largest.lendable, kind):
                verb = "has" if kind == "gpu" and not any(facts.gpus for facts in nodes) else "lends"
                has = f"none of {many} {verb} any" if len(nodes) > 1 else f"{many} {verb} none ({largest.name})"
                what = f"asks {amount(kind, wanted)} on one node; {has}"
                return what, "no node could ever run it", "see `grid nodes`"
            most = amount(kind, largest.lendable)
            has = f"the largest of {many} lends {most}" if len(nodes) > 1 else f"{many} lends {most}"
            what = f"asks {amount(kind, wanted)} on one node; {has} ({largest.name})"
            return what, "no node could ever run it", f"ask for {most} or less"
    fullest = max(nodes, key=lambda facts: _share(facts.lendable, wanted))
    what = f"asks {wanted} on one node; none of {many} lends all of it"
    return what, f"the nearest is {fullest.name} with {fullest.lendable}", "ask for less of one of them"


def _share(lendable: Resources, wanted: Resources) -> float:
    """Return the sum over cores, memory and GPUs of the part of the wanted amount that can be lent, 0..3."""
    pairs = ((lendable.cpu, wanted.cpu), (lendable.memory, wanted.memory), (lendable.gpu, wanted.gpu))
    return sum(min(1.0, have / need) for have, need in pairs if need)
