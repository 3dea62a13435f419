"""A grid that is lost at any moment and restored from a backup of any moment before: whatever its agents did since, no
job is run a second time, nothing that runs is stopped for not being known, and no core is promised twice."""

import random
from collections import Counter

import msgspec
import pytest

from distributed_grid.coordinator.core import ledger as doubt
from distributed_grid.coordinator.core.commands import Command, Send
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Inventory, Stop
from distributed_grid.protocol.nodes import Known, NodeFacts
from tests.coordinator.core.test_ledger_honest_agents import Agent, Grid, play
from tests.depth import tries

EVENTS = 250


class Timed(Agent):
    """An agent that tells how long a job has run, as real ones do."""

    def __init__(self, name: str, grid: "Restorable") -> None:
        super().__init__(name)
        self.grid = grid
        self.began: dict[str, float] = {}

    def start(self, name: str) -> None:
        super().start(name)
        self.began[name] = self.grid.now

    def connect(self) -> None:
        super().connect()
        for event in self.to_ledger:
            message = getattr(event, "message", None)
            if isinstance(message, Inventory):
                known = tuple(self._timed(one) for one in message.known)
                self.to_ledger[self.to_ledger.index(event)] = msgspec.structs.replace(event, message=Inventory(known))

    def _timed(self, one: Known) -> Known:
        runs = one.state is State.RUNNING
        return msgspec.structs.replace(one, started_for=self.grid.now - self.began[one.allocation] if runs else 0.0)


class Restorable(Grid):
    """The grid of the honest agents, whose ledger can be lost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stopped: list[str] = []
        super().__init__()
        self.agents = {name: Timed(name, self) for name in ("n1", "n2")}
        for agent in self.agents.values():
            agent.connect()

    def backup(self) -> bytes:
        """What the store has at this moment."""
        ledger = self.ledger
        facts = [node.facts for node in ledger.state.nodes.values()]
        return msgspec.msgpack.encode(
            (list(ledger.state.jobs.values()), list(ledger.state.allocations.values()), facts)
        )

    def restore(self, stored: bytes) -> None:
        """The ledger is lost with all that was under way, and one made of that begins in its place."""
        jobs, allocations, facts = msgspec.msgpack.decode(
            stored, type=tuple[list[Job], list[Allocation], list[NodeFacts]]
        )
        for agent in self.agents.values():
            agent.cut()
            agent.to_ledger.clear()
        self.now += 1.0
        self.ledger = Ledger(epoch=1_790_000_000)
        self.ledger.restore(jobs, allocations, facts, self.now, unknown_before=self.now)
        self.results.clear()
        for command in doubt.end_after_restore(self.ledger.state, "a backup was restored"):
            self.perform(command)
        self.running_then = {name for agent in self.agents.values() for name in agent.held if agent.running[name]}
        for agent in self.agents.values():
            agent.connect()

    def perform(self, command: Command) -> None:
        if isinstance(command, Send) and isinstance(command.message, Stop):
            self.stopped.append(command.message.allocation)
        super().perform(command)

    def runs(self) -> Counter[str]:
        """How often a process of each job was ever begun, on all nodes."""
        begun: Counter[str] = Counter()
        for agent in self.agents.values():
            for name, times in agent.runs.items():
                begun[name.partition(".")[0]] += times
        return begun


@pytest.mark.parametrize("seed", range(tries(12, 5)))
def test_nothing_is_run_twice_or_stopped_after_a_restore(seed: int) -> None:
    rng = random.Random(seed)
    grid = Restorable()
    saved = rng.randrange(EVENTS)
    stored = b""
    for at in range(EVENTS):
        if at == saved:
            stored = grid.backup()
        play(grid, rng)
    cancelled = set(grid.stopped)
    grid.restore(stored)
    held_back = {name for name, outcome in grid.results.items() if outcome.cause is Cause.RESTORED}
    before = grid.runs()
    grid.stopped.clear()
    grid.teardown()
    after = grid.runs()
    assert not [job for job, times in after.items() if times > 1]
    assert not [job for job in held_back if after[job] > before[job]]
    unknown = {name for name in grid.running_then if name.partition(".")[0] not in grid.results}
    assert not (unknown - cancelled) & set(grid.stopped)
    for job, outcome in grid.results.items():
        expected = Outcome(Cause.EXITED, code=outcome.code, seconds=0.01)
        assert outcome.cause is not Cause.EXITED or outcome == expected, job
