"""A whole grid made from a plan: run it through its faults, let it recover, and check that everything has ended."""

import random
from collections.abc import Callable
from typing import Any

from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.placement.constraints import unmet
from distributed_grid.coordinator.core.placement.matching import could_ever
from distributed_grid.coordinator.core.policy import Policy, Preempting
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages import Hello
from distributed_grid.protocol.nodes import NodeFacts, NodeState
from distributed_grid.simulator.agent import Agent
from distributed_grid.simulator.clients import Client, Grantor, Labeller, Operator
from distributed_grid.simulator.coordinator import Coordinator, Weather
from distributed_grid.simulator.disk import Disk
from distributed_grid.simulator.engine import DOWN, UP, Engine, Violation, Wire
from distributed_grid.simulator.judging.judge import Judge
from distributed_grid.simulator.judging.moves import Moves
from distributed_grid.simulator.judging.quotas import rightly_waits
from distributed_grid.simulator.judging.truth import number_of
from distributed_grid.simulator.machine import Machine
from distributed_grid.simulator.plan import FaultPlan, Plan
from distributed_grid.simulator.raycluster import RayCluster

WALL = 1_700_000_000.0
RECOVERY_SECONDS = 900.0
"""Seconds after the last fault within which everything must have come to its end."""


class World:
    """One grid. `go` runs it to its end, and raises a Violation. `begin` lets a planned fault happen."""

    def __init__(self, plan: Plan, begin: Callable[["World", FaultPlan], None], recording: bool = False) -> None:
        self.plan = plan
        self._begin = begin
        self.engine = Engine(recording)
        self.judge = Judge(plan.jobs, plan.nodes, Moves(plan.balancing, plan.badput))
        self.judge.relabelled = {f"n{one.node}" for one in plan.labels}
        self.weather = Weather()
        self.wall = WALL
        self.faults: dict[str, int] = {}
        self.healed = False
        self._next_check = 0.0
        self._chance = random.Random(plan.chance)
        self._policy = Policy(
            lost_after=plan.lost_after,
            owner_rule=True,
            rights=plan.rights,
            sharing=plan.sharing,
            balancing=plan.balancing,
            preempting=Preempting(badput_budget=plan.badput),
        )
        self._disk = self.judge.disk = Disk()
        self._lives = 0
        self.weather.sluggish = plan.sluggish / 2
        self._second: Coordinator | None = None
        self._before = self._disk.copy()
        self._ray = RayCluster(self.engine, self.judge, plan) if plan.demands else None
        self._ended, self._ended_at = 0, 0.0
        """How many jobs had ended when it was looked last, and when that changed."""
        self._ending = 0
        self._endings: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.machines = [Machine(self.engine, self.judge, node) for node in plan.nodes]
        self.coordinator = self._open(self._disk, self.judge)
        for machine in self.machines:
            machine.sluggish, machine.tells_use = plan.sluggish, plan.slack
            machine.dates = bool(plan.demands)
            self.start_agent(machine)
        self.operators: list[Operator] = []
        self.clients = [Client(self.engine, self.judge, job, self.reachable, self._named) for job in plan.jobs]
        self.labellers = [Labeller(self.engine, self.judge, one, self.reachable) for one in plan.labels]
        self.grantors = [Grantor(self.engine, self.judge, grant, self.reachable) for grant in plan.grants]
        for fault in plan.faults:
            self.engine.at(fault.at, None, self._fault, fault)
        self.engine.at(plan.shape.seconds, None, self._heal)

    def go(self) -> None:
        """Run until all is over. Raises Violation, also if a core refuses its own state."""
        try:
            while self.engine.step():
                if self.healed and self.engine.now >= self._next_check:
                    self._next_check = self.engine.now + 1.0
                    self._check_recovered()
                    what = self._unfinished()
                    if not what and self.engine.events >= self.plan.shape.events:
                        break
                    if len(self.judge.ended) > self._ended:
                        self._ended, self._ended_at = len(self.judge.ended), self.engine.now
                    if what and self.engine.now > max(self.plan.shape.seconds, self._ended_at) + RECOVERY_SECONDS:
                        raise Violation(*what)
        except AssertionError as error:
            raise Violation("the ledger", str(error)) from error
        self.coordinator.ledger.check()

    # --- who runs -----------------------------------------------------------------------------------------------------

    def reachable(self) -> Coordinator | None:
        """The coordinator, if it lives."""
        return None if self.coordinator.dead else self.coordinator

    def _named(self, number: int) -> str | None:
        for client in self.clients:
            if client.plan.number == number:
                return "" if client.refused else client.job or None
        return ""

    def start_coordinator(self) -> None:
        """Start it, unless it runs."""
        if not self.coordinator.dead:
            return
        self._before = self._disk.copy()
        self.coordinator = self._open(self._disk, self.judge)
        self.engine.note(f"the coordinator starts, epoch {self.coordinator.epoch}")

    def _open(self, disk: Disk, judge: Judge) -> Coordinator:
        self._lives += 1
        return Coordinator(
            self.engine, disk, self.weather, judge, self._chance, self._policy,
            self.wall + self.engine.now, f"c{self._lives}",
            {f"n{node.number}": node.stays for node in self.plan.nodes if node.stays is not None},
            self._ray if judge is self.judge else None, self._run_time if self.plan.predicts else None,
        )  # fmt: skip

    def _run_time(self, job: str) -> float:
        """Return how long a job runs."""
        return self.judge.plans[number_of(job)].seconds

    def kill_coordinator(self) -> None:
        """kill -9."""
        if not self.coordinator.dead:
            self.engine.thaw(self.coordinator)
            self.coordinator.killed()

    def start_second(self) -> None:
        """Start a second coordinator on a copy of the store as the first found it: it claims the same epoch."""
        if self._second is None and not self.coordinator.dead:
            apart = Judge(self.plan.jobs)  # what it makes of its copy is nobody's truth
            apart.disk, apart.plans = self._before.copy(), self.judge.plans  # boosts that were lent are among these
            apart.runs = self.judge.runs  # a gang that is over may be told so
            self._second = self._open(apart.disk, apart)

    def end_second(self) -> None:
        """End the second coordinator."""
        if self._second is not None:
            self._second.killed()
            self._second = None

    def start_agent(self, machine: Machine) -> None:
        """Start the agent of a node, unless it runs or the node is gone for good."""
        if not machine.gone and (machine.agent is None or machine.agent.dead):
            self.engine.note(f"the agent of {machine.name} starts")
            machine.agent = Agent(self.engine, machine, self._dialled)

    def wake_agent(self, machine: Machine) -> None:
        """Have the agent run, whether it is dead or suspended."""
        self.engine.thaw(machine.agent)
        self.start_agent(machine)

    def _dialled(self, agent: Agent) -> Wire | None:
        """Return a wire to the process at the coordinator's address. The second coordinator is met only by agents that
        know the first."""
        coordinator = self.coordinator
        if self._second is not None and agent.knows(coordinator.epoch, coordinator.instance):
            coordinator = self._second
        if coordinator.dead:
            return None
        return Wire(agent.machine.link, agent.machine.name, agent, coordinator)

    def drain(self, fault: FaultPlan) -> None:
        """An operator drains a node, unless another one is about to."""
        node = self.machines[fault.node].name
        if all(operator.done or operator.node != node for operator in self.operators):
            operator = Operator(self.engine, self.judge, fault, node, self.reachable)
            self.operators.append(operator)
            self.until(fault, self._served, operator)

    def _served(self, operator: Operator) -> None:
        operator.end()
        if not operator.done:
            self.engine.later(1.0, None, self._served, operator)

    # --- faults and recovery ------------------------------------------------------------------------------------------

    def _fault(self, fault: FaultPlan) -> None:
        if not self.machines[fault.node].gone:
            self._begin(self, fault)

    def until(self, fault: FaultPlan, act: Callable[..., Any], *args: Any) -> None:
        """Have this done when the fault is over, or the faults end before."""
        number = self._ending = self._ending + 1
        self._endings[number] = (act, args)
        self.engine.later(fault.seconds, None, self._end_fault, number)

    def _end_fault(self, number: int) -> None:
        act, args = self._endings.pop(number, (_nothing, ()))
        act(*args)

    def _heal(self) -> None:
        self.engine.note("peace")
        for number in [*self._endings]:
            self._end_fault(number)
        self.end_second()
        self.start_coordinator()
        self.healed, self._next_check = True, self.engine.now
        for machine in self.machines:
            self.start_agent(machine)
        for client in self.clients:
            client.heal()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _check_recovered(self) -> None:
        """Tell who judges moves what the grid's own jobs do, and what waits in Ray."""
        if self._ray is not None and self.judge.moves is not None:
            self.judge.moves.seen(self.coordinator.at_rest(), self.engine.now)

    def _unfinished(self) -> tuple[str, str] | None:
        """Return what is not as it must be in the end; None: nothing."""
        ledger = self.coordinator.ledger
        for client in self.clients:
            if not client.job and not client.refused:
                return f"job {client.plan.number}", "its submit is not answered"
            if client.job and client.job not in self._disk.rows and client.job not in self._disk.group_rows:
                return client.job, "it was accepted and is not there any more"
        for operator in self.operators:
            if not operator.done:
                operator.end(healed=True)
                return operator.node, "it is not undrained"
        for labeller in self.labellers:
            if not labeller.done:
                return labeller.node, "the label that it is given is not acknowledged"
        for grantor in self.grantors:
            if not grantor.done:
                return grantor.plan.name, "what it is granted is not acknowledged"
        if (open_yet := self.judge.preemptions.unfinished()) is not None:
            return open_yet
        able = [machine for machine in self.machines if not machine.gone]
        for job in ledger.state.jobs.values():
            if ledger.state.is_held_back(job) and self._rightly_held(job):
                continue
            if job.state is State.WAITING and job.request.within in ledger.state.jobs:
                continue  # for a hold, which is looked at by itself
            if job.state is State.WAITING and rightly_waits(ledger.state, job):
                continue
            if job.state is not State.WAITING or self._should_start(job, able):
                return job.id, f"it is {job.state.value} for ever, on {job.node or 'no node'}"
        for row in self._disk.rows.values():
            if row.state is not State.ENDED and row.id not in ledger.state.jobs:
                return row.id, f"it is {row.state.value} on disk and not in the ledger"
        return next(filter(None, map(self._not_at_rest, able)), None)

    def _should_start(self, job: Job, able: list[Machine]) -> bool:
        """Whether enough of these nodes could run a waiting job, and it need not be beside another that waits."""
        if self.coordinator.ledger.state.index.affinity.bounds(job.request.constraints).missing:
            return False
        fitting = sum(_could(machine.facts(), self._labels(machine), job.request) for machine in able)
        return fitting >= max(1, job.request.gang)

    def _labels(self, machine: Machine) -> dict[str, str]:
        """The labels that a node has by now."""
        told = machine.facts().labels
        orders = self._disk.orders().get(machine.name)
        return dict(told) if orders is None else orders.over(told)

    def _rightly_held(self, job: Job) -> bool:
        """Whether it waits for another one that lives, which is looked at by itself."""
        ledger = self.coordinator.ledger
        if (unmet := ledger.state.dependencies.unmet.get(job.group or job.id)) is not None:
            return bool(unmet)
        return not job.request.gang and ledger.state.groups[job.group].active > 0

    def _not_at_rest(self, machine: Machine) -> tuple[str, str] | None:
        name, agent = machine.name, machine.agent
        node = self.coordinator.ledger.state.nodes.get(name)
        if agent.dead:
            return name, "its agent has left for good"
        if node is None or node.state is not NodeState.UP or not node.synced:
            return name, f"it is {node.state.value if node else 'unknown'} to the coordinator"
        if agent.table.entries:
            return name, f"its agent still has {', '.join(agent.table.entries)}"
        if agent.table.holdings():
            return name, f"its agent holds something for {agent.table.holdings()[0].allocation}"
        if machine.supervisor.jobs:
            return name, f"its supervisor still has {', '.join(machine.supervisor.jobs)}"
        for run in machine.runs.values():
            if run.alive:
                return name, f"{run.allocation} still runs"
        capacity = node.capacity
        if capacity is None or capacity.whole != machine.plan.cores or capacity.whole_gpus != machine.plan.gpus:
            return name, "not all of it is to be had, though nobody uses it"
        if node.orphans or node.counting:
            return name, f"{', '.join([*node.orphans, *node.counting])} is held against it"
        return None


def _nothing() -> None:
    """A fault that is over already."""


def _could(facts: NodeFacts, labels: dict[str, str], request: Request) -> bool:
    """Whether a node with these labels could ever run it, by itself."""
    return could_ever(facts, request.resources) and unmet(facts, labels, request) is None


DAY = 86400.0


def begin_fault(world: World, fault: FaultPlan) -> None:
    """Let a fault happen now."""
    node = world.machines[fault.node].name
    where = "" if "coordinator" in fault.kind or "disk" in fault.kind else f" at {node}"
    world.engine.note(f"fault{fault.number}: {fault.kind}{where} for {fault.seconds:.2f} s")
    world.faults[fault.kind] = world.faults.get(fault.kind, 0) + 1
    _DO[fault.kind](world, fault)


def _partition(world: World, fault: FaultPlan) -> None:
    link = world.machines[fault.node].link
    for direction in {"deaf": (DOWN,), "mute": (UP,)}.get(fault.kind, (UP, DOWN)):
        link.cut[direction] = True
        world.until(fault, link.heal, direction)


def _slow_link(world: World, fault: FaultPlan) -> None:
    link = world.machines[fault.node].link
    link.slow = 4 * fault.how
    world.until(fault, setattr, link, "slow", 0.0)


def _cut(world: World, fault: FaultPlan) -> None:
    """Both ends learn of it, and what was on its way may be lost."""
    for wire in [*world.machines[fault.node].link.wires]:
        for side in (UP, DOWN):
            if not wire.closed[side]:
                wire.close(side, lose=True)
                wire.ends[side].hung_up(wire)


def _late_hello(world: World, fault: FaultPlan) -> None:
    machine, coordinator = world.machines[fault.node], world.reachable()
    if machine.agent.dead or coordinator is None:
        return
    wire = Wire(machine.link, f"{machine.name}-late", machine.agent, coordinator)
    wire.send(UP, Hello(protocol=PROTOCOL, software="sim", role="agent", name=machine.name, facts=machine.agent.facts))
    wire.close(UP)


def _kill_coordinator(world: World, fault: FaultPlan) -> None:
    world.kill_coordinator()
    world.until(fault, world.start_coordinator)


def _stop_coordinator(world: World, fault: FaultPlan) -> None:
    world.engine.freeze(world.coordinator)
    world.until(fault, world.engine.thaw, world.coordinator)


def _slow_disk(world: World, fault: FaultPlan) -> None:
    world.weather.slow = 3 * fault.how
    world.until(fault, setattr, world.weather, "slow", 0.0)


def _bad_disk(world: World, fault: FaultPlan) -> None:
    world.weather.bad = True
    world.until(fault, setattr, world.weather, "bad", False)


def _second_coordinator(world: World, fault: FaultPlan) -> None:
    world.start_second()
    world.until(fault, world.end_second)


def _kill_agent(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    if not machine.agent.dead:
        machine.agent.killed()
        world.until(fault, world.start_agent, machine)
        _not_both(world, machine)


def _stop_agent(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    world.engine.freeze(machine.agent)
    world.until(fault, world.engine.thaw, machine.agent)
    _not_both(world, machine)


def _slow_measure(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.slow_measure = 8 * fault.how
    world.until(fault, setattr, machine, "slow_measure", 0.0)


def _owner(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.use(0.2 + 0.8 * fault.how)
    world.until(fault, machine.use, 0.0)


def _kill_supervisor(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    supervisor, agent = machine.supervisor, machine.agent
    if supervisor is None or supervisor.dead:
        return
    supervisor.dead = True
    world.engine.later(0.05, agent, agent.supervisor_gone)
    _not_both(world, machine)


def _not_both(world: World, machine: Machine) -> None:
    """Leases rest on that: where no supervisor lives, an agent is there again soon (by systemd) and starts one."""
    if machine.supervisor is None or machine.supervisor.dead:
        world.engine.later(1.0, None, world.wake_agent, machine)


def _bad_journal(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.journal_bad = True
    world.until(fault, setattr, machine, "journal_bad", False)


def _reboot(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.power_cut()
    world.until(fault, world.start_agent, machine)


def _gone(world: World, fault: FaultPlan) -> None:
    machine = world.machines[fault.node]
    machine.gone = True
    machine.power_cut()


def _drain(world: World, fault: FaultPlan) -> None:
    world.drain(fault)


def _wall_jump(world: World, fault: FaultPlan) -> None:
    world.wall += DAY if fault.how < 0.5 else -DAY


_DO: dict[str, Callable[[World, FaultPlan], None]] = {
    "partition": _partition,
    "deaf": _partition,
    "mute": _partition,
    "slow-link": _slow_link,
    "cut": _cut,
    "late-hello": _late_hello,
    "kill-coordinator": _kill_coordinator,
    "stop-coordinator": _stop_coordinator,
    "slow-disk": _slow_disk,
    "bad-disk": _bad_disk,
    "second-coordinator": _second_coordinator,
    "kill-agent": _kill_agent,
    "stop-agent": _stop_agent,
    "slow-measure": _slow_measure,
    "owner": _owner,
    "kill-supervisor": _kill_supervisor,
    "bad-journal": _bad_journal,
    "reboot": _reboot,
    "gone": _gone,
    "wall-jump": _wall_jump,
    "drain": _drain,
}
