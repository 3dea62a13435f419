"""`grid cluster status`: the nodes of the grid, and where Ray is configured what Ray shows, with what is borrowed."""

import ipaddress
from collections.abc import Iterable
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, common, current, printable
from distributed_grid.cli.grid.boost import difference, stray_words
from distributed_grid.cli.grid.nodes import names, node_json, show_nodes
from distributed_grid.cli.grid.ray_nodes import amounts, ray_json
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.protocol.messages import Boosts, Demand, GetStatus, ListBoosts, RayNode, Status
from distributed_grid.protocol.nodes import NodeView
from distributed_grid.protocol.resources import format_bytes

HEADER = ("IN RAY", "ADDRESS", "GRID NODE", "STATUS", "CPU USED", "GPU USED", "MEMORY USED", "BORROWED")
COUNTED = ("CPU", "GPU", "memory")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@common
def cluster() -> None:
    """Look at the nodes, and at what Ray shows of them: status."""


@cluster.command("status")
@common
def cluster_status() -> None:
    """List the nodes, and where Ray is configured what Ray shows.

    Of Ray's nodes it shows how much of what they have is in use (2/8), and of those that are raylets of boosts from
    which node to which they are lent. Below are the sums, and what waits in Ray for room.
    """
    invocation = current()
    grid: Status = invocation.ask(lambda n: GetStatus(id=n))
    ray: Boosts = invocation.ask(lambda n: ListBoosts(n))
    match invocation.output:
        case "json":
            formatting.emit_json(invocation, {"nodes": list(map(node_json, grid.nodes)), "ray": _json(ray)})
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
    count = f"{len(ray.nodes)} node{'' if len(ray.nodes) == 1 else 's'}"
    lent = f", {len(borrowed)} of them borrowed" if borrowed else ""
    formatting.emit("\n" + printable(f"Ray {ray.ray} at {ray.address} (Python {ray.python}): {count}{lent}") + "\n")
    rows = [_row(node, grid.nodes) for node in _in_order(ray)]
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
        if node.stray:
            formatting.emit(f"! {printable(stray_words(node))}\n")
    for boost in ray.boosts:
        if boost.differs:
            formatting.emit(f"! {printable(difference(boost))} → grid boost status\n")


def _in_order(ray: Boosts) -> list[RayNode]:
    """What is lent behind what was there, each by name."""
    return sorted(ray.nodes, key=lambda node: (_is_borrowed(node), node.name or node.host, node.id))


def _is_borrowed(node: RayNode) -> bool:
    return bool(node.boost or node.source)


def _row(node: RayNode, known: Iterable[NodeView]) -> tuple[str, ...]:
    borrowed = "-"
    if _is_borrowed(node):
        borrowed = f"{node.source or '?'} → {node.target or '?'}" + (", stray" if node.stray else "")
    name = node.name or node.host or node.id[:12]
    return (name, node.ip, node.source or _grid_node(node, known) or "-", node.status, *_uses([node]), borrowed)


def _grid_node(node: RayNode, known: Iterable[NodeView]) -> str:
    """The grid's node on the same machine, as far as that can be told: by its name or its address, or by its host's
    name where its agent reaches us from the same machine; empty: none is."""
    for one in known:
        facts = one.facts
        if facts.name in (node.name, node.host) or node.ip == facts.address:
            return facts.name
        if facts.hostname == node.host and _is_local(facts.address):
            return facts.name
    return ""


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _uses(nodes: Iterable[RayNode]) -> tuple[str, ...]:
    """How much of what they have is in use, of each kind; `-` where they have none."""
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


def _json(ray: Boosts) -> dict[str, Any] | None:
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
