"""The Standard Workload Format: rows, header, requested times, and what is wrong with a line."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import Resources
from distributed_grid.simulator.lab.formats import swf
from distributed_grid.simulator.lab.trace import Machine, Trace


def read(text: str, unit: int = 1) -> Trace:
    return swf.read(list(enumerate(text.splitlines(), 1)), unit)


def row(
    submit: float = 0, run: float = 100, procs: int = 4, cpu: float = -1, requested: float = 200, user: int = 7
) -> str:
    return f"1 {submit} -1 {run} {procs} {cpu} -1 -1 {requested} -1 1 {user} -1 -1 -1 -1 -1 -1"


def test_a_row_becomes_a_job_and_the_header_a_machine() -> None:
    trace = read(f"; MaxProcs: 64\n{row(submit=50)}\n{row(submit=20, procs=8)}\n")
    first, second = trace.jobs
    assert (first.submit, first.resources, first.line) == (0.0, Resources(8000), 3), "in order, from 0 on"
    assert (second.submit, second.duration, second.requested, second.user) == (30.0, 100.0, 200.0, "7")
    assert trace.machines == [Machine("all", 64)] and not trace.left_out


def test_processors_are_counted_in_units_and_rounded_up() -> None:
    trace = read(f"; MaxNodes: 64\n{row(procs=9)}\n", unit=8)
    assert trace.jobs[0].resources == Resources(2000) and trace.machines == [Machine("all", 8)]


def test_the_number_of_processors_counts_before_that_of_nodes() -> None:
    both = read(f"; MaxNodes: 16\n; MaxProcs: 64\n; Note: MaxProcs: 9\n{row()}\n")
    assert both.machines == [Machine("all", 64)], "jobs ask for processors"


def test_requested_times_in_column_6_are_found_where_column_9_has_none() -> None:
    trace = read("\n".join(row(cpu=600, requested=-1) for _ in range(3)))
    assert {job.requested for job in trace.jobs} == {600.0} and "column 6" in trace.words()[1]


def test_cpu_times_in_column_6_are_not_taken_for_requested_times() -> None:
    trace = read("\n".join(row(cpu=99.7, requested=-1) for _ in range(3)))
    assert {job.requested for job in trace.jobs} == {100.0} and "run times count as requested" in trace.words()[1]


def test_a_job_that_ran_longer_than_it_requested_counts_as_having_requested_that() -> None:
    trace = read(row(run=300, requested=200))
    assert trace.jobs[0].requested == 300.0 and trace.assumed == [
        "1 job ran longer than requested: there the run time counts as requested"
    ]


def test_what_is_wrong_is_told_by_line_and_the_rest_is_taken() -> None:
    trace = read(f"{row()}\n1 2 3\n{row(run=0)}\n{row().replace('100', 'many', 1)}\n{row(run=-1)}\n{row(procs=-1)}\n")
    assert trace.words()[:5] == [
        "SWF: 1 of 6 rows taken",
        "1 row left out, line 2: it has 3 fields of 18",
        "1 row left out, line 4: the run time is not a number: 'many'",
        "2 rows left out, lines 3, 5: it did not run: its run time is not above 0",
        "1 row left out, line 6: it says no processors",
    ]


def test_infinite_and_absurd_numbers_are_wrong() -> None:
    trace = read(f"{row(run=float('inf'))}\n{row(run=float('nan'))}\n{row(submit=1e300)}\n")
    assert not trace.jobs and sum(one.count for one in trace.left_out.values()) == 3


def test_a_header_with_more_processors_than_a_machine_can_have_asks_for_a_unit() -> None:
    text = f"; MaxProcs: 9000000\n{row(procs=512)}\n"
    with pytest.raises(BadValue, match="9,000,000 processors") as told:
        read(text)
    assert "--unit" in told.value.hint and read(text, unit=512).machines == [Machine("all", 17578)]


def test_where_every_row_is_left_out_none_is_said_to_be_taken() -> None:
    assert read(f"; MaxProcs: 4\n{row(run=0)}\n").words()[0] == "SWF: 0 of 1 row taken"


def test_a_header_whose_number_is_absurd_is_left_out_as_a_row_is() -> None:
    trace = read(f"; MaxProcs: {'9' * 5000}\n{row()}\n")
    assert (len(trace.jobs), trace.machines, trace.rows) == (1, [], 2)
    assert trace.words()[1] == f"1 row left out, line 1: MaxProcs is out of range: {'9' * 40}"
