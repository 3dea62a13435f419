"""The Standard Workload Format of the Parallel Workloads Archive: comments with a header, then 18 numbers a job."""

import math
from collections.abc import Iterable

from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.simulator.lab.trace import BadRow, Machine, Trace, TraceJob, number

FIELDS = 18
LEAST_FIELDS = 12
"""Up to the user: what follows is not used."""
SUBMIT, RUN, ALLOCATED, CPU_TIME, REQUESTED_PROCS, REQUESTED_TIME, USER = 1, 3, 4, 5, 7, 8, 11
_NAMES = {
    SUBMIT: "the submit time",
    RUN: "the run time",
    ALLOCATED: "the processors",
    REQUESTED_PROCS: "the processors",
}
ROUND = 60
MOSTLY = 0.95
"""Column 6 (average CPU time) holds requested times in some conversions: it is taken as such where column 9 never is
given, and this part of it is whole minutes."""


def read(lines: Iterable[tuple[int, str]], unit: int = 1) -> Trace:
    """Jobs, and one machine with all processors where the header says how many there are. `unit`: processors that are
    allocated together and count as one core."""
    trace = Trace(format="SWF")
    most, rows = 0, list[tuple[int, list[float], str]]()
    for at, line in lines:
        if line.startswith(";"):
            most = most or _processors(line)
            continue
        trace.rows += 1
        try:
            rows.append((at, *_row(line)))
        except BadRow as bad:
            trace.leave_out(at, str(bad))
    column, cut = _requested_column(trace, rows), 0
    for at, row, user in rows:
        count = row[REQUESTED_PROCS] if row[REQUESTED_PROCS] > 0 else row[ALLOCATED]
        if row[RUN] <= 0:
            trace.leave_out(at, "it did not run: its run time is not above 0")
        elif count <= 0:
            trace.leave_out(at, "it says no processors")
        elif row[SUBMIT] < 0:
            trace.leave_out(at, "it says no submit time")
        else:
            wanted = row[column] if column and row[column] > 0 else row[RUN]
            cut += wanted < row[RUN]
            cores = math.ceil(count / unit)
            trace.jobs.append(
                TraceJob(
                    submit=row[SUBMIT],
                    duration=row[RUN],
                    resources=Resources(cores * MILLI),
                    requested=max(1.0, wanted, row[RUN]),
                    user=user,
                    line=at,
                    priority=Priority.MEDIUM,
                )
            )
    if cut:
        trace.assumed.append(f"{cut} jobs ran longer than they requested: their run time counts as requested")
    if most >= unit:
        trace.machines = [Machine("all", most // unit)]
        trace.assumed.append(
            f"the cluster is one machine of {most // unit} cores"
            + (f", each {unit} processors of the trace" if unit > 1 else ", as many as the header says")
        )
    return trace.arranged()


def _processors(line: str) -> int:
    """Of `; MaxProcs: 256`; 0: it says something else."""
    key, colon, value = line.lstrip("; ").partition(":")
    words = value.split()
    if colon and key.strip() in ("MaxProcs", "MaxNodes") and words and words[0].isdecimal():
        return int(words[0])
    return 0


def _row(line: str) -> tuple[list[float], str]:
    words = line.split()
    if len(words) < LEAST_FIELDS:
        raise BadRow(f"it has {len(words)} fields of {FIELDS}")
    row = [0.0] * FIELDS
    for column in (SUBMIT, RUN, ALLOCATED, CPU_TIME, REQUESTED_PROCS, REQUESTED_TIME):
        row[column] = number(words[column], _NAMES.get(column, f"column {column + 1}"), least=-1.0)
    return row, words[USER]


def _requested_column(trace: Trace, rows: list[tuple[int, list[float], str]]) -> int:
    """The column with requested times; 0: there is none."""
    if any(row[REQUESTED_TIME] > 0 for _, row, _ in rows):
        return REQUESTED_TIME
    given = [row[CPU_TIME] for _, row, _ in rows if row[CPU_TIME] > 0]
    if given and sum(one % ROUND == 0 for one in given) >= MOSTLY * len(given) >= MOSTLY * len(rows) / 2:
        trace.assumed.append("requested times are taken from column 6: column 9 has none, and these are whole minutes")
        return CPU_TIME
    trace.assumed.append("there are no requested times: the run times count as requested")
    return 0
