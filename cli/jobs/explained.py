"""The coordinator's explanations, for people and for programs."""

from typing import Any

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, printable
from distributed_grid.cli.grid.receipts import alternative_json, place_json, victim_json
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.messages import NodeVerdict, Why
from distributed_grid.protocol.nodes import AllocationView
from distributed_grid.protocol.preemption import Place, Preemption

SHOWN = 20
"""Nodes in the table of verdicts."""


def show_why(invocation: Invocation, why: Why, request: Request | None = None) -> None:
    """Print an explanation: the reason, the funnel, what is said of each node, and what would help."""
    if invocation.output in ("json", "jsonl"):
        formatting.emit_json(invocation, _json(why))
        return
    if invocation.output == "quiet":
        formatting.emit(why.reason.code + "\n")
        return
    for line in _head(why, request):
        formatting.emit(printable(line) + "\n")
    if why.funnel:
        width = max(len(str(step.left)) for step in why.funnel)
        for step in why.funnel:
            lost = f"   without {step.lost}" if step.lost else ""
            formatting.emit(printable(f"  {step.left:>{width}} {step.what}{lost}") + "\n")
    if why.verdicts:
        formatting.emit(_table(invocation, why))
    if why.preempts is not None:
        formatting.emit(_victims(invocation, why.preempts))
    if why.holders:
        formatting.emit(_holders(invocation, why))
    if why.hint:
        formatting.emit(f"try: {printable(why.hint)}\n")


def _head(why: Why, request: Request | None) -> list[str]:
    lines = []
    if (job := why.job) is not None:
        since = (
            formatting.age(job.submitted) if job.state is not State.ENDED else formatting.age(job.submitted, job.ended)
        )
        asks = f"asks {job.request.resources}, {job.request.priority.word}"
        lines.append(f"{formatting.job_label(job)} {str(job.state).upper()} · {asks} · submitted {since} ago")
        if job.state is State.ENDED:
            return [*lines, formatting.verdict(job) or f"exited with {job.outcome.code if job.outcome else '?'}"]
    elif request is not None:
        each = f" on each of {request.gang} nodes" if request.gang > 1 else ""
        lines.append(f"a request of {request.resources}{each}, {request.priority.word}")
    lines.append(f"{why.reason.code}: {why.reason.text}" if why.reason.text else why.reason.code)
    if why.grant is not None:
        word = "it has" if why.job is not None and why.job.state is not State.WAITING else "it would get"
        first = "its rank 0: " if why.job is None and request is not None and request.gang > 1 else ""
        lines.append(f"{first}{word} {formatting.grant_words(why.grant)} on {why.chosen}")
    if why.ahead:
        lines.append(f"{why.ahead} job{'s' if why.ahead > 1 else ''} before it in the queue")
    return lines


def _table(invocation: Invocation, why: Why) -> str:
    names = list(dict.fromkeys(name for verdict in why.verdicts for name in verdict.scores))
    header = ("NODE", *(name.upper() for name in names), "CONFIDENCE", "")
    rows = [_row(verdict, names, why.chosen) for verdict in why.verdicts[:SHOWN]]
    more = len(why.verdicts) - SHOWN
    return formatting.table(invocation, header, rows) + (f"and {more} more nodes\n" if more > 0 else "")


def _row(verdict: NodeVerdict, names: list[str], chosen: str) -> list[str]:
    scores = [f"{verdict.scores[name]:.2f}" if name in verdict.scores else "-" for name in names]
    note = "chosen" if verdict.node == chosen else verdict.why
    return [verdict.node, *scores, f"{verdict.confidence:.2f}" if verdict.ok else "-", note]


def _holders(invocation: Invocation, why: Why) -> str:
    """Who holds what it needs, and until when at the latest."""
    rows = [
        (one.node, one.name or one.job, one.user, formatting.grant_words(one.grant), _until(one))
        for one in why.holders[:SHOWN]
    ]
    return formatting.table(invocation, ("NODE", "HELD BY", "USER", "HOLDS", "UNTIL"), rows)


def _victims(invocation: Invocation, would: Preemption) -> str:
    """Who would give way to it, and what they would lose."""
    header = ("GIVES WAY", "USER", "PRIORITY", "NODE", "HOLDS", "LOSES")
    rows = []
    for one in would.victims:
        name = f"{one.job}, with its gang of {one.gang}" if one.gang > 1 else one.job or "another's"
        holds = formatting.grant_words(one.grant)
        rows.append((name, one.user, one.priority.word, one.node or would.node, holds, f"{one.lost:.0f} core-seconds"))
    return formatting.table(invocation, header, rows)


def _until(one: AllocationView) -> str:
    if not one.ends:
        return f"{one.state.value}, no time limit" if one.state is not State.STARTING else "starting"
    return f"{formatting.clock(one.ends)} at the latest"


def _json(why: Why) -> dict[str, Any]:
    return {
        "reason": why.reason.code,
        "reason_text": why.reason.text,
        "job": formatting.job_json(why.job) if why.job is not None else None,
        "funnel": [{"what": step.what, "left": step.left, "lost": step.lost} for step in why.funnel],
        "nodes": [
            {"node": one.node, "ok": one.ok, "why": one.why, "confidence": one.confidence, "scores": one.scores}
            for one in why.verdicts
        ],
        "chosen": why.chosen or None,
        "grant": formatting.grant_json(why.grant),
        "ahead": why.ahead,
        "hint": why.hint,
        "holders": [
            {
                "node": one.node,
                "job": one.job,
                "name": one.name,
                "user": one.user,
                "state": one.state,
                "grant": formatting.grant_json(one.grant),
                "until": formatting.iso(one.ends),
            }
            for one in why.holders
        ],
        "preempts": _preempts_json(why.preempts) if why.preempts is not None else None,
        "snapshot": {"epoch": why.epoch, "number": why.snapshot},
    }


def _preempts_json(would: Preemption) -> dict[str, Any]:
    return {
        "node": would.node,
        "grant": formatting.grant_json(would.grant),
        "victims": [victim_json(one) for one in would.victims],
        "lost_core_seconds": would.lost,
        "within_seconds": would.within,
        "alternatives": [alternative_json(one) for one in would.alternatives],
        "places": [place_json(one) for one in (Place(would.node, would.grant), *would.more)],
    }
