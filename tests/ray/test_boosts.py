"""Boosts in a real Ray cluster. The tests named after boost-001 are the acceptance criteria of seed 003."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.grid_fixture import until
from tests.ray.scene import WHERE, Cluster, of_allocation

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]


def test_boost_001_placement_groups_land_on_the_node_they_target(cluster: Cluster, boost: str) -> None:
    node = cluster.lent()[0]["in_ray"].split()[-1]  # type: ignore[index]
    code = f"""
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
group = placement_group([{{"CPU": 1}}], strategy="STRICT_PACK", bundle_label_selector=[{{"grid-boost": "{boost}"}}])
assert group.wait(30)
print(json.dumps(placement_group_table(group)["bundles_to_node_id"][0]))
remove_placement_group(group)
"""
    assert cluster.compute(code).startswith(node)


def test_boost_001_the_scheduler_sees_and_uses_it_on_the_cores_that_were_lent(
    cluster: Cluster, boost: str, tmp_path: Path
) -> None:
    code = (
        WHERE
        + f"""
@ray.remote
def with_another(mine, theirs):
    import pathlib, time
    pathlib.Path(mine).touch()
    end = time.monotonic() + 60
    while not pathlib.Path(theirs).exists() and time.monotonic() < end:
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id(), pathlib.Path(theirs).exists()

marks = {[str(tmp_path / "one"), str(tmp_path / "other")]}
plain = [with_another.remote(*marks), with_another.remote(*marks[::-1])]
named = where.options(resources={{"boost_gpu-master": 1}}).remote()
labelled = where.options(label_selector={{"grid-boost": "{boost}"}}).remote()
print(json.dumps([ray.get(plain, timeout=70), ray.get(named, timeout=60), ray.get(labelled, timeout=60)]))
"""
    )
    plain, named, labelled = cluster.compute(code)
    view = cluster.lent()[0]  # type: ignore[index]
    node, cores = view["in_ray"].split()[-1], view["grant"]["cores"]
    for where in (named, labelled):
        assert where[0].startswith(node) and where[1:] == [cores, ""]
    assert all(met for _, met in plain), "a program that knows nothing of boosts uses it as well, beside the head"
    assert sum(place.startswith(node) for place, _ in plain) == 1


def test_where_no_node_has_it_now_the_request_says_so_in_the_guides_words(cluster: Cluster, boost: str) -> None:
    done = cluster.master.run("boost", "request", "gpu-master", "cpu", "2")
    assert done.returncode == 1 and "No nodes have sufficient available resources" in done.stderr, done.stderr


def test_boost_001_resources_are_actually_available_and_not_just_reserved(cluster: Cluster, boost: str) -> None:
    during = cluster.resources()
    cluster.keep_only()
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what its head brings", 60.0)
    assert during["CPU"] == 2 and during.get("memory") == cluster.resources().get("memory")


def test_a_boost_expires_on_time_and_its_capacity_is_back(cluster: Cluster) -> None:
    boost = cluster.boost("cpu", "1", "--duration", "6s")
    assert cluster.master.run("job", "wait", boost, timeout=60.0).returncode == 124
    until(lambda: cluster.offered() == 2.0, "the node offers all its cores again")
    assert cluster.lent() == []
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what it had before", 60.0)


LISTEN_TIMEOUT = """
import socket
held = [socket.create_server(("", port)) for port in range(20003, 24700, 48)]
print("listens", flush=True)
input()
"""


@pytest.mark.long_ray  # tests/agent/launch/test_raylet.py has the rule
def test_another_program_has_a_port_of_each_row_but_the_last_and_it_gets_these(cluster: Cluster) -> None:
    command = [*cluster.node.command[:-3], sys.executable, "-c", LISTEN_TIMEOUT]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as another:
        assert another.stdout is not None and another.stdout.readline() == "listens\n"
        boost = cluster.boost("cpu", "1")
        said = of_allocation(cluster.master.job(boost)["allocation"]).values()
        start = next(words for words in said if "--min-worker-port=" in words)
        ports = [int(port) for port in re.findall(r"-port=(\d+)", start)]
        assert len(ports) == 8 and min(ports) >= 24704, start
        cluster.release(boost)
        another.communicate("\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu-master", "gpu", "1"), "No nodes have sufficient available resources"),
        (("nobody", "cpu", "1"), "Target node not found in cluster"),
        (("gpu-master", "disk", "1"), "unknown resource type 'disk'"),
    ],
)
def test_what_cannot_be_lent_says_why_and_changes_nothing(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    done = cluster.master.run("boost", "request", *words)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    assert cluster.lent() == []
