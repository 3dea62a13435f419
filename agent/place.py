"""Where an agent is at home, and how its jobs live there."""

from dataclasses import dataclass
from pathlib import Path

from distributed_grid.agent.raylet import RaySettings
from distributed_grid.agent.retention import Bounds
from distributed_grid.agent.run_as import AGENT
from distributed_grid.protocol.jobs import PASSED_ON


@dataclass(frozen=True)
class Place:
    """An agent's coordinator and directory, how often it measures (seconds), what it keeps of ended jobs, whom its jobs
    run as, what of its own environment they get, and how it runs Ray."""

    url: str
    state_dir: Path
    interval: float = 2.0
    keep: Bounds = Bounds()
    run_as: str = AGENT
    environment: tuple[str, ...] = PASSED_ON
    ray: RaySettings = RaySettings()
