"""`grid simulate --trace`: a workload trace, scheduled by the real ledger and by simple policies for comparison."""

import math
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.resources import parse_memory
from distributed_grid.protocol.text import counted

F = TypeVar("F", bound=Callable[..., Any])
Trace = Any
Machine = Any
Setup = Any
Run = Any
Result = Any
"""These are of simulator.lab, which is loaded when it is needed only."""
UNLIMITED = 1 << 50
"""Memory of a machine where --memory says nothing: more than any job asks for."""
LAB_OPTIONS = (
    "trace", "policies", "cluster", "cores", "memory", "gpus", "unit", "first", "skip", "fill",
    "owners", "owner_policy", "plot", "timing",
)  # fmt: skip
"""Their parameters, in this order."""
DEFAULT_POLICIES = "grid,fcfs,easy,sjf,strict-fifo,best-effort,first-fit,random"


def lab_options(command: F) -> F:
    """Add the options of traces."""
    path = click.Path(path_type=Path)
    for option in reversed(
        [
            click.option("--trace", type=path, metavar="FILE", help="Run this trace, in any known format."),
            click.option(
                "--policy", "policies", metavar="LIST", help=f"Policies to compare ({DEFAULT_POLICIES})."
            ),
            click.option("--cluster", type=path, metavar="FILE", help="The machines: openb nodes (sn, cpu_milli, …)."),
            click.option("--cores", type=click.IntRange(1, 1_000_000), help="Cores of each machine."),
            click.option("--memory", metavar="SIZE", help="Memory of each machine (default: as much as requested)."),
            click.option("--gpus", type=click.IntRange(0, 1024), help="GPUs of each machine (0)."),
            click.option("--unit", type=click.IntRange(1), help="Processors of an SWF that count as one core (1)."),
            click.option("--first", type=click.IntRange(1), metavar="N", help="Run only the first N jobs."),
            click.option("--skip", metavar="N|PART", help="Exclude the first N jobs, or 33%, from the waiting times."),
            click.option(
                "--fill", type=click.FloatRange(0.01, 10), metavar="PART",
                help="Draw arrivals until PART (1.3) of the GPUs is asked for; nothing ends.",
            ),
            click.option("--owners", type=path, metavar="FILE", help="Use by owners (a folder or tar, too)."),
            click.option(
                "--owner-policy", type=click.Choice(["continue", "suspend", "recall"]), help="Of all owners (suspend)."
            ),
            click.option("--plot", type=path, metavar="FILE.svg", help="Draw use, queue and owners' use over time."),
            click.option("--timing", is_flag=True, help="Also decisions per second of CPU time, which vary."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


def lab_options_given(lab: dict[str, Any]) -> str:
    """The first of these options that was given; empty: none."""
    given = [name for name, value in lab.items() if value not in (None, False)]
    return f"--{'policy' if given[0] == 'policies' else given[0]}" if given else ""


def simulate_trace(
    invocation: Invocation, path: Path, seeds: range, processes: int, nodes: int | None, lab: dict[str, Any]
) -> None:
    """Read a trace, run it under each policy, and print the comparison."""
    from distributed_grid.simulator.lab import run as runs

    policies = runs.parse_policies(lab["policies"] or DEFAULT_POLICIES)
    trace = read_trace(path, lab["unit"] or 1)
    if trace.use or not (trace.jobs or trace.left_out):
        raise BadValue(
            f"{path} has no jobs: it is {trace.format}", hint="give jobs with --trace, machines with --cluster"
        )
    setup = _setup(invocation, trace, path, nodes, lab)
    if lab["plot"] is not None:
        _check_plot(lab["plot"])
    for line in trace.words():
        invocation.say(line)
    results, every = [], list[Run]()
    for policy in policies:
        many = seeds if runs.by_chance(policy, setup) else seeds[:1]
        found = list(_runs(setup, policy, many, processes))
        every.append(found[0])
        results.append(runs.result(found))
        seconds = sum(one.seconds for one in found)
        rate = results[-1].decisions_a_second
        invocation.say(f"{policy}: {seconds:.1f} s of CPU time, {rate:.0f} decisions a second")
    if lab["plot"] is not None:
        _draw(lab["plot"], path.name, setup, every)
    _tell(invocation, trace, setup, results, lab["timing"])


def _check_plot(to: Path) -> None:
    """Refuse a place where nothing can be written before the runs, not after them. Raises BadValue."""
    there = to if to.exists() else to.parent
    if to.is_dir() or not to.parent.is_dir() or not os.access(there, os.W_OK):
        why = "it is a directory" if to.is_dir() else f"{there} is not writable, or not there"
        raise BadValue(f"{to} cannot be written", why=why, hint="give another file with --plot")


def _draw(to: Path, name: str, setup: Setup, every: Sequence[Run]) -> None:
    from distributed_grid.simulator.lab.plot import picture
    from distributed_grid.simulator.lab.run import whole_words
    from distributed_grid.simulator.lab.trace import capacity

    title = f"{name}: {counted(len(setup.jobs), 'job')} on {whole_words(setup.machines)}"
    runs = [(one.policy, one.points) for one in every]
    try:
        to.write_text(picture(title, runs, capacity(setup.machines).cpu, owned=bool(setup.owners)))
    except OSError as error:
        raise BadValue(f"{to} cannot be written", why=error.strerror or str(error)) from None


def read_trace(path: Path, unit: int) -> Trace:
    """The content of a file, or of a folder with an event log. Raises BadValue."""
    from distributed_grid.simulator.lab.formats.tell import read_all
    from distributed_grid.simulator.lab.trace import nothing_taken

    try:
        data = None if path.is_dir() else _content(path)
        trace = _event_log(path) if data is None else read_all(data, path.name, unit)
    except OSError as error:
        raise BadValue(f"{path} cannot be read", why=error.strerror or str(error)) from None
    if not (trace.jobs or trace.machines or trace.use):
        raise nothing_taken(trace, str(path))
    return trace


def _content(path: Path) -> bytes | None:
    """Return the contents of a file or pipe; None: it is a file of an event log. Raises OSError, BadValue."""
    # Opened without waiting for a writer: a pipe that has none reads as empty.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        kind = os.fstat(fd).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
            raise BadValue(f"{path} is no file", why="it is a device or a socket", hint="give a file of jobs")
        if stat.S_ISREG(kind) and b"grid-events" in os.pread(fd, 64, 0):
            return None
        os.set_blocking(fd, True)
        return file.read()


def _event_log(path: Path) -> Trace:
    from distributed_grid.coordinator.eventlog.format import Cut, Header, files, read
    from distributed_grid.simulator.lab.formats.own import from_events

    cut: list[str] = []

    def records() -> Iterator[Any]:
        for file in _logs(path, files):
            for record in read(file):
                if isinstance(record, Cut):
                    cut.append(file.name)
                elif not isinstance(record, Header):
                    yield record if not hasattr(record, "events") else (record.now, record.events)

    trace = from_events(records())
    for name in cut:
        trace.rows += 1
        trace.leave_out(0, f"{name} ends in the middle of a record")
    return trace


def _logs(path: Path, files: Callable[[Path], list[Path]]) -> list[Path]:
    """The files of an event log: of a folder of them, or of a coordinator's state directory."""
    if not path.is_dir():
        return [path]
    found = files(path)
    if not found and (path / "events").is_dir():
        found = files(path / "events")
    if not found:
        raise BadValue(
            f"there is no event log in {path}", hint="give a file of jobs, or a coordinator's state directory"
        )
    return found


def _setup(invocation: Invocation, trace: Trace, path: Path, nodes: int | None, lab: dict[str, Any]) -> Setup:
    from distributed_grid.protocol.nodes import OwnerPolicy
    from distributed_grid.simulator.lab.run import Setup
    from distributed_grid.simulator.lab.trace import fitting, nothing_taken

    machines = _machines(trace, nodes, lab)
    jobs = fitting(trace, machines, endless=bool(lab["fill"]))[: lab["first"]]
    if not jobs:
        raise nothing_taken(trace, str(path))
    return Setup(
        machines=machines,
        jobs=jobs,
        fill=lab["fill"] or 0.0,
        skip=_skipped(lab["skip"], len(jobs)),
        owners=_owners(invocation, lab),
        owner_policy=OwnerPolicy(lab["owner_policy"] or "suspend"),
    )


def _owners(invocation: Invocation, lab: dict[str, Any]) -> Sequence[Any]:
    path: Path | None = lab["owners"]
    if path is None:
        if lab["owner_policy"]:
            raise BadValue("--owner-policy is for --owners", hint="name a trace of their use with --owners FILE")
        return ()
    if lab["fill"]:
        raise BadValue("--fill and --owners do not go together", why="nothing ends in a workload of arrivals")
    if path.is_dir():
        from distributed_grid.simulator.lab.formats.tell import together

        files = sorted(one for one in path.rglob("*") if one.is_file())
        trace = together([read_trace(one, 1) for one in files], str(path))
    else:
        trace = read_trace(path, 1)
    if not trace.use:
        raise BadValue(
            f"{path} has no use of machines: it is {trace.format}", hint="give one number a line, or a series"
        )
    for line in trace.words():
        invocation.say(f"owners: {line}")
    use: Sequence[Any] = trace.use
    return use


def _machines(trace: Trace, nodes: int | None, lab: dict[str, Any]) -> Sequence[Machine]:
    from distributed_grid.simulator.lab.trace import uniform

    described = [name for name in ("cores", "memory", "gpus") if lab[name] is not None] + (["nodes"] if nodes else [])
    if lab["cluster"] is not None:
        if described:
            raise BadValue(f"--cluster and --{described[0]} both say what the machines are", hint="give one of them")
        there: list[Machine] = read_trace(lab["cluster"], 1).machines
        if not there:
            raise BadValue(
                f"{lab['cluster']} has no machines", hint="give a csv with sn, cpu_milli, memory_mib and gpu"
            )
        return there
    if not described:
        known: list[Machine] = trace.machines
        if known:
            return known
        hint = "say it with --nodes and --cores (--memory, --gpus), or --cluster FILE"
        raise BadValue("the trace does not say on which machines it is to run", hint=hint)
    if lab["cores"] is None:
        raise BadValue("how many cores has a machine?", hint="say it with --cores")
    memory = parse_memory(lab["memory"]) if lab["memory"] else UNLIMITED
    return uniform(nodes or 1, lab["cores"], memory, lab["gpus"] or 0)


def _skipped(text: str | None, jobs: int) -> int:
    if text is None:
        return 0
    try:
        part = float(text.removesuffix("%")) / 100 if text.endswith("%") else 0.0
        count = math.floor(part * jobs) if text.endswith("%") else int(text)
    except (ValueError, OverflowError):
        count = -1
    if count < 0:
        raise BadValue(f"--skip {text!r} is no number of jobs", hint="write 1000 or 33%")
    if count >= jobs:
        raise BadValue(f"--skip {text} leaves none of {jobs} jobs", hint="skip less")
    return count


def _runs(setup: Setup, policy: str, seeds: range, processes: int) -> Iterator[Run]:
    if processes == 1 or len(seeds) == 1:
        for seed in seeds:
            yield run_one(setup, policy, seed)
        return
    with ProcessPoolExecutor(processes) as pool:
        count = len(seeds)
        yield from pool.map(run_one, [setup] * count, [policy] * count, seeds)


def run_one(setup: Setup, policy: str, seed: int) -> Run:
    """Run one seed of a policy."""
    from distributed_grid.simulator.lab.run import run

    return run(setup, policy, seed, time.process_time)


# --- what is shown ----------------------------------------------------------------------------------------------------

Column = tuple[str, Callable[[dict[str, Any]], float | None], Callable[[float], str]]
"""Its name, its value (None: there is none) in what a policy has as means or as intervals, and how that is written."""


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _columns(setup: Setup) -> list[Column]:
    columns: list[Column] = [
        ("use %", lambda one: one["use"], _percent),
        ("wait mean", lambda one: one["wait"]["mean"], _whole),
        ("p50", lambda one: one["wait"]["p50"], _whole),
        ("p95", lambda one: one["wait"]["p95"], _whole),
        ("max", lambda one: one["wait"]["max"], _whole),
        ("by area", lambda one: one["wait_by_area"], _whole),
        ("large", lambda one: one["by_size"].get("large", {}).get("mean"), _whole),
        ("slowdown", lambda one: one["slowdown"], lambda value: f"{value:.1f}"),
        ("fair", lambda one: one["fairness"], lambda value: f"{value:.2f}"),
        ("moves", lambda one: one["moves"], _whole),
        ("wasted h", lambda one: one["wasted"] / 3600, lambda value: f"{value:.1f}"),
    ]
    gpus = [
        ("GPUs %", lambda one: one["gpus_allocated"], _percent),
        ("fragmented %", lambda one: one["gpus_fragmented"], _percent),
    ]
    if setup.fill:
        columns = [("use %", columns[0][1], _percent), ("started", lambda one: one["jobs"], _whole)]
    if setup.owners:
        columns += [
            ("owners %", lambda one: one["owners_use"], _percent),
            ("pain h", lambda one: one["owners_pain"] / 3600, lambda value: f"{value:.1f}"),
            ("frozen h", lambda one: one["frozen"] / 3600, lambda value: f"{value:.1f}"),
            ("unfinished", lambda one: one["unfinished"], _whole),
        ]
    if any(machine.gpus for machine in setup.machines):
        columns += gpus
    return columns


def _tell(invocation: Invocation, trace: Trace, setup: Setup, results: Sequence[Result], timing: bool) -> None:
    from distributed_grid.simulator.lab.run import whole_words

    columns = _columns(setup)
    rows = [
        [one.policy, *_cells(columns, one), *([_whole(one.decisions_a_second)] if timing else [])] for one in results
    ]
    header = ["policy", *(name for name, _, _ in columns), *(["decisions/s"] if timing else [])]
    text = f"{counted(len(setup.jobs), 'job')}, {whole_words(setup.machines)}; waits in seconds\n"
    text += formatting.table(invocation, header, rows)
    best = min(results, key=lambda one: one.mean["wait"]["mean"]).policy
    formatting.show(invocation, lambda: _json(trace, setup, results, timing), text, f"{best}\n", rows="policies")


def _cells(columns: Sequence[Column], one: Result) -> list[str]:
    cells = []
    for _, value, words in columns:
        mean, width = value(one.mean), value(one.interval) if one.seeds > 1 else None
        told = "-" if mean is None else words(mean)
        cells.append(told if width is None else f"{told} ±{words(width)}")
    return cells


def _json(trace: Trace, setup: Setup, results: Sequence[Result], timing: bool) -> dict[str, Any]:
    whole = setup.machines
    return {
        "trace": {
            "format": trace.format,
            "rows": trace.rows,
            "jobs": len(setup.jobs),
            "left_out": [{"rows": one.count, "lines": one.lines, "why": one.why} for one in trace.left_out.values()],
            "assumed": trace.assumed,
        },
        "cluster": {
            "machines": len(whole),
            "cores": sum(one.cores for one in whole),
            "memory": sum(one.memory for one in whole),
            "gpus": sum(one.gpus for one in whole),
        },
        "fill": setup.fill or None,
        "owners": len(setup.owners) or None,
        "skipped": setup.skip,
        "policies": [
            {
                "policy": one.policy,
                "seeds": one.seeds,
                **one.mean,
                "interval": one.interval if one.seeds > 1 else None,
                **({"decisions_a_second": round(one.decisions_a_second, 1)} if timing else {}),
            }
            for one in results
        ],
    }
