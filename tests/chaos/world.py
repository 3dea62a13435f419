"""A grid of real processes in a world of its own: nodes in network namespaces, with links between them that can be cut.

It has to be made inside `ENTER`: namespaces for processes, mounts and network that end with the campaign, however that
ends, and take everything with them that was started in them.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ENTER = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# The first process of the namespace buries whoever lost his parent; a shell that waits does that.
INIT = [*ENTER, "sh", "-c", '"$@"; exit $?', "init"]
HUB = "192.0.2.1"
PORT = 7433
LOST_AFTER = 5.0
CORES = 12
_GRID = [sys.executable, "-m", "distributed_grid.cli.main"]
_NOTHING = ["tbf", "rate", "8bit", "burst", "1", "limit", "1"]
"""A queue that every packet is too large for."""
CONFIG = f"""
coordinator:
  url: ws://{HUB}:{PORT}
  lost_after: {LOST_AFTER:g}
resource_sharing:
  monitoring_interval_seconds: 1
  thresholds: {{cpu_percent_max: 100, memory_percent_max: 100, memory_min_gb: 0.1}}
agent:
  offer_after: 0
  reserve_memory_gb: 0
  keep_jobs: 100000
  walls: user
"""


def unavailable() -> str:
    """Why no such world can be made on this machine; empty where one can."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc", "flock") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    trial = 'mount -t tmpfs none /mnt && ip link add hub type bridge && tc qdisc add dev hub root "$@"'
    tried = subprocess.run([*ENTER, "sh", "-c", trial, "sh", *_NOTHING], capture_output=True, text=True)
    return f"needs namespaces, bridges and tbf of the kernel: {tried.stderr.strip()}" if tried.returncode else ""


def uptime() -> float:
    """The clock of the campaign, and of what jobs write down: seconds since the machine booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def by_uptime(grid_time: float) -> float:
    """A time that the grid tells, by `uptime`. (The machine's clock is not set while a campaign runs.)"""
    return grid_time - time.time() + uptime()


@dataclass
class Service:
    """A service that is killed and started again. `starts`: when, by `uptime`."""

    name: str
    argv: list[str]
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal, where it runs; wait for its end where that is the end of it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            if number == signal.SIGKILL:
                self.process.wait()


class World:
    """`place` gets everything: state, logs, and in `records` what the jobs write down."""

    def __init__(self, place: Path, nodes: int) -> None:
        self.place = place
        self.url = f"ws://{HUB}:{PORT}"
        self.records = place / "records"
        (self.records / "lock").mkdir(parents=True)
        place.chmod(0o711)  # each attempt is a user of its own (walls user), and all write down what happens to them
        for path in (self.records, self.records / "lock"):
            path.chmod(0o777)
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        (place / "grid.yaml").write_text(CONFIG)
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
        self._environment["XDG_STATE_HOME"] = self._environment["XDG_CONFIG_HOME"] = str(place)
        self.services = {"coordinator": Service("coordinator", self._coordinator())}
        self.services |= {name: Service(name, self._agent(name)) for name in self.nodes}
        self._died: list[str] = []
        self._lay_cables()

    # --- the network --------------------------------------------------------------------------------------------------

    def _lay_cables(self) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "none", "/run/netns")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hub", "type", "bridge")
        run("ip", "addr", "add", f"{HUB}/24", "dev", "hub")
        run("ip", "link", "set", "hub", "up")
        for number, name in enumerate(self.nodes, 11):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", name, "master", "hub", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"192.0.2.{number}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def cut(self, node: str, way: str) -> None:
        """Cut a node off: `both` ways at the bridge, or silently only what goes `to` it or comes `from` it."""
        match way:
            case "both":
                run("ip", "link", "set", node, "down")
            case "to":
                run("tc", "qdisc", "add", "dev", node, "root", *_NOTHING)
            case "from":
                run("tc", "-n", node, "qdisc", "add", "dev", "eth0", "root", *_NOTHING)

    def mend(self, node: str, way: str) -> None:
        """Undo a cut."""
        match way:
            case "both":
                run("ip", "link", "set", node, "up")
            case "to":
                run("tc", "qdisc", "del", "dev", node, "root")
            case "from":
                run("tc", "-n", node, "qdisc", "del", "dev", "eth0", "root")

    # --- the services -------------------------------------------------------------------------------------------------

    def _coordinator(self) -> list[str]:
        state = str(self.place / "coordinator")
        run_it = ["coordinator", "run", "--host", HUB, "--port", str(PORT), "--insecure", "--state-dir", state]
        return [*_GRID, "-c", str(self.place / "grid.yaml"), *run_it]

    def _agent(self, name: str) -> list[str]:
        words = ["agent", "run", "--insecure", "--name", name, "--state-dir", str(self.place / name)]
        words += [
            "--cores",
            f"0-{CORES - 1}",
            "--virtual",
            "--memory",
            "8G",
            "--gpus",
            "none",
            "--siblings",
            str(self.place),
        ]
        return ["nsenter", f"--net=/run/netns/{name}", *_GRID, "-c", str(self.place / "grid.yaml"), *words]

    def start(self, name: str) -> None:
        """Start a service, or start it again."""
        service = self.services[name]
        assert not service.runs, f"{name} runs already"
        self._died = self.died_alone()
        with open(self.place / f"{name}.log", "ab") as log:
            service.process = subprocess.Popen(
                service.argv,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment, cwd=self.place, start_new_session=True,
            )  # fmt: skip
        service.starts.append(uptime())

    def supervisor(self, node: str) -> int:
        """The pid of a node's supervisor, where one is alive; 0: none."""
        try:
            pid = int(json.loads((self.place / node / "supervisor.pid").read_text())["pid"])
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError, KeyError):
            return 0
        return pid if any(word.endswith(b"supervisor/main.py") for word in words) else 0

    def died_alone(self) -> list[str]:
        """Return the services that ended although they were not killed."""
        now = [
            f"{one.name} ended by itself with {one.process.returncode}: {self.log(one.name)}"
            for one in self.services.values()
            if one.process is not None and one.process.poll() not in (None, -signal.SIGKILL)
        ]
        return [*dict.fromkeys([*self._died, *now])]

    def log(self, name: str) -> str:
        """The end of what a service said."""
        return (self.place / f"{name}.log").read_text(errors="replace")[-1000:]

    def strangers(self) -> list[str]:
        """Return all processes beside the campaign, its services, the idle supervisors and the helpers that make jobs
        for these."""
        ours = {1, os.getpid(), *(one.process.pid for one in self.services.values() if one.process)}
        ours |= {self.supervisor(node) for node in self.nodes}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in ours:
                try:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                except OSError:
                    continue
                if "supervisor/main.py" in words:
                    continue  # a spawner, or the server that forks them
                found.append(f"{entry.name} {words or 'a zombie'}")
        return found

    def tracebacks(self) -> list[str]:
        """Return unexpected errors in the services' logs, each with the lines around it."""
        found = []
        for log in sorted([*self.place.glob("*.log"), *self.place.glob("*/supervisor.log")]):
            text = log.read_text(errors="replace")
            at = text.find("Traceback")
            if at >= 0:
                found.append(f"{log.relative_to(self.place)}: {text[max(0, at - 500) : at + 3000]}")
        return found


def run(*argv: str) -> None:
    """Run a command that has to succeed."""
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"


async def until(holds, seconds: float, pause: float = 0.1):  # type: ignore[no-untyped-def]
    """Return what `holds` (a coroutine function) returns once that is true, or its last result when the time is up."""
    end = uptime() + seconds
    while not (found := await holds()) and uptime() < end:  # noqa: ASYNC110
        await asyncio.sleep(pause)
    return found


def lines(paths: Iterable[Path]) -> Iterable[tuple[str, str]]:
    """Yield all lines of these files, each with its file's name."""
    for path in sorted(paths):
        for line in path.read_text().splitlines():
            yield path.name, line
