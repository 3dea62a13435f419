"""`grid shared-status`: what is offered and what is lent. It is separate from status.py because it needs none of its
imports."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import Invocation, current, option
from distributed_grid.cli.lazy import Command
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.messages import GetShared, Shared
from distributed_grid.protocol.nodes import AllocationView, GpuOffer, NodeState, OfferView
from distributed_grid.protocol.resources import Resources, format_milli, format_ranges
from distributed_grid.protocol.text import format_duration


@click.command("shared-status", cls=Command)
@option("-n", "--node", type=not_empty, metavar="NODE", shell_complete=complete_nodes, help="Only this node.")
@option("--offers", "part", flag_value="offers", help="Only offers.")
@option("--allocations", "--leases", "part", flag_value="allocations", help="Only allocations.")
def shared_status(node: str | None, part: str | None) -> None:
    """Show offers and allocations, and why nothing more is offered."""
    invocation = current()
    answer: Shared = invocation.ask(lambda n: GetShared(id=n, node=node or ""))
    match invocation.output:
        case "json":
            formatting.emit_json(invocation, _shared_json(answer))
        case "jsonl":
            both = _shared_json(answer)
            rows = [{"kind": "offer", **row} for row in both["offers"]]
            rows += [{"kind": "allocation", **row} for row in both["allocations"]]
            formatting.emit_json(invocation, {"rows": rows}, rows="rows")
        case "quiet":
            formatting.emit("".join(f"{offer.node} {offer.room}\n" for offer in answer.offers))
        case _:
            _show_shared(invocation, answer, part)


def _show_shared(invocation: Invocation, answer: Shared, part: str | None) -> None:
    if part in (None, "offers"):
        formatting.emit("OFFERS\n")
        offers = ("NODE", "CPU", "MEMORY", "GPU", "CORES", "EXPIRES", "IDLE FOR", "LASTS 2H", "NOT OFFERED")
        rows = [_offer_row(offer, answer.lasting.get(offer.node)) for offer in answer.offers]
        formatting.emit(formatting.table(invocation, offers, rows, indent="  ") if rows else "  no node is known yet\n")
    if part is None:
        formatting.emit("\n")
    if part in (None, "allocations"):
        formatting.emit("ALLOCATIONS\n")
        lent = ("ID", "JOB", "USER", "NODE", "STATE", "HOLDS", "PRIO", "FOR", "ENDS")
        rows = [_allocation_row(one) for one in answer.allocations]
        formatting.emit(formatting.table(invocation, lent, rows, indent="  ") if rows else "  nothing is lent\n")


def _offer_row(offer: OfferView, lasting: float | None) -> list[str]:
    withheld = "; ".join(f"{one.what}: {one.why}" for one in offer.withheld)
    if offer.state is not NodeState.UP:
        withheld = f"node is {offer.state}" + (f"; {withheld}" if withheld else "")
    virtual = " virtual" if offer.virtual else ""
    return [
        offer.node,
        f"{format_milli(offer.room.cpu)}/{format_milli(offer.total.cpu)}{virtual}",
        formatting.memory(offer.room.memory),
        _gpu_words(offer.gpus, offer.room, offer.total),
        format_ranges(offer.cores) or "-",
        format_duration(offer.expires_in) if offer.expires_in > 0 else "-",
        format_duration(offer.idle_for) if offer.idle_for > 0 else "-",
        "-" if lasting is None else f"{100 * lasting:.0f} %",
        withheld or "-",
    ]


def _gpu_words(gpus: tuple[GpuOffer, ...], room: Resources, total: Resources) -> str:
    if not total.gpu and not gpus:
        return "-"
    models = ", ".join(dict.fromkeys(gpu.model for gpu in gpus))
    return f"{format_milli(room.gpu)}/{format_milli(total.gpu)}" + (f" {models}" if models else "")


def _allocation_row(one: AllocationView) -> list[str]:
    return [
        one.id,
        one.name or one.job,
        one.user,
        one.node,
        formatting.frozen(one) or (f"next after {one.next_after}" if one.next_after else str(one.state)),
        formatting.grant_words(one.grant),
        one.priority,
        formatting.age(one.since),
        formatting.clock(one.ends) if one.ends else "-",
    ]


def _shared_json(answer: Shared) -> dict[str, Any]:
    return {
        "offers": [
            {
                "node": offer.node,
                "state": str(offer.state),
                "offered": formatting.resources_json(offer.room),
                "total": formatting.resources_json(offer.total),
                "cores": list(offer.cores),
                "virtual": offer.virtual,
                "gpus": [_gpu_json(gpu) for gpu in offer.gpus],
                "expires_in": round(offer.expires_in, 3),
                "idle_for": round(offer.idle_for, 3),
                "lasts_2h": round(answer.lasting[offer.node], 4) if offer.node in answer.lasting else None,
                "withheld": [{"what": one.what, "why": one.why} for one in offer.withheld],
            }
            for offer in answer.offers
        ],
        "allocations": [
            {
                "id": one.id,
                "job": one.job,
                "name": one.name,
                "user": one.user,
                "node": one.node,
                "state": str(one.state),
                "grant": formatting.grant_json(one.grant),
                "priority": one.priority,
                "since": formatting.iso(one.since),
                "ends": formatting.iso(one.ends),
                "suspended": one.suspended or None,
                "awaits_reader": one.awaits_reader or None,
                "next_after": one.next_after or None,
            }
            for one in answer.allocations
        ],
    }


def _gpu_json(gpu: GpuOffer) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory": gpu.memory,
        "memory_free": gpu.memory_free,
        "amount": gpu.milli / 1000,
    }
