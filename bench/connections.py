"""Simulated agents over real sockets into one real coordinator: memory per agent and CPU at the default heartbeat.

Each simulated agent says hello, tells its inventory, makes an offer, and then beats every two seconds, as a real one
does. They live in one other process, whose own cost is not counted.
"""

import asyncio
import multiprocessing
import sys
import time
from multiprocessing.synchronize import Event

import uvloop
import websockets.asyncio.client as client

from bench._common import cpu_seconds, grid, report, rss_mib
from bench.heartbeats import sample
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import Heartbeat, Hello, Inventory, Offer
from distributed_grid.protocol.nodes import GpuOffer, NodeFacts
from distributed_grid.protocol.resources import Resources

BEAT = 2.0
SECONDS = 20.0


async def simulate(url: str, number: int, ready: asyncio.Event) -> None:
    """One agent's life."""
    facts = NodeFacts(
        name=f"sim{number}", hostname=f"sim{number}", boot_id=f"b{number}", incarnation=1, cores=tuple(range(16)),
        memory=64 << 30, lendable=Resources(16_000, 64 << 30, 2000), walls="user",
    )  # fmt: skip
    hello = Hello(protocol=PROTOCOL, software="0.1.0", role="agent", name=facts.name, facts=facts)
    async with client.connect(url, compression=None, ping_interval=None, open_timeout=60) as socket:
        link = Link.dial(hello, 0.0)
        link.send(
            Inventory(known=()),
            Offer(
                number=1, expires_in=300.0, cores=tuple(range(15)), memory=32 << 30,
                gpus=tuple(GpuOffer(f"GPU-{n}", n, "H200", 80 << 30, 79 << 30) for n in range(2)),
            ),
        )  # fmt: skip
        for frame in link.data_to_send():
            await socket.send(frame)
        link.receive(await socket.recv(), 0.0)
        ready.set()
        await asyncio.sleep(BEAT * (number % 100) / 100)
        while True:
            link.send(Heartbeat(sample=sample(time.monotonic())))
            for frame in link.data_to_send():
                await socket.send(frame)
            await asyncio.sleep(BEAT)


async def swarm(url: str, count: int, up: Event) -> None:
    """Start them all, then say so."""
    tasks = []
    for number in range(count):
        ready = asyncio.Event()
        tasks.append(asyncio.ensure_future(simulate(url, number, ready)))
        if number % 20 == 19:
            await ready.wait()
    await asyncio.sleep(BEAT * 2)
    up.set()
    await asyncio.gather(*tasks)


def process(url: str, count: int, up: Event) -> None:
    """The swarm's own process."""
    uvloop.run(swarm(url, count, up))


def main() -> None:
    """Print one line per number of agents."""
    for count in [int(word) for word in sys.argv[1:]] or [1000]:
        with grid(agents=0) as running:
            before = rss_mib(running.coordinator)
            up = multiprocessing.get_context("spawn").Event()
            began = time.monotonic()
            crowd = multiprocessing.get_context("spawn").Process(target=process, args=(running.url, count, up))
            crowd.start()
            up.wait(120)
            joined = time.monotonic() - began - BEAT * 2
            start, at = cpu_seconds(running.coordinator), time.monotonic()
            time.sleep(SECONDS)
            used = cpu_seconds(running.coordinator) - start
            span = time.monotonic() - at
            report(
                "connections",
                {
                    "agents": count,
                    "joined_s": joined,
                    "kib_per_agent": (rss_mib(running.coordinator) - before) * 1024 / count,
                    "coordinator_cpu_percent_of_a_core": used / span * 100,
                    "cpu_us_per_heartbeat": used / (count / BEAT * span) * 1e6,
                },
            )
            crowd.kill()
            crowd.join()


if __name__ == "__main__":
    main()
