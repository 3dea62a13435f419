"""Scaling: what machines for a real trace of arrivals cost and how long jobs wait, beside no scaling, always the most,
one machine for each waiting job, and an idle timeout alone; and the time of one plan at size.

The ledger is the real one, with its life cycle of machines; the cloud is simulated; a policy is what makes the plan.
Jobs are the first of NASA iPSC (`--traces FOLDER` or $GRID_TRACES), a sixteenth of their processors wide, eight cores
at most.
"""

import argparse
import heapq
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    Command,
    Event,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling import passes
from distributed_grid.coordinator.core.scaling.budget import HOUR
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachinesListed,
)
from distributed_grid.coordinator.core.scaling.packing import Ask, Demand, Seen, View
from distributed_grid.coordinator.core.scaling.plan import plan
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started
from distributed_grid.protocol.nodes import NodeFacts, Offer
from distributed_grid.protocol.placement import Trust
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import STARTING, Machine, MachineState
from distributed_grid.protocol.scaling.plans import Create, ScalePlan
from distributed_grid.protocol.scaling.pools import Limits, Pool, Scaling, ScalingMode, Shape
from distributed_grid.simulator.lab.formats.tell import read
from distributed_grid.simulator.lab.trace import TraceJob

CORES, MOST, BOOT, IDLE = 8, 12, 120.0, 600.0
"""Cores of a machine, the most machines, how long one boots, and after how long without jobs it ends (s)."""
NARROWER = 16
FOREVER = 1e8
Plan = Callable[[View, Demand, Iterable[Machine], Scaling, float], ScalePlan]


def jobs_of(folder: Path, count: int) -> list[TraceJob]:
    """The first jobs of the trace, each on one machine."""
    path = folder / "nasa_ipsc.swf.zip"
    found = read(path.read_bytes(), path.name).jobs[:count]
    cores = (max(1, min(CORES, math.ceil(one.resources.cpu / 1000 / NARROWER))) for one in found)
    return [replace(one, resources=Resources(wide * 1000, GIB)) for one, wide in zip(found, cores, strict=True)]


# --- other policies ---------------------------------------------------------------------------------------------------


def _with_creates(count: int, found: ScalePlan, scaling: Scaling) -> ScalePlan:
    pool = scaling.pools[0]
    shape = pool.shapes[0]
    one = Create(
        pool=pool.name, provider=pool.provider, resources=shape.resources, price=shape.price, life=pool.life,
        why="a job waits", jobs=("any",),
    )  # fmt: skip
    return replace(found, creates=(one,) * count)


def for_each(view: View, demand: Demand, machines: Iterable[Machine], scaling: Scaling, now: float) -> ScalePlan:
    """Plan one machine for each waiting job, less those on their way."""
    known = [one for one in machines if one.live]
    waiting = sum(ask.count for ask in demand.asks) + sum(one.count for one in demand.left_out)
    starting = sum(one.state in STARTING for one in known)
    found = plan(view, Demand(), known, scaling, now)
    return _with_creates(max(0, min(waiting - starting, MOST - len(known))), found, scaling)


def timeout_alone(view: View, demand: Demand, machines: Iterable[Machine], scaling: Scaling, now: float) -> ScalePlan:
    """The most machines as soon as a job waits; each ends by its idle timeout."""
    known = [one for one in machines if one.live]
    found = plan(view, Demand(), known, scaling, now)
    return _with_creates(MOST - len(known) if demand.asks or demand.left_out else 0, found, scaling)


# --- the world --------------------------------------------------------------------------------------------------------


class World:
    """A ledger, a cloud, and agents that say no more than they must."""

    def __init__(self, jobs: list[TraceJob], makes: Plan, least: int = 0, most: int = MOST) -> None:
        shape = Shape(resources=Resources(CORES * 1000, 64 * GIB), price=1.0)
        pool = Pool(
            name="a", provider="p", shapes=(shape,), min=least, max=most, idle=IDLE, boot=BOOT, join_within=3600.0,
            life=FOREVER,
        )  # fmt: skip
        scaling = Scaling(mode=ScalingMode.ACT, pools=(pool,), limits=Limits(max_workers=most), look=3600.0)
        quiet = Policy(scaling=scaling, suspect_after=FOREVER, disconnected_after=2 * FOREVER)
        self.ledger, self.now, self.jobs = Ledger(policy=quiet), 1.0, {f"j-{at}": one for at, one in enumerate(jobs)}
        self.alive: dict[str, tuple[float, Machine]] = {}
        self.paid = 0.0
        self.created = 0
        self.ran: set[str] = set()
        self.waits: list[float] = []
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        vars(passes)["plan"] = makes  # all else is as in the grid
        for name, one in self.jobs.items():
            self.at(one.submit + 1.0 - self.now, lambda name=name, one=one: self.submit(name, one))  # type: ignore[misc]
        self.perform(self.ledger.restore([], [], [], self.now))

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._number), do))

    def run(self) -> None:
        """Run to the end of the last job."""
        while len(self.waits) < len(self.jobs) or self.ledger.state.jobs:
            due = self.ledger.next_deadline()
            times = [self._events[0][0]] if self._events else []
            self.now = max(self.now, min([*times, due] if due is not None else times))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            self.perform(self.ledger.settle(self.now))
        vars(passes)["plan"] = plan

    def cost(self) -> float:
        """Hours of machines until now."""
        return (self.paid + sum(self.now - born for born, _ in self.alive.values())) / HOUR

    def tell(self, event: Event) -> None:
        self.perform(self.ledger.handle(event, self.now))

    def submit(self, name: str, one: TraceJob) -> None:
        spec = JobSpec(("x",), time_limit=one.requested)
        job = Job(
            id=name, key=name, user=one.user or "u", spec=spec, request=Request(one.resources), submitted=self.now
        )
        self.tell(JobsSubmitted(1, (job,)))

    def perform(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case CreateMachine(machine):
                    self.created += 1
                    self.alive[machine.name] = (self.now, machine)
                    done = MachineAnswered(machine.name, CallKind.CREATE, machine.calls, Answer.DONE, machine.name)
                    self.at(1.0, lambda done=done: self.tell(done))  # type: ignore[misc]
                    self.at(BOOT, lambda machine=machine: self.join(machine))  # type: ignore[misc]
                case EndMachine(_, name, _, number):
                    self.at(1.0, lambda name=name, number=number: self.end(name, number))  # type: ignore[misc]
                case ListMachines(provider, number):
                    listed = tuple(Listed(name, name, "a") for name in self.alive)
                    told = MachinesListed(provider, number, listed)
                    self.at(0.1, lambda told=told: self.tell(told))  # type: ignore[misc]
                case Send(node, Launch() as launch):
                    self.at(0.05, lambda node=node, id=launch.allocation: self.launch(node, id))  # type: ignore[misc]

    def join(self, machine: Machine) -> None:
        if machine.name not in self.alive:
            return
        facts = NodeFacts(
            name=machine.name, hostname=machine.name, boot_id="b", incarnation=1, cores=tuple(range(CORES)),
            memory=64 * GIB, lendable=Resources(CORES * 1000, 64 * GIB), trusts=Trust.EVERYONE.value,
        )  # fmt: skip
        whole = Offer(number=1, expires_in=FOREVER, cores=facts.cores, memory=facts.memory)
        self.tell(NodeUp(facts, "s"))
        self.tell(MessageReceived(machine.name, Inventory(known=())))
        self.tell(MessageReceived(machine.name, whole))

    def end(self, name: str, number: int) -> None:
        if name in self.alive:
            self.paid += self.now - self.alive.pop(name)[0]
            self.tell(NodeDown(name, "s"))
        self.tell(MachineAnswered(name, CallKind.END, number, Answer.GONE))

    def launch(self, node: str, allocation: str) -> None:
        one = self.jobs[allocation.rpartition(".")[0]]
        self.ran.add(node)
        self.waits.append(self.now - one.submit - 1.0)
        self.tell(MessageReceived(node, Started(allocation=allocation, pid=1)))
        over = Outcome(cause=Cause.EXITED, seconds=one.duration)
        self.at(one.duration, lambda: self.tell(MessageReceived(node, Exited(allocation=allocation, outcome=over))))


def compare(jobs: list[TraceJob]) -> list[dict[str, Any]]:
    """Run each policy on these jobs."""
    span = max(one.submit + one.duration for one in jobs)
    load = sum(one.duration * one.resources.cpu / 1000 for one in jobs) / CORES / span
    mean = max(1, math.ceil(load / 0.7))
    cases: list[tuple[str, Plan, int, int]] = [
        ("the grid", plan, 0, MOST),
        ("always the most", plan, MOST, MOST),
        (f"no scaling, {mean} machines", plan, mean, mean),
        ("a machine for each waiting job", for_each, 0, MOST),
        ("idle timeout alone", timeout_alone, 0, MOST),
    ]
    found = []
    for name, makes, least, most in cases:
        began = time.process_time()
        world = World(jobs, makes, least, most)
        world.run()
        waits = sorted(world.waits)
        found.append(
            {
                "policy": name,
                "machine_hours": round(world.cost(), 1),
                "creations": world.created,
                "wasted": world.created - len(world.ran),
                "wait_mean": round(statistics.fmean(waits), 1),
                "wait_p95": round(waits[int(0.95 * len(waits))], 1),
                "wait_max": round(waits[-1], 1),
                "cpu": round(time.process_time() - began, 1),
            }
        )
    return found


# --- one plan at size -------------------------------------------------------------------------------------------------


def plan_time(
    most: int, waiting: int = 10_000, kinds: int = 300, machines: int = 1000, pools: int = 20
) -> tuple[int, list[float]]:
    """Return how many machines a plan creates of `most` in all, and the CPU seconds of such plans with this many
    waiting jobs, kinds, machines and pools."""
    sizes = [(2 ** (1 + at % 5), 0.05 * 2 ** (at % 5) * (1 + at / 40)) for at in range(pools)]
    configured = tuple(
        Pool(
            name=f"p{at}", provider="p", max=200,
            shapes=(Shape(type="x", resources=Resources(size * 1000, 4 * size * GIB), price=price),),
        )
        for at, (size, price) in enumerate(sizes)
    )  # fmt: skip
    scaling = Scaling(pools=configured, limits=Limits(max_workers=most))
    asks = tuple(
        Ask(
            request=Request(Resources(250 * (1 + at % 60), (1 + at // 60) * GIB)), count=waiting // kinds,
            jobs=tuple(f"j-{at}-{number}" for number in range(20)), user=f"u{at % 7}",
        )
        for at in range(kinds)
    )  # fmt: skip
    there = [
        Machine(
            name=f"m{at}", pool=f"p{at % pools}", provider="p", type="x", born=1.0, joined=2.0, ends_by=43_200.0,
            price=0.1, state=MachineState.BOOTING if at % 10 == 0 else MachineState.JOINED,
        )
        for at in range(machines)
    ]  # fmt: skip
    seen = {one.name: Seen(allocations=1, usable=True) for one in there}
    times, made = list[float](), 0
    for _ in range(25):
        began = time.process_time()
        made = len(plan(View(seen=seen), Demand(asks=asks), there, scaling, 1000.0).creates)
        times.append(time.process_time() - began)
    return made, sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scaling", description=__doc__)
    parser.add_argument("--traces", type=Path, default=os.environ.get("GRID_TRACES"))
    parser.add_argument("--jobs", type=int, default=400)
    said = parser.parse_args()
    for most in (1000, 1200, 3000):
        made, times = plan_time(most)
        middle, best = (round(1000 * one, 1) for one in (times[len(times) // 2], times[0]))
        print(json.dumps({"scaling": "plan", "creations": made, "cpu_ms": middle, "best_cpu_ms": best}), flush=True)
    if said.traces is None or not Path(said.traces).is_dir():
        print("scaling: the traces are not here: name their folder with --traces or $GRID_TRACES")
        return
    for row in compare(jobs_of(Path(said.traces), said.jobs)):
        print(json.dumps({"scaling": "trace", **row}), flush=True)
