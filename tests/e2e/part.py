"""The parts of a scene, each a process of its own: `part.py coordinator CONFIG` or `part.py agent STATE NAME URL SAID`
(what it lends, as JSON)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from distributed_grid.agent import main as agents
from distributed_grid.agent import session
from distributed_grid.config.schema import Agent, GpuBackend
from distributed_grid.config.settings import ClusterConfig, load
from distributed_grid.config.sharing import ResourceSharing, Thresholds
from distributed_grid.coordinator import main as coordinators


def coordinator(config: str) -> int:
    return coordinators.main(coordinators.CoordinatorSettings(load(config, environment={})))


class Once(subprocess.Popen[bytes]):
    """Faults are for the agent's first supervisor and not for the one that replaces it."""

    def __init__(self, command: Any, **more: Any) -> None:
        super().__init__(command, **more)
        if "supervisor/main.py" in " ".join(map(str, command)):
            os.environ.pop("GRID_FAULTS", None)


def agent(state_dir: str, name: str, url: str, text: str) -> int:
    subprocess.Popen = Once  # type: ignore[misc,assignment]
    if faults := os.environ.pop("GRID_SUPERVISOR_FAULTS", ""):
        os.environ["GRID_FAULTS"] = faults
    session.BACK_OFF_MOST = 1.0  # coordinators are killed here more often than anywhere else
    said = json.loads(text)
    thresholds = Thresholds(cpu_percent_max=said["cpu_percent_max"], memory_percent_max=100, memory_min_gb=0)
    own = Agent(
        state_dir=state_dir, gpu_backend=GpuBackend.NVML, reserve_memory_gb=0, memory=2 << 30, nice=0, cgroup="none",
        cores=tuple(said["cores"]), virtual=said["virtual"], offer_after=said["offer_after"],
    )  # fmt: skip
    sharing = ResourceSharing(thresholds=thresholds, **{"owner_pressure": 100, **said["sharing"]})
    return agents.main(agents.AgentSettings(ClusterConfig(agent=own, resource_sharing=sharing), name, url, {}))


PARTS: dict[str, Callable[..., int]] = {"coordinator": coordinator, "agent": agent}

if __name__ == "__main__":
    sys.exit(PARTS[sys.argv[1]](*sys.argv[2:]))
