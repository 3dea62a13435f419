"""The Standard Workload Format of the Parallel Workloads Archive: comments with a header, then 18 numbers a job."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.protocol.text import counted
from distributed_grid.simulator.lab.trace import MOST_CORES, BadRow, Machine, Trace, TraceJob, number

FIELDS = 18
LEAST_FIELDS = 12
"""Up to the user: what follows is not used."""
SUBMIT, RUN, ALLOCATED, CPU_TIME, REQUESTED_PROCS, REQUESTED_TIME, USER = 1, 3, 4, 5, 7, 8, 11
_NAMES = {
    SUBMIT: "the submit time",
    RUN: "the run time",
    ALLOCATED: "the number of processors",
    REQUESTED_PROCS: "the number of processors",
}
ROUND = 60
MOSTLY = 0.95
"""Column 6 (average CPU time) holds requested times in some conversions: it is taken as such where column 9 never is
given, and this part of it is whole minutes."""


class _Row(NamedTuple):
    """The used fields of a row; below 0: not given."""

    line: int
    submit: float
    run: float
    allocated: float
    cpu_time: float
    processors: float
    requested: float
    user: str


def read(lines: Iterable[tuple[int, str]], unit: int = 1) -> Trace:
    """Jobs, and one machine with all processors where the header says how many there are. `unit`: processors that are
    allocated together and count as one core. Raises BadValue for a cluster that is no machine."""
    trace = Trace(format="SWF")
    counts, rows, users = dict[str, int](), list[_Row](), dict[str, str]()
    for at, line in lines:
        try:
            if line.startswith(";"):
                counts |= _counts(line)
                continue
            rows.append(_row(at, line, users))
        except BadRow as bad:
            trace.leave_out(at, str(bad))
        trace.rows += 1
    most = counts.get("MaxProcs") or counts.get("MaxNodes", 0)
    if most // unit > MOST_CORES:
        hint = f"give --unit N: so many processors count as one core; {MOST_CORES:,} cores are the most"
        raise BadValue(f"the header says {most:,} processors", hint=hint)
    if 0 < most < unit:
        raise BadValue(f"--unit {unit} is more than the {most:,} processors of the header", hint="give a smaller one")
    by_cpu_time, cut = _requested_as_cpu_time(trace, rows), 0
    amounts: dict[int, Resources] = {}
    for row in rows:
        count = row.processors if row.processors > 0 else row.allocated
        if row.run <= 0:
            trace.leave_out(row.line, "it did not run: its run time is not above 0")
        elif count <= 0:
            trace.leave_out(row.line, "it says no processors")
        elif row.submit < 0:
            trace.leave_out(row.line, "it says no submit time")
        else:
            wanted = row.cpu_time if by_cpu_time else row.requested
            wanted = wanted if wanted > 0 else row.run
            cut += wanted < row.run
            cores = math.ceil(count / unit)
            amount = amounts.get(cores)
            if amount is None:
                amount = amounts[cores] = Resources(cores * MILLI)
            trace.jobs.append(
                TraceJob(
                    submit=row.submit,
                    duration=row.run,
                    resources=amount,
                    requested=max(1.0, wanted, row.run),
                    user=row.user,
                    line=row.line,
                    priority=Priority.MEDIUM,
                )
            )
    if cut:
        trace.assumed.append(f"{counted(cut, 'job')} ran longer than requested: there the run time counts as requested")
    if most >= unit:
        trace.machines = [Machine("all", most // unit)]
        trace.assumed.append(
            f"the trace's cluster is one machine of {most // unit} cores"
            + (f", each {unit} processors" if unit > 1 else ", as many as the header says")
        )
    return trace.arranged()


def _counts(line: str) -> dict[str, int]:
    """What `; MaxProcs: 256` or `; MaxNodes: 64` says; of any other comment nothing. Raises BadRow."""
    key, colon, value = line.lstrip("; ").partition(":")
    words = value.split()
    known = colon and key.strip() in ("MaxProcs", "MaxNodes") and words and words[0].isdecimal()
    return {key.strip(): int(number(words[0], key.strip()))} if known else {}


def _row(at: int, line: str, users: dict[str, str]) -> _Row:
    words = line.split()
    if len(words) < LEAST_FIELDS:
        raise BadRow(f"it has {len(words)} fields of {FIELDS}")

    def field(column: int) -> float:
        return number(words[column], _NAMES.get(column, f"column {column + 1}"), least=-1.0)

    return _Row(
        line=at,
        submit=field(SUBMIT),
        run=field(RUN),
        allocated=field(ALLOCATED),
        cpu_time=field(CPU_TIME),
        processors=field(REQUESTED_PROCS),
        requested=field(REQUESTED_TIME),
        user=users.setdefault(words[USER], words[USER]),
    )


def _requested_as_cpu_time(trace: Trace, rows: list[_Row]) -> bool:
    """Whether requested times stand where the CPU time should; says where there are none, or not in their place."""
    if any(row.requested > 0 for row in rows):
        return False
    given = [row.cpu_time for row in rows if row.cpu_time > 0]
    if given and sum(one % ROUND == 0 for one in given) >= MOSTLY * len(given) >= MOSTLY * len(rows) / 2:
        trace.assumed.append("requested times are taken from column 6: column 9 has none, and these are whole minutes")
        return True
    trace.assumed.append("there are no requested times: the run times count as requested")
    return False
