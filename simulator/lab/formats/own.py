"""The grid's own records as a trace: its event log, and the history that `grid -o json jobs --all` prints."""

from collections.abc import Iterable
from typing import Any

import msgspec

from distributed_grid.coordinator.core.checkpoint import Checkpoint
from distributed_grid.coordinator.core.commands import Event, JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import indexes, member_id
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.messages import Exited
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.simulator.lab.formats.tables import moment, priority_of
from distributed_grid.simulator.lab.trace import BadRow, Machine, Trace, TraceJob, number

Record = Checkpoint | tuple[float, Iterable[Event]]
"""What an event log holds, in order: snapshots of the ledger, and turns with their time."""


class _Seen(msgspec.Struct):
    """A job of the log; `line` is its number."""

    job: Job
    line: int
    seconds: float = 0.0


def from_events(records: Iterable[Record]) -> Trace:
    """The jobs of an event log that ended in it, with the nodes as machines."""
    trace = Trace(format="event log")
    seen: dict[str, _Seen] = {}
    nodes: dict[str, NodeFacts] = {}
    for record in records:
        if isinstance(record, Checkpoint):
            nodes |= {name: node.facts for name, node in record.nodes.items()}
            for job in record.jobs.values():
                seen.setdefault(job.id, _Seen(job, len(seen) + 1))
            continue
        for event in record[1]:
            if isinstance(event, NodeUp):
                nodes[event.facts.name] = event.facts
            elif isinstance(event, JobsSubmitted):
                for job in _members(event.jobs, event.groups):
                    seen.setdefault(job.id, _Seen(job, len(seen) + 1))
            elif isinstance(event, MessageReceived) and isinstance(event.message, Exited):
                known = seen.get(event.message.allocation.rpartition(".")[0])
                outcome = event.message.outcome
                if known is not None and outcome.started:
                    known.seconds = max(0.0, outcome.seconds - outcome.suspended)
    for one in seen.values():
        trace.rows += 1
        try:
            trace.jobs.append(_from_job(one))
        except BadRow as bad:
            trace.leave_out(one.line, str(bad))
    trace.machines = [_machine(facts) for facts in nodes.values()]
    return trace.arranged()


def _members(jobs: Iterable[Job], groups: Iterable[Group]) -> Iterable[Job]:
    """The jobs of a submission; one that stands for a group, as each of its members is called."""
    many = {group.id: group for group in groups}
    for job in jobs:
        group = many.get(job.id)
        if group is None:
            yield job
        else:
            found = indexes(group.array.parts) if group.array is not None else range(group.count)
            yield from (msgspec.structs.replace(job, id=member_id(job.id, index)) for index in found)


def _from_job(one: _Seen) -> TraceJob:
    job = one.job
    if job.spec.boost is not None:
        raise BadRow("it is a boost")
    if one.seconds <= 0:
        raise BadRow("it had not ended in the log, or never ran")
    limit = job.spec.time_limit
    wanted = job.request.resources
    return TraceJob(
        job.submitted,
        one.seconds,
        wanted,
        max(limit, one.seconds) if limit else 0.0,
        job.user,
        one.line,
        job.request.priority,
    )


def _machine(facts: NodeFacts) -> Machine:
    lent = facts.lendable
    model = facts.gpus[0].model if facts.gpus else ""
    return Machine(facts.name, lent.cpu // MILLI, lent.memory, lent.gpu // MILLI, model)


def from_history(text: str) -> Trace:
    """The jobs that `grid -o json jobs --all` (or `-o jsonl`) printed. Raises BadValue."""
    trace = Trace(format="history")
    for line, row in _rows(text):
        trace.rows += 1
        try:
            trace.jobs.append(_from_row(row, line))
        except BadRow as bad:
            trace.leave_out(line, str(bad))
    return trace.arranged()


def _rows(text: str) -> Iterable[tuple[int, Any]]:
    try:
        whole = msgspec.json.decode(text)
    except msgspec.DecodeError:
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("jobs"), list):
        yield from enumerate(whole["jobs"], 1)
        return
    for at, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield at, msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                if at == 1:
                    hint = "print one with `grid -o json jobs --all`"
                    raise BadValue("this is no history of jobs", why=str(error), hint=hint) from None
                yield at, None


def _from_row(row: Any, line: int) -> TraceJob:
    if not isinstance(row, dict):
        raise BadRow("it is no JSON object")
    outcome, asks = row.get("outcome"), row.get("asks")
    if not isinstance(asks, dict) or "submitted" not in row:
        raise BadRow("it is no job: `asks` or `submitted` is missing")
    if not isinstance(outcome, dict) or not outcome.get("started"):
        raise BadRow("it has not ended, or never ran")
    duration = number(str(outcome.get("seconds", 0)), "seconds") - number(str(outcome.get("suspended", 0)), "suspended")
    if duration <= 0:
        raise BadRow("it did not run")
    amount = Resources(
        round(number(str(asks.get("cpu", 0)), "cpu") * MILLI),
        int(number(str(asks.get("memory", 0)), "memory")),
        round(number(str(asks.get("gpu", 0)), "gpu") * MILLI),
    )
    if not amount:
        raise BadRow("it asks for nothing")
    priority = priority_of(str(row.get("priority") or "")) if row.get("priority") else Priority.MEDIUM
    submitted = moment(str(row["submitted"]), "submitted")
    return TraceJob(submitted, duration, amount, 0.0, str(row.get("user", "")), line, priority)
