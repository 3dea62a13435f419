"""`EnhancedOffloadingExecutor`: where a recommendation runs, by the mode; a real coordinator and played agents. That it
runs: tests/seeds/test_offloading_guide.py."""

import socket
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.core import BadValue, RequestRefused, SharingDisabled
from distributed_grid.orchestration.enhanced_offloading_executor import (
    EnhancedOffloadingExecutor,
    OffloadingMode,
    OffloadingRecommendation,
)
from distributed_grid.protocol.jobs import Priority
from distributed_grid.protocol.resources import GIB, Resources
from tests.coordinator.client.compat.test_boosts import config
from tests.coordinator.ends import agent, coordinator, node


def advice(command: Any = "true", **more: Any) -> OffloadingRecommendation:
    return OffloadingRecommendation(command=command, **({"directory": None} | more))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "here"
    directory.mkdir()
    (directory / "train.py").write_text("print('trained')")
    monkeypatch.chdir(directory)
    return directory


async def test_what_is_recommended_becomes_a_job_with_its_needs_and_its_directory(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        executor = EnhancedOffloadingExecutor(None, config(grid.url), mode=OffloadingMode.DYNAMIC_BALANCING)
        task_id = await executor.execute_offloading(
            OffloadingRecommendation(
                command="python train.py", cpu=2, memory_gb=1.5, priority="high", env={"SEED": "7"}, target_node="n1"
            )
        )
        result = await executor.client.result(task_id)
        assert (result.job_id, result.success, result.node) == (task_id, True, "n1")
        (launch,) = worker.launched
        assert launch.spec.argv == ("python", "train.py") and launch.spec.env["SEED"] == "7"
        assert launch.grant.resources == Resources(cpu=2000, memory=3 * GIB // 2)
        assert grid.blobs.has(launch.spec.bundle)
        assert result.job.request.priority is Priority.HIGH
        await executor.shutdown()
        await worker.close()


@pytest.mark.parametrize(
    ("mode", "more", "anywhere"),
    [
        ("offload_only", {"source_node": "here"}, False),
        ("offload_only", {}, False),  # the machine that this runs on
        ("offload_only", {"source_node": "there"}, True),
        ("offload_only", {"source_node": socket.gethostname()}, False),
        ("share_and_offload", {"source_node": "here"}, True),
        ("dynamic_balancing", {"source_node": "here"}, True),
    ],
)
async def test_the_mode_says_whether_the_source_may_take_it(
    tmp_path: Path, mode: str, more: dict[str, str], anywhere: bool
) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [
            await agent(grid.url, node("here", hostname=socket.gethostname())),
            await agent(grid.url, node("there", cores=1, hostname="elsewhere")),
        ]
        async with EnhancedOffloadingExecutor(None, config(grid.url), mode=mode) as executor:
            small = await executor.client.result(await executor.execute_offloading(advice(**more, target_node="here")))
            assert small.node == ("here" if anywhere else "there"), "what was said to be best is preferred"
            if anywhere:
                task = await executor.execute_offloading(advice(cpu=2, **more))
                assert (await executor.client.result(task)).node == "here"
            else:
                with pytest.raises(RequestRefused) as refused:
                    await executor.execute_offloading(advice(cpu=2, **more))
                assert refused.value.code == "never-fits"
        for worker in workers:
            await worker.close()


async def test_balancing_takes_the_node_that_lends_most_still(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        workers = [await agent(grid.url, node(name, cores=cores)) for name, cores in (("n1", 2), ("n2", 8))]
        async with EnhancedOffloadingExecutor(None, config(grid.url)) as executor:
            task = await executor.execute_offloading(advice())
            view = await executor.client.wait(task)
            assert view.node == "n2" and view.request.strategy == "load-balanced"
        for worker in workers:
            await worker.close()


async def test_what_makes_no_sense_is_said_and_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="unknown mode 'sometimes'"):
        EnhancedOffloadingExecutor(None, config("ws://127.0.0.1:1"), mode="sometimes")
    async with coordinator(tmp_path) as grid:
        worker = await agent(grid.url)
        async with EnhancedOffloadingExecutor(None, config(grid.url)) as executor:
            wrong: list[Any] = [{"command": "true"}, advice(""), advice(cpu=-1), advice(priority="soon")]
            for one in wrong:
                with pytest.raises(BadValue):
                    await executor.execute_offloading(one)
        for mode in OffloadingMode:
            async with EnhancedOffloadingExecutor(None, config(grid.url), mode=mode) as executor:
                for role in ("source", "target"):
                    mistyped: Any = {f"{role}_node": "n11"}
                    with pytest.raises(BadValue, match=f"unknown {role} node 'n11'") as refused:
                        await executor.execute_offloading(advice(**mistyped, directory="."))
                    assert refused.value.why == "the nodes of this grid are n1"
                    assert refused.value.hint == "did you mean n1?"
        off = EnhancedOffloadingExecutor(None, config(grid.url, resource_sharing__enabled="false"))
        with pytest.raises(SharingDisabled):
            await off.execute_offloading(advice())
        assert not worker.launched
        assert not list(tmp_path.rglob("blobs/*/*")), "nothing was shipped"
        await worker.close()
