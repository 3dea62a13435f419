"""A boost, from its request to Ray's showing it, and back; and what of that is Ray's own.

Each round starts a raylet by hand, with the flags and the environment that the grid gives it, and then asks the grid
for one. `ray_start` is by hand: from the spawn until the head's list of nodes has it. `request_to_visible` is the whole
way by the grid. Our own part is what is on neither side Ray's: from the request until `ray start` runs, and from Ray's
showing it (looked at here, every few milliseconds) until who asked is told.

A head and a node of the grid on loopback. GRID_BENCH_ROUNDS: another number than 20.
"""

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench._common import CONFIG, grid, memory_mib, percentile, report, rss_mib
from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.ray.asking import Bridge, NoRay, environment
from distributed_grid.protocol.boosts import LABEL
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import ResourceType

ROUNDS = int(os.environ.get("GRID_BENCH_ROUNDS", "20"))
RAY = str(Path(sys.executable).with_name("ray"))
GRAIN = 0.003
PATIENCE = 90.0
HEAD = "start --head --block --node-name=gpu-master --node-ip-address=127.0.0.1 --num-cpus=1 --num-gpus=0"
SMALL = "--include-dashboard=false --disable-usage-stats --object-store-memory=80000000 --memory=500000000"


@contextmanager
def head(folder: Path) -> Iterator[str]:
    """A Ray cluster of one node; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = {**os.environ, **environment("disabled"), "HOME": str(folder)}
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(
            [RAY, *HEAD.split(), *SMALL.split(), f"--port={port}", f"--temp-dir={folder / 'r'}"],
            env=said,
            stdout=log,
            stderr=log,
        )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


async def until(bridge: Bridge, boost: str, there: bool) -> float:
    """When Ray's list of nodes has this boost, or has it no longer (the monotonic clock)."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        nodes = (await bridge.ask("nodes", seconds=PATIENCE))["nodes"]
        if any(node["labels"].get(LABEL) == boost for node in nodes) is there:
            return time.monotonic()
        await asyncio.sleep(GRAIN)
    raise SystemExit(f"Ray did not {'show' if there else 'let go of'} {boost} within {PATIENCE:g} s")


@dataclass
class Start:
    """How a raylet was started: what it takes to do that by hand."""

    argv: list[str]
    environment: dict[str, str]
    cores: set[int]

    @staticmethod
    def of(pid: int) -> "Start":
        argv, said = (Path(f"/proc/{pid}/{name}").read_text().split("\0")[:-1] for name in ("cmdline", "environ"))
        return Start(argv, dict(one.split("=", 1) for one in said), os.sched_getaffinity(pid))

    def again(self, boost: str, name: str, temp: str) -> subprocess.Popen[bytes]:
        """The same under another name. In a session of its own, as a job: on a busy machine the kernel may share time
        out by sessions."""
        argv = [word.replace(boost, name) for word in self.argv]
        argv = [f"--temp-dir={temp}" if word.startswith("--temp-dir=") else word for word in argv]
        silent = subprocess.DEVNULL
        process = subprocess.Popen(argv, env=self.environment, stdout=silent, stderr=silent, start_new_session=True)
        os.sched_setaffinity(process.pid, self.cores)
        return process


async def by_hand(bridge: Bridge, start: Callable[[], subprocess.Popen[bytes]], boost: str) -> float:
    """Seconds from spawning it until Ray shows it."""
    began = time.monotonic()
    process = start()
    shown = await until(bridge, boost, True)
    process.send_signal(signal.SIGTERM)
    await until(bridge, boost, False)
    await asyncio.to_thread(process.wait)
    return shown - began


async def request(client: GridClient, bridge: Bridge) -> tuple[str, dict[str, float]]:
    """A boost that is lent, and how long each part took, in seconds."""
    began = time.monotonic()
    boost = await client.request_boost("gpu-master", ResourceType.CPU, 1)
    shown = asyncio.create_task(until(bridge, boost, True))
    launched = running = 0.0
    async for view in client.follow(boost):
        now = time.monotonic()
        if view.state is State.ENDED:
            raise SystemExit(f"{boost} ended: {view.outcome}")
        if view.started and not launched:
            launched = now
        if view.state is State.RUNNING:
            running = now
            break
    visible = await shown
    before, after = launched - began, max(0.0, running - visible)
    return boost, {"visible": visible - began, "running": running - began, "before": before, "after": after}


async def release(client: GridClient, bridge: Bridge, boost: str, cores: int) -> dict[str, float]:
    """How long until Ray has it no longer, and until its node offers it again, in seconds."""
    began = time.monotonic()
    gone = asyncio.create_task(until(bridge, boost, False))
    await client.cancel(boost)
    while (await client.shared()).offers[0].room.cpu < cores * 1000:
        if time.monotonic() > began + PATIENCE:
            raise SystemExit(f"the capacity of {boost} is not offered again")
        await asyncio.sleep(GRAIN)
    offered = time.monotonic()
    return {"gone": await gone - began, "offered": offered - began}


def tree(boost: str) -> list[int]:
    """The process that starts this boost's raylet, and all that came of it."""
    found: list[int] = []
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            argv = Path(f"/proc/{name}/cmdline").read_bytes()
            if b"start\0--block\0" in argv and f"--node-name={boost}\0".encode() in argv:
                found.append(int(name))
            stat = Path(f"/proc/{name}/stat").read_text()
            parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    for parent in found:
        found += [pid for pid, above in parents.items() if above == parent]
    return found


async def measure(url: str, address: str, cores: int) -> dict[str, float]:
    """All rounds."""
    bridge = Bridge(address, environment("disabled"))
    series: dict[str, list[float]] = {}
    async with GridClient(url) as client:
        for _ in range(200):  # the head is there before it has a node
            with suppress(NoRay):
                if (await bridge.ask("nodes"))["nodes"]:
                    break
            await asyncio.sleep(0.2)
        boost, _ = await request(client, bridge)  # the first one finds nothing in memory
        await asyncio.sleep(3.0)  # all of its processes are up
        pss = sum(map(memory_mib, pids := tree(boost)))
        rss = sum(map(rss_mib, pids))
        start = Start.of(pids[0])
        await release(client, bridge, boost, cores)
        with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as temp:  # noqa: S108 (sockets lie there)
            for number in range(ROUNDS):
                name = f"hand{number}"
                again = partial(start.again, boost, name, f"{temp}/{number}")
                series.setdefault("hand", []).append(await by_hand(bridge, again, name))
                made, taken = await request(client, bridge)
                taken |= await release(client, bridge, made, cores)
                for part, value in taken.items():
                    series.setdefault(part, []).append(value)
    await bridge.close()
    ours = [before + after for before, after in zip(series["before"], series["after"], strict=True)]
    figures = {"ray_start_p50_s": percentile(series["hand"], 0.5), "ray_start_p95_s": percentile(series["hand"], 0.95)}
    for name, key in (("request_to_visible", "visible"), ("request_to_answer", "running")):
        figures |= {f"{name}_p50_s": percentile(series[key], 0.5), f"{name}_p95_s": percentile(series[key], 0.95)}
    for name, values in (("own", ours), ("own_before", series["before"]), ("own_after", series["after"])):
        figures |= {f"{name}_p50_ms": percentile(values, 0.5) * 1e3, f"{name}_p95_ms": percentile(values, 0.95) * 1e3}
    for name, key in (("release_to_gone", "gone"), ("release_to_offered", "offered")):
        figures |= {f"{name}_p50_s": percentile(series[key], 0.5), f"{name}_p95_s": percentile(series[key], 0.95)}
    difference = statistics.median(a - b for a, b in zip(series["visible"], series["hand"], strict=True))
    return {**figures, "visible_less_ray_start_p50_s": difference, "raylet_pss_mib": pss, "raylet_rss_mib": rss}


def main() -> None:
    """Print one line; nothing where there is no Ray."""
    if not Path(RAY).exists():
        print("boosts: there is no Ray here (make test installs it)", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="gbh", dir="/tmp") as name, head(Path(name)) as address:  # noqa: S108
        config = CONFIG + f"  nice: 0\nray: {{address: '{address}'}}\nname: gpu-master\n"
        core = sorted(os.sched_getaffinity(0))[-1]
        with grid(agents=1, cores=(str(core),), config=config) as running:
            figures = asyncio.run(measure(running.url, address, 1))
    report("boosts", {"rounds": ROUNDS, **figures})


if __name__ == "__main__":
    main()
