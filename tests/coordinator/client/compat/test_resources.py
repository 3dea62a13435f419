"""`DynamicResourceManager` as the resource management document has it, against a real coordinator and played agents."""

from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client.compat.resources import requirements
from distributed_grid.core import BadValue
from distributed_grid.orchestration.dynamic_resource_manager import DynamicResourceManager
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import GIB, MIB, Resources
from tests.coordinator.client.compat.test_boosts import config
from tests.coordinator.ends import agent, coordinator, node

TASK = {"cpu_cores": 2, "memory_mb": 1024}


async def test_a_reservation_is_a_hold_of_that_worker_by_the_name_of_the_task(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        workers = [await agent(grid.url, node(name)) for name in ("n1", "n2")]
        reservation_id = await manager.reserve_resources(worker_id="n2", task_id="task-7", resource_requirements=TASK)
        assert reservation_id is not None
        view = await manager.client.show(reservation_id)
        assert (view.spec.hold, view.spec.name, view.node, view.state) == (True, "task-7", "n2", State.RUNNING)
        assert view.request.resources == Resources(2000, GIB) and view.spec.time_limit == 3600.0
        assert (await manager.client.result(await manager.client.submit("true", within="task-7"))).node == "n2"
        assert await manager.reserve_resources("n2", "task-8", {"cpu_cores": 3}) is None, "two cores are left there"
        assert await manager.release_resources(reservation_id) is True
        await manager.client.wait(reservation_id)
        assert await manager.release_resources(reservation_id) is False
        assert await manager.reserve_resources("n2", "task-8", {"cpu_cores": 3}, duration="5m") is not None
        for worker in workers:
            await worker.close()


async def test_availability_and_fitness_are_those_of_the_grids_placement(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        workers = [await agent(grid.url, node("n1", cores=4)), await agent(grid.url, node("n2", cores=1))]
        assert await manager.check_resource_availability("n1", TASK) is True
        assert await manager.check_resource_availability("n2", TASK) is False
        fitness = {name: await manager.calculate_task_worker_fitness(name, TASK) for name in ("n1", "n2")}
        assert 0 < fitness["n1"] <= 1 and fitness["n2"] == 0.0
        why = await manager.client.why(request=await manager._request("n1", TASK))
        assert fitness["n1"] == why.verdicts[0].confidence
        held = await manager.reserve_resources("n1", "most", {"cpu_cores": 3})
        assert held and await manager.check_resource_availability("n1", TASK) is False
        assert await manager.calculate_task_worker_fitness("n1", TASK) == 0.0
        assert [one.id for one in await manager.client.holds()] == [held], "questions hold nothing"
        for worker in workers:
            await worker.close()


async def test_a_worker_that_there_is_not_is_said(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        worker = await agent(grid.url)
        with pytest.raises(BadValue, match="n11") as refused:
            await manager.reserve_resources("n11", "task", TASK)
        assert refused.value.hint == "did you mean n1?"
        for asked in (manager.check_resource_availability, manager.calculate_task_worker_fitness):
            for unknown in ("n11", "", None):
                with pytest.raises(BadValue, match="unknown node"):
                    await asked(unknown, TASK)  # type: ignore[arg-type]
        await worker.close()


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        ({"cpu_cores": 2}, (Resources(2000), 0)),
        ({"memory_gb": 1.5}, (Resources(1000, 3 * GIB // 2), 0)),
        ({"gpus": 1, "gpu_memory_mb": 8192}, (Resources(1000, 0, 1000), 8 * GIB)),
        ({"gpu_memory_mb": 512}, (Resources(1000, 0, 1000), 512 * MIB)),
        # As workers report resources in the document.
        (
            {"cpu": {"cores": 4}, "memory": {"available_mb": 2048}, "gpu": {"devices": 1}},
            (Resources(4000, 2 * GIB, 1000), 0),
        ),
    ],
)
def test_requirements_are_read_in_the_documents_units(needs: dict[str, Any], found: tuple[Resources, int]) -> None:
    assert requirements(needs) == found


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        ({}, "nothing is required"),
        ({"cpu_cores": 0}, "nothing is required"),
        ({"cpu_core": 1}, "'cpu_core' cannot be required"),
        ({"cpu_cores": -1}, "cpu_cores cannot be -1"),
        ({"cpu_cores": True}, "cpu_cores cannot be True"),
        ({"cpu_cores": float("nan")}, "cpu_cores cannot be nan"),
        ({"memory_mb": "1G"}, "memory_mb cannot be '1G'"),
        ({"cpu_cores": 1, "cpus": 1}, "cpu_cores and cpus are the same requirement"),
        ([1], "are no requirements"),
    ],
)
def test_requirements_that_make_no_sense_are_said(needs: Any, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        requirements(needs)
