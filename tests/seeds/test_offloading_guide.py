"""The offloading of the intelligent sharing guide, as it stands there, on a real grid."""

from pathlib import Path

from tests.seeds import guide
from tests.seeds.conftest import Grid
from tests.seeds.test_sharing_guide import run

PROGRAM = """\
import asyncio

from distributed_grid.config import ClusterConfig
from distributed_grid.orchestration.enhanced_offloading_executor import OffloadingMode, OffloadingRecommendation


async def main():
    cluster_config, ssh_manager = ClusterConfig.from_yaml("config/my-cluster.yaml"), None
    recommendation = OffloadingRecommendation(command="python train.py", gpu=1, target_node="gpu2")

    from distributed_grid.orchestration.enhanced_offloading_executor import EnhancedOffloadingExecutor

    # Create enhanced executor
    executor = EnhancedOffloadingExecutor(
        ssh_manager,
        cluster_config,
        mode=OffloadingMode.DYNAMIC_BALANCING
    )

    # Execute with intelligent resource sharing
    task_id = await executor.execute_offloading(recommendation)

    print((await executor.client.result(task_id)).stdout)

asyncio.run(main())
"""


def test_the_guides_executor_runs_what_is_recommended_on_a_borrowed_gpu(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my-cluster.yaml").write_text(guide.CONFIGURATION)
    (tmp_path / "train.py").write_text("import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['GRID_NODE'])")
    assert run(grid, tmp_path, PROGRAM).split() == ["GPU-stand-in-gpu2", "gpu2"]
