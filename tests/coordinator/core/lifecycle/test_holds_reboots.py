"""Holds on nodes that are booted again with other devices, and on machines of pools that come and end, in any order."""

import random
from typing import Any

import pytest

from distributed_grid.coordinator.core.commands import (
    CancelRequested,
    Command,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Send,
)
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.model import AwaitsHold
from distributed_grid.coordinator.core.scaling.events import CreateMachine, EndMachine, MachineAnswered
from distributed_grid.coordinator.core.scaling.machines import refusal
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started, Stop
from distributed_grid.protocol.nodes import Known, NodeFacts, Sample
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Pool, Shape
from tests.coordinator.core.scaling.test_lists import Stage
from tests.coordinator.core.scene import facts, job, offer, resumed
from tests.depth import tries

SHAPE = Shape(resources=Resources(4000, 8 * GIB, 2000))
POOL = Pool(name="a", provider="p", shapes=(SHAPE,), max=2, idle=60.0, boot=5.0, join_within=100.0, life=900.0)


class Agent:
    """A node's agent: what it has, and what runs there."""

    def __init__(self, name: str, handle: str = "") -> None:
        self.name, self.handle, self.boots = name, handle, 0
        self.facts, self.runs = self.booted(4, 2), dict[str, Launch]()
        self.started: set[str] = set()

    def booted(self, cores: int, gpus: int) -> NodeFacts:
        self.boots += 1
        self.runs, self.started = {}, set()
        self.facts = facts(self.name, cores, gpus=gpus, boot=f"b{self.boots}", machine=self.handle)
        return self.facts


class World:
    """A ledger with a node and a pool, whose provider and agents are honest."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.count = chance, 0
        self.stage = Stage(pools=(POOL,))
        self.agents: dict[str, Agent] = {}
        self.stage.told()
        self.agents["lab"] = Agent("lab")
        self.connect(self.agents["lab"])

    def do(self, event: Any, after: float = 0.1) -> None:
        before = self.stage.now
        self.perform(self.stage.tell(event, after))
        if self.stage.now - before > 2.0:
            self.beat()

    def beat(self) -> None:
        """All agents are heard of, and offer what is not used."""
        for agent in [*self.agents.values()]:
            node = self.stage.ledger.state.nodes.get(agent.name)
            if node is not None and node.session:
                self.do(HeartbeatReceived(agent.name, Sample(at=self.stage.now)))
                self.offer(agent)

    def perform(self, out: list[Command]) -> None:
        for one in out:
            match one:
                case Send(node, Launch() as launch) if node in self.agents:
                    self.agents[node].runs[launch.allocation] = launch
                case Send(node, Stop() as stop) if node in self.agents:
                    if self.agents[node].runs.pop(stop.allocation, None) is not None:
                        over = Exited(allocation=stop.allocation, outcome=Outcome(Cause.CANCELLED))
                        self.do(MessageReceived(node, over))
                case CreateMachine(machine):
                    self.agents[machine.name] = Agent(machine.name, f"i-{machine.name}")
                    self.do(
                        MachineAnswered(machine.name, CallKind.CREATE, machine.calls, Answer.DONE, f"i-{machine.name}")
                    )
                case EndMachine(_, name, _, number):
                    gone = self.agents.pop(name, None)
                    there = self.stage.ledger.state.nodes.get(name)
                    if gone is not None and there is not None and there.session:
                        self.do(NodeDown(name, there.session))
                    self.do(MachineAnswered(name, CallKind.END, number, Answer.GONE))

    def connect(self, agent: Agent) -> None:
        state = self.stage.ledger.state
        if refusal(state, agent.facts):
            return
        self.count += 1
        self.do(NodeUp(agent.facts, f"s{self.count}"))
        known = tuple(Known(name, State.RUNNING if name in agent.started else State.STARTING) for name in agent.runs)
        self.do(MessageReceived(agent.name, Inventory(known=known)))
        self.offer(agent)

    def offer(self, agent: Agent) -> None:
        self.count += 1
        used = [agent.runs[name].grant for name in agent.started if name in agent.runs]
        cores = {core for grant in used for core in (*grant.cores, grant.shared_core)}
        spare = tuple(core for core in agent.facts.cores if core not in cores)
        counting = tuple(name for name in agent.started if name in agent.runs)
        memory = agent.facts.memory - sum(grant.memory for grant in used)
        gpus = tuple(
            one for one in offer(agent.facts).gpus if all(gpu.uuid != one.uuid for grant in used for gpu in grant.gpus)
        )
        told = offer(agent.facts, self.count, cores=spare, counting=counting, memory=memory, gpus=gpus)
        self.do(MessageReceived(agent.name, told))

    def act(self) -> None:
        chance, state = self.chance, self.stage.ledger.state
        self.count += 1
        agent = chance.choice([*self.agents.values()])
        node = state.nodes.get(agent.name)
        match chance.randrange(9):
            case 0:
                held = Resources(chance.choice([500, 1000, 2500, 4000]), GIB, chance.choice([0, 0, 1000, 2000]))
                new = job(f"h{self.count}", Request(held, requeue=False), self.stage.now, chance.choice(["ann", "bob"]))
                new.spec = holds.spec(chance.choice([20.0, 300.0, 2000.0]))
                self.do(JobsSubmitted(1, (new,)))
            case 1 | 2:
                live = [one for one in state.jobs.values() if one.spec.hold]
                of = chance.choice(live) if live and chance.random() < 0.8 else None
                wants = Resources(chance.choice([300, 1000, 2000]), GIB // 4, chance.choice([0, 0, 500, 1000]))
                user, within = (of.user, of.id) if of is not None else ("ann", "")
                asked = Request(wants, within=within)
                limit = chance.choice([0.0, 30.0, 600.0, 2000.0])
                self.do(JobsSubmitted(2, (job(f"j{self.count}", asked, self.stage.now, user, time_limit=limit),)))
            case 3 if agent.runs:
                name = chance.choice([*agent.runs])
                if name not in agent.started:
                    agent.started.add(name)
                    self.do(MessageReceived(agent.name, Started(allocation=name)))
            case 4 if agent.started:
                name = chance.choice(sorted(agent.started))
                agent.started.discard(name)
                if agent.runs.pop(name, None) is not None:
                    outcome = Outcome(chance.choice([Cause.EXITED, Cause.RECALLED]))
                    self.do(MessageReceived(agent.name, Exited(allocation=name, outcome=outcome)))
            case 5:
                if node is not None and node.session:
                    self.do(NodeDown(agent.name, node.session))
                agent.booted(chance.choice([1, 2, 4, 6]), chance.choice([0, 1, 2]))
                self.connect(agent)
            case 6 if state.jobs:
                self.do(CancelRequested(3, (chance.choice([*state.jobs]),)))
            case 7:
                if node is None or not node.session:
                    self.connect(agent)
                else:
                    self.offer(agent)
            case _:
                self.perform(self.stage.settle(chance.choice([1.0, 4.0, 30.0])))
                self.beat()
        if chance.random() < 0.1:
            self.stage.ledger = resumed(self.stage.ledger)

    def judge(self) -> None:
        """What is held is there, and nobody waits in a hold for more than it has."""
        state = self.stage.ledger.state
        self.stage.ledger.check()
        for one in state.allocations.values():
            node = state.nodes[one.node]
            if not one.hold or not node.synced:
                continue
            devices = {gpu.uuid for gpu in node.facts.gpus}
            assert {*one.grant.cores} <= {*node.facts.cores} and {gpu.uuid for gpu in one.grant.gpus} <= devices
            assert one.grant.cores or one.grant.shared_milli or one.grant.gpus, f"{one.id} holds nothing"
        for waits in state.jobs.values():
            if isinstance(waits.phase, AwaitsHold) and (hold := state.jobs[waits.request.within]).grant is not None:
                assert waits.request.resources.fits(hold.grant.resources), f"{waits.id} waits for ever in {hold.id}"


@pytest.mark.parametrize("seed", range(tries(10, 4)))
def test_holds_keep_what_is_there_whatever_is_booted_created_and_ended(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(70):
        world.act()
        world.judge()
