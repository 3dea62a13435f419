"""The grid's own records as a trace: its event log, and the history that `grid -o json jobs --all --members` prints."""

from collections.abc import Iterable
from typing import Any

import msgspec

from distributed_grid.coordinator.core.checkpoint import Checkpoint
from distributed_grid.coordinator.core.commands import Event, JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.model import Group, HeldBack, Job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import indexes, member_id
from distributed_grid.protocol.jobs import After, Cause, Priority
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.text import counted
from distributed_grid.simulator.lab.formats.tables import moment, priority_of
from distributed_grid.simulator.lab.trace import BadRow, Machine, Trace, TraceJob, number

Record = Checkpoint | tuple[float, Iterable[Event]]
"""What an event log holds, in order: snapshots of the ledger, and turns with their time."""


CUT = frozenset({Cause.PREEMPTED, Cause.RECALLED, Cause.DRAINED, Cause.NODE_LOST, Cause.SUPERVISOR_LOST})
CUT |= {Cause.REBOOTED, Cause.LEASE_EXPIRED, Cause.GANG, Cause.NODE_OUT_OF_MEMORY}
"""Ends caused by others, which do not tell how long the job would have run."""


class _Seen(msgspec.Struct):
    """A job of the log; `line` is its number. Times are grid time, 0: it has not happened. `cut`: its last attempt
    ended by no fault of its own."""

    job: Job
    line: int
    seconds: float = 0.0
    cut: bool = False
    began: float = 0.0
    ended: float = 0.0


class _Log(msgspec.Struct):
    """The content of a log so far. `many`: the jobs of each group; `unknown`: jobs whose submission is not in
    it."""

    jobs: dict[str, _Seen] = {}
    nodes: dict[str, NodeFacts] = {}
    many: dict[str, list[_Seen]] = {}
    unknown: set[str] = set()

    def see(self, jobs: Iterable[Job]) -> None:
        """Jobs that there are."""
        for job in jobs:
            if job.id not in self.jobs:
                one = self.jobs[job.id] = _Seen(job, len(self.jobs) + 1)
                if job.group:
                    self.many.setdefault(job.group, []).append(one)

    def told(self, message: object, now: float) -> None:
        """Take in a node's report about an attempt."""
        if not isinstance(message, Started | Exited):
            return
        known = self.jobs.get(message.allocation.rpartition(".")[0])
        if isinstance(message, Started):
            if known is not None:
                known.began = known.began or now
        elif known is None:
            if message.outcome.started:
                self.unknown.add(message.allocation.rpartition(".")[0])
        else:
            known.ended = now
            outcome = message.outcome
            if outcome.started:
                known.seconds, known.cut = max(0.0, outcome.seconds - outcome.suspended), outcome.cause in CUT

    def arrival(self, job: Job) -> float:
        """When a job could have begun: at its begin time, and when its dependencies were met."""
        phase = job.phase
        at = max(job.submitted, job.begin)
        for one in phase.after if isinstance(phase, HeldBack) else ():
            others = self.many.get(one.on) or [known for known in [self.jobs.get(one.on)] if known is not None]
            at = max([at, *(other.began if one.kind is After.STARTED else other.ended for other in others)])
        return at


def from_events(records: Iterable[Record]) -> Trace:
    """The jobs of an event log that ended in it, with the nodes as machines."""
    trace = Trace(format="event log")
    log = _Log()
    for record in records:
        if isinstance(record, Checkpoint):
            log.nodes |= {name: node.facts for name, node in record.nodes.items()}
            log.see(record.jobs.values())
            continue
        now, events = record
        for event in events:
            if isinstance(event, NodeUp):
                log.nodes[event.facts.name] = event.facts
            elif isinstance(event, JobsSubmitted):
                log.see(_members(event.jobs, event.groups))
            elif isinstance(event, MessageReceived):
                log.told(event.message, now)
    gangs = moved = 0
    for one in log.jobs.values():
        trace.rows += 1
        try:
            arrival = log.arrival(one.job)
            trace.jobs.append(_from_job(one, arrival))
            gangs += one.job.request.gang > 1
            moved += arrival > one.job.submitted
        except BadRow as bad:
            trace.leave_out(one.line, str(bad))
    if moved:
        trace.assumed.append(
            f"{counted(moved, 'job')} waited for a time or for others: each is submitted when these had come in the log"
        )
    if gangs:
        trace.assumed.append(f"{counted(gangs, 'job')} of gangs: each is a job of its own, at any time")
    for _ in log.unknown:
        trace.rows += 1
        trace.leave_out(0, "it was submitted before the log begins")
    trace.machines = [_machine(facts) for facts in log.nodes.values()]
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
            yield from (msgspec.structs.replace(job, id=member_id(job.id, index), group=job.id) for index in found)


def _from_job(one: _Seen, arrival: float) -> TraceJob:
    job = one.job
    if job.spec.boost is not None:
        raise BadRow("it is a boost")
    if one.seconds <= 0:
        raise BadRow("it had not ended in the log, or never ran")
    if one.cut:
        raise BadRow("its last attempt was cut short, by the grid or a node: how long it runs is not known")
    limit = job.spec.time_limit
    wanted = job.request.resources
    return TraceJob(
        arrival,
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
    """The jobs that `grid -o json jobs --all --members` (or `-o jsonl`) printed. Raises BadValue."""
    trace = Trace(format="history")
    for line, row in _rows(text, trace):
        trace.rows += 1
        try:
            trace.jobs.append(_from_row(row, line))
        except BadRow as bad:
            trace.leave_out(line, str(bad))
    return trace.arranged()


def _rows(text: str, trace: Trace) -> Iterable[tuple[int, Any]]:
    """The jobs, by their number or line; what of the history is not there is left out of the trace."""
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("jobs"), list):
        arrays = whole.get("arrays")
        for one in arrays if isinstance(arrays, list) else ():
            said = one.get("count") if isinstance(one, dict) else None
            count = said if isinstance(said, int) and said > 0 else 1
            trace.rows += count
            why = "it is of an array or gang, which is one line here: add --members to `grid jobs`"
            trace.leave_out(0, why, count)
        if whole.get("more"):
            trace.assumed.append("the history goes further back than this: add --limit to `grid jobs`")
        yield from enumerate(whole["jobs"], 1)
        return
    for at, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield at, msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as error:
                if at == 1:
                    hint = "print one with `grid -o json jobs --all --members`"
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
    if str(outcome.get("cause")) in CUT:
        raise BadRow("its last attempt was cut short, by the grid or a node: how long it runs is not known")
    limit = number(str(row.get("time_limit") or 0), "time_limit")
    amount = Resources(
        round(number(str(asks.get("cpu", 0)), "cpu") * MILLI),
        int(number(str(asks.get("memory", 0)), "memory")),
        round(number(str(asks.get("gpu", 0)), "gpu") * MILLI),
    )
    if not amount:
        raise BadRow("it asks for nothing")
    priority = priority_of(str(row.get("priority") or "")) if row.get("priority") else Priority.MEDIUM
    submitted = moment(str(row["submitted"]), "submitted")
    requested = max(limit, duration) if limit else 0.0
    return TraceJob(submitted, duration, amount, requested, str(row.get("user", "")), line, priority)
