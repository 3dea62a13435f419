"""A real Ray cluster gets what it waits for by itself, and its lender has it back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import until
from tests.ray.scene import Cluster, a_balancing_cluster

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(420)]

FOUR = """
@ray.remote(num_cpus=4)
def where():
    import os, time
    time.sleep(15)
    return os.environ.get("GRID_ALLOCATION_ID", "")
print(ray.get(where.remote(), timeout=300))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with a_balancing_cluster(tmp_path) as made:
        yield made


def last_pass(cluster: Cluster) -> Any:
    return cluster.master.json("resource-sharing", "status")["last"]


def test_a_program_that_waits_for_four_cores_gets_them_by_itself_and_they_go_back(cluster: Cluster) -> None:
    program = cluster.begin(FOUR)

    def proposed() -> bool:
        found = last_pass(cluster)
        return bool(found and found["moves"])

    until(proposed, "the grid would lend", 120.0)
    assert not last_pass(cluster)["applied"]
    assert cluster.lent() == [], "it shares on request only"
    suggested = cluster.master.run("boost", "suggest")
    assert "grid boost request gpu-master cpu 4 --only-source lab1" in suggested.stdout, suggested.stdout
    assert cluster.master.run("policy", "set", "--mode", "dynamic_balancing").returncode == 0

    until(lambda: [one["state"] for one in cluster.lent() or []] == ["running"], "it has lent", 120.0)
    (boost,) = cluster.lent() or []
    cluster.kill_bridges()
    cluster.master.kill("coordinator")
    cluster.master.start_coordinator()
    cluster.kill_bridges()
    out, _ = program.communicate(timeout=180)
    assert program.returncode == 0
    assert out.split()[-1] == f"{boost['id']}.1", "the task ran on what was lent"
    assert (boost["node"], boost["boost"]["amount"]) == ("lab1", 4)

    until(lambda: cluster.lent() == [], "the lender has it back", 180.0)
    until(lambda: boost["id"] not in cluster.raylets(), "Ray has seen it end", 60.0)
    history = cluster.master.json("boost", "history")["boosts"]
    assert [one["id"] for one in history] == [boost["id"]], "no boost is lent twice"
    until(lambda: cluster.offered() == 8, "it offers all it has", 60.0)
    audit = (cluster.master.home / "coordinator" / "audit.log").read_text()
    assert audit.count('"event":"rebalance-lend"') == 1 and audit.count('"event":"rebalance-give-back"') == 1
    assert cluster.master.run("replay", str(cluster.master.home / "coordinator")).returncode == 0
