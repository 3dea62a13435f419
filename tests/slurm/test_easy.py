"""The lab's `easy` starts jobs when real Slurm does: the same jobs, through Slurm's own daemons."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from distributed_grid.cli.grid.lab import read_trace
from distributed_grid.simulator.lab.trace import Machine, TraceJob, fitting
from tests.slurm.campaign import MADE, by_slurm, compared, divided, made, table

THETA = Path(os.environ.get("GRID_TRACES", "")) / "theta.swf.xz"


def slice_of_theta() -> tuple[list[TraceJob], Sequence[Machine]]:
    """A hundred jobs of two busy days, within seven minutes, on nodes of 64."""
    if not THETA.is_file():
        pytest.skip("needs the trace theta.swf.xz: name its folder with GRID_TRACES")
    trace = read_trace(THETA, 64)
    return divided(fitting(trace, trace.machines)[18_000:18_100], 240), trace.machines


@pytest.mark.slurm
@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", ["made", "theta"])
def test_easy_starts_jobs_when_slurm_does_and_other_policies_do_not(what: str, tmp_path: Path) -> None:
    jobs, machines = slice_of_theta() if what == "theta" else (made(30, MADE, seed=4), [Machine("m", MADE)])
    rows = compared(jobs, machines, by_slurm(jobs, machines, 1, tmp_path / "slurm"))
    told = table(rows.values())
    easy, slurm = rows["easy"], rows["Slurm"]
    assert easy.mean == pytest.approx(slurm.mean, rel=0.25), told
    for other in ("fcfs", "sjf", "first-fit"):
        assert easy.apart < rows[other].apart / 2, told


def test_times_are_divided_and_rounded_to_what_slurm_counts() -> None:
    jobs = [
        TraceJob(100.0, 7.0, Machine("m", 4).resources, 3600.0),
        TraceJob(340.0, 500.0, Machine("m", 4).resources, 61.0),
    ]
    first, second = divided(jobs, 10)
    assert (first.submit, first.duration, first.requested) == (0.0, 1.0, 360.0)
    assert (second.submit, second.duration, second.requested) == (24.0, 50.0, 60.0)
