"""The options that make many jobs from one command, and the output about many jobs."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, option
from distributed_grid.protocol.groups import GroupKind, GroupView
from distributed_grid.protocol.groups import words as array_words
from distributed_grid.protocol.jobs import GRID_FAILED, Cause, JobView, exit_status

if TYPE_CHECKING:
    from distributed_grid.cli.attach.waiting import Waiting

F = Callable[..., Any]


def many_options(command: F) -> F:
    """The options for arrays and gangs, and for what comes before a job."""
    for add in reversed(
        (
            option("--array", metavar="RANGE", help="Run it once for each index: 0-99, 1-10:2, 1,3,7; %8: 8 at once."),
            option("--nodes", "gang", type=int, metavar="N", help="Run it on N nodes at once, all or none."),
            option("--max-fails", type=int, metavar="N", help="End the rest of an array after more failures than N."),
            option("--after", multiple=True, metavar="JOB", help="Not before this job has started; repeatable."),
            option("--after-ok", multiple=True, metavar="JOB", help="Not before this job has exited with 0."),
            option("--after-any", multiple=True, metavar="JOB", help="Not before this job has ended."),
            option("--begin", metavar="TIME", help="Start at the earliest at: +30m, 22:15 or 2030-01-31T22:15."),
        )
    ):
        command = add(command)
    return command


# --- for people -------------------------------------------------------------------------------------------------------


def group_label(view: GroupView) -> str:
    """A group as it is called in sentences."""
    return f"{view.id} ({view.spec.name})" if view.spec.name else view.id


def indexes_words(view: GroupView) -> str:
    """Which members it has: `[0-99%8]`."""
    if view.kind is GroupKind.GANG:
        return f"[{view.count} node{'s' * (view.count > 1)}]"
    return f"[{array_words(view.array)}]" if view.array is not None else f"[{view.count}]"


def progress_words(view: GroupView) -> str:
    """Describe the progress of a group: `3 waiting, 8 running, 89 ended (1 failed)`."""
    parts = [f"{count} {state}" for state, count in view.states.items()]
    ends = [f"{count} {what}" for count, what in ((view.failed, "failed"), (view.cancelled, "cancelled")) if count]
    return ", ".join(parts) + (f" ({', '.join(ends)})" if ends else "")


def group_row(view: GroupView) -> list[str]:
    """A group's line in a table of jobs."""
    return [
        f"{view.id} {indexes_words(view)}",
        formatting.short_name(view.spec),
        view.user,
        progress_words(view),
        view.reason.code if view.reason else "-",
        view.request.priority.word,
        "-",
        str(view.request.resources),
        formatting.age(view.submitted, view.ended),
        str(group_status(view)) if view.ended else "-",
    ]


def group_status(view: GroupView) -> int:
    """The exit code for a whole group: 0 if every member exited with 0, otherwise 1."""
    return 1 if view.failed or view.cancelled else 0


def status_of_all(ended: Iterable[JobView], grid_failed: int = GRID_FAILED) -> int:
    """The exit code of several jobs: the highest. A member that was ended with its gang counts only if no other member
    failed; `grid_failed` is the code of those that the grid failed."""
    outcomes = [view.outcome for view in ended if view.outcome]
    own = max((exit_status(one, grid_failed) for one in outcomes if one.cause is not Cause.GANG), default=0)
    return own or max((exit_status(one, grid_failed) for one in outcomes), default=0)


VERDICTS = 20
"""So many members are told by themselves how they ended."""


def tell_ends(invocation: Invocation, waiting: "Waiting") -> int:
    """Print how all awaited jobs have ended; returns the exit code for them."""
    ended = waiting.members()
    groups = list(waiting.groups.values())
    if invocation.output in ("json", "jsonl"):
        emit_jobs(invocation, ended, groups)
    said = [text for view in ended if (text := formatting.verdict(view))]
    for text in said if not groups else said[:VERDICTS]:
        invocation.say(text)
    for view in groups:
        if view.failed or view.cancelled:
            invocation.say(f"{group_label(view)}: {progress_words(view)}")
    return status_of_all(ended, invocation.failure) or max((group_status(view) for view in groups), default=0)


def before_rows(view: GroupView | JobView) -> list[tuple[str, Any]]:
    """Return the dependencies of a group, for `grid job show`."""
    return [
        ("waits for", ", ".join(f"{one.on} ({one.kind})" for one in view.after)),
        ("begins", formatting.clock(view.begin) if view.begin and not view.ended else ""),
    ]


def before_json(view: GroupView | JobView) -> dict[str, Any]:
    """Return the dependencies of a group, for programs."""
    return {
        "waits_for": [{"on": one.on, "kind": str(one.kind)} for one in view.after],
        "begin": formatting.iso(view.begin),
    }


def group_lines(view: GroupView) -> list[tuple[str, Any]]:
    """Return the description of a group, for `grid job show`."""
    array = view.array
    return [
        (str(view.kind), group_label(view)),
        ("indexes", f"{array_words(array)} · {view.count} jobs" if array is not None else ""),
        ("state", progress_words(view) + (f" · {view.reason.code}: {view.reason.text}" if view.reason else "")),
        ("command", formatting.command(view.spec)),
        ("user", view.user),
        ("asks", f"{view.request.resources} · {view.request.priority.word}"),
        ("at once", array.most if array is not None and array.most else ""),
        ("max fails", array.max_fails if array is not None and array.max_fails >= 0 else ""),
        *before_rows(view),
        ("submitted", formatting.clock(view.submitted)),
        ("ended", formatting.clock(view.ended) if view.ended else ""),
    ]


# --- for programs -----------------------------------------------------------------------------------------------------


def emit_jobs(invocation: Invocation, jobs: Iterable[JobView], groups: Iterable[GroupView], **more: Any) -> None:
    """Jobs and groups for programs, with `more` about the list; in `jsonl` one a line, told apart by `kind`."""
    rows, arrays = [formatting.job_json(view) for view in jobs], [group_json(view) for view in groups]
    if invocation.output == "jsonl":
        formatting.emit_json(invocation, {"rows": [{"kind": "job", **row} for row in rows] + arrays}, rows="rows")
    else:
        formatting.emit_json(invocation, {"jobs": rows, "arrays": arrays, **more})


def group_json(view: GroupView) -> dict[str, Any]:
    """A group with everything that is known of it."""
    array = view.array
    return {
        "id": view.id,
        "kind": str(view.kind),
        "name": view.spec.name,
        "user": view.user,
        "command": list(view.spec.argv),
        "priority": view.request.priority.word,
        "asks": formatting.resources_json(view.request.resources),
        "indexes": array_words(array).partition("%")[0] if array is not None else None,
        "count": view.count,
        "at_once": array.most if array is not None and array.most else None,
        "max_fails": array.max_fails if array is not None and array.max_fails >= 0 else None,
        "states": view.states,
        **before_json(view),
        "failed": view.failed,
        "cancelled": view.cancelled,
        "submitted": formatting.iso(view.submitted),
        "ended": formatting.iso(view.ended),
        "reason": view.reason.code if view.reason else None,
        "reason_text": view.reason.text if view.reason else None,
        "exit_code": group_status(view) if view.ended else None,
    }
