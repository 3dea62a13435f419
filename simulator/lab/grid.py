"""The grid's own policy: the real ledger with its strategies, shares, reservations and preemption, fed with the events
that agents and clients would send.
"""

import math
from collections.abc import Sequence

import msgspec

from distributed_grid.coordinator.core.commands import (
    Command,
    DemandReported,
    ForecastsReported,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeUp,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.policy import DEFAULT, Policy
from distributed_grid.coordinator.core.trends.idle import STEP, IdleForecaster, Pool
from distributed_grid.coordinator.core.trends.stay import IdleForecast
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Request, ServiceOrder
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Recalled, Started, Stop, Suspended
from distributed_grid.protocol.nodes import GpuFacts, GpuOffer, NodeFacts, Offer, Sample
from distributed_grid.protocol.placement import Constraints, Strategy, Walls
from distributed_grid.protocol.resources import GIB
from distributed_grid.protocol.sharing.policies import Balancing, OffloadingMode, PolicyName
from distributed_grid.simulator.lab.trace import Machine, TraceJob
from distributed_grid.simulator.lab.world import Decision, Start

EPOCH = 1e9
"""Grid time of the first submission: 0 means never there."""
FOREVER = 1e15
GPU_MEMORY = 16 * GIB
ORDERS = tuple(one.value for one in ServiceOrder)
POLICIES = tuple(one.value for one in PolicyName)
FIT = "fit"
"""Jobs with GPUs are placed as those without: by best-fit alone, whatever a placement takes from other requests."""
IDLE = 0.30
"""Use by its owner up to which a machine is idle, as a part of it (`cpu_percent_max`)."""
SILENT = frozenset({"silence", "offer", "reasons", "shares"})
"""Deadlines that decide nothing here: no node is silent, no offer expires, nobody is told why, nothing is stored."""


def policy_of(strategy: str = "", base: Policy = DEFAULT) -> Policy:
    """The policy of a grid whose nodes are never silent, with this strategy, order of service, or policy of
    rebalancing, under which it goes by forecasts of how long machines stay idle; or without the score of fragmentation
    (`FIT`)."""
    changes = {"suspect_after": FOREVER, "disconnected_after": 2 * FOREVER, "lost_after": FOREVER}
    found = msgspec.structs.replace(base, **changes)
    if strategy in ORDERS:
        sharing = msgspec.structs.replace(found.sharing, order=ServiceOrder(strategy))
        found = msgspec.structs.replace(found, sharing=sharing)
    elif strategy in POLICIES:
        balancing = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, policy=PolicyName(strategy), interval=STEP)
        found = msgspec.structs.replace(found, balancing=balancing)
    elif strategy == FIT:
        found = msgspec.structs.replace(found, gpu_weights=found.weights)
    elif strategy:
        found = found.by_strategy(Strategy(strategy))
    return found


class Grid:
    """The ledger as a policy of the lab."""

    def __init__(
        self,
        machines: Sequence[Machine],
        jobs: Sequence[TraceJob],
        at_once: bool = False,
        policy: Policy | None = None,
    ) -> None:
        self.jobs, self._at_once = jobs, at_once
        self.ledger = Ledger(watched=(), policy=policy or policy_of())
        self._facts = [node_facts(machine) for machine in machines]
        self._node_of = {facts.name: at for at, facts in enumerate(self._facts)}
        self._allocation: dict[int, str] = {}
        self._next: dict[str, tuple[str, Launch]] = {}
        """Successors that wait on a node, by the allocation they follow."""
        self._followed: list[Start] = []
        """Those that have started since the last decision."""
        self._out: list[Command] = []
        self._offers = 0
        self._pool = Pool()
        self._owners: dict[str, IdleForecaster] = {}
        """What is learned of each machine's owner, where the policy goes by that."""
        if self.ledger.state.policy.balancing.mode is OffloadingMode.DYNAMIC_BALANCING:
            self._owners = {facts.name: IdleForecaster() for facts in self._facts}
        for facts in self._facts:
            for event in (NodeUp(facts, "s"), MessageReceived(facts.name, Inventory(known=()))):
                self.ledger.handle(event, EPOCH)
            self._offer(facts, facts.cores, EPOCH)
        self.ledger.settle(EPOCH)

    def _offer(self, facts: NodeFacts, cores: tuple[int, ...], now: float) -> None:
        """A node offers all of its memory and GPUs, and these cores; what it offers counts no allocation."""
        self._offers += 1
        gpus = tuple(GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory) for gpu in facts.gpus)
        offer = Offer(number=self._offers, expires_in=FOREVER, cores=cores, memory=facts.memory, gpus=gpus)
        self._out += self.ledger.handle(MessageReceived(facts.name, offer), now)

    def submit(self, jobs: Sequence[int], now: float) -> None:
        """One submission for each user, so that a refused one is one job's."""
        made = []
        for number in jobs:
            told = self.jobs[number]
            spec = JobSpec(argv=("job",), time_limit=told.requested, grace=0.0)
            asked = Constraints(gpu_model=told.gpu_model) if told.gpu_model else None
            request = Request(told.resources, priority=told.priority, immediate=self._at_once, constraints=asked)
            made.append(
                Job(
                    id=f"j{number}",
                    key=f"k{number}",
                    user=told.user or "nobody",
                    spec=spec,
                    request=request,
                    submitted=EPOCH + now,
                    by_operator=True,  # it may ask for any priority
                )
            )
        self._out += self.ledger.handle(JobsSubmitted(0, tuple(made)), EPOCH + now)

    def ended(self, job: int, now: float, again: bool) -> None:
        """Handle the end of a job, as reported by its agent."""
        name = self._allocation.pop(job)
        allocation = self.ledger.state.allocations[name]
        cause = Cause.EXITED
        if again:
            cause = Cause(allocation.stop.cause) if allocation.stop is not None else Cause.RECALLED
        seconds = max(0.0, EPOCH + now - allocation.granted)
        outcome = Outcome(cause=cause, signal=15 if again else 0, seconds=seconds)
        node, successor = allocation.node, self._next.pop(name, None)
        self._tell(node, Exited(allocation=name, outcome=outcome, returned=successor is None), now)
        if successor is not None:
            self._followed.append(self._started(*successor, now))

    def lent(self, node: int, cores: tuple[int, ...], now: float) -> None:
        """The agent of a node offers these cores from now on, and says that its owner uses the others."""
        facts = self._facts[node]
        sample = Sample(at=EPOCH + now, foreign_cpu=float(len(facts.cores) - len(cores)))
        self.ledger.handle(HeartbeatReceived(facts.name, sample), EPOCH + now)
        self._offer(facts, cores, EPOCH + now)

    def owners_used(self, parts: Sequence[float], now: float) -> None:
        """The coordinator learns from the last interval, and a pass of rebalancing is due."""
        at = round((EPOCH + now) / STEP)
        told: dict[str, IdleForecast | None] = {}
        for part, (name, one) in zip(parts, self._owners.items(), strict=False):
            one.observe(at - 1, part, part <= IDLE, self._pool)
            idle = 0.0 if one.since is None else float((at - one.since) * STEP)
            told[name] = IdleForecast(EPOCH + now, idle, one.expected(self._pool), one.peak)
        if told:
            self._out += self.ledger.handle(ForecastsReported(told), EPOCH + now)
            self._out += self.ledger.handle(DemandReported(None), EPOCH + now)

    def frozen(self, job: int, why: str, seconds: float, total: float, now: float) -> None:
        """The agent tells that a job is frozen, or goes on."""
        name = self._allocation[job]
        told = Suspended(allocation=name, why=why, lasted=seconds, in_all=total)
        self._tell(self.ledger.state.allocations[name].node, told, now)

    def recalled(self, job: int, why: str, now: float) -> None:
        """The agent tells that the owner takes it back."""
        name = self._allocation[job]
        self._tell(self.ledger.state.allocations[name].node, Recalled(allocation=name, why=why), now)

    def _tell(self, node: str, message: Exited | Suspended | Recalled | Started, now: float) -> None:
        self._out += self.ledger.handle(MessageReceived(node, message), EPOCH + now)

    def decide(self, now: float) -> Decision:
        """Settle, and return the launched and stopped jobs."""
        self.ledger.state.deadlines.disarm("reasons", "")  # nobody reads here why jobs wait
        self._out += self.ledger.settle(EPOCH + now)
        starts, evicted = self._followed, list[int]()
        self._followed = []
        while self._out:
            commands, self._out = self._out, []
            for command in commands:
                if type(command) is not Send:
                    continue
                message = command.message
                if type(message) is Launch and message.predecessor and self._runs(message.predecessor):
                    self._next[message.predecessor] = command.node, message
                elif type(message) is Stop and self._withdraw(command.node, message, now):
                    pass
                elif type(message) is Launch:
                    starts.append(self._started(command.node, message, now))
                elif type(message) is Stop:
                    job = _number(message.allocation)
                    if self._runs(message.allocation):  # else it has ended meanwhile
                        evicted.append(job)
        return Decision(starts, evicted)

    def _runs(self, allocation: str) -> bool:
        return self._allocation.get(_number(allocation)) == allocation

    def _withdraw(self, node: str, stop: Stop, now: float) -> bool:
        """Withdraw a successor that has not started; False: it is none."""
        for before, (_, launch) in self._next.items():
            if launch.allocation == stop.allocation:
                del self._next[before]
                outcome = Outcome(cause=Cause(stop.cause), started=False)
                self._tell(node, Exited(allocation=stop.allocation, outcome=outcome, returned=True), now)
                return True
        return False

    def _started(self, node: str, launch: Launch, now: float) -> Start:
        job = _number(launch.allocation)
        self._allocation[job] = launch.allocation
        self._tell(node, Started(allocation=launch.allocation, walls=Walls.USER), now)
        grant = launch.grant
        gpus = tuple((int(share.uuid.rpartition("-")[2]), share.milli) for share in grant.gpus)
        return Start(job, self._node_of[node], gpus, grant.cores, grant.shared_core)

    def wake(self) -> float | None:
        """The next deadline that may decide something."""
        armed = self.ledger.state.deadlines.armed
        quiet = 2 * len(self._facts) + (("reasons", "") in armed) + (("shares", "") in armed)
        if len(armed) <= quiet:
            return None
        at = min((at for (kind, _), at in armed.items() if kind not in SILENT), default=math.inf)
        return at - EPOCH if at < math.inf else None

    def check(self) -> None:
        """Raise AssertionError where the ledger contradicts itself."""
        self.ledger.check()


def _number(allocation: str) -> int:
    return int(allocation.partition(".")[0][1:])


def node_facts(machine: Machine) -> NodeFacts:
    """The facts that the agent of such a machine tells."""
    return NodeFacts(
        name=machine.name,
        hostname=machine.name,
        boot_id="b",
        incarnation=1,
        cores=tuple(range(machine.cores)),
        memory=machine.memory,
        lendable=machine.resources,
        gpus=tuple(
            GpuFacts(f"{machine.name}-{at}", at, machine.model or "gpu", GPU_MEMORY) for at in range(machine.gpus)
        ),
        walls=Walls.USER,
    )
