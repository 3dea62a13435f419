"""The grid's own event log and history are traces."""

import json

import pytest

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import Event, JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Group, Job
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Priority, Request
from distributed_grid.protocol.messages import Exited
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


def exited(allocation: str, seconds: float, suspended: float = 0.0) -> Event:
    outcome = Outcome(cause=Cause.EXITED, seconds=seconds, suspended=suspended)
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
