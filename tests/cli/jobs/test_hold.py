"""`grid hold request|list|release`, and jobs that run in a hold by `--in`, on a real grid."""

import sys
from collections.abc import Iterator
from functools import partial

import pytest

from tests.grid_fixture import Grid, running_grid, until


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    with running_grid(tmp_path_factory.mktemp("grid")) as made:
        yield made


@pytest.fixture(autouse=True)
def released(grid: Grid) -> Iterator[None]:
    """No test leaves a hold or a job."""
    yield
    for row in (*grid.json("hold", "list")["holds"], *grid.json("jobs")["jobs"]):
        grid.run("cancel", row["id"])
    until(lambda: not grid.json("jobs")["jobs"], "jobs live on")


def test_a_job_runs_in_what_was_held_before_it(grid: Grid) -> None:
    done = grid.run("hold", "request", "--cpus", "0.5", "--time", "10m", "--name", "evening")
    assert done.returncode == 0 and "0.5 cpu of " in done.stderr and "--in evening" in done.stderr
    done = grid.run("run-shared", "--in", "evening", "--cpus", "0.5", "--no-ship", "sh", "-c", "echo $GRID_NODE")
    assert done.returncode == 0
    (row,) = grid.json("hold", "list")["holds"]
    assert (row["name"], row["node"], row["state"]) == ("evening", done.stdout.strip(), "running")
    assert row["expires"] > row["started"]
    table = grid.run("hold", "list").stdout
    assert "evening" in table and "0.5 cpu of that is free" in table


def test_a_directory_is_shipped_with_a_job_that_runs_in_a_hold(grid: Grid) -> None:
    (grid.here / "train.py").write_text("print('trained')\n")
    assert grid.run("hold", "request", "--cpus", "0.5", "--name", "shipped").returncode == 0
    done = grid.run("run-shared", "--in", "shipped", "--cpus", "0.5", sys.executable, "train.py")
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


def test_who_waits_for_room_says_so_and_ends_with_the_hold(grid: Grid) -> None:
    hold = grid.run("hold", "request", "-t", "cpu", "-a", "0.5").stdout.strip()
    grid.run("run-shared", "-d", "--in", hold, "--cpus", "0.5", "--no-ship", "sleep", "60")
    waits = grid.run("run-shared", "-d", "--in", hold, "--cpus", "0.5", "--no-ship", "true").stdout.strip()
    assert f"Hold: 0.5 cpu needed, 0 cpu free in its hold {hold}" in grid.run("why", waits).stdout
    assert grid.run("hold", "release", hold).returncode == 0
    assert grid.run("job", "wait", waits).returncode == 75
    assert grid.run("hold", "list").stdout == "no holds\n"
    assert "has ended" in grid.run("run-shared", "--in", hold, "--no-ship", "true").stderr


def test_a_hold_keeps_its_name_when_a_newer_job_or_hold_of_that_name_has_ended(grid: Grid) -> None:
    hold = grid.run("hold", "request", "--cpus", "0.5", "--name", "evening").stdout.strip()
    newer = grid.run("hold", "request", "--cpus", "0.1", "--name", "evening").stdout.strip()
    inside = ("run-shared", "--in", "evening", "--cpus", "0.1", "--name", "evening", "--no-ship", "true")
    for released, left in ((newer, [hold]), (hold, [])):
        assert grid.run(*inside).returncode == 0
        assert grid.run("hold", "release", "evening").stderr == f"grid: {released}: released\n"
        until(partial(holds_are, grid, left), "one is released")


def holds_are(grid: Grid, names: list[str]) -> bool:
    """Whether these are the holds that live."""
    return [row["id"] for row in grid.json("hold", "list")["holds"]] == names


def test_a_hold_expires_by_itself(grid: Grid) -> None:
    hold = grid.run("hold", "request", "--cpus", "0.5", "--time", "1").stdout.strip()
    assert grid.run("job", "wait", hold).returncode == 124
    assert "was ended at its time limit of 1.0s" in grid.run("why", hold).stdout


def test_more_than_there_is_now_is_refused_and_with_wait_it_waits(grid: Grid) -> None:
    cores = len(grid.json("nodes")["nodes"][0]["cores"])
    assert grid.run("hold", "request", "--cpus", str(cores)).returncode == 0
    done = grid.run("hold", "request", "--cpus", str(cores))
    assert done.returncode == 1 and done.stderr.startswith("error: No nodes have sufficient available resources")
    done = grid.run("hold", "request", "--cpus", "9999")
    assert done.returncode == 1 and "asks 9999 cpu" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("run-shared", "--in", "nowhere", "--no-ship", "true"), "no hold 'nowhere'"),
        (("run-shared", "--in", "", "--no-ship", "true"), "--in names no hold"),
        (("run-shared", "--in", "last", "--nodes", "2", "--no-ship", "true"), "a gang cannot run in a hold"),
        (("hold", "release", "nowhere"), "no hold 'nowhere'\n  try: grid hold list"),
        (("hold", "request", "-a", "2"), "--amount 2 of what?"),
        (("hold", "request", "--cpus", "1", "--time", "soon"), "soon"),
    ],
)
def test_what_makes_no_sense_is_said(grid: Grid, words: tuple[str, ...], text: str) -> None:
    grid.run("hold", "request", "--cpus", "0.5")
    done = grid.run(*words)
    assert done.returncode in (1, 2, 125) and text in done.stderr


def test_a_job_is_not_released_as_a_hold_and_last_is_the_newest_hold(grid: Grid) -> None:
    hold = grid.run("hold", "request", "--cpus", "0.5").stdout.strip()
    job = grid.run("run-shared", "-d", "--in", hold, "--cpus", "0.1", "--no-ship", "sleep", "60").stdout.strip()
    done = grid.run("hold", "release", job)
    assert done.returncode == 2 and f"{job} is no hold" in done.stderr
    assert grid.run("hold", "release", "last").returncode == 0
    assert [row["id"] for row in grid.json("jobs")["jobs"]] == [job]
