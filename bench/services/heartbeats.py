"""The coordinator's CPU for a heartbeat, in four ways.

`hot`: a hundred agents beat as fast as their share of a fixed rate asks for, over real sockets. `at_real_rate`: a
thousand agents, which connect as real ones do, beat every two seconds, so that each finds the caches cold; pings and
repeated offers are among it. `receive_path`: what a frame costs from its bytes to its message (the library, the link,
the typed decode), without kernel, loop and ledger. `in_ledger`: the ledger alone. The floor of the first two is a bare
server of the same library, which drops what it reads.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from typing import Any

import uvloop
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, SERVER, Protocol

from bench._common import cpu_seconds, medians, ratio, report
from bench.decisions.ledger import NODES
from bench.decisions.ledger import grid as large
from bench.decisions.ledger import heartbeats as in_ledger
from bench.jobs.null_jobs import coordinator, dial, say
from bench.services._swarm import Plan, bare_server, hello, offer, sample, swarm
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import Heartbeat, Inventory, Welcome

AGENTS = 100
PER_SECOND = 5_000
SECONDS = 4.0
REAL_AGENTS, REAL_SECONDS = 1000, 10.0
FRAMES = 20_000
RUNS = 3


async def beat(url: str, number: int, ready: asyncio.Semaphore, go: asyncio.Event) -> int:
    """Run one agent; returns how many heartbeats it sent."""
    socket, link = await dial(url, hello(number))
    await say(socket, link, Inventory(()), offer(1))
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


async def hot(url: str, pid: int) -> dict[str, float]:
    """The hundred agents at a server."""
    ready, go = asyncio.Semaphore(0), asyncio.Event()
    agents = [asyncio.create_task(beat(url, number, ready, go)) for number in range(AGENTS)]
    for _ in agents:
        await ready.acquire()
    await asyncio.sleep(0.5)
    cpu, began = cpu_seconds(pid), time.perf_counter()
    go.set()
    beats = sum(await asyncio.gather(*agents))
    took = time.perf_counter() - began
    await asyncio.sleep(0.2)
    return {"cpu_us": (cpu_seconds(pid) - cpu) / beats * 1e6, "per_s": beats / took}


def at_real_rate(url: str, pid: int, agents: int) -> dict[str, float]:
    """The thousand agents at a server."""
    with swarm(Plan(url, agents)) as crowd:
        crowd.wait(60.0)
        time.sleep(2.0)
        cpu, beats = cpu_seconds(pid), crowd.beats
        time.sleep(REAL_SECONDS)
        cpu, beats = cpu_seconds(pid) - cpu, crowd.beats - beats
        if crowd.lost:
            raise SystemExit(f"{crowd.lost} of {agents} agents were disconnected")
        return {"cpu_us": cpu / beats * 1e6, "per_s": beats / REAL_SECONDS}


def receive_path() -> dict[str, float]:
    """CPU of one frame: through the library's protocol, and from there through the link."""
    ours, theirs = Link.answer(0.0), Link.dial(hello(0), 0.0)
    ours.receive(theirs.data_to_send()[0], 0.0)
    ours.accept(Welcome(protocol=PROTOCOL, software="bench", epoch=1, grid="bench", session="s"))
    theirs.receive(ours.data_to_send()[0], 0.0)
    frames, wire = [], Protocol(CLIENT)
    for _ in range(FRAMES):
        theirs.send(Heartbeat(sample(1.0)))
        frames += theirs.data_to_send()
    packets = []
    for frame in frames:
        wire.send_binary(frame)
        packets.append(b"".join(wire.data_to_send()))
    receiving = Protocol(SERVER)
    began = time.process_time()
    for packet in packets:
        receiving.receive_data(packet)
        (event,) = receiving.events_received()
        assert isinstance(event, Frame) and event.opcode is Opcode.BINARY
    library = time.process_time() - began
    began = time.process_time()
    for frame in frames:
        ours.receive(frame, 0.0)
    return {"library_us": library / FRAMES * 1e6, "link_us": (time.process_time() - began) / FRAMES * 1e6}


def beside(measure: Any) -> dict[str, Any]:
    """A measurement at a bare server and at a coordinator, and their ratio."""
    with bare_server() as (url, pid):
        low = measure(url, pid)
    with coordinator() as (url, pid):
        row = measure(url, pid)
    return {**row, "floor_cpu_us": low["cpu_us"], "fraction_of_floor": ratio(low["cpu_us"], row["cpu_us"])}


def main() -> int:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="heartbeats", description="CPU of a heartbeat")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--agents", type=int, default=REAL_AGENTS, help="at their real rate")
    given = parser.parse_args()
    often = [beside(lambda url, pid: uvloop.run(hot(url, pid))) for _ in range(given.runs)]
    figures = {
        "hot": {"agents": AGENTS, **medians(often)},
        "at_real_rate": {"agents": given.agents, **beside(lambda url, pid: at_real_rate(url, pid, given.agents))},
        "receive_path": medians([receive_path() for _ in range(given.runs)]),
    }
    ledger = large(NODES, random.Random(7))
    figures["in_ledger"] = {"us": statistics.median(in_ledger(ledger, 50_000) * 1e6 for _ in range(given.runs))}
    report("heartbeats", {"runs": given.runs, **figures, "goal_hot_cpu_us": 30})
    return 0


if __name__ == "__main__":
    sys.exit(main())
