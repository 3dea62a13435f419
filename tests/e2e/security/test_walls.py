"""Whose jobs nodes run, seen from outside: n1 has no walls and trusts its owner, n2 has none and trusts everyone."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.client.session import RequestRefused
from distributed_grid.protocol.jobs import State
from tests.grid_fixture import Grid, running_grid, until

VIRTUAL = ("--virtual", "--cores", "0-1", "--walls", "none", "--owner", "ann")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    flags = [VIRTUAL, (*VIRTUAL, "--trust", "everyone")]
    with running_grid(tmp_path_factory.mktemp("grid"), agents=2, flags=flags) as made:
        yield made


async def where(client: GridClient, **asked: Any) -> str:
    """The node on which a job of this client ran."""
    view = await client.wait(await client.submit("true", **asked))
    assert view.state is State.ENDED and view.walls == "none"
    return view.node


async def test_a_stranger_runs_on_the_node_that_trusts_everyone_alone(grid: Grid) -> None:
    async with GridClient(grid.url, user="eve") as eve:
        assert {await where(eve) for _ in range(4)} == {"n2"}
        with pytest.raises(RequestRefused) as refused:
            await eve.submit("true", only=["n1"])
    assert refused.value.why == "n1 runs jobs of its owners only (ann), as its walls are none"
    assert "agent.trust: everyone on n1" in refused.value.hint


async def test_the_owner_runs_on_both(grid: Grid) -> None:
    async with GridClient(grid.url, user="ann") as ann:
        assert await where(ann, only=["n1"]) == "n1"
        assert await where(ann, only=["n2"]) == "n2"


async def test_a_full_grid_has_a_stranger_wait_beside_an_idle_node_of_another(grid: Grid) -> None:
    async with GridClient(grid.url, user="eve") as eve:
        held = [await eve.submit(["sleep", "600"]) for _ in range(2)]
        for job in held:
            await until_running(eve, job)
        waits = await eve.submit("true")
        view = await eve.show(waits)
        assert (view.state, view.node) == (State.WAITING, "")
        await eve.cancel(*held)
        assert (await eve.wait(waits)).node == "n2"


async def until_running(client: GridClient, job: str) -> None:
    async for view in client.follow(job):
        if view.state is State.RUNNING:
            return


def test_walls_are_shown_wherever_nodes_and_jobs_are(grid: Grid) -> None:
    table = grid.run("nodes").stdout
    assert "WALLS" in table and "none, owners" in table and "none, everyone" in table
    told = grid.run("-v", "nodes").stderr
    assert "walls are none on n1: " in told and "jobs run there of its owners only: ann" in told
    one, two = grid.json("nodes")["nodes"]
    assert (one["walls"], one["owners"], one["trusts"]) == ("none", ["ann"], "owner")
    assert two["trusts"] == "everyone" and one["walls_why"]
    done = grid.shared("true")
    assert done.returncode == 0, done.stderr
    job = grid.job()
    assert job["walls"] == "none" and "started on n2, walls none" in [event["text"] for event in job["events"]]
    told = grid.run("agent", "status", "--state-dir", str(grid.home / "n1")).stdout
    assert "walls      none" in told and "jobs of its owners only: ann" in told
    seen = grid.run("agent", "detect", "--walls", "none", "--owner", "ann").stdout
    assert "walls     none" in seen and "its owners only: ann" in seen


def test_a_level_that_no_node_has_is_refused_and_a_dry_run_says_so(grid: Grid) -> None:
    refused = grid.shared("--walls", "user", "true")
    assert refused.returncode == 125 and "asks for a node with walls user; there is none" in refused.stderr
    dry = grid.shared("--dry-run", "--walls", "user", "true")
    assert "with walls user" in dry.stdout + dry.stderr
    wrong = grid.shared("--walls", "namespaces", "true")
    assert wrong.returncode == 2 and "did you mean namespace?" in wrong.stderr


def test_a_file_of_jobs_asks_for_walls(grid: Grid) -> None:
    path = grid.here / "jobs.yaml"
    path.write_text("jobs:\n  - command: ['true']\n    walls: user\n    no_ship: true\n")
    refused = grid.run("submit", "-f", str(path))
    assert refused.returncode == 1 and "asks for a node with walls user" in refused.stderr


def test_an_agent_does_not_start_without_the_walls_that_are_named(grid: Grid) -> None:
    walls = "namespace" if os.geteuid() == 0 else "user"  # namespaces are no walls for root; other users take root
    grid.start_agent("n3", "--virtual", "--cores", "0", "--walls", walls)
    code = grid.processes["n3"].wait(30)
    del grid.processes["n3"]
    said = grid.log("n3")
    assert code == 1 and f"jobs cannot be run behind walls {walls} here (agent.walls)" in said
    assert "Traceback" not in said
    until(lambda: len(grid.json("nodes")["nodes"]) == 2, "the other nodes are there alone")
