"""One connection to the coordinator: a Link with its socket. All messages of one turn of the event loop are sent in one
frame."""

import asyncio
import random
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import broadcast
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, InvalidURI
from websockets.uri import parse_uri

from distributed_grid.identity.credentials import client_context, has_identity, hint_of, tls_words
from distributed_grid.protocol.codec import BULK_BYTES, HELLO_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.link import Link
from distributed_grid.protocol.messages import Hello, Refused, Welcome
from distributed_grid.runtime import local, loopback
from distributed_grid.runtime.faults import fault
from distributed_grid.runtime.local import LOCAL_URI, socket_path
from distributed_grid.runtime.logs import get_logger

OPEN_SECONDS = 5.0
ASK_EVERY = 5.0
ANSWER_SECONDS = 10.0
"""Ping interval, and the timeout for an answer (s)."""
BACKLOG = 1 << 20
"""Size of the write buffer above which optional messages are left out."""


BACK_OFF_LEAST, BACK_OFF_MOST = 0.1, 10.0
"""Pause before another try to connect (s)."""

log = get_logger("agent")


def back_off(tries: int) -> float:
    """Return the seconds to wait after this many attempts. Full jitter: agents that were disconnected together do not
    reconnect together."""
    most = min(BACK_OFF_MOST, BACK_OFF_LEAST * 2 ** min(tries, 10))
    return random.uniform(BACK_OFF_LEAST / 2, most)  # noqa: S311


class CannotConnect(GridError):
    """No connection can be made now; `final`: nor at any later time."""

    def __init__(self, what: str, why: str = "", hint: str = "", final: bool = False) -> None:
        super().__init__(what, why, hint)
        self.final = final


class Disconnected(Exception):
    """The connection is over; its text says how."""


class Session:
    """A welcomed connection, made by `dial`. `before_flush` is called before a frame leaves, and may add to it; `began`
    is a time just before the hello was sent, by the given clock."""

    def __init__(self, wire: ClientConnection, link: Link, welcome: Welcome, began: float) -> None:
        self.welcome = welcome
        self.began = began
        self.before_flush: Callable[[], None] = lambda: None
        self._wire = wire
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._flush_due = False

    @property
    def congested(self) -> bool:
        """Whether the coordinator reads too slowly."""
        return self._wire.transport.get_write_buffer_size() > BACKLOG

    async def receive(self) -> list[Any]:
        """The messages of the next frame. Raises Disconnected; BadFrame and ProtocolMismatch for an invalid peer."""
        try:
            frame = await self._wire.recv()
        except ConnectionClosed as error:
            raise Disconnected(str(error)) from None
        return self._link.receive(frame, self._loop.time())

    def send(self, *messages: Any) -> None:
        """Queue messages for this turn's frame. Ignored on a closed connection."""
        self._link.send(*messages)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush_now(self) -> None:
        """Write at once what this turn has queued: nothing more comes."""
        if self._flush_due:
            self.flush()

    def flush(self) -> None:
        """Write what is queued."""
        self._flush_due = True
        self.before_flush()
        self._flush_due = False
        frames, unsent = self._link.data_to_send_anyway()
        for message, error in unsent:
            log.warning("a message cannot be sent as it is", kind=type(message).__name__, error=error.what)
        for frame in frames:
            self._write(frame)

    @fault("agent.send")
    def _write(self, frame: bytes) -> None:
        # Not `await send()`: nobody here waits for the coordinator. What may pile up is bounded by what it asked for,
        # by the jobs it started, and by `congested`.
        broadcast((self._wire,), frame)

    async def close(self) -> None:
        """Write what is queued, and close."""
        self.flush()
        await self._wire.close()


async def dial(
    url: str,
    hello: Hello,
    clock: Callable[[], float] = time.monotonic,
    identity: Path | None = None,
    trusts: str = "",
) -> Session:
    """Connect and be welcomed; `identity` is the folder with the node's certificate, if the grid needs one, and
    `trusts` another user of this machine whose coordinator this may be. Raises CannotConnect."""
    secure = url.startswith("wss:")
    if secure and (identity is None or not has_identity(identity)):
        hint = "grid agent join grid://HOST:PORT/TOKEN, with a token from `grid token create` on the master"
        raise CannotConnect(f"{url} asks who this node is", "this node has joined no grid", hint, final=True)
    try:
        path = socket_path(url)
        wire = await connect(
            url if path is None else LOCAL_URI,
            sock=None if secure else await asyncio.to_thread(_reach, url, path, trusts),
            ssl=client_context(identity) if secure and identity is not None else None,
            compression=None,
            max_size=BULK_BYTES + 1024,
            max_queue=64,
            open_timeout=OPEN_SECONDS,
            ping_interval=ASK_EVERY,
            ping_timeout=ANSWER_SECONDS,
            close_timeout=1,
            proxy=None,
            user_agent_header=None,
        )
    except InvalidURI as error:
        hint = "give an address such as wss://master.example.org:7433 or unix:///PATH"
        raise CannotConnect(f"{url} is no address of a coordinator", str(error), hint, final=True) from None
    except InvalidStatus as error:
        said = (error.response.body or b"").decode(errors="replace").strip()
        why = said or f"it answered with status {error.response.status_code}"
        raise CannotConnect(f"the coordinator at {url} refuses connections", why) from None
    except GridError as error:
        raise CannotConnect(error.what, error.why, error.hint) from None
    except ssl.SSLError as error:
        what = f"the coordinator at {url} and this node do not trust each other"
        raise CannotConnect(what, tls_words(error), hint_of(error)) from None
    except (ConnectionResetError, BrokenPipeError, ConnectionClosed, InvalidMessage, EOFError):
        from distributed_grid.identity.enrollment import disconnect_reason

        raise CannotConnect(f"the coordinator at {url} does not let us in", disconnect_reason(url, identity)) from None
    except (OSError, TimeoutError, InvalidHandshake) as error:
        why = str(error) or "it did not answer in time"
        raise CannotConnect(f"the coordinator at {url} cannot be reached", why) from None
    try:
        return await _greet(wire, hello, clock())
    except BaseException:
        wire.transport.abort()
        raise


def _reach(url: str, path: Path | None, trusts: str) -> socket.socket:
    """A connection without TLS. Raises InvalidURI, GridError, OSError."""
    if path is not None:
        return local.dial(path, OPEN_SECONDS)
    uri = parse_uri(url)
    return loopback.connect(uri.host, uri.port, OPEN_SECONDS, trusts)


async def _greet(wire: ClientConnection, hello: Hello, began: float) -> Session:
    loop = asyncio.get_running_loop()
    link = Link.dial(hello, loop.time())
    (frame,), _ = link.data_to_send_anyway()
    if len(frame) > HELLO_BYTES:
        why = f"its hello would have {len(frame)} bytes, and {HELLO_BYTES} are read"
        raise CannotConnect("this node has too many cores, GPUs or labels to introduce itself", why, final=True)
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            await wire.send(frame)
            answer = link.receive(await wire.recv(), loop.time())[0]
    except (TimeoutError, ConnectionClosed) as error:
        why = str(error) or "there was no answer to the hello"
        raise CannotConnect("the coordinator did not let this node in", why) from None
    except GridError as error:
        raise CannotConnect(error.what, error.why, error.hint) from None
    if isinstance(answer, Refused):
        raise CannotConnect(answer.what, answer.why, answer.hint, answer.final)
    return Session(wire, link, answer, began)
