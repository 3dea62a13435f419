"""The use of machines over time: one number a line (PlanetLab), or a time series with a header (bitbrains, Helios,
Philly)."""

from collections.abc import Sequence

from distributed_grid.simulator.lab.formats.tables import Lines, fields_of, moment
from distributed_grid.simulator.lab.trace import BadRow, Trace, UseSeries, number

STEP = 300.0
"""Seconds between two numbers of a file that has nothing else: PlanetLab's."""
TIMES = ("time", "timestamp", "timestamp [ms]", "at")
PARTS = ("use", "usage", "utilisation", "utilization", "cpu usage [%]", "cpu", "%cpu")
SHARES = (
    ("active", "total", False),
    ("running_gpu_num", "total_gpu_num", False),
    ("idle_gpu_num", "total_gpu_num", True),
)
"""Columns of which one counts what is in use (or, inverted, what is idle) of the other."""
PARTS_MOST = 1.5
"""Where nothing is above this, a column that does not say percent has parts of 1."""


def is_series(header: Sequence[str]) -> bool:
    """Whether a header is that of a time series of use."""
    names = [name.strip().lower() for name in header]
    return names[0] in TIMES and _column(names) is not None


def _column(names: list[str]) -> tuple[str, str, bool] | None:
    for used, total, inverted in SHARES:
        if used in names and total in names:
            return used, total, inverted
    return next(((name, "", False) for name in PARTS if name in names), None)


def read_numbers(lines: Lines, name: str) -> Trace:
    """One number a line, in percent, every five minutes."""
    trace = Trace(format="use of a machine")
    found: list[float] = []
    for at, line in lines:
        trace.rows += 1
        try:
            found.append(number(line, "the use"))
        except BadRow as bad:
            trace.leave_out(at, str(bad))
            found.append(found[-1] if found else 0.0)  # the next one is still five minutes later
    return _with(trace, name, [(STEP * at, value) for at, value in enumerate(found)], 100.0)


def read_series(lines: Lines, separator: str, name: str) -> Trace:
    """A time series: the first column is the time."""
    trace = Trace(format="use of a machine over time")
    header = [one.lower() for one in fields_of(lines[0][1], separator)]
    column, found = _column(header), list[tuple[float, float]]()
    assert column is not None
    used, total, inverted = column
    for at, line in lines[1:]:
        trace.rows += 1
        try:
            fields = fields_of(line, separator)
            if len(fields) < len(header):
                raise BadRow(f"it has {len(fields)} fields of {len(header)}")
            row = dict(zip(header, fields, strict=False))
            value = number(row[used], used)
            if total:
                of = number(row[total], total)
                value = value / of if of else 0.0
                value = 1 - value if inverted else value
            found.append((moment(fields[0], "the time"), value))
        except BadRow as bad:
            trace.leave_out(at, str(bad))
    found.sort()
    sure = "%" in used
    parts = bool(total) or (not sure and max((value for _, value in found), default=0.0) <= PARTS_MOST)
    if not total and not sure:
        above, what = ("no use", "a part") if parts else ("some use", "percent")
        trace.assumed.append(f"{above} in {name} is above {PARTS_MOST}: it is taken as {what}")
    return _with(trace, name, found, 1.0 if parts else 100.0)


def _with(trace: Trace, name: str, found: list[tuple[float, float]], scale: float) -> Trace:
    if not found:
        return trace
    first, samples = found[0][0], list[tuple[float, float]]()
    for at, value in found:
        part = round(min(1.0, max(0.0, value / scale)), 4)
        if not samples or samples[-1][1] != part:
            samples.append((at - first, part))
    trace.use = [UseSeries(name, tuple(samples))]
    return trace
