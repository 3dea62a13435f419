"""What goes wrong in a campaign, and when: drawn from the seed, for each kind of fault from dice of its own."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass

from tests.chaos.world import World, uptime

TO_REPLACE = 3.0
"""Seconds that an agent is left alone whose supervisor was killed. Until it has started another one, nobody ends leased
jobs there: that an agent and its supervisor are gone together for longer than a lease is beyond what is promised."""


@dataclass
class Fault:
    """Something that went wrong, from one time to another (0: it still does)."""

    kind: str
    target: str
    begin: float
    end: float = 0.0


class Faults:
    """All faults of a campaign. One part has one fault at a time; different parts may have theirs together.

    `pace`: how much faster than usual the faults come.
    """

    def __init__(self, world: World, seed: int, pace: float) -> None:
        self.log: list[Fault] = []
        self._world = world
        self._seed = seed
        self._pace = pace
        self._parts = {name: asyncio.Lock() for name in [*world.services, *(f"link of {node}" for node in world.nodes)]}

    async def run(self) -> None:
        """Run until cancelled; then all parts run again and all links are whole."""
        kinds = (
            self._coordinator_killed, self._agents_killed, self._killed_together, self._supervisors_killed,
            self._stopped, self._supervisors_stopped, self._links_cut,
        )  # fmt: skip
        try:
            await asyncio.gather(*(self._kind(kind) for kind in kinds))
        finally:
            self._mend()

    async def _kind(self, kind) -> None:  # type: ignore[no-untyped-def]
        await kind(random.Random(f"{self._seed} {kind.__name__}"))

    async def _quiet(self, dice: random.Random, least: float, most: float) -> None:
        await asyncio.sleep(dice.uniform(least, most) / self._pace)

    def counts(self) -> Counter[str]:
        """Return how often each kind of fault has happened."""
        return Counter(f"{fault.kind} {fault.target.rstrip('0123456789')}" for fault in self.log)

    # --- the kinds ----------------------------------------------------------------------------------------------------

    async def _coordinator_killed(self, dice: random.Random) -> None:
        """Kill the coordinator in bursts: also while it starts, and while agents return to it."""
        while True:
            await self._quiet(dice, 3, 30)
            for _ in range(dice.randint(1, 10)):
                await self._kill("coordinator", dice.choice([0.0, dice.uniform(0, 3)]))
                await self._quiet(dice, 0, 3)

    async def _agents_killed(self, dice: random.Random) -> None:
        while True:
            await self._quiet(dice, 2, 12)
            node = dice.choice(self._world.nodes)
            for _ in range(dice.choice([1, 1, 2])):
                short, long = dice.uniform(0, 3), dice.uniform(10, 30)
                await self._kill(node, dice.choices([0.0, short, long], [5, 4, 1])[0])
                await self._quiet(dice, 0, 2)

    async def _killed_together(self, dice: random.Random) -> None:
        while True:
            await self._quiet(dice, 20, 60)
            node = dice.choice(self._world.nodes)
            await asyncio.gather(
                self._kill("coordinator", dice.uniform(0, 2)),
                self._kill(node, dice.uniform(0, 2), supervisor=dice.random() < 0.3),
            )

    async def _supervisors_killed(self, dice: random.Random) -> None:
        while True:
            await self._quiet(dice, 20, 70)
            node = dice.choice(self._world.nodes)
            async with self._parts[node]:
                self._kill_supervisor(node)
                await asyncio.sleep(TO_REPLACE)

    async def _stopped(self, dice: random.Random) -> None:
        """SIGSTOP, and SIGCONT after some seconds."""
        while True:
            await self._quiet(dice, 10, 30)
            name = dice.choice([*self._world.services, "coordinator"])
            seconds = dice.choice([dice.uniform(0.2, 3), dice.uniform(3, 10), dice.uniform(10, 25)])
            async with self._parts[name]:
                fault = self._begin("stopped", name)
                self._world.services[name].signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    self._world.services[name].signal(signal.SIGCONT)
                    fault.end = uptime()

    async def _supervisors_stopped(self, dice: random.Random) -> None:
        while True:
            await self._quiet(dice, 20, 60)
            node = dice.choice(self._world.nodes)
            pid = self._world.supervisor(node)
            if not pid:
                continue
            fault = self._begin("stopped", f"supervisor of {node}")
            _send(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(dice.uniform(0.5, 8))
            finally:
                if self._world.supervisor(node) == pid:
                    _send(pid, signal.SIGCONT)
                fault.end = uptime()

    async def _links_cut(self, dice: random.Random) -> None:
        await asyncio.gather(*(self._link_cut(node, random.Random(dice.random())) for node in self._world.nodes))

    async def _link_cut(self, node: str, dice: random.Random) -> None:
        while True:
            await self._quiet(dice, 10, 50)
            way = dice.choice(["both", "to", "from"])
            async with self._parts[f"link of {node}"]:
                fault = self._begin({"both": "cut", "to": "cut to", "from": "cut from"}[way], node)
                self._world.cut(node, way)
                try:
                    await asyncio.sleep(dice.choice([dice.uniform(0.5, 5), dice.uniform(5, 15), dice.uniform(16, 35)]))
                finally:
                    self._world.mend(node, way)
                    fault.end = uptime()

    # --- what they do -------------------------------------------------------------------------------------------------

    def _begin(self, kind: str, target: str) -> Fault:
        fault = Fault(kind, target, uptime())
        self.log.append(fault)
        return fault

    async def _kill(self, name: str, down: float, supervisor: bool = False) -> None:
        """kill -9, and a start after `down` seconds."""
        async with self._parts[name]:
            fault = self._begin("killed", name)
            self._world.services[name].signal(signal.SIGKILL)
            if supervisor:
                self._kill_supervisor(name)
            await asyncio.sleep(down)
            self._world.start(name)
            fault.end = uptime()
            if supervisor:
                await asyncio.sleep(TO_REPLACE)

    def _kill_supervisor(self, node: str) -> None:
        pid = self._world.supervisor(node)
        if pid:
            fault = self._begin("killed", f"supervisor of {node}")
            _send(pid, signal.SIGKILL)
            fault.end = uptime()

    def _mend(self) -> None:
        """Start what is down. (What was stopped or cut has been mended where that was done.)"""
        for name, service in self._world.services.items():
            if not service.runs:
                self._world.start(name)
        for fault in self.log:
            fault.end = fault.end or uptime()


def _send(pid: int, number: int) -> None:
    """Signal a supervisor, which may leave by itself at any time."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
