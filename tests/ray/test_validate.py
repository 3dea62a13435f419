"""The guide's `python scripts/validate_ray_cluster.py`, on a real cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.grid_fixture import until
from tests.ray.scene import Cluster
from tests.ray.test_status import aside

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "validate_ray_cluster.py"
LEFT = "grid-job-j-leftoverabcd"
LEAVES = f"""
from ray.util.placement_group import placement_group, remove_placement_group
group = placement_group([{{'CPU': 1}}], name='{LEFT}')
go.wait()
remove_placement_group(group)
"""


def validate(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    grid = cluster.master
    return subprocess.run(
        [*grid.command[:-3], sys.executable, str(SCRIPT), "-c", str(grid.home / "grid.yaml"), *words],
        env=grid.environment,
        cwd=grid.here,
        capture_output=True,
        text=True,
        timeout=150,
    )


def ray_status(cluster: Cluster) -> str:
    """How Ray sees the node of the only boost."""
    (boost,) = cluster.master.json("boost", "status", timeout=60.0)["boosts"]
    return str(boost["ray_node"]["status"])


def test_a_cluster_that_is_as_it_should_be_passes_and_a_task_runs_on_each_boost(cluster: Cluster, boost: str) -> None:
    until(lambda: ray_status(cluster) == "idle", "Ray has seen its raylet at rest")
    done = validate(cluster, "--run")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    lines = dict(line[6:].split(": ", 1) for line in done.stdout.splitlines() if line.startswith("ok    "))
    node = cluster.master.json("boost", "status", timeout=60.0)["boosts"][0]["ray_node"]["id"]
    assert lines[f"boost {boost}"] == "running on lab1, idle in Ray with what was lent"
    assert lines[f"task on {boost}"] == f"ran on {node[:12]}"
    assert {"coordinator", "configuration", "head", "version of this machine", "version of lab1"} <= set(lines)
    assert f"port of {boost}" in lines and lines["orphaned raylets"] == "none"
    assert done.stdout.splitlines()[-1].endswith("checks, none failed")


def test_what_is_left_over_fails_and_says_what_to_do(cluster: Cluster) -> None:
    with aside(cluster, LEAVES):
        until(lambda: LEFT in cluster.groups(), "the group is there", 60.0)
        done = validate(cluster)
        assert done.returncode == 1 and not done.stderr
        assert f"FAIL  placement groups: {LEFT} is left over (CREATED) → start the coordinator again" in done.stdout
        assert done.stdout.splitlines()[-1].endswith(", 1 failed")
