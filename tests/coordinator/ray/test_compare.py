"""What we lent beside what Ray shows: each way in which they differ is said, and nothing else is."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.ray.compare import compared, differs, marked
from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.jobs import JobSpec, JobView, Request, State
from distributed_grid.protocol.messages import RayNode
from distributed_grid.protocol.resources import GIB, GpuShare, Grant, Resources, ResourceType

HEAD, NOW = "192.0.2.1:6379", 5.0
HAS = {"CPU": 2.0, "boost_gpu-master": 2.0, "object_store_memory": 8e7, "node:192.0.2.2": 1.0}
RAYLET = RayNode("f00d", status="idle", total=HAS, boost="j-a", source="lab1", target="gpu-master")


def lent(
    kind: ResourceType = ResourceType.CPU, amount: int = 2000, grant: Grant | None = None, **parts: Any
) -> JobView:
    base: dict[str, Any] = {
        "id": "j-a",
        "user": "ann",
        "state": State.RUNNING,
        "spec": JobSpec(("ray",), boost=Boost("gpu-master", HEAD, kind, amount)),
        "request": Request(Resources(cpu=2000)),
        "submitted": 1.0,
        "node": "lab1",
        "grant": grant or Grant(cores=(0, 1)),
    }
    return JobView(**(base | parts))


def said(view: JobView, *nodes: RayNode, address: str = HEAD, ran: frozenset[str] | None = frozenset({"j-a"})) -> str:
    """How it differs."""
    return compared([view], nodes, address, ran, NOW)[0].differs


def test_a_raylet_with_just_what_was_lent_differs_in_nothing() -> None:
    (shown,) = compared([lent()], [RayNode("0", total={"CPU": 8.0}), RAYLET], HEAD, frozenset({"j-a"}), NOW)
    assert (shown.node, shown.differs) == (RAYLET, "")
    gpus = Grant(cores=(3,), gpus=(GpuShare("GPU-1", 1000),))
    assert not differs(
        lent(ResourceType.GPU, 1000, gpus),
        replace(RAYLET, total={"CPU": 1.0, "GPU": 1.0, "boost_gpu-master": 1.0}),
        NOW,
    )
    one = {"CPU": 1.0, "memory": 4.0 * GIB, "boost_gpu-master": 1.0}
    assert not differs(lent(ResourceType.MEMORY, 4 * GIB, Grant(cores=(0,))), replace(RAYLET, total=one), NOW)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"total": HAS | {"CPU": 1.0}}, "2 CPU lent, 1 CPU in Ray"),
        ({"total": HAS | {"GPU": 1.0}}, "0 GPU lent, 1 GPU in Ray"),
        ({"total": {"CPU": 2.0}}, "2 boost_gpu-master lent, 0 boost_gpu-master in Ray"),
        ({"source": "lab2"}, "Ray shows it on lab2"),
        ({"status": "draining"}, "Ray is draining it: it takes nothing new"),
    ],
)
def test_a_raylet_with_something_else_is_said_to_differ(change: dict[str, Any], why: str) -> None:
    assert said(lent(), replace(RAYLET, **change)) == why


def test_a_boost_of_memory_differs_by_its_memory() -> None:
    view = lent(ResourceType.MEMORY, 4 * GIB, Grant(cores=(0,)))
    less = replace(RAYLET, total={"CPU": 1.0, "memory": 3.0 * GIB, "boost_gpu-master": 1.0})
    assert said(view, less) == "4 GB lent, 3 GB in Ray"


def test_one_that_ray_drains_because_we_end_it_is_as_it_should_be() -> None:
    assert not said(lent(state=State.STOPPING), replace(RAYLET, status="draining"))
    over = lent(spec=JobSpec(("ray",), boost=Boost("gpu-master", HEAD, ResourceType.CPU, 2000), time_limit=4.0))
    assert said(replace(over, started=2.0), replace(RAYLET, status="draining")), "its time is over in a second"
    assert not said(replace(over, started=1.0), replace(RAYLET, status="draining"))


def test_a_source_with_a_name_that_ray_takes_for_no_label_is_known_by_what_its_label_says() -> None:
    assert not said(lent(node="lab1-"), RAYLET)


def test_an_exclusive_one_differs_until_one_placement_group_has_all_its_cores() -> None:
    boost = Boost("gpu-master", HEAD, ResourceType.CPU, 2000, exclusive=True)
    view = lent(spec=JobSpec(("ray",), boost=boost))
    why = "its placement group is not there, so that anybody can use it"
    assert said(view, RAYLET) == said(view, replace(RAYLET, total=HAS | {"CPU_group_ab": 1.0})) == why
    assert not said(view, replace(RAYLET, total=HAS | {"CPU_group_ab": 2.0, "CPU_group_0_ab": 2.0}))
    assert not said(replace(view, state=State.STOPPING), RAYLET)


def test_one_that_runs_is_missed_in_ray_unless_it_joined_while_ray_was_asked_or_ray_could_not_be() -> None:
    assert said(lent()) == "Ray does not show it"
    assert not said(lent(), ran=frozenset())
    assert not said(lent(), ran=None)
    for state in (State.WAITING, State.STARTING, State.STOPPING, State.LOST):
        assert not said(lent(state=state))


def test_one_that_two_nodes_of_ray_claim_to_be_is_said_to() -> None:
    assert said(lent(), replace(RAYLET, id="beef"), RAYLET) == "2 nodes of Ray carry its label: beef, f00d"


def test_one_in_another_cluster_than_the_one_that_is_asked_is_not_missed_there() -> None:
    why = f"it was lent to the Ray at {HEAD}, and ray.address is"
    assert said(lent(), address="192.0.2.9:6379") == f"{why} 192.0.2.9:6379 now"
    assert said(lent(), address="", ran=None) == f"{why} not set now"


def test_a_raylet_with_the_label_of_no_boost_that_lives_is_an_orphan() -> None:
    others = (RayNode("0", total={"CPU": 8.0}), replace(RAYLET, id="1", boost="j-b"))
    head, ours, orphan = marked((others[0], RAYLET, others[1]), frozenset({"j-a"}))
    assert (head, ours) == (others[0], RAYLET)
    assert orphan.orphan == "no boost of this grid has this id, or none any more"
