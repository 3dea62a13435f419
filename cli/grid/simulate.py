"""`grid simulate`: whole grids in one process, made from seeds, with faults; or a trace (lab.py)."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation, current
from distributed_grid.cli.grid.lab import LAB_OPTIONS, lab_options, lab_options_given, simulate_trace
from distributed_grid.cli.options import Sectioned
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.text import counted

Run = Any
"""A simulator.Run, which is loaded when it is needed only."""
NODES, NODES_MOST = 20, 1000
CHUNK = 50
"""Seeds that a process is handed at once."""
TOLD = 3
"""Violations that are cut down and told as a story; the others are named."""
NAMED = 50
SAID_EVERY = 10.0
"""Seconds between two lines on how far it is."""


class Simulate(Sectioned):
    """The command, with its options for seeds, and those for traces."""

    sections = (
        ("Seeds", ("seed", "seeds", "jobs", "nodes", "events", "without")),
        ("Traces", LAB_OPTIONS),
    )


@click.command(cls=Simulate)
@click.option("--seed", type=int, default=1, metavar="N", help="The (first) seed (1).")
@click.option(
    "--seeds", type=click.IntRange(1, 10**9), default=1, metavar="COUNT", help="How many seeds, from that one on (1)."
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    metavar="PROCESSES",
    help="Number of processes to run them in (1).",
)
@click.option("--nodes", type=click.IntRange(1, 100_000), help="Nodes of each grid (20), or of the trace's cluster.")
@click.option("--events", type=click.IntRange(0), default=200, help="Events in each grid at the least (200).")
@click.option("--without", default="", metavar="LIST", help="Faults and jobs to leave out, such as reboot,fault5,job3.")
@lab_options
def simulate(
    seed: int, seeds: int, jobs: int, nodes: int | None, events: int, without: str, trace: Path | None, **lab: Any
) -> None:
    """Simulate grids with faults and check their guarantees, or run a workload trace by several policies.

    A seed determines a grid (nodes, jobs and faults, around the real cores of coordinator and agents) and all that
    happens in it. If a guarantee is violated, the steps that reproduce it are printed, reduced to the necessary ones,
    and the exit code is 1.

    With --trace, the jobs of a file are run through the real ledger and through simple policies in simulated time, and
    the results are compared (docs/policy-lab.md)."""
    if trace is not None:
        if without:
            raise BadValue("--without is for grids made from a seed", hint="leave it out with --trace")
        simulate_trace(current(), trace, range(seed, seed + seeds), jobs, nodes, lab)
        return
    if given := lab_options_given(lab):
        raise BadValue(f"{given} is for traces", hint="name one with --trace FILE")
    nodes = NODES if nodes is None else nodes
    if nodes > NODES_MOST:
        raise BadValue(f"a simulated grid of {nodes} nodes is too large", hint=f"{NODES_MOST} are the most")
    invocation, out = current(), _without(without)
    began = time.monotonic()
    found = Found()
    for runs in _all(range(seed, seed + seeds), jobs, nodes, events, out):
        for one in runs:
            found.add(one)
        found.say(invocation, seeds, time.monotonic() - began)
    _tell(invocation, found, time.monotonic() - began, nodes, events, out)
    if found.violated:
        raise SystemExit(1)


def _without(text: str) -> tuple[str, ...]:
    from distributed_grid.simulator import KINDS

    names = tuple(name for name in text.replace(" ", "").split(",") if name)
    for name in names:
        if name not in KINDS and not re.fullmatch(r"(job|fault)\d+", name):
            hint = f"kinds of faults are {', '.join(KINDS)}; one of them, or one job, is called fault5 or job3"
            raise BadValue(f"there is no {name!r} to leave out", hint=hint)
    return names


def _all(seeds: range, jobs: int, nodes: int, events: int, without: tuple[str, ...]) -> Iterator[list[Run]]:
    """The runs of all these seeds, a few at a time, in order."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield run_some(chunk, nodes, events, without)
        return
    with ProcessPoolExecutor(jobs) as pool:
        count = len(chunks)
        yield from pool.map(run_some, chunks, [nodes] * count, [events] * count, [without] * count)


def run_some(seeds: range, nodes: int, events: int, without: tuple[str, ...]) -> list[Run]:
    """Run these seeds, in whatever process this is."""
    from distributed_grid.simulator import Shape, run

    shape = Shape(nodes=nodes, events=events)
    return [run(seed, shape, without) for seed in seeds]


class Found:
    """The results of all runs so far."""

    def __init__(self) -> None:
        self.seeds = 0
        self.events = 0
        self.seconds = 0.0
        self.started = 0
        self.fewest = 0
        self.faults: Counter[str] = Counter()
        self.violated: list[Run] = []
        self.trace = ""
        self._said = 0.0

    def add(self, run: Run) -> None:
        """Add the result of a run."""
        self.fewest = min(self.fewest or run.events, run.events)
        self.seeds += 1
        self.events += run.events
        self.seconds += run.seconds
        self.started += run.started
        self.faults.update(run.faults)
        self.trace = run.trace
        if run.what:
            self.violated.append(run)

    def say(self, invocation: Invocation, seeds: int, seconds: float) -> None:
        """Print the progress from time to time."""
        if seconds - self._said >= SAID_EVERY:
            self._said = seconds
            speed = self.seeds / seconds
            invocation.say(f"{self.seeds} of {seeds} seeds, {speed:.0f} a second, {len(self.violated)} violated")


def _tell(
    invocation: Invocation, found: Found, seconds: float, nodes: int, events: int, without: tuple[str, ...]
) -> None:
    stories = [_story(run, nodes, events, without) for run in found.violated[:TOLD]]
    lines = []
    for story in stories:
        lines += [f"seed {story['seed']}: {story['about']}: {story['what']}", *story["story"]]
        lines += [f"again: {story['again']}", ""]
    lines += [f"seed {run.seed}: {run.about}: {run.what}" for run in found.violated[TOLD:NAMED]]
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(found.faults.items()))
    lines += [
        f"{counted(found.seeds, 'seed')} in {seconds:.1f} s, {found.seeds / seconds:.1f} a second",
        f"{found.events} events ({found.fewest} in the shortest) in {found.seconds:.0f} simulated seconds",
        f"{counted(found.started, 'process', 'processes')} started",
        f"{sum(found.faults.values())} faults: {faults or 'none'}",
    ]
    if found.seeds == 1:
        lines.append(f"trace {found.trace}")
    lines.append(f"violations: {len(found.violated)}")
    text = "".join(f"{line}\n" for line in lines)
    formatting.show(invocation, _json(found, seconds, stories), text, f"{len(found.violated)}\n")


def _story(run: Run, nodes: int, events: int, without: tuple[str, ...]) -> dict[str, Any]:
    from distributed_grid.simulator import Shape, shrink, story

    shape = Shape(nodes=nodes, events=events)
    out = shrink(run.seed, shape, without)
    return {
        "seed": run.seed,
        "about": run.about,
        "what": run.what,
        "story": story(run.seed, shape, out),
        "again": f"grid simulate --seed {run.seed} --nodes {nodes} --events {events} --without {','.join(out)}",
    }


def _json(found: Found, seconds: float, stories: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "seeds": found.seeds,
        "seconds": round(seconds, 3),
        "seeds_per_second": round(found.seeds / seconds, 1),
        "simulated_seconds": round(found.seconds, 1),
        "events": found.events,
        "fewest_events": found.fewest,
        "started": found.started,
        "faults": dict(sorted(found.faults.items())),
        "trace": found.trace if found.seeds == 1 else None,
        "violations": [{"seed": run.seed, "about": run.about, "what": run.what} for run in found.violated],
        "stories": stories,
    }
