"""The grid's own event log and history are traces."""

import json

import msgspec
import pytest

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import Event, JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Condition, Group, HeldBack, Job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import After, Cause, JobSpec, Outcome, Priority, Request
from distributed_grid.protocol.messages import Exited, Started
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.simulator.lab.formats import own
from distributed_grid.simulator.lab.grid import node_facts
from distributed_grid.simulator.lab.trace import Machine

NODE = Machine("n1", 4, GIB, 1, "T4")


def job(name: str, submitted: float, limit: float = 0.0) -> Job:
    request = Request(Resources(2000, GIB), priority=Priority.HIGH)
    return Job(
        id=name, key=name, user="ann", spec=JobSpec(("x",), time_limit=limit), request=request, submitted=submitted
    )


def exited(allocation: str, seconds: float, suspended: float = 0.0, cause: Cause = Cause.EXITED) -> Event:
    outcome = Outcome(cause=cause, seconds=seconds, suspended=suspended)
    return MessageReceived("n1", Exited(allocation=allocation, outcome=outcome, returned=True))


def test_jobs_of_an_event_log_have_their_run_times_and_its_nodes_are_the_cluster() -> None:
    events: list[Event] = [NodeUp(node_facts(NODE), "s"), JobsSubmitted(0, (job("a", 100.0), job("b", 130.0, 60.0)))]
    trace = own.from_events([(100.0, events), (200.0, [exited("a.1", 50.0, suspended=20.0), exited("b.2", 10.0)])])
    first, second = trace.jobs
    assert trace.machines == [NODE]
    assert (first.submit, first.duration, first.requested, first.priority) == (0.0, 30.0, 0.0, Priority.HIGH)
    assert (second.submit, second.duration, second.requested, second.user) == (30.0, 10.0, 60.0, "ann")


def test_the_nodes_and_jobs_of_a_checkpoint_count_too() -> None:
    ledger = Ledger()
    ledger.handle(NodeUp(node_facts(NODE), "s"), 1.0)
    ledger.handle(JobsSubmitted(0, (job("a", 1.0),)), 1.0)
    trace = own.from_events([checkpoint.take(ledger), (9.0, [exited("a.1", 5.0)])])
    assert trace.machines == [NODE] and [one.duration for one in trace.jobs] == [5.0]


def test_each_member_of_an_array_is_a_job() -> None:
    template = job("g", 1.0)
    group = Group(
        id="g", key="g", user="ann", kind=GroupKind.ARRAY, spec=template.spec, request=template.request,
        submitted=1.0, count=2, array=Array(((3, 7, 4),)),
    )  # fmt: skip
    trace = own.from_events(
        [(1.0, [JobsSubmitted(0, (template,), (group,)), exited("g_3.1", 5.0), exited("g_7.1", 6.0)])]
    )
    assert [one.duration for one in trace.jobs] == [5.0, 6.0]


def test_a_job_that_has_not_ended_is_left_out() -> None:
    trace = own.from_events([(1.0, [JobsSubmitted(0, (job("a", 1.0),))])])
    assert trace.words() == [
        "event log: 0 of 1 row taken",
        "1 row left out, line 1: it had not ended in the log, or never ran",
    ]


def test_a_job_that_was_taken_back_counts_with_the_attempt_that_ended_by_itself() -> None:
    events = [
        JobsSubmitted(0, (job("a", 1.0), job("b", 1.0))),
        exited("a.1", 20.0, cause=Cause.PREEMPTED),
        exited("b.1", 30.0, cause=Cause.RECALLED),
        exited("a.2", 50.0),
    ]
    trace = own.from_events([(1.0, events)])
    assert [one.duration for one in trace.jobs] == [50.0]
    assert trace.words()[1].startswith("1 row left out, line 2: its last attempt was cut short")


def waits_for(name: str, on: str, kind: After = After.ENDED) -> Job:
    return msgspec.structs.replace(job(name, 10.0), phase=HeldBack(after=(Condition(on, kind),)))


def test_a_job_that_waited_for_others_or_a_time_is_submitted_when_these_had_come() -> None:
    later = msgspec.structs.replace(job("d", 10.0), begin=25.0)
    jobs = (job("a", 10.0), waits_for("b", "a"), waits_for("c", "a", After.STARTED), later)
    began = MessageReceived("n1", Started(allocation="a.1"))
    ends = [exited(f"{name}.1", 5.0) for name in "bcd"]
    records: list[tuple[float, list[Event]]] = [
        (10.0, [JobsSubmitted(0, jobs)]), (12.0, [began]), (40.0, [exited("a.1", 28.0)]), (99.0, ends),
    ]  # fmt: skip
    trace = own.from_events(records)
    assert [(one.line, one.submit) for one in trace.jobs] == [(1, 0.0), (3, 2.0), (4, 15.0), (2, 30.0)]
    assert trace.assumed == ["3 jobs waited for a time or for others: each is submitted when these had come in the log"]


def test_a_job_that_waited_for_an_array_is_submitted_when_its_last_member_had_ended() -> None:
    template = job("g", 1.0)
    group = Group(
        id="g", key="g", user="ann", kind=GroupKind.ARRAY, spec=template.spec, request=template.request,
        submitted=1.0, count=2, array=Array(((0, 1, 1),)),
    )  # fmt: skip
    events = [JobsSubmitted(0, (template,), (group,)), JobsSubmitted(1, (waits_for("b", "g"),))]
    trace = own.from_events([(10.0, events), (20.0, [exited("g_0.1", 5.0)]), (30.0, [exited("g_1.1", 5.0)]),
                             (50.0, [exited("b.1", 5.0)])])  # fmt: skip
    assert [one.submit for one in trace.jobs] == [0.0, 0.0, 29.0]


def test_the_end_of_a_job_that_was_submitted_before_the_log_began_is_left_out() -> None:
    trace = own.from_events([(1.0, [exited("x.1", 5.0), exited("x.2", 5.0)])])
    assert trace.words()[1] == "1 row left out: it was submitted before the log begins"


ROW = {
    "submitted": "2026-01-01T00:00:10.000Z",
    "user": "ann",
    "priority": "high",
    "asks": {"cpu": 0.5, "memory": GIB, "gpu": 1.0},
    "outcome": {"started": True, "seconds": 12.0, "suspended": 2.0},
}


def test_the_history_that_the_command_line_prints_is_a_trace() -> None:
    trace = own.from_history(json.dumps({"schema": 1, "jobs": [ROW], "arrays": []}, indent=2))
    one = trace.jobs[0]
    assert (one.duration, one.user, one.priority, one.resources) == (
        10.0,
        "ann",
        Priority.HIGH,
        Resources(500, GIB, 1000),
    )


def test_a_history_has_time_limits_and_says_what_of_it_is_not_there() -> None:
    cut = {**ROW, "outcome": {**ROW["outcome"], "cause": "preempted"}}  # type: ignore[dict-item]
    jobs = [{**ROW, "time_limit": 60.0}, {**ROW, "time_limit": 5.0}, cut]
    trace = own.from_history(json.dumps({"jobs": jobs, "arrays": [{"count": 10}, {"count": 2}], "more": True}))
    assert [one.requested for one in trace.jobs] == [60.0, 10.0], "it ran longer than its limit"
    assert trace.words() == [
        "history: 2 of 15 rows taken",
        "12 rows left out: it is of an array or gang, which is one line here: add --members to `grid jobs`",
        "1 row left out, line 3: its last attempt was cut short, by the grid or a node: how long it runs is not known",
        "the history goes further back than this: add --limit to `grid jobs`",
    ]


def test_a_history_by_lines_names_the_bad_ones() -> None:
    lines = [json.dumps(ROW), "{", json.dumps({**ROW, "outcome": None}), json.dumps({"a": 1})]
    assert own.from_history("\n".join(lines)).words() == [
        "history: 1 of 4 rows taken",
        "1 row left out, line 2: it is no JSON object",
        "1 row left out, line 3: it has not ended, or never ran",
        "1 row left out, line 4: it is no job: `asks` or `submitted` is missing",
    ]


def test_json_that_is_no_history_is_refused() -> None:
    with pytest.raises(BadValue, match="no history"):
        own.from_history("{nothing")


def test_a_history_with_absurd_values_is_taken_as_far_as_it_goes() -> None:
    odd = {**ROW, "outcome": {**ROW["outcome"], "cause": ["preempted"]}}  # type: ignore[dict-item]
    trace = own.from_history(json.dumps({"jobs": [odd], "arrays": [{"count": 10**12}, {"count": -1}]}))
    assert (len(trace.jobs), trace.rows) == (1, 10**12 + 2)


def test_json_that_is_nested_without_end_is_no_history() -> None:
    with pytest.raises(BadValue, match="no history"):
        own.from_history("[" * 100_000)
