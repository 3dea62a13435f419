"""`grid status`, `grid cluster status`, `grid shares`: the state of the grid, of its Ray cluster, and of its users'
shares.
"""

import ipaddress
from collections.abc import Iterable
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.boosts.boost import amounts, difference, orphan_words, ray_json
from distributed_grid.cli.context import Invocation, current, printable
from distributed_grid.cli.grid.nodes import names, node_json, orders_words, show_nodes
from distributed_grid.cli.lazy import Command, Lazy, LazyGroup
from distributed_grid.protocol.history.summary import performance
from distributed_grid.protocol.messages import (
    Boosts,
    Demand,
    GetShares,
    GetStatus,
    ListBoosts,
    RayNode,
    Shares,
    Status,
)
from distributed_grid.protocol.messages.operator import UserShare
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.protocol.resources import Resources, format_bytes
from distributed_grid.protocol.text import by_number, counted, format_duration


@click.command(cls=Command)
def status() -> None:
    """Show the state of the grid on one screen."""
    invocation = current()
    url = invocation.url()
    answer: Status = invocation.ask(lambda n: GetStatus(id=n))
    brief = f"{_links_words(answer.nodes, ' of ')}\n"
    formatting.show(invocation, _status_json(answer, url), _screen(invocation, answer, url), brief)


# --- status -----------------------------------------------------------------------------------------------------------


def _sums(nodes: tuple[NodeView, ...]) -> dict[str, Resources]:
    sums = {"total": Resources(), "offered": Resources(), "lent": Resources()}
    for node in nodes:
        facts = node.facts
        sums["total"] += Resources(len(facts.cores) * 1000, facts.memory, len(facts.gpus) * 1000)
        sums["offered"] += node.offered
        sums["lent"] += node.lent
    return sums


def _links(nodes: tuple[NodeView, ...]) -> tuple[int, int, int]:
    """Return the number of nodes with an agent, of those whose agent is connected, and of nodes without agent."""
    agents = [node for node in nodes if node.facts.declared is None]
    return len(agents), sum(node.state is NodeState.UP for node in agents), len(nodes) - len(agents)


def _links_words(nodes: tuple[NodeView, ...], separator: str) -> str:
    total, up, without = _links(nodes)
    return f"{up}{separator}{counted(total, 'node')} up{f', {without} without agent' if without else ''}"


def _links_json(nodes: tuple[NodeView, ...]) -> dict[str, int]:
    total, up, without = _links(nodes)
    return {"total": total + without, "up": up, **({"no_agent": without} if without else {})}


def _screen(invocation: Invocation, answer: Status, url: str) -> str:
    parts = [f"grid {answer.grid} · coordinator {url} up {format_duration(answer.up_for)} (version {answer.software})"]
    parts[0] = printable(parts[0] + f" · {_links_words(answer.nodes, '/')}") + "\n"
    if answer.trouble:
        parts.append(printable(f"! {answer.trouble}") + "\n")
    sums = _sums(answer.nodes)
    rows = [
        ["cpu cores", *(formatting.cpu(one.cpu) for one in sums.values())],
        ["memory", *(formatting.memory(one.memory) for one in sums.values())],
        ["gpus", *(formatting.cpu(one.gpu) for one in sums.values())],
    ]
    parts.append(formatting.table(invocation, ("", "TOTAL", "OFFERED", "LENT"), rows))
    live = " · ".join(f"{count} {state}" for state, count in sorted(answer.counts.items())) or "none now"
    done = sum(answer.ended.values())
    how = ", ".join(f"{count} {cause}" for cause, count in sorted(answer.ended.items()))
    ended = f" · {done} ended since it started" + (f" ({how})" if done != answer.ended.get("exited", 0) else "")
    parts.append(f"jobs  {live}{ended if done else ''}\n")
    if words := performance_words(answer):
        parts.append(f"performance  {words}\n")
    parts += [printable(f"! {line}") + "\n" for line in _attention(answer)]
    return "".join(parts)


def performance_words(answer: Status) -> str:
    """Describe how well the grid serves its users; empty: no job has ended yet."""
    found = performance(answer)
    time = found.execution_time
    said = [f"jobs ran {format_duration(time[0])} (median), {format_duration(time[1])} (95 %)"] if time else []
    if found.efficiency is not None:
        said.append(f"{found.efficiency:.0%} of the core-seconds held were used")
    if found.success is not None:
        said.append(f"{found.success:.0%} of requests were placed")
    return " · ".join([*said, f"{found.moves_an_hour:g} moves an hour"]) if said else ""


def _attention(answer: Status) -> list[str]:
    """Return what needs attention."""
    lines = []
    if not answer.nodes:
        lines.append("no node is known yet → grid agent run, on each machine that lends")
    for node in answer.nodes:
        if ordered := orders_words(node):
            still = f", {node.jobs} still there" if node.jobs else ""
            lines.append(f"{node.facts.name} is {ordered}{still} → grid node undrain {node.facts.name}")
        if node.state is not NodeState.UP:
            lines.append(
                f"{node.facts.name} is {node.state}, silent for {format_duration(node.silent_for)} → grid nodes"
            )
        elif node.withheld:
            text = "; ".join(f"{one.what}: {one.why}" for one in node.withheld)
            lines.append(f"{node.facts.name} does not offer all: {text} → grid shared-status --node {node.facts.name}")
    if waiting := answer.counts.get("waiting", 0):
        lines.append(f"{counted(waiting, 'job')} waiting → grid jobs --state waiting, grid why JOB")
    return lines


def _status_json(answer: Status, url: str) -> dict[str, Any]:
    return {
        "grid": answer.grid,
        "coordinator": url,
        "software": answer.software,
        "epoch": answer.epoch,
        "up_for": round(answer.up_for, 3),
        "nodes": _links_json(answer.nodes),
        **{name: formatting.resources_json(amount) for name, amount in _sums(answer.nodes).items()},
        "jobs": answer.counts,
        "ended": answer.ended,
        "performance": performance(answer).plain(),
        "trouble": answer.trouble,
        "attention": _attention(answer),
    }


HEADER = ("IN RAY", "ADDRESS", "GRID NODE", "STATUS", "CPU USED", "GPU USED", "MEMORY USED", "BORROWED")
COUNTED = ("CPU", "GPU", "memory")


_SUMMARY = "distributed_grid.cli.grid.trends:cluster_summary"
_CHECK = "distributed_grid.cli.grid.cluster_check:check"


@click.group(
    cls=LazyGroup,
    table={
        "check": Lazy(_CHECK, "Check the Ray cluster that boosts are lent to."),
        "summary": Lazy(_SUMMARY, "Show the whole grid in a few lines: nodes, what they have, lend and use."),
    },
)
def cluster() -> None:
    """Show the grid and its Ray cluster: summary, status, check."""


@cluster.command("status")
def cluster_status() -> None:
    """List the nodes, and what Ray shows if it is configured.

    For Ray's nodes it shows used and total resources (2/8), and for raylets of boosts their source and target.
    Below are the sums, and what waits in Ray for capacity.
    """
    invocation = current()
    grid: Status = invocation.ask(lambda n: GetStatus(id=n))
    ray: Boosts = invocation.ask(lambda n: ListBoosts(n))
    match invocation.output:
        case "json":
            formatting.emit_json(invocation, {"nodes": list(map(node_json, grid.nodes)), "ray": _ray_json(ray)})
        case "jsonl":
            rows = [{"kind": "node", **node_json(node)} for node in grid.nodes]
            rows += [{"kind": "ray-node", **ray_json(node)} for node in _in_order(ray)]
            formatting.emit_json(invocation, {"rows": rows}, rows="rows")
        case "quiet":
            formatting.emit(names(grid))
        case _:
            show_nodes(invocation, grid)
            if ray.trouble:
                invocation.say(f"what Ray shows is not known: {ray.trouble}")
            elif ray.address:
                _show(invocation, grid, ray)


def _show(invocation: Invocation, grid: Status, ray: Boosts) -> None:
    borrowed = [node for node in ray.nodes if _is_borrowed(node)]
    count = counted(len(ray.nodes), "node")
    lent = f", {len(borrowed)} of them borrowed" if borrowed else ""
    formatting.emit("\n" + printable(f"Ray {ray.ray} at {ray.address} (Python {ray.python}): {count}{lent}") + "\n")
    rows = [_ray_row(node, grid.nodes) for node in _in_order(ray)]
    rows.append(("all", "", "", "", *_uses(ray.nodes), ""))
    if borrowed:
        rows.append(("of it borrowed", "", "", "", *_uses(borrowed), ""))
    formatting.emit(formatting.table(invocation, HEADER, rows))
    if ray.demand:
        formatting.emit(printable(f"waiting in Ray: {'; '.join(map(_demand, ray.demand))}") + "\n")
    for one in grid.nodes:
        if one.facts.ray not in ("", ray.ray):
            other = f"{one.facts.name} has Ray {one.facts.ray}, so that it cannot lend to this cluster"
            formatting.emit(
                printable(f"! {other} → pip install ray=={ray.ray} there, and start its agent again") + "\n"
            )
    for node in ray.nodes:
        if node.orphan:
            formatting.emit(f"! {printable(orphan_words(node))}\n")
    for boost in ray.boosts:
        if boost.differs:
            formatting.emit(f"! {printable(difference(boost))} → grid boost status\n")


def _in_order(ray: Boosts) -> list[RayNode]:
    """Return the nodes of Ray, lent ones behind the others, each by name."""
    return sorted(ray.nodes, key=lambda node: (_is_borrowed(node), by_number(node.name or node.host), node.id))


def _is_borrowed(node: RayNode) -> bool:
    return bool(node.boost or node.source)


def _ray_row(node: RayNode, known: Iterable[NodeView]) -> tuple[str, ...]:
    borrowed = "-"
    if _is_borrowed(node):
        borrowed = f"{node.source or '?'} → {node.target or '?'}" + (", orphaned" if node.orphan else "")
    name = node.name or node.host or node.id[:12]
    return (name, node.ip, node.source or _grid_node(node, known) or "-", node.status, *_uses([node]), borrowed)


def _grid_node(node: RayNode, known: Iterable[NodeView]) -> str:
    """The grid's node on the same machine, as far as that can be told: by its name or its address, or by its host's
    name where its agent reaches us from the same machine; empty: none is."""
    there = [one.facts for one in known]
    named = next((facts.name for facts in there if facts.name in (node.name, node.host)), "")
    if named:  # it counts before an address, which other agents of the machine have, too
        return named
    for facts in there:
        if node.ip == facts.address or (facts.hostname == node.host and _is_local(facts.address)):
            return facts.name
    return ""


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _uses(nodes: Iterable[RayNode]) -> tuple[str, ...]:
    """Return the used part of each kind on these nodes; `-` if they have none."""
    total, free = _sum(node.total for node in nodes), _sum(node.available for node in nodes)
    return tuple(_use(kind, total[kind] - free[kind], total[kind]) for kind in COUNTED)


def _use(kind: str, used: float, total: float) -> str:
    if not total:
        return "-"
    if kind == "memory":
        return f"{format_bytes(max(0, round(used)))}/{format_bytes(round(total))}"
    return f"{max(0.0, round(used, 4)):g}/{total:g}"


def _sum(amounts: Iterable[dict[str, float]]) -> dict[str, float]:
    known = list(amounts)
    return {kind: sum(one.get(kind, 0.0) for one in known) for kind in COUNTED}


def _demand(one: Demand) -> str:
    what = f"{one.count} × ({amounts(one.shape) or 'nothing'})"
    return f"a placement group with {what}" if one.group else what


# --- for programs -----------------------------------------------------------------------------------------------------


def _ray_json(ray: Boosts) -> dict[str, Any] | None:
    if not ray.address:
        return None
    borrowed = list(filter(_is_borrowed, ray.nodes))
    return {
        "address": ray.address,
        "version": ray.ray or None,
        "python": ray.python or None,
        "trouble": ray.trouble or None,
        "nodes": list(map(ray_json, _in_order(ray))),
        "total": _sum(node.total for node in ray.nodes),
        "available": _sum(node.available for node in ray.nodes),
        "borrowed": _sum(node.total for node in borrowed),
        "waiting": [{"count": one.count, "shape": one.shape, "group": one.group} for one in ray.demand],
        "differs": [{"boost": one.job.id or None, "why": one.differs} for one in ray.boosts if one.differs],
    }


@click.command(cls=Command)
def shares() -> None:
    """Show each user's share of the grid, and who is served next."""
    invocation = current()
    answer: Shares = invocation.ask(lambda n: GetShares(id=n))
    header = (
        "NEXT",
        "USER",
        "SHARE",
        "HELD",
        "PAST",
        "WEIGHT",
        "CREDIT",
        "HOLDS",
        "RUNNING",
        "WAITING",
        "WAITED",
        "PRECEDENCE",
    )
    text = "nobody holds or waits for anything\n"
    if rows := [_share_row(one) for one in answer.users]:
        text = formatting.table(invocation, header, rows) + "\n"
        half_life = format_duration(answer.half_life)
        text += f"of {answer.capacity}; the past counts half after {half_life} (docs/shares.md)\n"
    brief = "".join(f"{one.user} {one.share:.3f}\n" for one in answer.users)
    formatting.show(invocation, _shares_json(answer), text, brief, "users")


def _share_row(one: UserShare) -> tuple[str, ...]:
    waiting = ", ".join(f"{count} {word}" for word, count in one.waiting.items())
    credit = f"{one.credit:+.3f}" if one.credit else "-"
    numbers = (f"{one.share:.3f}", f"{one.held:.1%}", f"{one.past:.1%}", f"{one.weight:g}", credit)
    first = ("-", "-")
    if one.precedence is not None:
        first = format_duration(round(one.precedence.waited)), f"{one.precedence.value:.3g}"
    return str(one.position or "-"), one.user, *numbers, str(one.holds) or "-", str(one.running), waiting or "-", *first


def _shares_json(answer: Shares) -> dict[str, Any]:
    users = [
        {
            "user": one.user,
            "position": one.position,
            "share": one.share,
            "held": one.held,
            "past": one.past,
            "weight": one.weight,
            "credit": one.credit,
            "holds": formatting.resources_json(one.holds),
            "running": one.running,
            "waiting": one.waiting,
            "precedence": formatting.precedence_json(one.precedence),
        }
        for one in answer.users
    ]
    return {"users": users, "capacity": formatting.resources_json(answer.capacity), "half_life": answer.half_life}
