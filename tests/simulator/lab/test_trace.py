"""Traces say what was taken and what was left out."""

import pytest

from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.simulator.lab.trace import (
    UNKNOWN,
    BadRow,
    Machine,
    Trace,
    TraceJob,
    capacity,
    fitting,
    nothing_taken,
    number,
    uniform,
)


def test_rows_that_are_wrong_in_the_same_way_are_told_together() -> None:
    trace = Trace(format="csv", rows=6, jobs=[TraceJob(0, 1, Resources(1000))])
    for line in range(2, 7):
        trace.leave_out(line, "it is odd")
    assert trace.words() == ["csv: 1 of 6 rows taken", "5 rows left out, lines 2, 3, 4 and 2 more: it is odd"]


def test_jobs_are_arranged_by_submission_from_zero_on() -> None:
    jobs = [TraceJob(7, 1, Resources(1000)), TraceJob(5, 2, Resources(1000))]
    assert [(job.submit, job.duration) for job in Trace(format="x", jobs=jobs).arranged().jobs] == [(0, 2), (2, 1)]


def test_jobs_that_no_machine_could_run_or_that_never_end_are_left_out() -> None:
    sizes = [Resources(4000), Resources(5000), Resources(1000, 0, 2000)]
    trace = Trace(format="x", jobs=[TraceJob(0, 1, size, line=at) for at, size in enumerate(sizes, 1)])
    trace.jobs.append(TraceJob(0, UNKNOWN, Resources(1000), line=4))
    machines = [Machine("a", 4), Machine("b", 2, gpus=1)]
    assert [job.line for job in fitting(trace, machines)] == [1]
    assert [(one.count, one.lines) for one in trace.left_out.values()] == [(2, [2, 3]), (1, [4])]
    assert [job.line for job in fitting(trace, machines, endless=True)] == [1, 4]


def test_nothing_taken_says_why() -> None:
    trace = Trace(format="csv", rows=1)
    trace.leave_out(2, "it is odd")
    assert nothing_taken(trace, "x.csv").lines() == [
        "error: nothing in x.csv can be used", "  why: 1 row left out, line 2: it is odd"
    ]  # fmt: skip


def test_equal_machines_are_numbered_and_added_up() -> None:
    machines = uniform(11, 4, GIB, 1)
    assert (machines[0].name, machines[10].name, capacity(machines)) == (
        "n00",
        "n10",
        Resources(44000, 11 * GIB, 11000),
    )


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1e300", "-1"])
def test_what_is_no_number_in_range_is_a_bad_row(text: str) -> None:
    with pytest.raises(BadRow, match="the size"):
        number(text, "the size")


def test_jobs_that_came_or_ran_for_longer_than_a_grid_can_tell_moments_apart_are_left_out() -> None:
    times = [(5e11, 1.0), (5e11 + 2e10, 1.0), (5e11, 2e10), (5e11 + 1.0, UNKNOWN)]
    jobs = [TraceJob(at, seconds, Resources(1000), line=line) for line, (at, seconds) in enumerate(times, 1)]
    trace = Trace(format="x", jobs=jobs).arranged()
    assert [(job.submit, job.line) for job in trace.jobs] == [(0.0, 1), (1.0, 4)]
    assert {one.why: one.lines for one in trace.left_out.values()} == {
        "it ran for more than three centuries": [3],
        "it was submitted more than three centuries after the first": [2],
    }
