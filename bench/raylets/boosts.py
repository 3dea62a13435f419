"""Latency of a boost, from its request until it is granted, and from its release until it is gone; and Ray's part of
it.

Three parts: our own `before` (from the request until `ray start` is executed), Ray's own `start` (from there until
its list of nodes has the raylet), our own `after` (from there until who asked knows that it is lent). The floor of
the same run: each round first does the middle one by hand, with the flags and the environment that the grid gives a
raylet.

A head and a node of the grid on loopback. GRID_BENCH_ROUNDS: another number than 20.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench._common import CONFIG, Grid, grid, memory_mib, no_options, percentile, report, rss_mib
from distributed_grid.coordinator.client import GridClient
from distributed_grid.coordinator.ray.bridge_client import environment
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import ResourceType

ROUNDS = int(os.environ.get("GRID_BENCH_ROUNDS", "20"))
RAY = str(Path(sys.executable).with_name("ray"))
GRAIN = 0.003
PATIENCE = 90.0
PORT, ROW = re.compile(r"(--[a-z-]+-port=)(\d+)$"), 42
"""The flags that name a raylet's ports, and how many of them it has in a row."""
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


class Watch:
    """A process that says when something was first so (`_raylets.py`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @staticmethod
    async def begin(address: str) -> "Watch":
        pipe, script = asyncio.subprocess.PIPE, Path(__file__).with_name("_raylets.py")
        said = {**os.environ, **environment("disabled")}
        command = sys.executable, "-P", str(script), address
        return Watch(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=said))

    async def ask(self, what: str, about: str | int) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{what} {about}\n".encode())
        await self._process.stdin.drain()

    async def answer(self) -> bytes:
        assert self._process.stdout
        return await self._process.stdout.readline()

    async def when(self, what: str, about: str | int) -> float:
        """Seconds of the monotonic clock."""
        await self.ask(what, about)
        if not (at := float(await self.answer() or 0)):
            raise SystemExit(f"Ray did not {'show' if what == 'there' else 'let go of'} {about} in time")
        return at

    async def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        await self._process.wait()


@dataclass
class Start:
    """How a raylet was started: everything needed to do that by hand."""

    argv: list[str]
    environment: dict[str, str]
    cores: set[int]

    @staticmethod
    def of(pid: int) -> "Start":
        argv, said = (Path(f"/proc/{pid}/{name}").read_text().split("\0")[:-1] for name in ("cmdline", "environ"))
        return Start(argv, dict(one.split("=", 1) for one in said), os.sched_getaffinity(pid))

    def again(self, boost: str, name: str, temp: str, row: int) -> subprocess.Popen[bytes]:
        """Start the same raylet under another name, with other ports. In a session of its own, as a job: on a busy
        machine the kernel may distribute time by sessions."""
        argv = [word.replace(boost, name) for word in self.argv]
        argv = [f"--temp-dir={temp}" if word.startswith("--temp-dir=") else word for word in argv]
        argv = [PORT.sub(lambda found: f"{found[1]}{int(found[2]) + row}", word) for word in argv]
        with Path(f"{temp}.log").open("wb") as log:
            process = subprocess.Popen(argv, env=self.environment, stdout=log, stderr=log, start_new_session=True)
        os.sched_setaffinity(process.pid, self.cores)
        return process


async def by_hand(watch: Watch, start: Callable[[], subprocess.Popen[bytes]], name: str) -> float:
    """Seconds from executing it until Ray shows it."""
    process = start()
    began = time.monotonic()
    try:
        return await watch.when("there", name) - began
    finally:
        process.send_signal(signal.SIGTERM)
        await watch.when("gone", name)
        await asyncio.to_thread(process.wait)


async def request(client: GridClient, watch: Watch, other: Watch, supervisor: int) -> tuple[str, dict[str, float]]:
    """A boost that is lent, and how long each part took, in seconds."""
    await other.ask("started", supervisor)
    await other.answer()
    began = time.monotonic()
    boost = await client.request_boost("gpu-master", ResourceType.CPU, 1)
    shown = asyncio.create_task(watch.when("there", boost))
    answered = 0.0
    async for view in client.follow(boost):
        if view.state is State.ENDED:
            raise SystemExit(f"{boost} ended: {view.outcome}")
        if view.state is State.RUNNING:
            answered = time.monotonic()
            break
    started, visible = float(await other.answer()), await shown
    parts = {"before": started - began, "start": visible - started, "after": max(0.0, answered - visible)}
    return boost, parts | {"whole": answered - began}


async def release(client: GridClient, watch: Watch, boost: str, cores: int) -> dict[str, float]:
    """Return how long it takes until Ray does not have it any more, and until its node offers it again, in seconds."""
    began = time.monotonic()
    gone = asyncio.create_task(watch.when("gone", boost))
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


async def measure(grid: Grid, address: str, cores: int) -> dict[str, float]:
    """Measure all rounds."""
    series: dict[str, list[float]] = {}
    watch, other = await Watch.begin(address), await Watch.begin(address)
    await watch.when("there", "gpu-master")  # the head is there before it has a node
    (supervisor,) = grid.supervisors
    async with GridClient(grid.url) as client:
        boost, _ = await request(client, watch, other, supervisor)  # the first one finds nothing in memory
        await asyncio.sleep(3.0)  # all of its processes are up
        pss = sum(map(memory_mib, pids := tree(boost)))
        rss = sum(map(rss_mib, pids))
        start = Start.of(pids[0])
        await release(client, watch, boost, cores)
        with tempfile.TemporaryDirectory(prefix="gb", dir="/tmp") as temp:  # noqa: S108 (sockets lie there)
            for number in range(ROUNDS):
                name = f"hand{number}"
                again = partial(start.again, boost, name, f"{temp}/{number}", ROW * (number % 50 + 60))
                series.setdefault("hand", []).append(await by_hand(watch, again, name))
                made, taken = await request(client, watch, other, supervisor)
                taken |= await release(client, watch, made, cores)
                for part, value in taken.items():
                    series.setdefault(part, []).append(value)
    await asyncio.gather(watch.end(), other.end())
    series["own"] = [before + after for before, after in zip(series["before"], series["after"], strict=True)]
    figures: dict[str, float] = {}
    for name in ("own", "before", "after"):
        figures |= {f"{name}_{word}_ms": value * 1e3 for word, value in spread(series[name]).items()}
    for name, key in (
        ("ray_start_by_hand", "hand"),
        ("ray_start_in_boost", "start"),
        ("request_to_answer", "whole"),
        ("release_to_gone", "gone"),
        ("release_to_offered", "offered"),
    ):
        figures |= {f"{name}_{word}_s": value for word, value in spread(series[key]).items()}
    return {**figures, "raylet_pss_mib": pss, "raylet_rss_mib": rss}


def spread(values: list[float]) -> dict[str, float]:
    """The least (what it takes where nothing else runs), and how it is as a rule."""
    return {"min": min(values), "p50": percentile(values, 0.5), "p95": percentile(values, 0.95)}


def main() -> None:
    """Print one line; nothing where there is no Ray."""
    no_options(__doc__)
    if not Path(RAY).exists():
        print("boosts: there is no Ray here (make test installs it)", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="gbh", dir="/tmp") as name, head(Path(name)) as address:  # noqa: S108
        config = CONFIG + f"  nice: 0\nray: {{address: '{address}'}}\nname: gpu-master\n"
        core = sorted(os.sched_getaffinity(0))[-1]
        with grid(agents=1, cores=(str(core),), config=config) as running:
            figures = asyncio.run(measure(running, address, 1))
    report("boosts", {"rounds": ROUNDS, **figures})


if __name__ == "__main__":
    main()
