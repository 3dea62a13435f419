"""`grid ledger`: who lent how much to whom, and each user's balance."""

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import current
from distributed_grid.cli.lazy import Command
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.messages import DayOfLoans, GetLoans, Loans, UserBalance, UserLoans
from distributed_grid.protocol.messages.history import DAYS
from distributed_grid.protocol.text import counted, format_duration

HOUR = 3600.0
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN = 20
"""Lines of days in a table."""


@click.command(cls=Command)
@click.option("--user", type=not_empty, metavar="NAME", help="Only what this user lent or borrowed.")
@click.option("--node", type=not_empty, metavar="NODE", shell_complete=complete_nodes, help="Only what this node lent.")
@click.option(
    "--days",
    type=click.IntRange(0, DAYS),
    default=7,
    metavar="N",
    help="Number of days to show, including today (7; 0: none).",
)
def ledger(user: str | None, node: str | None, days: int) -> None:
    """Show who lent how much to whom, and each user's balance.

    The owner of a node is `nodes[].owner` in the coordinator's configuration; what other users hold there is lent by
    the owner. LENT and BORROWED are averages, as fractions of the grid, with the half-life of fair share. CREDIT is the
    advantage in the order of service of those who have lent more than they borrowed. A client sees only what they lent
    or borrowed themselves."""
    invocation = current()
    answer: Loans = invocation.ask(lambda n: GetLoans(id=n, user=user or "", node=node or "", days=days))
    if answer.trouble:
        invocation.say(f"history is not written now, so days may be missing: {answer.trouble}")
    quiet = "".join(f"{one.user} {one.credit:+.3f}\n" for one in answer.users)
    formatting.show(invocation, lambda: _json(answer), lambda: _screen(answer), quiet, "days")


def _screen(answer: Loans) -> str:
    invocation = current()
    if not answer.owned and not answer.pairs and not answer.days:
        return "no node has an owner: nothing is lent from user to user (nodes[].owner, docs/shares.md)\n"
    if not answer.users and not answer.days:
        return f"nothing was lent: {counted(answer.owned, 'node')} with an owner\n"
    users = [(one.user, _part(one.lent), _part(one.borrowed), f"{one.credit:+.3f}", _owed(one)) for one in answer.users]
    text = formatting.table(invocation, ("USER", "LENT", "BORROWED", "CREDIT", ""), users)
    if answer.pairs:
        pairs = [
            (one.lender, one.borrower, _part(one.now), str(one.loans), _part(one.past), _part(_net(answer, one)))
            for one in answer.pairs
        ]
        header = ("LENDER", "BORROWER", "NOW", "LOANS", "PAST", "OWED")
        text += "\n" + formatting.table(invocation, header, pairs)
    if answer.days:
        columns = ("DAY", "LENDER", "BORROWER", "NODE", "CORE-HOURS", "GIB-HOURS", "GPU-HOURS")
        text += "\n" + formatting.table(invocation, columns, map(_row, answer.days[:SHOWN]))
        if more := len(answer.days[SHOWN:]) + answer.left_out:
            where = "fewer --days, --user or --node" if answer.left_out else "-o json"
            text += f"and {counted(more, 'line')} more: {where}\n"
    half_life = format_duration(answer.half_life)
    return text + f"\nthe past counts half after {half_life}, a credit {answer.credit:g} of a share at most\n"


def _part(value: float) -> str:
    return f"{100 * value:.2f}%" if value > 0 else "-"


def _owed(one: UserBalance) -> str:
    balance = one.lent - one.borrowed
    return f"is owed {_part(balance)}" if balance > 0 else f"owes {_part(-balance)}" if balance < 0 else ""


def _net(answer: Loans, pair: UserLoans) -> float:
    """Return what the borrower owes the lender, less what they have lent in turn."""
    back = [one.past for one in answer.pairs if (one.lender, one.borrower) == (pair.borrower, pair.lender)]
    return pair.past - sum(back)


def _date(one: DayOfLoans) -> str:
    return (EPOCH + timedelta(days=min(one.day, 2_000_000))).date().isoformat()


def _row(one: DayOfLoans) -> tuple[str, ...]:
    hours = (f"{seconds / HOUR:.2f}" if seconds else "-" for seconds in (one.cpu, one.memory, one.gpu))
    return (_date(one), one.lender, one.borrower, one.node, *hours)


def _json(answer: Loans) -> dict[str, Any]:
    users = [
        {
            "user": one.user,
            "lent": one.lent,
            "borrowed": one.borrowed,
            "balance": one.lent - one.borrowed,
            "credit": one.credit,
        }
        for one in answer.users
    ]
    pairs = [
        {
            "lender": one.lender,
            "borrower": one.borrower,
            "now": one.now,
            "loans": one.loans,
            "past": one.past,
            "owed": _net(answer, one),
        }
        for one in answer.pairs
    ]
    days = [
        {
            "day": _date(one),
            "lender": one.lender,
            "borrower": one.borrower,
            "node": one.node,
            "share_seconds": one.share,
            "core_seconds": one.cpu,
            "gib_seconds": one.memory,
            "gpu_seconds": one.gpu,
        }
        for one in answer.days
    ]
    return {
        "users": users,
        "pairs": pairs,
        "days": days,
        "left_out": answer.left_out,
        "credit_most": answer.credit,
        "half_life": answer.half_life,
        "owned_nodes": answer.owned,
    }
