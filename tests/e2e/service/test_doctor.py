"""`grid doctor`: what is right is said to be so, what is broken is found, with its remedy. Real processes."""

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent import diagnostics as agent_doctoring
from distributed_grid.cli.services import doctor
from distributed_grid.coordinator import diagnostics as coordinator_doctoring
from distributed_grid.runtime import health
from distributed_grid.runtime.health import Finding, Level
from tests.grid_fixture import Grid, founded_grid, reserved_port


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A founded grid with one node, which both are here."""
    with founded_grid(tmp_path_factory.mktemp("doctor")) as made:
        token = made.run("token", "create", "--node", "lab1").stdout.strip()
        joined = made.run("agent", "join", token, "--name", "lab1", "--state-dir", str(made.home / "lab1"))
        assert joined.returncode == 0, joined.stderr
        made.start_agent("lab1")
        made.await_offers(1)
        yield made


def examined(grid: Grid, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by what they are of."""
    places = ("--state-dir", str(grid.home / "coordinator"), "--agent-state-dir", str(grid.home / "lab1"))
    done = grid.run("doctor", "--json", *places, *words)
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    assert told["errors"] == sum(one["level"] == "error" for one in told["findings"])
    return done.returncode, {one["check"]: one for one in told["findings"]}


def test_where_all_is_well_both_connections_and_all_certificates_are_told(grid: Grid) -> None:
    code, found = examined(grid)
    bad = [one for one in found.values() if one["level"] == "error"]
    assert (code, bad) == (0, [])
    for check in ("python", "grid", "ray", "gpus", "cgroup", "psi", "agent's disk", "coordinator's disk", "clock"):
        assert found[check]["what"], check
    for check in ("control connection", "data connection"):
        assert "opened in" in found[check]["what"] and "a round trip takes" in found[check]["what"]
    assert "takes this node's identity" in found["agent's way"]["what"]
    for check in ("agent's identity", "coordinator's identity", "authority"):
        assert found[check]["level"] == "ok" and "more days" in found[check]["what"], found[check]
    assert found["clock skew"]["level"] == "ok"
    assert found["nodes"]["what"] == "1 of 1 node is up"
    text = grid.run("doctor", "--agent-state-dir", str(grid.home / "lab1"))
    assert text.returncode == 0 and f"it runs as process {grid.processes['lab1'].pid}" in text.stdout


def test_a_key_that_others_can_read_is_an_error_with_one_command(grid: Grid) -> None:
    key = grid.home / "lab1" / "identity" / "own.key"
    key.chmod(0o644)
    try:
        code, found = examined(grid)
    finally:
        key.chmod(0o600)
    assert (code, found["agent's identity"]["level"]) == (1, "error")
    assert found["agent's identity"]["remedy"].startswith(f"chmod 600 {key}")


def test_a_node_whose_access_was_taken_back_is_told_so(grid: Grid) -> None:
    token = grid.run("token", "create", "--node", "lab9").stdout.strip()
    assert grid.run("agent", "join", token, "--state-dir", str(grid.home / "lab9")).returncode == 0
    assert grid.run("access", "revoke", "agent", "lab9").returncode == 0
    code, found = examined(grid, "--agent-state-dir", str(grid.home / "lab9"))
    way = found["agent's way"]
    assert (code, way["level"]) == (1, "error")
    assert way["why"] == "the certificate of agent lab9 was taken back" and "grid agent join" in way["remedy"]


def test_with_no_coordinator_that_is_a_finding_and_all_else_is_looked_at(grid: Grid) -> None:
    with reserved_port() as nobody:
        url = f"ws://127.0.0.1:{nobody.getsockname()[1]}"
        code, found = examined(grid, "--coordinator", url)
    assert (code, found["control connection"]["level"]) == (1, "error")
    assert url in found["control connection"]["what"] and found["control connection"]["remedy"]
    assert found["agent"]["level"] == "ok" and found["coordinator"]["level"] == "ok" and "nodes" not in found


def test_who_only_submits_hears_nothing_of_services(grid: Grid, tmp_path: Path) -> None:
    done = grid.run("doctor", "--json", "--state-dir", str(tmp_path / "c"), "--agent-state-dir", str(tmp_path / "a"))
    checks = {one["check"] for one in json.loads(done.stdout)["findings"]}
    assert done.returncode == 0
    assert "your identity" in checks and not checks & {"agent", "coordinator", "authority", "agent's identity"}


def test_a_configuration_with_a_mistake_is_a_finding(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("coordinater:\n  port: 1\n")
    done = grid.run("-c", str(tmp_path / "bad.yaml"), "doctor", "-o", "json")
    found = json.loads(done.stdout)["findings"][-1]
    assert (done.returncode, found["check"], found["level"]) == (1, "configuration", "error")
    assert "did you mean 'coordinator'?" in found["remedy"]


# --- what is wrong, one by one ----------------------------------------------------------------------------------------


def test_services_that_do_not_run_and_a_port_that_is_taken_are_errors(grid: Grid, tmp_path: Path) -> None:
    shutil.copytree(grid.home / "lab1" / "identity", tmp_path / "a" / "identity")
    (tmp_path / "c" / "pki").mkdir(parents=True)
    settings = agent_doctoring.WallSettings(tmp_path / "a")
    found = {one.check: one for one in agent_doctoring.run_checks(settings, "none", "none")}
    assert found["agent"].level is Level.ERROR and "grid agent run" in found["agent"].remedy
    if os.geteuid() == 0:
        assert found["walls"].level is Level.WARNING and "walls none" in found["walls"].what
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = {one.check: one for one in coordinator_doctoring.run_checks(tmp_path / "c", "127.0.0.1", port)}
    assert (found["coordinator"].level, found["port"].level) == (Level.ERROR, Level.ERROR)
    assert f":{port}" in found["port"].remedy


def test_a_certificate_is_told_of_before_and_after_it_expired(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now = grid.home / "lab1" / "identity", time.time()
    levels = []
    for days in (-1, 0, 6.9, 8):
        monkeypatch.setattr(time, "time", lambda days=days: now + days * health.DAY)
        levels.append(health.certificate("x", folder, "join again").level)
    assert levels == [Level.ERROR, Level.OK, Level.WARNING, Level.ERROR]


@pytest.mark.parametrize(
    ("ahead", "doubt", "level"),
    [
        (0.3, 0.1, Level.OK),
        (-1.9, 0.0, Level.OK),
        (2.4, 0.5, Level.OK),
        (-5.0, 0.1, Level.WARNING),
        (90.0, 0.1, Level.ERROR),
    ],
)
def test_clocks_that_are_apart_are_told_of_but_not_for_what_may_be_the_network(
    ahead: float, doubt: float, level: Level
) -> None:
    found = doctor._clock_finding(ahead, doubt)
    assert found.level is level and ("ahead of" if ahead > 0 else "behind") in found.what


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = os.statvfs(tmp_path)
    levels = []
    for free in (50 << 20, 500 << 20, 50 << 30):
        fake = os.statvfs_result((4096, 4096, 1 << 30, 0, free // 4096, *seen[5:]))
        monkeypatch.setattr(os, "statvfs", lambda _, fake=fake: fake)
        levels.append(health.disk("disk", tmp_path / "not" / "there").level)
    assert levels == [Level.ERROR, Level.WARNING, Level.OK]
    assert isinstance(health.clock(), Finding)
