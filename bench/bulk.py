"""100,000 jobs in one call to the client: seconds until all are on the coordinator's disk and acknowledged."""

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


def main() -> None:
    """Print one line."""
    taken = []
    for _ in range(RUNS):
        with grid(agents=0) as running:
            taken.append(asyncio.run(submit(running.url)))
    report("bulk", {"jobs": JOBS, "runs": RUNS, "seconds": statistics.median(taken)})


if __name__ == "__main__":
    main()
