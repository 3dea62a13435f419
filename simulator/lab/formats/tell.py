"""Detect the format of a text by its content alone, and read it."""

import itertools
from collections.abc import Iterator, Sequence

from distributed_grid.protocol.errors import BadValue
from distributed_grid.simulator.lab.formats import own, swf, tables, use
from distributed_grid.simulator.lab.formats.unpack import members_of, unpack
from distributed_grid.simulator.lab.trace import BadRow, LeftOut, Trace

FORMATS = (
    "SWF",
    "openb pods",
    "openb nodes",
    "csv of jobs",
    "Nextflow trace",
    "use of machines (one number a line, or a time series)",
    "an event log",
    "`grid -o json jobs --all`",
)
BEGINNING = 10
"""Number of lines by which the format is detected."""
SEPARATORS = (";", "\t", ",")
"""Separators, in order of preference if two are equally frequent: fields are stripped of blanks and tabs."""


def read(data: bytes, name: str, unit: int = 1) -> Trace:
    """The content of a file of any format but the event log, packed or not. `unit` is for SWF. Raises BadValue."""
    text = unpack(data, name)
    beginning = list(itertools.islice(_lines(text), BEGINNING))
    if not beginning:
        raise BadValue(f"{name} is empty")
    first = beginning[0][1].strip()
    if first[0] in "{[":
        return own.from_history(text)
    if first.startswith(";") or len(first.split()) >= swf.LEAST_FIELDS and _numeric(first.split()):
        return swf.read(_lines(text), unit)
    lines = list(_lines(text))
    if all(_numeric(line.split()) and len(line.split()) == 1 for _, line in beginning):
        return use.read_numbers(lines, name)
    separator = max(SEPARATORS, key=first.count)
    try:
        fields = tables.fields_of(lines[0][1], separator)
    except BadRow:
        fields = [first]
    names = [field.lower() for field in fields]
    if "task_id" in names and "submit" in names:
        return tables.read_nextflow(lines, separator)
    if {"cpu_milli", "memory_mib", "num_gpu", "gpu_milli"} <= set(names):
        return tables.read_pods(lines)
    if {"sn", "cpu_milli", "memory_mib", "gpu"} <= set(names):
        return tables.read_nodes(lines)
    columns = tables.column_names(names)
    if ("submit" in columns and "duration" in columns) or (2 <= len(fields) <= 4 and _numeric(fields[:3])):
        return tables.read_jobs(lines, separator)
    if len(fields) > 1 and use.is_series(fields):
        return use.read_series(lines, separator, name)
    raise BadValue(
        f"{name} is no trace that is known",
        why=f"it begins with {first[:60]!r}",
        hint=f"known are {', '.join(FORMATS)}",
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines with something on them, by number. Only one at a time is there beside the text: it may be large."""
    at = begin = 0
    while begin < len(text):
        at += 1
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        line = text[begin:end].strip("\r\n")
        begin = end + 1
        if line and not line.isspace():
            yield at, line


def read_all(data: bytes, name: str, unit: int = 1) -> Trace:
    """As `read`, also of a tar file whose members are the use of one machine each. Raises BadValue."""
    members = members_of(data, name)
    if len(members) == 1:
        return read(members[0][1], name, unit)
    return together([read(content, member, unit) for member, content in members], name)


def together(traces: Sequence[Trace], name: str) -> Trace:
    """The use of many machines as one trace. Raises BadValue for anything else."""
    found = Trace(format="use of machines")
    for one in traces:
        if one.jobs or one.machines:
            raise BadValue(f"{name} holds several files", why=f"one is {one.format}", hint="give one file of jobs")
        found.rows += one.rows
        found.use += one.use
        found.assumed += [said for said in one.assumed if said not in found.assumed]
        for left in one.left_out.values():
            entry = found.left_out.setdefault(left.why, LeftOut(left.why))
            entry.count += left.count
    found.use.sort(key=lambda one: one.name)
    return found


def _numeric(words: list[str]) -> bool:
    try:
        return all(float(word) is not None for word in words)
    except ValueError:
        return False
