"""The intelligent sharing guide, component by component, on a real grid of two nodes: its configuration, its snippets
as they stand there, its debug commands and its demo. `TestResourceSharingManager` is what the guide says to run."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.config import ClusterConfig
from distributed_grid.core import GridClient
from distributed_grid.monitoring.resource_metrics import ResourceMetricsCollector
from distributed_grid.orchestration.enhanced_offloading_executor import EnhancedOffloadingExecutor, OffloadingMode
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler
from distributed_grid.orchestration.resource_sharing_manager import ResourceSharingManager
from tests.e2e.service.test_dev import Dev

ROOT = Path(__file__).parents[1]

CONFIGURATION = """\
execution:
  resource_sharing:
    enabled: true
    mode: dynamic_balancing  # offload_only, share_and_offload, dynamic_balancing
    policy: balanced  # conservative, balanced, aggressive, predictive
    rebalance_interval_seconds: 30
    monitoring_interval_seconds: 10
    thresholds:
      cpu_pressure_high: 0.8
      cpu_pressure_low: 0.3
      memory_pressure_high: 0.8
      memory_pressure_low: 0.3
      gpu_pressure_high: 0.8
      gpu_pressure_low: 0.3
      excess_threshold: 0.2
nodes:
- name: gpu-master
  resource_sharing:
    can_share: true
    max_share_cpu: 4
    max_share_memory_gb: 16
    max_share_gpu: 0
    priority: 1.0
"""

BASIC_USAGE = """\
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

# Create orchestrator
orchestrator = ResourceSharingOrchestrator(cluster_config, ssh_manager)

# Initialize and start
await orchestrator.initialize()
await orchestrator.start()

# Get cluster status
status = await orchestrator.get_cluster_status()

# Request resources
request_id = await orchestrator.request_resources(
    node_id="gpu-master",
    resource_type="cpu",
    amount=2.0,
    priority="high",
    duration_minutes=30
)

# Get resource snapshots
snapshots = orchestrator.get_node_resource_snapshots()
"""
MONITORING = """
import asyncio
from examples.intelligent_sharing_demo import ResourceSharingDemo
demo = ResourceSharingDemo('config/my-cluster-enhanced.yaml')
asyncio.run(demo._demo_resource_monitoring())
"""
STATUS = MONITORING.replace("resource_monitoring", "cluster_status")


@pytest.fixture(scope="module")
def dev() -> Iterator[Dev]:
    """Two nodes of two cores. Its place has a short name, for sockets lie in it."""
    place = Path(tempfile.mkdtemp(prefix="grid-"))
    made = Dev(place)
    try:
        done = made.up("--nodes", "2", "--cores-per-node", "2")
        assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.down()
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def project(dev: Dev, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory with the guide's configuration, and the way to the grid in the environment."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "my-cluster.yaml").write_text(CONFIGURATION)
    monkeypatch.setenv("GRID_COORDINATOR", dev.url)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def config(project: Path) -> ClusterConfig:
    return ClusterConfig.from_yaml("config/my-cluster.yaml")


def python(*words: str, cwd: Path) -> str:
    """What a program prints."""
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestConfiguration:
    def test_every_key_of_the_guide_is_read_with_its_value(self, project: Path) -> None:
        written = CONFIGURATION.replace("0.8", "0.9").replace("0.3\n", "0.25\n").replace("_share: true", "_share: no")
        written = written.replace("mode: dynamic_balancing", "mode: share_and_offload").replace("s: 30", "s: 20")
        written = written.replace("policy: balanced", "policy: predictive")
        (project / "config" / "my-cluster.yaml").write_text(written)
        found = ClusterConfig.from_yaml("config/my-cluster.yaml")
        sharing, marks = found.resource_sharing, found.resource_sharing.thresholds
        assert (sharing.enabled, sharing.mode, sharing.policy) == (True, "share_and_offload", "predictive")
        assert (sharing.rebalance_interval_seconds, sharing.monitoring_interval_seconds) == (20, 10)
        for kind in ("cpu", "memory", "gpu"):
            assert getattr(marks, f"{kind}_pressure_high") == 0.9 and getattr(marks, f"{kind}_pressure_low") == 0.25
        assert marks.excess_threshold == 0.2
        (node,) = found.nodes
        own = node.resource_sharing
        assert (node.name, own.can_share, own.priority) == ("gpu-master", False, 1.0)
        assert (own.max_share_cpu, own.max_share_memory_gb, own.max_share_gpu) == (4, 16, 0)


class TestResourceMetricsCollector:
    async def test_it_monitors_all_nodes_and_sums_them_up(self, config: ClusterConfig) -> None:
        async with ResourceMetricsCollector(config) as collector:
            assert {one["state"] for one in collector.get_all_latest_snapshots().values()} == {"up"}
            trend = await collector.get_resource_trend("node1", "cpu")
            assert list(trend["windows"]) == ["5m", "15m", "1h"]
            summary = await collector.get_cluster_summary()
            assert summary["nodes"] == {"up": 2} and summary["total"]["cpu"] == 4.0


class TestResourceSharingManager:
    async def test_what_is_requested_is_held_used_and_released(self, config: ClusterConfig) -> None:
        async with ResourceSharingManager(config) as sharing:
            allocation_id = await sharing.request_resource("node1", "cpu", 2.0, "high", 600)
            assert allocation_id is not None
            (held,) = (await sharing.get_resource_status())["holds"]
            assert (held["id"], held["node"], held["cpu"]) == (allocation_id, "node2", 2.0)
            result = await sharing.client.run(["sh", "-c", "echo $GRID_NODE"], within=allocation_id)
            assert result.stdout == "node2\n"
            assert await sharing.request_resource("node1", "cpu", 1.0) is None, "node2 has no other core"
            assert await sharing.release_resource(allocation_id) is True
            await sharing.client.wait(allocation_id)
            assert (await sharing.get_resource_status())["holds"] == []

    async def test_a_hold_expires_by_itself(self, config: ClusterConfig) -> None:
        async with ResourceSharingManager(config) as sharing:
            allocation_id = await sharing.request_resource("node1", "cpu", 1.0, duration=0.5)
            assert allocation_id is not None
            await sharing.client.wait(allocation_id)
            assert await sharing.release_resource(allocation_id) is False

    def test_the_command_line_takes_it_too(self, dev: Dev, config: ClusterConfig) -> None:
        async def request() -> str | None:
            async with ResourceSharingManager(config) as sharing:
                return await sharing.request_resource("node1", "cpu", 1.0)

        held = asyncio.run(request())
        assert held is not None
        done = dev.grid("run-shared", "--in", held, "--no-ship", "sh", "-c", "echo $GRID_NODE")
        assert (done.returncode, done.stdout) == (0, "node2\n")
        assert dev.grid("hold", "release", held).returncode == 0


class TestIntelligentScheduler:
    async def test_a_task_is_scheduled_with_a_confidence_and_completed(self, config: ClusterConfig) -> None:
        async with IntelligentScheduler(config) as scheduler:
            task_id = await scheduler.schedule_task({"task_id": "train", "command": "sleep 60", "strategy": "best-fit"})
            assert task_id is not None
            async for view in scheduler.client.follow(task_id):
                if view.node:
                    break
            task = (await scheduler.get_scheduling_status())["tasks"][task_id]
            assert task["node"] in ("node1", "node2") and 0 < task["confidence"] <= 1
            assert await scheduler.complete_task(task_id) is True
            await scheduler.client.wait(task_id)


class TestEnhancedOffloadingExecutor:
    def test_it_has_the_trends_and_the_moves(self, config: ClusterConfig) -> None:
        async def run() -> None:
            async with EnhancedOffloadingExecutor(None, config, mode=OffloadingMode.DYNAMIC_BALANCING) as executor:
                assert await executor.get_moves() == []
                trend = await executor.metrics.get_resource_trend("node2", "memory")
                assert trend["resource"] == "memory"

        asyncio.run(run())


class TestResourceSharingOrchestrator:
    def test_the_guides_basic_usage_runs_as_it_stands_there(self, project: Path) -> None:
        said = """
        print(sorted(snapshots), status["mode"], status["policy"], status["moves"])
        print(await orchestrator.release_resources(request_id))
        await orchestrator.stop()
        """
        body = textwrap.indent(BASIC_USAGE + textwrap.dedent(said), "    ")
        program = (
            "import asyncio\nfrom distributed_grid.config import ClusterConfig\n"
            "cluster_config, ssh_manager = ClusterConfig.from_yaml('config/my-cluster.yaml'), None\n"
            f"async def main():\n{body}\nasyncio.run(main())\n"
        )
        (project / "program.py").write_text(program)
        assert python("program.py", cwd=project).splitlines() == [
            "['node1', 'node2'] dynamic_balancing balanced []",
            "True",
        ]


class TestDemo:
    async def test_its_five_parts_run_and_leave_nothing_behind(self, project: Path, dev: Dev) -> None:
        demo = str(ROOT / "examples" / "intelligent_sharing_demo.py")
        said = await asyncio.to_thread(python, demo, "config/my-cluster.yaml", cwd=project)
        titles = [line.removeprefix("== ") for line in said.splitlines() if line.startswith("== ")]
        assert titles == [
            "Cluster status",
            "Resource monitoring",
            "Resource request and allocation",
            "Intelligent task scheduling",
            "Dynamic load balancing",
        ]
        assert "node1: up, offers" in said and "cpu over 15m: " in said
        assert "one core is borrowed for node1" in said and "printed 'inside' on node2" in said
        assert "given back: True" in said and said.count("exit code 0") == 2
        assert sum(int(line.split()[2]) for line in said.splitlines() if line.endswith("of 4 tasks")) == 4
        async with GridClient(dev.url) as client:
            assert await client.holds() == [] and await client.jobs() == []
        assert os.listdir(project) == ["config"]

    @pytest.mark.parametrize(("command", "says"), [(STATUS, "2 nodes, mode"), (MONITORING, "cpu over 1h: ")])
    def test_the_debug_commands_run_from_the_repository(self, project: Path, command: str, says: str) -> None:
        assert says in python("-c", command, cwd=ROOT)
