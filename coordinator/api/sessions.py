"""The sessions of clients: how many connections one user may have, in which order and how fast requests are handled,
and how sessions end."""

import asyncio
import time
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from distributed_grid.coordinator.api.relay import Client
from distributed_grid.coordinator.api.requests import Requests
from distributed_grid.coordinator.driver import Driver
from distributed_grid.coordinator.net.connection import Connection
from distributed_grid.coordinator.net.limits import ASKS_RAY, ORDERS, OUT_OF_TURN, LogThrottle, Measured, Pace, Paces
from distributed_grid.coordinator.net.memory import Memory, Shortage
from distributed_grid.protocol.codec import Unusable
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.messages import Failed, PutBlob, Refused

CONNECTIONS_OF_ONE = 256
"""Maximum number of connections of one user. (A node has two; an agent with the same name replaces them.)"""
LAGGING = 64 << 10
"""Bytes in a peer's outbox from which on it is cut when memory is short."""
TOGETHER = 256
"""Maximum number of blobs that are kept together."""
ASKING = 8
"""Maximum number of requests of one connection that wait for Ray, or for an order that does, while its other requests
are handled."""


class _Asking:
    """The requests of one connection that wait for Ray, or for an order that does."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._order: asyncio.Task[None] | None = None

    def order(self) -> "asyncio.Task[None] | None":
        """The newest order among them, if any: later ones are carried out after it."""
        return self._order if self._order in self.tasks else None

    async def begin(self, work: Coroutine[Any, Any, None], order: bool) -> None:
        """Add one, as soon as there is room."""
        while len(self.tasks) >= ASKING:
            await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self._order = task if order else self._order


class ClientSessions:
    """All connected clients."""

    def __init__(self, requests: Requests, driver: Driver, throttle: LogThrottle, memory: Memory) -> None:
        self._requests = requests
        self._driver = driver
        self._throttle = throttle
        self._connections: dict[tuple[Role, str], set[Connection]] = {}
        self._paces = Paces()
        self._memory = memory
        memory.shed = self._shed

    def connections(self, role: Role | None, name: str, bearers: Collection[str] = ()) -> list[Connection]:
        """The connections of one user in a role, and those with one of these bearer tokens."""
        found = set(self._connections.get((role, name), ())) if role is not None else set()
        for connections in self._connections.values() if bearers else ():
            found |= {one for one in connections if one.wire.bearer is not None and one.wire.bearer.id in bearers}
        return list(found)

    def _shed(self) -> None:
        """Cut what the grid can do without: viewers, and clients that do not read."""
        for (role, _), connections in list(self._connections.items()):
            for connection in list(connections):
                if role is Role.VIEWER or connection.wire.transport.get_write_buffer_size() > LAGGING:
                    self._throttle.warning("cut: short of memory", peer=connection.wire.address, user=connection.name)
                    connection.abort()

    async def admits(self, connection: Connection) -> bool:
        """Whether one more connection is accepted; if not, it is refused."""
        if connection.rights is Role.VIEWER and self._memory.shortage is not Shortage.NONE:
            await connection.refuse(Refused("viewers are not let in now", self._memory.words(), "try again later"))
            return False
        own = self._connections.get((connection.rights, connection.name), set())
        if len(own) < CONNECTIONS_OF_ONE:
            return True
        what = f"{connection.name} has {len(own)} connections open"
        self._throttle.warning("turned away", peer=connection.wire.address, name=connection.name, error=what)
        await connection.refuse(Refused(what, "one person may have no more", "close some, and try again"))
        return False

    async def serve(self, connection: Connection, host: str) -> None:
        """Handle the requests of a client until the connection ends. Raises BadFrame, ProtocolMismatch,
        ConnectionClosed."""
        identity = role, user = connection.rights, connection.name
        known = {"role": role.value, "via": connection.via, "peer": connection.wire.address}
        client = Client(connection, user=user, role=role, host=host, who=known)
        own = self._connections.setdefault(identity, set())
        own.add(connection)
        pace = self._paces.of(client.user)
        asking = _Asking()
        try:
            while True:
                for message in _together(await connection.receive()):
                    if isinstance(message, list):
                        await self._keep(client, pace, message)
                    elif type(message) is Unusable:
                        error = message.error
                        self._throttle.warning("out of bounds", peer=connection.wire.address, user=user, why=error.why)
                        connection.send(Failed(message.id, "bad-value", error.what, error.why))
                    else:
                        await self._do(client, pace, message, asking)
                    await connection.turn()
                if self._driver.crowded:
                    await self._driver.room()
        finally:
            try:
                await asyncio.gather(*asking.tasks)
            finally:
                own.discard(connection)
                if not own and self._connections.get(identity) is own:
                    del self._connections[identity]
                self._requests.gone(client)

    async def _do(self, client: Client, pace: Pace, message: Any, asking: _Asking) -> None:
        if (seconds := pace.wait(message, time.monotonic())) > 0:
            await asyncio.sleep(seconds)
        if (seconds := pace.too_much(message, time.monotonic())) > 0:
            client.connection.send(self._too_much(client, message.id, seconds))
            return
        order = isinstance(message, ORDERS)
        before = asking.order() if order else None
        if isinstance(message, ASKS_RAY):
            await asking.begin(self._handle(client, pace, message, before), order)
        elif before is not None:
            await asking.begin(self._after(before, client, pace, message), order)
        else:
            await self._in_turn(client, pace, message)

    async def _after(self, before: "asyncio.Task[None]", client: Client, pace: Pace, message: Any) -> None:
        await asyncio.wait([before])
        await self._in_turn(client, pace, message)

    async def _in_turn(self, client: Client, pace: Pace, message: Any) -> None:
        async with nullcontext() if isinstance(message, OUT_OF_TURN) else pace.turn:
            await self._handle(client, pace, message)
            if client.connection.turn_is_over():
                await asyncio.sleep(0)

    async def _handle(
        self, client: Client, pace: Pace, message: Any, before: "asyncio.Task[None] | None" = None
    ) -> None:
        measured = Measured(self._requests.handle(client, message, before))
        await measured
        pace.spend(message, measured.seconds, time.monotonic())

    async def _keep(self, client: Client, pace: Pace, sent: list[PutBlob]) -> None:
        if (seconds := pace.wait(sent[0], time.monotonic())) > 0:
            await asyncio.sleep(seconds)
        await self._requests.keep_blobs(client, sent)
        for message in sent:
            pace.spend(message, 0.0, time.monotonic())

    def _too_much(self, client: Client, number: int, seconds: float) -> Failed:
        self._throttle.warning("too much is asked for", peer=client.connection.wire.address, user=client.user)
        what = "you ask for more than the coordinator does for one person"
        why = "requests on many connections, or large ones, came faster than they can be done beside those of others"
        return Failed(number, "busy", what, why, f"try again in {seconds:.0f} s")


def _together(messages: Sequence[Any]) -> Iterator[Any]:
    """The messages of a frame, with a list in place of blobs that came whole, one after the other: as many as our own
    clients send at once, so that thousands of tiny ones do not hold up the loop."""
    whole: list[PutBlob] = []
    for message in messages:
        comes_whole = type(message) is PutBlob and message.end and not message.offset
        if whole and (not comes_whole or len(whole) == TOGETHER):
            yield whole
            whole = []
        if comes_whole:
            whole.append(message)
        else:
            yield message
    if whole:
        yield whole
