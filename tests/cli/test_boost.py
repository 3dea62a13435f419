"""`grid boost`, where what it does can be seen without a Ray: against a coordinator in this process, and a played Ray.
With a real one: tests/ray."""

import asyncio
import os
from pathlib import Path

import pytest

from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager
from distributed_grid.protocol.jobs import State
from tests.coordinator.test_client_boosts import asked, config, scene
from tests.grid_fixture import GRID


async def grid_command(url: str, here: Path, *words: str) -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    process = await asyncio.create_subprocess_exec(
        *GRID, *words, cwd=here, env=os.environ | {"GRID_COORDINATOR": url}, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_released_and_extended_are_boosts_and_never_another_job(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        older, newer = [await manager.request_boost(asked()) for _ in range(2)]
        job = await manager.client.submit("sleep 600")

        code, said = await grid_command(grid.url, tmp_path, "boost", "extend", "last", "10m")
        assert code == 0 and f"{newer} lasts 1h10m in all" in said
        code, _ = await grid_command(grid.url, tmp_path, "boost", "release", "last")
        assert code == 0
        await manager.client.wait(newer or "")
        assert [one.boost_id for one in await manager.get_active_boosts()] == [older]

        for words in (("release", job), ("extend", job, "10m")):
            code, said = await grid_command(grid.url, tmp_path, "boost", *words)
            assert code == 2 and f"{job} is no boost" in said and "grid boost status" in said
        assert (await manager.client.show(job)).state is not State.ENDED

        assert (await grid_command(grid.url, tmp_path, "boost", "release", (older or "")[:9]))[0] == 0
        await manager.client.wait(older or "")
        code, said = await grid_command(grid.url, tmp_path, "boost", "release", "last")
        assert code == 2 and f"{job} is no boost" in said
        assert (await manager.client.show(job)).state is not State.ENDED


@pytest.mark.parametrize(("kind", "amount"), [("gpu", "1"), ("cpu", "9")])
async def test_what_no_node_has_is_said_in_the_guides_words(tmp_path: Path, kind: str, amount: str) -> None:
    async with scene(tmp_path) as (grid, _, worker):
        code, said = await grid_command(grid.url, tmp_path, "boost", "request", "gpu-master", kind, amount)
        assert code == 1 and "No nodes have sufficient available resources" in said and "why:" in said
        assert not worker.launched
