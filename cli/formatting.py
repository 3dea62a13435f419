"""Output formats for people and programs: tables, amounts, ages, states, JSON."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from distributed_grid.cli.context import Invocation, printable
from distributed_grid.protocol.boosts import Boost, title
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Precedence, State, Suspension, Used, exit_status
from distributed_grid.protocol.nodes import AllocationView
from distributed_grid.protocol.placement import LEAST_SHARED, level_of, open_to_all
from distributed_grid.protocol.resources import (
    LATEST,
    MILLI,
    Grant,
    Resources,
    ResourceType,
    format_bytes,
    format_milli,
    format_ranges,
)
from distributed_grid.protocol.text import format_duration

SCHEMA = 1
_CONTROL_CHARACTERS = "[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
_COLORS = {"green": "32", "yellow": "33", "red": "31", "bold": "1", "dim": "2"}
_STATE_COLORS = {
    "running": "green", "up": "green", "waiting": "yellow", "starting": "yellow", "stopping": "yellow",
    "suspect": "yellow", "lost": "red", "disconnected": "red",
}  # fmt: skip


def emit(text: str) -> None:
    """Text to stdout."""
    sys.stdout.write(text)
    sys.stdout.flush()


def emit_json(invocation: Invocation, content: dict[str, Any], rows: str = "") -> None:
    """Print one JSON value, with its schema number; with `jsonl` the items of `rows`, or the one item, one per line."""
    encoder = msgspec.json.Encoder()

    def escaped(text: str) -> None:
        """Escape what JSON allows in strings and a terminal may take for a control character."""
        emit(re.sub(_CONTROL_CHARACTERS, lambda found: f"\\u{ord(found[0]):04x}", text))

    if invocation.output == "jsonl" and rows:
        found = content[rows]
        for row in [found] if isinstance(found, dict) else found:
            escaped(encoder.encode({"schema": SCHEMA, **row}).decode() + "\n")
    elif invocation.output == "jsonl":
        escaped(encoder.encode({"schema": SCHEMA, **content}).decode() + "\n")
    else:
        escaped(msgspec.json.format(encoder.encode({"schema": SCHEMA, **content}), indent=2).decode() + "\n")


def show(
    invocation: Invocation,
    content: dict[str, Any] | Callable[[], dict[str, Any]],
    text: str | Callable[[], str],
    quiet: str | Callable[[], str] = "",
    rows: str = "",
) -> None:
    """A command's output: text for people, JSON for programs (in `jsonl` the items of `rows`, one per line), or with
    `-o quiet` a word. Functions are called only if their form is wanted."""
    match invocation.output:
        case "json" | "jsonl":
            emit_json(invocation, content() if callable(content) else content, rows)
        case "quiet":
            emit(quiet() if callable(quiet) else quiet)
        case _:
            emit(text() if callable(text) else text)


def lines(said: Iterable[object]) -> str:
    """Join these lines, with control characters removed."""
    return "".join(f"{printable(str(line))}\n" for line in said)


def table(invocation: Invocation, header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Aligned columns, with control characters removed; states are coloured on a terminal."""
    clean = [[printable(cell) for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in clean)]) for at, name in enumerate(header)]
    colored = invocation.colored()
    lines = [_line(header, widths, "bold" if colored else "")]
    for row in clean:
        lines.append(_line(row, widths, "", colored))
    return "".join(indent + line + "\n" for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int], color: str, states: bool = False) -> str:
    parts = []
    for at, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        padded = cell if at == len(cells) - 1 else cell.ljust(width)
        name = color or (_STATE_COLORS.get(cell, "") if states else "")
        parts.append(paint(padded, name))
    return "  ".join(parts).rstrip()


def paint(text: str, color: str) -> str:
    """The text in this colour (empty: unchanged)."""
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if color else text


def cpu(milli: int) -> str:
    """Cores for a table."""
    return format_milli(milli) if milli else "-"


def memory(count: int) -> str:
    """Bytes for a table."""
    return format_bytes(count) if count else "-"


def grant_words(grant: Grant) -> str:
    """Format a grant: `cores 0-1, 4G memory, GPU-8b1f…`."""
    parts = []
    virtual = "virtual " if grant.virtual else ""
    if grant.cores:
        parts.append(f"{virtual}core{'s' if len(grant.cores) > 1 else ''} {format_ranges(grant.cores)}")
    if grant.shared_core >= 0:
        parts.append(f"{format_milli(grant.shared_milli)} of {virtual}core {grant.shared_core}")
    if grant.slack:
        some = f"{format_milli(grant.slack_milli)} of " if grant.slack_milli < len(grant.slack) * MILLI else ""
        which = f"{virtual}core{'s' if len(grant.slack) > 1 else ''} {format_ranges(grant.slack)}"
        parts.append(f"{some}{which} of {grant.holder.rpartition('.')[0] or 'another job'}, revocable")
    if grant.memory:
        parts.append(f"{format_bytes(grant.memory)} memory")
    for gpu in grant.gpus:
        parts.append(gpu.uuid if gpu.milli == 1000 else f"{format_milli(gpu.milli)} of {gpu.uuid}")
    return ", ".join(parts) or "nothing"


def age(since: float, until: float = 0.0) -> str:
    """The time from `since` (grid time) to `until` (0: now)."""
    return format_duration(max(0.0, (until or time.time()) - since))


def clock(at: float) -> str:
    """Grid time as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(_in_calendar(at)))


def iso(at: float) -> str | None:
    """Grid time as ISO 8601 in UTC; None if unset."""
    if not at:
        return None
    at = _in_calendar(at)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z"


def _in_calendar(at: float) -> float:
    """The time, limited to what a calendar can represent: a peer may send any."""
    return max(-LATEST, min(at, LATEST))


def job_label(view: JobView) -> str:
    """A job's name in sentences."""
    name = view.spec.name or (title(view.spec.boost) if view.spec.boost is not None else "")
    return f"{view.id} ({name})" if name else view.id


def command(spec: JobSpec) -> str:
    """Return a job's command as it would be typed; a boost, whose command is made on its node, is described."""
    import shlex

    return title(spec.boost) if spec.boost is not None else shlex.join(spec.argv)


def short_name(spec: JobSpec) -> str:
    """A job's name in a table."""
    return spec.name or (title(spec.boost) if spec.boost is not None else " ".join(spec.argv)[:24])


def verdict(view: JobView) -> str:
    """Describe how a job ended; empty for a plain exit."""
    outcome = view.outcome
    if outcome is None or outcome.cause is Cause.EXITED:
        return ""
    text, node = outcome.text, view.node or "the node"
    match outcome.cause:
        case Cause.SIGNALLED:
            said = f"was killed by {signal_name(outcome.signal)}"
        case Cause.TIME_LIMIT:
            said = f"was ended at its time limit of {format_duration(view.spec.time_limit)}"
        case Cause.CANCELLED:
            said = f"was cancelled{'' if outcome.started else ' before it ran'}{_because(text)}"
        case Cause.NOT_FOUND | Cause.NOT_EXECUTABLE | Cause.SPAWN_FAILED | Cause.WORKDIR_FAILED:
            said = f"could not be run on {node}{_because(text)}"
        case Cause.NOT_PLACED:
            said = f"was not placed{_because(text)}"
        case Cause.DEPENDENCY_FAILED:
            said = f"was not run{_because(text)}"
        case Cause.OUT_OF_MEMORY:
            more = "a boost of more memory" if view.spec.boost else "more with --mem, or see --retry-on oom"
            said = f"ran out of memory{_because(text)} (ask for {more})"
        case Cause.NODE_OUT_OF_MEMORY:
            said = f"was killed when {node} ran out of memory{_because(text)}"
        case Cause.TOO_MANY_PROCESSES:
            said = f"made too many processes{_because(text)}"
        case Cause.RESTORED:
            said = f"is held back{_because(text)}"
        case Cause.PREEMPTED | Cause.RECALLED | Cause.DRAINED | Cause.RELEASED:
            said = f"was {outcome.cause.value} from {node}{_because(text)}"
        case Cause.GANG:
            said = f"was ended with its gang{_because(text)}"
        case Cause.NODE_LOST:
            said = f"is lost with its node {node}{_because(text)}"
        case _:
            said = f"failed on {node}: {outcome.cause.replace('-', ' ')}{_because(text)}"
    return f"{job_label(view)} {said}"


def suspended(why: str, by_holder: bool = False) -> str:
    """Why a job is frozen; empty if it is not."""
    if by_holder:
        return f"suspended: {why}"
    return f"suspended: the owner is back ({why})" if why else ""


def frozen(view: JobView | AllocationView) -> str:
    """Why a job is frozen, for all its causes; empty if it is not."""
    by_holder = (
        view.by_holder if isinstance(view, AllocationView) else bool(view.suspended and view.suspended.by_holder)
    )
    causes = [suspended(_why(view.suspended), by_holder)] if view.suspended else []
    if view.awaits_reader:
        why = _why(view.awaits_reader)
        causes.append("waits for the reader of its output" + (f" ({why})" if why else ""))
    return "; ".join(filter(None, causes))


def _why(cause: Suspension | str) -> str:
    return cause if isinstance(cause, str) else cause.why


def _because(text: str) -> str:
    return f": {text}" if text else ""


def signal_name(number: int) -> str:
    """`signal 9 (SIGKILL)`."""
    import signal

    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def whose_jobs(walls: str, owners: Sequence[str], trusts: str) -> str:
    """Describe whose jobs a node runs, by its reported walls and trust."""
    if open_to_all(walls, trusts):
        return "everyone" + ("" if level_of(walls).meets(LEAST_SHARED) else ", whom its owner trusts (agent.trust)")
    return f"its owners only: {', '.join(owners) or 'nobody'} (agent.owners, agent.trust)"


def job_row(view: JobView) -> list[str]:
    """A job's row in a table."""
    ended = view.state is State.ENDED
    status = str(exit_status(view.outcome)) if view.outcome else "-"
    reason = view.reason.code if view.reason and not ended else (str(view.outcome.cause) if view.outcome else "-")
    if view.suspended is not None:
        reason = "suspended"
    elif view.awaits_reader is not None:
        reason = "awaits reader"
    elif view.next_after:
        reason = "next"
    elif view.grant is not None and view.grant.slack and not ended:
        reason = "on slack"
    if view.outcome and view.outcome.cause is Cause.EXITED:
        reason = "-"
    since, until = (view.started, view.ended) if view.started else (view.submitted, view.ended)
    return [
        view.id,
        short_name(view.spec),
        view.user,
        str(view.state),
        reason,
        view.request.priority.word,
        view.node or "-",
        str(view.request.resources),
        age(since, until),
        status,
    ]


JOB_HEADER = ("ID", "NAME", "USER", "STATE", "REASON", "PRIO", "NODE", "ASKS", "TIME", "EXIT")


# --- for programs -----------------------------------------------------------------------------------------------------


def resources_json(amount: Resources) -> dict[str, Any]:
    """An amount: cores and GPUs as numbers, memory in bytes."""
    return {"cpu": amount.cpu / 1000, "memory": amount.memory, "gpu": amount.gpu / 1000}


def precedence_json(one: Precedence | None) -> dict[str, Any] | None:
    """Return the fields of a job's precedence in the order by waiting time; times are seconds."""
    if one is None:
        return None
    return {
        "waited": one.waited,
        "limit": one.limit,
        "limit_by": one.by.value,
        "ratio": one.waited / one.limit,
        "precedence": one.value,
        "credit": one.credit,
        "overdue_in": one.overdue_in,
    }


def _suspension_json(suspended: Suspension) -> dict[str, Any]:
    return {"since": iso(suspended.since), "why": suspended.why, "by_holder": suspended.by_holder}


def grant_json(grant: Grant | None) -> dict[str, Any] | None:
    """A grant by field."""
    if grant is None:
        return None
    return {
        **resources_json(grant.resources),
        "cores": list(grant.cores),
        "shared_core": grant.shared_core if grant.shared_core >= 0 else None,
        "gpus": [{"uuid": gpu.uuid, "amount": gpu.milli / 1000} for gpu in grant.gpus],
        "virtual": grant.virtual,
        "slack": list(grant.slack),
        "slack_cpu": grant.slack_milli / 1000,
        "holder": grant.holder or None,
    }


def used_words(used: Used) -> str:
    """A job's measured use: `0.9 cores (1.2 at the most), 3G memory, 0.4 GPUs, 5G GPU memory`."""
    parts = [f"{used.cpu:.1f} cores ({used.cpu_peak:.1f} at the most)", f"{format_bytes(used.memory)} memory"]
    parts += [f"{used.gpu:.2f} GPUs"] if used.gpu_seconds else []
    return ", ".join(parts + ([f"{format_bytes(used.gpu_memory)} GPU memory"] if used.gpu_memory else []))


def used_json(used: Used | None) -> dict[str, Any] | None:
    """The same as JSON: mean cores and GPUs, memory in bytes."""
    if used is None:
        return None
    return {
        "seconds": round(used.seconds, 3),
        "cpu": round(used.cpu, 3),
        "cpu_peak": round(used.cpu_peak, 3),
        "memory_peak": used.memory,
        "gpu": round(used.gpu, 3),
        "gpu_memory_peak": used.gpu_memory or None,
    }


def boost_json(boost: Boost | None) -> dict[str, Any] | None:
    """A boost's amount and target: cores and GPUs as numbers, memory in bytes."""
    if boost is None:
        return None
    amount = boost.amount if boost.kind is ResourceType.MEMORY else boost.amount / MILLI
    return {
        "target": boost.target,
        "resource": str(boost.kind),
        "amount": amount,
        "exclusive": boost.exclusive,
        "ray": boost.address,
    }


def job_json(view: JobView) -> dict[str, Any]:
    """A job with all known fields; times in ISO 8601 UTC, durations in seconds."""
    outcome = view.outcome
    return {
        "id": view.id,
        "array": view.group or None,
        "index": view.index if view.group else None,
        "waits_for": [{"on": one.on, "kind": str(one.kind)} for one in view.after],
        "begin": iso(view.begin),
        "name": view.spec.name,
        "user": view.user,
        "state": str(view.state),
        "command": list(view.spec.argv),
        "boost": boost_json(view.spec.boost),
        "priority": view.request.priority.word,
        "asks": resources_json(view.request.resources),
        "time_limit": view.spec.time_limit or None,
        "preferred_nodes": list(view.request.nodes),
        "attempt": view.attempt,
        "allocation": view.allocation or None,
        "node": view.node or None,
        "walls": view.walls or None,
        "grant": grant_json(view.grant),
        "submitted": iso(view.submitted),
        "started": iso(view.started),
        "ended": iso(view.ended),
        "suspended": _suspension_json(view.suspended) if view.suspended else None,
        "suspended_for": view.suspended_for,
        "awaits_reader": {"since": iso(view.awaits_reader.since), "why": view.awaits_reader.why}
        if view.awaits_reader
        else None,
        "next_after": view.next_after or None,
        "reason": view.reason.code if view.reason else None,
        "reason_text": view.reason.text if view.reason else None,
        "exit_code": exit_status(outcome) if outcome else None,
        "outcome": {
            "cause": str(outcome.cause),
            "code": outcome.code,
            "signal": outcome.signal,
            "text": outcome.text,
            "started": outcome.started,
            "seconds": outcome.seconds,
            "suspended": outcome.suspended,
            "cpu_seconds": outcome.cpu_seconds,
            "peak_memory": outcome.peak_memory,
            "stdout_size": outcome.stdout_size,
            "stderr_size": outcome.stderr_size,
        }
        if outcome
        else None,
        "used": used_json(view.used),
        "unused": view.unused,
        "events": [{"at": iso(step.at), "state": str(step.state), "text": step.text} for step in view.story],
    }
