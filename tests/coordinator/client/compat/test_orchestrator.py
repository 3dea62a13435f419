"""`GridOrchestrator` as the resource sharing guide has it, against a real coordinator and a played agent."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.config import ClusterConfig
from distributed_grid.config.settings import SharingDisabled, load
from distributed_grid.coordinator.client.compat import orchestrator as client_orchestrator
from distributed_grid.core import BadValue, GridOrchestrator, GridUnavailable, RequestRefused
from distributed_grid.orchestration.resource_sharing import Priority, ResourceType
from distributed_grid.protocol.jobs import Cause, Outcome
from distributed_grid.protocol.messages import Exited, Launch, Stop, Submission
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.ends import agent, coordinator, runs_on


def config(url: str, **settings: str) -> ClusterConfig:
    flags = {"coordinator.url": url} | {name.replace("__", "."): text for name, text in settings.items()}
    return load(None, environment={}, here=Path("/none"), flags=flags)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "train.py").write_text("print('trained')")
    monkeypatch.chdir(directory)
    return directory


async def test_a_command_runs_with_what_was_asked_for_and_the_current_directory(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url)
        result = await orchestrator.run_with_shared_resources(
            command="python train.py",
            resource_type=ResourceType.MEMORY,
            amount=4,
            priority="high",
            job_id="training_001",
        )
        assert (result.success, result.exit_code, result.name) == (True, 0, "training_001")
        (launch,) = worker.launched
        assert launch.spec.argv == ("python", "train.py")
        assert launch.grant.resources == Resources(cpu=1000, memory=4 * GIB)
        assert grid.blobs.has(launch.spec.bundle)
        assert result.job.request.priority is Priority.HIGH
        await worker.close()


async def test_initialize_and_shutdown_do_what_async_with_does(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        orchestrator = GridOrchestrator(config(grid.url))
        with pytest.raises(GridUnavailable, match="not connected"):
            await orchestrator.run_with_shared_resources("true", "cpu", 1, ship=False)
        await orchestrator.initialize()
        assert (await orchestrator.run_with_shared_resources("true", "cpu", 1, ship=False)).success
        await orchestrator.shutdown()
        with pytest.raises(GridUnavailable, match="closed"):
            await orchestrator.get_shared_resource_status()
        await worker.close()


async def test_many_at_once_share_one_look_at_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url)
        looks: list[Any] = []
        real = orchestrator.client.ship

        def ship(directory: Any, **rules: Any) -> Any:
            looks.append(directory)
            return real(directory, **rules)

        monkeypatch.setattr(orchestrator.client, "ship", ship)
        tasks = [
            orchestrator.run_with_shared_resources(
                command=f"python train.py --task-id {i}", resource_type=ResourceType.CPU, amount=2, priority="medium"
            )
            for i in range(20)
        ]
        results = await asyncio.gather(*tasks)
        assert [result.job.spec.argv[-1] for result in results] == [str(i) for i in range(20)]
        assert len(looks) == 1
        (tmp_path / "here" / "train.py").write_text("changed")
        later = await orchestrator.run_with_shared_resources("python train.py", "cpu", 1)
        assert later.job.spec.bundle != results[0].job.spec.bundle
        await worker.close()


def test_it_ships_in_one_event_loop_after_another(tmp_path: Path) -> None:
    """In one that is open while the next is used, and in those of `asyncio.run`."""
    with asyncio.Runner() as serving, asyncio.Runner() as first:
        made = coordinator(tmp_path)
        grid = serving.run(made.__aenter__())
        worker = serving.run(agent(grid.url))
        orchestrator = GridOrchestrator(config(grid.url))

        async def use() -> bool:
            async with orchestrator, asyncio.timeout(60):
                running = orchestrator.run_with_shared_resources("python train.py", "cpu", 1, job_id="one")
                return (await running).success

        for run in (first.run, asyncio.run, asyncio.run):
            assert serving.run(asyncio.to_thread(run, use()))
        serving.run(worker.close())
        serving.run(made.__aexit__(None, None, None))


async def test_status_has_offers_and_allocations_in_plain_values(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url, runs=runs_on)
        running = asyncio.create_task(
            orchestrator.run_with_shared_resources("sleep 9", "cpu", 2.0, job_id="long", priority="critical")
        )
        await worker.until(Launch)
        status = await orchestrator.get_shared_resource_status()
        assert set(status) == {"offers", "allocations"}
        (offer,), (allocation,) = status["offers"], status["allocations"]
        assert (offer["node"], offer["state"], offer["cpu"], offer["memory_gb"]) == ("n1", "up", 2.0, 8.0)
        assert (allocation["name"], allocation["node"], allocation["cpu"]) == ("long", "n1", 2.0)
        assert (allocation["priority"], allocation["cores"]) == ("urgent", [0, 1])
        await worker.say(Exited(allocation["id"], Outcome(Cause.EXITED, code=3), returned=True))
        result = await running
        assert (result.success, result.exit_code) == (False, 3)
        await worker.close()


async def test_a_job_id_joins_the_living_job_and_starts_a_new_one_after_its_end(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url, runs=runs_on)

        def run(command: str = "train", **more: Any) -> "asyncio.Task[Any]":
            return asyncio.create_task(
                orchestrator.run_with_shared_resources(command, "cpu", 1, job_id="one", ship=False, **more)
            )

        first, second = run(), run()
        launch = await worker.until(Launch)
        async with GridOrchestrator(config(grid.url)) as other_process:
            third = asyncio.create_task(
                other_process.run_with_shared_resources("train", "cpu", 1, job_id="one", ship=False)
            )
            with pytest.raises(BadValue, match="'one' is taken"):
                await run("something else")
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
        assert not [seen for seen in worker.seen if isinstance(seen, Stop)], "who joined does not cancel"
        await worker.say(Exited(launch.allocation, Outcome(Cause.EXITED), returned=True))
        assert (await first).job_id == (await second).job_id == launch.job
        fourth = run()
        newer = await worker.until(lambda seen: isinstance(seen, Launch) and seen.job != launch.job)
        await worker.say(Exited(newer.allocation, Outcome(Cause.EXITED), returned=True))
        assert (await fourth).job_id == newer.job
        assert len(worker.launched) == 2
        await worker.close()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives up takes the time that a busy machine needs."""
    monkeypatch.setattr(client_orchestrator, "CANCEL_SECONDS", 60.0)


@pytest.mark.usefixtures("unhurried")
async def test_a_caller_who_is_cancelled_before_he_knows_his_job_cancels_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url, runs=runs_on)
        told, submit = asyncio.Event(), orchestrator.client.submit_many

        async def submitted(jobs: list[Submission]) -> list[str]:
            made = await submit(jobs)
            await told.wait()
            return made

        monkeypatch.setattr(orchestrator.client, "submit_many", submitted)
        running = asyncio.create_task(orchestrator.run_with_shared_resources("sleep 9", "cpu", 1, ship=False))
        launch = await worker.until(Launch)
        running.cancel()
        await asyncio.sleep(0)
        told.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await worker.until(Stop)).allocation == launch.allocation
        await worker.close()


@pytest.mark.usefixtures("unhurried")
async def test_a_cancelled_caller_cancels_its_job(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url, runs=runs_on)
        running = asyncio.create_task(orchestrator.run_with_shared_resources("sleep 9", "cpu", 1, ship=False))
        launch = await worker.until(Launch)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await worker.until(Stop)).allocation == launch.allocation
        await worker.close()


@pytest.mark.parametrize(
    ("kind", "amount"),
    [
        ("tpu", 1),
        ("cpu", 0),
        ("cpu", -1),
        ("cpu", float("nan")),
        ("memory", float("inf")),
        ("gpu", 1e308),
        ("gpu", 1.5),
        ("cpu", True),
        ("cpu", None),
        ("cpu", "many"),
    ],
)
async def test_a_wrong_type_or_amount_is_a_clear_error_before_anything_happens(kind: str, amount: Any) -> None:
    orchestrator = GridOrchestrator(config("ws://127.0.0.1:1"))
    with pytest.raises(BadValue):
        await orchestrator.run_with_shared_resources("true", kind, amount)


async def test_sums_of_floats_are_amounts_too(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, GridOrchestrator(config(grid.url)) as orchestrator:
        worker = await agent(grid.url)
        result = await orchestrator.run_with_shared_resources("true", "cpu", 0.1 + 0.2, ship=False)
        assert result.job.request.resources.cpu == 300
        await worker.close()


async def test_a_request_no_node_could_meet_is_refused_and_a_switched_off_grid_says_so(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        async with GridOrchestrator(config(grid.url)) as orchestrator:
            with pytest.raises(RequestRefused) as never:
                await orchestrator.run_with_shared_resources("true", "gpu", 1, ship=False)
            assert never.value.code == "never-fits"
        off = GridOrchestrator(config(grid.url, resource_sharing__enabled="false"))
        with pytest.raises(SharingDisabled, match="Resource sharing not enabled"):
            await off.run_with_shared_resources("true", "cpu", 1)
        await worker.close()
