"""Honest agents on slow but ordered links: whatever the order of events, no core, GPU or byte is promised twice, no
allocation runs twice, and every outcome reaches the ledger unchanged.

An agent here keeps its own table. It offers what it has less what it holds and less what its owner uses, and counts
in the offer what it has taken off. A launch that overlaps with what it holds is the failure this test looks for.
"""

import random
from collections import Counter, deque
from copy import deepcopy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from distributed_grid.coordinator.core.commands import (
    AckExits,
    CancelRequested,
    Command,
    Event,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Publish,
    Rejected,
    Send,
    Tick,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Cause, Outcome, Priority, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Stale, Started, Stop
from distributed_grid.protocol.nodes import GpuOffer, Known, NodeFacts, Offer, Sample
from distributed_grid.protocol.resources import GIB, MILLI, Grant, Resources
from tests.coordinator.core.scene import facts, job, resumed
from tests.depth import tries

CORES, GPUS, MEMORY = 3, 2, 4 * GIB


class Agent:
    """One node, with its two one-way links. Nothing on a link overtakes, and a cut loses all that is on it."""

    def __init__(self, name: str) -> None:
        self.facts: NodeFacts = facts(name, CORES, MEMORY, GPUS)
        self.session = 0
        self.up = False
        self.to_ledger: deque[Event] = deque()
        self.to_agent: deque[Launch | Stop | AckExits] = deque()
        self.held: dict[str, Grant] = {}
        self.running: dict[str, bool] = {}
        self.over: dict[str, Outcome] = {}
        self.exits: dict[str, Outcome] = {}
        self.refused: set[str] = set()
        self.behind: dict[str, Launch] = {}
        """Successors, by what they wait for."""
        self.followed = 0
        self.busy_cores: set[int] = set()
        self.busy_gpus: set[str] = set()
        self.runs: dict[str, int] = {}
        self.number = 0

    def tell(self, message: Offer | Inventory | Started | Stale | Exited) -> None:
        if self.up:
            self.to_ledger.append(MessageReceived(self.facts.name, message))

    def cores_used(self) -> dict[int, int]:
        used: dict[int, int] = {}
        for grant in self.held.values():
            for core in grant.cores:
                used[core] = used.get(core, 0) + MILLI
            if grant.shared_core >= 0:
                used[grant.shared_core] = used.get(grant.shared_core, 0) + grant.shared_milli
        return used

    def gpus_used(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for grant in self.held.values():
            for gpu in grant.gpus:
                used[gpu.uuid] = used.get(gpu.uuid, 0) + gpu.milli
        return used

    def offer(self) -> None:
        cores, gpus = self.cores_used(), self.gpus_used()
        self.number += 1
        idle = [core for core in self.facts.cores if core not in self.busy_cores]
        self.tell(
            Offer(
                number=self.number,
                expires_in=300.0,
                cores=tuple(core for core in idle if core not in cores),
                shares={core: MILLI - cores[core] for core in idle if 0 < cores.get(core, 0) < MILLI},
                memory=MEMORY - sum(grant.memory for grant in self.held.values()),
                gpus=tuple(
                    GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory, MILLI - gpus.get(gpu.uuid, 0))
                    for gpu in self.facts.gpus
                    if gpu.uuid not in self.busy_gpus and gpus.get(gpu.uuid, 0) < MILLI
                ),
                counting=tuple(self.held),
            )
        )

    def connect(self) -> None:
        self.session += 1
        self.up = True
        self.to_ledger.append(NodeUp(self.facts, f"{self.facts.name}-{self.session}"))
        known = [Known(name, State.RUNNING if self.running[name] else State.STARTING) for name in self.held]
        self.behind.clear()  # as a new agent that knows nothing of them
        known += [Known(name, State.ENDED, outcome) for name, outcome in self.over.items()]
        self.tell(Inventory(known=tuple(known)))
        self.offer()
        for name, outcome in self.over.items():
            self.tell(Exited(allocation=name, outcome=outcome))

    def cut(self) -> None:
        if self.up:
            self.to_ledger = deque(event for event in self.to_ledger if isinstance(event, NodeUp | NodeDown))
            self.to_ledger.append(NodeDown(self.facts.name, f"{self.facts.name}-{self.session}"))
        self.up = False
        self.to_agent.clear()

    def launch(self, launch: Launch) -> None:
        name, grant = launch.allocation, launch.grant
        if name in self.held:
            if self.running[name]:
                self.tell(Started(allocation=name))
            return
        if name in self.over:
            self.tell(Exited(allocation=name, outcome=self.over[name]))
            return
        if name in self.refused or name in [one.allocation for one in self.behind.values()]:
            return
        if launch.predecessor in [*self.held, *[one.allocation for one in self.behind.values()]]:
            assert launch.predecessor not in self.behind, f"{launch.predecessor} has two successors"
            self.behind[launch.predecessor] = launch
            return
        cores, gpus = self.cores_used(), self.gpus_used()
        for core in grant.cores:
            assert not cores.get(core), f"core {core} is promised to {name} and held by another"
        if grant.shared_core >= 0:
            assert cores.get(grant.shared_core, 0) + grant.shared_milli <= MILLI, f"core of {name} is over-promised"
        for gpu in grant.gpus:
            assert gpus.get(gpu.uuid, 0) + gpu.milli <= MILLI, f"{gpu.uuid} is promised to {name} and held by another"
        memory = sum(held.memory for held in self.held.values()) + grant.memory
        assert memory <= MEMORY, f"memory of {name} is over-promised"
        wanted = {*grant.cores, grant.shared_core} & self.busy_cores
        if wanted or {gpu.uuid for gpu in grant.gpus} & self.busy_gpus:
            self.tell(Stale(allocation=name, reason="the owner uses it", device=str(min(wanted)) if wanted else ""))
            return
        self.held[name], self.running[name] = grant, False

    def start(self, name: str) -> None:
        self.running[name] = True
        self.runs[name] = self.runs.get(name, 0) + 1
        assert self.runs[name] == 1, f"{name} was started twice"
        self.tell(Started(allocation=name))

    def end(self, name: str, outcome: Outcome) -> None:
        grant = self.held.pop(name)
        self.over[name] = self.exits[name] = outcome
        if (next_one := self.behind.pop(name, None)) is not None:
            assert next_one.grant == grant, f"{next_one.allocation} follows {name}, and is to have something else"
            self.held[next_one.allocation], self.running[next_one.allocation] = grant, False
            self.followed += 1
            self.tell(Exited(allocation=name, outcome=outcome))
            self.start(next_one.allocation)
            return
        cores = {*grant.cores, grant.shared_core}
        free = not cores & self.busy_cores and not {gpu.uuid for gpu in grant.gpus} & self.busy_gpus
        self.tell(Exited(allocation=name, outcome=outcome, returned=free))
        if not free:
            self.offer()

    def leave(self, name: str) -> None:
        """It does not wait any more; who waits for it waits for what it waited for."""
        before = next((one for one, launch in self.behind.items() if launch.allocation == name), None)
        if before is not None:
            del self.behind[before]
            if (launch := self.behind.pop(name, None)) is not None:
                self.behind[before] = launch

    def hear(self, message: Launch | Stop | AckExits) -> None:
        match message:
            case Launch():
                self.launch(message)
            case Stop(allocation=name, unless_started=True) if self.running.get(name):
                pass
            case Stop(allocation=name) if name in self.held:
                self.end(name, Outcome(cause=Cause.CANCELLED, signal=15, started=self.running[name]))
            case Stop(allocation=name) if name not in self.over:
                self.refused.add(name)
                self.leave(name)
                self.over[name] = Outcome(cause=Cause(message.cause), started=False)
                self.tell(Exited(allocation=name, outcome=self.over[name]))
            case AckExits(allocations=names):
                for name in names:
                    self.over.pop(name, None)
                    self.refused.add(name)


AMOUNTS = st.builds(
    Resources,
    cpu=st.sampled_from([300, 500, 1000, 1500, 2000]),
    memory=st.sampled_from([0, GIB, 3 * GIB]),
    gpu=st.sampled_from([0, 0, 250, 500, 1000, 2000]),
)


class Grid(RuleBasedStateMachine):
    """A ledger, two agents, users."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger()
        self.agents = {name: Agent(name) for name in ("n1", "n2")}
        self.count = 0
        self.results: dict[str, Outcome] = {}
        self.taken_back = 0
        for agent in self.agents.values():
            agent.connect()

    def happen(self, event: Event) -> None:
        self.now += 0.01
        for command in self.ledger.handle(event, self.now) + self.ledger.settle(self.now):
            self.perform(command)

    def reachable(self, node: str) -> bool:
        """What the ledger sends goes to the session it knows of, which may be over already."""
        agent = self.agents[node]
        return agent.up and self.ledger.state.nodes[node].session == f"{node}-{agent.session}"

    def perform(self, command: Command) -> None:
        match command:
            case Send(node, Launch() | Stop() as message) if self.reachable(node):
                self.taken_back += isinstance(message, Stop) and message.unless_started
                self.agents[node].to_agent.append(message)
            case AckExits(node, _) if self.reachable(node):
                self.agents[node].to_agent.append(command)
            case Publish(view) if view.outcome is not None:
                assert view.id not in self.results, f"{view.id} ended twice"
                self.results[view.id] = view.outcome
                told = self.agents[view.node].exits.get(view.allocation) if view.node else None
                assert view.outcome.cause is not Cause.EXITED or view.outcome == told, f"{view.id}: not what was told"
            case Rejected():
                assert command.code == "never-fits", command

    @rule(target=jobs, amount=AMOUNTS, priority=st.sampled_from(list(Priority)), immediate=st.booleans())
    def submit(self, amount: Resources, priority: Priority, immediate: bool) -> str:
        self.count += 1
        name = f"j{self.count}"
        request = Request(amount, priority, (), immediate and self.count % 3 == 0)
        self.happen(JobsSubmitted(1, (job(name, request, self.now),)))
        return name

    @rule(name=jobs)
    def cancel(self, name: str) -> None:
        self.happen(CancelRequested(1, (name,)))

    @rule(name=st.sampled_from(["n1", "n2"]), many=st.integers(1, 4))
    def ledger_hears(self, name: str, many: int) -> None:
        for _ in range(many):
            if self.agents[name].to_ledger:
                self.happen(self.agents[name].to_ledger.popleft())

    @rule(name=st.sampled_from(["n1", "n2"]), many=st.integers(1, 4))
    def agent_hears(self, name: str, many: int) -> None:
        for _ in range(many):
            if self.agents[name].to_agent:
                self.agents[name].hear(self.agents[name].to_agent.popleft())

    @rule(name=st.sampled_from(["n1", "n2"]), number=st.integers(0, 5))
    def agent_starts(self, name: str, number: int) -> None:
        agent = self.agents[name]
        ready = [held for held in agent.held if not agent.running[held]]
        if ready:
            agent.start(ready[number % len(ready)])

    @rule(name=st.sampled_from(["n1", "n2"]), number=st.integers(0, 5), code=st.integers(0, 3))
    def job_exits(self, name: str, number: int, code: int) -> None:
        agent = self.agents[name]
        ready = [held for held in agent.held if agent.running[held]]
        if ready:
            agent.end(ready[number % len(ready)], Outcome(cause=Cause.EXITED, code=code, seconds=0.01))

    def restart(self) -> None:
        """The coordinator ends, and is started anew with what is on disk."""
        state = self.ledger.state
        at = [node.facts for node in state.nodes.values()]
        self.ledger = Ledger(state.epoch + 1)
        self.ledger.restore(deepcopy([*state.jobs.values()]), deepcopy([*state.allocations.values()]), at, self.now)
        self.ledger.check()
        for agent in self.agents.values():
            agent.cut()
            agent.to_ledger.clear()
            agent.connect()

    @rule(name=st.sampled_from(["n1", "n2"]), core=st.integers(0, CORES - 1), gpu=st.integers(0, GPUS - 1))
    def owner_comes_or_goes(self, name: str, core: int, gpu: int) -> None:
        agent = self.agents[name]
        agent.busy_cores ^= {core}
        agent.busy_gpus ^= {agent.facts.gpus[gpu].uuid}
        agent.offer()

    @rule(name=st.sampled_from(["n1", "n2"]))
    def link_breaks(self, name: str) -> None:
        self.agents[name].cut()

    @rule(name=st.sampled_from(["n1", "n2"]))
    def agent_connects(self, name: str) -> None:
        self.agents[name].cut()
        self.agents[name].connect()

    @rule(seconds=st.sampled_from([0.5, 5.0, 7.0, 20.0, 80.0]), heard=st.booleans())
    def time_passes(self, seconds: float, heard: bool) -> None:
        for _ in range(4):
            self.now += seconds / 4
            for agent in self.agents.values():
                if heard and agent.up and not agent.to_ledger:
                    self.happen(HeartbeatReceived(agent.facts.name, Sample(at=self.now)))
            self.happen(Tick())

    @invariant()
    def holds(self) -> None:
        self.ledger.check()

    def teardown(self) -> None:
        """Let everything arrive and everything end: then nothing may wait while there is room for it, or hold."""
        for agent in self.agents.values():
            agent.busy_cores.clear()
            agent.busy_gpus.clear()
            agent.cut()
            agent.connect()
        for _ in range(200):
            for agent in self.agents.values():
                while agent.to_ledger:
                    self.happen(agent.to_ledger.popleft())
                while agent.to_agent:
                    agent.hear(agent.to_agent.popleft())
                for name in [*agent.held]:
                    if name not in agent.held:
                        continue
                    if not agent.running[name]:
                        agent.start(name)
                    agent.end(name, Outcome(cause=Cause.EXITED, code=0, seconds=0.01))
                if not agent.to_ledger:
                    agent.offer()
            self.now += 2.0
            self.ledger.check()
            if not self.ledger.state.jobs:
                break
        assert not self.ledger.state.jobs, f"left over: {list(self.ledger.state.jobs)}"
        assert not any(agent.over and agent.up and agent.to_agent for agent in self.agents.values())


WANTED = [Resources(c, m * GIB, g) for c in (300, 500, 1000, 1500) for m in (0, 1) for g in (0, 0, 250, 1000)]


def play(grid: Grid, rng: random.Random) -> None:
    """Let one thing happen, by chance."""
    name, names = rng.choice(("n1", "n2")), list(grid.ledger.state.jobs)
    dice = rng.random()
    if dice < 0.2:
        grid.submit(rng.choice(WANTED), rng.choice(list(Priority)), False)
    elif dice < 0.5:
        grid.ledger_hears(name, rng.randint(1, 4))
    elif dice < 0.75:
        grid.agent_hears(name, rng.randint(1, 4))
        grid.agent_starts(name, rng.randint(0, 5))
    elif dice < 0.87:
        grid.job_exits(name, rng.randint(0, 5), rng.randint(0, 3))
    elif dice < 0.91 and names:
        grid.cancel(rng.choice(names))
    elif dice < 0.95:
        grid.owner_comes_or_goes(name, rng.randrange(CORES), rng.randrange(GPUS))
    elif dice < 0.98:
        grid.agent_connects(name)
    else:
        grid.time_passes(rng.choice((0.5, 7.0, 80.0)), rng.random() < 0.7)


def test_many_seeded_runs_with_more_traffic_than_trouble() -> None:
    totals: Counter[str] = Counter()
    for seed in range(tries(30, 10)):
        rng = random.Random(seed)
        grid = Grid()
        for _ in range(200):
            play(grid, rng)
            grid.holds()
        grid.teardown()
        totals.update(outcome.cause.value for outcome in grid.results.values())
        totals.update(runs=sum(len(agent.runs) for agent in grid.agents.values()))
    assert totals["runs"] > 250 and totals["exited"] > 250 and totals["cancelled"] > 25 and totals["node-lost"] > 2


def flood(grid: Grid, rng: random.Random) -> None:
    """Let one thing happen, by chance; most jobs are short and ask for the same."""
    if rng.random() < 0.3:
        many = rng.choice((1, 2, 12))
        for _ in range(many):
            priority = rng.choice((Priority.MEDIUM, Priority.MEDIUM, Priority.MEDIUM, Priority.HIGH))
            grid.count += 1
            request = Request(Resources(1000, GIB), priority if many == 1 else Priority.MEDIUM)
            user = rng.choice(("ann", "ann", "ben"))
            grid.happen(JobsSubmitted(1, (job(f"j{grid.count}", request, grid.now, user=user),)))
    elif rng.random() < 0.1:
        play(grid, rng)
    elif rng.random() < 0.02:
        grid.restart()
    elif rng.random() < 0.02:
        grid.ledger = resumed(grid.ledger)
    elif rng.random() < 0.5:
        grid.ledger_hears(rng.choice(("n1", "n2")), 4)
        grid.agent_hears(rng.choice(("n1", "n2")), 4)
    else:
        grid.agent_starts(rng.choice(("n1", "n2")), rng.randint(0, 5))
        grid.job_exits(rng.choice(("n1", "n2")), rng.randint(0, 5), 0)


def test_successors_run_once_on_what_their_predecessors_held() -> None:
    followed = taken_back = 0
    for seed in range(tries(4, 2)):
        rng = random.Random(seed)
        grid = Grid()
        for _ in range(300):
            flood(grid, rng)
            grid.holds()
        grid.teardown()
        followed += sum(agent.followed for agent in grid.agents.values())
        taken_back += grid.taken_back
    assert followed > 300 and taken_back > 30, (followed, taken_back)


Grid.TestCase.settings = settings(
    max_examples=tries(20, 8), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHonestAgents = Grid.TestCase
