"""`grid cluster status` where there is no Ray, and where there should be one."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.grid_fixture import CONFIG, running_grid


def test_without_ray_it_is_the_nodes_and_no_word_of_ray(tmp_path: Path) -> None:
    with running_grid(tmp_path) as grid:
        nodes, cluster = grid.run("nodes"), grid.run("cluster", "status")
        assert cluster.returncode == 0 and not cluster.stderr
        # Without the spaces: a column is as wide as what is in it, which may have changed.
        assert cluster.stdout.splitlines()[0].split() == nodes.stdout.splitlines()[0].split()
        assert "n1" in cluster.stdout and "Ray" not in cluster.stdout and "\x1b" not in cluster.stdout
        told = grid.json("cluster", "status")
        assert [node["name"] for node in told["nodes"]] == ["n1"] and told["ray"] is None
        assert grid.run("-o", "quiet", "cluster", "status").stdout == "n1\n"
        said = grid.run("boost", "status")
        assert (said.returncode, said.stdout) == (0, "0 active boosts\n")
        assert said.stderr == "grid: this coordinator knows of no Ray cluster (set ray.address there)\n"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which nobody answers."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield closed.getsockname()[1]


def test_where_ray_is_down_one_line_says_so_and_the_nodes_are_there_all_the_same(tmp_path: Path, taken: int) -> None:
    with running_grid(tmp_path, config=CONFIG + f"ray: {{address: '127.0.0.1:{taken}'}}\n") as grid:
        done = grid.run("cluster", "status")
        assert done.returncode == 0 and "n1" in done.stdout
        assert done.stderr.count("\n") == 1
        assert f"grid: what Ray shows is not known: there is no Ray at 127.0.0.1:{taken}" in done.stderr
        told = grid.json("cluster", "status")["ray"]
        assert (told["address"], told["version"], told["nodes"]) == (f"127.0.0.1:{taken}", None, [])
        assert f"there is no Ray at 127.0.0.1:{taken}" in told["trouble"]
