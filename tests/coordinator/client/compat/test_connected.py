"""What the classes of the guides have in common: whose the connection is, and how what they borrow is waited for."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.client.compat.boosts import ResourceBoostManager
from distributed_grid.coordinator.client.compat.connected import Connected, borrowed, given_back
from distributed_grid.coordinator.client.compat.offloading import EnhancedOffloadingExecutor
from distributed_grid.coordinator.client.compat.orchestrator import GridOrchestrator
from distributed_grid.coordinator.client.compat.predictor import ResourcePerformancePredictor
from distributed_grid.coordinator.client.compat.resources import DynamicResourceManager
from distributed_grid.coordinator.client.compat.scheduler import IntelligentScheduler
from distributed_grid.coordinator.client.compat.sharing import ResourceSharingManager
from distributed_grid.core import BadValue, GridClient, GridError, GridUnavailable
from distributed_grid.protocol.jobs import JobSpec, State
from tests.coordinator.client.compat.test_boosts import config
from tests.coordinator.ends import agent, coordinator, node

HELD = {State.STARTING, State.RUNNING}
CLASSES = [
    DynamicResourceManager,
    EnhancedOffloadingExecutor,
    GridOrchestrator,
    IntelligentScheduler,
    ResourceBoostManager,
    ResourcePerformancePredictor,
    ResourceSharingManager,
]
log = logging.getLogger("tests.connected")


def any_kind(_: JobSpec) -> bool:
    return True


@pytest.mark.parametrize("kind", CLASSES)
async def test_each_class_of_the_guides_connects_and_disconnects_its_own_client(kind: Any, tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        settings = config(grid.url)
        made = kind(cluster_config=settings) if kind is EnhancedOffloadingExecutor else kind(settings)
        async with made as one:
            assert one is made and isinstance(one, Connected)
            assert not await one.client.nodes()
            assert one.client._loop is not None
        assert made.client._loop is None


async def test_a_given_client_is_left_to_its_owner(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        async with Connected(config(grid.url), client) as one:
            assert one.client is client
        assert client._loop is not None and not await client.nodes()


async def test_without_a_coordinator_it_says_so_at_once() -> None:
    one = Connected(config("ws://127.0.0.1:9"))
    with pytest.raises(GridUnavailable):
        await one.initialize()
    await one.shutdown()


async def test_what_is_borrowed_is_given_back_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, node("n1"))
        held = await borrowed(client, client.request_hold(cpus=1), HELD, "hold", log)
        assert held is not None and (await client.show(held)).state in HELD
        with pytest.raises(BadValue, match="is no boost"):
            await given_back(client, held, "no boost", lambda spec: spec.boost is not None, log)
        assert await given_back(client, held, "", any_kind, log) is True
        await client.wait(held)
        assert await given_back(client, held, "", any_kind, log) is False
        assert await given_back(client, "j-none", "", any_kind, log) is False
        assert "nothing to release: no job" in caplog.text
        assert await given_back(client, None, "", any_kind, log) is False  # what a request that was not granted returns
        assert "nothing to release: no id is given" in caplog.text
        await worker.close()


async def test_what_nobody_has_is_none_and_what_ends_before_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, node("n1"))
        assert await borrowed(client, client.request_hold(cpus=500), HELD, "hold", log) is None
        assert "No nodes have sufficient available resources" in caplog.text
        waiting = asyncio.create_task(borrowed(client, client.submit("true", begin="+1h"), HELD, "job", log))
        while not (jobs := await client.jobs()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await client.cancel(jobs[0].id)
        with pytest.raises(GridError, match="was not granted"):
            await waiting
        await worker.close()


async def test_who_is_cancelled_meanwhile_keeps_nothing(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridClient(grid.url) as client:
        worker = await agent(grid.url, node("n1"))
        waiting = asyncio.create_task(borrowed(client, client.submit("true", begin="+1h"), HELD, "job", log))
        while not (jobs := await client.jobs()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.wait(jobs[0].id)).state is State.ENDED
        await worker.close()
