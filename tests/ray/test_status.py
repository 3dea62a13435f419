"""What is shown of the cluster and of boosts, with a real Ray."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import until
from tests.ray.scene import HEAD, Cluster, short_folder

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

WAITS = """
@ray.remote(num_cpus=64)
def large():
    pass

asked = [large.remote() for _ in range(3)]
from ray.util.placement_group import placement_group, remove_placement_group
group = placement_group([{'CPU': 32}, {'CPU': 32}])
go.wait()
for one in asked:
    ray.cancel(one)
remove_placement_group(group)
"""


def in_ray(cluster: Cluster) -> Any:
    return cluster.master.json("cluster", "status", timeout=60.0)["ray"]


@contextmanager
def program(cluster: Cluster, code: str) -> Iterator[None]:
    """A program of the cluster that runs meanwhile."""
    command = [*cluster.master.command[:-3], sys.executable, "-c", code]
    process = subprocess.Popen(command, env=cluster.environment, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.communicate(timeout=60.0)


@contextmanager
def aside(cluster: Cluster, code: str) -> Iterator[None]:
    """As `program`, but in the program that looks at the cluster: code that has a `go.wait()`, and leaves nothing."""
    running = cluster.aside(code)
    try:
        yield
    finally:
        running.go()
        running.printed()


@contextmanager
def viewer(cluster: Cluster, role: str = "viewer") -> Iterator[None]:
    """The `grid` command in the hands of somebody of this role."""
    grid, own = cluster.master, cluster.master.environment
    made = grid.run("token", "create", "--role", role, "--user", f"eve-{role}")
    try:
        grid.environment = own | {"XDG_CONFIG_HOME": str(grid.home / f"of-{role}")}
        assert grid.run("login", "-", input=made.stdout).returncode == 0
        yield
    finally:
        grid.environment = own


def test_cluster_status_says_what_waits_in_ray(cluster: Cluster) -> None:
    with aside(cluster, WAITS):
        until(lambda: sorted(one["count"] for one in in_ray(cluster)["waiting"]) == [2, 3], "all wait", 60.0)
        tasks, group = sorted(in_ray(cluster)["waiting"], key=lambda one: bool(one["group"]))
        assert (tasks["count"], tasks["shape"]["CPU"], tasks["group"]) == (3, 64, False)
        assert (group["count"], group["shape"]["CPU"], group["group"]) == (2, 32, True)
        said = cluster.master.run("cluster", "status", timeout=60.0).stdout
        assert "waiting in Ray: 3 × (64 CPU); a placement group with 2 × (32 CPU)" in said
    until(lambda: in_ray(cluster)["waiting"] == [], "nothing waits any more", 60.0)


def test_a_raylet_with_the_label_of_no_boost_of_ours_is_shown_as_an_orphan(cluster: Cluster) -> None:
    place = short_folder()
    ray = str(Path(sys.executable).with_name("ray"))
    name = "j-strayaaaaaaa"
    command = [*cluster.node.command[:-3], ray, "start", "--block", f"--address={HEAD}", "--node-ip-address=192.0.2.2"]
    command += ["--num-cpus=1", "--num-gpus=0", "--memory=100000000", "--object-store-memory=80000000"]
    command += [f"--node-name={name}", f"--labels=grid-boost={name},grid-source=lab9", "--disable-usage-stats"]
    command += [f"--temp-dir={place}", "--include-log-monitor=false"]
    with (place / "log").open("wb") as log:
        orphan = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log)
    try:
        until(lambda: cluster.master.json("boost", "status", timeout=60.0)["orphans"], "Ray shows it", 60.0)
        shown = cluster.master.run("boost", "status", timeout=60.0).stdout
        assert shown.startswith("0 active boosts\n")
        assert f"! Ray has 1 CPU, 95.4M memory of lab9 as boost {name}: no boost of this grid has this id" in shown
        assert f"end `ray start … --node-name={name}` there" in shown
        assert "lab9 → ?, orphaned" in cluster.master.run("cluster", "status", timeout=60.0).stdout
    finally:
        orphan.terminate()
        orphan.wait(60.0)
        shutil.rmtree(place, ignore_errors=True)
    until(lambda: not cluster.master.json("boost", "status", timeout=60.0)["orphans"], "Ray has let it go", 60.0)


def test_cluster_status_marks_what_is_borrowed_and_sums_it(cluster: Cluster, boost: str) -> None:
    # What programs of before have used is told for a moment after their end.
    until(lambda: in_ray(cluster)["available"]["CPU"] == 2, "nothing is used", 60.0)
    told = in_ray(cluster)
    assert (told["address"], told["trouble"], told["differs"]) == (HEAD, None, [])
    assert told["version"] == cluster.compute("print(json.dumps(ray.__version__))")
    raylets = {node["name"]: node for node in told["nodes"]}
    assert set(raylets) == {"gpu-master", boost}
    lent = raylets[boost]
    assert (lent["boost"], lent["source"], lent["target"], lent["orphan"]) == (boost, "lab1", "gpu-master", None)
    assert raylets["gpu-master"]["boost"] is None
    assert (told["total"]["CPU"], told["available"]["CPU"], told["borrowed"]["CPU"]) == (2, 2, 1)
    shown = cluster.master.run("cluster", "status", timeout=60.0)
    assert "\x1b" not in shown.stdout and not shown.stderr
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line}
    assert lines[boost].split()[2] == "lab1" and lines[boost].endswith("lab1 → gpu-master")
    assert "0/2" in lines["all"] and "0/1" in lines["of"]
    assert f"Ray {told['version']} at {HEAD}" in lines["Ray"] and "2 nodes, 1 of them borrowed" in lines["Ray"]


def test_boost_status_has_what_the_guide_names_and_what_ray_shows(cluster: Cluster, boost: str) -> None:
    told = cluster.master.json("boost", "status", timeout=60.0)
    assert (told["active"], told["lent"], told["orphans"]) == (1, {"cpu": 1}, [])
    (one,) = told["boosts"]
    assert one["boost"] == {"target": "gpu-master", "resource": "cpu", "amount": 1, "exclusive": False, "ray": HEAD}
    assert one["differs"] == "" and one["ray_node"]["total"]["CPU"] == 1
    first, header, row = cluster.master.run("boost", "status", timeout=60.0).stdout.splitlines()
    assert first == "1 active boost: 1 cpu"
    assert header.split() == ["BOOST", "SOURCE", "TARGET", "LENT", "STATE", "ALLOCATED", "EXPIRES", "IN", "RAY"]
    assert row.split()[:6] == [boost, "lab1", "gpu-master", "1", "cpu", "running"]
    only = cluster.master.run("boost", "status", "--node", "lab1", timeout=60.0)
    assert only.stdout == "0 active boosts for lab1\n"
    unknown = cluster.master.run("boost", "status", "--node", "nobody", timeout=60.0)
    assert unknown.returncode == 1 and "unknown node 'nobody'" in unknown.stderr
    assert "there are gpu-master, lab1" in unknown.stderr


def test_a_viewer_sees_boosts_in_outline_and_a_client_those_of_others_without_their_names(
    cluster: Cluster, boost: str
) -> None:
    with viewer(cluster):
        (seen,) = cluster.master.json("boost", "status", timeout=60.0)["boosts"]
        assert (seen["id"], seen["node"], seen["state"]) == (boost, "lab1", "running")
        assert seen["boost"] == {"target": "gpu-master", "resource": "cpu", "amount": 1, "exclusive": False, "ray": ""}
        assert seen["command"] == [] and {step["text"] for step in seen["events"]} == {""}
        assert "boost cpu 1 for gpu-master" in cluster.master.run("jobs").stdout
        assert cluster.master.run("boost", "release", boost).returncode == 1
    with viewer(cluster, "client"):
        shown = cluster.master.run("boost", "status", timeout=60.0)
        assert "1 active boost: 1 cpu" in shown.stdout and "root's" in shown.stdout, shown.stderr
        status = cluster.master.run("-o", "json", "cluster", "status", timeout=60.0).stdout
        assert "lab1" in status and boost not in shown.stdout + status
        assert cluster.master.run("boost", "release", boost).returncode == 1
    assert cluster.lent()[0]["state"] == "running"  # type: ignore[index]
