"""A node whose cores each get one chain of allocations after another, by a coordinator that is played from a seed: it
grants successors ahead, takes some back, and has agent, supervisor, power and connection fail meanwhile."""

import random
from typing import Any

from distributed_grid.protocol.jobs import Cause, JobSpec, State
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import (
    Ack,
    Exited,
    Hello,
    Inventory,
    Launch,
    Stale,
    Started,
    Stop,
    Welcome,
)
from distributed_grid.protocol.resources import GIB, Grant
from distributed_grid.simulator.agent import Agent
from distributed_grid.simulator.engine import DOWN, Engine, Process, Violation, Wire
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.machine import Machine
from tests.simulator.plans import job, node

CORES = 2
AHEAD = 3
"""Successors of one allocation, at most."""
JOBS = 120
SECONDS = 40.0
"""Of adversity; then nothing new comes, and all must come to its end."""
RECOVERY_SECONDS = 120.0


class Given:
    """What the coordinator knows of an allocation: in which line it is (one for each core), and what it heard of it."""

    def __init__(self, key: str, core: int, boot: str) -> None:
        self.key, self.core, self.boot = key, core, boot
        self.started = self.over = self.withdrawn = self.stopped = False


class Chainer(Process):
    """The coordinator of one node."""

    def __init__(self, seed: int, recording: bool = False) -> None:
        super().__init__()
        self.chance = chance = random.Random(seed)
        self.engine = Engine(recording)
        plans = tuple(
            job(
                number,
                seconds=chance.choice((0.003, 0.02, 0.02, 0.3, 3.0)),
                codes=(chance.choice((0, 0, 1)),),
                daemon=chance.random() < 0.1,
                dying=chance.choice((0.001, 0.5)),
                grace=0.2,
            )
            for number in range(JOBS)
        )
        place = node(seed=seed, cores=CORES)
        self.judge = Judge(plans, (place,))
        self.machine = Machine(self.engine, self.judge, place)
        self.machine.sluggish = chance.choice((0.0, 0.0, 0.01, 0.2))
        self.given: dict[str, Given] = {}
        self.lines: list[list[Given]] = [[] for _ in range(CORES)]
        """What is not over, by core, each after the one before it."""
        self.wire: Wire | None = None
        self.boot = ""
        self.synced = False
        self.followed = 0
        self._number = 0
        self.healed = False
        self.start_agent()
        for _ in range(chance.randint(0, 6)):
            self.engine.at(chance.uniform(2.0, SECONDS), None, chance.choice(FAULTS), self)
        self.engine.at(5.0, None, self._grant)
        self.engine.at(SECONDS, None, self._heal)

    def go(self) -> None:
        """To the end of all. Raises Violation."""
        while self.engine.step():
            if self.healed and self._at_rest():
                return
            if self.engine.now > SECONDS + RECOVERY_SECONDS:
                raise Violation("n0", f"it never rests: {self._left()}")

    def _left(self) -> str:
        table, supervisor = self.machine.agent.table, self.machine.supervisor
        mine = [one.key for line in self.lines for one in line]
        there = {key: type(one.stage).__name__ for key, one in table.entries.items()}
        return f"{mine}; agent {there}, holds {[*table.held.all]}; supervisor {[*supervisor.jobs]}"

    def _at_rest(self) -> bool:
        table, supervisor = self.machine.agent.table, self.machine.supervisor
        if any(self.lines) or table.entries or table.held.all or supervisor.jobs:
            return False
        assert not supervisor.allocations.waiting and not [*table.chains.successors()]
        return True

    def start_agent(self) -> None:
        if self.machine.agent is None or self.machine.agent.dead:
            self.machine.agent = Agent(self.engine, self.machine, self._dialled)

    # --- what the agent says ------------------------------------------------------------------------------------------

    def _dialled(self, agent: Agent) -> Wire:
        return Wire(self.machine.link, "n0", agent, self)

    def heartbeat(self, wire: Wire, message: Any) -> bool:
        return True

    def hung_up(self, wire: Wire) -> None:
        wire.close(DOWN)
        if wire is self.wire:
            self.wire, self.synced = None, False

    def receive(self, wire: Wire, frame: Any) -> None:
        if isinstance(frame, Hello):
            assert frame.facts is not None
            self.wire, self.synced, self.boot = wire, False, frame.facts.boot_id
            wire.send(
                DOWN, Welcome(protocol=PROTOCOL, software="sim", epoch=1, grid="grid", session="s", instance="c1")
            )
            return
        if wire is not self.wire:
            return
        for message in frame:
            match message:
                case Inventory(known):
                    self._compare({one.allocation: one.state for one in known})
                case Started(allocation):
                    self._started(allocation)
                case Exited(allocation):
                    self._say(Ack(allocations=(allocation,)))
                    self._over(allocation)
                case Stale(allocation):
                    self.judge.never_runs(allocation)
                    self._over(allocation)

    def _compare(self, known: dict[str, State]) -> None:
        """What it does not know, and had not started, is launched again, unless its power was cut since."""
        self.synced = True
        for line in self.lines:
            for one in [*line]:
                if one.key in known:
                    if known[one.key] is State.RUNNING:
                        one.started = True
                elif one.started or one.boot != self.boot:
                    self._over(one.key)
                elif not (one.stopped or one.withdrawn):
                    self._launch(one)
                if one.withdrawn and not one.over:
                    self._withdraw(one)
                if one.stopped and not one.over:
                    self._say(Stop(allocation=one.key, grace=0.2))

    def _started(self, key: str) -> None:
        one = self.given[key]
        before = self.lines[one.core][: self.lines[one.core].index(one)] if not one.over else []
        if before:
            raise Violation(key, f"its start is told before the end of {before[-1].key}")
        one.started = True

    def _over(self, key: str) -> None:
        one = self.given[key]
        if not one.over:
            one.over = True
            self.lines[one.core].remove(one)

    def _say(self, *messages: Any) -> None:
        if self.wire is not None and self.synced:
            self.wire.send(DOWN, [*messages])

    # --- what it wants ------------------------------------------------------------------------------------------------

    def _grant(self) -> None:
        """One more allocation, or one is taken back or cancelled; often several at the same moment."""
        chance = self.chance
        for _ in range(chance.choice((1, 1, 2, 6))):
            core = chance.randrange(CORES)
            line = self.lines[core]
            what = chance.random()
            if what < 0.7:
                if len(line) <= chance.randint(0, AHEAD) and self._number < JOBS and self.synced:
                    one = Given(f"j{self._number}x1.1", core, self.boot)
                    self._number += 1
                    self.given[one.key] = one
                    line.append(one)
                    self._launch(one)
            elif line and what < 0.9:
                self._withdraw(chance.choice(line))
            elif line and what < 0.95:
                one = chance.choice(line)
                one.stopped = True
                self._say(Stop(allocation=one.key, grace=chance.choice((0.0, 0.2))))
        if not self.healed:
            self.engine.later(chance.choice((0.0005, 0.003, 0.03, 0.3)), None, self._grant)

    def _launch(self, one: Given) -> None:
        line = self.lines[one.core]
        at = line.index(one)
        after = line[at - 1].key if at else ""
        self.followed += bool(after)
        order = Launch(
            allocation=one.key,
            job=one.key.partition(".")[0],
            user="u",
            epoch=1,
            grant=Grant((one.core,), memory=GIB),
            spec=JobSpec(("true",), grace=0.2),
            predecessor=after,
        )
        self._say(order)

    def _withdraw(self, one: Given) -> None:
        one.withdrawn = True
        self._say(Stop(allocation=one.key, cause=Cause.WITHDRAWN, unless_started=True))

    # --- faults -------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.healed = True
        self.machine.journal_bad, self.machine.slow_measure = False, 0.0
        self.machine.use(0.0)
        self.start_agent()


def kill_agent(of: Chainer) -> None:
    if not of.machine.agent.dead:
        of.machine.agent.killed()
        of.engine.later(of.chance.choice((0.001, 0.5)), None, of.start_agent)


def kill_supervisor(of: Chainer) -> None:
    if of.machine.supervisor is not None and not of.machine.supervisor.dead:
        of.machine.supervisor.dead = True
        of.engine.later(0.05, of.machine.agent, of.machine.agent.supervisor_gone)
        of.engine.later(1.0, None, of.start_agent)


def kill_both(of: Chainer) -> None:
    kill_supervisor(of)
    kill_agent(of)


def power_cut(of: Chainer) -> None:
    of.machine.power_cut()
    of.wire, of.synced = None, False
    of.engine.later(1.0, None, of.start_agent)


def cut(of: Chainer) -> None:
    for wire in [*of.machine.link.wires]:
        for side in (0, 1):
            if not wire.closed[side]:
                wire.close(side, lose=True)
                wire.ends[side].hung_up(wire)


def bad_journal(of: Chainer) -> None:
    of.machine.journal_bad = True
    of.engine.later(of.chance.uniform(0.1, 3.0), None, setattr, of.machine, "journal_bad", False)


def owner(of: Chainer) -> None:
    of.machine.use(of.chance.uniform(0.2, 1.0))
    of.engine.later(of.chance.uniform(0.5, 8.0), None, of.machine.use, 0.0)


def slow_measure(of: Chainer) -> None:
    of.machine.slow_measure = of.chance.choice((0.05, 2.0, 8.0))
    of.engine.later(3.0, None, setattr, of.machine, "slow_measure", 0.0)


FAULTS = (
    *(kill_agent, kill_agent, kill_supervisor, kill_supervisor, kill_both),
    *(power_cut, cut, bad_journal, owner, slow_measure),
)
