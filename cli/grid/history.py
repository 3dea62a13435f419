"""`grid replay`, `grid receipts`, `grid audit`: the coordinator's records of events, preemptions and requests."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from distributed_grid import __version__
from distributed_grid.cli import formatting
from distributed_grid.cli.completion import complete_nodes
from distributed_grid.cli.context import Invocation, complete_files, current, printable
from distributed_grid.cli.lazy import Command, LazyGroup
from distributed_grid.cli.options import not_empty
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.messages import GetReceipts, GetStatus, Receipts
from distributed_grid.protocol.messages.operator import Alternative, Place, Receipt, Victim
from distributed_grid.protocol.text import counted, unknown_node

Report = Any
"""A replay.Report, which is loaded when it is needed only."""
Compared = Any
"""A what_if.Compared, likewise."""
LINES = 50
"""Differences by another policy that are printed; the rest is counted. JSON has them all."""


@click.command(cls=Command)
@click.argument("log")
@click.option("--until", metavar="TIME", help="Stop there, such as 2026-01-31T12:00:00 (local time).")
@click.option("--job", default="", metavar="ID", help="Show only the events, or the differences, of this job.")
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting of the policy; repeatable."
)
def replay(log: str, until: str | None, job: str, changes: tuple[str, ...]) -> None:
    """Replay the decisions of an event log, by the same policy or another.

    LOG is a file of the event log, a folder of such files, or a coordinator's state directory. Exits with 1 if the same
    policy now decides differently, or if the ledger fails its own checks."""
    invocation = current()
    end = _moment(until) if until else float("inf")
    if changes:
        from distributed_grid.coordinator.eventlog.what_if import compare

        _tell_other(invocation, compare(Path(log), changes, end, job), changes)
        return
    from distributed_grid.coordinator.eventlog.replay import replay as decide

    report = decide(Path(log), end, job)
    _tell(invocation, report, job)
    if report.difference is not None or report.broken:
        raise SystemExit(1)


def _moment(text: str) -> float:
    try:
        if not math.isnan(at := float(text)):
            return at
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise BadValue(f"{text!r} is no moment", hint="write 2026-01-31T12:00:00") from None


# --- by the same policy -----------------------------------------------------------------------------------------------


def _tell(invocation: Invocation, report: Report, job: str) -> None:
    _warn(invocation, report)
    lines = [f"{formatting.clock(one.at)}  {one.what}" for one in report.story]
    if job and not report.story:
        lines = [f"there is nothing about {job}"]
    text = formatting.lines([*lines, *_difference(report), *_ending(report), _summary(report)])
    formatting.show(invocation, _json(report), text, f"{'different' if report.difference else 'same'}\n")


def _summary(report: Report) -> str:
    said = f"{counted(report.events, 'event')}, {counted(report.decisions, 'decision')}"
    if report.events or report.decisions:
        said += f" from {formatting.clock(report.began)} to {formatting.clock(report.ended)}"
    return f"{said}: {'not the same' if report.difference else 'all the same'}"


def _difference(report: Report) -> list[str]:
    one = report.difference
    if one is None:
        return []
    lines = [f"{formatting.clock(one.at)}  the first difference, in {one.file}"]
    lines += [f"  event: {line}" for line in one.events]
    if one.state:
        return [*lines, f"  the decisions are the same, but not the ledger after them: {one.state}"]
    lines += [f"  then:  {line}" for line in one.then or ["nothing more"]]
    return lines + [f"  now:   {line}" for line in one.now or ["nothing more"]]


def _ending(report: Report) -> list[str]:
    lines = []
    for one, now in ((report.broken, "does so again"), (report.mended, "does not any more")):
        if one is not None:
            lines.append(f"{formatting.clock(one.at)}  the ledger refused its own state, and {now}: {one.what}")
    return lines


def _json(report: Report) -> dict[str, Any]:
    found = report.difference
    return {
        "same": found is None,
        "files": report.files,
        "events": report.events,
        "decisions": report.decisions,
        "from": formatting.iso(report.began),
        "to": formatting.iso(report.ended),
        "software": report.software,
        "cut_bytes": report.cut,
        "left_out": report.skipped,
        "broken": _moment_json(report.broken),
        "mended": _moment_json(report.mended),
        "story": [_moment_json(one) for one in report.story],
        "difference": None
        if found is None
        else {
            "file": found.file,
            "at": formatting.iso(found.at),
            "events": found.events,
            "then": found.then,
            "now": found.now,
            "state": found.state,
        },
    }


def _moment_json(one: Any) -> dict[str, Any] | None:
    return None if one is None else {"at": formatting.iso(one.at), "what": one.what}


def _warn(invocation: Invocation, report: Report) -> None:
    others = [version for version in report.software if version != __version__]
    if others:
        invocation.say(f"the log is of version {', '.join(others)}, decided again by {__version__}")
    for gap in report.skipped:
        invocation.say(f"left out: {printable(gap)}")
    if report.cut:
        invocation.say(f"the last {report.cut} bytes are no whole record: the coordinator was killed, or still writes")


# --- by another policy ------------------------------------------------------------------------------------------------


def _tell_other(invocation: Invocation, compared: Compared, changes: Sequence[str]) -> None:
    from distributed_grid.coordinator.eventlog.what_if import lines as in_words

    _warn(invocation, compared.report)
    said = in_words(compared.differences)
    lines = [f"{formatting.clock(one.at)}  {one.text}" for one in said[:LINES]]
    if len(said) > LINES:
        lines.append(f"and {len(said) - LINES} more such lines; -o json has them")
    if compared.broken:
        lines.append(f"{formatting.clock(compared.report.ended)}  the ledger refuses: {compared.broken}")
    text, count = formatting.lines([*lines, _other_summary(compared, changes)]), sum(compared.counts.values())
    formatting.show(invocation, lambda: _other_json(compared, changes), text, f"{count}\n", "differences")


def _other_summary(compared: Compared, changes: Sequence[str]) -> str:
    report, counts = compared.report, compared.counts
    said = f"{counted(report.events, 'event')}, {counted(report.decisions, 'decision')}; with {', '.join(changes)}"
    if not counts:
        return f"{said} all the same"
    return f"{said} {sum(counts.values())} otherwise: {', '.join(f'{n} {kind}' for kind, n in counts.items())}"


def _other_json(compared: Compared, changes: Sequence[str]) -> dict[str, Any]:
    from distributed_grid.coordinator.eventlog.what_if import lines as in_words

    report = compared.report
    return {
        "set": list(changes),
        "events": report.events,
        "decisions": report.decisions,
        "from": formatting.iso(report.began),
        "to": formatting.iso(report.ended),
        "software": report.software,
        "cut_bytes": report.cut,
        "broken": compared.broken,
        "otherwise": compared.counts,
        "differences": [
            {
                "at": formatting.iso(one.at),
                "kind": one.kind,
                "what": one.what,
                "job": one.job,
                "was": one.was,
                "would": one.would,
                "after": one.after if one.after >= 0 else None,
                "text": in_words([one])[0].text,
            }
            for one in compared.differences
        ],
    }


HEADER = ("RECEIPT", "WHEN", "NODE", "FOR", "USER", "VICTIMS", "LOST", "WAITED", "RESULT")
NAMED = 3
"""So many nodes of a gang are named in a row."""


@click.command(cls=Command)
@click.option("-n", "--node", type=not_empty, metavar="NODE", shell_complete=complete_nodes, help="Only on this node.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000), help="Maximum number.")
@click.argument("job", required=False, type=not_empty)
def receipts(job: str | None, node: str | None, limit: int) -> None:
    """Show who was preempted for whom, and what it cost.

    Newest first. With JOB, only preemptions for this job or of it. LOST is in core-seconds (docs/preemption.md).
    """
    invocation = current()
    answer: Receipts = invocation.ask(lambda n: GetReceipts(id=n, job=job or "", node=node or "", limit=limit))
    if node and not answer.receipts:
        _check_name(invocation, node)
    formatting.show(
        invocation,
        {"receipts": [_receipt_json(one) for one in answer.receipts]},
        formatting.table(invocation, HEADER, [_row(one) for one in answer.receipts]),
        formatting.lines(one.id for one in answer.receipts),
        "receipts",
    )
    if not answer.receipts and invocation.output == "table":
        invocation.say("no job was preempted")


def _check_name(invocation: Invocation, node: str) -> None:
    """Raise BadValue for a node that is not there: that no job was preempted there has another reason."""
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


def _receipt_json(one: Receipt) -> dict[str, Any]:
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
    """Return a victim for programs."""
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
    """Return what is kept on one node for programs."""
    return {"node": place.node, "grant": formatting.grant_json(place.grant)}


def alternative_json(other: Alternative) -> dict[str, Any]:
    """Another node that was considered, for programs."""
    return {"node": other.node, "victims": other.victims, "lost_core_seconds": other.lost, "why": other.why}


@click.group(cls=LazyGroup)
def audit() -> None:
    """Verify the coordinator's audit log: verify."""


@audit.command()
@click.option("--state-dir", metavar="DIR", shell_complete=complete_files, help="State directory of the coordinator.")
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
def verify(state_dir: str | None, file: Path | None) -> None:
    """Verify that every line of the audit log is unchanged and in order.

    Checks the log of this machine's coordinator, which may be running: audit.log and rotated files, up to the line
    that its store knows; or FILE alone. The first fault is reported, and the exit code is 1.
    """
    invocation = current()
    from distributed_grid.coordinator.audit import verify as audit_verify

    if file is not None:
        found = audit_verify.verify(audit_verify.read([file]))
    else:
        from distributed_grid.cli.services.service import coordinator_place

        config = invocation.whole_config({"coordinator.state_dir": state_dir})
        file = coordinator_place(config) / "audit.log"
        found = audit_verify.verify_own(file.parent)
    if not found.lines:
        raise GridError(f"there is no audit log at {file}", hint="--state-dir names where the coordinator works")
    span = f"numbers {found.first} to {found.last}, {found.since} to {found.until}"
    lines = [f"{counted(found.lines, 'line')} in order, {span}"]
    lines += [f"the last one's hash is {found.hash}"]
    lines += [f"the store knows number {found.anchored}, and it is as it was"] if found.anchored else []
    lines += [f"{found.first - 1} lines before them have been turned over and are gone"] if found.first > 1 else []
    lines += [f"{found.missing} found no room on the disk and were not written"] if found.missing else []
    formatting.show(invocation, asdict(found), text := formatting.lines(lines), text)
