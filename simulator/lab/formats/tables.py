"""Tables with a header line: openb pods and nodes (Alibaba), csv of jobs, and traces of Nextflow."""

import csv
import datetime
import math
from collections.abc import Callable, Sequence

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority, parse_priority
from distributed_grid.protocol.resources import MIB, MILLI, Resources, parse_memory
from distributed_grid.protocol.text import parse_duration
from distributed_grid.simulator.lab.trace import (
    MOST_CORES,
    MOST_GPUS,
    MOST_MEMORY,
    UNKNOWN,
    BadRow,
    Machine,
    Trace,
    TraceJob,
    number,
)

Row = dict[str, str]
Lines = Sequence[tuple[int, str]]
NAMES = {
    "submit": ("submit", "submitted", "submit_time", "arrival", "creation_time"),
    "duration": ("duration", "run_time", "runtime", "run", "seconds"),
    "requested": ("requested", "requested_time", "time_limit", "limit", "walltime"),
    "cores": ("cores", "cpus", "cpu", "processors", "procs"),
    "memory": ("memory", "mem"),
    "gpus": ("gpus", "gpu"),
    "user": ("user", "user_id", "owner"),
    "priority": ("priority",),
    "gpu_model": ("gpu_model", "gpu_spec"),
}
"""The columns of a csv of jobs, with the names that each may have."""


def fields_of(line: str, separator: str) -> list[str]:
    """The fields of a line. Raises BadRow."""
    try:
        return [field.strip() for field in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        raise BadRow("it is no line of a table: a field has a line end in it, or is very long") from None


def read_rows(trace: Trace, lines: Lines, separator: str, take: Callable[[Row, int], None]) -> Trace:
    """Hand over each row by the names of the first line; a row for which `take` raises BadRow is left out."""
    header = [name.lower() for name in fields_of(lines[0][1], separator)]
    for at, line in lines[1:]:
        trace.rows += 1
        try:
            fields = fields_of(line, separator)
            if len(fields) < len(header):
                raise BadRow(f"it has {len(fields)} fields of {len(header)}")
            take(dict(zip(header, fields, strict=False)), at)
        except BadRow as bad:
            trace.leave_out(at, str(bad))
    return trace


# --- openb ------------------------------------------------------------------------------------------------------------


def read_pods(lines: Lines) -> Trace:
    """Pods of openb: `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli` (of one GPU), and as far as they are there
    `gpu_spec` (models, with `|` between) and the times of creation and deletion."""
    trace = Trace(format="openb pods")

    def take(row: Row, line: int) -> None:
        count = int(number(row["num_gpu"], "num_gpu"))
        milli = int(number(row["gpu_milli"], "gpu_milli"))
        gpu = 0 if count == 0 else milli if count == 1 else count * MILLI
        if gpu > MILLI and count == 1:
            raise BadRow(f"gpu_milli is above 1000: {milli}")
        created, deleted = number(row.get("creation_time", "0"), "creation_time"), row.get("deletion_time", "")
        began = number(row.get("scheduled_time") or str(created), "scheduled_time")
        duration = number(deleted, "deletion_time") - max(began, created) if deleted else UNKNOWN
        if duration <= 0:
            duration = UNKNOWN
        amount = Resources(
            int(number(row["cpu_milli"], "cpu_milli")), int(number(row["memory_mib"], "memory_mib")) * MIB, gpu
        )
        user, model = row.get("qos", ""), row.get("gpu_spec", "") if gpu else ""
        trace.jobs.append(TraceJob(created, duration, amount, 0.0, user, line, gpu_model=model))

    read_rows(trace, lines, ",", take)
    if trace.jobs:
        trace.assumed.append(
            "there are no requested times, and no users: the class of quality (qos) stands for the user"
        )
    return trace.arranged()


def read_nodes(lines: Lines) -> Trace:
    """Nodes of openb: `sn`, `cpu_milli`, `memory_mib`, `gpu`, `model`."""
    trace, names = Trace(format="openb nodes"), set[str]()

    def take(row: Row, line: int) -> None:
        cores = int(number(row["cpu_milli"], "cpu_milli", MILLI, MOST_CORES * MILLI)) // MILLI
        memory = int(number(row["memory_mib"], "memory_mib", 1, MOST_MEMORY // MIB)) * MIB
        gpus = int(number(row["gpu"], "gpu", 0, MOST_GPUS))
        if row["sn"] in names:
            raise BadRow(f"the node {row['sn']} is there twice")
        names.add(row["sn"])
        trace.machines.append(Machine(row["sn"], cores, memory, gpus, row.get("model", "")))

    return read_rows(trace, lines, ",", take)


# --- csv of jobs ------------------------------------------------------------------------------------------------------


def column_names(header: Sequence[str]) -> dict[str, str]:
    """The columns of a csv of jobs that this header has: ours, and what it calls them."""
    there = [name.strip().lower() for name in header]
    return {ours: name for ours, names in NAMES.items() for name in names if name in there}


def read_jobs(lines: Lines, separator: str) -> Trace:
    """A csv of jobs with a header (`NAMES`), or without one: submit, duration, cores, user. Times are seconds,
    durations such as 1h30m, or dates; memory is bytes or such as 4G."""
    header = fields_of(lines[0][1], separator)
    columns = column_names(header)
    trace = Trace(format="csv of jobs")
    if "submit" not in columns or "duration" not in columns:
        names = ["submit", "duration", "cores", "user"][: len(header)]
        columns = {name: name for name in names}
        lines = [(0, separator.join(names)), *lines]

    def take(row: Row, line: int) -> None:
        def field(name: str) -> str:
            return row.get(columns.get(name, ""), "")

        cores = number(field("cores") or "1", "the number of cores")
        gpus = number(field("gpus") or "0", "the number of GPUs")
        milli = round(gpus * MILLI)
        if milli > MILLI and milli % MILLI:
            raise BadRow(f"a part of a GPU is of one device: {field('gpus')}")
        if cores == 0 and milli == 0:
            raise BadRow("it asks for nothing")
        duration = seconds(field("duration"), "the duration")
        if duration <= 0:
            raise BadRow("it did not run: its duration is 0")
        limit = seconds(field("requested"), "the requested time") if field("requested") else 0.0
        amount = Resources(math.ceil(cores * MILLI), size(field("memory"), "the memory"), milli)
        submitted = moment(field("submit"), "the submit time")
        priority = priority_of(field("priority"))
        requested, model = max(limit, duration) if limit else 0.0, field("gpu_model") if milli else ""
        trace.jobs.append(TraceJob(submitted, duration, amount, requested, field("user"), line, priority, model))

    read_rows(trace, lines, separator, take)
    if "requested" not in columns:
        trace.assumed.append("there are no requested times: the jobs have no time limit")
    return trace.arranged()


def priority_of(text: str) -> Priority:
    """A priority by its name; medium where there is none. Raises BadRow."""
    try:
        return parse_priority(text) if text else Priority.MEDIUM
    except BadValue as bad:
        raise BadRow(bad.what) from None


def seconds(text: str, what: str) -> float:
    """Seconds of `90`, `1h30m` or `1h 30m 2.5s`. Raises BadRow."""
    try:
        float(text)
    except ValueError:
        pass
    else:
        return number(text, what)
    try:
        return parse_duration(text.replace(" ", ""), zero=True)
    except BadValue:
        raise BadRow(f"{what} is not a duration: {text[:40]!r}") from None


def moment(text: str, what: str) -> float:
    """Seconds of a number or a date (without a zone: UTC). Raises BadRow."""
    try:
        return number(text, what)
    except BadRow as bad:
        try:
            found = datetime.datetime.fromisoformat(text.strip())
        except ValueError:
            raise bad from None
    zone = found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
    return zone.timestamp()


def size(text: str, what: str) -> int:
    """Bytes of `4G`, `6 GB` or a number; 0: nothing is said. Raises BadRow."""
    if not text or text in ("-", "0"):
        return 0
    try:
        return parse_memory(text.replace(" ", ""))
    except BadValue:
        raise BadRow(f"{what} is not a size: {text[:40]!r}") from None


# --- Nextflow ---------------------------------------------------------------------------------------------------------


def read_nextflow(lines: Lines, separator: str) -> Trace:
    """A trace of Nextflow (`-with-trace`): `submit`, `realtime`, and where they are there `cpus`, `%cpu`, `memory`,
    `peak_rss`, `time`. The process stands for the user."""
    trace = Trace(format="Nextflow trace")

    def take(row: Row, line: int) -> None:
        status = row.get("status", "COMPLETED").upper()
        if status not in ("COMPLETED", "FAILED"):
            raise BadRow(f"its status is {status}")
        run = _told(row, "realtime") or _told(row, "duration")
        if not run:
            raise BadRow("it has no run time")
        duration = _span(run, "realtime")
        if duration <= 0:
            raise BadRow("it did not run: its run time is 0")
        used = _told(row, "%cpu").rstrip("%")
        cores = number(_told(row, "cpus") or "0", "cpus") or math.ceil(number(used or "100", "%cpu") / 100) or 1
        memory = size(_told(row, "memory") or _told(row, "peak_rss"), "memory")
        limit = _span(_told(row, "time"), "time") if _told(row, "time") else 0.0
        user = _told(row, "process") or _told(row, "name").partition(" ")[0]
        submitted = moment(_told(row, "submit"), "submit")
        if submitted > 1e11:
            submitted /= 1000  # raw: milliseconds since the epoch
        amount = Resources(math.ceil(cores * MILLI), memory)
        trace.jobs.append(TraceJob(submitted, duration, amount, max(limit, duration) if limit else 0.0, user, line))

    read_rows(trace, lines, separator, take)
    if trace.jobs and not any(job.requested for job in trace.jobs):
        trace.assumed.append("there are no requested times: the jobs have no time limit")
    return trace.arranged()


def _told(row: Row, name: str) -> str:
    value = row.get(name, "")
    return "" if value == "-" else value


def _span(text: str, what: str) -> float:
    """Seconds of `1h 2m 3s`, `350ms`, or of raw milliseconds. Raises BadRow."""
    if text.isdecimal():
        return int(text) / 1000
    total = 0.0
    for word in text.split():
        total += number(word[:-2], what) / 1000 if word.endswith("ms") else seconds(word, what)
    return total
