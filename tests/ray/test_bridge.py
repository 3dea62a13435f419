"""The process that asks Ray, with a real one: what is reserved is there, by its name, and is let go of again."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.grid_fixture import until
from tests.ray.scene import HEAD, Cluster
from tests.ray.test_status import program

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

OTHERS = f"""
import ray, sys
ray.init(address='{HEAD}', namespace='others', logging_level='error', log_to_driver=False)
from ray.util.placement_group import placement_group, remove_placement_group
group = placement_group([{{"CPU": 0.5}}], name="somebody", lifetime="detached")
assert group.wait(30)
sys.stdin.read()
remove_placement_group(group)
"""


class Asking:
    """A bridge on the head's host."""

    def __init__(self, cluster: Cluster) -> None:
        command = [*cluster.master.command[:-3], sys.executable, "-m", "distributed_grid.coordinator.ray.bridge", HEAD]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, env=cluster.environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        self.answers: dict[int, dict[str, Any]] = {}
        self.asked = 0
        threading.Thread(target=self._read, daemon=True).start()
        self.node: str = self.ask("nodes")["ok"]["nodes"][0]["id"]

    def _read(self) -> None:
        for line in self.process.stdout or ():
            answer = json.loads(line)
            self.answers[answer["id"]] = answer

    def put(self, what: str, **words: Any) -> int:
        """Ask; the number of the question."""
        self.asked += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": self.asked, "ask": what, **words}).encode() + b"\n")
        self.process.stdin.flush()
        return self.asked

    def take(self, number: int) -> dict[str, Any]:
        """The answer to this question."""
        until(lambda: number in self.answers, f"question {number} is answered", 60.0)
        return self.answers[number]

    def ask(self, what: str, **words: Any) -> dict[str, Any]:
        return self.take(self.put(what, **words))

    def reserving(self, name: str, cores: float, within: float = 30.0, node: str = "") -> int:
        selector = {"ray.io/node-id": node or self.node}
        return self.put("reserve", name=name, bundle={"CPU": cores}, selector=selector, within=within)

    def reserve(self, name: str, cores: float, within: float = 30.0, node: str = "") -> dict[str, Any]:
        return self.take(self.reserving(name, cores, within, node))

    def reserved(self) -> dict[str, str]:
        found: dict[str, str] = self.ask("reserved")["ok"]
        return found


@pytest.fixture(scope="module")
def bridge(shared: Cluster) -> Iterator[Asking]:
    shared.keep_only()
    asking = Asking(shared)
    yield asking
    for name in asking.reserved():
        asking.ask("release", name=name)
    assert asking.process.stdin is not None
    asking.process.stdin.close()
    asking.process.wait(60.0)


def test_what_is_reserved_is_on_the_node_that_was_meant_until_it_is_let_go_of(bridge: Asking) -> None:
    assert bridge.reserve("grid-job-a.1", 0.5)["ok"] == bridge.node
    assert bridge.reserved() == bridge.ask("listed")["ok"] == {"grid-job-a.1": "CREATED"}
    assert bridge.ask("release", name="grid-job-a.1")["ok"] is True
    assert bridge.reserved() == bridge.ask("listed")["ok"] == {}
    assert bridge.ask("release", name="grid-job-a.1")["ok"] is False, "there is nothing to let go of, and that is all"


def test_asked_again_since_the_answer_was_lost_it_is_the_same_group(bridge: Asking) -> None:
    for _ in range(2):
        assert bridge.reserve("grid-job-b.1", 0.75)["ok"] == bridge.node
    assert bridge.reserved() == {"grid-job-b.1": "CREATED"}
    bridge.ask("release", name="grid-job-b.1")


@pytest.mark.parametrize(
    ("cores", "node", "why"),
    [
        (1.0, "", "it was not free within 1 s"),
        (64.0, "", "no node that is meant has so much in all"),
        (0.25, "f" * 56, "no node that is meant has so much in all"),
    ],
)
def test_what_cannot_be_had_in_time_says_so_and_leaves_nothing(
    bridge: Asking, cores: float, node: str, why: str
) -> None:
    bridge.reserve("grid-job-c.1", 0.5)
    refused = bridge.reserve("grid-job-d.1", cores, 1.0, node)
    assert (refused["error"], refused["why"]) == (f"Ray did not reserve {cores:g} CPU", why)
    assert bridge.reserved() == {"grid-job-c.1": "CREATED"}
    bridge.ask("release", name="grid-job-c.1")


def test_many_that_wait_keep_nobody_from_looking_or_letting_go_and_each_has_its_turn(bridge: Asking) -> None:
    assert bridge.reserve("grid-job-first.1", 1.0)["ok"]
    # They wait for longer than any answer is waited for here.
    waiting = [bridge.reserving(f"grid-job-w{number}.1", 0.125, 200.0) for number in range(8)]
    for _ in range(5):
        assert bridge.ask("nodes")["ok"]["nodes"]
    assert not any(number in bridge.answers for number in waiting)
    assert bridge.ask("release", name="grid-job-first.1")["ok"] is True
    assert [bridge.take(number)["ok"] for number in waiting] == [bridge.node] * 8
    for number in range(8):
        bridge.ask("release", name=f"grid-job-w{number}.1")


def test_who_waits_for_a_node_is_told_once_it_is_there_or_that_it_is_not(cluster: Cluster, bridge: Asking) -> None:
    there = next(one["name"] for one in bridge.ask("nodes")["ok"]["nodes"] if one["id"] == bridge.node)
    (told,) = bridge.ask("joined", names=["nobody", there], within=60.0, pause=0.01)["ok"]["nodes"]
    assert (told["id"], told["total"]["CPU"]) == (bridge.node, 1.0)
    assert bridge.ask("joined", names=["nobody"], within=0.1, pause=0.01)["ok"] is None


def test_a_node_is_known_by_its_name_and_its_address(bridge: Asking) -> None:
    node = next(one for one in bridge.ask("nodes")["ok"]["nodes"] if one["id"] == bridge.node)
    names = (node["name"], node["ip"], "nobody", "")
    assert [bridge.ask("cluster", node=name)["ok"]["knows"] for name in names] == [True, True, False, False]


def test_what_others_use_is_told_apart_from_what_is_reserved_for_jobs(cluster: Cluster, bridge: Asking) -> None:
    def used() -> tuple[float, float]:
        """By all, and of that for jobs of the grid."""
        node = next(one for one in bridge.ask("usage")["ok"]["nodes"] if one["id"] == bridge.node)
        return node["total"]["CPU"] - node["available"].get("CPU", 0.0), node["ours"]["CPU"]

    until(lambda: used() == (0.0, 0.0), "nothing is used", 60.0)
    with program(cluster, OTHERS):
        bridge.reserve("grid-job-f.1", 0.25)
        until(lambda: used() == (0.75, 0.25), "both are there", 60.0)
        assert bridge.reserved() == {"grid-job-f.1": "CREATED"}, "the groups of others are theirs"
    until(lambda: used() == (0.25, 0.25), "only ours is left", 60.0)
    bridge.ask("release", name="grid-job-f.1")
    until(lambda: used() == (0.0, 0.0), "nothing is used", 60.0)
