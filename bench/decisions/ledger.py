"""Throughput of the ledger without I/O: events a second, placement among 10,000 nodes, passes over 100,000 jobs, why.

A pass follows the growth of a node: by what the first of 100,000 jobs fits in, by what only the last one does (all the
others ask for more), and by what none does. Only the first of these may end early. Beside it all the floor: a fixed
piece of Python of the same moment.
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Container
from typing import Any

from bench._common import percentile, report, ticking
from distributed_grid.coordinator.core.commands import HeartbeatReceived, JobsSubmitted, MessageReceived, NodeUp, Send
from distributed_grid.coordinator.core.data import EVERYTHING
from distributed_grid.coordinator.core.explain import why
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job, Placement
from distributed_grid.coordinator.core.placement.matching import place
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started
from distributed_grid.protocol.nodes import GpuFacts, GpuOffer, NodeFacts, Offer, Sample
from distributed_grid.protocol.resources import GIB, MILLI, Resources

NODES = 10_000
QUEUED = 100_000
LEAST = 4 * GIB
"""What a job in the long queue asks for, at least."""
SPEC = JobSpec(argv=("true",))
ONE_CPU = Request(Resources(cpu=MILLI))


def facts(number: int, cores: int, memory: int, gpus: int) -> NodeFacts:
    """A node that lends all it has."""
    name = f"node{number:05}"
    return NodeFacts(
        name=name,
        hostname=name,
        boot_id="b",
        incarnation=1,
        cores=tuple(range(cores)),
        memory=memory,
        lendable=Resources(cores * MILLI, memory, gpus * MILLI),
        gpus=tuple(GpuFacts(f"{name}-{i}", i, "T4", 16 * GIB) for i in range(gpus)),
    )


def offer(of: NodeFacts, cores: int, memory: int, gpus: int) -> Offer:
    """Part of what the node has."""
    return Offer(
        number=1,
        expires_in=1e9,
        cores=of.cores[:cores],
        memory=memory,
        gpus=tuple(GpuOffer(g.uuid, g.index, g.model, g.memory, g.memory) for g in of.gpus[:gpus]),
    )


def grid(nodes: int, rng: random.Random) -> Ledger:
    """A ledger with nodes of mixed sizes, partly idle."""
    ledger = Ledger()
    for number in range(nodes):
        cores = rng.choice((4, 8, 16, 32, 64))
        gpus = rng.choice((0, 0, 0, 1, 2, 4, 8))
        of = facts(number, cores, cores * 4 * GIB, gpus)
        ledger.handle(NodeUp(of, "s"), 0.0)
        ledger.handle(MessageReceived(of.name, Inventory(known=())), 0.0)
        part = offer(of, rng.randint(0, cores), rng.randrange(cores * 4) * GIB, rng.randint(0, gpus))
        ledger.handle(MessageReceived(of.name, part), 0.0)
    ledger.settle(0.0)
    return ledger


def job(number: int, request: Request, user: str = "ann") -> Job:
    """A job that is submitted."""
    return Job(id=f"j{number}", key=f"k{number}", user=user, spec=SPEC, request=request, submitted=0.0)


def lives(count: int, batch: int, watched: Container[str] = EVERYTHING) -> float:
    """Seconds an event costs in whole lives of jobs: submitted one by one, started, exited; a settle for each batch.
    Of the jobs that are `watched` a view is made with each change."""
    ledger = Ledger(watched=watched)
    of = facts(0, 64, 256 * GIB, 0)
    for event in (
        NodeUp(of, "s"),
        MessageReceived(of.name, Inventory(known=())),
        MessageReceived(of.name, offer(of, 64, of.memory, 0)),
    ):
        ledger.handle(event, 0.0)
    events = 0
    begin = time.perf_counter()
    done = Outcome(cause=Cause.EXITED)
    for first in range(0, count, batch):
        for number in range(first, first + batch):
            ledger.handle(JobsSubmitted(number, (job(number, ONE_CPU),)), 1.0)
        out = ledger.settle(1.0)
        launched = [c.message.allocation for c in out if isinstance(c, Send) and isinstance(c.message, Launch)]
        assert len(launched) == batch
        for name in launched:
            ledger.handle(MessageReceived(of.name, Started(allocation=name)), 1.0)
        ledger.settle(1.0)
        for name in launched:
            ledger.handle(MessageReceived(of.name, Exited(allocation=name, outcome=done, returned=True)), 1.0)
        ledger.settle(1.0)
        events += 3 * batch
    assert not ledger.state.jobs
    return (time.perf_counter() - begin) / events


def heartbeats(ledger: Ledger, count: int) -> float:
    """Seconds a heartbeat costs, with a settle for every 64."""
    names = list(ledger.state.nodes)
    sample = Sample(at=1.0)
    events = [HeartbeatReceived(names[number % len(names)], sample) for number in range(count)]
    begin = time.perf_counter()
    for number, event in enumerate(events):
        ledger.handle(event, 1.0)
        if not number % 64:
            ledger.settle(1.0)
    return (time.perf_counter() - begin) / count


def placements(ledger: Ledger, count: int, rng: random.Random) -> list[float]:
    """Seconds of single placements that are then taken off the capacity."""
    took = []
    for _ in range(count):
        cpu, gpu = rng.choice((500, 1000, 2000, 4000, 8000)), rng.choice((0, 0, 0, 500, 1000, 2000, 4000))
        request = Request(Resources(cpu, rng.choice((0, 1, 4, 16, 64)) * GIB, gpu))
        begin = time.perf_counter()
        found = place(ledger.state.nodes, ledger.state.index, request)
        if isinstance(found, Placement):
            node = ledger.state.nodes[found.node]
            assert node.capacity is not None
            node.capacity.take(found.grant)
            ledger.state.index.put(found.node, 1.0, node.capacity)
        took.append(time.perf_counter() - begin)
    return took


def full(kinds: int, users: int = 1, queued: int = QUEUED) -> Ledger:
    """Return a ledger with one full node and a queue of jobs of this many kinds, the last of which requests the
    least."""
    ledger = Ledger()
    of = facts(0, 4, 16 * GIB, 0)
    for event in (
        NodeUp(of, "s"),
        MessageReceived(of.name, Inventory(known=())),
        MessageReceived(of.name, offer(of, 0, 0, 0)),
    ):
        ledger.handle(event, 0.0)
    requests = [Request(Resources(MILLI, LEAST + kinds - 1 - kind)) for kind in range(kinds)]
    ledger.handle(JobsSubmitted(1, tuple(job(n, requests[n % kinds], f"u{n % users}") for n in range(queued))), 0.0)
    ledger.settle(0.0)
    return ledger


def a_pass(ledger: Ledger, memory: int) -> tuple[float, list[str]]:
    """Return the seconds of a pass after the node has grown by a core and this much memory, and the jobs that were
    granted."""
    name = next(iter(ledger.state.nodes))
    of = ledger.state.nodes[name].facts
    ledger.handle(MessageReceived(name, offer(of, 1, memory, 0)), 0.1)
    begin = time.perf_counter()
    out = ledger.settle(0.1)
    took = time.perf_counter() - begin
    return took, [one.message.job for one in out if isinstance(one, Send) and isinstance(one.message, Launch)]


def passes(kinds: int, users: int = 1, queued: int = QUEUED) -> dict[str, float]:
    """Return the milliseconds of passes over jobs of this many kinds: where the first fits, where only the last kind
    does, where none does. The granted jobs are checked, so that each pass is the one that it is named for."""
    for_first, first = a_pass(full(kinds, users, queued), 2 * LEAST)
    ledger = full(kinds, users, queued)
    for_none, nobody = zip(*(a_pass(ledger, LEAST - 1 - number) for number in range(3)), strict=True)
    for_last, only = a_pass(ledger, LEAST)
    assert not any(nobody), nobody
    assert len(first) == len(only) == 1, (first, only)
    assert users > 1 or (first == ["j0"] and only == [f"j{kinds - 1}"]), (first, only)
    taken = {"first_fits_ms": for_first, "last_fits_ms": for_last, "none_fits_ms": statistics.median(for_none)}
    return {name: seconds * 1e3 for name, seconds in taken.items()}


def bulk(queued: int) -> float:
    """Return the seconds to accept this many jobs in one event."""
    ledger = Ledger()
    jobs = tuple(job(number, ONE_CPU) for number in range(queued))
    begin = time.perf_counter()
    ledger.handle(JobsSubmitted(1, jobs), 0.0)
    ledger.settle(0.0)
    return time.perf_counter() - begin


def median(measure: Callable[[], float], times: int = 3) -> float:
    """The median of some runs, with the rubbish of one not counted for the next."""
    values = []
    for _ in range(times):
        gc.collect()
        values.append(measure())
    return statistics.median(values)


def events(jobs: int) -> dict[str, float]:
    """Events a second in whole lives of jobs."""
    found = {}
    for batch in (1, 32):
        for watched, who in ((EVERYTHING, "watched"), ((), "unwatched")):
            life = median(lambda batch=batch, watched=watched: lives(jobs, batch, watched))  # type: ignore[misc]
            found[f"{who}_settled_every_{batch}"] = 1 / life
    return found


def measure(nodes: int, queued: int, jobs: int, beats: int = 200_000) -> dict[str, Any]:
    """Return all figures."""
    rng = random.Random(7)
    floor = ticking()
    rates = events(jobs)
    large = grid(nodes, rng)
    beat = median(lambda: heartbeats(large, beats))
    took = placements(large, 5_000, rng)
    by_kinds = {f"{kinds}_kinds": passes(min(kinds, queued), 1, queued) for kinds in (1, 1_000, 100_000)}
    by_kinds["1000_users"] = passes(1, 1_000, queued)
    wanted = Request(Resources(2000, 8 * GIB, 16 * MILLI))
    floor = (floor + ticking()) / 2
    fastest = max(rates.values())
    return {
        "events_per_s": rates,
        "heartbeat_us": beat * 1e6,
        "placement_p50_us": percentile(took, 0.5) * 1e6,
        "placement_p99_us": percentile(took, 0.99) * 1e6,
        "passes": by_kinds,
        "bulk_submit_ms": median(lambda: bulk(queued)) * 1e3,
        "why_ms": median(lambda: _why(large, wanted)) * 1e3,
        "floor_us": floor * 1e6,
        "event_times_floor": 1 / fastest / floor,
        "fraction_of_floor": fastest * floor,
    }


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="ledger", description="the ledger, without I/O")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--queued", type=int, default=QUEUED)
    parser.add_argument("--jobs", type=int, default=19_200, help="jobs whose whole lives are measured")
    given = parser.parse_args()
    report("ledger", {"nodes": given.nodes, "queued": given.queued, **measure(given.nodes, given.queued, given.jobs)})


def _why(ledger: Ledger, request: Request) -> float:
    begin = time.perf_counter()
    why.why(ledger.state, None, request, 1.0)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
