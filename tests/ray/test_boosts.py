"""Boosts in a real Ray cluster: its head on one host, a node of the grid on another, each with an address of its own.
The tests named after boost-001 are the acceptance criteria of seed 003."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.grid_fixture import CONFIG, Grid, until
from tests.network import MASTER, two_hosts

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

PORT = 6399
HEAD = f"{MASTER}:{PORT}"
START = (
    "start", "--head", "--block", f"--port={PORT}", f"--node-ip-address={MASTER}", "--node-name=gpu-master",
    "--num-cpus=1", "--num-gpus=0",
    "--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=80000000", "--memory=500000000",
)  # fmt: skip
CORES = sorted(os.sched_getaffinity(0))[:2]
NODE_CONFIG = CONFIG + f"  cores: {CORES[0]}-{CORES[-1]}\n"
RESOURCES = "print(json.dumps(ray.cluster_resources()))"
WHERE = """
@ray.remote
def where(seconds=0.0):
    import os, time
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    node = ray.get_runtime_context().get_node_id()
    return node, sorted(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES")
"""


class Cluster:
    """A Ray head on the master, and the grid around it."""

    def __init__(self, master: Grid, place: Path) -> None:
        self.master = master
        self._enter = master.command[:-3]
        self._environment = master.environment | {"RAY_AUTH_MODE": "disabled", "HOME": str(place)}
        ray = str(Path(sys.executable).with_name("ray"))
        with (place / "head.log").open("wb") as log:
            command = [*self._enter, ray, *START, f"--temp-dir={place / 'r'}"]
            self.head = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        until(lambda: self.lent() is not None, "the head answers", 60.0)

    def lent(self) -> list[dict[str, Any]] | None:
        """What `boost status` shows of boosts; None: Ray is not there."""
        answer = self.master.json("boost", "status", timeout=60.0)
        return None if answer["trouble"] else answer["boosts"]

    def drive(self, code: str) -> Any:
        """What a program of the cluster prints last, as JSON."""
        code = f"import json, ray\nray.init(address='{HEAD}', logging_level='error', log_to_driver=False)\n{code}"
        command = [*self._enter, sys.executable, "-c", code]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    def offered(self) -> float:
        """Cores that the node offers."""
        return sum(float(offer["offered"]["cpu"]) for offer in self.master.json("shared-status")["offers"])

    def boost(self, *words: str) -> str:
        """Request one; its id."""
        done = self.master.run("boost", "request", "gpu-master", *words, timeout=120.0)
        assert done.returncode == 0, done.stderr + self.master.log("coordinator")
        return done.stdout.strip()

    def release(self, boost: str) -> None:
        """Release it, and wait for its end."""
        assert self.master.run("boost", "release", boost).returncode == 0
        assert self.master.run("job", "wait", boost, timeout=60.0).returncode is not None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    place = Path(tmp_path_factory.mktemp("r", numbered=True))
    with two_hosts(place, CONFIG + f"ray: {{address: '{HEAD}'}}\nname: gpu-master\n", NODE_CONFIG) as (master, _):
        made = Cluster(master, place)
        try:
            yield made
        finally:
            made.head.terminate()
            made.head.wait(60.0)


@pytest.fixture
def boost(cluster: Cluster) -> Iterator[str]:
    """A core of lab1 that is lent."""
    made = cluster.boost("cpu", "1")
    yield made
    cluster.release(made)


def test_boost_001_resources_are_actually_available_and_not_just_reserved(cluster: Cluster) -> None:
    before = cluster.drive(RESOURCES)
    boost = cluster.boost("cpu", "1")
    during = cluster.drive(RESOURCES)
    assert during["CPU"] == before["CPU"] + 1 and during.get("memory") == before.get("memory")
    cluster.release(boost)
    assert cluster.drive(RESOURCES)["CPU"] == before["CPU"]


def test_boost_001_placement_groups_land_on_the_node_they_target(cluster: Cluster, boost: str) -> None:
    node = cluster.lent()[0]["in_ray"].split()[-1]  # type: ignore[index]
    code = f"""
from ray.util.placement_group import placement_group, placement_group_table
group = placement_group([{{"CPU": 1}}], strategy="STRICT_PACK", bundle_label_selector=[{{"grid-boost": "{boost}"}}])
assert group.wait(30)
print(json.dumps(placement_group_table(group)["bundles_to_node_id"][0]))
"""
    assert cluster.drive(code).startswith(node)


def test_boost_001_the_scheduler_sees_and_uses_it_on_the_cores_that_were_lent(cluster: Cluster, boost: str) -> None:
    code = (
        WHERE
        + f"""
plain = [where.remote(1.0) for _ in range(4)]
named = where.options(resources={{"boost_gpu-master": 1}}).remote()
labelled = where.options(label_selector={{"grid-boost": "{boost}"}}).remote()
print(json.dumps([ray.get(plain, timeout=60), ray.get(named, timeout=60), ray.get(labelled, timeout=60)]))
"""
    )
    plain, named, labelled = cluster.drive(code)
    view = cluster.lent()[0]  # type: ignore[index]
    node, cores = view["in_ray"].split()[-1], view["grant"]["cores"]
    for where in (named, labelled):
        assert where[0].startswith(node) and where[1:] == [cores, ""]
    assert any(where[0].startswith(node) for where in plain), "a program that knows nothing of boosts uses it as well"


def test_a_boost_expires_on_time_and_its_capacity_is_back(cluster: Cluster) -> None:
    boost = cluster.boost("cpu", "1", "--duration", "15s")
    assert cluster.master.run("job", "wait", boost, timeout=60.0).returncode == 124
    until(lambda: cluster.offered() == 2.0, "the node offers all its cores again")
    assert cluster.lent() == [] and cluster.drive(RESOURCES)["CPU"] == 1


def test_a_raylet_that_is_killed_ends_its_boost_and_leaves_nothing(cluster: Cluster, boost: str) -> None:
    pid = cluster.master.json("job", "show", boost)["jobs"][0]["allocation"]
    found = [one for one in cluster.master.processes_with(pid) if "raylet/raylet" in _command(one)]
    assert found
    os.kill(found[0], signal.SIGKILL)
    cluster.master.run("job", "wait", boost, timeout=60.0)
    shown = cluster.master.json("job", "show", boost)["jobs"][0]
    assert "its raylet ended" in shown["outcome"]["text"]
    until(lambda: cluster.offered() == 2.0, "the node offers all its cores again")
    assert not cluster.master.processes_with(pid)


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpu-master", "gpu", "1"), "asks 1 gpu on one node"),
        (("nobody", "cpu", "1"), "Target node not found in cluster"),
        (("gpu-master", "cpu", "0.5"), "a raylet has whole cores"),
        (("gpu-master", "disk", "1"), "'disk' cannot be borrowed"),
    ],
)
def test_what_cannot_be_lent_says_why_and_changes_nothing(cluster: Cluster, words: tuple[str, ...], said: str) -> None:
    done = cluster.master.run("boost", "request", *words)
    assert done.returncode != 0 and said in done.stderr, done.stderr
    assert cluster.lent() == []


def test_where_no_node_has_it_now_the_request_says_so_in_the_guides_words(cluster: Cluster, boost: str) -> None:
    done = cluster.master.run("boost", "request", "gpu-master", "cpu", "2")
    assert done.returncode == 1 and "No nodes have sufficient available resources" in done.stderr, done.stderr
