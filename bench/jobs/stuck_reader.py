"""A job prints as fast as it can while its reader has stopped reading: CPU and memory of the coordinator, and latency
of heartbeats.

The reader asks for all the output it may ask for and never reads an answer; another one reads as fast as it can,
for comparison. Heartbeats are timed by a simulated agent whose heartbeats ask to be answered (as those of leased
jobs do).
"""

import asyncio
import sys
import time

import uvloop
import websockets.asyncio.client as websocket

from bench._common import Grid, cpu_seconds, grid, no_options, percentile, report, rss_mib
from bench.services._swarm import sample
from distributed_grid.agent.session import Session, dial
from distributed_grid.coordinator.client import GridClient, describe_job
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import Heartbeat, Hello, Inventory, Renewed, WantOutput
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import Resources

SECONDS = 15.0
WRITER = """
import os, time
block, end, done = b"x" * (1 << 20), time.monotonic() + float(os.environ["SECONDS"]), 0
while time.monotonic() < end:
    done += os.write(1, block)
"""


async def heartbeats(url: str, delays: list[float]) -> None:
    """Beat twenty times a second and note how long each answer takes."""
    facts = NodeFacts(
        name="timer", hostname="t", boot_id="b", incarnation=1, cores=(0,), memory=1 << 30, lendable=Resources(0, 0)
    )
    hello = Hello(protocol=PROTOCOL, software="bench", role="agent", name=facts.name, facts=facts)
    session: Session = await dial(url, hello)
    session.send(Inventory(known=()))
    reading = asyncio.create_task(_answers(session, delays))
    try:
        while True:
            session.send(Heartbeat(sample=sample(1.0), at=time.monotonic()))
            await asyncio.sleep(0.05)
    finally:
        reading.cancel()


async def _answers(session: Session, delays: list[float]) -> None:
    while True:
        for message in await session.receive():
            if isinstance(message, Renewed):
                delays.append(time.monotonic() - message.at)


async def stuck(url: str, allocation: str) -> websocket.ClientConnection:
    """A client that asks for a thousand pieces and reads none."""
    socket = await websocket.connect(url, compression=None, ping_interval=None, max_size=None)
    link = Link.dial(Hello(protocol=PROTOCOL, software="bench", role="client", name="stuck"), 0.0)
    for frame in link.data_to_send():
        await socket.send(frame)
    link.receive(await socket.recv(), 0.0)
    socket.transport.pause_reading()
    wants = [
        WantOutput(id=n, allocation=allocation, stream="stdout", offset=n << 18, size=1 << 18, wait=30.0)
        for n in range(1000)
    ]
    link.send(*wants)
    for frame in link.data_to_send():
        await socket.send(frame)
    return socket


async def watch_memory(pid: int, peak: list[float]) -> None:
    while True:
        peak[0] = max(peak[0], rss_mib(pid))
        await asyncio.sleep(0.02)


async def run(running: Grid, reader: str) -> dict[str, float]:
    """Run one job with a stuck reader, a quick one, or none."""
    async with GridClient(running.url) as client:
        delays: list[float] = []
        beating = asyncio.create_task(heartbeats(running.url, delays))
        await asyncio.sleep(1.0)
        quiet, peak = rss_mib(running.coordinator), [0.0]
        cpu = cpu_seconds(running.coordinator)
        watching = asyncio.create_task(watch_memory(running.coordinator, peak))
        delays.clear()
        env = {"SECONDS": str(SECONDS)}
        job = (await client.submit_many([describe_job([sys.executable, "-c", WRITER], env=env)]))[0]
        async for view in client.follow(job):
            if view.state is State.RUNNING:
                break
        sockets = [await stuck(running.url, view.allocation)] if reader == "stuck" else []
        read = asyncio.create_task(_read(client, job)) if reader == "quick" else None
        view = await client.wait(job)
        for task in (beating, watching):
            task.cancel()
        for socket in sockets:
            socket.transport.abort()
        got = await read if read else 0
        assert view.outcome is not None
        output = running.folder / "n0" / "allocs" / view.allocation / "stdout"
        return {
            "written_gb_per_s": view.outcome.stdout_size / view.outcome.seconds / 1e9,
            "on_disk_mib": output.stat().st_blocks * 512 / (1 << 20),
            "read_mb_per_s": got / view.outcome.seconds / 1e6,
            "coordinator_grew_mib": peak[0] - quiet,
            "coordinator_cpu_percent": (cpu_seconds(running.coordinator) - cpu) / view.outcome.seconds * 100,
            "heartbeat_p50_ms": percentile(delays, 0.5) * 1000,
            "heartbeat_max_ms": max(delays) * 1000,
        }


async def _read(client: GridClient, job: str) -> int:
    got = 0
    async for _, data in client.stream(job):
        got += len(data)
    return got


def main() -> int:
    """Print one line, with a row each for no reader, a stuck one, a quick one."""
    no_options(__doc__)
    with grid(agents=1, cores=["0"]) as running:
        rows = [{"reader": reader, **uvloop.run(run(running, reader))} for reader in ("none", "stuck", "quick")]
    report("stuck_reader", {"rows": rows, "goal_grew_mib": 16, "goal_max_ms": 100})
    return 0


if __name__ == "__main__":
    sys.exit(main())
