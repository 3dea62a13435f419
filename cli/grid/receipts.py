"""`grid receipts`: who took whose place, why, and what it cost."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion_of import nodes as complete_nodes
from distributed_grid.cli.context import Invocation, common, current, printable
from distributed_grid.protocol.messages import GetReceipts, GetStatus, Receipts
from distributed_grid.protocol.preemption import Alternative, Place, Receipt, Victim
from distributed_grid.protocol.text import unknown_node

HEADER = ("RECEIPT", "WHEN", "NODE", "FOR", "USER", "VICTIMS", "LOST", "WAITED", "RESULT")
NAMED = 3
"""So many nodes of a gang are named in a row."""


@click.command()
@common
@click.option("-n", "--node", default="", metavar="NODE", shell_complete=complete_nodes, help="Only on this node.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="So many at the most.")
@click.argument("job", required=False, default="")
def receipts(job: str, node: str, limit: int) -> None:
    """Show who was preempted for whom, and what it cost.

    The newest first; of JOB, where it took a place or gave one. LOST is in core-seconds (docs/preemption.md).
    """
    invocation = current()
    answer: Receipts = invocation.ask(lambda n: GetReceipts(id=n, job=job, node=node, limit=limit))
    if node and not answer.receipts:
        _check_name(invocation, node)
    match invocation.output:
        case "json" | "jsonl":
            formatting.emit_json(invocation, {"receipts": [_json(one) for one in answer.receipts]}, rows="receipts")
        case "quiet":
            formatting.emit("".join(printable(one.id) + "\n" for one in answer.receipts))
        case _:
            formatting.emit(formatting.table(invocation, HEADER, [_row(one) for one in answer.receipts]))
            if not answer.receipts:
                invocation.say("nobody was preempted")


def _check_name(invocation: Invocation, node: str) -> None:
    """Raise BadValue for a node that is not there: that nobody was preempted there has another reason."""
    names = [one.facts.name for one in invocation.ask(lambda n: GetStatus(id=n)).nodes]
    if node not in names:
        raise unknown_node(node, names)


def _row(one: Receipt) -> list[str]:
    return [
        one.id,
        formatting.clock(one.at),
        _nodes([one.node, *(place.node for place in one.more)]),
        f"{one.job} ({one.priority.word})",
        one.user,
        ", ".join(f"{victim.job} ({victim.priority.word})" for victim in one.victims),
        f"{one.lost:.0f}",
        f"{one.waited:.1f} s" if one.result else "-",
        f"{one.result or 'under way'}{f': {one.text}' if one.text else ''}",
    ]


def _nodes(names: list[str]) -> str:
    return ",".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _json(one: Receipt) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": formatting.iso(one.at),
        "job": one.job,
        "user": one.user,
        "priority": one.priority.word,
        "wanted": formatting.resources_json(one.wanted),
        "node": one.node,
        "grant": formatting.grant_json(one.grant),
        "places": [place_json(place) for place in (Place(one.node, one.grant), *one.more)],
        "why": one.why,
        "victims": [victim_json(victim) for victim in one.victims],
        "lost_core_seconds": one.lost,
        "alternatives": [alternative_json(other) for other in one.alternatives],
        "result": one.result or "under-way",
        "closed": formatting.iso(one.closed),
        "seconds_until_start": one.waited if one.result == "started" else None,
        "text": one.text,
    }


def victim_json(victim: Victim) -> dict[str, Any]:
    """One that gives way, for programs."""
    return {
        "job": victim.job,
        "allocation": victim.allocation,
        "user": victim.user,
        "priority": victim.priority.word,
        "grant": formatting.grant_json(victim.grant),
        "ran_seconds": victim.seconds,
        "lost_core_seconds": victim.lost,
        "gang": victim.gang or None,
        "node": victim.node or None,
        "walls": victim.walls or None,
    }


def place_json(place: Place) -> dict[str, Any]:
    """What is kept on one node, for programs."""
    return {"node": place.node, "grant": formatting.grant_json(place.grant)}


def alternative_json(other: Alternative) -> dict[str, Any]:
    """Another node that was considered, for programs."""
    return {"node": other.node, "victims": other.victims, "lost_core_seconds": other.lost, "why": other.why}
