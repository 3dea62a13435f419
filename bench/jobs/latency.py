"""One job on an idle grid, by the API: from submit to its start, and to its end being known; and, of other jobs whose
output is read meanwhile, to the first byte of it and to its end.

Each probe runs `date +%s%N`: the clock reading it prints is its start. Beside it the floor: the same program spawned
here, from the call to the reading, and until it was waited for. The three take turns.
"""

import argparse
import asyncio
import subprocess
import time
from collections.abc import Mapping

from bench._common import grid, levels, percentile, report
from distributed_grid.coordinator.client import GridClient, describe_job

PROBES = 200
WARM = 5
GAP = 0.05
"""Seconds of rest before each."""
DATE = ["/bin/date", "+%s%N"]


def spawned() -> dict[str, float]:
    """Milliseconds of a plain spawn, without a grid."""
    began = time.time_ns()
    out = subprocess.run(DATE, capture_output=True, check=True).stdout
    return {"floor_start": (int(out) - began) / 1e6, "floor_done": (time.time_ns() - began) / 1e6}


async def plain(client: GridClient) -> dict[str, float]:
    """Milliseconds of a job that is submitted and waited for."""
    began = time.time_ns()
    view = await client.wait(await client.submit(DATE))
    done = time.time_ns()
    assert view.outcome and view.outcome.code == 0, view.outcome
    text = view.outcome.stdout_tail or (await client.logs(view.id))[0]
    return {"start": (int(text) - began) / 1e6, "done": (done - began) / 1e6}


async def streamed(client: GridClient) -> dict[str, float]:
    """Milliseconds of a job whose output is read from its submit on."""
    began = time.time_ns()
    job = (await client.submit_many([describe_job(DATE)]))[0]
    first, text = 0, b""
    async for _, data in client.stream(job):
        first = first or time.time_ns()
        text += data
    view = await client.wait(job)
    done = time.time_ns()
    assert view.outcome and view.outcome.code == 0, view.outcome
    return {
        "streamed_start": (int(text) - began) / 1e6,
        "streamed_first_byte": (first - began) / 1e6,
        "streamed_done": (done - began) / 1e6,
    }


async def probe(url: str, probes: int = PROBES) -> dict[str, list[float]]:
    """Return all series in milliseconds."""
    series: dict[str, list[float]] = {}
    async with GridClient(url) as client:
        for number in range(probes + WARM):
            taken = await asyncio.to_thread(spawned)
            for one in (plain, streamed):
                await asyncio.sleep(GAP)
                taken |= await one(client)
            if number >= WARM:
                for name, value in taken.items():
                    series.setdefault(name, []).append(value)
    return series


def figures(series: Mapping[str, list[float]]) -> dict[str, float]:
    """Medians and 99th percentiles, and the medians as multiples of the floor."""
    found = {}
    for name, values in series.items():
        label = name if name.startswith("floor") else f"submit_to_{name}"
        found[f"{label}_p50_ms"], found[f"{label}_p99_ms"] = percentile(values, 0.5), percentile(values, 0.99)
    for name in ("start", "done"):
        found[f"{name}_times_floor"] = found[f"submit_to_{name}_p50_ms"] / found[f"floor_{name}_p50_ms"]
    return found


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="latency", description="one job on an idle grid")
    parser.add_argument("--probes", type=int, default=PROBES)
    parser.add_argument("--walls", default=levels()[0])
    given = parser.parse_args()
    with grid(agents=1, walls=given.walls) as running:
        time.sleep(1)
        series = asyncio.run(probe(running.url, given.probes))
    report("latency", {"probes": given.probes, "walls": given.walls, **figures(series)})


if __name__ == "__main__":
    main()
