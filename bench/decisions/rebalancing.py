"""Cost of one pass of rebalancing over 1,000 and 10,000 idle nodes, with boosts lent and with many things that wait:
the event in the ledger, from what Ray told to the requests, in CPU time. The floor is a fixed piece of Python of the
same moment."""

import statistics
import time

from msgspec.structs import replace

from bench._common import no_options, report, ticking
from bench.decisions.ledger import facts, offer
from distributed_grid.coordinator.core.commands import DemandReported, HeartbeatReceived, MessageReceived, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.rebalancing.view import RayLook, Waiting
from distributed_grid.protocol.messages import Inventory
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.sharing.policies import MOST_MOVES, Balancing, OffloadingMode, PolicyName

CORES, MEMORY = 8, 64
PASSES = 30
SHAPES = 40
"""Different things that wait: more than a pass considers."""
EVERY = 30.0


def idle(nodes: int, mode: OffloadingMode) -> Ledger:
    """Return a ledger with this many idle nodes, each with a Ray of the cluster's version."""
    balancing = Balancing(mode=mode, policy=PolicyName.AGGRESSIVE, interval=EVERY)
    ledger = Ledger(policy=Policy(suspect_after=1e9, disconnected_after=2e9, balancing=balancing))
    for number in range(nodes):
        of = replace(facts(number, CORES, MEMORY * GIB, 0), ray="2.60.0", ray_python="3.11.7")
        sample = Sample(at=1e6, foreign_cpu=number % 100 / 100, memory_total=MEMORY * GIB)
        for event in (
            NodeUp(of, "s"),
            MessageReceived(of.name, Inventory(known=())),
            MessageReceived(of.name, replace(offer(of, CORES, MEMORY * GIB, 0), idle_since=1.0)),
            HeartbeatReceived(of.name, sample),
        ):
            ledger.handle(event, 0.0)
    ledger.settle(0.0)
    return ledger


def passes(nodes: int, mode: OffloadingMode, count: int = PASSES) -> dict[str, float]:
    """Milliseconds of a pass, and what came of all of them."""
    ledger, took = idle(nodes, mode), []
    waiting = tuple(
        Waiting(f"{cores} CPU, {memory}G memory", Resources(cores * MILLI, memory * GIB), 50, fits=False)
        for cores in range(1, CORES + 1)
        for memory in range(SHAPES // CORES)
    )
    look = RayLook(target="head", address="192.0.2.1:6379", user="ann", ray="2.60.0", python="3.11.7", waiting=waiting)
    for number in range(count):
        now = 100.0 + number * EVERY
        ids = tuple(f"j-{number:06}{at:06}" for at in range(MOST_MOVES))
        begin = time.thread_time()
        ledger.handle(DemandReported(look, ids), now)
        ledger.settle(now)
        took.append(time.thread_time() - begin)
    boosts = sum(job.spec.boost is not None for job in ledger.state.jobs.values())
    return {"median_ms": statistics.median(took) * 1e3, "worst_ms": max(took) * 1e3, "boosts": boosts}


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    figures: dict[str, object] = {"floor_us": ticking() * 1e6, "passes": PASSES, "shapes": SHAPES}
    for nodes in (1_000, 10_000):
        for mode in (OffloadingMode.SHARE_AND_OFFLOAD, OffloadingMode.DYNAMIC_BALANCING):
            figures[f"{nodes}_nodes_{mode}"] = passes(nodes, mode)
    report("rebalancing", figures)


if __name__ == "__main__":
    main()
