"""A boost that fails on its source before it has joined goes to another one, in a real Ray cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.scene import Cluster, a_cluster

pytestmark = [pytest.mark.long_ray, pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]
NO_PORTS = {"GRID_AGENT__RAY_PORTS": "30000-30010", "GRID_AGENT__CORES": "0-3", "GRID_AGENT__VIRTUAL": "true"}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One with a second source, lab2, which has too few ports for any raylet."""
    with a_cluster(Path(tmp_path_factory.mktemp("f", numbered=True))) as made:
        token = made.master.run("token", "create", "--node", "lab2")
        state = str(made.node.home / "lab2")
        joined = made.node.run("agent", "join", "-", "--state-dir", state, input=token.stdout)
        assert joined.returncode == 0, joined.stderr
        made.node.start_agent("lab2", environment=NO_PORTS)
        made.master.await_offers(2)
        yield made


def test_it_is_lent_by_another_and_the_failing_source_is_left_alone_until_somebody_names_it(failing: Cluster) -> None:
    first = failing.boost("cpu", "1", "--source", "lab2")
    job = failing.master.job(first)
    assert (job["state"], job["node"], job["attempt"]) == ("running", "lab1", 2)
    assert "lab2 did not join: no 42 ports" in failing.master.run("job", "events", first).stdout
    second = failing.boost("cpu", "1", "--source", "lab2")
    assert failing.master.job(second)["attempt"] == 1, "lab2 is not tried again"
    both = failing.master.run("boost", "request", "gpu-master", "cpu", "1")
    assert both.returncode == 1 and "lab1 has 0 cpu free; lab2 did not join: no 42 ports" in both.stderr, both.stderr
    named = failing.master.run("boost", "request", "gpu-master", "cpu", "1", "--only-source", "lab2")
    assert named.returncode == 1 and "was not lent" in named.stderr and "ray_ports" in named.stderr, named.stderr
    failing.release(first)
    failing.release(second)
