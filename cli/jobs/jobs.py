"""`grid jobs`, `cancel`, `why` and `job show|wait|events`: the jobs of the grid, and the coordinator's explanations."""

import sys
import time
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.attach.waiting import Waiting
from distributed_grid.cli.completion import complete_jobs
from distributed_grid.cli.context import Invocation, current, grid_failed, option, printable
from distributed_grid.cli.grid.history import alternative_json, place_json, victim_json
from distributed_grid.cli.jobs.groups import before_rows, emit_jobs, group_lines, group_row, tell_ends
from distributed_grid.cli.jobs.wasteful import LOOKED_AT, show_wasteful, waste_of
from distributed_grid.cli.lazy import Command, LazyGroup
from distributed_grid.cli.options import limits_words, not_empty
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import JobView, LimitBy, Precedence, Request, State, exit_status
from distributed_grid.protocol.messages import AskWhy, Cancel, Done, Jobs, ListJobs, NodeVerdict, ShowJobs, Why
from distributed_grid.protocol.messages.operator import Place, Preemption
from distributed_grid.protocol.nodes import AllocationView
from distributed_grid.protocol.resources import format_bytes
from distributed_grid.protocol.text import format_duration, parse_duration

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
        since = formatting.age(job.submitted)
        asks = f"asks {job.request.resources}, {job.request.priority.word}"
        lines.append(f"{formatting.job_label(job)} {str(job.state).upper()} · {asks} · submitted {since} ago")
        if job.state is State.ENDED:
            return [*lines, formatting.verdict(job) or f"exited with {job.outcome.code if job.outcome else '?'}"]
    elif request is not None:
        each = f" on each of {request.gang} nodes" if request.gang > 1 else ""
        lines.append(f"a request of {request.resources}{each}, {request.priority.word}")
    lines.append(f"{why.reason.code}: {why.reason.text}" if why.reason.text else why.reason.code)
    if why.job is not None and (said := formatting.frozen(why.job)):
        lines.append(said)
    if why.grant is not None:
        word = "it has" if why.job is not None and why.job.state is not State.WAITING else "it would get"
        first = "its rank 0: " if why.job is None and request is not None and request.gang > 1 else ""
        lines.append(f"{first}{word} {formatting.grant_words(why.grant)} on {why.chosen}")
    if why.lasting:
        lines.append(why.lasting)
    if why.prospects:
        lines.append(why.prospects)
    if why.ahead:
        lines.append(f"{why.ahead} job{'s' if why.ahead > 1 else ''} before it in the queue")
    if why.precedence is not None:
        lines.append(_precedence(why.precedence))
    return lines


_BY = {
    LimitBy.LIMIT: "its time limit and grace",
    LimitBy.USER: "the median run time of its user's last jobs, as it has no time limit",
    LimitBy.EVERYONE: "the median run time of everyone's last jobs, as it has no time limit",
    LimitBy.DEFAULT: "the default, as it has no time limit",
}


def _precedence(one: Precedence) -> str:
    """Describe the precedence of a job in the order by waiting time (docs/shares.md)."""
    counted = f"waited {format_duration(round(one.waited))}, {one.waited / one.limit:.2f} times"
    limit = f"{format_duration(round(one.limit))} ({_BY[one.by]})"
    due = f"overdue in {format_duration(round(one.overdue_in))}" if one.overdue_in else "overdue: it comes first"
    credit = f" (credit {one.credit:+.3f}, grid ledger)" if one.credit else ""
    return f"{counted} {limit}; precedence {one.value:.3g}{credit}; {due}"


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
    """Describe who holds what a job needs, and until when at the latest."""
    rows = [
        (one.node, one.name or one.job, one.user, formatting.grant_words(one.grant), _until(one))
        for one in why.holders[:SHOWN]
    ]
    return formatting.table(invocation, ("NODE", "HELD BY", "USER", "HOLDS", "UNTIL"), rows)


def _victims(invocation: Invocation, would: Preemption) -> str:
    """Describe which jobs would give way, and what they would lose."""
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
        "lasting": why.lasting,
        "prospects": why.prospects,
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
        "precedence": formatting.precedence_json(why.precedence),
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


FAILED = "failed"
TIMED_OUT = 124


@click.command(cls=Command)
@option("-a", "--all", "ended", is_flag=True, help="Also list ended jobs.")
@option("--members", is_flag=True, help="List each job of an array on a line of its own.")
@option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only those in this state; `failed`: ended, except with 0 or by cancel; repeatable.",
)
@option("--user", type=not_empty, metavar="USER", help="Only this user's.")
@option("--mine", is_flag=True, help="Only yours.")
@option("--limit", type=click.IntRange(1, 100_000), default=200, help="Maximum number (200).")
@option("--wasteful", is_flag=True, help="Only those that requested much more than they used, the worst first.")
def jobs(
    ended: bool, members: bool, states: tuple[str, ...], user: str | None, mine: bool, limit: int, wasteful: bool
) -> None:
    """List jobs.

    Newest first; ended ones only with --all. An array is one line, with the number of its members in each state.
    --wasteful shows which of the 10,000 jobs that run or ended last requested too much, and what would have been
    enough.
    """
    invocation = current()
    if mine and user:
        raise BadValue("--mine and --user name two users", hint="give one of them")
    if wasteful:
        if states:
            raise BadValue("--wasteful looks at jobs in all states", hint="leave --state out")
        every: Jobs = invocation.ask(
            lambda n: ListJobs(n, True, (), invocation.user if mine else user or "", LOOKED_AT)
        )
        show_wasteful(invocation, every.jobs, limit)
        return
    failed = any(one.lower() == FAILED for one in states)
    wanted = tuple(_state(one) for one in states if one.lower() != FAILED)
    failed, wanted = failed and State.ENDED not in wanted, (*wanted, State.ENDED) if failed else wanted
    ended = ended or State.ENDED in wanted
    answer: Jobs = invocation.ask(
        lambda n: ListJobs(
            n, ended, wanted, invocation.user if mine else user or "", limit + 1, fold=not members, failed=failed
        )
    )  # one more than is shown: of arrays nothing else tells whether there are more
    both: list[JobView | GroupView] = [*answer.jobs, *answer.groups]
    both.sort(key=lambda one: (bool(one.ended), -(one.ended or one.submitted)))
    shown, more = both[:limit], answer.more or len(both) > limit
    match invocation.output:
        case "json" | "jsonl":
            single = [view for view in shown if isinstance(view, JobView)]
            whole = [view for view in shown if isinstance(view, GroupView)]
            emit_jobs(invocation, single, whole, more=more)
        case "quiet":
            formatting.emit("".join(f"{view.id}\n" for view in shown))
        case _:
            lines = [group_row(view) if isinstance(view, GroupView) else formatting.job_row(view) for view in shown]
            formatting.emit(formatting.table(invocation, formatting.JOB_HEADER, lines))
            if more:
                invocation.say(f"there are more; see them with --limit {2 * limit}")


def _state(text: str) -> State:
    try:
        return State(text.lower())
    except ValueError:
        raise BadValue(f"unknown state {text!r}", hint=f"there are {', '.join(State)}") from None


@click.command(cls=Command)
@option("--force", is_flag=True, help="SIGKILL at once.")
@option("--grace", metavar="TIME", help="Time between SIGTERM and SIGKILL (each job's own).")
@option("--reason", default="", metavar="TEXT", help="Recorded with the job.")
@option("--mine", is_flag=True, help="All jobs of yours, instead of JOB.")
@option("--user", type=not_empty, metavar="USER", help="All jobs of this user, instead of JOB.")
@option("--all", "every", is_flag=True, help="All jobs of all users, instead of JOB.")
@option("--state", "states", multiple=True, metavar="STATE", help="Of those, only in this state; repeatable.")
@click.argument("job", nargs=-1, shell_complete=complete_jobs)
def cancel(
    job: tuple[str, ...],
    force: bool,
    grace: str | None,
    reason: str,
    mine: bool,
    user: str | None,
    every: bool,
    states: tuple[str, ...],
) -> None:
    """Cancel jobs, running or waiting.

    JOB is an id, the beginning of one, a name, or `last`; an array as a whole, or some of it: ARRAY_7, ARRAY_3-7,9.
    Jobs get SIGTERM, then SIGKILL. The command returns when the order is on the coordinator's disk, for all of the jobs
    or for none.
    """
    if mine + bool(user) + every + bool(job) != 1 or (states and job):
        hint = "name jobs, or say whose with one of --mine, --user and --all (and --state)"
        raise BadValue("which jobs are to be ended?", hint=hint)
    wanted = tuple(_state(one) for one in states)
    seconds = 0.0 if force else parse_duration(grace) if grace is not None else -1.0
    invocation = current()
    reason = reason or "grid cancel"
    answer: Done = invocation.ask(
        lambda n: Cancel(n, job, reason, seconds, invocation.user if mine else user or "", wanted, every)
    )
    if answer.text:
        invocation.say(answer.text)


@click.command(cls=Command)
@click.argument("job", shell_complete=complete_jobs)
def why(job: str) -> None:
    """Explain why a job waits, or why it runs where it does.

    JOB is an id, the beginning of one, a name, or `last`.
    """

    invocation = current()
    show_why(invocation, invocation.ask(lambda n: AskWhy(id=n, job=job)))


@click.group(cls=LazyGroup)
def job() -> None:
    """Show single jobs, wait for them, list their events: show, wait, events."""


@job.command()
@click.argument("job", nargs=-1, required=True, shell_complete=complete_jobs)
def show(job: tuple[str, ...]) -> None:
    """Show all details of jobs."""
    invocation = current()
    answer: Jobs = invocation.ask(lambda n: ShowJobs(id=n, jobs=job))
    if invocation.output in ("json", "jsonl"):
        emit_jobs(invocation, answer.jobs, answer.groups)
    elif invocation.output == "quiet":
        formatting.emit(formatting.lines([*(view.id for view in answer.groups), *(view.id for view in answer.jobs)]))
    else:
        shown = [_rows(view) for view in answer.jobs] + [group_lines(view) for view in answer.groups]
        texts = [[f"{name:<11} {value}" for name, value in rows if value != ""] for rows in shown]
        formatting.emit("\n".join("".join(printable(line) + "\n" for line in lines) for lines in texts))


@job.command()
@click.argument("job", shell_complete=complete_jobs)
def events(job: str) -> None:
    """Show a job's history: every state it entered, when and why."""
    invocation = current()
    view = _one(invocation, job)
    match invocation.output:
        case "json" | "jsonl":
            formatting.emit_json(
                invocation, {"job": view.id, "events": formatting.job_json(view)["events"]}, rows="events"
            )
        case "quiet":
            formatting.emit("".join(f"{step.state}\n" for step in view.story))
        case _:
            rows = [(formatting.clock(step.at), str(step.state), step.text) for step in view.story]
            formatting.emit(formatting.table(invocation, ("TIME", "STATE", "WHAT"), rows))


@job.command()
@option("--timeout", metavar="TIME", help="Wait this long at most, then exit with 124.")
@option("--progress", is_flag=True, help="Print meanwhile how many are done, run and wait.")
@click.argument("job", nargs=-1, required=True, shell_complete=complete_jobs)
def wait(job: tuple[str, ...], timeout: str | None, progress: bool) -> None:
    """Wait for jobs to end; the exit code is the job's own (of several: the highest)."""
    invocation = current()
    invocation.failure = grid_failed()
    until = time.monotonic() + parse_duration(timeout) if timeout is not None else None
    waiting = Waiting(invocation, job, until, progress)
    if not waiting.wait():
        invocation.say(f"not all of them have ended within {timeout}")
        sys.exit(TIMED_OUT)
    code = tell_ends(invocation, waiting)
    waiting.close()
    sys.exit(code)


def _one(invocation: Invocation, ref: str) -> JobView:
    from distributed_grid.coordinator.client.requests import only

    return only(invocation.ask(lambda n: ShowJobs(id=n, jobs=(ref,))), ref)


def _rows(view: JobView) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [
        ("job", formatting.job_label(view)),
        ("state", f"{view.state}" + (f" · {view.reason.code}: {view.reason.text}" if view.reason else "")),
        ("", formatting.frozen(view)),
        ("command", formatting.command(view.spec)),
        ("user", view.user),
        ("asks", f"{view.request.resources} · {view.request.priority.word}"),
        ("prefers", ", ".join(view.request.nodes)),
        ("node", view.node),
        ("walls", view.walls),
        (
            "holds" if view.state is not State.ENDED else "held",
            formatting.grant_words(view.grant) if view.grant else "",
        ),
        ("allocation", view.allocation),
        ("workdir", view.spec.workdir),
        ("time limit", format_duration(view.spec.time_limit) if view.spec.time_limit else ""),
        ("limits", limits_words(view.spec.limits)),
        *before_rows(view),
        ("submitted", formatting.clock(view.submitted)),
        ("started", formatting.clock(view.started) if view.started else ""),
        ("ended", formatting.clock(view.ended) if view.ended else ""),
    ]
    if view.used is not None:
        rows += [("uses" if view.state is not State.ENDED else "did use", formatting.used_words(view.used))]
    rows += [("unused", view.unused)]
    if (waste := waste_of(view)) is not None:
        so_far = "" if view.state is State.ENDED else " so far"
        rows += [("enough", f"{waste.enough()} would have been enough{so_far}")]
    if (outcome := view.outcome) is not None:
        used = f"{format_duration(outcome.seconds)} · cpu {format_duration(outcome.cpu_seconds)}"
        if outcome.suspended:
            used += f" · suspended for {format_duration(outcome.suspended)} of it"
        rows += [
            ("exit code", f"{exit_status(outcome)} · {outcome.cause}" + (f" · {outcome.text}" if outcome.text else "")),
            ("used", used + (f" · peak memory {format_bytes(outcome.peak_memory)}" if outcome.peak_memory else "")),
            ("output", f"{outcome.stdout_size} bytes stdout, {outcome.stderr_size} bytes stderr"),
        ]
    return rows
