"""Machines of a pool end to end, where others run them: as jobs of a real Slurm, and as real containers. What fits
nowhere gets one, runs there, and the machine goes when it is idle.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.coordinator.providers import podman_engine, slurm_cluster
from tests.grid_fixture import CONFIG, Grid, founded_grid, until

POOL = """
pools:
  - {{name: far, provider: {provider}, cpus: 2, memory: 256M, max: 2, idle: 4, boot: 2, join_within: 120, life: 1h,
     abandoned_after: 60, options: {{trust: everyone}}}}
providers: {providers}
scaling: {{mode: act, look: 2, orphan_after: 5}}
"""


@contextmanager
def far_grid(home: Path, provider: str, providers: str) -> Iterator[Grid]:
    with founded_grid(home, CONFIG + POOL.format(provider=provider, providers=providers)) as grid:
        yield grid


def run_there(grid: Grid, log: str = "") -> str:
    """Run a job on a machine of the pool; what it says."""
    done = grid.shared("sh", "-c", "cat /proc/self/cgroup; echo it ran; sleep 1", timeout=120)
    said = done.stderr + grid.log("coordinator") + log
    assert done.returncode == 0 and "it ran" in done.stdout, said
    return done.stdout


def gone(grid: Grid) -> None:
    """The machine is over, and has run a job."""
    over = until(lambda: grid.json("scale", "history")["machines"], f"it is gone{grid.log('coordinator')}", 90)
    assert [(one["pool"], one["state"], one["ran"]) for one in over] == [("far", "gone", True)]
    until(lambda: not grid.json("nodes")["nodes"], "its node is forgotten")


@pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())
def test_a_job_that_fits_nowhere_runs_on_a_machine_that_is_a_job_of_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slurm_cluster.slurm_cluster() as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        with far_grid(tmp_path, "slurm", f"{{slurm: {{partition: p1, directory: {cluster.home}}}}}") as grid:
            run_there(grid, cluster.log())
            (name,) = [node["name"] for node in grid.json("nodes")["nodes"]]
            assert [job[1:] for job in cluster.jobs()] == [[name, "RUNNING"]]
            gone(grid)
            until(lambda: not cluster.jobs(), "its job is over")
            assert not list(cluster.home.glob(f"*-{name}-*")), "nothing is left on its node"


def test_a_job_that_fits_nowhere_runs_in_a_container(tmp_path: Path) -> None:
    pytest.importorskip("docker", reason="needs the package docker")
    if why := podman_engine.missing():
        pytest.skip(why)
    with podman_engine.podman_engine() as engine:
        bound = ", ".join(podman_engine.bound())
        told = f"socket: {engine.socket}, image: {podman_engine.IMAGE}, python: {sys.executable}, volumes: [{bound}]"
        with far_grid(tmp_path, "docker_local", f"{{docker_local: {{{told}}}}}") as grid:
            assert "libpod" in run_there(grid)
            (name,) = [node["name"] for node in grid.json("nodes")["nodes"]]
            assert engine.containers() == [name]
            gone(grid)
            until(lambda: not engine.run("ps", "-a", "-q").stdout, "its container is removed")
