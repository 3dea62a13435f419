"""What an operator orders for nodes, through the command, on a real grid."""

import json
import subprocess
from pathlib import Path

import pytest

from distributed_grid.coordinator.client import GridClient, RequestRefused, describe_job
from distributed_grid.protocol.jobs import Cause, State
from tests.e2e.scenes import Scene, scene
from tests.grid_fixture import running_grid


def grid(on: Scene, *words: str) -> "subprocess.CompletedProcess[str]":
    return on.command(*words)


def nodes(on: Scene) -> dict[str, dict[str, object]]:
    told = json.loads(grid(on, "-o", "json", "nodes").stdout)["nodes"]
    return {node["name"]: node for node in told}


def audited(place: Path) -> list[dict[str, object]]:
    lines = (place / "coordinator" / "audit.log").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"].endswith(("drain-nodes", "label-nodes"))]


async def test_a_drained_node_hands_its_job_on_and_stays_drained_over_restarts() -> None:
    async with scene() as on:
        for name in ("n1", "n2"):
            await on.agent(name, cores=[0, 1], virtual=True)
        async with GridClient(on.url) as client:
            script = 'case $GRID_NODE in n1) sleep 600;; *) echo "done on $GRID_NODE";; esac'
            job = await client.submit(["sh", "-c", script], nodes=["n1"])
            await on.until(lambda: running(client, job), "it runs on n1")
            done = grid(on, "node", "drain", "n1", "--deadline", "0", "--reason", "a new kernel")
            assert (done.returncode, done.stdout) == (0, "")
            assert done.stderr.startswith("grid: n1 is drained; 1 job is still there")
            result = await client.result(job)
            view = await client.show(job)
        assert (result.exit_code, result.stdout) == (0, "done on n2\n")
        assert (view.attempt, view.retried, view.evicted, view.node) == (2, 0, 1, "n2")
        assert any("n1 is drained by" in step.text and "a new kernel" in step.text for step in view.story)
        on.kill("coordinator")
        on.kill("n1")
        await on.coordinator()
        on.again("n1")
        await on.until(lambda: nodes(on)["n1"]["state"] == "up", "n1 is back")
        drained = nodes(on)["n1"]["drained"]
        assert isinstance(drained, dict) and (drained["reason"], drained["empty"]) == ("a new kernel", True)
        assert "drained" in grid(on, "nodes").stdout and "a new kernel" in grid(on, "status").stdout
        async with GridClient(on.url) as client:
            assert [(await client.run(["sh", "-c", "echo $GRID_NODE"])).stdout for _ in range(3)] == ["n2\n"] * 3
            assert await client.undrain("n1") == "n1 is given jobs again"
            await on.until(lambda: on.offers("n1"), "n1 offers")
            (there,) = await client.submit_many([describe_job(["true"], nodes=["n1"])])
            assert (await client.wait(there)).node == "n1"
        assert [line["event"] for line in audited(on.place)] == ["drain-nodes", "undrain-nodes"]


async def running(client: GridClient, job: str) -> bool:
    return (await client.show(job)).state is State.RUNNING


async def test_labels_are_set_on_several_nodes_at_once_or_on_none() -> None:
    async with scene() as on:
        for name in ("n1", "n2"):
            await on.agent(name)
        done = grid(on, "node", "label", "n1", "n2", "room=b", "ssd=yes")
        assert (done.returncode, done.stderr) == (0, "grid: n1, n2 are labelled\n")
        assert nodes(on)["n2"]["labels"] == {"room": "b", "ssd": "yes"}
        refused = grid(on, "node", "label", "n1", "n22", "room=c")
        assert refused.returncode == 1 and "unknown node 'n22'" in refused.stderr and "did you mean" in refused.stderr
        grid(on, "node", "label", "n1", "ssd-")
        assert nodes(on)["n1"]["labels"] == {"room": "b"}
        assert "room=b,ssd=yes" in grid(on, "nodes").stdout
        wrong = grid(on, "node", "label", "n1", "room")
        assert wrong.returncode == 2 and "no label is given" in wrong.stderr
        async with GridClient(on.url) as client:
            with pytest.raises(RequestRefused, match="unknown node"):
                await client.drain("n1", "nowhere")
            assert not any(node.orders.drain for node in await client.nodes())
            job = await client.submit(["sleep", "600"], requeue=False, nodes=["n1"])
            await on.until(lambda: running(client, job), "it runs")
            await client.drain("n1", deadline=0)
            view = await client.wait(job)
            assert view.outcome is not None and view.outcome.cause is Cause.DRAINED


def test_a_node_that_is_gone_is_forgotten_also_where_there_is_no_authority(tmp_path: Path) -> None:
    with running_grid(tmp_path) as grid:
        (name,) = [node["name"] for node in grid.json("nodes")["nodes"]]
        grid.kill(name)
        done = grid.run("node", "remove", name, "--forget")
        assert done.returncode == 0, done.stderr
        assert grid.json("nodes")["nodes"] == []


def test_a_node_whose_agent_stays_connected_is_not_forgotten_and_gets_jobs_as_before(tmp_path: Path) -> None:
    with running_grid(tmp_path) as grid:
        (name,) = [node["name"] for node in grid.json("nodes")["nodes"]]
        done = grid.run("node", "remove", name, "--forget")
        assert done.returncode == 1 and "its agent is connected" in done.stderr, done.stderr
        assert "counts as lost" not in done.stderr
        assert grid.run("run-shared", "--no-ship", "--only", name, "--immediate", "true").returncode == 0
