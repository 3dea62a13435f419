"""`make profile ARGS=throughput`: where a load's time goes, process by process.

Three batches in one grid. The first one plain: CPU, context switches, reads and writes of each process for each unit of
work (a job). The second one under cProfile: the functions of coordinator, agent and supervisor by their own CPU time,
which the profiler multiplies; only their shares count. The third one under `perf trace`, or strace where perf does not
work: system calls and syncs for each unit. A table for each process on stderr, one JSON line on stdout, and the
profiles, for pstats, in build/profile/.
"""

import argparse
import asyncio
import io
import os
import pstats
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench import _processes
from bench._common import ROOT, Grid, grid, levels, report, say, wait_for
from bench._probe.sitecustomize import FOLDER
from bench.jobs import bulk, latency, throughput
from distributed_grid.coordinator.client import GridClient

OUT = ROOT / "build" / "profile"
SYNCS = ("fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync")
MOST = 8
"""Kinds of system calls that are named."""


class Load(NamedTuple):
    """A load: its function, the default number of units of work, and whether it needs an agent."""

    run: Callable[[Grid, int], None]
    units: int
    agents: int = 1


def jobs(running: Grid, count: int) -> None:
    """Run `count` jobs of `/bin/true` at once."""
    asyncio.run(throughput.batch(running, count))


def one_by_one(running: Grid, count: int) -> None:
    """Run `count` jobs, each on an idle grid."""

    async def all_of_them() -> None:
        async with GridClient(running.url) as client:
            for _ in range(count):
                await latency.plain(client)

    asyncio.run(all_of_them())


def submitted(running: Grid, count: int) -> None:
    """Submit `count` jobs in one call."""
    asyncio.run(bulk.submit(running, count))


LOADS = {"throughput": Load(jobs, 2000), "latency": Load(one_by_one, 200), "bulk": Load(submitted, 20_000, agents=0)}


# --- what is counted --------------------------------------------------------------------------------------------------


def parse_strace(text: str) -> dict[str, int]:
    """Calls by name, from what `strace -c` prints."""
    calls: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 5 and words[0].replace(".", "", 1).isdigit() and words[-1] != "total":
            calls[words[-1]] = calls.get(words[-1], 0) + int(words[3])
    return calls


def parse_perf(text: str) -> dict[str, int]:
    """Calls by name of all threads, from what `perf trace -s` prints."""
    calls: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[1].isdigit() and words[2].isdigit() and "." in words[3]:
            calls[words[0]] = calls.get(words[0], 0) + int(words[1])
    return calls


def calls_each(calls: Mapping[str, int], units: int) -> dict[str, Any]:
    """System calls, syncs, and the most frequent kinds, for each unit of work."""
    often = sorted(calls, key=lambda name: -calls[name])[:MOST]
    return {
        "syscalls": sum(calls.values()) / units,
        "syncs": sum(calls.get(name, 0) for name in SYNCS) / units,
        "most": {name: calls[name] / units for name in often},
    }


def top(path: Path, units: int, lines: int) -> str:
    """The functions with the most own time, as a table."""
    text = io.StringIO()
    stats = pstats.Stats(str(path), stream=text)
    stats.strip_dirs().sort_stats("tottime").print_stats(lines)
    body = [line for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join((f"total {stats.total_tt / units * 1e3:.3f} ms a unit, under the profiler", *body[2:]))  # type: ignore[attr-defined]


# --- the three batches ------------------------------------------------------------------------------------------------


def plain(running: Grid, load: Load, units: int) -> dict[str, Any]:
    """CPU, switches, reads and writes by process for each unit."""
    found = {kind: pids for kind, pids in _processes.processes(running).items() if pids}

    def now() -> dict[str, dict[str, float]]:
        return {kind: added([_processes.counters(pid) for pid in pids]) for kind, pids in found.items()}

    cpu, before = _processes.cpu(running), now()
    began = time.perf_counter()
    load.run(running, units)
    took = time.perf_counter() - began
    used, after = _processes.cpu_per(cpu, _processes.cpu(running), units), now()
    whole = used.pop("all")
    figures: dict[str, Any] = {}
    for kind, value in used.items():
        figures[kind] = {"cpu_ms": value}
        for name, count in after.get(kind, {}).items():
            figures[kind][name] = (count - before[kind].get(name, 0.0)) / units
    return {"units_per_s": units / took, "cpu_ms_per_unit": whole, "processes": figures}


def added(counters: list[dict[str, float]]) -> dict[str, float]:
    """The sums of what several processes have counted."""
    names = {name for one in counters for name in one}
    return {name: sum(one.get(name, 0.0) for one in counters) for name in sorted(names)}


@contextmanager
def profiled(folder: Path, pids: Mapping[str, int]) -> Iterator[None]:
    """Profile these processes by cProfile within the block."""
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    for pid in pids.values():
        wait_for((folder / f"{pid}.on").exists, "the start of a profile")
    yield
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    for pid in pids.values():
        wait_for((folder / f"{pid}.pstats").exists, "the end of a profile")


class Tool(NamedTuple):
    """A program that counts the system calls of a process. `stops`: at each of them, for a moment."""

    name: str
    command: tuple[str, ...]
    parse: Callable[[str], dict[str, int]]
    stops: bool


PERF = Tool("perf", ("perf", "trace", "-s", "--no-inherit"), parse_perf, False)
STRACE = Tool("strace", ("strace", "-c", "-f"), parse_strace, True)


def tools() -> Tool | None:
    """Return the tracer that exists and works; None: there is none."""
    for tool in (PERF, STRACE):
        if shutil.which(tool.name) is None:
            continue
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([*tool.command, "-o", file.name, "true"], capture_output=True)
            if tool.parse(Path(file.name).read_text()):
                return tool
    return None


def attached(pid: int, tracer: "subprocess.Popen[bytes]") -> bool:
    """Whether a tracer is at work, or has given up."""
    try:
        status, maps = Path(f"/proc/{pid}/status").read_text(), Path(f"/proc/{tracer.pid}/maps").read_text()
    except OSError:
        return tracer.poll() is not None
    return "TracerPid:\t0\n" not in status or "[perf_event]" in maps or tracer.poll() is not None


@contextmanager
def traced(tool: Tool, known: Mapping[str, list[int]]) -> Iterator[dict[str, dict[str, int]]]:
    """Trace these processes within the block; their calls by kind are available afterwards. The supervisor gives up a
    spawner that stands still, so no spawner is traced by a tool that stops it."""
    calls: dict[str, dict[str, int]] = {}
    kinds = {pid: kind for kind, pids in known.items() if not (tool.stops and kind == "spawners") for pid in pids}
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name:
        running = {}
        for pid in kinds:
            command = [*tool.command, "-o", f"{name}/{pid}", "-p", str(pid)]
            running[pid] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for pid, tracer in running.items():
            wait_for(partial(attached, pid, tracer), f"the start of {tool.name}")
        yield calls
        for pid, tracer in running.items():
            tracer.send_signal(signal.SIGINT)
            tracer.wait(20)
            file = Path(name, str(pid))
            of = calls.setdefault(kinds[pid], {})
            for call, count in tool.parse(file.read_text() if file.exists() else "").items():
                of[call] = of.get(call, 0) + count


def measure(load: Load, units: int, walls: str, lines: int) -> dict[str, Any]:
    """Return CPU, profile and calls of a load."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name, ExitStack() as stack:
        above = os.environ.get("PYTHONPATH", "")
        path = str(Path(__file__).with_name("_probe")) + (f":{above}" if above else "")
        variables = {FOLDER: name, "PYTHONPATH": path}
        running = stack.enter_context(grid(agents=load.agents, cores=["0-1"], walls=walls, variables=variables))
        load.run(running, max(1, units // 10))
        figures = plain(running, load, units)
        known = _processes.processes(running)
        ours = {kind: known[kind][0] for kind in ("coordinator", "agent", "supervisor") if known[kind]}
        with profiled(Path(name), ours):
            load.run(running, units)
        for kind, pid in ours.items():
            shutil.copy(Path(name, f"{pid}.pstats"), OUT / f"{kind}.pstats")
            say(f"\n--- {kind}, by own time\n{top(OUT / f'{kind}.pstats', units, lines)}")
        tool = tools()
        figures["calls_by"] = tool.name if tool is not None else ""
        if tool is not None:
            with traced(tool, known) as calls:
                load.run(running, units)
            for kind, seen in calls.items():
                figures["processes"][kind] |= calls_each(seen, units)
    return figures


def main() -> int:
    """Print one line; return 2 for an unknown load."""
    parser = argparse.ArgumentParser(prog="make profile", description="where a load's time goes, by process")
    parser.add_argument("load", nargs="?", default="throughput", choices=[*LOADS])
    parser.add_argument("--units", type=int, default=0, help="jobs in each batch")
    parser.add_argument("--walls", default=levels()[0])
    parser.add_argument("--lines", type=int, default=25, help="functions that are shown of each process")
    given = parser.parse_args()
    load = LOADS[given.load]
    units = given.units or load.units
    figures = measure(load, units, given.walls, given.lines)
    say(f"\nThe profiles are in {OUT.relative_to(ROOT)}/: python -m pstats {OUT.relative_to(ROOT)}/coordinator.pstats")
    report("profile", {"of": given.load, "units": units, "walls": given.walls, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
