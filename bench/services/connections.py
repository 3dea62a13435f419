"""Simulated agents over real sockets into one real coordinator, with TLS and without: how long they take to join, and
the coordinator's memory and CPU at the default heartbeat, pings and repeated offers.

They live in one other process. A swarm that is not complete, by its own count or by the coordinator's, when the
measurement begins or when it ends, is an error. The floor is a bare server of the same library that welcomes 1,000
(or fewer) and drops what they say.
"""

import argparse
import asyncio
import resource
import time
from typing import Any

from bench._common import cpu_seconds, grid, ratio, report, rss_mib, say
from bench.services._swarm import BEAT, IDENTITIES, OFFER_EVERY, Plan, Swarm, bare_server, identified, swarm
from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.nodes import NodeState

COUNTS = (1000, 5000, 10_000)
TLS_COUNTS = (1000,)
SECONDS = 8.0
FILES = 512
"""Open files of a process beside its connections."""


def limit_of(count: int, tls: bool) -> float:
    """Return the seconds within which this many have to join."""
    return 30.0 + count / (40.0 if tls else 100.0)


def check_files(count: int) -> None:
    """Raise the limit of open files as far as it goes. SystemExit if that is too low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < count + FILES:
        raise SystemExit(f"{count} connections need {count + FILES} open files, and {most} are allowed (ulimit -n)")


def window(pid: int, crowd: Swarm, seconds: float) -> dict[str, float]:
    """Return the use of the server and of the swarm over some seconds."""

    def now() -> tuple[float, float, int, int, float]:
        return cpu_seconds(pid), crowd.cpu(), crowd.beats, crowd.offers, time.monotonic()

    before = now()
    time.sleep(seconds)
    used, other, beats, offers, span = (one - then for one, then in zip(now(), before, strict=True))
    return {
        "cpu_percent_of_a_core": used / span * 100,
        "cpu_us_per_heartbeat": used / max(1, beats) * 1e6,
        "heartbeats_per_s": beats / span,
        "offers_per_s": offers / span,
        "swarm_cpu_percent_of_a_core": other / span * 100,
    }


def complete(crowd: Swarm, known: int, when: str) -> None:
    """Raise SystemExit unless all are connected, and none was lost meanwhile."""
    count = crowd.plan.agents
    if crowd.joined != count or known != count or crowd.lost:
        raise SystemExit(
            f"incomplete {when}: of {count} agents {crowd.joined} are connected, {known} offer something by the"
            f" coordinator's account, and {crowd.lost} connections were lost"
        )


async def offering(url: str, count: int, limit: float) -> int:
    """Return how many nodes are up and have an offer, as soon as all do, or at the limit (s)."""
    until = time.monotonic() + limit
    async with GridClient(url, patience=limit) as client:
        while True:
            nodes = (await client.status()).nodes
            found = sum(node.state is NodeState.UP and bool(node.offered) for node in nodes)
            if found == count or time.monotonic() > until:
                return found
            await asyncio.sleep(0.5)


def measure(count: int, tls: bool, seconds: float) -> dict[str, Any]:
    """Measure one coordinator and its swarm."""
    with grid(agents=0, prepare=identified(count) if tls else lambda state: None) as running:
        before, cpu = rss_mib(running.coordinator), cpu_seconds(running.coordinator)
        identities = str(running.folder / IDENTITIES) if tls else ""
        with swarm(Plan(running.url, count, identities)) as crowd:
            joined = crowd.wait(limit_of(count, tls))
            joining, coming = cpu_seconds(running.coordinator) - cpu, crowd.cpu()
            complete(crowd, asyncio.run(offering(running.local, count, 30.0)), "before the measurement")
            figures = window(running.coordinator, crowd, seconds)
            grown = rss_mib(running.coordinator) - before
            complete(crowd, asyncio.run(offering(running.local, count, 5.0)), "after the measurement")
    return {
        "agents": count,
        "tls": tls,
        "joined_s": joined,
        "joining_cpu_ms_each": joining / count * 1e3,
        "swarm_joining_cpu_ms_each": coming / count * 1e3,
        "kib_per_agent": grown * 1024 / count,
        **figures,
    }


def floor(count: int, seconds: float) -> dict[str, Any]:
    """The same of a bare server."""
    with bare_server() as (url, pid):
        before = rss_mib(pid)
        with swarm(Plan(url, count)) as crowd:
            crowd.wait(limit_of(count, False))
            figures = window(pid, crowd, seconds)
            return {"agents": count, "kib_per_agent": (rss_mib(pid) - before) * 1024 / count, **figures}


def main() -> None:
    """Print one line, with a row for each number of agents, with TLS and without."""
    parser = argparse.ArgumentParser(prog="connections", description="thousands of agents at one coordinator")
    parser.add_argument("agents", type=int, nargs="*", default=list(COUNTS), help="without TLS")
    parser.add_argument("--tls", type=int, nargs="*", default=list(TLS_COUNTS), help="numbers of agents with TLS")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    given = parser.parse_args()
    asked = [(count, False) for count in given.agents] + [(count, True) for count in given.tls]
    check_files(max((count for count, _ in asked), default=0))
    low = floor(min(COUNTS[0], *(count for count, _ in asked)), given.seconds)
    rows = []
    for count, tls in asked:
        row = measure(count, tls, given.seconds)
        row["fraction_of_floor"] = ratio(low["cpu_us_per_heartbeat"], row["cpu_us_per_heartbeat"])
        rows.append(row)
        say(f"connections: {count} agents{' with TLS' * tls}, all joined within {row['joined_s']:.1f} s")
    timing = {"beat_s": BEAT, "offer_every_s": OFFER_EVERY, "seconds": given.seconds}
    report("connections", {**timing, "floor": low, "rows": rows})


if __name__ == "__main__":
    main()
