"""A trace, whatever its format: jobs, machines, the use of machines by others, and what was left out."""

import math
from collections.abc import Iterable, Sequence

import msgspec

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.placement import same_model
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.text import counted, listed

UNKNOWN = math.inf
"""Duration of a job whose end the trace does not say: only a workload of arrivals can use it."""
NAMED = 3
"""Lines that are named of each thing that is wrong."""
LONGEST = 1e10
"""Seconds that a job or a whole trace may last: three centuries. Beyond, moments are not told apart well enough."""
MOST_CORES = 1_000_000
"""Cores of a machine: the grid knows each by its number."""
MOST_GPUS = 1024
"""GPUs of a machine."""
MOST_MEMORY = 1 << 50
"""Bytes of a machine."""


JobKind = tuple[Resources, str]
"""What a job asks for, and of which model its GPUs have to be."""


class TraceJob(msgspec.Struct, frozen=True, gc=False):
    """A job of a trace. Times in seconds: `submit` since the first submission, `duration` of its run, `requested` time
    limit (0: none). `line`: its line in the file. `gpu_model`: as in `Constraints`."""

    submit: float
    duration: float
    resources: Resources
    requested: float = 0.0
    user: str = ""
    line: int = 0
    priority: Priority = Priority.MEDIUM
    gpu_model: str = ""

    @property
    def kind(self) -> "JobKind":
        """The needs that decide where it fits."""
        return self.resources, self.gpu_model

    @property
    def size(self) -> int:
        """Milli-GPUs for a job with GPUs, else milli-cores."""
        return self.resources.gpu or self.resources.cpu


class Machine(msgspec.Struct, frozen=True, gc=False):
    """A machine of the cluster: whole cores, bytes and whole GPUs."""

    name: str
    cores: int
    memory: int = GIB
    gpus: int = 0
    model: str = ""

    @property
    def resources(self) -> Resources:
        """Return all resources of the machine."""
        return Resources(self.cores * MILLI, self.memory, self.gpus * MILLI)


class UseSeries(msgspec.Struct, frozen=True, gc=False):
    """The use of one machine by its owner over time: from each moment (seconds from the first) the part of it in use,
    0 to 1."""

    name: str
    samples: tuple[tuple[float, float], ...]


class LeftOut(msgspec.Struct):
    """Rows left out for the same reason: how many, and the first lines with their text."""

    why: str
    count: int = 0
    lines: list[int] = []


class Trace(msgspec.Struct, kw_only=True):
    """The content of a file. `rows` counts what could have been a job (machine, sample); `assumed` says in sentences
    what was assumed where the file does not say it."""

    format: str
    rows: int = 0
    jobs: list[TraceJob] = []
    machines: list[Machine] = []
    use: list[UseSeries] = []
    left_out: dict[str, LeftOut] = {}
    assumed: list[str] = []

    def leave_out(self, line: int, why: str, count: int = 1) -> None:
        """Note a row, or `count` rows, left out for this reason."""
        entry = self.left_out.setdefault(why, LeftOut(why))
        entry.count += count
        if len(entry.lines) < NAMED:
            entry.lines.append(line)

    def arranged(self) -> "Trace":
        """Return the trace in the order of submission, from time 0 on, without jobs that came or ran too late for any
        grid."""
        ordered = sorted(self.jobs, key=lambda job: job.submit)
        self.jobs = []
        for job in ordered:
            since = job.submit - ordered[0].submit
            if since > LONGEST:
                self.leave_out(job.line, "it was submitted more than three centuries after the first")
            elif LONGEST < job.duration < UNKNOWN:
                self.leave_out(job.line, "it ran for more than three centuries")
            else:
                self.jobs.append(msgspec.structs.replace(job, submit=since))
        return self

    def words(self) -> list[str]:
        """Describe in sentences what was read and what was left out."""
        taken = self.rows - sum(one.count for one in self.left_out.values())
        lines = [f"{self.format}: {taken} of {counted(self.rows, 'row')} taken"]
        lines += [left_out_words(one) for one in self.left_out.values()]
        return [*lines, *self.assumed]


def left_out_words(one: LeftOut) -> str:
    """`2 rows left out, lines 3 and 7: the run time is not a number`."""
    where = listed([str(line) for line in one.lines], NAMED, one.count)
    at = f", {'line' if one.count == 1 else 'lines'} {where}" if one.lines and one.lines[0] else ""
    return f"{counted(one.count, 'row')} left out{at}: {one.why}"


def nothing_taken(trace: Trace, what: str) -> BadValue:
    """The error for a trace of which nothing can be used."""
    why = "; ".join(left_out_words(one) for one in trace.left_out.values())
    return BadValue(f"nothing in {what} can be used", why=why or f"it is {trace.format}, without a row")


class BadRow(ValueError):
    """A row of a trace that cannot be used; says why."""


def number(text: str, what: str, least: float = 0.0, most: float = 1e15) -> float:
    """A finite number from `least` to `most`. Raises BadRow."""
    try:
        value = float(text)
    except ValueError:
        raise BadRow(f"{what} is not a number: {text.strip()[:40]!r}") from None
    if not -1e15 < value <= most:
        raise BadRow(f"{what} is out of range: {text.strip()[:40]}")
    if value < least:
        raise BadRow(f"{what} is below {least:g}: {text.strip()[:40]}")
    return value


# --- a cluster --------------------------------------------------------------------------------------------------------


def uniform(nodes: int, cores: int, memory: int = GIB, gpus: int = 0) -> list[Machine]:
    """A cluster of equal machines."""
    width = len(str(nodes - 1))
    return [Machine(f"n{at:0{width}}", cores, memory, gpus) for at in range(nodes)]


def fitting(trace: Trace, machines: Sequence[Machine], endless: bool = False) -> list[TraceJob]:
    """The jobs that some machine could run; the others are left out, and those without an end, unless `endless`."""
    kinds = {(machine.resources, machine.model) for machine in machines}
    found = []
    for job in trace.jobs:
        if job.duration == UNKNOWN and not endless:
            trace.leave_out(job.line, "it has no end, or ended before it began")
        elif any(job.resources.fits(room) and same_model(job.gpu_model, model) for room, model in kinds):
            found.append(job)
        else:
            trace.leave_out(job.line, "it asks for more than any machine of the cluster has")
    return found


def capacity(machines: Iterable[Machine]) -> Resources:
    """Return the resources of all machines together."""
    total = Resources()
    for machine in machines:
        total = total + machine.resources
    return total
