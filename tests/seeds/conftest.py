"""A real grid for the seeds' programs: coordinator and agents as processes, virtual cores, stand-in GPUs."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.core import GridClient

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

COORDINATOR = """
import sys
from distributed_grid.config.settings import ClusterConfig
from distributed_grid.config.schema import Coordinator
from distributed_grid.coordinator.main import CoordinatorSettings, main
sys.exit(main(CoordinatorSettings(ClusterConfig(coordinator=Coordinator(state_dir=sys.argv[1], port=0)))))
"""
AGENT = """
import sys
from distributed_grid.agent.main import AgentSettings, main
from distributed_grid.agent.sampling import host
from distributed_grid.config.schema import Agent
from distributed_grid.config.sharing import ResourceSharing, Thresholds
from distributed_grid.config.settings import ClusterConfig
name, place, url = sys.argv[1:]
host.memory = lambda groups: (64 << 30, 64 << 30)
thresholds = Thresholds(cpu_percent_max=100, memory_percent_max=100, memory_min_gb=0)
sys.exit(main(AgentSettings(ClusterConfig(
    agent=Agent(
        state_dir=f"{place}/{name}", cores=tuple(range(4)), memory=9 << 30, gpu_backend="nvml", virtual=True,
        siblings=place,
        reserve_memory_gb=0, offer_after=0.1, nice=0, cgroup="none",
    ),
    resource_sharing=ResourceSharing(monitoring_interval_seconds=0.2, thresholds=thresholds),
), name, url, {})))
"""
"""It lends 9 GB whatever else takes memory on this machine."""


class Grid:
    """A running grid; `place` has the state and the logs of all of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.url = ""
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._run("coordinator", COORDINATOR, str(self.place / "coordinator"))
        announced = self.place / "coordinator" / "coordinator.json"
        self._await(announced.exists)
        self.url = json.loads(announced.read_text())["url"]
        for name in ("gpu1", "gpu2"):
            gpus = [{"uuid": f"GPU-stand-in-{name}", "memory": 16 << 30, "used": 0, "utilisation": 0}]
            (self.place / f"{name}.json").write_text(json.dumps(gpus))
            self._run(name, AGENT, name, str(self.place), self.url)
        self._await(lambda: asyncio.run(self._offers()) == 2)

    async def _offers(self) -> int:
        async with GridClient(self.url) as client:
            return sum(bool(offer.room.gpu and offer.room.cpu) for offer in (await client.shared()).offers)

    def _run(self, name: str, code: str, *arguments: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "cli/dev/standins/nvml"),
            "GRID_STANDIN_GPUS": str(self.place / f"{name}.json"),
            # The guide's jobs say `python`, which not every machine has.
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        with open(self.place / f"{name}.log", "wb") as log:
            command = [sys.executable, "-c", code, *arguments]
            self._started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def _await(self, there: Any) -> None:
        until = time.monotonic() + PATIENCE
        while not there():
            dead = [process for process in self._started if process.poll() is not None]
            if dead or time.monotonic() > until:
                logs = "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in self.place.glob("*.log"))
                pytest.fail(f"the grid did not come up: {[process.args for process in dead]}\n{logs}")
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(PATIENCE)
        for file in self.place.glob("*/supervisor.pid"):  # outlive their agents on purpose
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


@pytest.fixture(scope="session")
def grid() -> Iterator[Grid]:
    """One grid for all programs. Its place has a short name, for sockets lie in it."""
    place = Path(tempfile.mkdtemp(prefix="grid-"))
    made = Grid(place)
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(place, ignore_errors=True)
