"""Every word of a request that says how urgent it is and where it may go does so through the command, and the shares
say who is next."""

import re
from collections.abc import Iterator

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.orchestration.resource_sharing import AllocationPriority
from tests.grid_fixture import EVERYONE, Grid, running_grid, until


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    flags = [("--cores", "0,1", "--virtual")] * 2
    with running_grid(tmp_path_factory.mktemp("grid"), agents=2, flags=flags, config=EVERYONE) as made:
        assert made.run("node", "label", "n1", "zone=a").returncode == 0
        yield made


def where(grid: Grid, *options: str) -> str:
    """Run a job with these options, and return its node."""
    done = grid.run("run-shared", "--no-ship", *options, "sh", "-c", "echo $GRID_NODE")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- priorities -------------------------------------------------------------------------------------------------------


def test_the_other_words_for_a_priority_are_taken_wherever_one_is_asked_for(grid: Grid) -> None:
    text = '{"command": "true", "no_ship": true, "priority": "normal"}\n{"command": "true", "priority": "Critical"}\n'
    rows = grid.json("submit", "-f", "-", input=text)["jobs"]
    assert [grid.job(row["id"])["priority"] for row in rows] == ["medium", "urgent"]
    assert where(grid, "--priority", "critical") in ("n1", "n2")
    assert grid.job()["priority"] == "urgent"
    for word, printed in (("critical", "urgent"), ("normal", "medium")):
        done = grid.run("run-shared", "--dry-run", "--priority", word, "true")
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"a request of 1 cpu, {printed}")
    done = grid.run("run-shared", "--no-ship", "--priority", "critcal", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert all(word in done.stderr for word in ("low", "medium (or normal)", "high", "urgent (or critical)"))


async def test_the_classes_of_the_guides_are_the_same(grid: Grid) -> None:
    async with GridClient(grid.url) as client:
        jobs = [await client.submit("true", priority=one) for one in (AllocationPriority.NORMAL, "CRITICAL")]
        assert [(await client.wait(job)).request.priority.word for job in jobs] == ["medium", "urgent"]
    assert [one.name for one in AllocationPriority] == ["LOW", "MEDIUM", "HIGH", "URGENT"]


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "node"),
    [
        (("--only", "n2"), "n2"),
        (("--exclude", "n1"), "n2"),
        (("--label", "zone=a"), "n1"),
        (("--label", "zone!=a"), "n2"),
        (("--label", "zone", "--strategy", "spread"), "n1"),
    ],
)
def test_a_job_runs_where_its_options_say(grid: Grid, options: tuple[str, ...], node: str) -> None:
    assert where(grid, *options) == node


def test_a_job_runs_near_to_another_and_apart_from_it(grid: Grid) -> None:
    done = grid.run("run-shared", "-d", "--no-ship", "--name", "web", "--only", "n1", "sleep", "602")
    until(lambda: grid.job(done.stdout.strip())["state"] == "running", "web runs")
    assert where(grid, "--near", "web") == "n1"
    assert where(grid, "--apart", "web") == "n2"
    refused = grid.run("run-shared", "--no-ship", "--near", "wob", "true")
    assert refused.returncode == 125 and "did you mean web?" in refused.stderr
    assert grid.run("cancel", done.stdout.strip()).returncode == 0
    grid.run("job", "wait", done.stdout.strip())


def test_where_no_node_can_be_meant_the_job_is_refused_with_what_there_is(grid: Grid) -> None:
    for options, code, said in (
        (("--only", "n3"), 125, "unknown node 'n3'"),
        (("--label", "zone=b"), 125, "nodes have zone=a"),
        (("--only", "n1", "--exclude", "n1"), 2, "n1 is asked for and excluded"),
    ):
        done = grid.run("run-shared", "--no-ship", *options, "true")
        assert done.returncode == code and said in done.stderr


# --- shares -----------------------------------------------------------------------------------------------------------


async def test_shares_say_who_holds_how_much_and_who_is_next(grid: Grid) -> None:
    async with GridClient(grid.url, user="ann") as ann, GridClient(grid.url, user="ben") as ben:
        held = [await ann.submit("sleep 603", cpus=2) for _ in range(2)]
        jobs = [*held, await ann.submit("sleep 603"), await ben.submit("sleep 603", priority="normal")]
        until(lambda: all(grid.job(job)["state"] == "running" for job in held), "the grid is full")
        first, second, *_ = grid.json("shares")["users"]
        table, quiet = grid.run("shares").stdout, grid.run("-o", "quiet", "shares").stdout
        await ann.cancel(*jobs)
        for job in jobs:
            await ann.wait(job)
    assert (first["user"], first["position"], first["held"], first["waiting"]) == ("ben", 1, 0.0, {"medium": 1})
    assert (second["user"], second["position"], second["held"], second["running"]) == ("ann", 2, 1.0, 2)
    assert re.search(r"^2 +ann +1\.\d+ +100\.0% .* 4 cpu +2 +1 medium +\S+ +[\d.]+$", table, re.M), table
    assert quiet.startswith("ben 0.0")
