"""The resource management document, followed as it is written: its scaling loop against a real coordinator, its
providers' processes and real agents; a provider that the program brings itself; and a worker without agent.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.e2e.machines.test_machines import POOL, home, logs, processes
from tests.grid_fixture import CONFIG, founded_grid, until

PROGRAM = """
import asyncio, sys
from distributed_grid.core import GridClient
from distributed_grid.coordinator.providers.process import ProcessProvider
from distributed_grid.orchestration.cloud_provider_manager import CloudProviderManager
from distributed_grid.orchestration.dynamic_resource_manager import DynamicResourceManager


async def main():
    async with GridClient(sys.argv[1]) as client:
        dynamic_resource_manager = DynamicResourceManager(client=client)
        cloud_provider_manager = CloudProviderManager(client)
        provider_name = "process"

        # Scaling integration, as in the document.
        job = await client.submit("true", cpus=1)
        async with asyncio.timeout(60):
            while (scaling_decision := await dynamic_resource_manager.evaluate_scaling()).action != "scale_up":
                await asyncio.sleep(0.1)
        created = []
        for i in range(scaling_decision.count):
            created.append(await cloud_provider_manager.create_worker(
                provider=provider_name,
                resources=scaling_decision.resource_requirements,
                worker_type=scaling_decision.worker_type,
            ))
        result = await client.result(job)
        print("ran on what was created:", result.success, [result.node] == created)
        print(await cloud_provider_manager.terminate_worker(provider=provider_name, worker_id=created[0]))
        async with asyncio.timeout(60):
            while (await cloud_provider_manager.get_worker_status(provider_name, created[0]))["status"] != "gone":
                await asyncio.sleep(0.1)

        # Registration and heartbeat integration, of a worker on which no agent runs.
        resources = {"cpu": {"cores": 4}, "memory": {"total_mb": 4096, "available_mb": 2048}}
        success = await dynamic_resource_manager.register_worker("w1", resources)
        reservation_id = await dynamic_resource_manager.reserve_resources(
            worker_id="w1", task_id="t1", resource_requirements={"cpu_cores": 3}
        )
        print(success, await dynamic_resource_manager.check_resource_availability("w1", {"cpu_cores": 2}))
        print(await dynamic_resource_manager.release_resources(reservation_id))

        # A provider of one's own.
        cloud_provider_manager.add_provider("mine", ProcessProvider("mine", {"directory": sys.argv[2]}))
        worker = await cloud_provider_manager.create_worker("mine", {"cpu_cores": 1, "memory_mb": 128}, life=300)
        async with asyncio.timeout(60):
            while worker not in [node.facts.name for node in await client.nodes()]:
                await asyncio.sleep(0.1)
        print(await cloud_provider_manager.terminate_worker("mine", worker))
        print(await cloud_provider_manager.list_workers("mine"))


asyncio.run(main())
"""


def test_the_document_does_what_it_says(tmp_path: Path) -> None:
    with founded_grid(tmp_path, CONFIG + POOL.replace("mode: act", "mode: plan")) as grid:
        own = home(grid) / "own"  # so that what is left of it is found, too
        try:
            ran = subprocess.run(
                [sys.executable, "-c", PROGRAM, grid.url, str(own)],
                env=grid.environment, capture_output=True, text=True, timeout=200,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr + logs(grid)
            assert ran.stdout.splitlines() == [
                "ran on what was created: True True", "True", "True False", "True", "True", "[]",
            ]  # fmt: skip
            assert "no agent" in grid.run("nodes").stdout
            assert grid.run("node", "remove", "w1", "--forget").stderr == "grid: w1 is out of the grid\n"
            until(lambda: not processes(grid), "nothing is left of any machine" + logs(grid))
        finally:
            for pid in processes(grid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
