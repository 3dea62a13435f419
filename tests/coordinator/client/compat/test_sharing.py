"""`ResourceSharingManager` as the intelligent sharing guide has it: boosts where there is Ray, and else holds; against
a real coordinator and played agents."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.core import BadValue, GridClient, RequestRefused, SharingDisabled
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler
from distributed_grid.orchestration.resource_sharing_manager import ResourceSharingManager, ResourceType
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator
from distributed_grid.protocol.boosts import JOIN_WITHIN
from distributed_grid.protocol.jobs import Priority, State
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.client.compat.test_boosts import config, scene
from tests.coordinator.ends import agent, coordinator, node


async def test_without_ray_what_is_requested_is_a_hold_that_the_callers_jobs_take(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await agent(grid.url, node("gpu-master", cores=8)), await agent(grid.url, node("n2"))]
        async with ResourceSharingManager(config(grid.url)) as sharing:
            held = await sharing.request_resource("gpu-master", "cpu", 3.0, "high", 600)
            assert held is not None
            view = await sharing.client.show(held)
            assert (view.state, view.node, view.spec.time_limit) == (State.RUNNING, "n2", 600.0)
            assert view.request.priority is Priority.HIGH and view.request.resources == Resources(3000)
            inside = await sharing.client.result(await sharing.client.submit("true", cpus=2, within=held))
            assert (inside.node, inside.success) == ("n2", True)
            (told,) = (await sharing.get_resource_status())["holds"]
            assert (told["id"], told["node"], told["cpu"], told["priority"]) == (held, "n2", 3.0, "high")
            assert told["expires"] == view.started + 600.0
            assert await sharing.request_resource("gpu-master", "cpu", 2.0) is None, "one core of others is left"

            assert await sharing.release_resource(held) is True
            await sharing.client.wait(held)
            assert await sharing.release_resource(held) is False
            assert (await sharing.get_resource_status())["holds"] == []
        assert not workers[0].launched and [one.spec.argv for one in workers[1].launched] == [("true",)]
        for worker in workers:
            await worker.close()


async def test_a_hold_is_released_by_its_name_also_if_a_newer_job_has_that_name(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, ResourceSharingManager(config(grid.url)) as sharing:
        worker = await agent(grid.url)
        held = await sharing.hold(Resources(1000), name="evening")
        assert held is not None
        await sharing.client.result(await sharing.client.submit("true", name="evening", within=held))
        assert await sharing.release_resource("evening") is True
        assert (await sharing.client.wait(held)).state is State.ENDED
        await worker.close()


@pytest.mark.parametrize("amount", [2.0, "2"])
async def test_with_ray_what_is_requested_is_a_boost(tmp_path: Path, amount: Any) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceSharingManager(config(grid.url)) as sharing:
        lent = await sharing.request_resource("gpu-master", ResourceType.CPU, amount, duration_minutes=30)
        assert lent is not None
        assert worker.launched[0].spec.boost is not None and worker.launched[0].spec.time_limit == 1800.0 + JOIN_WITHIN
        status = await sharing.get_resource_status()
        assert status["boosts"]["resources"] == {"cpu": 2.0} and status["holds"] == []
        (allocation,) = status["allocations"]
        assert (allocation["job"], allocation["cpu"]) == (lent, 2.0)
        assert await sharing.release_resource(lent) is True


@pytest.mark.parametrize(
    ("kind", "amount", "holds"),
    [
        ("memory", 4, Resources(1000, 4 * GIB)),
        ("cpu", "0.5", Resources(500)),
        (ResourceType.CPU, 1.5, Resources(1500)),
    ],
)
async def test_amounts_are_in_the_guides_units(tmp_path: Path, kind: Any, amount: Any, holds: Resources) -> None:
    async with coordinator(tmp_path) as grid, ResourceSharingManager(config(grid.url)) as sharing:
        workers = [await agent(grid.url, node("n1")), await agent(grid.url, node("n2"))]
        held = await sharing.request_resource("n1", kind, amount)
        assert held is not None and (await sharing.client.show(held)).request.resources == holds
        for worker in workers:
            await worker.close()


async def test_what_no_node_has_is_none_and_the_log_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator(tmp_path) as grid, ResourceSharingManager(config(grid.url)) as sharing:
        workers = [await agent(grid.url, node("n1", cores=8)), await agent(grid.url, node("n2"))]
        with caplog.at_level(logging.WARNING):
            assert await sharing.request_resource("n1", "cpu", 5.0) is None
        (said,) = [one.getMessage() for one in caplog.records if one.name == "distributed_grid.sharing"]
        assert said.startswith("No nodes have sufficient available resources: ")
        wrong: list[dict[str, Any]] = [{"resource_type": "disk"}, {"priority": "soon"}, {"amount": 0}, {"amount": True}]
        wrong += [{"duration": -1}, {"duration": "soon"}, {"duration": 60, "duration_minutes": 1}]
        for one in wrong:
            asked: dict[str, Any] = {"node_id": "n1", "resource_type": "cpu", "amount": 1.0}
            with pytest.raises(BadValue):
                await sharing.request_resource(**(asked | one))
        with pytest.raises(BadValue, match="Target node not found in cluster") as unknown:
            await sharing.request_resource("n11", "cpu", 1.0)
        assert unknown.value.hint == "did you mean n1?"
        with pytest.raises(BadValue, match="Target node not found in cluster"):
            await sharing.request_resource(None, "cpu", 1.0)  # type: ignore[arg-type]
        off = ResourceSharingManager(config(grid.url, resource_sharing__enabled="false"))
        with pytest.raises(SharingDisabled):
            await off.request_resource("n1", "cpu", 1.0)
        assert await sharing.client.holds() == []
        for worker in workers:
            await worker.close()


async def test_only_boosts_and_holds_are_released(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator(tmp_path) as grid, ResourceSharingManager(config(grid.url)) as sharing:
        job = await sharing.client.submit("true", name="mine")
        with pytest.raises(BadValue, match="neither a boost nor a hold") as refused:
            await sharing.release_resource("mine")
        assert refused.value.hint == f"grid cancel {job}" and (await sharing.client.show(job)).state is State.WAITING
        with caplog.at_level(logging.WARNING):
            assert await sharing.release_resource("nobody") is False
        assert "nothing to release" in caplog.text


async def test_part_of_an_id_releases_and_completes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, node("n1"))
        sharing, scheduler = (
            ResourceSharingManager(config(grid.url), client),
            IntelligentScheduler(config(grid.url), client),
        )
        held = await sharing.hold(Resources(1000), name="mine")
        assert held is not None
        for part in (held[:-1], held[:3], held.removeprefix("j-"), "last", "min", ""):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert await sharing.release_resource(part) is False
            assert "nothing to release: no job" in caplog.text and repr(part) in caplog.text
            with caplog.at_level(logging.WARNING):
                assert await scheduler.complete_task(part) is False
            assert "nothing to complete: no job" in caplog.text
        assert [(one.id, one.state) for one in await client.holds()] == [(held, State.RUNNING)]
        assert await sharing.release_resource("mine") is True, "its name is what it was asked for by"
        await worker.close()


async def test_a_caller_who_gives_up_holds_nothing(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, node("n1"))
        sharing = ResourceSharingManager(config(grid.url), client)
        first = await sharing.hold(Resources(4000))
        asking = asyncio.create_task(sharing.hold(Resources(4000), immediate=False, name="given-up"))
        async with asyncio.timeout(60.0):
            while len(await client.holds()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert (await client.wait("given-up")).outcome.cause == "cancelled"  # type: ignore[union-attr]
        assert [one.id for one in await client.holds()] == [first]
        await worker.close()


async def test_the_orchestrators_request_is_this(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, ResourceSharingOrchestrator(config(grid.url)) as orchestrator:
        workers = [await agent(grid.url, node("gpu-master")), await agent(grid.url, node("n2"))]
        held = await orchestrator.request_resources(
            node_id="gpu-master", resource_type="cpu", amount=2.0, priority="high", duration_minutes=30
        )
        assert held is not None and (await orchestrator.client.show(held)).spec.time_limit == 1800.0
        assert await orchestrator.release_resources(held) is True
        with pytest.raises(RequestRefused):
            await orchestrator.client.submit("true", within=held)
        for worker in workers:
            await worker.close()
