"""`grid nodes` and `node drain|undrain|label|set`: the nodes, and the operator's orders for them."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import Invocation, current, option
from distributed_grid.cli.lazy import Command, Lazy, LazyGroup
from distributed_grid.cli.options import LENT, lending, lending_options
from distributed_grid.protocol.messages import (
    Done,
    DrainNodes,
    GetStatus,
    LabelNodes,
    SetNodes,
    Status,
    UndrainNodes,
)
from distributed_grid.protocol.nodes import NodeFacts, NodeState, NodeView, parse_labels
from distributed_grid.protocol.placement import LEAST_SHARED, level_of, open_to_all
from distributed_grid.protocol.text import format_duration, parse_duration

NODE_HEADER = (
    "NODE", "STATE", "CPU", "MEMORY", "GPU", "OFFERS", "LENT", "JOBS", "WALLS", "OTHERS USE", "LABELS", "WITHHELD"
)  # fmt: skip


@click.command(cls=Command)
def nodes() -> None:
    """List the nodes."""
    invocation = current()
    answer: Status = invocation.ask(lambda n: GetStatus(id=n))
    if invocation.output == "table":
        show_nodes(invocation, answer)
    else:
        formatting.show(invocation, {"nodes": list(map(node_json, answer.nodes))}, "", names(answer), "nodes")


_PUSHING = "distributed_grid.cli.grid.push:"


@click.group(
    cls=LazyGroup,
    table={
        "add": Lazy(_PUSHING + "add", "Make hosts nodes of the grid, by ssh."),
        "forecast": Lazy("distributed_grid.cli.grid.trends:forecast", "Show how likely a node stays idle for longer."),
        "remove": Lazy(_PUSHING + "remove", "Remove a node from the grid, and clean its host by ssh."),
    },
)
def node() -> None:
    """Add, remove, drain, undrain, label and set nodes, and forecast their use."""


@node.command()
@option("--deadline", metavar="TIME", help="Stop what still runs there after this time; 0: now.")
@option("--reason", default="", metavar="TEXT", help="Shown with the node, and to users whose jobs wait.")
@click.argument("node", nargs=-1, required=True, shell_complete=complete_nodes)
def drain(node: tuple[str, ...], deadline: str | None, reason: str) -> None:
    """Start no new jobs on nodes.

    Jobs that run there continue to their end, or to the deadline; then they are stopped and queued again. The order
    holds until `undrain`, also over restarts. A new order replaces the old one.
    """
    seconds = -1.0 if deadline is None else parse_duration(deadline, zero=True)
    _order(lambda n: DrainNodes(id=n, nodes=node, reason=reason, deadline=seconds))


@node.command()
@click.argument("node", nargs=-1, required=True, shell_complete=complete_nodes)
def undrain(node: tuple[str, ...]) -> None:
    """Start jobs on nodes again, also on those that were set aside."""
    _order(lambda n: UndrainNodes(id=n, nodes=node))


@node.command()
@click.argument("words", nargs=-1, required=True, metavar="NODE... K=V|K-...", shell_complete=complete_nodes)
def label(words: tuple[str, ...]) -> None:
    """Set labels of nodes (K=V) or remove them (K-).

    They override the labels that the nodes' agents report, until they are changed.
    """
    names = tuple(word for at, word in enumerate(words) if not at or not ("=" in word or word.endswith("-")))
    labels = parse_labels(word for word in words[1:] if word not in names)
    _order(lambda n: LabelNodes(id=n, nodes=names, labels=labels))


@node.command("set")
@lending_options
@option("--unset", multiple=True, type=click.Choice(list(LENT)), help="Return to the configured value; repeatable.")
@click.argument("node", nargs=-1, required=True, shell_complete=complete_nodes)
def set_(node: tuple[str, ...], unset: tuple[str, ...], **options: Any) -> None:
    """Set what nodes lend at most.

    This overrides the grid's configuration until it is unset, also across restarts, and takes effect at once. If the
    configuration on a node's own machine lends less, that limit is in effect. Running jobs continue.
    """
    values, names = lending(options), tuple(LENT[name] for name in unset)
    _order(lambda n: SetNodes(id=n, nodes=node, values=values, unset=names))


def _order(make: Any) -> None:
    invocation = current()
    answer: Done = invocation.ask(make)
    invocation.say(answer.text)


# --- the list ---------------------------------------------------------------------------------------------------------


def names(answer: Status) -> str:
    """Return the names, one a line."""
    return formatting.lines(node.facts.name for node in answer.nodes)


def show_nodes(invocation: Invocation, answer: Status) -> None:
    """Print the table of nodes, or what to do if there are none."""
    formatting.emit(formatting.table(invocation, NODE_HEADER, [_node_row(node) for node in answer.nodes]))
    if not answer.nodes:
        invocation.say("no node is known yet · start one with: grid agent run")
    if invocation.verbose:
        for line in _why_no_stronger(answer):
            invocation.say(line)


def _why_no_stronger(answer: Status) -> list[str]:
    """Which nodes have weak walls for which reason, and whose jobs they run."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for facts in (node.facts for node in answer.nodes):
        if not level_of(facts.walls).meets(LEAST_SHARED):
            runs = formatting.whose_jobs(facts.walls, facts.owners, facts.trusts)
            found.setdefault((facts.walls, facts.walls_why, runs), []).append(facts.name)
    return [
        f"walls are {level} on {', '.join(names)}: {why}; jobs run there of {runs}"
        for (level, why, runs), names in found.items()
    ]


def _node_row(node: NodeView) -> list[str]:
    facts, sample = node.facts, node.sample
    use = "-"
    if sample is not None:
        use = f"{sample.foreign_cpu:.1f} cpu, {formatting.memory(sample.memory_foreign)}"
    withheld = [f"{one.what}: {one.why}" for one in node.withheld]
    if ordered := orders_words(node):
        withheld.insert(0, ordered)
    if node.state is not NodeState.UP:
        withheld.insert(0, f"silent for {format_duration(node.silent_for)}")
    return [
        facts.name,
        _state(node),
        f"{len(facts.cores)}{' virtual' if facts.virtual else ''}",
        formatting.memory(facts.memory),
        _gpus_of(facts),
        str(node.offered) if node.offered else "-",
        str(node.lent) if node.lent else "-",
        str(node.jobs),
        _walls(facts),
        use,
        ",".join(f"{key}={value}" for key, value in sorted(node.labels.items())) or "-",
        "; ".join(withheld) or "-",
    ]


def _walls(facts: NodeFacts) -> str:
    """The level, and with it that not all users' jobs run there, or do where the walls are weak."""
    level = facts.walls or "-"
    if facts.declared is not None:
        return level
    if not open_to_all(facts.walls, facts.trusts):
        return f"{level}, owners"
    return level if level_of(facts.walls).meets(LEAST_SHARED) else f"{level}, everyone"


def _state(node: NodeView) -> str:
    """Describe the state of the link and the orders: `up`, `draining` (there are still jobs), `drained`, `set aside`,
    or combined as `lost, drained`."""
    if node.orders.open:
        return node.link
    ordered = "set aside" if node.orders.drain is None else "draining" if node.jobs else "drained"
    return ordered if node.link == "up" else f"{node.link}, {ordered}"


def orders_words(node: NodeView) -> str:
    """Describe who drained a node, when, why and until when, or why it is set aside; empty: neither."""
    if (drain := node.orders.drain) is None:
        aside = node.orders.aside
        if aside is None or not aside.until:
            return ""
        return (
            f"set aside until {formatting.clock(aside.until)}: {aside.failures} launches in a row failed, {aside.why}"
        )
    why = f": {drain.reason}" if drain.reason else ""
    until = (
        f", what runs there is taken back at {formatting.clock(drain.deadline)}" if drain.deadline and node.jobs else ""
    )
    return f"drained by {drain.by or 'somebody'} {formatting.age(drain.since)} ago{until}{why}"


def _gpus_of(facts: NodeFacts) -> str:
    names = []
    for gpu in facts.gpus:
        mark = " (stand-in)" if gpu.stand_in and "stand-in" not in gpu.model.lower() else ""
        names.append(gpu.model + mark)
    counted = dict.fromkeys(names)
    return ", ".join(f"{names.count(name)} {name}" for name in counted) or "-"


def _drained_json(node: NodeView) -> dict[str, Any] | None:
    if (drain := node.orders.drain) is None:
        return None
    return {
        "since": formatting.iso(drain.since),
        "by": drain.by,
        "reason": drain.reason,
        "deadline": formatting.iso(drain.deadline),
        "empty": not node.jobs,
    }


def _set_json(node: NodeView) -> dict[str, Any] | None:
    if (order := node.orders.lending) is None:
        return None
    return {"since": formatting.iso(order.since), "by": order.by, **order.values.given()}


def _aside_json(node: NodeView) -> dict[str, Any] | None:
    if (aside := node.orders.aside) is None:
        return None
    return {
        "until": formatting.iso(aside.until),
        "seconds": aside.seconds,
        "failures": aside.failures,
        "why": aside.why,
        "on_trial": not aside.until,
    }


def node_json(node: NodeView) -> dict[str, Any]:
    """A node with everything that is known of it."""
    import msgspec

    facts = node.facts
    return {
        "name": facts.name,
        "state": str(node.state),
        "agent": facts.declared is None,
        "silent_for": round(node.silent_for, 3) if facts.declared is None else None,
        "hostname": facts.hostname,
        "cores": list(facts.cores),
        "limits": dict(facts.limits),
        "virtual": facts.virtual,
        "walls": facts.walls or None,
        "walls_why": facts.walls_why,
        "nameless": facts.nameless,
        "owners": list(facts.owners),
        "trusts": facts.trusts,
        "ends": facts.ends or None,
        "memory": facts.memory,
        "gpus": [
            {"uuid": gpu.uuid, "index": gpu.index, "model": gpu.model, "memory": gpu.memory, "stand_in": gpu.stand_in}
            for gpu in facts.gpus
        ],
        "lendable": formatting.resources_json(facts.lendable),
        "offered": formatting.resources_json(node.offered),
        "lent": formatting.resources_json(node.lent),
        "jobs": node.jobs,
        "labels": node.labels,
        "drained": _drained_json(node),
        "set_aside": _aside_json(node),
        "set": _set_json(node),
        "software": facts.software,
        "ray": facts.ray or None,
        "sample": msgspec.to_builtins(node.sample, str_keys=True) if node.sample is not None else None,
        "withheld": [{"what": one.what, "why": one.why} for one in node.withheld],
    }
