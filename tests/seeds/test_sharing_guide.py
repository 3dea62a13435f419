"""The programs of the resource sharing guide run as they are: on a real grid, as a user would start them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seeds import guide
from tests.seeds.conftest import Grid

TRAIN = """\
import os
print("trained on", os.environ["CUDA_VISIBLE_DEVICES"], "at", os.environ["GRID_NODE"])
"""
TASK = """\
import os, sys
print("task", sys.argv[2], "cores", os.environ["OMP_NUM_THREADS"])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's directory, as the guide assumes it."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "cluster_config.yaml").write_text(guide.CONFIGURATION)
    for name in ("train.py", "train_model.py"):
        (tmp_path / name).write_text(TRAIN)
    (tmp_path / "process_large_dataset.py").write_text("print(sum(map(int, open('data/set.txt'))))\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set.txt").write_text("40\n2\n")
    (tmp_path / "compute_task.py").write_text(TASK)
    return tmp_path


def run(grid: Grid, project: Path, program: str) -> str:
    """What a program prints, started in the user's directory."""
    (project / "program.py").write_text(program)
    environment = os.environ | {"GRID_COORDINATOR": grid.url}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=project, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guides_own_program_trains_on_a_borrowed_gpu(grid: Grid, project: Path) -> None:
    said = run(grid, project, guide.program(guide.RUN, after="print(result.exit_code, result.name, result.stdout)"))
    assert "Available offers: [{" in said and "Active allocations: [" in said
    assert "0 training_001 trained on GPU-stand-in-gpu" in said


def test_example_1_offloads_training_when_the_main_node_is_overloaded(grid: Grid, project: Path) -> None:
    said = run(
        grid,
        project,
        guide.program(guide.OFFLOADING, "local_gpu_utilization = 95", "print(result.node, result.stdout)"),
    )
    node = said.split()[0]
    assert said.split("\n")[0] == f"{node} trained on GPU-stand-in-{node} at {node}"


def test_example_2_processes_a_large_dataset_with_borrowed_memory(grid: Grid, project: Path) -> None:
    said = run(
        grid,
        project,
        guide.program(guide.BATCH, after="print(result.stdout.strip(), result.job.grant.memory >> 30, result.success)"),
    )
    assert said.strip() == "42 8 True"


def test_example_3_computes_in_parallel_on_several_nodes(grid: Grid, project: Path) -> None:
    said = run(
        grid,
        project,
        guide.program(
            guide.PARALLEL, after="for r in results: print(r.exit_code, len(r.job.grant.cores), r.stdout, end='')"
        ),
    )
    assert said.splitlines() == [f"0 2 task {i} cores 2" for i in range(4)]
