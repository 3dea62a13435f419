"""The Python of boosts, in a real Ray cluster: one program that borrows, uses what it borrowed, and gives it back."""

from pathlib import Path

import pytest

from tests.grid_fixture import until
from tests.ray.scene import WHERE, Cluster

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

PROGRAM = (
    WHERE
    + """
import asyncio
from ray.util.placement_group import placement_group, placement_group_table
from distributed_grid.orchestration.resource_boost_manager import (
    AllocationPriority, ResourceBoostManager, ResourceBoostRequest, ResourceType,
    boost_placement_group_options, boost_scheduling_options,
)

async def main():
    async with ResourceBoostManager() as manager:
        request = ResourceBoostRequest("gpu-master", ResourceType.CPU, 2.0, AllocationPriority.HIGH, 600.0)
        boost_id = await manager.request_boost(request)
        (active,) = await manager.get_active_boosts("gpu-master")
        during = ray.cluster_resources()["CPU"]
        options = boost_scheduling_options(boost_id)
        ran = ray.get([where.options(**options).remote(0.2) for _ in range(4)], timeout=60)
        bundles = [{"CPU": 1}, {"CPU": 1}]
        group = placement_group(bundles, **boost_placement_group_options(boost_id, len(bundles)))
        ready = group.wait(30)
        placed = placement_group_table(group)["bundles_to_node_id"]
        ray.util.remove_placement_group(group)
        status = await manager.get_boost_status()
        released = await manager.release_boost(boost_id)
        await manager.client.wait(boost_id)
        left = await manager.get_active_boosts()
        elsewhere = ray.get(where.options(**options, fallback_strategy=[{"label_selector": {}}]).remote(), timeout=60)
    return {
        "id": active.boost_id == boost_id, "node": active.ray_node_id, "source": active.source_node, "during": during,
        "ran": ran, "ready": ready, "placed": list(placed.values()), "status": status["resources"],
        "differences": status["differences"], "released": released, "left": len(left),
        "elsewhere": elsewhere[0],
    }

print(json.dumps(asyncio.run(main())))
"""
)


def test_a_program_borrows_uses_exactly_what_it_borrowed_and_gives_it_back(cluster: Cluster) -> None:
    until(lambda: cluster.resources()["CPU"] == 1, "nothing is lent from before")
    told = cluster.compute(PROGRAM)
    assert told["id"] and told["source"] == "lab1" and told["during"] == 3
    assert {node for node, _, _ in told["ran"]} == {told["node"]}
    assert told["ready"] and told["placed"] == [told["node"]] * 2
    assert told["status"] == {"cpu": 2.0} and told["differences"] == {}
    assert told["released"] is True and told["left"] == 0
    assert told["elsewhere"] != told["node"], "what may run elsewhere does, once the boost has ended"
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what it had before")
    until(lambda: cluster.offered() == 2.0, "the node offers all its cores again")


def test_the_program_in_the_documentation_runs_as_it_stands_there(cluster: Cluster) -> None:
    page = (Path(__file__).parents[2] / "docs" / "boosts.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0]
    done = cluster.python(program)
    assert done.returncode == 0, done.stderr[-3000:]
    status, anywhere, there, ready = done.stdout.splitlines()[-4:]
    assert "'active': 1" in status and "'resources': {'cpu': 2.0}" in status and "'differences': {}" in status
    assert f"'ray_node_id': '{there}'" in status and len(anywhere) == len(there) and ready == "True"
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what it had before")


ORCHESTRATOR = """
import asyncio
from distributed_grid.config.settings import load
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

async def main():
    async with ResourceSharingOrchestrator(load(), ssh_manager=None) as orchestrator:
        before = ray.cluster_resources()["CPU"]
        request_id = await orchestrator.request_resources(
            node_id="gpu-master",
            resource_type="cpu",
            amount=2.0,
            priority="high",
            duration_minutes=30
        )
        during = ray.cluster_resources()["CPU"]
        status = await orchestrator.get_cluster_status()
        released = await orchestrator.release_resources(request_id)
        await orchestrator.client.wait(request_id)
    return [during - before, status["nodes"]["lab1"]["cpu"]["lent"], status["boosts"]["resources"], released]

print(json.dumps(asyncio.run(main())))
"""


def test_request_resources_of_the_sharing_guide_is_capacity_that_ray_has(cluster: Cluster) -> None:
    until(lambda: cluster.resources()["CPU"] == 1, "nothing is lent from before")
    until(lambda: cluster.offered() == 2.0, "the node offers all its cores")
    assert cluster.compute(ORCHESTRATOR) == [2.0, 2.0, {"cpu": 2.0}, True]
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what it had before")
