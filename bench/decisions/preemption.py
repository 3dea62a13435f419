"""Cost of choosing what to preempt among 10,000 full nodes, for an urgent job and for urgent gangs. The floor is a
fixed piece of Python of the same moment."""

import random
import statistics
import time

from bench._common import no_options, report, ticking
from bench.decisions.ledger import facts, job, offer
from distributed_grid.coordinator.core.commands import JobsSubmitted, MessageReceived, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.preemption.execute import foresee
from distributed_grid.protocol.jobs import Priority, Reason, Request
from distributed_grid.protocol.messages import Inventory, Started
from distributed_grid.protocol.resources import GIB, MILLI, Resources

NODES = 10_000
CORES = 4
ROUNDS = 7
GANGS = (0, 2, 16, 256)
NOW = 100.0


def full(rng: random.Random) -> Ledger:
    """A ledger with these nodes, each with two low jobs on all of its cores, which began within the first minute."""
    ledger = Ledger(policy=Policy(suspect_after=1e9, disconnected_after=2e9))
    for number in range(NODES):
        of = facts(number, CORES, CORES * 4 * GIB, 0)
        for event in (
            NodeUp(of, "s"),
            MessageReceived(of.name, Inventory(known=())),
            MessageReceived(of.name, offer(of, CORES, GIB, 0)),
        ):
            ledger.handle(event, 0.0)
    half = Request(Resources(CORES * MILLI // 2), Priority.LOW)
    for number in range(2 * NODES):
        ledger.handle(JobsSubmitted(1, (job(number, half),)), 0.0)
    ledger.settle(0.0)
    for at, allocation in sorted((rng.uniform(1.0, 60.0), one) for one in ledger.state.allocations):
        ledger.handle(MessageReceived(ledger.state.allocations[allocation].node, Started(allocation=allocation)), at)
    ledger.settle(60.0)
    return ledger


def main() -> None:
    """Print one line."""
    no_options(__doc__)
    ledger = full(random.Random(7))
    plans = {}
    for gang in GANGS:
        wanted = Request(Resources((CORES - 1) * MILLI), Priority.URGENT, gang=gang)
        took = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            _, found = foresee(ledger.state, wanted, 0.0, Reason("Resources"), NOW)
            took.append(time.perf_counter() - begin)
            assert found is not None
        who = f"gang_of_{gang}" if gang else "job"
        plans[who] = {"median_ms": statistics.median(took) * 1e3, "first_ms": took[0] * 1e3}
    figures = {"nodes": NODES, "jobs": len(ledger.state.allocations), "floor_us": ticking() * 1e6, "plans": plans}
    report("preemption", figures)


if __name__ == "__main__":
    main()
