"""`ResourceBoostManager` as the resource boost guide has it, against a real coordinator, a played agent and a played
Ray. With a real one: tests/ray/test_boost_api.py."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config import ClusterConfig
from distributed_grid.config.settings import load
from distributed_grid.coordinator.client.compat import connected
from distributed_grid.core import (
    BadValue,
    GridError,
    GridOrchestrator,
    GridUnavailable,
    SharingDisabled,
)
from distributed_grid.orchestration.resource_boost_manager import (
    AllocationPriority,
    ResourceBoostManager,
    ResourceBoostRequest,
    ResourceType,
)
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import GIB
from tests.coordinator.ends import AgentEnd, Coordinator, agent, coordinator, node
from tests.coordinator.played_ray import HEAD, PlayedRay

CPU, MEMORY = ResourceType.CPU, ResourceType.MEMORY


def config(url: str, **settings: str) -> ClusterConfig:
    flags = {"coordinator.url": url} | {name.replace("__", "."): text for name, text in settings.items()}
    return load(None, environment={}, here=Path("/none"), flags=flags)


def asked(amount: Any = 1.0, kind: Any = CPU, target: str = "gpu-master", **more: Any) -> ResourceBoostRequest:
    return ResourceBoostRequest(target, kind, amount, **more)


@asynccontextmanager
async def scene(place: Path) -> AsyncIterator[tuple[Coordinator, PlayedRay, AgentEnd]]:
    """A grid with one node of four cores and 8 GB, and Ray beside it."""
    ray = PlayedRay()
    async with coordinator(place, ray=ray) as grid:
        worker = await agent(grid.url, runs=ray.joins)
        yield grid, ray, worker
        await worker.close()


async def test_a_node_without_the_clusters_ray_is_not_chosen_where_another_has_it(tmp_path: Path) -> None:
    ray = PlayedRay()
    async with coordinator(tmp_path, ray=ray) as grid:
        fits: dict[str, Any] = {"ray": "2.60.0", "ray_python": "3.11.2"}
        old = fits | {"ray": "2.59.0"}
        facts = node("n1", cores=2), node("n2", cores=8, **fits), node("n3", cores=2, **old)
        workers = [await agent(grid.url, one, runs=ray.joins) for one in facts]
        async with ResourceBoostManager(config(grid.url)) as boosts:
            for _ in range(2):
                assert await boosts.request_boost(asked()) is not None
            assert {boost.source_node for boost in await boosts.get_active_boosts()} == {"n2"}
        for worker in workers:
            await worker.close()


async def test_a_preferred_source_is_asked_first_and_the_only_one_alone(tmp_path: Path) -> None:
    ray = PlayedRay()
    async with coordinator(tmp_path, ray=ray) as grid:
        facts = node("n1", cores=2), node("n2", cores=8)
        workers = [await agent(grid.url, one, runs=ray.joins) for one in facts]
        async with ResourceBoostManager(config(grid.url)) as boosts:
            for preferred, source in (("n1", "n1"), ("n2", "n2"), ("n1", "n1"), ("n1", "n2")):
                made = await boosts.request_boost(asked(preferred_source=preferred))
                (one,) = [one for one in await boosts.get_active_boosts() if one.boost_id == made]
                assert one.source_node == source
            assert await boosts.request_boost(asked(only_source="n1")) is None, "n2 has room, and is not asked"
        for worker in workers:
            await worker.close()


async def test_the_target_lends_to_itself_only_where_it_is_named(tmp_path: Path) -> None:
    ray = PlayedRay()
    async with coordinator(tmp_path, ray=ray) as grid:
        workers = [await agent(grid.url, node(name, cores=2), runs=ray.joins) for name in ("n1", "n2")]
        async with ResourceBoostManager(config(grid.url)) as boosts:
            for more, source in (({}, "n2"), ({"preferred_source": "n1"}, "n1"), ({"only_source": "n1"}, "n1")):
                made = await boosts.request_boost(asked(target="n1", **more))
                (one,) = [one for one in await boosts.get_active_boosts() if one.boost_id == made]
                assert one.source_node == source
            assert await boosts.request_boost(asked(2, target="n1")) is None, "n2 has one core left"
        for worker in workers:
            await worker.close()


async def test_of_a_fraction_the_next_whole_core_is_lent_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceBoostManager(config(grid.url)) as manager:
        with caplog.at_level(logging.WARNING):
            assert await manager.request_boost(asked(1.5))
        assert [one.getMessage() for one in caplog.records if one.name == "distributed_grid.boosts"] == [
            "a raylet has whole cores: 2 cpu for 1.5"
        ]
        assert (await manager.get_active_boosts())[0].amount == 2.0 and len(worker.launched[0].grant.cores) == 2


def test_a_request_has_the_guides_fields_in_the_guides_order_and_with_its_defaults() -> None:
    request = ResourceBoostRequest("gpu-master", CPU, 2.0)
    assert (request.priority, request.duration_seconds, request.preferred_source, request.exclusive) == (
        AllocationPriority.NORMAL,
        None,
        None,
        False,
    )
    full = ResourceBoostRequest("gpu-master", CPU, 2.0, AllocationPriority.CRITICAL, 1800.0, "gpu2")
    assert (full.target_node, full.resource_type, full.amount) == ("gpu-master", CPU, 2.0)
    assert (full.priority, full.duration_seconds, full.preferred_source) == (
        AllocationPriority.CRITICAL,
        1800.0,
        "gpu2",
    )


async def test_a_boost_is_requested_shown_and_released(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceBoostManager(config(grid.url)) as manager:
        before = datetime.now(UTC)
        boost_id = await manager.request_boost(asked(2.0, priority=AllocationPriority.HIGH, duration_seconds=1800))
        assert boost_id is not None
        (one,) = await manager.get_active_boosts()
        assert (one.boost_id, one.source_node, one.target_node) == (boost_id, "n1", "gpu-master")
        assert (one.resource_type, one.amount, one.priority) == (CPU, 2.0, AllocationPriority.HIGH)
        assert one.is_active and one.ray_node_id == f"node-of-{boost_id}" and not one.differs
        assert one.expires_at == one.allocated_at + timedelta(seconds=1800)
        assert before - timedelta(minutes=1) < one.allocated_at < datetime.now(UTC) + timedelta(minutes=1)
        (launch,) = worker.launched
        assert len(launch.grant.cores) == 2

        assert await manager.release_boost(boost_id) is True
        await manager.client.wait(boost_id)
        assert await manager.get_active_boosts() == []
        assert await manager.release_boost(boost_id) is False


async def test_an_exclusive_boost_has_its_group_while_it_is_lent(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, _), ResourceBoostManager(config(grid.url)) as manager:
        shared = await manager.request_boost(asked())
        assert ray.groups == {}
        boost_id = await manager.request_boost(asked(exclusive=True))
        assert list(ray.groups) == [f"grid-boost-{boost_id}"]
        told = {one.boost_id: one.exclusive for one in await manager.get_active_boosts()}
        assert told == {shared: False, boost_id: True}
        assert boost_id is not None and await manager.release_boost(boost_id)
        await manager.client.wait(boost_id)
        async with asyncio.timeout(30):
            await ray.let_go.wait()
        assert ray.groups == {}


async def test_without_a_duration_it_lasts_an_hour_and_memory_is_in_gb(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceBoostManager(config(grid.url)) as manager:
        assert await manager.request_boost(asked(4.0, MEMORY))
        (one,) = await manager.get_active_boosts()
        assert (one.amount, one.expires_at) == (4.0, one.allocated_at + timedelta(hours=1))
        boost = worker.launched[0].spec.boost
        assert boost is not None and boost.amount == 4 * GIB


async def test_the_manager_connects_by_itself_as_the_guide_never_says_to(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _):
        manager = ResourceBoostManager(config(grid.url))
        assert await manager.get_active_boosts() == []
        await manager.shutdown()


async def test_the_orchestrators_boosts_share_its_connection(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _):
        orchestrator = GridOrchestrator(config(grid.url))
        with pytest.raises(GridUnavailable, match="not connected"):
            await orchestrator.boosts.get_active_boosts()
        async with orchestrator:
            assert await orchestrator.boosts.request_boost(asked())
            await orchestrator.boosts.shutdown()
            assert len((await orchestrator.get_shared_resource_status())["allocations"]) == 1


async def test_active_boosts_are_filtered_by_their_target(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        first = await manager.request_boost(asked())
        second = await manager.request_boost(asked(target="n1", only_source="n1"))
        assert [one.boost_id for one in await manager.get_active_boosts()] == [first, second]
        assert [one.boost_id for one in await manager.get_active_boosts("n1")] == [second]
        assert await manager.release_boost(str(second))
        await manager.client.wait(str(second))
        assert await manager.get_active_boosts("n1") == [], "it is a node, and nothing is lent for it"
        assert await manager.get_active_boosts("nobody") == []


async def test_where_ray_cannot_be_asked_nobody_is_told_that_a_node_is_not_there(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, _), ResourceBoostManager(config(grid.url)) as manager:
        ray.down = True
        assert await manager.get_active_boosts("gpu-master") == []


async def test_the_status_sums_up_by_type_and_says_what_ray_shows_otherwise(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, _), ResourceBoostManager(config(grid.url)) as manager:
        first = await manager.request_boost(asked(2.0))
        second = await manager.request_boost(asked(1.5, MEMORY))
        status = await manager.get_boost_status()
        assert (status["active"], status["other"]) == (2, {})
        assert status["resources"] == {"cpu": 2.0, "memory": 1.5}
        assert (status["differences"], status["ray_address"], status["ray_trouble"]) == ({}, HEAD, "")
        assert [one["boost_id"] for one in status["boosts"]] == [first, second]

        ray.shown = [one for one in ray.shown if one["id"] != f"node-of-{second}"]
        assert (await manager.get_boost_status())["differences"] == {second: "Ray does not show it"}
        ray.down = True
        status = await manager.get_boost_status()
        assert "there is no Ray at" in status["ray_trouble"] and status["differences"] == {}
        assert status["active"] == 2


@pytest.mark.parametrize("kind", [CPU, ResourceType.GPU])
async def test_where_no_node_has_it_there_is_no_boost_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: ResourceType
) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceBoostManager(config(grid.url)) as manager:
        assert await manager.request_boost(asked(3.0))
        with caplog.at_level(logging.WARNING):
            assert await manager.request_boost(asked(2.0, kind)) is None
        (said,) = [one.getMessage() for one in caplog.records if one.name == "distributed_grid.boosts"]
        assert said.startswith("No nodes have sufficient available resources: ") and len(said) > 60
        assert len(worker.launched) == 1


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (asked(0), "no amount"),
        (asked("2"), "no amount"),
        (asked(True), "no amount"),
        (asked(10**400), "the amount is too large"),
        (asked(duration_seconds=10**400), "the duration is too large"),
        (asked(duration_seconds=400 * 86400.0), "cannot last 400d00h"),
        (asked(kind="disk"), "unknown resource type 'disk'"),
        (asked(duration_seconds=0), "cannot last 0 s"),
        (asked(duration_seconds=float("nan")), "cannot last nan s"),
        (asked(priority="soon"), "unknown priority"),
        (asked(target="nobody"), "Target node not found in cluster"),
        (asked(preferred_source="nobody"), "unknown node 'nobody'"),
        (asked(only_source="nobody"), "unknown node 'nobody'"),
        (asked(target=7), "cannot be asked"),  # type: ignore[arg-type]
        (None, "None is no request for a boost"),
    ],
)
async def test_what_cannot_be_asked_says_so_and_starts_nothing(
    tmp_path: Path, request_: ResourceBoostRequest, said: str
) -> None:
    async with scene(tmp_path) as (grid, _, worker), ResourceBoostManager(config(grid.url)) as manager:
        with pytest.raises(BadValue, match=said):
            await manager.request_boost(request_)
        assert not worker.launched and (await manager.get_boost_status())["boosts"] == []


async def test_words_are_taken_for_types_and_priorities_as_everywhere(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        assert await manager.request_boost(asked(1, kind="cpu", priority="critical"))
        assert (await manager.get_active_boosts())[0].priority is AllocationPriority.CRITICAL


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives up takes the time that a busy machine needs."""
    monkeypatch.setattr(connected, "CANCEL_SECONDS", 60.0)


@pytest.mark.usefixtures("unhurried")
async def test_a_caller_who_gives_up_leaves_nothing_lent(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, worker), ResourceBoostManager(config(grid.url)) as manager:
        ray.deaf = True
        asking = asyncio.create_task(manager.request_boost(asked()))
        await worker.until(Launch)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (view,) = await manager.client.jobs(ended=True)
        view = await manager.client.wait(view.id)
        assert view.state is State.ENDED and "its caller was cancelled" in [event.text for event in view.story]


@pytest.mark.usefixtures("unhurried")
async def test_a_caller_who_gives_up_before_he_has_an_id_leaves_nothing_lent_either(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, worker), ResourceBoostManager(config(grid.url)) as manager:
        ray.answers.clear()
        asking = asyncio.create_task(manager.request_boost(asked()))
        async with asyncio.timeout(60.0):
            await ray.asked.wait()
        asking.cancel()
        await asyncio.sleep(0)
        ray.answers.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        (view,) = await manager.client.jobs(ended=True)
        assert (await manager.client.wait(view.id)).state is State.ENDED
        assert await manager.get_active_boosts() == []


async def test_each_call_may_have_an_asyncio_run_of_its_own(tmp_path: Path) -> None:
    """As a program has it that is no coroutine: the guide's signatures do not say that these are."""
    async with scene(tmp_path) as (grid, _, _):
        manager = ResourceBoostManager(config(grid.url))

        def program() -> list[Any]:
            boost = asyncio.run(manager.request_boost(asked()))
            lent = [one.boost_id for one in asyncio.run(manager.get_active_boosts())]
            released = asyncio.run(manager.release_boost(boost))
            asyncio.run(manager.shutdown())
            return [lent == [boost], released]

        assert await asyncio.to_thread(program) == [True, True]


async def test_a_job_is_not_released_as_a_boost_and_what_nobody_knows_is_not_there(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _), ResourceBoostManager(config(grid.url)) as manager:
        job = await manager.client.submit("sleep 60")
        with pytest.raises(BadValue, match="is no boost"):
            await manager.release_boost(job)
        assert (await manager.client.show(job)).state is not State.ENDED
        assert await manager.release_boost("j-aaaaaaaaaaaa") is False


async def test_sharing_that_is_switched_off_here_or_at_the_coordinator_says_so(tmp_path: Path) -> None:
    async with coordinator(tmp_path, ray=PlayedRay(), lends=False) as grid:
        with pytest.raises(SharingDisabled, match="Resource sharing not enabled"):
            await ResourceBoostManager(config(grid.url, resource_sharing__enabled="false")).request_boost(asked())
        async with ResourceBoostManager(config(grid.url)) as manager:
            with pytest.raises(GridError, match="Resource sharing not enabled"):
                await manager.request_boost(asked())


async def test_a_grid_without_ray_says_so_and_shows_none(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, ResourceBoostManager(config(grid.url)) as manager:
        with pytest.raises(GridError, match="knows of no Ray cluster"):
            await manager.request_boost(asked())
        assert (await manager.get_boost_status())["active"] == 0
