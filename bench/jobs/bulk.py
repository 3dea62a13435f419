"""100,000 jobs in one call to the client, each by itself and as one array: seconds from before they are described
(`describe_job`) until all are on the coordinator's disk and acknowledged, and, of the array, until all are cancelled
there. The floor is SQLite alone: as many rows of their size, in a fresh store, synced as the coordinator's is.
"""

import argparse
import asyncio
import os
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import _processes
from bench._common import Grid, grid, medians, report
from distributed_grid.coordinator.client import GridClient, describe_job

JOBS = 100_000
RUNS = 3
BATCH = 5000
ROW_BYTES = 300
"""About what the store has of a job that was just submitted."""


def floor(jobs: int) -> float:
    """Seconds of writing a row for each, in batches that are synced."""
    with tempfile.TemporaryDirectory(prefix="grid-bench-") as name:
        db = sqlite3.connect(Path(name) / "floor.db", isolation_level=None)
        db.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (id TEXT PRIMARY KEY, x)"
        )
        rows = [(os.urandom(6).hex(), bytes(ROW_BYTES)) for _ in range(jobs)]
        began = time.perf_counter()
        for first in range(0, jobs, BATCH):
            db.execute("BEGIN")
            db.executemany("INSERT INTO t VALUES (?, ?)", rows[first : first + BATCH])
            db.execute("COMMIT")
        took = time.perf_counter() - began
        db.close()
        return took


async def submit(running: Grid, jobs: int) -> dict[str, Any]:
    """Submit all jobs in one call; there is no node, so that only their acceptance is measured."""
    async with GridClient(running.url) as client:
        cpu, began = _processes.cpu(running), time.perf_counter()
        described = [describe_job(["/bin/true"]) for _ in range(jobs)]
        ready = time.perf_counter()
        await client.submit_many(described)
        done = time.perf_counter()
        used = _processes.cpu_per(cpu, _processes.cpu(running), jobs)
    us = {f"{kind}_cpu_us_per_job": used[kind] * 1e3 for kind in ("coordinator", "client")}
    return {"seconds": done - began, "describe_seconds": ready - began, **us}


async def array(running: Grid, jobs: int) -> dict[str, Any]:
    """Submit all jobs as one array, then cancel it."""
    async with GridClient(running.url) as client:
        cpu, began = _processes.cpu(running), time.perf_counter()
        name = await client.submit(["/bin/true"], array=f"0-{jobs - 1}")
        taken = time.perf_counter()
        used = _processes.cpu_per(cpu, _processes.cpu(running), jobs)
        await client.cancel(name)
        done = time.perf_counter()
    return {
        "array_seconds": taken - began,
        "array_cancel_seconds": done - taken,
        "array_coordinator_cpu_us_per_job": used["coordinator"] * 1e3,
    }


def once(jobs: int) -> dict[str, Any]:
    """Run each once, beside the floor."""
    low = floor(jobs)
    with grid(agents=0) as running:
        row = asyncio.run(submit(running, jobs))
    with grid(agents=0) as running:
        row |= asyncio.run(array(running, jobs))
    return {**row, "floor_seconds": low, "fraction_of_floor": low / row["seconds"]}


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="bulk", description="many jobs in one call")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    rows = [once(given.jobs) for _ in range(given.runs)]
    report("bulk", {"jobs": given.jobs, "runs": given.runs, **medians(rows)})


if __name__ == "__main__":
    main()
