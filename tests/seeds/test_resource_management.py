"""The scheduling of the resource management document, in its words, on a real grid: tasks are compared by their fitness
for a worker, the best has resources reserved, runs with them, and gives them back."""

from pathlib import Path

from tests.seeds import guide
from tests.seeds.conftest import Grid
from tests.seeds.test_sharing_guide import run

PROGRAM = """\
import asyncio

from distributed_grid.config import ClusterConfig
from distributed_grid.orchestration.dynamic_resource_manager import DynamicResourceManager
from distributed_grid.orchestration.hardware_detector import HardwareDetector


def _estimate_task_resources(task):
    return task["needs"]


async def main():
    hardware_detector = HardwareDetector()
    capabilities = hardware_detector.get_capabilities()
    print(*capabilities["memory"])

    worker_id = "gpu2"
    task_queue = [
        {"task_id": "too-large", "needs": {"cpu_cores": 64}},
        {"task_id": "train", "needs": {"cpu_cores": 2, "memory_mb": 1024, "gpus": 1}},
    ]
    async with DynamicResourceManager(ClusterConfig.from_yaml("config/cluster_config.yaml")) as dynamic_resource_mgr:
        # Calculate fitness scores for each task-worker pair
        task_fitness_scores = []
        for i, task in enumerate(task_queue):
            task_resources = _estimate_task_resources(task)
            fitness_score = await dynamic_resource_mgr.calculate_task_worker_fitness(
                worker_id, task_resources
            )
            task_fitness_scores.append((i, fitness_score, task))

        # Sort by fitness score (descending)
        task_fitness_scores.sort(key=lambda x: -x[1])
        task_index, fitness_score, matching_task = task_fitness_scores[0]
        print(matching_task["task_id"], 0 < fitness_score <= 1, task_fitness_scores[1][1])

        # Reserve resources
        reservation_id = await dynamic_resource_mgr.reserve_resources(
            worker_id=worker_id,
            task_id=matching_task["task_id"],
            resource_requirements=_estimate_task_resources(matching_task)
        )
        matching_task["resource_reservation_id"] = reservation_id
        print(await dynamic_resource_mgr.check_resource_availability(worker_id, {"gpus": 1}))

        result = await dynamic_resource_mgr.client.run(
            "python train.py", within=reservation_id, cpus=2, gpus=1, bundle=await dynamic_resource_mgr.client.ship(".")
        )
        print(result.stdout.strip())

        # Release resources if there was a reservation
        await dynamic_resource_mgr.release_resources(matching_task["resource_reservation_id"])
        await dynamic_resource_mgr.client.wait(reservation_id)
        print(await dynamic_resource_mgr.check_resource_availability(worker_id, {"gpus": 1}))

asyncio.run(main())
"""


def test_the_documents_scheduling_reserves_runs_and_releases(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "cluster_config.yaml").write_text(guide.CONFIGURATION)
    (tmp_path / "train.py").write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GRID_NODE'])")
    assert run(grid, tmp_path, PROGRAM).splitlines() == [
        "total_mb available_mb",
        "train True 0.0",
        "False",
        "GPU-stand-in-gpu2 gpu2",
        "True",
    ]
