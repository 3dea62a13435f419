"""The lab's `easy` beside real Slurm: the same jobs, their times divided, through Slurm's daemons and the baselines.

    make slurm ARGS="--trace theta.swf.xz --unit 64 --from 1500 --jobs 100 --divide 240"

Without --trace the jobs are made from a seed. Slurm counts time limits in minutes and tells starts in seconds, so the
divided times are rounded to these, for the baselines, too.
"""

import argparse
import math
import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.cli.grid.lab import read_trace
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.simulator.lab.baselines import BASELINES
from distributed_grid.simulator.lab.metrics import waits
from distributed_grid.simulator.lab.trace import Machine, TraceJob, fitting
from distributed_grid.simulator.lab.world import World
from tests.slurm.daemons import Asked, Ran, missing, run

MINUTE = 60
MADE = 16
"""Nodes of the cluster for jobs that are made."""
NEAR = 5.0
"""Seconds: a start that differs by no more counts as the same."""
SLACK = 300.0
COMPARED = ("easy", "fcfs", "sjf", "first-fit")
AS_HELD = "easy, with Slurm's delays"
PASS = 1.0
"""Seconds between two passes of Slurm's backfill (`bf_interval`): the shortest there is."""


class Row(NamedTuple):
    """How a schedule compares with Slurm's: its waits in seconds; the mean of how far a start is from Slurm's, and the
    part of the starts that is near."""

    name: str
    mean: float
    p95: float
    most: float
    apart: float
    near: float


def divided(jobs: Sequence[TraceJob], by: float) -> list[TraceJob]:
    """Their times divided: whole seconds, and limits in whole minutes."""
    first = jobs[0].submit
    return [
        TraceJob(
            submit=float(round((job.submit - first) / by)),
            duration=float(max(1, round(job.duration / by))),
            resources=job.resources,
            requested=float(MINUTE * math.ceil(job.requested / by / MINUTE)),
        )
        for job in jobs
    ]


def made(count: int, cores: int, seed: int) -> list[TraceJob]:
    """Jobs in whose queue something is to be passed: a wide one after narrow ones, long and short."""
    chance, at, found = random.Random(seed), 0.0, list[TraceJob]()
    for _ in range(count):
        at += chance.choice((0, 1, 2, 5))
        wide = chance.random() < 0.2
        width = chance.randint(cores // 2, cores) if wide else chance.randint(1, cores // 4)
        minutes = chance.choice((1, 1, 1, 2, 3))
        found.append(TraceJob(at, float(chance.randint(5, 20) * minutes), Resources(width * MILLI), 60.0 * minutes))
    return found


def schedule(policy: str, jobs: Sequence[TraceJob], machines: Sequence[Machine]) -> list[float]:
    """When a baseline starts each of them."""
    world = World(machines, jobs, BASELINES[policy](machines, jobs))
    world.run()
    return [record.began for record in world.records]


def compared(jobs: Sequence[TraceJob], machines: Sequence[Machine], ran: Sequence[Ran]) -> dict[str, Row]:
    """Slurm first, then the baselines, and last `easy` with the nodes held for as long as Slurm held them. Moments
    count from the first submission."""
    slurm = [one.began - ran[0].submitted for one in ran]
    schedules = {"Slurm": slurm} | {policy: schedule(policy, jobs, machines) for policy in COMPARED}
    schedules[AS_HELD] = schedule("easy", held(jobs, ran), machines)
    return {name: _row(name, jobs, starts, slurm) for name, starts in schedules.items()}


def held(jobs: Sequence[TraceJob], ran: Sequence[Ran]) -> list[TraceJob]:
    """The jobs with the run times that Slurm tells, and the time until its next pass."""
    return [
        msgspec.structs.replace(job, duration=one.ended - one.began + PASS, requested=job.requested + PASS)
        for job, one in zip(jobs, ran, strict=True)
    ]


def _row(name: str, jobs: Sequence[TraceJob], starts: Sequence[float], slurm: Sequence[float]) -> Row:
    found = waits(start - job.submit for start, job in zip(starts, jobs, strict=True))
    apart = [abs(one - other) for one, other in zip(starts, slurm, strict=True)]
    near = sum(one <= NEAR for one in apart) / len(apart)
    return Row(name, found.mean, found.p95, found.max, sum(apart) / len(apart), near)


def by_slurm(jobs: Sequence[TraceJob], machines: Sequence[Machine], reserved: int, folder: Path) -> list[Ran]:
    """Run them through Slurm."""
    asked = [
        Asked(job.submit, job.resources.cpu // MILLI, int(job.duration), int(job.requested) // MINUTE) for job in jobs
    ]
    starts = schedule("easy", jobs, machines)
    limit = max(start + job.duration for start, job in zip(starts, jobs, strict=True))
    return run(asked, machines[0].cores, reserved, folder, 2 * limit + SLACK)


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| | wait mean | p95 | max | apart from Slurm, mean | within 5 s |", f"|{'---|' * 6}"]
    for one in rows:
        waited = f"{one.mean:.1f} | {one.p95:.0f} | {one.most:.0f}"
        lines.append(f"| {one.name} | {waited} | {one.apart:.1f} | {100 * one.near:.0f} % |")
    return "\n".join(lines)


def main() -> None:
    """Run the slice, and print the table."""
    parser = argparse.ArgumentParser(prog="slurm", description=__doc__)
    parser.add_argument("--trace", type=Path, help="an SWF; without: jobs made from a seed")
    parser.add_argument("--unit", type=int, default=1, help="its processors that count as one core")
    parser.add_argument("--from", dest="first", type=int, default=0, help="its first job of the slice")
    parser.add_argument("--jobs", type=int, default=60, help="jobs of the slice")
    parser.add_argument("--divide", type=float, default=1.0, help="divide all times by this")
    parser.add_argument("--reserve", type=int, default=1, help="waiting jobs that Slurm reserves for (0: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs that are made")
    parser.add_argument("--each", action="store_true", help="also a line a job: what it asked for, and its starts")
    told = parser.parse_args()
    if why := missing():
        parser.exit(1, f"slurm: {why}\n")
    if told.trace is None:
        machines, jobs = [Machine("m", MADE)], made(told.jobs, MADE, told.seed)
    else:
        trace = read_trace(told.trace, told.unit)
        machines = trace.machines
        jobs = divided(fitting(trace, machines)[told.first : told.first + told.jobs], told.divide)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="grid-slurm-") as folder:
        ran = by_slurm(jobs, machines, told.reserve, Path(folder))
    if told.each:
        starts = schedule("easy", jobs, machines)
        for job, one, start in zip(jobs, ran, starts, strict=True):
            asked = f"at {job.submit:g}: {job.resources.cpu // MILLI} nodes, {job.duration:g} of {job.requested:g} s"
            print(f"{asked}: Slurm {one.began - ran[0].submitted:g}, easy {start:g}")
    print(table(compared(jobs, machines, ran).values()))
    print(f"{len(jobs)} jobs, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
