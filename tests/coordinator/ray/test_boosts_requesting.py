"""A request for a boost that is said again, as a client does whose connection broke before the answer came: one key is
one boost, whatever became of Ray meanwhile."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.ray.boosts import BoostService
from distributed_grid.protocol.boosts import RayAuth
from distributed_grid.protocol.messages import ExtendBoost, Failed, RequestBoost, Submitted
from distributed_grid.protocol.resources import ResourceType
from tests.coordinator.client.compat.test_boosts import scene
from tests.coordinator.ends import client, coordinator, job

ASKED = RequestBoost(1, "k1", "gpu-master", ResourceType.CPU, 1.0)


async def test_a_request_said_again_is_the_same_boost_also_while_ray_is_away(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, _):
        ann = await client(grid.url)
        (boost,) = (await ann.ask(ASKED)).jobs
        await ann.ask(ExtendBoost(2, boost, 60.0))
        ray.down = True
        again = await ann.ask(replace(ASKED, id=3))
        assert isinstance(again, Submitted) and again.jobs == (boost,)
        assert list(grid.ledger.state.jobs) == [boost]
        await ann.close()


async def test_how_long_a_raylet_may_take_to_join_is_as_it_is_set(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _):
        grid.boosts = BoostService(
            grid.ledger.state, grid.boosts._bridge, RayAuth.DISABLED, grid.driver.put, join_within=7.0
        )
        boost = (await grid.boosts.submission(ASKED)).spec.boost
        assert boost is not None and boost.join_within == 7.0


async def test_it_is_so_after_a_restart_as_well(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _):
        ann = await client(grid.url)
        (boost,) = (await ann.ask(ASKED)).jobs
        await ann.close()
    async with coordinator(tmp_path) as grid:
        ann = await client(grid.url)
        assert (await ann.ask(replace(ASKED, id=2))).jobs == (boost,)
        await ann.close()


@pytest.mark.parametrize("other", [{"target": "n1"}, {"kind": ResourceType.MEMORY}])
async def test_a_key_does_not_stand_for_another_boost_or_job(tmp_path: Path, other: dict[str, str]) -> None:
    async with scene(tmp_path) as (grid, _, _):
        ann = await client(grid.url)
        await ann.ask(ASKED)
        await ann.submit(job("sleep", "60", key="k2"))
        for asked in (replace(ASKED, id=2, **other), replace(ASKED, id=3, key="k2")):
            refused = await ann.ask(asked)
            assert isinstance(refused, Failed) and "was used for something else" in refused.what
        assert len(grid.ledger.state.jobs) == 2
        await ann.close()
