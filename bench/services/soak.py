"""Soak test: growth of memory, files, threads and disk of coordinator, agent and supervisor under minutes of load.

Short jobs without a pause, one in fifty with output that is read; clients come and go, and nobody is killed.
The first third is the warming up; what grew after it is also told per hour. `make bench ARGS="soak 60"`.
"""

import argparse
import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from bench._common import CONFIG, Grid, grid, report, rss_mib
from distributed_grid.coordinator.client import GridClient, describe_job

MINUTES = 2.5
KEPT = """
coordinator:
  keep_jobs: 20000
"""
"""So that the bound is reached within minutes; with the default it is reached after many more jobs."""
SAMPLES = 12
AT_ONCE = 50


def state(running: Grid) -> dict[str, float]:
    """Return what may grow, by name."""
    parts = {"coordinator": running.coordinator, "agent": running.agents[0], "supervisor": running.supervisors[0]}
    figures: dict[str, float] = {}
    for name, pid in parts.items():
        figures[f"{name}_rss_mib"] = rss_mib(pid)
        figures[f"{name}_files"] = len([*Path(f"/proc/{pid}/fd").iterdir()])
        figures[f"{name}_threads"] = len([*Path(f"/proc/{pid}/task").iterdir()])
    for name in ("coordinator", "n0"):
        blocks = files = 0
        for folder, _, inside in os.walk(running.folder / name):
            for file in inside:
                with suppress(FileNotFoundError):  # removed meanwhile
                    blocks += os.lstat(f"{folder}/{file}").st_blocks
                    files += 1
        figures[f"{name}_disk_mib"], figures[f"{name}_disk_files"] = blocks / 2048, files
    return figures


async def load(running: Grid, until: float, done: list[int]) -> None:
    """Keep jobs going until then."""
    number = 0
    while time.monotonic() < until:
        async with GridClient(running.url) as client:
            for _ in range(20):
                loud = [describe_job(["/bin/sh", "-c", "seq 20000"]), *[describe_job(["/bin/true"])] * (AT_ONCE - 1)]
                fresh = [describe_job(list(one.spec.argv), name=f"s{number}-{n}") for n, one in enumerate(loud)]
                jobs = await client.submit_many(fresh)
                got = 0
                async for _, data in client.stream(jobs[0]):
                    got += len(data)
                assert got == 108894, got
                for job in jobs:
                    assert (await client.wait(job)).outcome is not None
                done[0] += len(jobs)
                number += 1
                if time.monotonic() >= until:
                    return


async def run(running: Grid, minutes: float) -> dict[str, float]:
    """Load, with samples on the way."""
    began, done = time.monotonic(), [0]
    loading = asyncio.create_task(load(running, began + minutes * 60, done))
    samples: list[tuple[float, dict[str, float]]] = []
    while not loading.done():
        await asyncio.wait([loading], timeout=minutes * 60 / SAMPLES)
        samples.append((time.monotonic() - began, await asyncio.to_thread(state, running)))
        print(f"{samples[-1][0]:.0f} s, {done[0]} jobs: {samples[-1][1]}", file=sys.stderr)
    loading.result()
    (since, first), (until, last) = samples[len(samples) // 3], samples[-1]
    figures: dict[str, float] = {"minutes": minutes, "jobs": done[0]}
    for name in last:
        figures[f"{name}_end"] = last[name]
        if not name.endswith("threads"):
            figures[f"{name}_per_hour"] = (last[name] - first[name]) / (until - since) * 3600
    return figures


def main() -> int:
    """Measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=MINUTES)
    minutes = parser.parse_args().minutes
    with grid(agents=1, cores=["0-1"], config=CONFIG + KEPT) as running:
        report("soak", asyncio.run(run(running, minutes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
