"""What the grid shares, in five parts: cluster status, monitoring, request and allocation, scheduling, load balancing.

    grid dev up --nodes 2 && export GRID_COORDINATOR=…   # as `grid dev up` says
    python examples/intelligent_sharing_demo.py [config/my-cluster-enhanced.yaml]

Each part is a method that can be called by itself, as `asyncio.run(ResourceSharingDemo(path)._demo_cluster_status())`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from distributed_grid.config import ClusterConfig
from distributed_grid.core import GridError
from distributed_grid.orchestration.intelligent_scheduler import TaskRequest
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

SLEEP = "import time; time.sleep(0.5)"


class ResourceSharingDemo:
    """The demo of one grid. Without a configuration file, the one that `grid` would find is used."""

    def __init__(self, config_path: str | None = None) -> None:
        self.config: ClusterConfig | None = None
        if config_path is not None and Path(config_path).exists():
            self.config = ClusterConfig.from_yaml(config_path)
        elif config_path is not None:
            print(f"{config_path} does not exist: using the configuration that grid finds", file=sys.stderr)

    async def run(self) -> None:
        """All five parts."""
        await self._demo_cluster_status()
        await self._demo_resource_monitoring()
        await self._demo_resource_requests()
        await self._demo_task_scheduling()
        await self._demo_load_balancing()

    @asynccontextmanager
    async def _orchestrator(self, title: str) -> AsyncIterator[ResourceSharingOrchestrator]:
        print(f"== {title}")
        async with ResourceSharingOrchestrator(self.config) as orchestrator:
            yield orchestrator

    async def _demo_cluster_status(self) -> None:
        async with self._orchestrator("Cluster status") as orchestrator:
            status = await orchestrator.get_cluster_status()
            print(f"grid {status['grid']}: {len(status['nodes'])} nodes, mode {status['mode']}, {status['policy']}")
            for name, node in status["nodes"].items():
                print(f"  {name}: {node['state']}, offers {node['cpu']['offered']:g} of {node['cpu']['total']:g} cores")
            for name, figure in status["performance"].items():
                print(f"  {name}: {figure}")

    async def _demo_resource_monitoring(self) -> None:
        async with self._orchestrator("Resource monitoring") as orchestrator:
            for name, node in orchestrator.get_node_resource_snapshots().items():
                pressure = "not measured yet" if node["pressure"] is None else f"{node['pressure']:.2f}"
                print(f"  {name}: pressure {pressure}, {node['cpu']['foreign']:.1f} cores used by others")
                trend = await orchestrator.metrics.get_resource_trend(name, "cpu")
                for window, found in trend["windows"].items():
                    text = found["why"] or f"level {found['level']:.0%}, slope {found['slope_per_hour']:+.0%} an hour"
                    print(f"    cpu over {window}: {text}")
            summary = await orchestrator.metrics.get_cluster_summary()
            print(f"  offered {summary['offered']['cpu']:g} cores, lent {summary['lent']['cpu']:g}")

    async def _demo_resource_requests(self) -> None:
        async with self._orchestrator("Resource request and allocation") as orchestrator:
            node = next(iter(orchestrator.get_node_resource_snapshots()))
            held = await orchestrator.request_resources(node, "cpu", 1.0, priority="high", duration_minutes=30)
            if held is None:
                print(f"  no other node has a core for {node} now")
                return
            print(f"  {held}: one core is borrowed for {node}")
            if (await orchestrator.client.show(held)).spec.hold:
                result = await orchestrator.client.run([sys.executable, "-c", "print('inside')"], within=held)
                print(f"  a job there printed {result.stdout.strip()!r} on {result.node}")
            print(f"  given back: {await orchestrator.release_resources(held)}")

    async def _demo_task_scheduling(self) -> None:
        async with self._orchestrator("Intelligent task scheduling") as orchestrator:
            scheduler = orchestrator.scheduler
            for strategy in ("best-fit", "load-balanced"):
                task = TaskRequest(task_id=f"demo-{strategy}", command=[sys.executable, "-c", SLEEP], strategy=strategy)
                await scheduler.schedule_task(task)
            for name, task in (await scheduler.get_scheduling_status())["tasks"].items():
                sure = "" if task["confidence"] is None else f", confidence {task['confidence']:.2f}"
                print(f"  {task['name']}: {task['state']} on {task['node'] or 'no node yet'}{sure}")
                print(f"    exit code {(await orchestrator.client.result(name)).exit_code}")
                await scheduler.complete_task(name)

    async def _demo_load_balancing(self) -> None:
        async with self._orchestrator("Dynamic load balancing") as orchestrator:
            command, client = [sys.executable, "-c", SLEEP], orchestrator.client
            many = (client.run(command, strategy="load-balanced", cpus=0.5) for _ in range(4))
            nodes = [result.node for result in await asyncio.gather(*many)]
            for name in sorted(set(nodes)):
                print(f"  {name} ran {nodes.count(name)} of {len(nodes)} tasks")
            moves = (await orchestrator.get_cluster_status())["moves"]
            print(f"  the grid has made {len(moves)} moves by itself lately")
            for move in moves:
                print(f"    {move['kind']} from {move['source']}: {move['reason']}")


if __name__ == "__main__":
    try:
        asyncio.run(ResourceSharingDemo(*sys.argv[1:2]).run())
    except GridError as error:
        sys.exit("\n".join(error.lines()))
