"""What the ledger costs a job on traces: real ones where they are (`--traces FOLDER` or $GRID_TRACES), and a made one
of 100,000 jobs on 1,500 machines of two kinds, which asks for 95 % of their cores and 89 % of the GPUs that some have.
CPU of the whole run in the policy lab, with its accounts and without reading the file. Beside it the floor: a fixed
piece of Python of that moment.
"""

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench._common import report, say, ticking
from distributed_grid.cli.grid.lab import read_trace
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.simulator.lab.grid import Grid
from distributed_grid.simulator.lab.run import arrivals
from distributed_grid.simulator.lab.trace import Machine, TraceJob, fitting
from distributed_grid.simulator.lab.world import World

LOAD = 0.95


class Workload(NamedTuple):
    """Jobs on machines; `at_once`: of arrivals, none of which ends."""

    machines: Sequence[Machine]
    jobs: Sequence[TraceJob]
    at_once: bool = False


def swf(path: Path, unit: int, first: int) -> Workload:
    """The first jobs of a batch queue."""
    trace = read_trace(path, unit)
    return Workload(trace.machines, fitting(trace, trace.machines)[:first])


def openb(folder: Path, fill: float = 0.0) -> Workload:
    """Alibaba's pods on its nodes; `fill`: as arrivals, up to this part of the GPUs."""
    trace, machines = read_trace(folder / "openb_pods.csv.xz", 1), read_trace(folder / "openb_nodes.csv.xz", 1).machines
    jobs = fitting(trace, machines, endless=fill > 0)
    return Workload(machines, arrivals(jobs, machines, fill, 0) if fill else jobs, fill > 0)


def made(count: int, machines: int) -> Workload:
    """Return jobs of 50 users who submit at random moments, with run times of a lognormal distribution (its median 400
    s) and limits of up to ten times as much."""
    rng = random.Random(1)
    cluster = [
        Machine(f"n{at:04}", 32 if at % 3 else 64, (128 if at % 3 else 256) * GIB, 0 if at % 4 else 8)
        for at in range(machines)
    ]
    jobs, work = list[TraceJob](), 0.0
    for _ in range(count):
        cores = rng.choice((1, 1, 1, 2, 2, 4, 8, 16, 32))
        gpus = rng.choice((1, 1, 2, 4, 8)) if rng.random() < 0.1 else 0
        seconds = min(rng.lognormvariate(6, 1.5), 50_000.0)
        wanted = Resources(cores * MILLI, cores * rng.choice((1, 2, 4)) * GIB, gpus * MILLI)
        limit = seconds * rng.choice((1, 1.5, 2, 5, 10))
        jobs.append(TraceJob(0.0, seconds, wanted, limit, f"u{min(int(rng.expovariate(0.1)), 49)}"))
        work += cores * seconds
    span = work / (LOAD * sum(one.cores for one in cluster))
    at = sorted(rng.uniform(0, span) for _ in jobs)
    return Workload(cluster, [TraceJob(when, *_parts(one)) for when, one in zip(at, jobs, strict=True)])


def _parts(job: TraceJob) -> tuple[float, Resources, float, str]:
    return job.duration, job.resources, job.requested, job.user


def run(work: Workload) -> dict[str, float]:
    """Milliseconds of CPU a job, and the seconds of all."""
    began = time.process_time()
    World(work.machines, work.jobs, Grid(work.machines, work.jobs, work.at_once), at_once=work.at_once).run()
    took = time.process_time() - began
    return {"jobs": len(work.jobs), "machines": len(work.machines), "ms_a_job": took / len(work.jobs) * 1e3, "s": took}


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="traces", description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"))
    parser.add_argument("--jobs", type=int, default=100_000, help="of the made trace (100000)")
    parser.add_argument("--machines", type=int, default=1_500, help="of the made trace (1500)")
    given = parser.parse_args()
    works: dict[str, Callable[[], Workload]] = {"made": lambda: made(given.jobs, given.machines)}
    if given.traces is not None and Path(given.traces).is_dir():
        folder = Path(given.traces)
        works |= {
            "mira": lambda: swf(folder / "mira.swf.xz", 512, 4_000),
            "theta": lambda: swf(folder / "theta.swf.xz", 8, 8_000),
            "lublin": lambda: swf(folder / "lublin_256.swf.xz", 1, 4_000),
            "openb": lambda: openb(folder),
            "openb_filled": lambda: openb(folder, 1.3),
        }
    else:
        say("traces: the real ones are not here: name their folder with --traces or $GRID_TRACES")
    floor, figures = ticking(), dict[str, Any]()
    for name, make in works.items():
        figures[name] = run(make())
        say(f"{name}: {figures[name]['ms_a_job']:.2f} ms a job")
    report("traces", {**figures, "floor_us": (floor + ticking()) / 2 * 1e6})


if __name__ == "__main__":
    main()
