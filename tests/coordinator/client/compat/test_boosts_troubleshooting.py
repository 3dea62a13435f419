"""The troubleshooting section of the resource boost guide, row by row: what it says is what one gets, and what it
advises helps. With a real Ray: tests/ray/test_boosts.py."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distributed_grid.core import GridError, SharingDisabled
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager
from tests.coordinator.client.compat.test_boosts import asked, config, scene
from tests.coordinator.ends import agent, coordinator
from tests.coordinator.played_ray import PlayedRay
from tests.grid_fixture import CONFIG, Grid


async def test_no_nodes_have_sufficient_available_resources(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        with caplog.at_level(logging.WARNING, "distributed_grid.boosts"):
            assert await manager.request_boost(asked(5.0)) is None
        assert "No nodes have sufficient available resources" in caplog.text
        assert await manager.request_boost(asked(4.0)), "smaller amounts, as the guide advises"


async def test_target_node_not_found_in_cluster(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, _), ResourceBoostManager(config(grid.url)) as manager:
        with pytest.raises(GridError, match="Target node not found in cluster") as refused:
            await manager.request_boost(asked(target="gpu-mastre"))
        assert "gpu-master" in refused.value.why and "n1" in refused.value.why, "the names that there are"
        assert refused.value.hint == "did you mean gpu-master?"
        ray.shown = []
        with pytest.raises(GridError, match="Target node not found in cluster"):
            await manager.request_boost(asked(target="gpu-master"))


async def test_resource_sharing_not_enabled(tmp_path: Path) -> None:
    ray = PlayedRay()
    async with coordinator(tmp_path, ray=ray, lends=False) as grid:
        async with ResourceBoostManager(config(grid.url)) as manager:
            with pytest.raises(GridError, match="Resource sharing not enabled") as refused:
                await manager.request_boost(asked())
            assert "resource_sharing.enabled: true" in refused.value.hint
        off = ResourceBoostManager(config(grid.url, resource_sharing__enabled="false"))
        with pytest.raises(SharingDisabled, match="Resource sharing not enabled"):
            await off.request_boost(asked())
    async with coordinator(tmp_path, ray=ray) as grid, ResourceBoostManager(config(grid.url)) as manager:
        worker = await agent(grid.url, runs=ray.joins)
        assert await manager.request_boost(asked()), "enabled, and started again, as the guide advises"
        await worker.close()


async def test_boosts_not_persisting_across_cli_commands(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, worker):
        async with ResourceBoostManager(config(grid.url)) as first:
            boost = await first.request_boost(asked())
        async with ResourceBoostManager(config(grid.url)) as second:
            assert [one.boost_id for one in await second.get_active_boosts()] == [boost]
        held = dict(worker.held)
    async with coordinator(tmp_path, ray=ray) as grid, ResourceBoostManager(config(grid.url)) as third:
        back = await agent(grid.url, runs=ray.joins, held=held)
        async with third:
            async for view in third.client.follow(boost or ""):
                if view.state == "running":
                    break
            (one,) = await third.get_active_boosts()
            assert (one.boost_id, one.differs) == (boost, "") and not back.launched
            assert await third.release_boost(one.boost_id)
        await back.close()


@contextmanager
def starting(place: Path, content: str) -> Iterator[tuple[Grid, Path]]:
    """A coordinator whose user has this file of old boosts."""
    grid = Grid(place / "grid", CONFIG + "ray: {address: '127.0.0.1:1'}\n")
    grid.environment["HOME"] = str(place)
    old = place / ".distributed_grid" / "resource_boosts.json"
    old.parent.mkdir()
    old.write_text(content)
    try:
        grid.start_coordinator()
        yield grid, old
    finally:
        grid.close()


def test_persistence_file_corrupted(tmp_path: Path) -> None:
    with starting(tmp_path, '{"boosts": [{"boost_') as (grid, old):
        said = grid.log("coordinator")
        assert "Persistence file corrupted" in said and str(old) in said and "it is not JSON" in said
        assert "Traceback" not in said
        assert grid.json("boost", "history")["boosts"] == []
        (kept,) = old.parent.iterdir()
        assert kept.name.startswith("resource_boosts.json.corrupt-") and kept.read_text().endswith('{"boost_')
        grid.kill("coordinator")
        kept.unlink()  # as the guide advises
        grid.start_coordinator()
        assert grid.log("coordinator").count("Persistence file corrupted") == 1


def test_the_old_file_is_imported_once_and_says_what_to_request_again(tmp_path: Path) -> None:
    entry = {
        "boost_id": "0f8c2b7e",
        "source_node": "gpu2",
        "target_node": "gpu-master",
        "resource_type": "cpu",
        "amount": 2.0,
        "allocated_at": time.time() - 600,
        "expires_at": time.time() + 3000,
        "is_active": True,
    }
    with starting(tmp_path, json.dumps({"boosts": [entry]})) as (grid, old):
        shown = grid.run("boost", "history").stdout
        assert "gpu-master" in shown and "grid boost request gpu-master cpu 2 --priority medium" in shown
        assert grid.json("boost", "status")["boosts"] == [], "nothing of it was ever lent"
        assert [path.name for path in old.parent.iterdir()] == ["resource_boosts.json.imported"]
        grid.kill("coordinator")
        grid.start_coordinator()
        assert len(grid.json("boost", "history")["boosts"]) == 1
