"""Boosts that wait for their turn, and that are taken back, in a real Ray cluster."""

import signal
import subprocess

import pytest

from tests.grid_fixture import until
from tests.ray.scene import CORES, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]


def waiting(cluster: Cluster) -> "subprocess.Popen[str]":
    """Who asks for a core that is not there yet."""
    words = ["boost", "request", "gpu-master", "cpu", "1", "--wait"]
    return subprocess.Popen(
        [*cluster.master.command, *words], env=cluster.master.environment, cwd=cluster.master.here,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def states(cluster: Cluster) -> list[str]:
    return sorted(one["state"] for one in cluster.lent() or [])


def test_one_that_waits_is_lent_when_there_is_room_and_one_that_is_interrupted_is_taken_back(cluster: Cluster) -> None:
    first = cluster.boost("cpu", str(len(CORES)))
    left, stays = waiting(cluster), waiting(cluster)
    until(lambda: states(cluster) == ["running", "waiting", "waiting"], "both wait", 60.0)
    left.send_signal(signal.SIGINT)
    left.communicate(timeout=60)
    assert left.returncode == 130
    until(lambda: states(cluster) == ["running", "waiting"], "who was interrupted waits no more", 60.0)
    cluster.release(first)
    out, said = stays.communicate(timeout=90)
    assert stays.returncode == 0, said
    assert states(cluster) == ["running"]
    cluster.adopt(out.strip())


def test_one_whose_source_is_drained_ends_and_says_so(cluster: Cluster, boost: str) -> None:
    assert cluster.master.run("node", "drain", "lab1", "--deadline", "1s").returncode == 0
    try:
        until(lambda: cluster.master.job(boost)["state"] == "ended", "it has ended", 90.0)
        assert "drain" in cluster.master.run("job", "show", boost).stdout
        assert cluster.lent() == []
    finally:
        assert cluster.master.run("node", "undrain", "lab1").returncode == 0
    until(lambda: cluster.offered() == len(CORES), "it offers all it has again", 60.0)
