"""`ResourceSharingOrchestrator` as the intelligent sharing guide has it, against a real coordinator, a played agent and
a played Ray."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.core import BadValue, GridUnavailable
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator
from distributed_grid.protocol.boosts import JOIN_WITHIN
from tests.coordinator.client.compat.test_boosts import config, scene
from tests.coordinator.ends import agent, coordinator


async def test_the_guides_program_borrows_and_gives_back(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, worker):
        cluster_config, ssh_manager = config(grid.url), None
        orchestrator = ResourceSharingOrchestrator(cluster_config, ssh_manager)
        await orchestrator.initialize()
        await orchestrator.start()
        request_id = await orchestrator.request_resources(
            node_id="gpu-master", resource_type="cpu", amount=2.0, priority="high", duration_minutes=30
        )
        assert request_id is not None
        status = await orchestrator.get_cluster_status()
        assert status["boosts"]["resources"] == {"cpu": 2.0} and status["jobs"] == {"running": 1}
        assert status["nodes"]["n1"]["state"] == "up" and status["trouble"] == ""
        snapshots = orchestrator.get_node_resource_snapshots()
        assert snapshots == status["nodes"] and snapshots["n1"]["cpu"]["lent"] == 2.0
        launch = worker.launched[0]
        assert launch.spec.time_limit == 1800.0 + JOIN_WITHIN and launch.spec.boost is not None

        assert await orchestrator.release_resources(request_id) is True
        await orchestrator.client.wait(request_id)
        assert await orchestrator.release_resources(request_id) is False
        await orchestrator.stop()


async def test_a_duration_is_given_in_minutes_in_seconds_or_as_text_and_else_it_is_an_hour(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceSharingOrchestrator(config(grid.url)) as orchestrator:
        given: list[dict[str, Any]] = [{}, {"duration_minutes": 2}, {"duration": 90}, {"duration": "30m"}]
        for one in given:
            assert await orchestrator.request_resources("gpu-master", "cpu", 1.0, **one)
        lasts = [launch.spec.time_limit - JOIN_WITHIN for launch in worker.launched]
        assert lasts == [3600.0, 120.0, 90.0, 1800.0]


async def test_the_nodes_are_looked_at_again_and_again_until_it_is_stopped(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        often = config(grid.url, resource_sharing__monitoring_interval_seconds="0.05")
        orchestrator = ResourceSharingOrchestrator(often)
        assert orchestrator.get_node_resource_snapshots() == {}
        async with orchestrator:
            assert orchestrator.get_node_resource_snapshots() == {}
            worker = await agent(grid.url)
            async with asyncio.timeout(60.0):
                while not orchestrator.get_node_resource_snapshots():  # noqa: ASYNC110 (as its user would)
                    await asyncio.sleep(0.02)
            (node,) = orchestrator.get_node_resource_snapshots().values()
            assert node["cpu"]["total"] == 4.0 and node["memory_gb"]["total"] == 8.0 and node["gpu"]["total"] == 0.0
        with pytest.raises(GridUnavailable, match="closed"):
            await orchestrator.get_cluster_status()
        await worker.close()


async def test_where_nothing_can_be_borrowed_it_says_so(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceSharingOrchestrator(config(grid.url)) as orchestrator:
        assert await orchestrator.request_resources("gpu-master", "cpu", 5.0) is None
        wrong: list[dict[str, Any]] = [{"resource_type": "disk"}, {"priority": "soon"}, {"duration_minutes": "30"}]
        wrong += [{"duration": "soon"}, {"duration": True}, {"duration": 60, "duration_minutes": 1}]
        for one in wrong:
            with pytest.raises(BadValue):
                asked: dict[str, Any] = {"node_id": "n1", "resource_type": "cpu", "amount": 1.0}
                await orchestrator.request_resources(**(asked | one))
        assert not worker.launched
    async with coordinator(tmp_path) as grid, ResourceSharingOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url)
        assert await orchestrator.request_resources("n1", "cpu", 1.0) is None, "without Ray: no other node can hold it"
        await worker.close()


async def test_a_grid_that_is_not_there_is_said_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(GridUnavailable, match="cannot reach"):
        async with ResourceSharingOrchestrator(config("ws://127.0.0.1:1")):
            pass
