"""One connection at the coordinator: a Link with its socket, a bounded outbox, a bucket against floods, a watchdog.

What a turn of the loop sends on a connection leaves in one frame. Nobody buffers for a peer that does not read: above
its outbox the connection is cut, whether answers pile up there or the pongs to a flood of pings.
"""

import asyncio
import contextlib
from typing import Any

import structlog
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.exceptions import ConnectionClosedError

from distributed_grid.coordinator.ca import Presented
from distributed_grid.faults import fault
from distributed_grid.protocol.codec import CONTROL_BYTES
from distributed_grid.protocol.errors import BadFrame, GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.link import Link
from distributed_grid.protocol.messages import Hello, Refused, Welcome

HELLO_SECONDS = 5.0
OUTBOX_STRANGER = 64 << 10
OUTBOX_CONTROL = 1 << 20
OUTBOX_BULK = 8 << 20
"""Bytes that may wait in the coordinator for a peer to read, by what the peer is."""
FRAMES_PER_SECOND = 5_000.0
FRAMES_AT_ONCE = 10_000.0
"""Our own agents and clients send far fewer: a frame carries what a turn of their loop had to say."""
TURN_SECONDS = 0.005
"""How long the messages of one frame may keep all other connections waiting."""
DOUBT_SECONDS = 0.2
CLIENT_SILENCE = 20.0
"""Seconds after which a quiet client is asked by a ping whether it is there, and again until it counts as gone."""

log = structlog.get_logger("server")


class Wire(ServerConnection):
    """The library's connection, which also ends a peer that makes us write and does not read."""

    outbox = OUTBOX_STRANGER

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.paused:
            self.check_outbox()

    def check_outbox(self) -> bool:
        """Whether there is room; if not, the connection is cut."""
        if self.transport.get_write_buffer_size() <= self.outbox:
            return True
        if not self.transport.is_closing():
            log.warning("cut: does not read", peer=str(self.remote_address), waiting=self.outbox)
            self.transport.abort()
        return False


# Not `await wire.send()`: nobody waits for a peer, the outbox is bounded instead.


@fault("coordinator.send")
def _send(wire: Wire, frame: bytes) -> None:
    broadcast((wire,), frame)


@fault("coordinator.reply")
def _reply(wire: Wire, frame: bytes) -> None:
    broadcast((wire,), frame)


class Connection:
    """Feed on `receive`, speak by `send`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._loop = asyncio.get_running_loop()
        self.link = Link.answer(self._loop.time())
        self.name = ""
        self.role = ""
        self.rights = Role.VIEWER
        self.presented: Presented | None = None
        """The certificate that it came with."""
        self._flush_due = False
        self._closed = False
        self._tokens = FRAMES_AT_ONCE
        self._counted = self._began = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._doubted = False
        self._question: asyncio.Task[None] | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    async def hello(self) -> Hello:
        """The peer's hello. Raises TimeoutError, BadFrame, ProtocolMismatch, ConnectionClosed."""
        async with asyncio.timeout(HELLO_SECONDS):
            frame = await self.wire.recv()
        hello: Hello = self.link.receive(frame, self._loop.time())[0]
        self.name, self.role = hello.name, hello.role
        return hello

    async def receive(self) -> list[Any]:
        """The messages of the next frame. Raises BadFrame, ProtocolMismatch, ConnectionClosed."""
        frame = await self.wire.recv()
        now = self._loop.time()
        self._tokens = min(FRAMES_AT_ONCE, self._tokens + (now - self._counted) * FRAMES_PER_SECOND) - 1
        self._counted = self._began = now
        if self._tokens < 0:
            await asyncio.sleep(0.1)
        if self.role == "agent" and len(frame) > CONTROL_BYTES:
            raise BadFrame(
                f"a frame of {len(frame)} bytes", why=f"a control connection carries {CONTROL_BYTES} at most"
            )
        return self.link.receive(frame, now)

    async def turn(self) -> None:
        """To be called after each message of a frame: a frame may have many thousands, and others have their turn in
        between. Nor are its answers piled up. Raises ConnectionClosed."""
        if self._loop.time() - self._began > TURN_SECONDS:
            await asyncio.sleep(0)
            await self.drained()
            self._began = self._loop.time()

    # --- writing ------------------------------------------------------------------------------------------------------

    def accept(self, welcome: Welcome) -> None:
        """Let the peer in."""
        self.wire.outbox = OUTBOX_CONTROL if self.role == "agent" else OUTBOX_BULK
        self.link.accept(welcome)
        self._watch()
        self._flush_soon()

    def send(self, *messages: Any) -> None:
        """Say this, with what else is said in this turn of the loop. To a connection that is gone: nothing happens."""
        if not self._closed:
            self.link.send(*messages)
            self._flush_soon()

    async def drained(self) -> None:
        """Wait until most of what was sent has left. Raises ConnectionClosed when the peer goes."""
        if self._flush_due:
            await asyncio.sleep(0)
        with contextlib.suppress(OSError):
            await self.wire.drain()
        if self.wire.transport.is_closing():
            raise ConnectionClosedError(None, None)

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        for frame in self.link.data_to_send():
            if self.role == "client":
                _reply(self.wire, frame)
            else:
                _send(self.wire, frame)
        if self.wire.paused:
            self.wire.check_outbox()

    # --- ending -------------------------------------------------------------------------------------------------------

    async def refuse(self, error: GridError | Refused, final: bool = False) -> None:
        """Say why, and close."""
        if isinstance(error, GridError):
            error = Refused(what=error.what, why=error.why, hint=error.hint, final=final)
        if not self._closed:
            self.link.refuse(error)
            self._flush()
        self.end()
        await self.wire.close()

    def end(self) -> None:
        """Nothing more is sent; the socket is somebody else's to close."""
        self._closed = True
        for pending in (self._watchdog, self._question):
            if pending:
                pending.cancel()

    def abort(self) -> None:
        """Cut the connection at once."""
        self.end()
        self.wire.transport.abort()

    # --- is it there? -------------------------------------------------------------------------------------------------

    async def answers(self, seconds: float) -> bool:
        """Whether the peer answers a ping within that time."""
        try:
            async with asyncio.timeout(seconds):
                await (await self.wire.ping())
        except Exception:  # closed, cut, or silent: it is not there
            return False
        return True

    def _watch(self) -> None:
        """An agent is heard every few seconds or its connection is dead; a client may be quiet, and is asked."""
        if self._closed or self.role == "agent-data":  # lives as long as its control connection
            return
        deadline = self.link.deadline() if self.role == "agent" else self.link.heard + CLIENT_SILENCE
        now = self._loop.time()
        if deadline > now:
            self._doubted = False
            self._watchdog = self._loop.call_at(deadline + 0.001, self._watch)
        elif self.role == "agent" and not self._doubted:
            # It may be we who were away (a stalled disk, a suspended machine): first read what has come meanwhile.
            self._doubted = True
            self._watchdog = self._loop.call_later(DOUBT_SECONDS, self._watch)
        elif self.role == "agent":
            log.warning("agent is silent", node=self.name, seconds=round(now - self.link.heard, 1))
            self.abort()
        else:
            self._question = self._loop.create_task(self._ask())

    async def _ask(self) -> None:
        if await self.answers(CLIENT_SILENCE):
            self._watchdog = self._loop.call_later(CLIENT_SILENCE, self._watch)
        elif not self._closed:
            log.info("client is gone", user=self.name)
            self.abort()
