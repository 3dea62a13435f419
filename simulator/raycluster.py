"""A Ray cluster beside a simulated grid: what waits there, and which raylets of boosts have joined and are used. It
outlives the coordinators that ask it. It replaces Ray itself and coordinator/ray/."""

from collections.abc import Iterator

from distributed_grid.coordinator.core.rebalancing.view import RayLook, Waiting
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.resources import MILLI, Resources
from distributed_grid.simulator.engine import Engine
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.truth import Run, number_of
from distributed_grid.simulator.plan import DemandPlan, Plan
from distributed_grid.simulator.workload import BOOSTS, ENDLESS, JobPlan

USER = "coordinator"
"""The user in whose name the grid lends."""
JOINS = 0.3
"""Seconds from the start of a raylet until Ray shows it."""


class RayCluster:
    """The cluster of the last node of a plan. A task stays where it is as long as it and its raylet last."""

    def __init__(self, engine: Engine, judge: Judge, plan: Plan) -> None:
        self._engine, self._judge = engine, judge
        self._demands = plan.demands
        self._most = plan.balancing.values.moves
        self._target = f"n{plan.nodes[-1].number}"
        self._made = 0
        self._runs: dict[str, list[int]] = {}
        """By raylet, the demands whose tasks run there."""
        self._idle: dict[str, float] = {}
        """By raylet, since when it runs nothing."""

    def ids(self) -> tuple[str, ...]:
        """New ids for as many boosts as a pass may lend; who judges knows them from now on."""
        numbers = range(BOOSTS + self._made, BOOSTS + self._made + self._most)
        self._made += self._most
        for number in numbers:
            self._judge.plans[number] = JobPlan(
                number=number, at=0.0, request=Request(Resources(MILLI), Priority.LOW, immediate=True, requeue=False),
                seconds=ENDLESS, codes=(0,), daemon=False, dying=0.01, grace=15.0, time_limit=1800.0, unheard=0,
                cancel_at=-1.0, user=USER,
            )  # fmt: skip
        return tuple(f"j{number}x1" for number in numbers)

    def joined(self) -> list[str]:
        """The allocations whose raylets Ray shows."""
        return [run.allocation for run in self._raylets()]

    def look(self) -> RayLook:
        """Return Ray's present report."""
        self._place()
        now = self._engine.now
        waiting = []
        for number, one in enumerate(self._demands):
            running = sum(tasks.count(number) for tasks in self._runs.values())
            if self._is_there(one) and one.count > running:
                text = f"{one.cores} CPU, demand {number}"
                waiting.append(Waiting(text, Resources(one.cores * MILLI), one.count - running, fits=False))
        idle = {run.job: now - since if (since := self._idle.get(run.allocation)) else 0.0 for run in self._raylets()}
        return RayLook(
            target=self._target, address="192.0.2.1:6379", user=USER, waiting=tuple(waiting), idle=idle,
            members=(self._target,),
        )  # fmt: skip

    def demanded(self) -> list[bool]:
        """Which of its demands are there now."""
        return [self._is_there(one) for one in self._demands]

    def _is_there(self, one: DemandPlan) -> bool:
        return one.at <= self._engine.now < one.until

    def _raylets(self) -> Iterator[Run]:
        by = self._engine.now - JOINS
        return (
            run for run in self._judge.runs.values() if run.alive and run.began <= by and number_of(run.job) >= BOOSTS
        )

    def _place(self) -> None:
        """Start waiting tasks where there is room, and free the room of those that have ended."""
        raylets = {run.allocation: run for run in self._raylets()}
        there = self.demanded()
        self._runs = {name: [one for one in self._runs.get(name, ()) if there[one]] for name in raylets}
        for number, one in enumerate(self._demands):
            left = one.count - sum(tasks.count(number) for tasks in self._runs.values())
            for name, run in raylets.items():
                cores = len(run.grant.cores) - sum(self._demands[task].cores for task in self._runs[name])
                while there[number] and not one.odd and left > 0 and cores >= one.cores:
                    self._runs[name].append(number)
                    left, cores = left - 1, cores - one.cores
        self._idle = {name: self._idle.get(name, self._engine.now) for name in raylets if not self._runs[name]}
