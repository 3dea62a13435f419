"""`grid shares`: who holds how much, and who is next."""

from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import common, current
from distributed_grid.protocol.messages import GetShares, Shares
from distributed_grid.protocol.shares import UserShare
from distributed_grid.protocol.text import format_duration


@click.command()
@common
def shares() -> None:
    """Show who holds how much, and who is served next."""
    invocation = current()
    answer: Shares = invocation.ask(lambda n: GetShares(id=n))
    match invocation.output:
        case "json" | "jsonl":
            formatting.emit_json(invocation, _json(answer), rows="users")
        case "quiet":
            formatting.emit("".join(f"{one.user} {one.share:.3f}\n" for one in answer.users))
        case _:
            header = ("NEXT", "USER", "SHARE", "HELD", "PAST", "WEIGHT", "HOLDS", "RUNNING", "WAITING")
            rows = [_row(one) for one in answer.users]
            formatting.emit(
                formatting.table(invocation, header, rows) if rows else "nobody holds or waits for anything\n"
            )
            if rows:
                half_life = format_duration(answer.half_life)
                formatting.emit(f"\nof {answer.capacity}; the past counts half after {half_life} (docs/shares.md)\n")


def _row(one: UserShare) -> tuple[str, ...]:
    waiting = ", ".join(f"{count} {word}" for word, count in one.waiting.items())
    numbers = (f"{one.share:.3f}", f"{one.held:.1%}", f"{one.past:.1%}", f"{one.weight:g}")
    return str(one.position or "-"), one.user, *numbers, str(one.holds) or "-", str(one.running), waiting or "-"


def _json(answer: Shares) -> dict[str, Any]:
    users = [
        {
            "user": one.user,
            "position": one.position,
            "share": one.share,
            "held": one.held,
            "past": one.past,
            "weight": one.weight,
            "holds": formatting.resources_json(one.holds),
            "running": one.running,
            "waiting": one.waiting,
        }
        for one in answer.users
    ]
    return {"users": users, "capacity": formatting.resources_json(answer.capacity), "half_life": answer.half_life}
