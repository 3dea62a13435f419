"""What the score `fragmentation` costs a placement: the same arrivals, until they have asked for 130 % of the GPUs, are
placed on two equal clusters in turn, on one by best-fit alone and on the other with the score. CPU of `place()` with a
request for GPUs, with what the index does for it and with counting the request, the least of several rounds for each.
openb where it is (`--traces FOLDER` or $GRID_TRACES), else a made cluster of as many nodes. Beside it the floor: a
fixed piece of Python of that moment.
"""

import argparse
import os
import time
from pathlib import Path
from statistics import mean
from typing import Any

from bench._common import report, say, ticking
from bench.decisions.traces import Workload, made, openb
from distributed_grid.coordinator.core.model import Placement
from distributed_grid.coordinator.core.placement.matching import place
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import MILLI
from distributed_grid.simulator.lab.grid import FIT, Grid, policy_of
from distributed_grid.simulator.lab.run import arrivals

FILLED = 1.3
BEST_FIT = policy_of(FIT)


class Cluster:
    """Nodes that are filled under one policy, and the seconds that it took."""

    def __init__(self, work: Workload, policy: Policy) -> None:
        self._state = Grid(work.machines, (), policy=policy).ledger.state
        self._policy = policy
        self.took = list[float]()
        self.allocated = 0

    def add(self, request: Request, clock: float) -> None:
        """Place a request; `clock`: what reading the clock takes."""
        state = self._state
        began = time.process_time()
        found = place(state.nodes, state.index, request, self._policy)
        if self._policy is not BEST_FIT:
            state.index.mix.add(request)
            state.index.mix.count()
        took = time.process_time() - began - clock
        if request.resources.gpu:
            self.took.append(took)
        if isinstance(found, Placement):
            node = state.nodes[found.node]
            assert node.capacity is not None
            node.capacity.take(found.grant)
            state.index.put(found.node, node.facts.priority, node.capacity)
            self.allocated += request.resources.gpu


def reading() -> float:
    """Seconds that reading the clock takes."""
    began = time.process_time()
    for _ in range(20_000):
        time.process_time()
    return (time.process_time() - began) / 20_000


def measure(work: Workload, rounds: int) -> dict[str, Any]:
    """Microseconds of a placement under both, and how much one is of the other (goal 1.5)."""
    requests = [Request(job.resources) for job in work.jobs]
    before, now = list[float](), list[float]()
    for _ in range(rounds):
        clusters, clock = (Cluster(work, BEST_FIT), Cluster(work, DEFAULT)), reading()
        for number, request in enumerate(requests):
            for one in clusters if number % 2 else reversed(clusters):
                one.add(request, clock)
        best_fit, scored = clusters
        before = list(map(min, before or best_fit.took, best_fit.took))
        now = list(map(min, now or scored.took, scored.took))
    gpus = sum(machine.gpus for machine in work.machines) * MILLI
    return {
        "placements": len(now),
        "best_fit_us": mean(before) * 1e6,
        "fragmentation_us": mean(now) * 1e6,
        "times": sum(now) / sum(before),
        "best_fit_allocated": best_fit.allocated / gpus,
        "fragmentation_allocated": scored.allocated / gpus,
    }


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(prog="fragmentation", description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"))
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    folder = given.traces
    if folder is not None and Path(folder).is_dir():
        name, work = "openb", openb(Path(folder), FILLED)
    else:
        say("fragmentation: openb is not here: name its folder with --traces or $GRID_TRACES")
        name, asked = "made", made(10_000, 1_500)
        work = Workload(asked.machines, arrivals(asked.jobs, asked.machines, FILLED, 0))
    floor, figures = ticking(), measure(work, given.rounds)
    report("fragmentation", {"workload": name, **figures, "floor_us": (floor + ticking()) / 2 * 1e6})


if __name__ == "__main__":
    main()
