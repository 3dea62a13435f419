"""Boosts that are on their way: the ledger hears of each as soon as Ray shows it as it was lent, and no sooner."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Event, RayAnswered
from distributed_grid.coordinator.ray import boosts
from distributed_grid.coordinator.ray.boosts import (
    AT_LEAST,
    EARLY,
    IMPORTED,
    OF_WAITING,
    OF_WAITING_LATE,
    RECENT,
    USUAL,
    pace,
)
from distributed_grid.coordinator.ray.bridge_client import NoRay
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages import Failed, RequestBoost, Submitted
from distributed_grid.protocol.resources import ResourceType
from tests.coordinator.client.compat.test_boosts import scene
from tests.coordinator.ends import client


def asked(number: int) -> RequestBoost:
    return RequestBoost(number, f"k{number}", "gpu-master", ResourceType.CPU, 1.0)


def test_a_raylet_is_looked_for_seldom_while_it_cannot_be_there_and_then_by_how_long_it_takes() -> None:
    assert pace(0.0) == pace(0.9 * IMPORTED) == EARLY
    assert pace(IMPORTED) == AT_LEAST
    assert pace(0.9 * USUAL) == 0.9 * USUAL * OF_WAITING


def test_a_raylet_that_takes_unusually_long_is_looked_for_seldom_as_its_machine_is_busy() -> None:
    assert pace(USUAL) == USUAL * OF_WAITING_LATE >= 0.1
    assert pace(30.0) == 30.0 * OF_WAITING_LATE


def test_a_raylet_is_looked_for_seldom_in_half_the_time_that_the_fastest_one_took() -> None:
    assert pace(1.4, 3.0) == EARLY and pace(1.5, 3.0) == pace(1.5)
    assert pace(0.9 * USUAL, 60.0) == EARLY and pace(USUAL, 60.0) == pace(USUAL)


async def test_the_time_that_a_raylet_takes_is_known_for_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosts, "IMPORTED", 0.0)
    async with scene(tmp_path) as (grid, ray, worker):
        jobs, ann = grid.ledger.state.jobs, await client(grid.url)
        pauses: list[float] = []
        answer = ray.ask

        async def ask(what: str, **words: Any) -> Any:
            if what == "joined":
                pauses.append(words["pause"])
            return await answer(what, **words)

        monkeypatch.setattr(ray, "ask", ask)
        for first in (AT_LEAST, EARLY):
            (boost,) = (await ann.ask(asked(len(jobs) + 1))).jobs
            await until(lambda: bool(pauses))
            ray.joins(worker.launched[-1])
            await until(lambda boost=boost: jobs[boost].state is State.RUNNING)  # type: ignore[misc]
            assert pauses[0] == first
            pauses.clear()
        await ann.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_one_that_is_not_there_as_it_was_lent_joins_once_it_is_and_keeps_nobody_from_joining(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as (grid, ray, worker):
        jobs, ann = grid.ledger.state.jobs, await client(grid.url)
        ray.deaf = True
        (first,) = (await ann.ask(asked(1))).jobs
        await until(lambda: bool(jobs[first].started))
        ray.deaf = False
        ray.joins(worker.launched[0])
        raylet = ray.shown[-1]
        whole, raylet["total"] = raylet["total"], raylet["total"] | {"CPU": 0.5}
        (second,) = (await ann.ask(asked(2))).jobs
        await until(lambda: jobs[second].state is State.RUNNING)
        assert jobs[first].state is State.STARTING
        raylet["total"] = whole
        await until(lambda: jobs[first].state is State.RUNNING)
        await ann.close()


async def test_one_that_comes_while_ray_cannot_be_asked_joins_when_it_can(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, ray, worker):
        jobs, ann = grid.ledger.state.jobs, await client(grid.url)
        ray.deaf = True
        (boost,) = (await ann.ask(asked(1))).jobs
        await until(lambda: bool(jobs[boost].started))
        ray.down, ray.deaf = True, False
        ray.asked.clear()
        await ray.asked.wait()
        ray.joins(worker.launched[0])
        ray.asked.clear()
        await ray.asked.wait()
        assert jobs[boost].state is State.STARTING
        ray.down = False
        await until(lambda: jobs[boost].state is State.RUNNING)
        await ann.close()


async def test_one_that_ray_shows_no_more_ends_and_all_is_named_that_may_be_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boosts, "UNSEEN", 0.0)
    async with scene(tmp_path) as (grid, ray, worker):
        jobs, ann = grid.ledger.state.jobs, await client(grid.url)
        (boost,) = (await ann.ask(asked(1))).jobs
        await until(lambda: bool(jobs[boost].started))
        ray.joins(worker.launched[0])
        await until(lambda: jobs[boost].state is State.RUNNING)
        allocation = grid.ledger.state.allocations[jobs[boost].allocation]
        ray.shown.clear()
        await until(lambda: allocation.stop is not None)
        assert allocation.stop is not None and allocation.stop.text.startswith("Ray does not show it any more")
        for cause in ("could not reach it", "started anew", "drained it"):
            assert cause in allocation.stop.text
        await ann.close()


async def test_a_target_is_known_to_ray_also_by_the_name_of_its_machine(tmp_path: Path) -> None:
    async with scene(tmp_path) as (grid, _, _):
        ann = await client(grid.url)
        assert isinstance(await ann.ask(replace(asked(1), target="host")), Submitted)
        assert isinstance(await ann.ask(replace(asked(2), target="192.0.2.2")), Submitted)
        refused = await ann.ask(replace(asked(3), target="gpu-slave"))
        assert isinstance(refused, Failed) and "Target node not found" in refused.what
        await ann.close()


async def test_ray_is_asked_about_the_cluster_anew_only_after_a_while_without_an_answer_or_after_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as (grid, ray, _):
        questions: list[str] = []
        answer = ray.ask

        async def ask(what: str, **words: Any) -> Any:
            questions.append(what)
            return await answer(what, **words)

        def asked_for() -> int:
            found, questions[:] = questions.count("cluster"), []
            return found

        monkeypatch.setattr(ray, "ask", ask)
        for number in (1, 2):
            await grid.boosts.submission(asked(number))
        assert asked_for() == 1
        ray.down = True
        with pytest.raises(NoRay):
            await grid.boosts.nodes()
        ray.down = False
        events: list[Event] = []
        monkeypatch.setattr(grid.boosts, "_put", events.append)
        await grid.boosts.submission(asked(3))
        assert asked_for() == 1
        await grid.boosts.nodes()
        assert events == [RayAnswered(grid.boosts.address)], "it is told once that Ray is back"
        grid.boosts._heard -= RECENT
        await grid.boosts.submission(asked(4))
        assert asked_for() == 1
        for number in (5, 6):
            with pytest.raises(BadValue, match="Target node not found"):
                await grid.boosts.submission(replace(asked(number), target="gpu-slave"))
        assert asked_for() == 2
