"""A played Ray cluster and its lenders around the pure decision: what waits takes what is lent, and time passes."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from distributed_grid.coordinator.core.rebalancing.rebalance import rebalance
from distributed_grid.coordinator.core.rebalancing.state import BalancingState, Lent
from distributed_grid.coordinator.core.rebalancing.view import Loan, RayLook, Source, View, Waiting, tasks_in
from distributed_grid.protocol.resources import GIB, MILLI, Resources
from distributed_grid.protocol.sharing.moves import Move, MoveKind, Pass
from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode, PolicyName
from distributed_grid.protocol.sharing.pressure import weighted

LOOK = RayLook(target="head", address="192.0.2.1:6379", user="ann", total=Resources(MILLI, GIB))
JOINS = 4.0
"""Seconds until what is lent is there."""


def balancing(name: PolicyName = PolicyName.BALANCED, interval: float = 30.0) -> Balancing:
    return Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=name, interval=interval)


def source(name: str, cores: int = 8, owner: float = 0.0, gpus: int = 0, memory: int = 16, idle: float = 1e6) -> Source:
    """Return an idle node with this many cores and GPUs, and this memory (GB), all free."""
    has = Resources(cores * MILLI, memory * GIB, gpus * MILLI)
    return Source(name, has, has, weighted(owner, owner, owner if gpus else None), idle)


def waits(count: int = 1, cpu: float = 1, gpu: float = 0, memory: float = 0, **more: bool) -> Waiting:
    each = Resources(round(cpu * MILLI), round(memory * GIB), round(gpu * MILLI))
    return replace(Waiting(f"{each}{'+'.join(more)}", each, count, fits=False), **more)


@dataclass
class Demand:
    """Tasks with the same request. They run where there is room, for this long (0: until they are told to end); `odd`
    ones wait for something that no boost has."""

    each: Resources
    count: int
    odd: bool = False

    @property
    def text(self) -> str:
        return f"{self.each}{' odd' if self.odd else ''}"


@dataclass
class Boost:
    source: str
    resources: Resources
    asks: str
    tasks: int
    joined: float
    runs: int = 0
    idle_since: float = 0.0


@dataclass
class World:
    """Time, lenders, what waits and what is lent. `passes` and `moves` are all that were decided."""

    balancing: Balancing
    sources: dict[str, Source]
    demands: list[Demand]
    now: float = 1000.0
    boosts: dict[str, Boost] = field(default_factory=dict)
    state: BalancingState = field(default_factory=BalancingState)
    passes: list[Pass] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    def run(self, passes: int) -> None:
        for _ in range(passes):
            self.pass_once()

    def pass_once(self) -> Pass:
        """Run a pass one interval later."""
        self.now += self.balancing.interval
        self._place()
        look = self.look()
        self.state.see(look, self.now, self.balancing.interval)
        self.state.forget({name: self.state.lent[name] for name in self.boosts}, self.now)
        found = rebalance(self.view(look), self.balancing, self.now)
        self.passes.append(found)
        for move in found.moves:
            self._make(move, look)
        return found

    def look(self) -> RayLook:
        rest = [
            Waiting(one.text, one.each, left, fits=False)
            for one in self.demands
            if (left := one.count - self._running(one))
        ]
        idle = {
            name: self.now - one.idle_since if not one.runs else 0.0
            for name, one in self.boosts.items()
            if one.joined <= self.now
        }
        return replace(LOOK, waiting=tuple(rest), idle=idle)

    def view(self, look: RayLook) -> View:
        return View(
            look=look,
            sources=tuple(self._left(one) for one in self.sources.values()),
            loans=tuple(self._loan(name, one, look) for name, one in self.boosts.items()),
            steady=self.state.steady(self.balancing.values.sustained, self.now),
            moved=self.state.moved,
            vain=self.state.vain,
        )

    def _loan(self, name: str, one: Boost, look: RayLook) -> Loan:
        there = one.joined <= self.now
        return Loan(
            boost=name, user="ann", source=one.source, target="head", resources=one.resources, automatic=True,
            asks=one.asks, tasks=one.tasks, joined=one.joined if there else 0.0, new=not there,
            idle=look.idle.get(name),
        )  # fmt: skip

    def _left(self, node: Source) -> Source:
        free = node.free
        for one in self.boosts.values():
            if one.source == node.name:
                free -= one.resources
        return replace(node, free=free)

    def _running(self, demand: Demand) -> int:
        return sum(one.runs for one in self.boosts.values() if one.asks == demand.text)

    def _place(self) -> None:
        """Ray puts tasks on what has joined, and takes away those that have ended."""
        for one in self.boosts.values():
            demand = next((each for each in self.demands if each.text == one.asks), None)
            was, one.runs = one.runs, 0
            if demand is not None and not demand.odd and one.joined <= self.now:
                capacity = tasks_in(demand.each, one.resources, demand.count)
                one.runs = max(0, min(capacity, demand.count - self._running(demand)))
            if was and not one.runs:
                one.idle_since = self.now

    def _make(self, move: Move, look: RayLook) -> None:
        if move.kind is MoveKind.LEND:
            name = f"b{len(self.moves)}"
            move = replace(move, boost=name)
            joined = self.now + JOINS
            self.boosts[name] = Boost(move.source, move.resources, move.asks, move.tasks, joined, idle_since=joined)
            self.state.lent[name] = Lent(move.source, move.target, move.asks, move.tasks)
        else:
            gone = self.boosts.pop(move.boost)
            del self.state.lent[move.boost]
            if not gone.runs and any(one.text == gone.asks for one in look.waiting):
                self.state.vain[gone.asks] = move.boost
        self.state.note(move)
        self.moves.append(move)
