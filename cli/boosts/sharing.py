"""`grid resource-sharing status` and `grid policy show|set|diff`: rebalancing, and the policy it follows."""

import time
from typing import Any

import click
import msgspec

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, current, printable
from distributed_grid.cli.lazy import LazyGroup
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import BalancingStatus, Done, GetBalancing, SetBalancing
from distributed_grid.protocol.sharing.moves import LenderView, Move, Pass
from distributed_grid.protocol.sharing.policies import (
    DOES,
    TRADES,
    SharingPolicy,
    parse_mode,
    parse_policy,
    values_of,
)
from distributed_grid.protocol.sharing.pressure import Pressure
from distributed_grid.protocol.text import format_duration

MOVES = ("AT", "MOVE", "BOOST", "SOURCE", "TARGET", "AMOUNT", "TASKS", "GAIN", "COST")
UNSERVED = ("COUNT", "ASKS", "WAITED", "WHY NOT")
BARRED = ("NODE", "MOVE", "UNTIL", "WHY")
NODES = ("NODE", "OWNER", "CPU", "MEMORY", "GPU", "ALL USE", "LENDS", "WHY NOTHING")
VALUES = ("SETTING", "VALUE", "WHAT IT TRADES")
DURATIONS = ("sustained", "min_hold", "cooldown", "horizon")


def _status() -> BalancingStatus:
    answer: BalancingStatus = current().ask(lambda n: GetBalancing(n))
    return answer


# --- resource-sharing -------------------------------------------------------------------------------------------------


@click.group("resource-sharing", cls=LazyGroup)
def resource_sharing() -> None:
    """Show how the grid lends idle capacity by itself: status."""


@resource_sharing.command()
def status() -> None:
    """Show mode, policy, the last pass with its reasons, and the pressure of each node.

    OWNER is the pressure of a node's owner, from 0 to 1; CPU, MEMORY and GPU are its parts. ALL USE includes the grid's
    jobs. LENDS is what rebalancing could lend of the node now.
    """
    invocation, answer = current(), _status()
    match invocation.output:
        case "json" | "jsonl":
            formatting.emit_json(invocation, _json(answer), rows="nodes")
        case "quiet":
            formatting.emit("".join(f"{name}\n" for one in answer.recent if (name := one.boost or one.job)))
        case _:
            formatting.emit(_screen(invocation, answer))


def _screen(invocation: Invocation, answer: BalancingStatus) -> str:
    balancing, last = answer.balancing, answer.last
    parts = [f"mode {balancing.mode}{_origin(answer, 'mode')}: {DOES[balancing.mode]}\n"]
    parts.append(f"policy {balancing.policy}{_origin(answer, 'policy')}, a pass every {balancing.interval:g} s\n")
    parts.append(printable(_last_pass(answer)) + "\n")
    if answer.recent:
        parts += ["\nMOVES\n", formatting.table(invocation, MOVES, map(move_row, answer.recent), indent="  ")]
        parts += [f"  {printable(f'{one.boost or one.job or one.source}: {one.reason}')}\n" for one in answer.recent]
    if last is not None:
        parts += _pass_parts(invocation, last)
    if answer.barred:
        rows = [(one.source, str(one.kind), _in(one.until), one.why) for one in answer.barred]
        parts += ["\nBARRED\n", formatting.table(invocation, BARRED, rows, indent="  ")]
    parts.append("\nNODES\n")
    nodes = map(_node_row, answer.nodes)
    parts.append(formatting.table(invocation, NODES, nodes, indent="  ") if answer.nodes else "  none yet\n")
    return "".join(parts)


def _pass_parts(invocation: Invocation, found: Pass) -> list[str]:
    """Tables of demand that is not served, and of boosts that their users leave idle."""
    parts = []
    if found.unserved:
        parts += ["\nWAITS IN RAY\n", formatting.table(invocation, UNSERVED, unserved_rows(found), indent="  ")]
    return parts + [f"! {printable(f'{one.boost} of {one.user}: {one.text}')}\n" for one in found.hints]


def unserved_rows(found: Pass) -> list[tuple[str, ...]]:
    """Demand that is not served, as rows of UNSERVED."""
    return [(str(one.count), one.asks, format_duration(round(one.waited)), one.why) for one in found.unserved]


def _last_pass(answer: BalancingStatus) -> str:
    last, now = answer.last, time.time()
    none = "this coordinator knows of no Ray cluster (set ray.address there), so nothing is lent by itself"
    if last is None:
        return f"Ray at {answer.address}; there was no pass yet" if answer.address else none
    ago = f"the last pass was {format_duration(max(0, round(now - last.at)))} ago"
    did = f"{len(last.moves)} {'made' if last.applied else 'proposed'}"
    if not answer.address:
        return f"{none}; jobs may leave before owners come: {ago}, moves: {did}"
    if last.trouble:
        return f"Ray at {answer.address} cannot be asked: {last.trouble}; {ago}"
    return f"Ray at {answer.address}, for {last.target}; {ago}, moves: {did}"


def _origin(answer: BalancingStatus, name: str) -> str:
    configured = getattr(answer.configured, name)
    if getattr(answer.order, name) is None:
        return " (as configured)"
    return f" (order of {answer.order.by}; configured: {configured})"


def _in(until: float) -> str:
    return f"in {format_duration(max(0, round(until - time.time())))}"


def move_row(one: Move) -> tuple[str, ...]:
    """A move as a row of MOVES."""
    at = formatting.clock(one.at) if one.at else "-"
    tasks = str(one.tasks) if one.tasks else "-"
    amounts = f"{one.gain:.0f} core-s", f"{one.cost:.0f} core-s"
    return (at, str(one.kind), one.boost or one.job or "-", one.source, one.target, str(one.resources), tasks, *amounts)


def _node_row(one: LenderView) -> tuple[str, ...]:
    owner = one.owner
    parts = (owner.score, owner.cpu, owner.memory, owner.gpu) if owner is not None else (None,) * 4
    whole = one.all.score if one.all is not None else None
    lends = str(one.excess) if one.excess else "-"
    return (one.node, *map(_part, parts), _part(whole), lends, one.why or "-")


def _part(part: float | None) -> str:
    return f"{part:.2f}" if part is not None else "-"


def _json(answer: BalancingStatus) -> dict[str, Any]:
    return {
        "mode": str(answer.balancing.mode),
        "policy": str(answer.balancing.policy),
        "configured": {"mode": str(answer.configured.mode), "policy": str(answer.configured.policy)},
        "order": _order_json(answer),
        "values": msgspec.to_builtins(answer.balancing.values),
        "interval": answer.balancing.interval,
        "ray": answer.address or None,
        "last": pass_json(answer.last) if answer.last is not None else None,
        "moves": [move_json(one) for one in answer.recent],
        "barred": [
            {
                "source": one.source,
                "target": one.target,
                "move": str(one.kind),
                "until": formatting.iso(one.until),
                "why": one.why,
            }
            for one in answer.barred
        ],
        "nodes": [
            {
                "node": one.node,
                "owner": _pressure_json(one.owner),
                "all": _pressure_json(one.all),
                "lends": formatting.resources_json(one.excess),
                "why": one.why or None,
            }
            for one in answer.nodes
        ],
    }


def _order_json(answer: BalancingStatus) -> dict[str, Any] | None:
    order = answer.order
    if order.mode is None and order.policy is None:
        return None
    return {"mode": order.mode, "policy": order.policy, "by": order.by, "since": formatting.iso(order.since)}


def _pressure_json(found: Pressure | None) -> dict[str, Any] | None:
    if found is None:
        return None
    parts = {"score": found.score, "cpu": found.cpu, "memory": found.memory, "gpu": found.gpu}
    return {name: round(part, 4) if part is not None else None for name, part in parts.items()}


def move_json(one: Move) -> dict[str, Any]:
    """A move in JSON."""
    return {
        "move": str(one.kind),
        "boost": one.boost or None,
        "job": one.job or None,
        "source": one.source,
        "target": one.target,
        "resources": formatting.resources_json(one.resources),
        "asks": one.asks or None,
        "tasks": one.tasks,
        "reason": one.reason,
        "undone_by": one.undone_by,
        "gain": one.gain,
        "cost": one.cost,
        "at": formatting.iso(one.at),
    }


def pass_json(found: Pass) -> dict[str, Any]:
    """A pass in JSON."""
    return {
        "at": formatting.iso(found.at),
        "target": found.target or None,
        "applied": found.applied,
        "trouble": found.trouble or None,
        "moves": [move_json(one) for one in found.moves],
        "waiting": [
            {"asks": one.asks, "count": one.count, "group": one.group, "waited": one.waited, "why": one.why}
            for one in found.unserved
        ],
        "unused": [{"boost": one.boost, "user": one.user, "text": one.text} for one in found.hints],
    }


# --- policy -----------------------------------------------------------------------------------------------------------


@click.group(cls=LazyGroup)
def policy() -> None:
    """Show, set and compare the policies of rebalancing: show, set, diff."""


@policy.command("show")
@click.argument("name", required=False, metavar="[POLICY]")
def show(name: str | None) -> None:
    """Show the mode and the policy in effect, or the numbers of a POLICY, and the effect of each.

    Policies are conservative, balanced, aggressive and predictive.
    """
    invocation, answer = current(), _status()
    balancing = answer.balancing
    meant = parse_policy(name) if name is not None else balancing.policy
    values = values_of(meant, balancing.excess)
    content: dict[str, Any] = {"policy": str(meant), "values": msgspec.to_builtins(values), "trades": TRADES}
    if name is None:
        content |= {"mode": str(balancing.mode), "order": _order_json(answer), "interval": balancing.interval}
    rows = [(row, _value(row, values), TRADES[row]) for row in TRADES]
    text = formatting.table(invocation, VALUES, rows)
    if name is None:
        text = f"mode {balancing.mode}{_origin(answer, 'mode')}: {DOES[balancing.mode]}\n{text}"
    origin = _origin(answer, "policy") if name is None else ""
    formatting.show(invocation, content, f"policy {meant}{printable(origin)}\n{text}", f"{meant}\n")


def _value(name: str, values: SharingPolicy) -> str:
    value = getattr(values, name)
    if name in DURATIONS:
        return format_duration(value) if value else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}"


@policy.command("set")
@click.option("--mode", metavar="MODE", help="offload_only, share_and_offload or dynamic_balancing.")
@click.option("--unset", is_flag=True, help="Return to the configured mode and policy, except for what is given here.")
@click.argument("name", required=False, metavar="[POLICY]")
def set_(mode: str | None, unset: bool, name: str | None) -> None:
    """Rebalance by another POLICY or mode from now on.

    This overrides the configuration, also across restarts, until --unset. Operators only.
    """
    if mode is None and name is None and not unset:
        raise BadValue("nothing to set", hint="give a POLICY, --mode MODE or --unset; see: grid policy set --help")
    asked = parse_mode(mode) if mode is not None else None
    chosen = parse_policy(name) if name is not None else None
    invocation = current()
    answer: Done = invocation.ask(lambda n: SetBalancing(n, asked, chosen, unset))
    invocation.say(answer.text)


@policy.command("diff")
@click.argument("one", metavar="POLICY")
@click.argument("other", required=False, metavar="[OTHER]")
def diff(one: str, other: str | None) -> None:
    """Show the numbers in which a POLICY differs from the one in effect, or from an OTHER one.

    To see which past decisions would differ, use `grid replay --set policy=NAME`.
    """
    invocation, answer = current(), _status()
    balancing = answer.balancing
    names = (balancing.policy, parse_policy(one)) if other is None else (parse_policy(one), parse_policy(other))
    first, second = (values_of(name, balancing.excess) for name in names)
    rows = [
        (row, _value(row, first), _value(row, second), TRADES[row])
        for row in TRADES
        if getattr(first, row) != getattr(second, row)
    ]
    differs = {row: [getattr(first, row), getattr(second, row)] for row, *_ in rows}
    content = {"policies": [str(name) for name in names], "differs": differs}
    header = ("SETTING", str(names[0]).upper(), str(names[1]).upper(), "WHAT IT TRADES")
    text = formatting.table(invocation, header, rows) if rows else f"{names[0]} and {names[1]} do not differ\n"
    formatting.show(invocation, content, text, "".join(f"{row}\n" for row in differs))
