"""A configuration that somebody else put into the current directory names no coordinator for us."""

import os
import select
import socket
import subprocess
from pathlib import Path

import pytest

from tests.grid_fixture import GRID


def grid(here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GRID_", "SUDO_"))}
    environment |= {"XDG_CONFIG_HOME": str(here / "xdg"), "XDG_STATE_HOME": str(here / "state")}
    return subprocess.run([*GRID, *words], cwd=here, env=environment, capture_output=True, text=True, timeout=60)


def test_no_command_speaks_to_the_coordinator_that_a_file_of_others_names(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        path = tmp_path / "grid.yaml"
        path.write_text(f"coordinator: {{url: 'ws://127.0.0.1:{trap.getsockname()[1]}'}}\n")
        path.chmod(0o666)
        for words in (("nodes",), ("run-shared", "true"), ("agent", "run"), ("coordinator", "run"), ("config", "show")):
            done = grid(tmp_path, *words)
            assert done.returncode != 0, words
            assert "error: the configuration ./grid.yaml is not read" in done.stderr, done.stderr
            assert "why: all users can write to it" in done.stderr and "--config grid.yaml" in done.stderr
        assert not select.select([trap], [], [], 0)[0], "nobody came"
        assert not (tmp_path / "state").exists()


def test_ones_own_is_read_and_told_where_that_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("coordinator: {port: 9}\n")
    path.chmod(0o644)
    done = grid(tmp_path, "config", "show")
    assert (done.returncode, done.stderr) == (0, "grid: configuration: ./grid.yaml\n")
    done = grid(tmp_path, "-v", "nodes")
    assert done.stderr.startswith("grid: configuration: ./grid.yaml\nerror: cannot reach the coordinator")
    assert "configuration" not in grid(tmp_path, "nodes").stderr
    path.chmod(0o666)
    assert grid(tmp_path, "-c", "grid.yaml", "config", "check").returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_that_of_another_user_is_refused_with_his_name(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config/my-cluster.yaml"
    path.write_text("coordinator: {port: 9}\n")
    os.chown(path, 12345, -1)
    done = grid(tmp_path, "nodes")
    assert done.returncode == 1
    assert "why: it belongs to the user id 12345" in done.stderr
