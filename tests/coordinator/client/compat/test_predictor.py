"""`ResourcePerformancePredictor` as the resource management document has it, against a real coordinator."""

import random
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.coordinator.predictor import estimate, service
from distributed_grid.core import BadValue, GridOrchestrator
from distributed_grid.orchestration import resource_performance_predictor as document
from distributed_grid.orchestration.dynamic_resource_manager import DynamicResourceManager
from distributed_grid.orchestration.resource_performance_predictor import ResourcePerformancePredictor
from tests.coordinator.client.compat.test_boosts import config
from tests.coordinator.ends import agent, coordinator, node
from tests.coordinator.predictor.test_service import learning


def task(batch: int, **more: Any) -> dict[str, Any]:
    return {"task_type": "train", "parameters": {"model": "bert"}, "batch_size": batch, **more}


def usage(batch: int, noise: float = 1.0) -> dict[str, Any]:
    return {"execution_time": 10.0 * batch, "memory_mb": 256.0 * (1 + batch) * noise, "cpu_cores": 1.8}


def test_the_constants_are_the_documents_and_are_those_in_use() -> None:
    assert document.DEFAULT_PREDICTION_CONFIDENCE_THRESHOLD == 0.7
    assert document.DEFAULT_PREDICTION_UPDATE_INTERVAL == service.PRUNE_EVERY == 3600
    assert document.DEFAULT_MIN_SAMPLES_FOR_ML == estimate.MIN_SAMPLES_FOR_ML == 30
    assert document.DEFAULT_MIN_SAMPLES_FOR_STATS == estimate.MIN_SAMPLES_FOR_STATS == 5


async def test_the_three_tiers_answer_by_how_much_is_known(tmp_path: Path) -> None:
    noise = random.Random(7)
    async with learning(tmp_path) as (grid, _), ResourcePerformancePredictor(config(grid.url)) as predictor:
        found = await predictor.predict_resource_requirements(task(4))
        assert (found.tier, found.confidence, found.execution_time) == ("default", None, None)
        assert found.requirements == {"cpu_cores": 1.0, "memory_mb": 1024.0}
        assert found.why["memory_mb"] == "the default: fewer than 5 runs like it are known"
        for _ in range(6):
            await predictor.record_task_execution(task(4), usage(4))
        assert await predictor.train_models() == 6
        found = await predictor.predict_resource_requirements(task(4))
        assert found.tier == "statistics" and found.requirements["cpu_cores"] == 2.0
        assert 1280 < found.requirements["memory_mb"] < 2000 and found.execution_time == pytest.approx(40.0, rel=0.1)
        for _ in range(60):
            batch = noise.choice([2, 4, 8, 16, 32])
            await predictor.record_task_execution(task(batch), usage(batch, noise.uniform(0.97, 1.03)))
        assert await predictor.train_models() == 66
        found = await predictor.predict_resource_requirements(task(16))
        memory = next(one for one in found.needs if one.of == "memory")
        assert memory.tier == "ml" and memory.samples == 66 and found.confidence is not None
        assert 256 * 17 < found.requirements["memory_mb"] < 256 * 17 * 1.4
        other = await predictor.predict_resource_requirements(task(16, parameters={"model": "llama"}))
        assert other.needs[0].level == "program", "another kind of task has only its program in common"


async def test_other_tasks_of_the_user_say_nothing_about_one_that_never_ran(tmp_path: Path) -> None:
    async with learning(tmp_path) as (grid, _), ResourcePerformancePredictor(config(grid.url)) as predictor:
        for _ in range(6):
            await predictor.record_task_execution({"command": "sleep 1"}, usage(0, noise=0.05))
        assert await predictor.train_models() == 6
        found = await predictor.predict_resource_requirements(task(4))
        assert {one.level for one in found.needs} == {"user"}, "it is told what is known"
        assert (found.tier, found.execution_time, found.planned_time) == ("default", None, None)
        assert found.requirements == {"cpu_cores": 1.0, "memory_mb": 1024.0}
        assert found.why["memory_mb"] == "the default: fewer than 5 runs like it are known"


@pytest.mark.parametrize("runs", [5, 30])
@pytest.mark.parametrize("cores", [1, 8])
async def test_what_always_fills_its_cores_gets_no_other_that_would_stand_idle(
    tmp_path: Path, runs: int, cores: int
) -> None:
    async with learning(tmp_path) as (grid, _), ResourcePerformancePredictor(config(grid.url)) as predictor:
        for _ in range(runs):
            await predictor.record_task_execution(task(4), usage(4) | {"cpu_cores": cores})
        await predictor.train_models()
        assert (await predictor.predict_resource_requirements(task(4))).requirements["cpu_cores"] == cores


async def test_the_orchestrator_has_one_over_its_own_connection(tmp_path: Path) -> None:
    async with learning(tmp_path) as (grid, _), GridOrchestrator(config(grid.url)) as orchestrator:
        await orchestrator.predictor.record_task_execution(task(4), usage(4))
        assert await orchestrator.predictor.train_models() == 1
        assert orchestrator.predictor.client is orchestrator.client


async def test_requirements_grow_with_the_batch_as_they_did(tmp_path: Path) -> None:
    async with learning(tmp_path) as (grid, _), ResourcePerformancePredictor(config(grid.url)) as predictor:
        assert await predictor.calculate_batch_scaling_factor(task(1), 8, 2) == 4.0, (
            "in proportion, as nothing is known"
        )
        for batch in (1, 2, 4, 8, 16, 32) * 2:
            await predictor.record_task_execution(task(batch), {"memory_mb": 100.0 * (1 + batch) ** 0.5})
        await predictor.train_models()
        assert await predictor.calculate_batch_scaling_factor(task(1), 15, 3) == pytest.approx(2.0, rel=0.05)
        others = {"parameters": {"alpha": 1.0, "beta": 2.0, "epochs": 3, "rate": 0.1}}
        for batch in (1, 2, 4, 8, 16, 32):
            await predictor.record_task_execution(task(batch, **others), {"memory_mb": 100.0 * (1 + batch) ** 0.5})
        await predictor.train_models()
        factor = await predictor.calculate_batch_scaling_factor(task(1, **others), 15, 3)
        assert factor == pytest.approx(2.0, rel=0.2), "however many other numbers a task has"
        with pytest.raises(BadValue, match="no size of a batch"):
            await predictor.calculate_batch_scaling_factor(task(1), 0)


async def test_what_is_predicted_is_what_the_resource_manager_takes(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid, ResourcePerformancePredictor(config(grid.url)) as predictor:
        worker = await agent(grid.url, node("n1"))
        manager = DynamicResourceManager(predictor.config, predictor.client)
        task_resources = (await predictor.predict_resource_requirements(task(4))).requirements
        assert await manager.calculate_task_worker_fitness("n1", task_resources) > 0
        await worker.close()


async def test_a_run_out_of_memory_says_at_least_so_much(tmp_path: Path) -> None:
    async with learning(tmp_path) as (grid, _), ResourcePerformancePredictor(config(grid.url)) as predictor:
        for _ in range(6):
            await predictor.record_task_execution(
                task(4), {"out_of_memory": True, "held_memory_mb": 2048, "execution_time": 5.0}
            )
        await predictor.train_models()
        assert (await predictor.predict_resource_requirements(task(4))).requirements["memory_mb"] > 2048


@pytest.mark.parametrize(
    ("what", "used", "words"),
    [
        ({}, {}, "which task is it"),
        ({"command": "x", "task_type": "y"}, {}, "which task is it"),
        ({"task_typ": "x"}, {}, "'task_typ' is not known"),
        ({"task_type": "x", "batch_size": float("nan")}, {}, "batch_size is nan"),
        ({"task_type": "x", "batch_size": 10**400}, {}, "batch_size is inf"),
        ({"task_type": "x", "parameters": {"n": -(10**5000)}}, {}, "n is -inf"),
        ({"task_type": "x"}, {"execution_time_ms": 10**400}, "execution_time_ms is inf"),
        ({"task_type": "x"}, {"memory": 5}, "'memory' cannot be used"),
        ({"task_type": "x"}, {"memory_mb": -5}, "memory_mb is -5"),
        ({"task_type": "x", "parameters": {f"p{n}": n for n in range(17)}}, {}, "17 numbers are too many"),
        (None, {}, "None cannot be read as task"),
        ({5: "x"}, {}, "5 is not known"),
        ({"task_type": "x", "parameters": [1]}, {}, "cannot be read as parameters"),
        ({"task_type": "x", "batch_size": "large"}, {}, "batch_size is 'large'"),
        ({"task_type": "x"}, None, "None cannot be read as usage"),
        ({"task_type": "x"}, {5: 1}, "5 cannot be used"),
        ({"task_type": "x"}, {"success": "no"}, "success is 'no'"),
        ({"task_type": "x"}, {"memory_mb": 1e300}, "memory_mb is 1e.300"),
        ({"task_type": "x"}, {"execution_time": 1e300}, "execution_time is 1e.300"),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anybody_is_asked(what: Any, used: Any, words: str) -> None:
    predictor = ResourcePerformancePredictor(config("ws://192.0.2.1:1"))
    with pytest.raises(BadValue, match=words):
        await predictor.record_task_execution(what, used)


@pytest.mark.parametrize("size", [None, "8", 0, -1, float("nan"), float("inf"), True, 10**400, 1e300])
async def test_a_batch_has_a_size_above_zero(size: Any) -> None:
    predictor = ResourcePerformancePredictor(config("ws://192.0.2.1:1"))
    with pytest.raises(BadValue, match="is no size of a batch"):
        await predictor.calculate_batch_scaling_factor({"task_type": "x"}, size)
    with pytest.raises(BadValue, match="is no size of a batch"):
        await predictor.calculate_batch_scaling_factor({"task_type": "x"}, 8, size)
