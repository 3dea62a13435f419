"""One configuration on the master: it counts on the nodes at once, a node's own may only lend less, and every value in
effect says where it comes from."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import CONFIG, Grid, running_grid, until


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    """Two nodes with four virtual cores each."""
    flags = ("--cores", "0-3", "--virtual")
    with running_grid(tmp_path, agents=2, flags=(flags, flags)) as running:
        yield running


def reload(grid: Grid, more: str) -> str:
    """Write this under CONFIG, and have it read; what came of it."""
    (grid.home / "grid.yaml").write_text(CONFIG + more)
    done = grid.run("coordinator", "reload")
    assert done.returncode == 0, done.stderr
    return done.stderr


def in_effect(grid: Grid, node: str) -> dict[str, tuple[Any, str]]:
    rows = grid.json("config", "show", "--node", node)["settings"]
    return {row["name"]: (row["value"], row["origin"]) for row in rows}


def cores(grid: Grid) -> dict[str, float]:
    return {node["name"]: node["offered"]["cpu"] for node in grid.json("nodes")["nodes"]}


def test_a_node_that_the_master_takes_out_of_sharing_lends_nothing_from_then_on(grid: Grid) -> None:
    said = reload(grid, "nodes:\n- name: n1\n  resource_sharing: {can_share: false}\n- name: n11\n")
    assert "changed: nodes[n1]: can_share" in said and "the grid has no node n11" in said
    until(lambda: cores(grid) == {"n1": 0, "n2": 4}, "n1 lends nothing")
    line = 1 + (CONFIG + "nodes:\n- name: n1").count("\n")
    where = f"grid, nodes[n1]: {grid.home}/grid.yaml:{line + 1}"
    assert in_effect(grid, "n1")["can_share"] == (False, where)
    assert in_effect(grid, "n2")["can_share"] == (True, "default")
    ran = [grid.shared("sh", "-c", "echo $GRID_NODE").stdout for _ in range(2)]
    assert ran == ["n2\n", "n2\n"]
    refused = grid.shared("--only", "n1", "--immediate", "true")
    assert refused.returncode in (75, 125)
    withheld = {node["name"]: node["withheld"] for node in grid.json("nodes")["nodes"]}["n1"]
    assert [one["why"] for one in withheld] == [f"shares nothing (can_share is false: {where})"]
    doctor = grid.run("-c", str(grid.home / "grid.yaml"), "doctor")
    assert "the grid has no node n11" in doctor.stdout and "the grid has no node n1\n" not in doctor.stdout
    assert "nothing has changed" not in reload(grid, "")
    until(lambda: cores(grid)["n1"] == 4, "n1 lends again")


def test_with_sharing_off_on_the_master_everything_is_refused_until_it_is_on_again(grid: Grid) -> None:
    off = CONFIG.replace("resource_sharing:\n", "resource_sharing:\n  enabled: false\n")
    (grid.home / "grid.yaml").write_text(off)
    assert "changed: resource_sharing: enabled" in grid.run("coordinator", "reload").stderr
    until(lambda: cores(grid) == {"n1": 0, "n2": 0}, "nobody offers anything")
    for words in (("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "true"), ("boost", "request", "n1", "cpu", "1")):
        refused = grid.run(*words)
        assert refused.returncode and "error: Resource sharing not enabled" in refused.stderr, refused.stderr
        assert f"{grid.home}/grid.yaml:3" in refused.stderr and "grid coordinator reload" in refused.stderr
    assert "changed: resource_sharing: enabled" in reload(grid, "")
    until(lambda: cores(grid) == {"n1": 4, "n2": 4}, "they offer again")
    assert grid.shared("true").returncode == 0


@pytest.mark.parametrize("words", [("run-shared", "--no-ship", "true"), ("boost", "request", "n1", "cpu", "1")])
def test_a_clients_own_environment_is_enough_to_refuse(tmp_path: Path, words: tuple[str, ...]) -> None:
    grid = Grid(tmp_path)
    grid.environment |= {"GRID_RESOURCE_SHARING__ENABLED": "false", "GRID_COORDINATOR": "ws://127.0.0.1:9"}
    refused = grid.run(*words)
    assert refused.returncode and refused.stderr.startswith("error: Resource sharing not enabled\n"), refused.stderr
    assert "env GRID_RESOURCE_SHARING__ENABLED" in refused.stderr


def test_an_order_stands_over_the_file_over_restarts_and_a_nodes_own_word_below_both(grid: Grid) -> None:
    grid.kill("n2")
    grid.start_agent("n2", "--cores", "0-3", "--virtual", environment={"GRID_RESOURCE_SHARING__OWNER_POLICY": "recall"})
    reload(grid, "nodes:\n- name: n1\n  resource_sharing: {max_share_cpu: 1}\n")
    until(lambda: cores(grid)["n1"] == 1, "the file counts")
    done = grid.run("node", "set", "n1", "n2", "--cores", "2", "--memory", "1G", "--share")
    assert (done.returncode, done.stderr) == (0, "grid: n1, n2 are to lend as ordered\n")
    until(lambda: cores(grid) == {"n1": 2, "n2": 2}, "the order counts")
    found = in_effect(grid, "n2")
    assert found["owner_policy"] == ("recall", "node: env GRID_RESOURCE_SHARING__OWNER_POLICY")
    assert found["max_share_cpu"][0] == 2 and found["max_share_cpu"][1].startswith("order of ")
    grid.kill("coordinator")
    grid.kill("n1")
    grid.start_coordinator()
    away = grid.run("config", "show", "--node", "n1")
    assert "n1 is not connected" in away.stderr and "order of " in away.stdout
    (grid.home / "grid.yaml").write_text(CONFIG)  # which is also what the agent's own machine says
    grid.start_agent("n1", "--cores", "0-3", "--virtual")
    until(lambda: cores(grid)["n1"] == 2, "the order counts over a restart of both")
    (n1, _) = grid.json("nodes")["nodes"]
    assert n1["set"]["max_share_cpu"] == 2 and n1["set"]["can_share"] is True
    grid.run("node", "set", "n1", "--unset", "cores", "--unset", "share", "--unset", "memory")
    until(lambda: cores(grid)["n1"] == 1, "the file counts again")


def test_a_replay_decides_the_same_though_settings_changed_meanwhile(grid: Grid) -> None:
    wide = ("run-shared", "--no-ship", "--only", "n1", "-t", "cpu", "-a", "4")
    assert grid.run(*wide, "true").returncode == 0
    reload(grid, "nodes:\n- name: n1\n  resource_sharing: {max_share_cpu: 2, priority: 3}\n")
    until(lambda: cores(grid)["n1"] == 2, "the file counts")
    refused = grid.run(*wide, "true")
    assert refused.returncode == 125 and "n1" in refused.stderr
    assert grid.run("node", "set", "n1", "--cores", "4").returncode == 0
    until(lambda: cores(grid)["n1"] == 4, "the order counts")
    assert grid.run(*wide, "true").returncode == 0
    grid.kill("coordinator", signal.SIGTERM)
    replayed = grid.run("replay", str(grid.home / "coordinator"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_file_with_a_mistake_changes_nothing_and_says_where(grid: Grid) -> None:
    (grid.home / "grid.yaml").write_text(CONFIG + "nodes:\n- name: n1\n  resource_sharing: {can_shrae: false}\n")
    done = grid.run("coordinator", "reload")
    assert done.returncode == 1 and "can_shrae" in done.stderr and "did you mean 'can_share'?" in done.stderr
    assert cores(grid) == {"n1": 4, "n2": 4}


def test_a_check_names_the_nodes_that_it_cannot_know(tmp_path: Path) -> None:
    grid = Grid(tmp_path, "resource_sharing: {mode: offload_only}\nnodes: [{name: lba1}]\n")
    done = grid.run("config", "check", str(grid.home / "grid.yaml"))
    assert done.returncode == 0
    assert "grid doctor" in done.stderr and "lba1" in done.stderr
    shown = json.loads(grid.run("-o", "json", "config", "show", "-c", str(grid.home / "grid.yaml")).stdout)
    assert {row["name"]: row["value"] for row in shown["settings"]}["resource_sharing.mode"] == "offload_only"
