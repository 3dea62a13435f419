"""N × `/bin/true` through a real coordinator, real agents and a client, beside the floor of the same moment.

Everything is on: durable store, supervised jobs with a journal, a fresh directory and two output files each. Two slots
in all, so one agent gets both cores and two agents one each. CPU counts client, coordinator, agents, supervisors, jobs.
"""

import asyncio
import os
import statistics
import time

from bench._common import Grid, floor, grid, report
from distributed_grid.coordinator.client import GridClient, describe_job

JOBS = 3000
RUNS = 3


async def batch(running: Grid, jobs: int) -> dict[str, float]:
    """Submit them all at once and wait until the client knows that the last one is over."""
    async with GridClient(running.url) as client:
        before = sum((await client.status()).ended.values())
        cpu, own = running.cpu(), sum(os.times()[:2])
        began = time.perf_counter()
        await client.submit_many([describe_job(["/bin/true"]) for _ in range(jobs)])
        submitted = time.perf_counter() - began
        while True:
            status = await client.status()
            if sum(status.ended.values()) - before >= jobs:
                break
            await asyncio.sleep(0.02)
        took = time.perf_counter() - began
        spent = running.cpu() - cpu + sum(os.times()[:2]) - own
        assert set(status.ended) == {"exited"}, status.ended
    return {"jobs_per_s": jobs / took, "submit_s": submitted, "cpu_ms_per_job": spent / jobs * 1000}


def main() -> None:
    """One line per number of agents."""
    for agents in (1, 2):
        rows = []
        with grid(agents=agents, cores=["0-1"] if agents == 1 else ["0", "1"]) as running:
            asyncio.run(batch(running, 200))
            for _ in range(RUNS):
                low = floor()
                row = asyncio.run(batch(running, JOBS))
                base = (low + floor()) / 2
                rows.append({**row, "floor_jobs_per_s": base, "fraction_of_floor": row["jobs_per_s"] / base})
        medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        report("throughput", {"agents": agents, "jobs": JOBS, "runs": RUNS, **medians})


if __name__ == "__main__":
    main()
