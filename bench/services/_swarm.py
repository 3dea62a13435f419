"""Simulated agents in one other process, which connect by the real agent's own code (agent.session.dial, pings too) and
behave as one with default settings does: hello, inventory, an offer, a heartbeat every two seconds, the offer again
every minute. And a bare server for them, which welcomes them and drops what they say: the floor of a connection.
"""

import asyncio
import gc
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from cryptography.hazmat.primitives.serialization import Encoding
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed

from bench._common import ROOT, cpu_seconds, wait_for
from distributed_grid.agent.session import CannotConnect, Disconnected, Session, back_off, dial
from distributed_grid.coordinator.access.ca import DAY, Pki
from distributed_grid.coordinator.access.identities import PKI
from distributed_grid.coordinator.access.joining import found
from distributed_grid.identity.credentials import AUTHORITY, CERTIFICATE, KEY
from distributed_grid.identity.keys import key_pem, new_key, request_for
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import Heartbeat, Hello, Inventory, Offer, Welcome
from distributed_grid.protocol.nodes import GpuOffer, GpuSample, NodeFacts, Sample
from distributed_grid.protocol.resources import Resources

BEAT, OFFER_EVERY = 2.0, 60.0
"""Seconds between heartbeats, and between repetitions of an unchanged offer: the defaults."""
AT_ONCE = 16
"""Agents that connect at the same time, where they do not come all together: half of an address's places."""
JOINED, LOST, BEATS, OFFERS = range(4)
"""Places of the counts that the swarm's process shares."""


class Plan(NamedTuple):
    """The number of agents, and how they connect. `identities`: the directory of their certificates, for TLS.
    `together`: the seconds over which all connect at once, without waiting for each other (0: they come in turn).
    `again`: one that is disconnected reconnects, as a real one does; else it stays away, and is counted."""

    url: str
    agents: int
    identities: str = ""
    together: float = 0.0
    again: bool = False


# --- one agent --------------------------------------------------------------------------------------------------------


def sample(at: float) -> Sample:
    """A node of 16 cores and two GPUs."""
    gpus = tuple(GpuSample(f"GPU-{n}", 3.0, 1 << 30, 80 << 30, 41.0) for n in range(2))
    return Sample(
        at=at, cores={core: 3 for core in range(16)}, foreign_cpu=0.5, memory_total=64 << 30, memory_foreign=8 << 30,
        load=0.5, disk_total=1 << 40, disk_free=1 << 39, gpus=gpus,
    )  # fmt: skip


def hello(number: int) -> Hello:
    """Return the first message of the agent with this number."""
    facts = NodeFacts(
        name=f"sim{number}", hostname=f"sim{number}", boot_id=f"b{number}", incarnation=1, cores=tuple(range(16)),
        memory=64 << 30, lendable=Resources(16_000, 64 << 30, 2000), walls="user",
    )  # fmt: skip
    return Hello(protocol=PROTOCOL, software="bench", role="agent", name=facts.name, facts=facts)


def offer(number: int) -> Offer:
    """Return its offer with this number."""
    gpus = tuple(GpuOffer(f"GPU-{n}", n, "H200", 80 << 30, 79 << 30) for n in range(2))
    return Offer(number=number, expires_in=300.0, cores=tuple(range(15)), memory=32 << 30, gpus=gpus)


async def speak(session: Session, number: int, counts: Any) -> None:
    """Send heartbeats and offers for ever, at individual moments."""
    at = time.monotonic() + BEAT * (number % 100) / 100
    again = time.monotonic() + OFFER_EVERY * random.random()
    offers = 1
    while True:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        at += BEAT
        session.send(Heartbeat(sample=sample(time.monotonic())))
        counts[BEATS] += 1
        if time.monotonic() >= again:
            again += OFFER_EVERY
            offers += 1
            session.send(offer(offers))
            counts[OFFERS] += 1


async def connection(plan: Plan, number: int, place: asyncio.Semaphore, counts: Any) -> None:
    """Run one connection of an agent, from its hello to its end. Raises CannotConnect, ConnectionClosed,
    Disconnected."""
    folder = Path(plan.identities, str(number)) if plan.identities else None
    async with place:
        session = await dial(plan.url, hello(number), identity=folder)
    counts[JOINED] += 1
    session.send(Inventory(known=()), offer(1))
    speaking = asyncio.create_task(speak(session, number, counts))
    try:
        while True:
            await session.receive()
    finally:
        speaking.cancel()
        counts[JOINED] -= 1
        counts[LOST] += 1


async def agent(plan: Plan, number: int, place: asyncio.Semaphore, counts: Any) -> None:
    """Run one agent. If it could not connect it retries by the real agent's rule, and so it does when it was
    disconnected, if it is to come back."""
    await asyncio.sleep(plan.together * number / plan.agents)
    tries = 0
    while True:
        try:
            await connection(plan, number, place, counts)
        except Disconnected:
            if not plan.again:
                return
            tries = 1
        except (CannotConnect, ConnectionClosed) as error:
            if isinstance(error, CannotConnect) and error.final:
                raise
            tries += 1
        await asyncio.sleep(back_off(tries))


async def live(plan: Plan, counts: Any) -> None:
    """Run all agents."""
    place = asyncio.Semaphore(plan.agents if plan.together else AT_ONCE)
    await asyncio.gather(*(agent(plan, number, place, counts) for number in range(plan.agents)))


def process(plan: Plan, counts: Any) -> None:
    """The swarm's own process."""
    gc.disable()  # a collection goes through all sessions, and finds nothing: it would be the measure of the swarm
    uvloop.run(live(plan, counts))


# --- all of them ------------------------------------------------------------------------------------------------------


class Swarm:
    """The running swarm, seen from outside."""

    def __init__(self, plan: Plan, crowd: BaseProcess, counts: Any) -> None:
        self.plan = plan
        self._crowd = crowd
        self._counts = counts

    @property
    def joined(self) -> int:
        """Agents that are welcome and connected now."""
        return int(self._counts[JOINED])

    @property
    def lost(self) -> int:
        """Connections that have ended."""
        return int(self._counts[LOST])

    @property
    def beats(self) -> int:
        return int(self._counts[BEATS])

    @property
    def offers(self) -> int:
        """Offers that were repeated."""
        return int(self._counts[OFFERS])

    def cpu(self) -> float:
        """CPU seconds of its process so far."""
        return cpu_seconds(self._crowd.pid or 0)

    def wait(self, limit: float) -> float:
        """Seconds until all are there. SystemExit if they are not within the limit."""
        began = time.monotonic()
        while self.joined < self.plan.agents:
            if not self._crowd.is_alive():
                raise SystemExit("the process of the simulated agents has ended; see above")
            if time.monotonic() - began > limit:
                raise SystemExit(f"only {self.joined} of {self.plan.agents} agents joined within {limit:g} s")
            time.sleep(0.05)
        return time.monotonic() - began


@contextmanager
def swarm(plan: Plan) -> Iterator[Swarm]:
    """Start them; they are ended afterwards."""
    context = multiprocessing.get_context("spawn")
    counts = context.Array("q", 4, lock=False)
    crowd = context.Process(target=process, args=(plan, counts))
    crowd.start()
    try:
        yield Swarm(plan, crowd, counts)
    finally:
        crowd.kill()
        crowd.join()


# --- their identities -------------------------------------------------------------------------------------------------


IDENTITIES = "identities"


def identified(count: int) -> Callable[[Path], None]:
    """Return a function for `_common.grid` that makes a grid with an authority, and a certificate for each agent, all
    with one key, in the directory IDENTITIES beside the coordinator's."""

    def prepare(state: Path) -> None:
        grid = found(state, (), "bench", state.parent / "operator", "wss://localhost:7433").grid
        pki = Pki(state / PKI, grid)
        key = new_key()
        request, secret, now = request_for(key), key_pem(key), datetime.now(UTC)
        for number in range(count):
            own = state.parent / IDENTITIES / str(number)
            own.mkdir(mode=0o700, parents=True)
            signed = pki.authority.sign(request, Identity(grid, Role.AGENT, f"sim{number}"), now, DAY)
            fd = os.open(own / KEY, os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(secret + signed.public_bytes(Encoding.PEM))
            for name in (AUTHORITY, CERTIFICATE):  # of the second nothing is read
                os.link(state / PKI / AUTHORITY, own / name)
        pki.close()

    return prepare


# --- the bare server --------------------------------------------------------------------------------------------------


async def drop(wire: Any) -> None:
    """Welcome whoever comes, and drop what is said then."""
    link = Link.answer(0.0)
    with suppress(ConnectionClosed):
        first = link.receive(await wire.recv(), 0.0)[0]
        link.accept(Welcome(protocol=PROTOCOL, software="bench", epoch=1, grid="bench", session=first.name))
        await wire.send(link.data_to_send()[0])
        async for _ in wire:
            pass


async def serve() -> None:
    """Print the port, and serve for ever."""
    async with listen(drop, "127.0.0.1", 0, compression=None, ping_interval=None, max_queue=4) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Event().wait()


@contextmanager
def bare_server() -> Iterator[tuple[str, int]]:
    """A server of the same library and loop that does nothing with what it reads: its URL and pid."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.services._swarm"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout
        port = wait_for(process.stdout.readline, "the start of the bare server").strip()
        yield f"ws://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    uvloop.run(serve())
