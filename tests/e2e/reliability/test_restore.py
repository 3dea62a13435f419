"""A coordinator whose disk is gone is begun again from a backup; the nodes and what runs on them live through it."""

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import CONFIG, Grid, running_grid, until

WAITS = "while [ ! -e {go} ]; do sleep 0.05; done; echo ran >> {went}; exit {code}"


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    # What a job held that the grid does not know is room again with the next offer.
    config = CONFIG.replace("resource_sharing:\n", "resource_sharing:\n  check_interval: 1\n")
    with running_grid(tmp_path, flags=[("--cores", "0,1,2", "--virtual")], config=config) as made:
        yield made


def begin(grid: Grid, name: str, code: int, cpus: int = 1, priority: str = "medium") -> Path:
    """Submit a job that runs until its file `NAME.go` exists, then writes a line to the path that is returned and
    exits."""
    went = grid.home / f"{name}.went"
    script = WAITS.format(go=grid.home / f"{name}.go", went=went, code=code)
    words = ("--cpus", str(cpus), "--no-ship", "--detach", "--name", name, "--priority", priority, "sh", "-c", script)
    done = grid.run("run-shared", *words)
    assert done.returncode == 0, done.stderr
    return went


def state(grid: Grid, name: str) -> str:
    return str(grid.job(name)["state"])


def audit(grid: Grid) -> str:
    with sqlite3.connect(f"file:{grid.home / 'coordinator' / 'grid.db'}?mode=ro", uri=True) as db:
        return "\n".join(row[0] for row in db.execute("SELECT what FROM audit"))


def test_a_lost_coordinator_is_restored_and_no_job_is_lost_on_the_way_or_run_twice(grid: Grid) -> None:
    begin(grid, "runs", 3)
    until(lambda: state(grid, "runs") == "running", "the first job runs")
    begin(grid, "large", 0, cpus=3, priority="low")  # there is no room for it now, and none is kept for its class
    done = grid.run("coordinator", "backup", "saved", "--state-dir", str(grid.home / "coordinator"))
    assert done.returncode == 0, done.stderr
    # Since then: a new job runs, and nothing of it is in the backup.
    went = begin(grid, "later", 7)
    until(lambda: state(grid, "later") == "running", "the later job runs")
    later = grid.job("later")["id"]

    grid.kill("coordinator")
    shutil.rmtree(grid.home / "coordinator")
    done = grid.run("coordinator", "restore", "saved", "--state-dir", str(grid.home / "coordinator"))
    assert done.returncode == 0, done.stderr
    grid.start_coordinator()
    grid.await_offers(1)

    assert grid.job("large")["outcome"]["cause"] == "restored"
    until(lambda: state(grid, "runs") == "running", "the job of the backup is found again")
    assert grid.run("job", "show", later).returncode == 1  # not known
    for name in ("runs", "later"):
        (grid.home / f"{name}.go").touch()
    done = grid.run("job", "wait", "runs")
    assert done.returncode == 3
    until(lambda: f"{later}.1 is over there (exited with code 7)" in audit(grid), "what became of the other is kept")
    assert went.read_text() == "ran\n"
    # Whoever submits again what was held back has it run, once.
    (grid.home / "large.go").touch()
    assert not (grid.home / "large.went").exists()
    large = begin(grid, "large", 0, cpus=3)
    until(lambda: state(grid, "large") == "ended", "the large job has ended")
    assert large.read_text() == "ran\n"
    assert grid.run("coordinator", "check", "--state-dir", str(grid.home / "coordinator")).stdout.startswith(
        "all is well"
    )
    checked = grid.run("coordinator", "check", "--agent-state-dir", str(grid.home / "n1"))
    assert checked.stdout == f"all is well in {grid.home / 'n1'}\n"
