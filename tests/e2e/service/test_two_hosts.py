"""Two hosts with addresses of their own: one becomes a node of the other's grid by an invitation, and runs its jobs."""

import json
from pathlib import Path

import pytest

from tests.network import MASTER, NODE, two_hosts


@pytest.mark.netns
def test_a_host_becomes_a_node_of_anothers_grid_by_an_invitation_alone_and_runs_its_job(tmp_path: Path) -> None:
    with two_hosts(tmp_path) as (master, node):
        one = json.loads(master.run("nodes", "-o", "json").stdout)["nodes"][0]
        assert (one["name"], one["labels"]) == ("lab1", {"rack": "2"})
        job = "ip -4 -o addr show eth0; echo $GRID_NODE; exit 3"
        done = master.run("run-shared", "--no-ship", "sh", "-c", job)
        assert done.returncode == 3, done.stderr
        assert NODE in done.stdout and done.stdout.endswith("lab1\n")

        plain = node.run("status", "--coordinator", f"ws://{MASTER}:7433")
        assert plain.returncode == 1 and "use wss://" in plain.stderr
        nobody = node.run("status", "--coordinator", master.url)
        assert nobody.returncode == 1 and "grid login" in nobody.stderr
        assert "what it says is not TLS" in (master.home / "coordinator.log").read_text()
