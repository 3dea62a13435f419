"""A world of machines made from a seed: the real ledger with its records on a disk, a cloud that keeps its promises and
no more (tokens, tags, timers of its machines), and agents. The coordinator is killed at any step; calls are lost before
and after they were carried out, come late, and are answered twice.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    RECORDS,
    Accepted,
    Command,
    Event,
    HeartbeatReceived,
    JobsSubmitted,
    MessageReceived,
    NodeDown,
    NodeUp,
    Send,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.budget import cost_on, day_of
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachinesListed,
    RecordMachine,
    RecordPauses,
)
from distributed_grid.coordinator.core.scaling.machines import refusal
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed, Paused
from distributed_grid.protocol.jobs import Cause, Outcome, Request, State
from distributed_grid.protocol.messages import Exited, Inventory, Launch, Started, Stop
from distributed_grid.protocol.nodes import Known, NodeFacts, Sample
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.pools import Billing, Limits, Pool, Scaling, ScalingMode, Shape
from distributed_grid.simulator.disk import Disk, snapshot
from tests.coordinator.core.scene import facts, job, offer

BEGIN = 1_000_000.0
CORES = 4


@dataclass
class VM:
    """A machine in the cloud, with its agent and what runs there."""

    handle: str
    machine: Machine
    born: float
    joined: bool = False
    over: float = 0.0
    session: str = ""
    heard: float = 0.0
    runs: dict[str, State] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return not self.over


class World:
    """`faults` from 0 to 1: how often something goes wrong. `daily`: there is a limit for each day, and machines are
    billed by the hour or second. `jumps`: at each start the coordinator's clock has jumped, ahead or back."""

    def __init__(self, seed: int, faults: float = 0.2, daily: bool = False, jumps: bool = False) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.now, self.ahead, self.stored, self.jumps = BEGIN, 0.0, 0.0, jumps
        self.number = 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.vms: dict[str, VM] = {}
        self.disk, self.machines, self.paused = Disk(), dict[str, Machine](), dict[str, Paused]()
        self.wanted: dict[str, float] = {}
        """Jobs that users want, with how long each takes; those that have ended are in `ended`."""
        self.ended: set[str] = set()
        self.refusing = False
        self.crashes = self.lost = 0
        shape = Shape(type="x", resources=Resources(CORES * 1000, 8 * GIB), price=1.0)
        other = Shape(type="y", resources=Resources(CORES * 1000, 8 * GIB), price=2.0)
        pool = Pool(
            name="a", provider="p", shapes=(shape, other), zones=("n", "s"), max=4, idle=120, boot=30, join_within=200,
            abandoned_after=400, life=40_000, min=self.chance.choice([0, 0, 1]),
            billing=self.chance.choice([*Billing]) if daily else Billing.SECOND,
        )  # fmt: skip
        self.scaling = Scaling(
            mode=ScalingMode.ACT, pools=(pool,), limits=Limits(max_workers=3, max_cost_per_hour=5.0), look=30.0
        )
        if daily:
            day = replace(self.scaling.limits, max_cost_per_day=self.chance.uniform(0.5, 20.0))
            self.scaling = replace(self.scaling, limits=day)
        self.ledger: Ledger | None = None
        self.start()

    # --- time ---------------------------------------------------------------------------------------------------------

    def at(self, seconds: float, do: Callable[[], None]) -> None:
        self.number += 1
        heappush(self.queue, (self.now + seconds, self.number, do))

    def run(self, seconds: float) -> None:
        """Let time pass: handle what is due, the ledger's deadlines, and the timers of machines."""
        until = self.now + seconds
        while True:
            times = [self.queue[0][0]] if self.queue else []
            if self.ledger is not None and (due := self.ledger.next_deadline()) is not None:
                times.append(max(due - self.ahead, self.now + 0.01))
            if not times or min(times) > until:
                break
            self.now = max(self.now, min(times))
            while self.queue and self.queue[0][0] <= self.now:
                heappop(self.queue)[2]()
            self.settle()
            self.timers()
            self.check_budget()
        self.now = until
        self.timers()

    def timers(self) -> None:
        """Let machines end themselves: not joined in time, abandoned without jobs, or at the end of their life."""
        for vm in self.vms.values():
            machine = vm.machine
            late = not vm.joined and self.now >= vm.born + machine.join_within
            silent = (
                vm.joined and State.RUNNING not in vm.runs.values() and self.now >= vm.heard + machine.abandoned_after
            )
            life = vm.born + machine.ends_by - machine.born
            over = life if machine.ends_by <= vm.born else min(machine.ends_by, life)  # as agent/machine.py
            if vm.alive and (late or silent or self.now >= over):
                self.end_vm(vm)

    def end_vm(self, vm: VM) -> None:
        if not vm.alive:
            return
        vm.over = self.now
        if vm.session and self.ledger is not None:
            session, vm.session = vm.session, ""
            self.tell(NodeDown(vm.machine.name, session))

    def alive(self) -> list[VM]:
        return [vm for vm in self.vms.values() if vm.alive]

    def check_budget(self) -> None:
        alive = self.alive()
        assert len(alive) <= self.scaling.limits.max_workers, f"{len(alive)} machines at {self.now - BEGIN:.0f}"
        assert sum(vm.machine.price or 0.0 for vm in alive) <= (self.scaling.limits.max_cost_per_hour or 0.0)
        if (most := self.scaling.limits.max_cost_per_day) is not None:
            today, by = day_of(self.now), self.scaling.pools[0].billing
            paid = (replace(vm.machine, born=vm.born, over=vm.over or self.now) for vm in self.vms.values())
            spent = sum(cost_on(one, today, self.now, by) for one in paid)
            assert spent <= most + 1e-6, f"{spent} of {most} at {self.now - BEGIN:.0f}"

    # --- the coordinator ----------------------------------------------------------------------------------------------

    @property
    def grid(self) -> float:
        """The time of the coordinator: never before what it has stored (coordinator/driver.py)."""
        return self.now + self.ahead

    def start(self) -> None:
        """Start a coordinator on what is on the disk."""
        self.disk.epoch += 1
        if self.jumps:
            jump = self.chance.choice([-90_000.0, -300.0, 0.0, 300.0, 90_000.0])
            self.ahead = max(self.now + jump, self.stored) - self.now
        ledger = self.ledger = Ledger(self.disk.epoch, policy=Policy(scaling=self.scaling))
        out = ledger.restore(
            self.disk.jobs(), self.disk.allocations(), self.disk.facts(), self.grid, 0.0, self.disk.orders(),
            created=sorted(self.machines.values(), key=lambda one: (one.wanted, len(one.name), one.name)),
            paused=self.paused,
        )  # fmt: skip
        self.perform(out)
        for vm in self.alive():
            if vm.joined and self.ledger is not None:
                self.at(self.chance.uniform(0.5, 5), lambda vm=vm: self.connect(vm))  # type: ignore[misc]
        for name in self.wanted:
            self.submit(name)

    def crash(self) -> None:
        self.ledger = None
        self.crashes += 1
        for vm in self.vms.values():
            vm.session = ""

    def tell(self, event: Event) -> None:
        if self.ledger is not None:
            self.perform(self.ledger.handle(event, self.grid))

    def settle(self) -> None:
        if self.ledger is not None:
            out = self.ledger.settle(self.grid)
            self.ledger.check()
            self.perform(out)

    def perform(self, commands: list[Command]) -> None:
        """Commit the records, then do the rest; a crash may come before, between and after."""
        if not commands or self.ledger is None:
            return
        calls = any(isinstance(one, CreateMachine | EndMachine | ListMachines) for one in commands)
        rate = self.faults / 4 if calls else self.faults / 400
        if self.chance.random() < rate:
            self.crash()  # before the commit
            return
        records = [one for one in commands if isinstance(one, RECORDS)]
        self.disk.apply(
            snapshot([one for one in records if not isinstance(one, RecordMachine | RecordPauses)], self.grid)
        )
        self.stored = self.grid
        for one in records:
            if isinstance(one, RecordMachine):
                if one.machine is None:
                    self.machines.pop(one.name, None)
                else:
                    self.machines[one.name] = one.machine
            elif isinstance(one, RecordPauses):
                self.paused = one.paused
        for command in commands:
            if self.ledger is None:
                return
            if calls and self.chance.random() < rate:
                self.crash()
                return
            self.do(command)

    def do(self, command: Command) -> None:
        match command:
            case CreateMachine(machine):
                self.call(lambda: self.create(machine), lambda answer, handle: MachineAnswered(
                    machine.name, CallKind.CREATE, machine.calls, answer, handle))  # fmt: skip
            case EndMachine(_, name, handle, number):
                self.call(lambda: self.end(name, handle), lambda answer, _: MachineAnswered(
                    name, CallKind.END, number, answer) if number else None)  # fmt: skip
            case ListMachines(provider, number):
                self.at(self.delay(), lambda: self.answer_list(provider, number))
            case Send(node, Launch() as launch):
                self.on(node, lambda vm: self.launch(vm, launch.allocation))
            case Send(node, Stop() as stop):
                self.on(node, lambda vm: self.finish(vm, stop.allocation, Cause.DRAINED))
            case Accepted():
                pass
            case _:
                pass

    # --- the cloud ----------------------------------------------------------------------------------------------------

    def delay(self) -> float:
        return self.chance.choice([0.05, 0.3, 2.0]) * self.chance.uniform(0.5, 2)

    def call(self, does: Callable[[], tuple[Answer, str]], said: Callable[[Answer, str], Event | None]) -> None:
        """A call of a provider: carried out or not, answered or not, once or twice, in time or late."""
        epoch, kind = self.disk.epoch, "fine"
        if self.chance.random() < self.faults:
            self.lost += 1
            kind = self.chance.choice(["never", "unanswered", "late", "twice", "slow"])

        def answer(what: Answer, handle: str) -> None:
            event = said(what, handle)
            if self.ledger is not None and self.disk.epoch == epoch and event is not None:
                self.tell(event)

        def carried_out() -> None:
            what, handle = does()
            if kind == "unanswered":
                self.at(20, lambda: answer(Answer.LOST, ""))
            elif kind == "late":
                self.at(20, lambda: answer(Answer.LOST, ""))
                self.at(self.chance.uniform(20, 200), lambda: answer(what, handle))
            else:
                for _ in range(2 if kind == "twice" else 1):
                    self.at(self.delay(), lambda: answer(what, handle))

        def silently() -> None:
            does()

        if kind == "never":
            self.at(20, lambda: answer(Answer.LOST, ""))
        elif kind == "slow":  # nobody waits for it any more when it is carried out
            self.at(20, lambda: answer(Answer.LOST, ""))
            self.at(self.chance.uniform(20, 100), silently)
        else:
            self.at(self.delay(), carried_out)

    def create(self, machine: Machine) -> tuple[Answer, str]:
        same = next((vm for vm in self.vms.values() if vm.machine.name == machine.name), None)
        if same is not None:
            return Answer.DONE, same.handle
        if self.chance.random() < self.faults:
            return self.chance.choice([Answer.CAPACITY, Answer.QUOTA, Answer.THROTTLED, Answer.BAD_TYPE]), ""
        assert machine.state is MachineState.CREATING and machine.name in self.machines, "recorded before the call"
        vm = VM(f"i-{len(self.vms)}", machine, self.now)
        self.vms[vm.handle] = vm
        if self.chance.random() >= self.faults / 2:
            self.at(self.chance.uniform(5, 60), lambda: self.boot(vm))
        self.check_budget()
        return Answer.DONE, vm.handle

    def end(self, name: str, handle: str) -> tuple[Answer, str]:
        for vm in self.vms.values():
            if vm.alive and (vm.handle == handle or vm.machine.name == name):
                self.at(self.delay(), lambda vm=vm: self.end_vm(vm))  # type: ignore[misc]
                return Answer.DONE, vm.handle
        return Answer.GONE, ""

    def answer_list(self, provider: str, number: int) -> None:
        epoch = self.disk.epoch
        found = tuple(
            Listed(vm.handle, vm.machine.name, "a", vm.machine.type, vm.machine.zone, vm.born, vm.machine.ends_by)
            for vm in self.alive()
        )
        failed = self.chance.random() < self.faults
        event = MachinesListed(provider, number, None if failed else found, "no answer" if failed else "")
        for _ in range(2 if self.chance.random() < self.faults else 1):
            self.at(self.delay(), lambda: self.tell(event) if self.disk.epoch == epoch else None)

    # --- agents -------------------------------------------------------------------------------------------------------

    def facts(self, vm: VM) -> NodeFacts:
        return facts(vm.machine.name, CORES, boot=vm.handle, trusts="everyone", labels={"pool": "a"})

    def boot(self, vm: VM) -> None:
        if vm.alive:
            self.connect(vm)

    def connect(self, vm: VM) -> None:
        if not vm.alive or vm.session:
            return
        if self.ledger is None or refusal(self.ledger.state, self.facts(vm)):
            if not vm.joined:
                self.at(5, lambda: self.connect(vm))
            return
        self.number += 1
        vm.joined, vm.session, vm.heard = True, f"s{self.number}", self.now
        done = Outcome(cause=Cause.EXITED, code=0)
        known = tuple(Known(name, one, done if one is State.ENDED else None) for name, one in vm.runs.items())
        for event in (
            NodeUp(self.facts(vm), vm.session),
            MessageReceived(vm.machine.name, Inventory(known=known)),
            MessageReceived(vm.machine.name, offer(self.facts(vm), counting=())),
        ):
            self.tell(event)
        self.beat(vm, vm.session)

    def beat(self, vm: VM, session: str) -> None:
        if vm.alive and vm.session == session and self.ledger is not None:
            vm.heard = self.now
            self.tell(HeartbeatReceived(vm.machine.name, Sample(at=self.grid)))
            self.number += 1
            self.tell(MessageReceived(vm.machine.name, offer(self.facts(vm), number=self.number)))
            self.at(5, lambda: self.beat(vm, session))

    def on(self, node: str, do: Callable[[VM], None]) -> None:
        vm = next((vm for vm in self.alive() if vm.machine.name == node and vm.session), None)
        if vm is not None:
            self.at(0.05, lambda: do(vm) if vm.alive else None)

    def launch(self, vm: VM, allocation: str) -> None:
        if allocation not in vm.runs:
            vm.runs[allocation] = State.RUNNING
            if vm.session:
                self.tell(MessageReceived(vm.machine.name, Started(allocation=allocation, pid=1)))
            seconds = self.wanted.get(allocation.rpartition(".")[0], 10.0)
            self.at(seconds, lambda: self.finish(vm, allocation))

    def finish(self, vm: VM, allocation: str, cause: Cause = Cause.EXITED) -> None:
        if not vm.alive or allocation not in vm.runs:
            return
        if not vm.session or self.ledger is None:
            vm.runs[allocation] = State.ENDED
            self.at(5, lambda: self.finish(vm, allocation, cause))
            return
        del vm.runs[allocation]
        if cause is Cause.EXITED:
            self.ended.add(allocation.rpartition(".")[0])
        self.tell(MessageReceived(vm.machine.name, Exited(allocation=allocation, outcome=Outcome(cause=cause, code=0))))

    # --- users --------------------------------------------------------------------------------------------------------

    def ask(self, name: str, seconds: float) -> None:
        self.wanted[name] = seconds
        self.submit(name)

    def submit(self, name: str) -> None:
        """Submit with a key, again after each restart, until it is on disk."""
        if self.ledger is not None and name not in self.disk.rows and name not in self.ledger.state.jobs:
            self.tell(JobsSubmitted(1, (job(name, Request(Resources(2000, GIB)), self.grid),)))
