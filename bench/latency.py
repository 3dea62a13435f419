"""One job on an idle grid, by the API: from submit to its start, to its first output byte, to its end being known.

Each probe runs `date +%s%N`: the clock reading it prints is its start. Beside it the floor: the same program spawned
here, from the call to the reading.
"""

import asyncio
import subprocess
import time

from bench._common import grid, percentile, report
from distributed_grid.coordinator.client import GridClient, describe_job

PROBES = 100
DATE = ["/bin/date", "+%s%N"]


def floor_ms() -> list[float]:
    """Milliseconds from a plain spawn to the program's own clock reading."""
    taken = []
    for _ in range(PROBES):
        began = time.time_ns()
        taken.append((int(subprocess.run(DATE, capture_output=True, check=True).stdout) - began) / 1e6)
        time.sleep(0.02)
    return taken


async def probe(url: str, probes: int = PROBES) -> dict[str, list[float]]:
    """Three series in milliseconds."""
    starts, firsts, dones = [], [], []
    async with GridClient(url) as client:
        for number in range(probes + 5):
            await asyncio.sleep(0.05)
            began = time.time_ns()
            job = (await client.submit_many([describe_job(DATE)]))[0]
            first, text = 0, b""
            async for _, data in client.stream(job):
                first = first or time.time_ns()
                text += data
            view = await client.wait(job)
            done = time.time_ns()
            assert view.outcome and view.outcome.code == 0
            if number >= 5:
                starts.append((int(text) - began) / 1e6)
                firsts.append((first - began) / 1e6)
                dones.append((done - began) / 1e6)
    return {"start": starts, "first_byte": firsts, "done": dones}


def main() -> None:
    """Print one line."""
    low = floor_ms()
    with grid(agents=1) as running:
        asyncio.run(asyncio.sleep(1))
        series = asyncio.run(probe(running.url))
    figures = {"floor_start_p50_ms": percentile(low, 0.5), "floor_start_p99_ms": percentile(low, 0.99)}
    for name, values in series.items():
        figures[f"submit_to_{name}_p50_ms"] = percentile(values, 0.5)
        figures[f"submit_to_{name}_p99_ms"] = percentile(values, 0.99)
    report("latency", {"probes": PROBES, **figures})


if __name__ == "__main__":
    main()
