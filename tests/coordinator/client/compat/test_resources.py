"""`DynamicResourceManager` as the resource management document has it, against a real coordinator and played agents."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.client.compat.resources import capacities, requirements
from distributed_grid.coordinator.core.scaling.events import MachineAnswered
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind
from distributed_grid.core import BadValue, GridError, RequestRefused
from distributed_grid.orchestration.dynamic_resource_manager import DynamicResourceManager
from distributed_grid.orchestration.hardware_detector import HardwareDetector
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import GIB, MIB, Resources
from distributed_grid.protocol.scaling.pools import Pool, Shape
from tests.coordinator.client.compat.scene_pools import pools
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
        ({"tpu": {"devices": 1}}, "'tpu' is no part of a worker's resources"),
        ({"gpu": {"devices": 1, "memory_mb": 8192}}, "'memory_mb' does not belong to gpu"),
    ],
)
def test_requirements_that_make_no_sense_are_said(needs: Any, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        requirements(needs)


REPORT = {
    "cpu": {"cores": 8, "physical_cores": 4, "available_cores": 6.5},
    "memory": {"total_mb": 16384, "available_mb": 8192},
    "gpu": {"devices": 2, "available_devices": 1, "total_memory_mb": 32768, "available_memory_mb": 20000},
}
"""As the document's workers report themselves."""


async def test_a_worker_without_agent_is_registered_reserved_and_released(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        assert await manager.register_worker("w1", REPORT) is True
        (view,) = await manager.client.nodes()
        assert view.facts.name == "w1" and view.facts.declared == view.offered == Resources(6500, 8 * GIB, 1000)
        assert view.facts.lendable == Resources(8000, 16 * GIB, 2000) and view.facts.gpus[0].memory == 16 * GIB
        assert await manager.check_resource_availability("w1", TASK) is True
        assert 0 < await manager.calculate_task_worker_fitness("w1", TASK) <= 1
        reservation_id = await manager.reserve_resources("w1", "task-7", {"cpu_cores": 5, "gpus": 1})
        assert reservation_id is not None
        assert (await manager.client.show(reservation_id)).node == "w1"
        assert await manager.check_resource_availability("w1", TASK) is False, "one and a half cores are left"
        assert await manager.update_worker_resources("w1", {"cpu": {"cores": 8}, "memory": {"total_mb": 16384}}) is True
        assert await manager.check_resource_availability("w1", TASK) is True
        assert await manager.release_resources(reservation_id) is True
        await manager.client.wait(reservation_id)
        assert (await manager.client.nodes())[0].offered == Resources(8000, 16 * GIB, 1000)
        assert await manager.update_worker_resources("w1", {"cpu": {"available_cores": 2}}) is True
        assert (await manager.client.nodes())[0].offered == Resources(2000, 16 * GIB, 1000), "the rest is as it was"
        with pytest.raises(GridError, match="w1 has no agent"):
            await manager.client.submit("true", only=("w1",))


async def test_a_worker_that_is_busy_in_full_or_tells_nothing_is_updated(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        await manager.register_worker("w1", REPORT)
        busy = {"cpu": {"available_cores": 0}, "memory": {"available_mb": 0}}
        assert await manager.update_worker_resources("w1", busy) is True
        assert (await manager.client.nodes())[0].offered == Resources(0, 0, 1000)
        assert await manager.update_worker_resources("w1", {"cpu": {}, "memory": {}, "gpu": {}}) is True
        assert (await manager.client.nodes())[0].offered == Resources(0, 0, 1000), "as before"
        with pytest.raises(BadValue, match="without resources"):
            await manager.register_worker("w2", busy)


async def test_updates_of_different_kinds_at_once_are_both_kept(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        await manager.register_worker("w1", REPORT)
        for free in range(1, 6):
            told = [{"cpu": {"available_cores": free}}, {"memory": {"available_mb": free}}]
            await asyncio.gather(*(manager.update_worker_resources("w1", one) for one in told))
            assert (await manager.client.nodes())[0].facts.declared == Resources(1000 * free, free * MIB, 1000)


async def test_what_the_detector_tells_of_this_machine_can_be_registered_as_it_is(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        told = HardwareDetector("none").get_capabilities()
        assert await manager.register_worker("w1", told) is True
        assert (await manager.client.nodes())[0].facts.lendable.cpu == 1000 * told["cpu"]["cores"]


async def test_a_worker_that_has_an_agent_tells_itself_what_it_has(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        worker = await agent(grid.url, node("n1"))
        for tell in (manager.register_worker, manager.update_worker_resources):
            with pytest.raises(RequestRefused) as refused:
                await tell("n1", REPORT)
            assert (refused.value.what, refused.value.why) == ("n1 has an agent", "its agent tells what it has")
        with pytest.raises(BadValue, match="unknown node"):
            await manager.update_worker_resources("w9", REPORT)
        assert [one.facts.name for one in await manager.client.nodes()] == ["n1"]
        await worker.close()


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ({}, "without resources"),
        ({"cpu": {"cores": 0}}, "without resources"),
        ({"cpu": {"core": 4}}, "'core' is no resource of a worker"),
        ({"cpu": {5: 4}}, "'5' is no resource of a worker"),
        ({"cpu_cores": 1e9}, "cores cannot be 1000000000.0"),
        ({"cpu": {"cores": float("nan")}}, "cores cannot be nan"),
        ({"gpu": {"devices": 1.5}}, "whole GPUs"),
        ({"tpu": {"devices": 1}}, "'tpu' is no part of a worker's resources"),
        ({"memory": {"cores": 8}}, "'cores' does not belong to memory"),
        ({"cpu": {"cores": 8}, "gpu": {"devices": 1, "total_mb": 16384}}, "'total_mb' does not belong to gpu"),
    ],
)
def test_reports_that_make_no_sense_are_said(report: Any, says: str) -> None:
    with pytest.raises(BadValue, match=says):
        capacities(report)


@pytest.mark.parametrize("worker", [None, True, b"w1", ["w1"]])
async def test_a_worker_is_named_by_text(worker: Any) -> None:
    manager = DynamicResourceManager(config("ws://192.0.2.1:1"))
    for tell in (manager.register_worker, manager.update_worker_resources):
        with pytest.raises(BadValue, match="is no name of a worker"):
            await tell(worker, {"cpu_cores": 1})


async def test_without_a_pool_the_decision_says_so(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        decision = await manager.evaluate_scaling()
        assert (decision.action, decision.count) == ("none", 0)
        assert decision.reasons == ("no pool of machines is configured (docs/scaling.md)",)


POOL = Pool(
    name="burst", provider="p", idle=1.0, boot=0.5, shapes=(Shape(type="c5", resources=Resources(4000, 8 * GIB)),)
)


async def test_the_decision_is_the_plan_of_now(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        await pools(grid, manager, POOL)
        decision = await manager.evaluate_scaling()
        assert (decision.action, decision.count) == ("none", 0)
        for _ in range(2):
            await manager.client.submit("true", cpus=3)
        decision = await manager.evaluate_scaling()
        assert (decision.action, decision.count, decision.worker_type) == ("scale_up", 2, "c5")
        assert decision.resource_requirements == {"cpu_cores": 4.0, "memory_mb": 8192.0}
        assert (decision.pool, decision.provider, decision.worker_ids) == ("burst", "p", ())
        assert "2 jobs of" in decision.reasons[0]


async def test_what_is_to_end_is_told_of_one_pool_at_a_time_with_its_provider(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, DynamicResourceManager(config(grid.url)) as manager:
        await pools(grid, manager, POOL, replace(POOL, name="other", provider="q"))
        joined = []
        for pool in ("burst", "other", "burst"):
            name = await manager.client.create_machine(pool)
            grid.driver.put(MachineAnswered(name, CallKind.CREATE, 1, Answer.DONE, name))
            joined.append(await agent(grid.url, node(name)))
        await pools(grid, manager, replace(POOL, name="new"))
        decision = await manager.evaluate_scaling()
        assert (decision.action, decision.count, decision.pool, decision.provider) == ("scale_down", 2, "burst", "p")
        assert [name.split("-")[0] for name in decision.worker_ids] == ["burst", "burst"]
        for worker in joined:
            await worker.close()
