"""100,000 jobs in one call to the client, each by itself and as one array: seconds until all are on the coordinator's
disk and acknowledged, and, of the array, until all are cancelled there."""

import asyncio
import statistics
import time

from bench._common import grid, report
from distributed_grid.coordinator.client import GridClient, describe_job

JOBS = 100_000
RUNS = 3


async def submit(url: str) -> float:
    """One call; no node is there, so that nothing but taking the jobs is measured."""
    async with GridClient(url) as client:
        jobs = [describe_job(["/bin/true"]) for _ in range(JOBS)]
        began = time.perf_counter()
        await client.submit_many(jobs)
        return time.perf_counter() - began


async def array(url: str) -> tuple[float, float]:
    """All of them as one array, then a cancel of that."""
    async with GridClient(url) as client:
        began = time.perf_counter()
        name = await client.submit(["/bin/true"], array=f"0-{JOBS - 1}")
        taken = time.perf_counter()
        await client.cancel(name)
        return taken - began, time.perf_counter() - taken


def main() -> None:
    """Print one line."""
    taken, arrays, cancels = [], [], []
    for _ in range(RUNS):
        with grid(agents=0) as running:
            taken.append(asyncio.run(submit(running.url)))
        with grid(agents=0) as running:
            whole, cancel = asyncio.run(array(running.url))
            arrays.append(whole)
            cancels.append(cancel)
    report(
        "bulk",
        {
            "jobs": JOBS,
            "runs": RUNS,
            "seconds": statistics.median(taken),
            "array_seconds": statistics.median(arrays),
            "array_cancel_seconds": statistics.median(cancels),
        },
    )


if __name__ == "__main__":
    main()
