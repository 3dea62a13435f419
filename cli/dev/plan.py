"""The plan of a dev grid: how the machine's cores, memory and GPUs are divided among its agents."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from distributed_grid.protocol.resources import GIB, format_bytes
from distributed_grid.protocol.text import counted

NODES = 2
VIRTUAL_CORES = 2
GPU_MEMORY = 16 * GIB
CPU_PERCENT_MAX = 90
CONFIG = """\
# Written by `grid dev up`: lenient, so that a busy desktop lends too.
resource_sharing:
  monitoring_interval_seconds: 1
  owner_policy: continue
  thresholds:
    cpu_percent_max: {cpu_percent_max}
    memory_percent_max: 95
    memory_min_gb: 0.1
agent:
  offer_after: 0
  reserve_memory_gb: 0.1
"""


@dataclass
class AgentPlan:
    """One agent: its cores (virtual: numbers without a core behind them), memory in bytes, and GPUs by UUID."""

    name: str
    cores: list[int]
    memory: int
    virtual: bool = False
    gpus: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)

    def flags(self) -> list[str]:
        """Return the options of `grid agent run`."""
        flags = ["--cores", ",".join(map(str, self.cores)), "--memory", str(self.memory)]
        if self.virtual:
            flags.append("--virtual")
        if self.stand_ins:
            return [*flags, "--gpu-backend", "nvml"]
        return [*flags, "--gpus", ",".join(self.gpus) or "none"]

    def environment(self, state: Path) -> dict[str, str]:
        """Environment variables by which it finds its stand-in GPUs."""
        if not self.stand_ins:
            return {}
        folder = str(Path(__file__).parent / "standins" / "nvml")
        path = os.environ.get("PYTHONPATH")
        return {
            "PYTHONPATH": f"{folder}:{path}" if path else folder,
            "GRID_STANDIN_GPUS": str(state / "gpus.json"),
        }

    def write_gpus(self, state: Path) -> None:
        """The file that its stand-in GPUs are read from; a test or a user may change it while the agent runs."""
        path = state / "gpus.json"
        try:
            before = [one["uuid"] for one in json.loads(path.read_text())]
        except (OSError, ValueError, KeyError, TypeError):
            before = []
        if self.stand_ins and before != self.stand_ins:
            path.write_text(json.dumps([{"uuid": uuid, "memory": GPU_MEMORY} for uuid in self.stand_ins], indent=2))

    def describe(self) -> str:
        """Describe it for people."""
        cores = f"{'virtual ' if self.virtual else ''}core{'s' if len(self.cores) > 1 else ''} "
        cores += ",".join(map(str, self.cores)) if len(self.cores) <= 8 else f"{self.cores[0]}-{self.cores[-1]}"
        gpus = f", {len(self.gpus)} GPU" if self.gpus else ""
        if self.stand_ins:
            gpus = f", {counted(len(self.stand_ins), 'stand-in GPU')} (no real device)"
        return f"{cores}, {format_bytes(self.memory)} memory{gpus}"


@dataclass
class Plan:
    """A dev grid. `asked` are the flags it was made from; `port` is set once the coordinator listens."""

    home: Path
    agents: list[AgentPlan]
    asked: dict[str, int]
    port: int | None = None

    @property
    def config(self) -> str:
        """The configuration that its services run with."""
        return str(self.home / "grid.yaml")

    @property
    def names(self) -> list[str]:
        """The names of its nodes."""
        return [agent.name for agent in self.agents]

    @property
    def cpu_percent_max(self) -> int:
        """CPU use by others, in percent, above which its agents lend no core; from 100 on they always lend."""
        return self.asked.get("cpu_percent_max", CPU_PERCENT_MAX)

    @property
    def thresholds(self) -> str:
        """Describe its thresholds for people."""
        others = "memory_percent_max 95, memory_min_gb 0.1, offer_after 0, offers at once"
        return f"cpu_percent_max {self.cpu_percent_max}, {others}"

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """Our environment, without settings that are meant for other grids."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
        return kept | more

    def write(self) -> None:
        """Save it for the next `up`."""
        (self.home / "grid.yaml").write_text(CONFIG.format(cpu_percent_max=self.cpu_percent_max))
        content = {"agents": [asdict(agent) for agent in self.agents], "asked": self.asked, "port": self.port}
        new = self.home / ".dev.json.new"
        new.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(new, self.home / "dev.json")

    @classmethod
    def read(cls, home: Path) -> "Plan | None":
        """Return the plan saved in a directory; None if there is none, or it cannot be read."""
        try:
            content = json.loads((home / "dev.json").read_text())
            return cls(home, [AgentPlan(**one) for one in content["agents"]], content["asked"], content["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def make_plan(home: Path, asked: dict[str, int], real_gpus: list[str]) -> Plan:
    """Divide this machine among agents."""
    count = asked.get("nodes", NODES)
    cores = sorted(os.sched_getaffinity(0))
    each = asked.get("cores_per_node")
    virtual = count * (each or 1) > len(cores)
    memory = _memory() // count
    agents = []
    for number in range(count):
        if virtual:
            mine = list(range(each or VIRTUAL_CORES))
        elif each:
            mine = cores[number * each : (number + 1) * each]
        else:
            mine = cores[number * len(cores) // count : (number + 1) * len(cores) // count]
        agents.append(AgentPlan(f"node{number + 1}", mine, memory, virtual))
    for number in range(asked.get("fake_gpus", 0)):
        owner = number % count
        agents[owner].stand_ins.append(f"GPU-5a4d0000-0000-4000-8000-{owner + 1:06}{number // count:06}")
    if not asked.get("fake_gpus"):
        for number, uuid in enumerate(real_gpus):
            agents[number % count].gpus.append(uuid)
    return Plan(home, agents, asked)


def _memory() -> int:
    """Memory of this machine, or of the container we are in (bytes)."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
