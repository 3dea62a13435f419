"""The other ends of a coordinator under test: a client, and an agent that plays its part without running anything."""

import asyncio
import contextlib
import itertools
import secrets
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.access.identities import PKI, has_authority
from distributed_grid.coordinator.api.blobs.cache import Blobs
from distributed_grid.coordinator.api.server import Server
from distributed_grid.coordinator.api.settings import Configured
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.driver import Clock, Driver
from distributed_grid.coordinator.ray.boosts import BoostService
from distributed_grid.coordinator.ray.bridge_client import Bridge
from distributed_grid.coordinator.store.store import Store
from distributed_grid.identity.credentials import client_context
from distributed_grid.identity.keys import key_pem, new_key, request_for, save_identity
from distributed_grid.protocol.boosts import RayAuth
from distributed_grid.protocol.codec import BULK_BYTES
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.jobs import Cause, JobSpec, JobView, Outcome, Request, State
from distributed_grid.protocol.link import Link
from distributed_grid.protocol.messages import (
    Ack,
    Exited,
    Hello,
    Inventory,
    JobUpdate,
    Launch,
    OpenData,
    Output,
    Refused,
    Started,
    Stop,
    Submission,
    Submit,
    Submitted,
    WantOutput,
    Welcome,
)
from distributed_grid.protocol.nodes import Known, Layer, Lending, NodeFacts, Offer
from distributed_grid.protocol.resources import GIB, Resources

PATIENCE = 60.0
PULSE = 2.0
_here: dict[str, "Coordinator"] = {}
"""The coordinators that run in this process, by their addresses."""
_numbers = itertools.count(1_000_000)  # tests choose smaller ones by hand


PATIENT = Policy(suspect_after=600.0, disconnected_after=1200.0)
"""The agents that are played here send no heartbeats, and a busy machine may take longer than those last for a test."""


class Coordinator:
    """A coordinator in this process, on a free port."""

    def __init__(self, state_dir: Path, founded: bool = False, ray: Bridge | None = None, lends: bool = True) -> None:
        self.state_dir = state_dir
        self.store = Store(state_dir / "grid.db")
        self.pki = Pki.create(state_dir / PKI, self.store.grid, ["localhost"]) if founded else None
        if self.pki is None and has_authority(state_dir / PKI):
            self.pki = Pki(state_dir / PKI, self.store.grid)
        self.clock = Clock(self.store.clock)
        living = self.store.load()
        self.ledger = Ledger(self.store.epoch, policy=PATIENT)
        restored = self.ledger.restore(
            living.jobs,
            living.allocations,
            living.nodes,
            self.clock(),
            self.store.restored,
            living.orders,
            living.groups,
        )
        self.driver = Driver(self.ledger, self.store, self.clock)
        self.audit = RequestLog(state_dir / "audit.log")
        bundles = lambda: (job.spec.bundle for job in self.ledger.state.jobs.values() if job.spec.bundle)  # noqa: E731
        self.blobs = Blobs(state_dir / "blobs", bundles)
        self.boosts = BoostService(self.ledger.state, ray, RayAuth.DISABLED, self.driver.put)
        self.configured = Configured(Layer(Lending(enabled=lends), {"enabled": "grid: grid.yaml:2"}))
        """What its configuration says, also when it is read again."""
        self.server = Server(
            self.ledger.state,
            self.store,
            self.driver,
            self.blobs,
            self.audit,
            self.clock,
            self.pki,
            boosts=self.boosts,
            configured=self.configured,
            read=self._read,
        )
        self.driver.begin(self.server.perform, restored)
        self.url = ""

    async def _read(self) -> Configured:
        return self.configured

    async def stop(self) -> None:
        await self.boosts.close()
        await self.server.close()
        await self.driver.close()
        self.audit.close()
        if self.pki is not None:
            self.pki.close()
        self.store.close()

    async def stored(self) -> None:
        """Wait until all that happened is on disk: what ended before that is shown as it was."""
        async with asyncio.timeout(PATIENCE):
            while any(self.driver.being_stored()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def member(self, role: Role, name: str) -> ssl.SSLContext:
        """Return the TLS context of a member with this role and name in the founded grid."""
        assert self.pki is not None
        folder, key = self.state_dir / f"{role.value}-{name}", new_key()
        signed = self.pki.certify(request_for(key).decode(), role, name)
        save_identity(folder, key_pem(key), signed, self.pki.authority.pem.decode())
        return client_context(folder)


@asynccontextmanager
async def coordinator(
    state_dir: Path, founded: bool = False, ray: Bridge | None = None, lends: bool = True
) -> AsyncIterator[Coordinator]:
    made = Coordinator(state_dir, founded, ray, lends)
    port = await made.server.listen("127.0.0.1", 0)
    made.boosts.stir()
    made.url = f"wss://localhost:{port}" if made.pki is not None else f"ws://127.0.0.1:{port}"
    _here[made.url] = made
    try:
        yield made
    finally:
        del _here[made.url]
        await made.stop()


class End:
    """A dialled connection. What comes is in `seen`; `until` waits for something in it."""

    def __init__(self, socket: ClientConnection, hello: Hello) -> None:
        self.socket = socket
        self.link = Link.dial(hello, 0.0)
        self.seen: list[Any] = []
        self.closed = False
        self.url = ""
        self.ways: dict[str, Any] | None = None
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def say(self, *messages: Any) -> None:
        self.link.send(*messages)
        for frame in self.link.data_to_send():
            await self.socket.send(frame)

    def read_on(self) -> None:
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for frame in self.socket:
                messages = self.link.receive(frame, 0.0)
                self.seen += messages
                for message in messages:
                    await self.react(message)
                self._news.set()
        self.closed = True
        self._news.set()

    async def react(self, message: Any) -> None:
        """Handle a message, for ends that play a part."""

    async def until(self, wanted: Callable[[Any], bool] | type, seconds: float = PATIENCE) -> Any:
        """The first message, seen or to come, that fits."""
        fits: Callable[[Any], bool] = (
            (lambda message: isinstance(message, wanted)) if isinstance(wanted, type) else wanted
        )
        async with asyncio.timeout(seconds):
            while True:
                for message in self.seen:
                    if fits(message):
                        return message
                if self.closed:
                    raise AssertionError(f"closed without it; seen: {self.seen}")
                self._news.clear()
                await self._news.wait()

    async def gone(self, seconds: float = PATIENCE) -> None:
        async with asyncio.timeout(seconds):
            while not self.closed:
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        await self.socket.close()
        if self._reader:
            await self._reader


EndT = TypeVar("EndT", bound=End)


async def _dial(end: type[EndT], url: str, hello: Hello, ways: dict[str, Any] | None = None, **parts: Any) -> EndT:
    socket = await connect(url, compression=None, max_size=BULK_BYTES + 1024, ping_interval=None, **(ways or {}))
    made = end(socket, hello)
    made.url, made.ways = url, ways
    for name, part in parts.items():
        setattr(made, name, part)
    made.read_on()
    await made.say()
    await made.until(lambda message: isinstance(message, Welcome | Refused))
    return made


def answer_to(number: int) -> Callable[[Any], bool]:
    """Whether a message answers this question."""
    return lambda seen: bool(getattr(seen, "id", None) == number)


class ClientEnd(End):
    async def ask(self, message: Any) -> Any:
        """Send a request and return the answer: the message with the same id that is no update."""
        await self.say(message)
        return await self.until(lambda seen: getattr(seen, "id", None) == message.id)

    async def submit(self, *jobs: Submission, watch: bool = True) -> tuple[str, ...]:
        answer: Submitted = await self.ask(Submit(next(_numbers), jobs, watch))
        return answer.jobs

    async def ended(self, job: str) -> JobView:
        update: JobUpdate = await self.until(
            lambda seen: isinstance(seen, JobUpdate) and seen.job.id == job and seen.job.state is State.ENDED
        )
        return update.job


async def client(url: str, user: str = "ann", **ways: Any) -> ClientEnd:
    """`ways`: how to get there, as websockets' `connect` takes it (ssl, sock)."""
    return await _dial(ClientEnd, url, Hello(protocol=(1, 0), software="test", role="client", name=user), ways)


class AgentEnd(End):
    """Takes what it is given. `runs` answers a launch with what to say; by default the job ends at once with code 0."""

    facts: NodeFacts
    launched: list[Launch]
    held: dict[str, Known]
    data: "DataEnd | None" = None
    output: bytes = b""
    runs: Callable[[Launch], list[Any]]
    pulse: asyncio.Task[None] | None = None

    async def live(self) -> None:
        """Send as often as a real agent does, however long a test takes: empty frames."""
        with contextlib.suppress(ConnectionClosed):
            while not self.closed:
                await asyncio.sleep(PULSE)
                await self.socket.send(self.link._frame([]))

    async def is_known(self) -> None:
        """Wait until the coordinator has what was said so far, if it runs here: what others ask it then is answered
        with that."""
        grid, welcome = _here.get(self.url), self.link.welcome
        async with asyncio.timeout(PATIENCE):
            while grid is not None and welcome is not None and not self.closed:
                known = grid.ledger.state.nodes.get(self.facts.name)
                if known is not None and known.session == welcome.session and known.offer is not None:
                    return
                await asyncio.sleep(0.001)

    async def react(self, message: Any) -> None:
        match message:
            case Launch():
                self.launched.append(message)
                self.held[message.allocation] = Known(message.allocation, State.RUNNING)
                await self.say(*self.runs(message))
            case Stop():
                outcome = Outcome(Cause.CANCELLED, signal=15, text="cancelled")
                await self.say(Exited(message.allocation, outcome, returned=True))
            case Ack():
                for allocation in message.allocations:
                    self.held.pop(allocation, None)
            case OpenData():
                assert (welcome := self.link.welcome) is not None
                hello = Hello(
                    protocol=(1, 0), software="test", role="agent-data", name=self.facts.name, session=welcome.session
                )
                self.data = await _dial(DataEnd, self.url, hello, self.ways, output=self.output)

    async def close(self) -> None:
        if self.pulse:
            self.pulse.cancel()
        if self.data:
            await self.data.close()
        await super().close()


class DataEnd(End):
    output = b""

    async def react(self, message: Any) -> None:
        if isinstance(message, WantOutput):
            data = self.output[message.offset : message.offset + message.size]
            end = message.offset + len(data) >= len(self.output)
            await self.say(Output(message.id, message.offset, data, end=end))


def at_once(launch: Launch) -> list[Any]:
    return [Started(launch.allocation, 1), Exited(launch.allocation, Outcome(Cause.EXITED), returned=True)]


def runs_on(launch: Launch) -> list[Any]:
    return [Started(launch.allocation, 1)]


def node(name: str = "n1", cores: int = 4, incarnation: int = 1, **more: Any) -> NodeFacts:
    facts: dict[str, Any] = {"hostname": "host", "boot_id": "boot", "memory": 8 * GIB, "walls": "user"} | more
    return NodeFacts(
        name=name,
        incarnation=incarnation,
        cores=tuple(range(cores)),
        lendable=Resources(cores * 1000, 8 * GIB),
        **facts,
    )


async def agent(
    url: str,
    facts: NodeFacts | None = None,
    runs: Callable[[Launch], list[Any]] = at_once,
    held: dict[str, Known] | None = None,
    output: bytes = b"",
    **ways: Any,
) -> AgentEnd:
    facts = facts or node()
    hello = Hello(protocol=(1, 0), software="test", role="agent", name=facts.name, facts=facts)
    held = {} if held is None else held
    parts = {"facts": facts, "launched": [], "held": held, "runs": runs, "output": output}
    made: AgentEnd = await _dial(AgentEnd, url, hello, ways, **parts)
    if not made.closed and not isinstance(made.seen[0], Refused):
        await made.say(
            Inventory(tuple(held.values())),
            Offer(
                number=1,
                expires_in=300,
                cores=() if held else facts.cores,  # what is held is not spare
                memory=facts.memory,
                counting=tuple(held),
            ),
        )
        made.pulse = asyncio.create_task(made.live())
        await made.is_known()
    return made


def job(*argv: str, key: str = "", cpu: int = 1000, **spec: Any) -> Submission:
    return Submission(key or secrets.token_hex(8), JobSpec(argv or ("true",), **spec), Request(Resources(cpu=cpu)))


async def until_away(grid: Coordinator, name: str = "n1") -> None:
    async with asyncio.timeout(60):
        while name in grid.server._agents:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def works(grid: Coordinator, worker: AgentEnd) -> None:
    """Check that everything else works: a job through the same coordinator and agent."""
    ann = await client(grid.url, "witness")
    (name,) = await ann.submit(job("true"))
    await ann.ended(name)
    await ann.close()
