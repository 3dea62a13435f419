"""`IntelligentScheduler` as the intelligent sharing guide has it, against a real coordinator and played agents."""

from pathlib import Path
from typing import Any

import pytest

from distributed_grid.core import BadValue, RequestRefused, SharingDisabled
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler, TaskRequest
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.client.compat.test_boosts import config
from tests.coordinator.ends import agent, coordinator, node, runs_on


async def test_a_task_with_a_command_is_a_job_that_is_placed_and_completed(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, IntelligentScheduler(config(grid.url)) as scheduler:
        workers = [await agent(grid.url, node(name), runs=runs_on) for name in ("n1", "n2")]
        task = TaskRequest(
            task_id="train", command="python train.py", cpu=2, memory_gb=1.5, priority="high",
            strategy="load-balanced", nodes=("n2",), env={"SEED": "7"},
        )  # fmt: skip
        job = await scheduler.schedule_task(task)
        assert job is not None
        view = await scheduler.client.show(job)
        assert (view.spec.name, view.spec.argv, view.spec.env) == ("train", ("python", "train.py"), {"SEED": "7"})
        assert view.request.resources == Resources(2000, 3 * GIB // 2) and view.request.strategy == "load-balanced"
        async for seen in scheduler.client.follow(job):
            if seen.state is State.RUNNING:
                break
        status = await scheduler.get_scheduling_status()
        told = status["tasks"][job]
        assert (told["name"], told["state"], told["node"], told["cpu"]) == ("train", "running", "n2", 2.0)
        assert status["jobs"] == {"running": 1} and "best-fit" in status["strategies"]
        assert set(status["performance"]) >= {"task_execution_time", "allocation_success_rate"}
        assert await scheduler.complete_task("train") is True
        assert (await scheduler.client.wait(job)).outcome.cause == "cancelled"  # type: ignore[union-attr]
        assert await scheduler.complete_task(job) is False
        assert (await scheduler.get_scheduling_status())["tasks"] == {}
        for worker in workers:
            await worker.close()


async def test_a_task_without_a_command_is_a_place_that_is_held_until_it_is_complete(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, IntelligentScheduler(config(grid.url)) as scheduler:
        worker = await agent(grid.url)
        task = await scheduler.schedule_task({"task_id": 7, "cpu": 3, "duration": "30m"})
        assert task is not None
        view = await scheduler.client.show(task)
        assert (view.state, view.spec.hold, view.spec.time_limit) == (State.RUNNING, True, 1800.0)
        assert await scheduler.schedule_task({"cpu": 3}) is None, "one core is left"
        assert await scheduler.complete_task("7") is True
        assert await scheduler.complete_task("nobody") is False
        assert not worker.launched
        await worker.close()


async def test_a_task_that_waits_says_why_and_one_that_could_run_how_sure_its_place_is(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, IntelligentScheduler(config(grid.url)) as scheduler:
        worker = await agent(grid.url, runs=runs_on)
        first = await scheduler.schedule_task({"command": "sleep 9", "cpu": 4})
        second = await scheduler.schedule_task({"command": "sleep 9", "cpu": 4})
        assert first and second
        async for seen in scheduler.client.follow(first):
            if seen.state is State.RUNNING:
                break
        tasks = (await scheduler.get_scheduling_status())["tasks"]
        assert tasks[second]["state"] == "waiting" and tasks[second]["confidence"] is None
        assert "4 cpu" in tasks[second]["reason"]
        await worker.close()


async def test_affinity_and_anti_affinity_say_near_and_apart_from_which_jobs(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, IntelligentScheduler(config(grid.url)) as scheduler:
        workers = [await agent(grid.url, node(name), runs=runs_on) for name in ("n1", "n2")]
        first = await scheduler.schedule_task({"task_id": "first", "command": "sleep 9"})
        assert first
        async for seen in scheduler.client.follow(first):
            if seen.state is State.RUNNING:
                break
        where = {}
        for how in ("affinity", "anti_affinity"):
            task = await scheduler.schedule_task(
                {"command": "sleep 9", how: "first" if how == "affinity" else ["first"]}
            )
            assert task
            async for seen in scheduler.client.follow(task):
                if seen.state is State.RUNNING:
                    break
            where[how] = seen.node
        here = (await scheduler.client.show(first)).node
        assert where["affinity"] == here != where["anti_affinity"]
        for worker in workers:
            await worker.close()


async def test_what_makes_no_sense_is_said_and_nothing_is_scheduled(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, IntelligentScheduler(config(grid.url)) as scheduler:
        worker = await agent(grid.url)
        wrong: list[Any] = ["true", {"commmand": "true"}, {"command": ""}, {"cpu": -1}, {"priority": "soon"}]
        wrong += [{"command": "true", "strategy": "guess"}, {"duration": "soon"}]
        wrong += [{"nodes": 5}, {"affinity": 5}, {"anti_affinity": [None]}, {"command": "true", "directory": 5}]
        for one in wrong:
            with pytest.raises(BadValue):
                await scheduler.schedule_task(one)
        with pytest.raises(BadValue, match="a task has no 'commmand'") as mistyped:
            await scheduler.schedule_task({"commmand": "true"})
        assert mistyped.value.hint.startswith("did you mean command?")
        with pytest.raises(RequestRefused) as refused:
            await scheduler.schedule_task({"command": "true", "cpu": 99})
        assert refused.value.code == "never-fits"
        off = IntelligentScheduler(config(grid.url, resource_sharing__enabled="false"))
        with pytest.raises(SharingDisabled):
            await off.schedule_task({"command": "true"})
        assert not worker.launched and (await scheduler.get_scheduling_status())["tasks"] == {}
        await worker.close()
