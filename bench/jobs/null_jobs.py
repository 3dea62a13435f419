"""Null jobs: submitted, made durable, granted, launched, reported done, acknowledged; nothing is run.

A real coordinator process, and in this process over real sockets one client and one agent that answers each launch at
once. The figure is jobs per second from the first submit to the last acknowledged end, and the CPU of the coordinator
and of this process. The floor is a fixed piece of Python of the same moment.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from websockets.asyncio.client import connect

from bench._common import cpu_seconds, median_of, report, rss_mib, ticking, wait_for
from distributed_grid.protocol.codec import BULK_BYTES
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import (
    Ack,
    Exited,
    Hello,
    Inventory,
    Launch,
    Offer,
    Started,
    Submission,
    Submit,
    Submitted,
)
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import Resources

JOBS = 30_000
CHUNK = 5_000
SLOTS = 1000
DONE = Outcome(Cause.EXITED)
PROGRAM = (
    "import sys; from distributed_grid.coordinator.main import *; "
    "from distributed_grid.config.schema import Coordinator; "
    "sys.exit(main(CoordinatorSettings(ClusterConfig(coordinator=Coordinator(state_dir=sys.argv[1], port=0)))))"
)


@contextmanager
def coordinator() -> Iterator[tuple[str, int]]:
    """A coordinator process with a fresh store: its URL and pid."""
    with tempfile.TemporaryDirectory(prefix="grid-bench-", dir=os.environ.get("GRID_BENCH_DIR")) as name:
        told = Path(name) / "coordinator.json"
        with (Path(name) / "log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-c", PROGRAM, name], stderr=log)
            try:
                text: str = wait_for(lambda: told.exists() and told.read_text(), "the start of the coordinator")
                yield text.split('"')[3], process.pid
            finally:
                process.terminate()
                process.wait(10)


async def dial(url: str, hello: Hello) -> tuple[Any, Link]:
    """A connection after its welcome."""
    socket = await connect(url, compression=None, ping_interval=None, max_size=BULK_BYTES + 1024)
    link = Link.dial(hello, 0.0)
    await socket.send(link.data_to_send()[0])
    link.receive(await socket.recv(), 0.0)
    return socket, link


async def say(socket: Any, link: Link, *messages: Any) -> None:
    """Send these."""
    link.send(*messages)
    for frame in link.data_to_send():
        await socket.send(frame)


async def play_agent(url: str, jobs: int, ready: asyncio.Event) -> None:
    """Answer every launch with its end, until all ends are acknowledged."""
    facts = NodeFacts(
        name="null", hostname="h", boot_id="b", incarnation=1, cores=tuple(range(SLOTS)), memory=1 << 40,
        lendable=Resources(SLOTS * 1000, 1 << 40), virtual=True, walls="user",
    )  # fmt: skip
    socket, link = await dial(url, Hello(protocol=PROTOCOL, software="bench", role="agent", name="null", facts=facts))
    await say(socket, link, Inventory(()), Offer(number=1, expires_in=3600, cores=facts.cores, memory=1 << 40))
    ready.set()
    acknowledged = 0
    while acknowledged < jobs:
        answers: list[Any] = []
        for message in link.receive(await socket.recv(), 0.0):
            if isinstance(message, Launch):
                answers.append(Started(message.allocation, 1))
                answers.append(Exited(message.allocation, DONE, returned=True))
            elif isinstance(message, Ack):
                acknowledged += len(message.allocations)
        await say(socket, link, *answers)
    await socket.close()


async def submit(url: str, jobs: int) -> float:
    """Submit all of them; the seconds until the last was acknowledged as durable."""
    socket, link = await dial(url, Hello(protocol=PROTOCOL, software="bench", role="client", name="bench"))
    began = time.perf_counter()
    spec, request = JobSpec(("true",)), Request(Resources(cpu=1000))
    for at in range(0, jobs, CHUNK):
        some = tuple(Submission(f"k{number}", spec, request) for number in range(at, min(jobs, at + CHUNK)))
        await say(socket, link, Submit(at, some))
    left = jobs
    while left:
        for message in link.receive(await socket.recv(), 0.0):
            assert isinstance(message, Submitted), message
            left -= len(message.jobs)
    took = time.perf_counter() - began
    await socket.close()
    return took


async def run(jobs: int) -> dict[str, float]:
    """Measure one run."""
    with coordinator() as (url, pid):
        ready = asyncio.Event()
        agent = asyncio.create_task(play_agent(url, jobs, ready))
        await ready.wait()
        floor = ticking()
        cpu, own, began = cpu_seconds(pid), time.process_time(), time.perf_counter()
        accepted = await submit(url, jobs)
        await agent
        seconds = time.perf_counter() - began
        return {
            "jobs_per_second": jobs / seconds,
            "coordinator_cpu_us_per_job": (cpu_seconds(pid) - cpu) / jobs * 1e6,
            "client_and_agent_cpu_us_per_job": (time.process_time() - own) / jobs * 1e6,
            "floor_us": floor * 1e6,
            "job_times_floor": seconds / jobs / floor,
            "submit_seconds": accepted,
            "coordinator_rss_mib": rss_mib(pid),
        }


def main() -> int:
    """Measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="?", type=int, default=JOBS)
    count = parser.parse_args().jobs
    figures = median_of(3, lambda: uvloop.run(run(count)))
    report("null_jobs", {**figures, "jobs": count, "goal_jobs_per_second": 30_000})
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
