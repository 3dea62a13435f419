"""Heartbeats into one real coordinator over real sockets: its CPU for each, everything on.

A number of simulated agents with an offer each beat as fast as their share of a fixed rate asks for.
"""

import asyncio
import sys
import time

import uvloop

from bench._common import cpu_seconds, median_of, report
from bench.null_jobs import coordinator, dial, say
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Heartbeat, Hello, Inventory, Offer
from distributed_grid.protocol.nodes import GpuSample, NodeFacts, Sample
from distributed_grid.protocol.resources import Resources

AGENTS = 100
PER_SECOND = 5_000
SECONDS = 4.0


def sample(at: float) -> Sample:
    """A node of 16 cores and two GPUs."""
    gpus = tuple(GpuSample(f"GPU-{n}", 3.0, 1 << 30, 80 << 30, 41.0) for n in range(2))
    return Sample(
        at=at, cores={core: 3 for core in range(16)}, foreign_cpu=0.5, memory_total=64 << 30, memory_foreign=8 << 30,
        load=0.5, disk_total=1 << 40, disk_free=1 << 39, gpus=gpus,
    )  # fmt: skip


async def beat(url: str, number: int, ready: asyncio.Semaphore, go: asyncio.Event) -> int:
    """One agent; how often it beat."""
    facts = NodeFacts(
        name=f"sim{number}", hostname="h", boot_id="b", incarnation=1, cores=tuple(range(16)), memory=64 << 30,
        lendable=Resources(16_000, 64 << 30), walls="user",
    )  # fmt: skip
    socket, link = await dial(
        url, Hello(protocol=PROTOCOL, software="bench", role="agent", name=facts.name, facts=facts)
    )
    await say(socket, link, Inventory(()), Offer(number=1, expires_in=300, cores=facts.cores, memory=32 << 30))
    ready.release()
    await go.wait()
    beats, began, gap = 0, time.perf_counter(), AGENTS / PER_SECOND
    message = Heartbeat(sample(1.0))
    while (left := began + SECONDS - time.perf_counter()) > 0:
        await say(socket, link, message)
        beats += 1
        await asyncio.sleep(min(left, max(0.0, began + beats * gap - time.perf_counter())))
    await socket.close()
    return beats


async def run() -> dict[str, float]:
    """One run."""
    with coordinator() as (url, pid):
        ready, go = asyncio.Semaphore(0), asyncio.Event()
        agents = [asyncio.create_task(beat(url, number, ready, go)) for number in range(AGENTS)]
        for _ in agents:
            await ready.acquire()
        await asyncio.sleep(0.5)
        cpu, began = cpu_seconds(pid), time.perf_counter()
        go.set()
        beats = sum(await asyncio.gather(*agents))
        await asyncio.sleep(0.2)
        used = cpu_seconds(pid) - cpu
        return {"cpu_us_per_heartbeat": used / beats * 1e6, "per_second": beats / (time.perf_counter() - began - 0.2)}


def main() -> int:
    """Measure, report."""
    report("heartbeats", {**median_of(3, lambda: uvloop.run(run())), "agents": AGENTS, "goal_cpu_us": 20})
    return 0


if __name__ == "__main__":
    sys.exit(main())
