"""Whatever dies around a boost: it goes on, or ends and says why; its source has the capacity back, and no process is
left. Each row of the table in docs/boosts.md is a test here, or in test_the_head."""

import json
import os
import signal

import pytest

from tests.grid_fixture import until
from tests.ray.scene import WHERE, Cluster, of_allocation

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

ON_IT = "resources={'boost_gpu-master': 1}"


def one(cluster: Cluster, boost: str) -> dict[str, object]:
    """This boost as `boost status` has it."""
    found = [each for each in cluster.lent() or [] if each["id"] == boost]
    return found[0] if found else {}


def goes_on(cluster: Cluster, boost: str, before: dict[str, object]) -> None:
    """It is what it was: the same raylet for Ray, with the same end, and a program can use it."""

    def shown() -> dict[str, object] | None:
        now = one(cluster, boost)
        return now if now.get("in_ray") else None

    now = until(shown, "Ray shows it", 60.0)
    same = ("state", "started", "allocation", "differs")
    assert [now[word] for word in same] == [before[word] for word in same]
    assert str(now["in_ray"]).split()[-1] == str(before["in_ray"]).split()[-1]
    node = cluster.compute(f"{WHERE}print(json.dumps(ray.get(where.options({ON_IT}).remote(), timeout=60)[0]))")
    assert node.startswith(str(now["in_ray"]).split()[-1])


def is_over(cluster: Cluster, boost: str, offered: float) -> str:
    """It has ended, its node lends what it lent before, and nothing of it is left. What it says of its end."""
    until(lambda: cluster.master.job(boost)["state"] == "ended", "it has ended", 90.0)
    ended = cluster.master.job(boost)
    until(lambda: cluster.offered() == offered, "its source offers again what it did", 60.0)
    until(lambda: not of_allocation(ended["allocation"]), "no process of it is left", 60.0)
    until(lambda: not cluster.node.processes_with(ended["allocation"]), "nor one that names it", 60.0)
    return str(ended["outcome"]["text"])


def is_left_by(cluster: Cluster, boost: str) -> None:
    """Ray has noticed its end: the cluster is as the next test wants it."""
    until(lambda: boost not in cluster.raylets(), "Ray has seen it end", 60.0)


def its(cluster: Cluster, boost: str, word: str) -> int:
    """The process of a boost with this word in its command line."""
    named = of_allocation(cluster.master.job(boost)["allocation"]).items()
    return next(pid for pid, command in named if word in command)


# --- what a boost outlives ---


@pytest.mark.long_ray
def test_a_worker_that_is_killed_costs_its_task_a_retry_and_nobody_else_anything(cluster: Cluster, boost: str) -> None:
    before = one(cluster, boost)
    code = f"""
import os, signal
mark = {str(cluster.place / "died")!r}
@ray.remote({ON_IT}, max_retries=1)
def once():
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return ray.get_runtime_context().get_node_id()
print(json.dumps(ray.get(once.remote(), timeout=60)))
"""
    assert cluster.compute(code).startswith(str(before["in_ray"]).split()[-1])
    goes_on(cluster, boost, before)


def test_the_agent_and_the_supervisor_are_killed_and_it_goes_on(cluster: Cluster, boost: str) -> None:
    before = one(cluster, boost)
    pid = json.loads((cluster.node.home / "lab1" / "supervisor.pid").read_text())["pid"]
    cluster.node.kill("lab1")
    cluster.node.start_agent("lab1")
    until(lambda: cluster.offered() == 1.0, "the agent is back, and lends what is left", 60.0)
    goes_on(cluster, boost, before)
    os.kill(pid, signal.SIGKILL)
    goes_on(cluster, boost, before)


def test_the_process_that_asks_ray_is_killed_and_the_next_question_has_another(cluster: Cluster, boost: str) -> None:
    before = one(cluster, boost)
    cluster.kill_bridges()
    until(lambda: cluster.lent() is not None, "Ray is asked again", 60.0)
    goes_on(cluster, boost, before)


def test_the_coordinator_is_killed_and_started_and_it_goes_on_with_the_same_end(cluster: Cluster, boost: str) -> None:
    before = one(cluster, boost)
    cluster.master.kill("coordinator")
    cluster.master.start_coordinator()
    until(lambda: cluster.offered() == 1.0, "its agent is back", 60.0)
    goes_on(cluster, boost, before)


# --- what a boost ends of ---


@pytest.mark.parametrize(
    ("word", "told"),
    [
        pytest.param("ray start", ("its raylet ended", "signal 9"), marks=pytest.mark.long_ray),
        ("raylet/raylet", ("its raylet ended",)),
    ],
)
def test_its_raylet_or_what_started_it_is_killed_and_it_ends(
    cluster: Cluster, boost: str, word: str, told: tuple[str, ...]
) -> None:
    os.kill(its(cluster, boost, word), signal.SIGKILL)
    said = is_over(cluster, boost, 2.0)
    assert any(words in said for words in told), said
    is_left_by(cluster, boost)


@pytest.mark.long_ray
def test_it_expires_on_time_while_the_coordinator_is_away_and_history_knows(cluster: Cluster) -> None:
    offered = cluster.offered()
    boost = cluster.boost("cpu", "1", "--duration", "10s")
    held = cluster.master.job(boost)
    cluster.master.kill("coordinator")
    until(lambda: not of_allocation(held["allocation"]), "its node has ended it by itself", 60.0)
    cluster.master.start_coordinator()
    until(lambda: not one(cluster, boost), "it is over")
    assert "it was lent for 10s" in is_over(cluster, boost, offered)
    past = cluster.master.json("boost", "history")["boosts"][0]
    assert past["id"] == boost and 10.0 <= past["outcome"]["seconds"] < 90.0
    is_left_by(cluster, boost)


def test_the_coordinator_is_killed_while_it_joins_and_it_joins(cluster: Cluster) -> None:
    before = {each["id"] for each in cluster.lent() or []}
    asked = cluster.master.begin("boost", "request", "gpu-master", "cpu", "1")

    def begun() -> str | None:
        """On a busy machine it may have joined by the time that we hear of it."""
        new = [each for each in cluster.lent() or [] if each["id"] not in before]
        return new[0]["id"] if new and new[0]["state"] in ("starting", "running") else None

    boost = until(begun, "it starts")
    cluster.master.kill("coordinator")
    cluster.master.start_coordinator()
    asked.communicate(timeout=60.0)
    until(
        lambda: (found := cluster.lent()) and all(each["state"] == "running" for each in found), "it has joined", 90.0
    )
    assert one(cluster, boost)["state"] == "running"
    cluster.adopt(boost)


def test_somebody_drains_its_node_in_ray_and_it_ends(cluster: Cluster, boost: str) -> None:
    code = f"""
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
node = next(one["NodeID"] for one in ray.nodes() if one["Alive"] and one["Labels"].get("grid-boost") == "{boost}")
print(json.dumps(gcs.drain_node(node, autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION, "no more", 0)[0]))
"""
    assert cluster.compute(code)
    assert "Ray does not show it any more" in is_over(cluster, boost, 2.0)
    is_left_by(cluster, boost)
