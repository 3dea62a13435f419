"""No machine is forgotten, and none is made twice: the real ledger with its records, and a provider in its real
process, which is killed in the midst of calls; answers are lost, late and given twice; the coordinator is killed, too.
What is there in the end is asked of who runs the machines, not of the provider.

The ledger's time goes on as it asks for, so that a run takes as long as its calls.
"""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distributed_grid.coordinator.core.commands import Command, Event, NodeUp
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineAnswered,
    MachinesListed,
    RecordMachine,
    ScalingConfigured,
)
from distributed_grid.coordinator.core.scaling.state import Answer, CallKind, Listed
from distributed_grid.coordinator.providers.base import ProviderRefused, WorkerSpec
from distributed_grid.coordinator.providers.client import ProviderChild
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.pools import Pool, Scaling, ScalingMode, Shape
from tests.coordinator.core.scene import facts

WANTED = 2
FAULTS = 0.4
FAULTS_OF_CALLS = ("again", "kill", "lost", "late", "twice")
ROUNDS = 400
"""Deadlines after which everything has come to rest, or never does."""
QUIET = 150
"""Deadlines with faults."""


class Leaks:
    """A ledger with a pool of this many machines, and the provider's process."""

    def __init__(self, provider: str, settings: dict[str, Any], seed: int, longest: float = 0.4) -> None:
        self.provider, self.settings, self.longest = provider, settings, longest
        self.chance, self.faults, self.grid = random.Random(seed), FAULTS, f"g{seed}"
        self.first = FAULTS_OF_CALLS[seed % len(FAULTS_OF_CALLS)]
        """What happens to the first creation: each of them in so many seeds, whatever else does."""
        self.now, self.epoch = time.time(), 0
        self.records: dict[str, Machine] = {}
        self.late: list[tuple[float, int, Event]] = []
        self.child = self._begun()
        self.crashes = self.lost = 0
        self.wanted = WANTED
        self.ledger = self._ledger()

    def scaling(self) -> Scaling:
        shape = Shape(resources=Resources(1000, 64 << 20))
        pool = Pool(
            name="a", provider=self.provider, shapes=(shape,), min=self.wanted, max=4, idle=100, boot=10,
            join_within=50_000, life=100_000, queue_within=50_000,
        )  # fmt: skip
        return Scaling(mode=ScalingMode.ACT, pools=(pool,) if self.wanted else (), look=20, orphan_after=40)

    def _begun(self) -> ProviderChild:
        return ProviderChild(self.provider, self.grid, self.settings)

    def _ledger(self) -> Ledger:
        """A coordinator that begins, on what is on disk."""
        self.epoch += 1
        ledger = Ledger(self.epoch, policy=Policy(scaling=self.scaling()))
        self.out: list[Command] = ledger.restore([], [], [], self.now, created=[*self.records.values()])
        return ledger

    def tell(self, event: Event) -> None:
        self.out += self.ledger.handle(event, self.now)

    async def run(self, rounds: int, rest: Callable[[], bool]) -> None:
        """Run until `rest` is true, for `rounds` deadlines at most."""
        for _ in range(rounds):
            self.out += self.ledger.settle(self.now)
            while self.out:
                await self._perform()
            self._join()
            self.ledger.check()
            if rest():
                return
            due = self.ledger.next_deadline()
            next_ones = [at for at, *_ in self.late] + ([] if due is None else [due])
            self.now = max(self.now + 0.01, min(next_ones, default=0.0))
            for one in [one for one in self.late if one[0] <= self.now]:
                self.late.remove(one)
                if one[1] == self.epoch:
                    self.tell(one[2])

    def _join(self) -> None:
        """Agents of machines that run join at once."""
        for one in [*self.ledger.state.scaling.machines.values()]:
            if one.state is MachineState.BOOTING and not one.queued:
                self.tell(NodeUp(facts(one.name, machine=one.handle), f"s{self.epoch}"))

    async def _perform(self) -> None:
        """Record, then ask; the coordinator may be killed before, between and after."""
        commands, self.out = self.out, []
        calls = [one for one in commands if isinstance(one, CreateMachine | EndMachine | ListMachines)]
        if calls and self.chance.random() < self.faults / 4:
            return self._crash()
        for one in commands:
            if isinstance(one, RecordMachine):
                if one.machine is None:
                    self.records.pop(one.name, None)
                else:
                    self.records[one.name] = one.machine
        for call in calls:
            if self.chance.random() < self.faults / 8:
                return self._crash()
            await self._call(call)

    def _crash(self) -> None:
        self.crashes += 1
        self.late = []
        self.ledger = self._ledger()

    async def _call(self, call: CreateMachine | EndMachine | ListMachines) -> None:
        """Call the provider; its process may be killed before, during or after the call, and its answer may be lost.
        The call may be repeated at once, as by a coordinator that has been restarted."""
        fault = self.chance.choice(FAULTS_OF_CALLS) if self.chance.random() < self.faults else ""
        if isinstance(call, CreateMachine) and self.first:
            fault, self.first = self.first, ""
        event = await self._asked(call, self.chance.uniform(0.0, self.longest) if fault in ("kill", "again") else None)
        if fault == "again":
            event = await self._asked(call, None)
        if event is None:
            return
        if fault in ("lost", "late"):
            self.lost += 1
            self.tell(_unanswered(call) or event)
            if fault == "late":
                self.late.append((self.now + self.chance.uniform(1, 100), self.epoch, event))
            return
        for _ in range(2 if fault == "twice" else 1):
            self.tell(event)

    async def _asked(self, call: CreateMachine | EndMachine | ListMachines, kill: float | None) -> Event | None:
        if kill is not None:
            child, self.child = self.child, self._begun()
            asking = asyncio.create_task(_ask(child, call))
            await asyncio.sleep(kill)
            if (process := child._process) is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            event = await asking
            await child.close()
            return event
        return await _ask(self.child, call)


async def _ask(child: ProviderChild, call: CreateMachine | EndMachine | ListMachines) -> Event | None:
    try:
        match call:
            case CreateMachine(machine):
                spec = WorkerSpec(
                    name=machine.name, pool=machine.pool, born=machine.born, ends_by=machine.ends_by,
                    resources=machine.resources, url="ws://127.0.0.1:9", join_within=machine.join_within,
                )  # fmt: skip
                handle = await child.ask("create", str, spec=spec)
                return MachineAnswered(machine.name, CallKind.CREATE, machine.calls, Answer.DONE, handle)
            case EndMachine(_, name, handle, number):
                there = await child.ask("end", bool, name=name, handle=handle)
                answer = Answer.DONE if there else Answer.GONE
                return MachineAnswered(name, CallKind.END, number, answer) if number else None
            case ListMachines(provider, number):
                return MachinesListed(provider, number, tuple(await child.ask("list", list[Listed])))
    except ProviderRefused as error:
        if isinstance(call, CreateMachine):
            return MachineAnswered(call.machine.name, CallKind.CREATE, call.machine.calls, error.answer, "", error.text)
        return _unanswered(call)


def _unanswered(call: CreateMachine | EndMachine | ListMachines) -> Event | None:
    match call:
        case CreateMachine(machine):
            return MachineAnswered(machine.name, CallKind.CREATE, machine.calls, Answer.LOST)
        case EndMachine(_, name, _, number):
            return MachineAnswered(name, CallKind.END, number, Answer.LOST) if number else None
        case ListMachines(provider, number):
            return MachinesListed(provider, number, None, "no answer")


async def leak_free(
    provider: str,
    settings: dict[str, Any],
    there: Callable[[], list[str]],
    seed: int,
    made: Callable[[], list[str]] = list,
    longest: float = 0.4,
) -> Leaks:
    """Machines are wanted, then none any more, with faults and then without; `there` are those that are there. What is
    there is exactly what is recorded, each once, as many as are wanted; in the end nothing. `made`: the names of all
    that were ever made, of which no two may be equal, also if the ledger has ended one of them. `longest`: after how
    many seconds of a call its process is killed at the latest."""
    world = Leaks(provider, settings, seed, longest)

    def live() -> list[str]:
        return sorted(one.name for one in world.ledger.state.scaling.machines.values() if one.live)

    def agrees() -> bool:
        time.sleep(0.02)
        known, idle = world.ledger.state.scaling, not world.late
        settled = all(one.unrecorded == {} for one in known.providers.values())
        return idle and settled and live() == there() and len(live()) == world.wanted

    try:
        for wanted in (WANTED, 0):
            world.wanted, world.faults = wanted, FAULTS
            world.tell(ScalingConfigured(world.scaling()))
            await world.run(QUIET // 5, lambda: False)
            world.faults = 0.0
            await world.run(ROUNDS, agrees)
            assert live() == there() and len(there()) == wanted, (
                f"seed {seed}: there are {there()}, known are {live()}, wanted {wanted}; {world.crashes} crashes, "
                f"{world.lost} lost answers\n{world.ledger.state.scaling}"
            )
        twice = sorted(name for name, count in Counter(made()).items() if count > 1)
        assert not twice, f"seed {seed}: made more than once: {twice}; {world.crashes} crashes, {world.lost} lost"
    finally:
        await world.child.close()
    return world
