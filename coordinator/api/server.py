"""The websocket server: by its hello, a connection becomes an agent, an agent's data connection, or a client.

Their messages become events for the driver, or requests; the messages that the ledger commands are sent from here. A
bad peer loses its own connection and affects nothing else.
"""

import asyncio
import math
import secrets
import ssl
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from distributed_grid import __version__
from distributed_grid.coordinator.access.admission import Admission, NotAdmitted, facts_of, host_of
from distributed_grid.coordinator.api.blobs.cache import Blobs
from distributed_grid.coordinator.api.history import LoanAnswers, TrendAnswers
from distributed_grid.coordinator.api.lookup import Lookup
from distributed_grid.coordinator.api.operator_requests import AccessRequests
from distributed_grid.coordinator.api.relay import Agent, Relay
from distributed_grid.coordinator.api.requests import Requests
from distributed_grid.coordinator.api.sessions import ClientSessions
from distributed_grid.coordinator.api.settings import NOTHING, Configured, GridSettings
from distributed_grid.coordinator.api.submissions import new_ids
from distributed_grid.coordinator.audit.entries import REASON_CHARS
from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.core.commands import (
    Accepted,
    AckExits,
    Alarm,
    Configure,
    Granted,
    HeartbeatReceived,
    Lent,
    MessageReceived,
    NodeDown,
    NodeUp,
    Over,
    Publish,
    Rebalanced,
    Rejected,
    Reserve,
    Send,
    Unreserve,
)
from distributed_grid.coordinator.core.scaling.events import (
    CreateMachine,
    EndMachine,
    ListMachines,
    MachineMismatched,
    MachineOver,
)
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.driver import Clock, Driver
from distributed_grid.coordinator.history.history import History
from distributed_grid.coordinator.history.idle import IDLE, IdleLimits, IdleWatch
from distributed_grid.coordinator.net.connection import Connection, Wire
from distributed_grid.coordinator.net.limits import Bucket, LogThrottle
from distributed_grid.coordinator.net.listener import Listener, bind_unix
from distributed_grid.coordinator.net.memory import Memory
from distributed_grid.coordinator.predictor.service import NeedsService
from distributed_grid.coordinator.ray.balancing import Balancer
from distributed_grid.coordinator.ray.boosts import BoostService
from distributed_grid.coordinator.ray.reservations import RayReservations
from distributed_grid.coordinator.store.contradictions import Contradictions
from distributed_grid.coordinator.store.store import Store
from distributed_grid.identity.credentials import own, server_context
from distributed_grid.protocol import messages
from distributed_grid.protocol.boosts import RayAuth
from distributed_grid.protocol.errors import BadFrame, GridError, ProtocolMismatch
from distributed_grid.protocol.identity import Role, is_valid_name
from distributed_grid.protocol.link import PROTOCOL
from distributed_grid.protocol.messages.handshake import AUTHORITY_PATH, JOIN_PATH, RENEW_PATH
from distributed_grid.protocol.nodes import NO_SETTINGS, Lending, NodeFacts
from distributed_grid.protocol.sharing.moves import Move, MoveKind
from distributed_grid.runtime.local import SOCKET
from distributed_grid.runtime.logs import get_logger

if TYPE_CHECKING:
    from distributed_grid.coordinator.access.ca import Pki
    from distributed_grid.coordinator.access.renewing import Renewals
    from distributed_grid.coordinator.providers.service import MachineService

PROBE_SECONDS = 1.0
"""How long the old connection of a node has to answer a ping when an agent with its name comes."""
NAMES = 20_000
"""Nodes whose message budgets are remembered before those of quiet ones are dropped."""
WORDS_PER_SECOND, WORDS_AT_ONCE = 20_000.0, 100_000.0
"""Message budget of one node over all of its connections: messages, and allocations named in them."""
CERTIFICATE_WORDS = 1000
"""Messages that a request for a certificate counts as: its signature is checked."""
HOST_CHARS = 255
LOOPBACK = ("127.0.0.1", "localhost", "::1")

log = get_logger("server")


class Server:
    """All connections. The driver calls `listen`, then `perform`."""

    def __init__(
        self,
        state: GridState,
        store: Store,
        driver: Driver,
        blobs: Blobs,
        audit: RequestLog,
        clock: Clock,
        pki: "Pki | None" = None,
        memory_limit: int = 0,
        boosts: BoostService | None = None,
        placing: RayReservations | None = None,
        heartbeat: float = 2.0,
        configured: Configured = NOTHING,
        read: Callable[[], Awaitable[Configured]] | None = None,
        history: History | None = None,
        balancer: Balancer | None = None,
        needs: NeedsService | None = None,
        machines: "Callable[[], MachineService] | None" = None,
    ) -> None:
        self._state = state
        self._heartbeat = heartbeat
        self._store = store
        self._driver = driver
        self._blobs = blobs
        self._agents: dict[str, Agent] = {}
        self._words: dict[str, Bucket] = {}
        self._machines = machines
        self._settings = GridSettings(state, self._agents, configured, read, driver.put, self._scaled)
        self._lookup = Lookup(state, store, driver)
        self._relay = Relay(self._agents, store, self._lookup.one)
        self._throttle = LogThrottle()
        self._doors: dict[str, Callable[[ServerConnection], Awaitable[None]]] = {}
        """Handlers of connections without an identity, by path."""
        self._renewals: Renewals | None = None
        if pki is not None:  # cryptography is slow to load
            from distributed_grid.coordinator.access import joining, renewing

            self._renewals = renewing.Renewals(pki, audit, state.nodes, self._throttle)
            serve_joining = joining.Joining(pki, audit, self._throttle).serve
            self._doors = {JOIN_PATH: serve_joining, RENEW_PATH: self._renewals.serve}
        access = self._access = AccessRequests(pki, self._cut, self._renewals)
        self._memory = Memory(memory_limit)
        boosts = self._boosts = boosts or BoostService(state, None, RayAuth.DISABLED, driver.put)
        placing = self._placing = placing or RayReservations(state, None, driver.put)
        self._history = history or History(Path(), 0, clock)
        self._history.kept = lambda node, through: self._tell(node, [messages.BucketsKept(through)])
        self.idle = IdleWatch(self._history, self._idle_limits, driver.put)
        trends = TrendAnswers(state, self._history, self.idle, clock)
        balancer = balancer or Balancer(state, None, RayAuth.DISABLED, driver.put, new_ids)
        self._audit = audit
        loans = LoanAnswers(state, self._history, clock)
        self._needs = needs or NeedsService(None, 0.0, clock)
        own = self._memory, boosts, placing, self._settings, trends, loans, balancer, self._needs
        self._requests = Requests(self._lookup, blobs, self._relay, audit, clock, access, *own)
        state.watched = self._requests.watches.watched
        self._clients = ClientSessions(self._requests, driver, self._throttle, self._memory)
        self._pki = pki
        self._admission = Admission(pki, store.grid)
        self._tls: ssl.SSLContext | None = None
        self._loopback = True
        self._hosts = set(LOOPBACK)
        """Accepted values of the Host header."""
        self._instance = secrets.token_hex(8)
        self._contradictions = Contradictions(store, state, driver.put, clock, self._instance, self._throttle)
        self._listener = Listener(self._serve, self._turn_away, self._throttle)
        self._socket: Path | None = None
        self.reached_at = ""
        """Where nodes and people reach this coordinator."""

    def _idle_limits(self, name: str) -> IdleLimits:
        """Use by its owner up to which a node is idle, by the settings in effect there."""
        agent = self._agents.get(name)
        known = agent.settings.values if agent is not None and agent.settings is not None else Lending()
        percent = (known.cpu_percent_max, known.memory_percent_max, known.gpu_utilization_max)
        return IdleLimits(*(usual if one is None else one / 100 for one, usual in zip(percent, IDLE, strict=True)))

    # --- listening ----------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> int:
        """Begin to take connections; the port that is listened on. Raises OSError."""
        self._loopback = host in LOOPBACK
        self._hosts = {*LOOPBACK, *(self._pki.hosts() if self._pki is not None else ())}
        if self._pki is not None:
            self._tls = server_context(self._pki.folder)
        return await self._listener.listen(host, port, self._tls)

    async def listen_locally(self, state_dir: Path) -> None:
        """Begin to take connections of this machine's users. Raises GridError, OSError."""
        ours, self._socket = bind_unix(state_dir), state_dir / SOCKET
        self._listener.take_from(ours)
        self._memory.check()

    def take_certificate(self) -> None:
        """Use the certificate that is in the folder now for new connections. Raises GridError."""
        if self._pki is not None and self._tls is not None:
            own(self._tls, self._pki.folder)

    async def close(self) -> None:
        """Take no more connections and end those there are. Agents and jobs go on."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.unlink()
        self._memory.close()
        await self._listener.close()

    def _turn_away(self, wire: ServerConnection, request: Request) -> Response | None:
        """Refuse web pages: browsers send Origin, and a name made to resolve to this machine is not in `_hosts`."""
        if "Origin" in request.headers:
            return wire.respond(HTTPStatus.FORBIDDEN, "Web pages may not connect to a grid.\n")
        host = host_of(request.headers.get("Host", ""))
        if self._pki is not None and request.path == AUTHORITY_PATH:
            if (error := self._admission.refuses(wire)) is not None:  # a node that asks whether it is let in
                return wire.respond(HTTPStatus.FORBIDDEN, f"{error.what}\n")
            return wire.respond(HTTPStatus.OK, self._pki.authority.pem.decode())
        if (self._pki is not None or self._loopback) and host not in self._hosts:
            return wire.respond(HTTPStatus.FORBIDDEN, f"This coordinator is not called {host[:HOST_CHARS]!r}.\n")
        try:
            cast(Wire, wire).bearer = self._admission.bearer(request.headers)
        except NotAdmitted as error:
            self._throttle.warning("turned away", peer=cast(Wire, wire).address, error=error.what, why=error.why)
            return wire.respond(HTTPStatus.UNAUTHORIZED, f"{error.what}\n")
        return None

    # --- a connection -------------------------------------------------------------------------------------------------

    async def _serve(self, wire: Wire) -> None:
        door = self._doors.get(wire.opened())
        if door is not None:
            await door(wire)
            return
        connection = Connection(wire)
        peer = wire.address
        try:
            hello = await connection.hello()  # read with the limits for strangers, so that they can be answered
            await self._admission.authenticate(connection, hello)
            match hello.role:
                case "agent":
                    await self._serve_agent(connection, hello)
                case "agent-data":
                    await self._serve_data(connection, hello)
                case "client":
                    await self._serve_client(connection, hello)
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
                self._throttle.warning("cut", peer=peer, name=connection.name, why=error.sent.reason)
        except TimeoutError:
            self._throttle.warning("turned away: no hello came in time", peer=peer)
            await connection.refuse(messages.Refused("no hello came in time"))
        except NotAdmitted as error:
            self._throttle.warning("turned away", peer=peer, error=error.what, why=error.why)
            await connection.refuse(error, final=True)
        except (BadFrame, ProtocolMismatch) as error:
            self._throttle.warning("turned away", peer=peer, name=connection.name, error=error.what, why=error.why)
            # A peer of another version may come back once it is updated; it need not ask again before.
            await connection.refuse(error, final=isinstance(error, ProtocolMismatch) and not connection.link.open)
        except Exception:
            log.exception("a connection failed", peer=peer, name=connection.name)
            connection.abort()
        finally:
            connection.end()

    def _welcome(self, connection: Connection, session: str) -> None:
        self._admission.still_holds(connection.presented, connection.wire.bearer)
        shown = connection.presented
        due = self._renewals.due_in(shown) if shown is not None and self._renewals is not None else math.inf
        connection.accept(
            messages.Welcome(
                protocol=PROTOCOL,
                software=__version__,
                epoch=self._store.epoch,
                grid=self._store.grid,
                session=session,
                heartbeat=self._heartbeat,
                instance=self._instance,
                renew=due <= 0,
                renew_in=due if 0 < due < math.inf else 0.0,
                stamp=self._contradictions.welcome_stamp(connection.name) if connection.role == "agent" else None,
                user=connection.name,
                role=connection.rights.value,
                settings=self._settings.of(connection.name) if connection.role == "agent" else NO_SETTINGS,
                reached_at=self.reached_at if connection.role != "agent" else "",
            )
        )

    # --- agents -------------------------------------------------------------------------------------------------------

    async def _serve_agent(self, connection: Connection, hello: messages.Hello) -> None:
        facts, name = facts_of(hello), hello.name
        if (refused := await self._settle_name(facts)) is not None:
            log.warning("second agent turned away", node=name, hostname=facts.hostname)
            await connection.refuse(refused)
            return
        if name in self._state.scaling.machines and (refused := self._over(facts)) is not None:
            await connection.refuse(refused)
            return
        peer = connection.wire.remote_address
        # What its token says of a node counts more than what the node says.
        given = self._pki.identities.labels(Role.AGENT, name) if self._pki is not None else {}
        address = str(peer[0]) if peer else LOOPBACK[0]  # by the Unix socket
        facts = msgspec.structs.replace(facts, address=address, labels=facts.labels | given, declared=None)
        agent = Agent(facts, secrets.token_hex(8), connection)
        self._welcome(connection, agent.session)
        self._agents[name] = agent
        self._driver.put(NodeUp(facts, agent.session))
        self._contradictions.hello(hello)
        log.info("agent connected", node=name, hostname=facts.hostname, incarnation=facts.incarnation)
        if facts.unknown:
            log.warning("it is not known what ran on a node", node=name, why=facts.unknown)
        words, clock = self._words_of(name), asyncio.get_running_loop().time
        told = False

        def beat(message: Any) -> bool:
            """Take a heartbeat, by far the most frequent message, or buckets, the next one, as it arrives."""
            kind = type(message)
            if kind is messages.Buckets and self._agents.get(name) is agent and words.take(1, clock()) <= 0:
                self._history.store(name, facts.boot_id, message)
                return True
            if kind is not messages.Heartbeat or self._agents.get(name) is not agent:
                return False
            if self._driver.crowded or words.take(1, clock()) > 0:
                return False
            self._driver.heartbeat(HeartbeatReceived(name, message.sample, message.at))
            return True

        connection.at_once(beat)
        try:
            while True:
                if (seconds := words.debt(clock())) > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await connection.wire.wait_closed()
                batch = await connection.receive()
                words.take(sum(map(_weight, batch)), clock())
                for message in batch:
                    if self._agents.get(name) is not agent:
                        return
                    if type(message) is messages.Inventory:
                        if told:
                            raise BadFrame("a second inventory on one connection")
                        told = True
                    if type(message) is messages.Heartbeat:
                        self._driver.put(HeartbeatReceived(name, message.sample, message.at))
                    elif type(message) is messages.Buckets:
                        self._history.store(name, facts.boot_id, message)
                    elif type(message) is messages.WantCertificate:
                        connection.send(self._access.renew(connection, message))
                    else:
                        if type(message) is messages.InEffect:
                            self._settings.reported(agent, message)
                        for advice in self._needs.heard(self._state, name, message):
                            self._driver.put(advice)
                        self._driver.put(MessageReceived(name, self._contradictions.check(name, message)))
                    with suppress(ConnectionClosed):  # what was said counts
                        await connection.turn()
                if self._driver.crowded:
                    await self._driver.room()
        finally:
            self._agent_left(agent)

    def _words_of(self, name: str) -> Bucket:
        if len(self._words) > NAMES:
            now = asyncio.get_running_loop().time()
            self._words = {one: words for one, words in self._words.items() if not words.full(now)}
        if (words := self._words.get(name)) is None:
            words = Bucket(WORDS_PER_SECOND, WORDS_AT_ONCE, asyncio.get_running_loop().time())
            self._words[name] = words
        return words

    def _over(self, facts: NodeFacts) -> messages.Refused | None:
        """Why the agent of this machine is turned away; None: it is not."""
        from distributed_grid.coordinator.core.scaling.machines import mismatch, refusal  # only where there are pools

        if why := refusal(self._state, facts):
            log.warning("an agent of a machine that is over, or another one, is turned away", node=facts.name, why=why)
            if mismatch(self._state.scaling.machines[facts.name], facts) == why:
                self._driver.put(MachineMismatched(facts.name, why))
            return messages.Refused(what=f"machine {facts.name} is not admitted", why=why, final=True)
        return None

    async def _settle_name(self, facts: NodeFacts) -> messages.Refused | None:
        """Allow one agent per name. A newer incarnation of the same node is its restarted agent and wins; another node
        gets the name only if its present holder does not answer."""
        while (old := self._agents.get(facts.name)) is not None:
            same = facts.boot_id == old.facts.boot_id and facts.instance == old.facts.instance
            same = same and facts.hostname == old.facts.hostname
            copied = same and "" != facts.directory != old.facts.directory != ""
            restarted = same and not copied and facts.incarnation > old.facts.incarnation
            if not restarted and await old.control.answers(PROBE_SECONDS):
                if copied:
                    return messages.Refused(
                        what=f"this is a copy of the state directory of node {facts.name!r}, which is in use",
                        why=f"the agent of the original on {old.facts.hostname} is alive",
                        hint="remove the copy; another node has a state directory and a token of its own",
                        final=True,
                    )
                return messages.Refused(
                    what=f"a node named {facts.name!r} is connected already",
                    why=f"its agent on {old.facts.hostname} is alive",
                    hint="give this agent another name (--name), or stop the other one first",
                    final=True,
                )
            if self._agents.get(facts.name) is old:
                log.info("agent replaced", node=facts.name, restarted=restarted)
                self._agent_left(old)
                old.control.abort()
        return None

    def _agent_left(self, agent: Agent) -> None:
        if self._agents.get(agent.name) is not agent:
            return
        del self._agents[agent.name]
        self._relay.agent_gone(agent)
        self._driver.put(NodeDown(agent.name, agent.session))
        log.info("agent disconnected", node=agent.name)

    async def _serve_data(self, connection: Connection, hello: messages.Hello) -> None:
        agent = self._agents.get(hello.name)
        if agent is None or agent.session != hello.session:
            await connection.refuse(
                messages.Refused("this data connection belongs to no session", why="its session has ended")
            )
            return
        self._welcome(connection, agent.session)
        replaced = agent.data
        self._relay.data_opened(agent, connection)
        if replaced is not None:
            replaced.abort()
        try:
            while True:
                for message in await connection.receive():
                    if type(message) is messages.WantBlob:
                        connection.send(self._blobs.read(message, self._bundles_on(agent.name)))
                        await connection.drained()
                    elif why := self._relay.answered(agent, message, connection):
                        what, peer = "cut: a node's answer does not fit the question", connection.wire.address
                        self._throttle.warning(what, peer, node=agent.name, why=why)
                        connection.abort()
                        return
        finally:
            self._relay.data_closed(agent, connection)

    def _bundles_on(self, name: str) -> set[str]:
        """The manifests of the jobs that this node was granted: it gets no other shipped file."""
        node, jobs = self._state.nodes.get(name), self._state.jobs
        granted = node.launched if node is not None else []
        return {jobs[one.job].spec.bundle for one in granted} - {""}

    # --- clients ------------------------------------------------------------------------------------------------------

    async def _serve_client(self, connection: Connection, hello: messages.Hello) -> None:
        if not is_valid_name(hello.name):
            raise ProtocolMismatch(f"a user cannot be called {hello.name[:80]!r}", why="1 to 64 printable characters")
        if await self._clients.admits(connection):
            self._welcome(connection, secrets.token_hex(8))
            await self._clients.serve(connection, hello.host[:HOST_CHARS])

    def _cut(self, role: Role | None, name: str, bearers: Collection[str], asker: Connection | None) -> int:
        """Cut the live connections of this role and name, and of these bearer tokens, that of `asker` once it is
        answered; how many there were."""
        live = self._clients.connections(role, name, bearers)
        if role is Role.AGENT and (agent := self._agents.get(name)) is not None:
            live += [agent.control] + ([agent.data] if agent.data is not None else [])
        for connection in live:
            log.warning("cut: its access was taken back", role=connection.rights.value, name=connection.name)
            if connection is asker:
                connection.end_after_answer()
            else:
                connection.abort()
        return len(live)

    # --- what the ledger commands -------------------------------------------------------------------------------------

    def perform(self, command: Any) -> None:
        """Perform one command that is not a record. Nothing is sent to a node that is not connected: its agent is told
        all it has to know when it is back."""
        match command:  # the most frequent first
            case Send(node, message):
                if type(message) is not messages.Launch:
                    self._tell(node, [message])
                elif self._in_time(node, message):
                    self._tell(node, [self._contradictions.stamped(node, message)])
                if type(message) is messages.Stop:
                    self._boosts.stops(message.allocation)
            case AckExits(node, allocations):
                self._tell(node, [messages.Ack(allocations)])
            case Over():
                self._requests.watches.over(command)
            case Publish(view):
                self._requests.watches.publish(view)
            case Accepted() | Rejected() | Granted():
                self._requests.answer(command)
            case Reserve() | Unreserve():
                self._placing.perform(command)
            case Configure(node):
                self._settings.send(node)
            case Rebalanced(moves, applied):
                if applied:
                    self._rebalanced(moves)
            case Lent(days):
                self._history.lend(days)
            case CreateMachine() | EndMachine() | ListMachines():
                if self._machines is not None:
                    self._machines().perform(command)
            case MachineOver(name):
                self._access.expel(Role.AGENT, name)
            case Alarm(found):
                self._driver.trouble.alarm(found)
            case _:
                raise GridError(f"a command that nobody performs: {command!r}")

    def _scaled(self, configured: Configured) -> None:
        if self._machines is not None:
            self._machines().configure(configured.providers, configured.pools)

    def _rebalanced(self, moves: Sequence[Move]) -> None:
        """Follow up on the automatic boosts, and note the moves in the audit log."""
        self._boosts.stir(*(one.boost for one in moves if one.kind is MoveKind.LEND))
        self._requests.watches.moves += len(moves)
        for one in moves:
            said = {
                "job": one.boost or one.job,
                "source": one.source,
                "target": one.target,
                "why": one.reason[:REASON_CHARS],
            }
            self._audit.request("(grid)", f"rebalance-{one.kind}", **said)

    def _in_time(self, node: str, launch: messages.Launch) -> bool:
        """Whether a launch that waited for the disk may still be sent: not if it was given up, the node was restarted
        or replaced meanwhile, or the store has lost commits."""
        agent, granted = self._agents.get(node), self._state.allocations.get(launch.allocation)
        if agent is None or granted is None or self._state.loss:
            return False
        return granted.boot in ("", agent.facts.boot_id) and granted.instance in ("", agent.facts.instance)

    def _tell(self, node: str, batch: Sequence[Any]) -> None:
        if agent := self._agents.get(node):
            agent.control.send(*batch)


def _weight(message: Any) -> int:
    """Return the cost of a message in its node's budget."""
    if type(message) is messages.Inventory:
        return 1 + len(message.known)
    if type(message) is messages.Buckets:
        return 1 + len(message.buckets)
    if type(message) is messages.WantCertificate:
        return CERTIFICATE_WORDS
    return 1 + len(message.uses) if type(message) is messages.InUse else 1
