"""A grid of real processes whose parts a test may kill, stop and start again.

GPUs are stand-ins at the vendor's boundary: the library `pynvml` that the agents import is the one in cli/dev/standins,
and its devices are a JSON file that a test may change while the grid runs.
"""

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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.nodes import OfferView
from tests import forked
from tests.agent.conftest import runs
from tests.grid_fixture import pause

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0

PART = ROOT / "tests/e2e/part.py"
BEFORE = ""
"""Code for the parts of all scenes, which they run before they import anything: a test may say some."""


class Scene:
    """A running coordinator and its agents. Everything started is ended with the scene, jobs included."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.place = place
        self.settings = settings
        """Sections of the coordinator's configuration, from its next start; its place and port are added."""
        self.url = ""
        self.parts: dict[str, subprocess.Popen[bytes] | forked.Service] = {}
        self.faults: dict[str, str] = {}
        """GRID_FAULTS for the next start of a part, and for that one only."""
        self._agents: dict[str, dict[str, Any]] = {}

    # --- starting and ending parts -----------------------------------------------------------------------------------

    async def coordinator(self) -> None:
        """Start the coordinator, or start it again at the same address."""
        announced = self.begin_coordinator()
        await self.until(announced.exists, "the coordinator is up")
        self.url = json.loads(announced.read_text())["url"]

    def begin_coordinator(self) -> Path:
        """Start the coordinator and do not wait; the file by which it tells that it is up."""
        announced = self.place / "coordinator" / "coordinator.json"
        announced.unlink(missing_ok=True)
        own = {"state_dir": str(self.place / "coordinator"), "port": self.url.rpartition(":")[2] or "0"}
        config = self.place / "coordinator.yaml"
        config.write_text(json.dumps({**self.settings, "coordinator": own | self.settings.get("coordinator", {})}))
        self._run("coordinator", "coordinator", str(config))
        return announced

    async def agent(
        self,
        name: str,
        cores: list[int] | None = None,
        virtual: bool = False,
        gpus: int = 0,
        interval: float = 0.2,
        cpu_percent_max: float = 100,
        offer_after: float = 0.1,
        **sharing: Any,
    ) -> None:
        """Start an agent and wait until it offers. CPU is not judged unless that is said."""
        self.set_gpus(name, [{} for _ in range(gpus)])
        said = {
            "cores": cores or [0], "virtual": virtual, "cpu_percent_max": cpu_percent_max, "offer_after": offer_after,
            "sharing": {"monitoring_interval_seconds": interval, **sharing},
        }  # fmt: skip
        self._agents[name] = said
        await self.start_agent(name)

    async def start_agent(self, name: str) -> None:
        """Start a known agent, or start it again, and wait until it offers."""
        self.again(name)
        await self.until(lambda: self.offers(name), f"{name} offers")

    def again(self, name: str) -> None:
        """Start a known agent and do not wait."""
        self._run(name, "agent", str(self.place / name), name, self.url, json.dumps(self._agents[name]))

    def set_gpus(self, name: str, devices: list[dict[str, Any]]) -> None:
        """Change what the stand-in library says of a node's GPUs."""
        whole = [
            {"uuid": f"GPU-{name}-{n}", "memory": 16 << 30, "used": 0, "utilisation": 0, **device}
            for n, device in enumerate(devices)
        ]
        path = self.place / f"{name}.json"
        path.with_suffix(".new").write_text(json.dumps(whole))
        path.with_suffix(".new").replace(path)

    def kill(self, name: str) -> None:
        """kill -9, reaped."""
        self.parts[name].kill()
        self.parts[name].wait()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.parts[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.parts[name].send_signal(signal.SIGCONT)

    def _run(self, name: str, *words: str) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "cli/dev/standins/nvml"),
            "GRID_STANDIN_GPUS": str(self.place / f"{name}.json"),
            "GRID_FAULTS": self.faults.pop(name, ""),
        }
        if environment["GRID_FAULTS"].startswith("supervisor.") and "," not in environment["GRID_FAULTS"]:
            # Its own modules are none of the supervisor's, so it need not import them anew.
            environment["GRID_SUPERVISOR_FAULTS"] = environment.pop("GRID_FAULTS")
        with open(self.place / f"{name}.log", "ab") as log:
            if forked.can_run(environment) and not BEFORE:
                self.parts[name] = forked.program(PART, words, environment, self.place, log)
                return
            code = f"{BEFORE}\nimport runpy\nrunpy.run_path({str(PART)!r}, run_name='__main__')"
            command = [sys.executable, "-P", "-c", code, *words]
            self.parts[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.place)

    def end(self) -> None:
        """End everything, jobs too."""
        for process in self.parts.values():
            process.kill()
            process.wait()
        for file in self.place.glob("*/supervisor.pid"):
            with contextlib.suppress(ProcessLookupError, OSError):
                end_tree(json.loads(file.read_text())["pid"])

    # --- looking ------------------------------------------------------------------------------------------------------

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`grid` with these words, to its end."""
        return forked.with_text(forked.grid(["--coordinator", self.url, *words], os.environ, self.place))

    async def offers(self, node: str = "") -> list[OfferView]:
        """Return the present offers; nodes without an offer are left out."""
        async with GridClient(self.url, patience=PATIENCE) as client:
            views = (await client.shared()).offers
        return [view for view in views if view.room and node in ("", view.node)]

    async def until(self, there: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """Wait for a condition, and fail with the logs if it does not come."""
        end = time.monotonic() + patience
        while True:
            used = time.process_time()
            found = there()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            if time.monotonic() > end:
                logs = "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.place.glob("*.log"))
                raise AssertionError(f"it did not come to pass in {patience:g} s that {what}\n{logs}")
            await asyncio.sleep(pause(0, time.process_time() - used))


@contextlib.contextmanager
def lasting(cores: int) -> Iterator[Scene]:
    """A scene with one node, n1, for all tests of a module, whose loops come and go. Nothing of it may have logged a
    traceback when it ends."""
    with asyncio.Runner() as runner:
        context = scene()
        made = runner.run(context.__aenter__())
        try:
            runner.run(made.agent("n1", cores=list(range(cores)), virtual=True))
            yield made
            for log in made.place.glob("*.log"):
                assert "Traceback" not in log.read_text(), log.read_text()[-4000:]
        finally:
            runner.run(context.__aexit__(None, None, None))


def descendants(pid: int) -> list[int]:
    """Return all live processes below one, by the kernel's own lists."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def end_tree(pid: int) -> None:
    """kill -9 a process and all below it, and wait until they are gone: until then they may still write somewhere."""
    whole = [pid, *descendants(pid)]
    for one in whole:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    end = time.monotonic() + PATIENCE
    while any(map(runs, whole)) and time.monotonic() < end:
        time.sleep(0.01)


@contextlib.asynccontextmanager
async def scene(**settings: Any) -> AsyncIterator[Scene]:
    """A coordinator without agents, in a folder with a short name (sockets lie in it)."""
    place = Path(tempfile.mkdtemp(prefix="grid-"))
    made = Scene(place, **settings)
    try:
        await made.coordinator()
        yield made
    finally:
        made.end()
        shutil.rmtree(place, ignore_errors=True)
