"""`make abuse`: a real grid at work, first alone and then besieged by a crowd of peers that misbehave in every way at
once (crowd.py). Judges whether the work came to harm, and prints figures.

    make abuse ARGS="--seconds 120 --seed 1"
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.jobs import Cause, State
from tests.e2e.scenes import ROOT, Scene, scene

WORKERS = 3
PATIENCE = 60.0


@dataclass
class Load:
    """Jobs that were run one after another by a few workers, each with its own result to come back with."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def at(self, part: float) -> float:
        """Return the quantile of the seconds from submit to result."""
        return sorted(self.seconds)[int((len(self.seconds) - 1) * part)]

    def line(self, name: str, seconds: float) -> str:
        rate = f"{len(self.seconds)} jobs, {len(self.seconds) / seconds:.1f}/s"
        return f"{name:9} {rate}, submit to result {self.at(0.5):.3f} s at the median, {self.at(0.99):.3f} s at p99"


@dataclass
class Verdict:
    """The result of a siege. `wrong` is empty: no harm was done."""

    alone: Load
    besieged: Load
    cancel: float
    before: int
    peak: int
    log_bytes: int
    misdeeds: Counter[str]
    wrong: list[str]


async def work(url: str, seconds: float, load: Load) -> None:
    """Run jobs for this many seconds, each of which prints its number and ends with a code of its own."""
    until, numbers = time.monotonic() + seconds, itertools.count(1)

    async def worker(client: GridClient) -> None:
        while time.monotonic() < until:
            number = next(numbers)
            began = time.monotonic()
            command = ["sh", "-c", f"echo {number}; exit {number % 7}"]
            result = await asyncio.wait_for(client.run(command, nodes=["n1"]), PATIENCE)
            load.seconds.append(time.monotonic() - began)
            if (result.exit_code, result.stdout) != (number % 7, f"{number}\n"):
                load.wrong.append(f"job {number}: {result}")

    async with GridClient(url) as client:
        await asyncio.gather(*(worker(client) for _ in range(WORKERS)))


def status_of(grid: Scene, name: str) -> int:
    """Bytes by /proc: VmRSS or VmHWM."""
    status = Path(f"/proc/{grid.parts['coordinator'].pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) << 10


async def _running(client: GridClient, job: str) -> bool:
    return (await client.show(job)).state is State.RUNNING


async def cancelled(grid: Scene) -> float:
    """Return how long it takes an operator, with a separate connection, to end a running job."""
    async with GridClient(grid.url) as client:
        job = await client.submit(["sleep", "600"], nodes=["n1"])
        await grid.until(lambda: _running(client, job), "it runs")
        began = time.monotonic()
        await client.cancel(job, grace=0)
        view = await asyncio.wait_for(client.wait(job), PATIENCE)
        assert view.outcome is not None and view.outcome.cause is Cause.CANCELLED
        return time.monotonic() - began


async def siege(seconds: float, seed: int, alone: float = 3.0) -> Verdict:
    """Work alone, then under siege for this many seconds; returns the result."""
    async with scene() as grid:
        await grid.agent("n1", cores=[0, 1, 2, 3], virtual=True)
        quiet, besieged = Load(), Load()
        await work(grid.url, alone, quiet)
        before, peak = status_of(grid, "VmRSS"), 0
        with (grid.place / "crowd").open("wb") as told:
            crowd = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.security.crowd", grid.url, str(seed)],
                cwd=ROOT,
                stdout=told,
                stderr=told,
            )
        said: list[dict[str, int]] = []
        try:
            await grid.until(lambda: b"{" in (grid.place / "crowd").read_bytes(), "the crowd is there")
            working = asyncio.create_task(work(grid.url, seconds, besieged))
            cancel = await cancelled(grid)
            while not working.done():
                peak = max(peak, status_of(grid, "VmRSS"))
                await asyncio.sleep(0.1)
            await working
        finally:
            crowd.kill()
            crowd.wait()
            lines = (grid.place / "crowd").read_text().splitlines()
            for line in lines:
                with contextlib.suppress(ValueError):  # the last one may be half of one
                    said.append(json.loads(line))
        wrong = quiet.wrong + besieged.wrong
        if any("Traceback" in line for line in lines):
            wrong.append("the crowd itself failed: " + "\n".join(lines)[-3000:])
        for log in grid.place.glob("*.log"):
            if "Traceback" in (text := log.read_text()):
                wrong.append(f"{log.name}: {text[text.index('Traceback') - 500 :][:3000]}")
        async with GridClient(grid.url) as client:
            if [node.facts.name for node in await client.nodes() if node.facts.name == "n1"] != ["n1"]:
                wrong.append("the node is gone")
        size = (grid.place / "coordinator.log").stat().st_size
        return Verdict(quiet, besieged, cancel, before, peak, size, Counter(said[-1] if said else {}), wrong)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make abuse")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    verdict = asyncio.run(siege(said.seconds, said.seed, alone=min(10.0, said.seconds)))
    print(verdict.alone.line("alone", min(10.0, said.seconds)))
    print(verdict.besieged.line("besieged", said.seconds))
    print(f"an operator's cancel took {verdict.cancel:.2f} s")
    print(f"coordinator's memory: {verdict.before >> 20} MiB before, {verdict.peak >> 20} at the most")
    print(f"coordinator's log: {verdict.log_bytes >> 10} KiB")
    print("misdeeds: " + ", ".join(f"{name} {count}" for name, count in sorted(verdict.misdeeds.items())))
    for wrong in verdict.wrong[:10]:
        print(f"WRONG {wrong}")
    return 1 if verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
