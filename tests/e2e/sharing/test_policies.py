"""Mode and policy from outside: what is configured, what operators order, what is refused, and that it replays."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import CONFIG, Grid, running_grid, until

RULES = CONFIG.replace("resource_sharing:\n", "resource_sharing:\n  mode: share_and_offload\n  policy: conservative\n")


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    with running_grid(tmp_path, flags=(("--cores", "0-3", "--virtual"),), config=RULES) as running:
        yield running


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A coordinator without a node."""
    with running_grid(Path(tmp_path_factory.mktemp("e", numbered=True)), agents=0, config=RULES) as running:
        yield running


def rules(policy: str, threshold: str) -> str:
    return RULES.replace("conservative", policy).replace("  thresholds:\n", f"  thresholds:\n    {threshold}\n")


def in_effect(grid: Grid) -> tuple[str, str]:
    said = grid.json("policy", "show")
    return said["mode"], said["policy"]


def audited(grid: Grid, event: str) -> list[dict[str, Any]]:
    lines = (grid.home / "coordinator" / "audit.log").read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line)).get("event") == event]


def test_an_order_holds_over_a_restart_is_audited_and_replays(grid: Grid) -> None:
    assert in_effect(grid) == ("share_and_offload", "conservative")
    done = grid.run("policy", "set", "aggressive", "--mode", "offload_only")
    assert done.returncode == 0 and "policy aggressive, mode offload_only" in done.stderr
    refused = grid.run("boost", "request", "n1", "cpu", "1")
    assert refused.returncode and "boosts are refused in this grid" in refused.stderr
    assert "grid policy set --mode share_and_offload" in refused.stderr and "Traceback" not in refused.stderr
    assert grid.shared("true").returncode == 0, "jobs run"
    grid.kill("coordinator")
    grid.start_coordinator()
    until(lambda: in_effect(grid) == ("offload_only", "aggressive"), "the order is there again")
    (line,) = audited(grid, "set-balancing")
    assert (line["policy"], line["mode"], line["result"]) == ("aggressive", "offload_only", "accepted")
    assert grid.run("policy", "set", "--unset").returncode == 0
    assert in_effect(grid) == ("share_and_offload", "conservative")
    grid.kill("coordinator", signal.SIGTERM)
    replayed = grid.run("replay", str(grid.home / "coordinator"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    other = grid.run(
        "replay", str(grid.home / "coordinator"), "--set", "policy=aggressive", "--set", "mode=offload_only"
    )
    assert other.returncode == 0, other.stdout + other.stderr


def test_a_reload_takes_effect_at_once_and_a_bad_change_changes_nothing(grid: Grid) -> None:
    file = grid.home / "grid.yaml"
    file.write_text(rules("balanced", "excess_threshold: 0.5"))
    done = grid.run("coordinator", "reload")
    assert "changed: resource_sharing: excess_threshold, resource_sharing: policy" in done.stderr, done.stderr
    until(lambda: grid.json("policy", "show")["values"]["headroom"] == 0.5, "it counts")
    file.write_text(rules("aggressive", "cpu_pressure_low: 0.7"))
    done = grid.run("coordinator", "reload")
    assert done.returncode == 1 and "cpu_pressure_low (0.7) is not 0.2 or more below high (0.8)" in done.stderr
    assert in_effect(grid) == ("share_and_offload", "balanced")


def test_without_ray_the_status_says_so_and_shows_the_pressure_of_the_nodes(grid: Grid) -> None:
    said = grid.json("resource-sharing", "status")
    assert (said["ray"], said["last"], said["mode"]) == (None, None, "share_and_offload")
    until(lambda: grid.json("resource-sharing", "status")["nodes"][0]["owner"], "n1 was measured")
    (node,) = grid.json("resource-sharing", "status")["nodes"]
    assert node["node"] == "n1" and 0 <= node["owner"]["score"] <= 1
    text = grid.run("resource-sharing", "status").stdout
    assert "this coordinator knows of no Ray cluster" in text and "NODES" in text
    asked = grid.run("boost", "suggest")
    assert (asked.returncode, asked.stdout) == (0, "no moves\n"), asked.stderr
    assert "there is nothing to lend to: this coordinator knows of no Ray cluster (set ray.address" in asked.stderr
    told = grid.json("boost", "suggest")
    assert told["moves"] == [] and "knows of no Ray cluster" in told["trouble"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resource-sharing", "status"), "none yet"),
        (("trends",), "no node is known yet"),
        (("top",), "no node is known yet"),
        (("cluster", "summary"), "none is known yet"),
        (("ledger",), "no node has an owner"),
        (("shared-status",), "no node is known yet"),
    ],
    ids=" ".join,
)
def test_a_grid_without_a_node_answers_that_there_is_none(empty: Grid, words: tuple[str, ...], said: str) -> None:
    done = empty.run(*words)
    assert done.returncode == 0 and said in done.stdout and not done.stderr
    assert empty.json(*words)["schema"] == 1


@pytest.mark.parametrize("words", [("trends", "n1"), ("node", "forecast", "n1")], ids=" ".join)
def test_a_node_that_there_is_not_is_an_error_that_says_so(empty: Grid, words: tuple[str, ...]) -> None:
    done = empty.run(*words)
    assert done.returncode == 1 and "unknown node 'n1'" in done.stderr and "there is none yet" in done.stderr
