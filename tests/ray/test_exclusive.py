"""Exclusive boosts in a real Ray cluster."""

import pytest

from tests.grid_fixture import until
from tests.ray.scene import WHERE, Cluster
from tests.ray.test_status import aside

pytestmark = [pytest.mark.ray, pytest.mark.netns, pytest.mark.timeout(300)]

IN_GRID = """
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.placement_group import get_placement_group, placement_group, placement_group_table, remove_placement_group
"""
BACKLOG = """
@ray.remote
def wait():
    import time
    time.sleep(0.5)

asked = [wait.remote() for _ in range(30)]
go.wait()
for one in asked:
    ray.cancel(one)
"""


def test_plain_tasks_stay_off_an_exclusive_boost_and_tasks_in_its_group_all_run_there(cluster: Cluster) -> None:
    with aside(cluster, BACKLOG):  # what waits for room would take the core, if it could
        until(lambda: cluster.master.json("cluster", "status", timeout=60.0)["ray"]["waiting"], "tasks wait", 60.0)
        done = cluster.master.run("boost", "request", "gpu-master", "cpu", "1", "--exclusive", timeout=120.0)
    boost = done.stdout.strip()
    assert done.returncode == 0 and f'ray.util.get_placement_group("grid-boost-{boost}")' in done.stderr, done.stderr
    (shown,) = cluster.master.json("boost", "status", timeout=60.0)["boosts"]
    assert (shown["differs"], shown["boost"]["exclusive"]) == ("", True)
    code = (
        WHERE
        + IN_GRID
        + f"""
plain = ray.get([where.remote(0.2) for _ in range(8)], timeout=60)
there = where.options(scheduling_strategy=PlacementGroupSchedulingStrategy(get_placement_group("grid-boost-{boost}")))
print(json.dumps([plain, ray.get([there.remote(0.2) for _ in range(8)], timeout=60)]))
"""
    )
    plain, mine = cluster.compute(code)
    assert {where[0] for where in mine} == {shown["ray_node"]["id"]}
    assert len({where[0] for where in plain}) == 1 and plain[0][0] != shown["ray_node"]["id"]
    cluster.release(boost)
    until(lambda: cluster.groups() == {}, "its group is gone", 60.0)
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what it had before", 60.0)
    text = cluster.master.job(boost)["outcome"]["text"]
    assert text == "released"


PROGRAM = (
    WHERE
    + """
import asyncio
from ray.util.placement_group import placement_group
from distributed_grid.core import BadValue
from distributed_grid.orchestration.resource_boost_manager import (
    ResourceBoostManager, ResourceBoostRequest, ResourceType, boost_placement_group_options, boost_scheduling_options,
)

async def main():
    async with ResourceBoostManager() as manager:
        request = ResourceBoostRequest("gpu-master", ResourceType.CPU, 1.0, exclusive=True)
        boost_id = await manager.request_boost(request)
        (active,) = await manager.get_active_boosts()
        plain = ray.get([where.remote(0.2) for _ in range(4)], timeout=60)
        mine = ray.get([where.options(**boost_scheduling_options(boost_id)).remote() for _ in range(4)], timeout=60)
        try:
            refused = boost_placement_group_options(boost_id)
        except BadValue as error:
            refused = error.what
        await manager.release_boost(boost_id)
        await manager.client.wait(boost_id)
    return [boost_id, active.exclusive, active.ray_node_id, plain, mine, refused]

print(json.dumps(asyncio.run(main())))
"""
)


def test_a_program_borrows_exclusively_and_its_tasks_use_the_group_in_whatever_namespace(cluster: Cluster) -> None:
    until(lambda: cluster.resources()["CPU"] == 1, "nothing is lent from before", 60.0)
    boost, exclusive, node, plain, mine, refused = cluster.drive(PROGRAM)
    assert exclusive is True
    assert {where[0] for where in mine} == {node} and node not in {where[0] for where in plain}
    assert refused == f"{boost} has a placement group already"
    until(lambda: cluster.groups() == {}, "its group is gone", 60.0)
    until(lambda: cluster.resources()["CPU"] == 1, "Ray has what it had before", 60.0)


def test_groups_that_a_coordinator_left_are_gone_when_the_next_one_starts_also_if_ray_places_no_jobs_any_more(
    cluster: Cluster,
) -> None:
    names = ["grid-boost-j-leftoverabcd", "grid-job-j-leftoverabcd.1"]
    cluster.compute(
        IN_GRID
        + f"""
for name in {names}:
    assert placement_group([{{"CPU": 0.5}}], name=name, lifetime="detached").wait(30)
print(json.dumps(1))
"""
    )
    assert sorted(cluster.groups()) == names
    cluster.master.kill("coordinator")
    cluster.master.start_coordinator()
    until(lambda: cluster.groups() == {}, "it is gone", 60.0)
    cluster.master.await_offers(1)
