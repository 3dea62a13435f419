"""One connection at the coordinator: a Link with its socket, a bounded outbox, a rate limit against floods, and a
watchdog.

All messages of one turn of the loop are sent in one frame. Nothing is buffered without bound for a peer that does not
read: above the size of its outbox the connection is closed, whether the outbox is full of answers or of pongs to a
flood of pings.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from websockets.asyncio.connection import Connection as Received
from websockets.asyncio.server import ServerConnection, broadcast
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError
from websockets.frames import CTRL_OPCODES, CloseCode, Frame, Opcode
from websockets.protocol import Event, State

try:
    from websockets.speedups import apply_mask
except ImportError:  # built without its extension
    from websockets.utils import apply_mask

from distributed_grid.coordinator.access.identities import Bearer
from distributed_grid.coordinator.net.limits import Bucket
from distributed_grid.protocol.codec import BULK_BYTES, CONTROL_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Role
from distributed_grid.protocol.link import Link
from distributed_grid.protocol.messages import Hello, Refused, Welcome
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.logs import get_logger

if TYPE_CHECKING:
    from distributed_grid.coordinator.access.ca import Presented

HELLO_SECONDS = 5.0
OUTBOX_STRANGER = 64 << 10
OUTBOX_CONTROL = 1 << 20
OUTBOX_BULK = 8 << 20
"""Outbox limits: bytes that may wait for a peer to read, by kind of peer."""
FRAMES_PER_SECOND = 5_000.0
FRAMES_AT_ONCE = 10_000.0
"""The grid's own agents and clients send far fewer: a frame carries all that one turn of their loop says."""
FRAGMENTS = 64
"""Fragments of one message. The grid's own peers send none, but a proxy may."""
TURN_SECONDS = 0.005
"""How long the messages of one frame may keep all other connections waiting."""
DOUBT_SECONDS = 0.2
CLOCK_SECONDS = 60.0
"""Interval between comparisons of the wall clock, which may be set, with the expiry of a peer's credential."""
CLIENT_SILENCE = 20.0
"""Seconds of silence after which a client is pinged, and again until it counts as gone."""

log = get_logger("server")


CONTROL_FRAMES_PER_SECOND = 20.0
CONTROL_FRAMES_AT_ONCE = 100.0
"""Pings and pongs. The grid's own peers send one every 20 seconds."""

_FIN_BINARY, _MASKED = 0x82, 0x80
_LENGTH_16 = 126


def frame_at(data: bytes, start: int) -> tuple[int, int]:
    """Return where the payload of the client's frame that begins at `start` begins and ends (RFC 6455, 5.2). The end is
    0 if the frame is incomplete, or has 64 KiB or more."""
    size = len(data)
    if size < start + 6:
        return 0, 0
    length, payload = data[start + 1] - _MASKED, start + 6
    if length >= _LENGTH_16:
        if length > _LENGTH_16 or size < start + 8:
            return 0, 0
        length, payload = data[start + 2] << 8 | data[start + 3], start + 8
    end = payload + length
    return (payload, end) if length >= 0 and end <= size else (0, 0)


def last_of(data: bytes) -> tuple[int, int]:
    """The payload of the last frame, if the bytes are whole frames; else its end is 0."""
    payload = end = 0
    while end < len(data):
        payload, end = frame_at(data, end)
        if not end:
            break
    return payload, end


class Wire(ServerConnection):
    """The library's connection, which is also cut when its peer does not read, or sends control frames or fragments
    without end. Until the hello a message may have a hello's bytes only.

    Received data is parsed and queued by the library, which wakes a task for each message. A message that arrives as
    one frame, and before which nothing waits, is first offered to `take`.
    """

    __slots__ = (  # with them in its __dict__, that would outgrow the keys that Python shares between instances
        "_between", "_control", "_fragments", "_most", "_newest",
        "accepted", "address", "bearer", "let_in", "outbox", "take", "unread",
    )  # fmt: skip

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.outbox = OUTBOX_STRANGER
        self.address = ""
        self.accepted = 0.0
        """Time of acceptance (`unix.boot_clock`)."""
        self.bearer: Bearer | None = None
        """The bearer token of the HTTP request, verified."""
        self.let_in: Callable[[], None] = lambda: None
        """Called when the peer has identified itself."""
        self.take: Callable[[bytes], bool] | None = None
        """Returns whether it took a message at once; one that it did not take is received as any other."""
        self.unread = 0
        """Messages that the library has, or has begun, and that were not received yet: whoever receives one counts
        down."""
        self._control = Bucket(CONTROL_FRAMES_PER_SECOND, CONTROL_FRAMES_AT_ONCE, self.loop.time())
        self._fragments = 0
        self._most = 0
        self._newest: bytes | None = None
        self._between = False
        """Whether the library's parser is known to stand between two frames: what it read were whole frames, and it
        found the message that is in the last of them; or it was between two before."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Received.connection_made(self, transport)  # not the server's: who made this connection also serves it

    def opened(self) -> str:
        """The path that was asked for by the HTTP request, whose headers were judged and are dropped."""
        if self.request is None:
            return ""
        self.request.headers, self.response = Headers(), None
        return self.request.path

    def known(self, most: int) -> None:
        """The peer has identified itself: its messages may have this many bytes from now on."""
        for name in ("max_message_size", "max_size"):  # of the library's newer versions, and of its older ones
            if hasattr(self.protocol, name):
                setattr(self.protocol, name, most)
        self._most = most
        self.let_in()

    def data_received(self, data: bytes) -> None:
        if self.take is None:
            super().data_received(data)
        elif self._between:
            if (taken := self._taken(data, self.take)) < len(data):
                rest = data[taken:] if taken else data
                super().data_received(rest)
                self._between = last_of(rest)[1] > 0
        else:
            self._newest = None
            super().data_received(data)
            payload, end = last_of(data)
            self._between = end > 0 and self._newest == apply_mask(data[payload:end], data[payload - 4 : payload])
        if self.paused:
            self.check_outbox()

    def _taken(self, data: bytes, take: Callable[[bytes], bool]) -> int:
        """Return how many of these bytes are messages that were taken; they bypass the library."""
        at, size = 0, len(data)
        while at < size and data[at] == _FIN_BINARY and not self.unread:
            payload, end = frame_at(data, at)
            if not end or end - payload > self._most:
                break
            if self.protocol.state is not State.OPEN or self.transport.is_closing():
                break
            if not take(apply_mask(data[payload:end], data[payload - 4 : payload])):
                break
            at = end
        return at

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame) and not self.transport.is_closing():
            if event.opcode is Opcode.BINARY or event.opcode is Opcode.TEXT:
                self.unread += 1
                self._newest = bytes(event.data) if self.take is not None else None
            if event.opcode in CTRL_OPCODES:
                if self._control.take(1, self.loop.time()) > 0:
                    self.cut("control frames without end")
            elif event.fin:
                self._fragments = 0
            else:
                self._fragments += 1
                if self._fragments > FRAGMENTS:
                    self.cut("a message in fragments without end")
        super().process_event(event)

    def cut(self, why: str) -> None:
        """Cut a connection whose peer breaks the rules, without an answer."""
        log.warning("cut", peer=self.address, why=why)
        self.transport.abort()

    def check_outbox(self) -> bool:
        """Whether there is room; if not, the connection is cut."""
        if self.transport.get_write_buffer_size() <= self.outbox:
            return True
        if not self.transport.is_closing():
            self.cut(f"it does not read: {self.outbox} bytes wait for it")
        return False


# Not `await wire.send()`: nobody waits for a peer, the outbox is bounded instead.


@fault("coordinator.send")
def _send(wire: Wire, frame: bytes) -> None:
    broadcast((wire,), frame)


@fault("coordinator.reply")
def _reply(wire: Wire, frame: bytes) -> None:
    broadcast((wire,), frame)


class Connection:
    """A connection with its session: `receive` messages, `send` messages."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._loop = asyncio.get_running_loop()
        self.link = Link.answer(self._loop.time())
        self.name = ""
        self.role = ""
        self.rights = Role.VIEWER
        self.presented: Presented | None = None
        """The peer's certificate."""
        self.via = ""
        """What proves the peer's identity: a certificate, a bearer token, a user id; empty: nothing."""
        self._flush_due = False
        self._closed = False
        # Not by the loop's clock, which (uvloop's) stands still while one thing is done.
        self._began = time.monotonic()
        self._frames = Bucket(FRAMES_PER_SECOND, FRAMES_AT_ONCE, self._loop.time())
        self._watchdog: asyncio.TimerHandle | None = None
        self._doubted = False
        self._question: asyncio.Task[None] | None = None
        self._end, self._ends = math.inf, ""
        self._end_check: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._receiving = False
        self._decoded: list[Any] | None = None
        """The messages of a frame that was decoded when it arrived, and is received next."""
        self._last = False
        self._at_once: Callable[[Any], bool] = lambda message: False

    # --- reading ------------------------------------------------------------------------------------------------------

    async def hello(self) -> Hello:
        """The peer's hello. Raises TimeoutError, BadFrame, ProtocolMismatch, ConnectionClosed."""
        async with asyncio.timeout(HELLO_SECONDS):
            frame = await self.wire.recv()
        self.wire.unread -= 1
        hello: Hello = self.link.receive(frame, self._loop.time())[0]
        self.name, self.role = hello.name, hello.role
        return hello

    async def receive(self) -> list[Any]:
        """The messages of the next frame. Raises BadFrame, ProtocolMismatch, ConnectionClosed."""
        self._receiving = True
        try:
            frame = await self.wire.recv()
        finally:
            self._receiving = False
        self.wire.unread -= 1
        decoded, self._decoded = self._decoded, None
        if self._closed:  # what still came is not read any more
            raise ConnectionClosedError(None, None)
        now = self._loop.time()
        if decoded is None and (seconds := self._frames.take(1, now)) > 0:
            await asyncio.sleep(seconds)
        self._began = time.monotonic()
        return self.link.receive(frame, now) if decoded is None else decoded

    def at_once(self, take: Callable[[Any], bool]) -> None:
        """Offer a message that comes alone to `take` when it arrives, where the next call of `receive` would return it
        by itself: no task is woken for one that it takes. It must not raise."""
        self._at_once = take
        self.wire.take = self._arrived

    def _arrived(self, frame: bytes) -> bool:
        """Whether a frame was taken."""
        if not self._receiving or self._closed:
            return False
        now = self._loop.time()
        if self._frames.take(1, now) > 0:  # a flood, which is received, and so slowed down
            return False
        try:
            messages = self.link.receive(frame, now)
        except GridError:  # raised again where it is received
            return False
        if len(messages) == 1 and self._at_once(messages[0]):
            return True
        self._decoded = messages
        return False

    def turn_is_over(self) -> bool:
        """Whether the messages of this frame have kept others waiting for long enough."""
        return time.monotonic() - self._began > TURN_SECONDS

    async def turn(self) -> None:
        """Give other tasks a turn; to be called after each message of a frame, which may have many thousands, so that
        answers do not pile up. Raises ConnectionClosed, also if this side has closed it."""
        if self._closed:
            raise ConnectionClosedError(None, None)
        if self.turn_is_over():
            await asyncio.sleep(0)
            await self.drained()
            self._began = time.monotonic()

    # --- writing ------------------------------------------------------------------------------------------------------

    def accept(self, welcome: Welcome) -> None:
        """Accept the peer."""
        self.wire.outbox = OUTBOX_CONTROL if self.role == "agent" else OUTBOX_BULK
        self.wire.known(CONTROL_BYTES if self.role == "agent" else BULK_BYTES)
        self.link.accept(welcome)
        self._watch()
        self._flush_soon()

    def send(self, *messages: Any) -> None:
        """Send messages, in one frame with all that this turn of the loop sends. On a closed connection nothing
        happens."""
        if self._closed:
            return
        self.link.send(*messages)
        if self._last:
            self._flush()
            self.end()
            self._ending = self._loop.create_task(self.wire.close())
        else:
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
        frames, unsent = self.link.data_to_send_anyway()
        for message, error in unsent:
            kind = type(message).__name__
            log.warning("a message cannot be sent as it is", to=self.name, kind=kind, error=error.what)
        for frame in frames:
            if self.role == "client":
                _reply(self.wire, frame)
            else:
                _send(self.wire, frame)
        if self.wire.paused:
            self.wire.check_outbox()

    # --- ending -------------------------------------------------------------------------------------------------------

    async def refuse(self, error: GridError | Refused, final: bool = False) -> None:
        """Send the reason and close."""
        if isinstance(error, GridError):
            error = Refused(what=error.what, why=error.why, hint=error.hint, final=final)
        if not self._closed:
            self.link.refuse(error)
            self._flush()
        self.end()
        await self.wire.close()

    def end(self) -> None:
        """Send nothing more; the caller closes the socket."""
        self._closed = True
        for pending in (self._watchdog, self._question, self._end_check):
            if pending:
                pending.cancel()

    def end_after_answer(self) -> None:
        """Close the connection once the next message is sent; nothing more is received then."""
        self._last = True

    def abort(self) -> None:
        """Cut the connection at once."""
        self.end()
        self.wire.transport.abort()

    # --- how long it holds --------------------------------------------------------------------------------------------

    def holds_until(self, end: float, by: str) -> None:
        """Close the connection when the peer's credential expires (seconds since the epoch). A later call, after a
        renewal, replaces this one. A node's data connection ends with its control connection."""
        self._end, self._ends = end, by
        if self._end_check is not None:
            self._end_check.cancel()
        self._check_end()

    def _check_end(self) -> None:
        if self._closed or self.role == "agent-data":
            return
        if (left := self._end - time.time()) > 0:
            self._end_check = self._loop.call_later(min(left, CLOCK_SECONDS), self._check_end)
            return
        log.warning(f"cut: its {self._ends} has expired", role=self.role, name=self.name, peer=self.wire.address)
        self._flush()
        self.end()
        why = f"your {self._ends} has expired; renew it, or join again, and connect again"
        self._ending = self._loop.create_task(self.wire.close(CloseCode.POLICY_VIOLATION, why))

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
        """Watchdog: an agent that is silent for too long is cut; a client may be quiet, and is pinged."""
        if self._closed or self.role == "agent-data":  # lives as long as its control connection
            return
        deadline = self.link.deadline() if self.role == "agent" else self.link.last_received + CLIENT_SILENCE
        now = self._loop.time()
        if deadline > now:
            self._doubted = False
            self._watchdog = self._loop.call_at(deadline + 0.001, self._watch)
        elif self.role == "agent" and not self._doubted:
            # It may be we who were away (a stalled disk, a suspended machine): first read what has come meanwhile.
            self._doubted = True
            self._watchdog = self._loop.call_later(DOUBT_SECONDS, self._watch)
        elif self.role == "agent":
            log.warning("agent is silent", node=self.name, seconds=round(now - self.link.last_received, 1))
            self.abort()
        else:
            self._question = self._loop.create_task(self._ask())

    async def _ask(self) -> None:
        if await self.answers(CLIENT_SILENCE):
            self._watchdog = self._loop.call_later(CLIENT_SILENCE, self._watch)
        elif not self._closed:
            log.info("client is gone", user=self.name)
            self.abort()
