"""1,000 agents return at once after kill -9 of the coordinator: how long until all are there and offer again, and how
long a person waits meanwhile for an answer.

The agents are simulated in one other process, but connect by the real agent's own code (agent.session.dial and the
runtime's rule of backing off). A client asks for the status ten times a second all the while.
"""

import asyncio
import multiprocessing
import random
import sys
import time
from multiprocessing.synchronize import Event

import uvloop

from bench._common import Grid, grid, percentile, report
from bench.heartbeats import sample
from distributed_grid.agent.runtime import BACK_OFF_LEAST, BACK_OFF_MOST
from distributed_grid.agent.session import CannotConnect, Disconnected, dial
from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Heartbeat, Hello, Inventory, Offer
from distributed_grid.protocol.nodes import NodeFacts, NodeState
from distributed_grid.protocol.resources import Resources

AGENTS = 1000
BEAT = 2.0
LIMIT = 60.0


async def agent(url: str, number: int) -> None:
    """One agent's life, over all its connections."""
    facts = NodeFacts(
        name=f"sim{number}", hostname=f"sim{number}", boot_id=f"b{number}", incarnation=1, cores=tuple(range(16)),
        memory=64 << 30, lendable=Resources(16_000, 64 << 30), walls="user",
    )  # fmt: skip
    hello = Hello(protocol=PROTOCOL, software="bench", role="agent", name=facts.name, facts=facts)
    offer = Offer(number=1, expires_in=300.0, cores=tuple(range(15)), memory=32 << 30)
    tries = 0
    while True:
        try:
            session = await dial(url, hello)
            tries = 0
            session.send(Inventory(known=()), offer)
            beating = asyncio.create_task(beat(session))
            try:
                while True:
                    await session.receive()
            finally:
                beating.cancel()
        except (CannotConnect, Disconnected, OSError):
            tries += 1
        most = min(BACK_OFF_MOST, BACK_OFF_LEAST * 2 ** min(tries, 10))
        await asyncio.sleep(random.uniform(BACK_OFF_LEAST / 2, most))


async def beat(session) -> None:  # type: ignore[no-untyped-def]
    """Heartbeats, the first at a moment of its own."""
    await asyncio.sleep(BEAT * random.random())
    while True:
        session.send(Heartbeat(sample=sample(time.monotonic())))
        await asyncio.sleep(BEAT)


async def swarm(url: str, count: int) -> None:
    """All of them, let in over two seconds."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(agent(url, number)))
        await asyncio.sleep(2.0 / count)
    await asyncio.gather(*tasks)


def process(url: str, count: int, started: Event) -> None:
    """The swarm's own process."""
    started.set()
    uvloop.run(swarm(url, count))


async def all_there(running: Grid, count: int, answers: list[float]) -> float:
    """Seconds until every agent is up and offers."""
    began = time.perf_counter()
    while time.perf_counter() - began < LIMIT:
        async with GridClient(running.url, patience=LIMIT) as client:
            while time.perf_counter() - began < LIMIT:
                asked = time.perf_counter()
                status = await client.status()
                answers.append(time.perf_counter() - asked)
                if sum(node.state is NodeState.UP and bool(node.offered) for node in status.nodes) == count:
                    return time.perf_counter() - began
                await asyncio.sleep(0.1)
    raise SystemExit(f"not all {count} agents came within {LIMIT:g} s")


async def measure(running: Grid, count: int, away: float) -> dict[str, float]:
    """One restart."""
    up = await asyncio.to_thread(running.again, away)
    answers: list[float] = []
    there = await all_there(running, count, answers)
    return {
        "coordinator_up_s": up,
        "all_agents_up_s": up + there,
        "status_p50_ms": percentile(answers, 0.5) * 1000,
        "status_max_ms": max(answers) * 1000,
    }


def main() -> int:
    """Restarts at once and after half a minute, when the agents have come to ask seldom; the worst counts."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else AGENTS
    with grid(agents=0) as running:
        context = multiprocessing.get_context("spawn")
        started = context.Event()
        crowd = context.Process(target=process, args=(running.url, count, started))
        crowd.start()
        try:
            started.wait(60)
            first: list[float] = []
            joined = asyncio.run(all_there(running, count, first))
            for away, times in ((0.0, 3), (30.0, 2)):
                rows = []
                for _ in range(times):
                    time.sleep(5.0)
                    rows.append(asyncio.run(measure(running, count, away)))
                worst = {f"worst_{name}": max(row[name] for row in rows) for name in rows[0]}
                figures = {"agents": count, "away_s": away, "first_joined_s": joined, **worst}
                report("returning", {**figures, "goal_all_agents_up_s": 15})
        finally:
            crowd.kill()
            crowd.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
