"""1,000 agents return at once after kill -9 of the coordinator: how long until all are there and offer again, and how
long a person waits meanwhile for an answer.

The agents are simulated (`_swarm.py`): they connect by the real agent's own code and back off by its rule. A client
asks for the status ten times a second all the while.
"""

import argparse
import asyncio
import sys
import time

from bench._common import Grid, grid, percentile, report
from bench.services._swarm import IDENTITIES, Plan, identified, swarm
from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.nodes import NodeState

AGENTS = 1000
LIMIT = 60.0


async def all_there(running: Grid, count: int, answers: list[float]) -> float:
    """Seconds until every agent is up and offers."""
    began = time.perf_counter()
    while time.perf_counter() - began < LIMIT:
        async with GridClient(running.local, patience=LIMIT) as client:
            while time.perf_counter() - began < LIMIT:
                asked = time.perf_counter()
                status = await client.status()
                answers.append(time.perf_counter() - asked)
                if sum(node.state is NodeState.UP and bool(node.offered) for node in status.nodes) == count:
                    return time.perf_counter() - began
                await asyncio.sleep(0.1)
    raise SystemExit(f"not all {count} agents came within {LIMIT:g} s")


async def measure(running: Grid, count: int, away: float) -> dict[str, float]:
    """Measure one restart."""
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
    """Measure restarts at once and after half a minute, when the agents retry rarely; the worst counts."""
    parser = argparse.ArgumentParser(prog="returning", description="all agents return after a restart")
    parser.add_argument("agents", type=int, nargs="?", default=AGENTS)
    parser.add_argument("--tls", action="store_true")
    given = parser.parse_args()
    count = given.agents
    with grid(agents=0, prepare=identified(count) if given.tls else lambda state: None) as running:
        identities = str(running.folder / IDENTITIES) if given.tls else ""
        with swarm(Plan(running.url, count, identities, together=2.0, again=True)):
            joined = asyncio.run(all_there(running, count, []))
            rows = []
            for away, times in ((0.0, 3), (30.0, 2)):
                taken = []
                for _ in range(times):
                    time.sleep(5.0)
                    taken.append(asyncio.run(measure(running, count, away)))
                worst = {f"worst_{name}": max(row[name] for row in taken) for name in taken[0]}
                rows.append({"away_s": away, **worst})
    about = {"agents": count, "tls": given.tls, "first_joined_s": joined, "goal_all_agents_up_s": 15}
    report("returning", {**about, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
