"""The listening sockets. Connections are accepted here and not by the websockets library. So one can wait before its
handshake, handshakes are bounded in number and time, and a silent connection costs only its file descriptor."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import stat
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from websockets.asyncio.server import Server, ServerConnection
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from distributed_grid.coordinator.net.connection import Wire
from distributed_grid.coordinator.net.handshakes import HandshakeQueue
from distributed_grid.coordinator.net.limits import LogThrottle
from distributed_grid.coordinator.net.tls import TlsTransport
from distributed_grid.protocol.codec import HELLO_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.local import SOCKET
from distributed_grid.runtime.unix import boot_clock, bound, credentials

TLS_RECORD = b"\x16"
"""The first byte of TLS."""
_ANSWER = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{}\n"


def speaks_other_protocol(first: bytes, secure: bool) -> str:
    """Return what is wrong with a peer whose first byte is this, on a port with TLS or without; empty: nothing."""
    if secure and first != TLS_RECORD:
        return "what it says is not TLS; a client of the grid has to use wss://"
    if not secure and first == TLS_RECORD:
        return "it speaks TLS, and this grid has no authority"
    return ""


def answer_in_plain_text(sock: socket.socket, secure: bool) -> None:
    """Answer a peer that speaks the wrong protocol with the right one, in a form that is readable in both."""
    words = "This grid has an authority: use wss://" if secure else "This grid has no authority: use ws://"
    with contextlib.suppress(OSError):
        sock.send(_ANSWER.format(words).encode())
        sock.shutdown(socket.SHUT_WR)
        sock.recv(1 << 16)  # with bytes unread, closing would take the answer back


def handshake_error(error: OSError) -> str:
    """Why a handshake failed, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TLS_ERRORS.get(error.verify_message, f"its certificate is not good: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        plain = (error.reason or str(error)).replace("_", " ").lower()
        return TLS_ERRORS.get(plain, f"TLS: {plain}")
    if isinstance(error, ConnectionAbortedError):
        return "its TLS handshake did not end in time"
    return "it went away in the middle of the handshake"


TLS_ERRORS = {
    "certificate has expired": "its certificate has expired",
    "unable to get local issuer certificate": "its certificate is not of this grid's authority",
    "self-signed certificate": "its certificate is not of this grid's authority",
    "self-signed certificate in certificate chain": "its certificate is not of this grid's authority",
    "certificate signature failure": "its certificate is not of this grid's authority",
    "unsupported protocol": "it does not speak TLS 1.3",
    "no shared cipher": "it has no cipher of TLS 1.3",
    "tlsv1 alert unknown ca": "it does not take this grid's authority for one",
    "sslv3 alert bad certificate": "it does not take our certificate",
    "sslv3 alert certificate unknown": "it does not take our certificate",
    "sslv3 alert certificate expired": "by its clock our certificate has expired",
}


OPEN_TO_PASS = 0o711
"""Mode of a state directory when it is created: others can pass through it to the socket, and list nothing."""
TLS_SECONDS = 5.0
UPGRADE_SECONDS = 5.0
"""Time-out of the HTTP request that opens a websocket, from its first byte to its last."""
CLOSE_SECONDS = 2.0
QUEUE = 4
"""Frames of a connection that are read ahead of the one being handled."""
FILES_KEPT = 256
"""File descriptors that are kept back from connections, for store, logs and blobs."""
CHECK_SECONDS = 0.25
BACKLOG = 4096


def bind_unix(state_dir: Path) -> socket.socket:
    """Bind the Unix socket, open to everybody. An existing socket was left by a coordinator that was killed, since this
    process holds the directory's lock; anything else is refused. Raises GridError, OSError."""
    path = state_dir / SOCKET
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise GridError(
                f"{path} is in the way",
                why="the coordinator's socket belongs there, and it is something else",
                hint="move it away, or give another --state-dir",
            )
        path.unlink()
    except FileNotFoundError:
        pass
    ours = bound(path)
    try:
        path.chmod(0o666)
    except BaseException:
        ours.close()
        raise
    return ours


@contextmanager
def closed_to_others(state_dir: Path) -> Iterator[None]:
    """Close everything in the state directory except the socket to other users, who may pass through it."""
    before = os.umask(0o077)
    for entry in os.scandir(state_dir):
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if mode & 0o077 and not entry.is_symlink() and entry.name != SOCKET:
            os.chmod(entry.path, mode & 0o700)
    try:
        yield
    finally:
        os.umask(before)


class Incoming:
    """An accepted connection, from the first moment to the last."""

    def __init__(self, sock: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        self.sock = sock
        self.address = address
        self.tls = tls
        self.accepted = boot_clock()
        self.wire: Wire | None = None
        self.task: asyncio.Task[None] | None = None

    def cut(self) -> None:
        """End it, wherever it stands."""
        if self.wire is not None:
            self.wire.transport.abort()
            return
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        if self.task is None:
            self.sock.close()


class Listener:
    """Accepts connections. `serve` is called with each websocket; `judge` may answer an HTTP request instead."""

    def __init__(
        self,
        serve: Callable[[Wire], Awaitable[None]],
        judge: Callable[[ServerConnection, Request], Response | None],
        throttle: LogThrottle,
    ) -> None:
        self._serve = serve
        self._judge = judge
        self._throttle = throttle
        self._loop = asyncio.get_running_loop()
        self._queue: HandshakeQueue[Incoming] = HandshakeQueue()
        self._peers: set[Incoming] = set()
        self._silent: OrderedDict[Incoming, float] = OrderedDict()
        """Connections without a first byte, and since when."""
        self._listening: list[socket.socket] = []
        self._acceptors: list[asyncio.Task[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_files = most - FILES_KEPT if most > 2 * FILES_KEPT else most

    # --- listening ----------------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Accept connections at all addresses of a host; the port. Raises OSError, OverflowError."""
        listening = await self._bound(host, port)
        for one in listening:
            self.take_from(one, tls)
        bound: int = listening[0].getsockname()[1]
        return bound

    def take_from(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections from a bound socket, which this listener closes."""
        self._listening.append(listening)
        listening.setblocking(False)
        listening.listen(BACKLOG)
        self._acceptors.append(self._loop.create_task(self._accept(listening, tls)))

    async def _bound(self, host: str, port: int) -> list[socket.socket]:
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        made: list[socket.socket] = []
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                if made:  # the same port at all addresses
                    address = (address[0], made[0].getsockname()[1], *address[2:])
                made.append(socket.socket(family, socket.SOCK_STREAM))
                made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    made[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                made[-1].bind(address)
        except BaseException:
            for one in made:
                one.close()
            raise
        return made

    def is_serving(self) -> bool:
        """Called by the websockets library at the end of a handshake."""
        return bool(self._listening)

    async def close(self) -> None:
        """Accept no more, and close all connections in order."""
        for task in self._acceptors:
            task.cancel()
        await asyncio.gather(*self._acceptors, return_exceptions=True)
        for listening in self._listening:
            listening.close()
        self._listening = []
        if self._timer is not None:
            self._timer.cancel()
        for peer in list(self._silent):
            self._silence_ends(peer)
        closing = []
        for peer in list(self._peers):
            if peer.wire is not None and peer.wire.protocol.state is State.OPEN:
                closing.append(peer.wire.close(1001))
            else:
                peer.cut()
        await asyncio.gather(*closing, return_exceptions=True)
        tasks = [peer.task for peer in self._peers if peer.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- who comes ----------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        while True:
            try:
                sock, address = await self._loop.sock_accept(listening)
            except OSError as error:  # gone before it was accepted, or no file is left
                self._throttle.warning("a connection could not be accepted", peer="", why=str(error))
                await asyncio.sleep(0.1)
                continue
            local = sock.family == socket.AF_UNIX
            self._arrived(Incoming(sock, f"uid {credentials(sock).uid}" if local else str(address[0]), tls))
            await asyncio.sleep(0)  # however many stand outside, those inside have their turn

    def _arrived(self, peer: Incoming) -> None:
        # The kernel gives the lowest number that is free, so a number says how many files are open.
        if peer.sock.fileno() >= self._most_files:
            full = "as many connections are open as this process may have files"
            if not self._silent:
                self._turn_away(peer, full)
                return
            self._silence_ends(next(iter(self._silent)), full)
        self._peers.add(peer)
        self._silent[peer] = time.monotonic()
        self._loop.add_reader(peer.sock.fileno(), self._spoke, peer)
        self._check_soon()

    def _spoke(self, peer: Incoming) -> None:
        """The first byte has come, or the end."""
        self._silence_ends(peer)
        out = self._queue.enqueue(peer, peer.address, time.monotonic())
        if out is not None:
            self._peers.discard(out)
            self._turn_away(out, "too many connections wait to be let in")
        self._let_in()

    def _silence_ends(self, peer: Incoming, why: str = "") -> None:
        """Stop listening for its first byte, and turn it away if a reason is given."""
        del self._silent[peer]
        self._loop.remove_reader(peer.sock.fileno())
        if why:
            self._peers.discard(peer)
            self._turn_away(peer, why)

    def _let_in(self) -> None:
        if not self._listening:
            return
        for peer in self._queue.admit(time.monotonic()):
            peer.task = self._loop.create_task(self._receive(peer))
        self._check_soon()

    def _check_soon(self) -> None:
        if (self._queue.waiting or self._silent) and self._timer is None and self._listening:
            self._timer = self._loop.call_later(CHECK_SECONDS, self._check_waiting)

    def _check_waiting(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._silent and (first := next(iter(self._silent.items())))[1] <= now - TLS_SECONDS:
            self._silence_ends(first[0], f"it said nothing for {TLS_SECONDS:g} s")
        late, slow = self._queue.evict(now)
        for peer in late:
            self._peers.discard(peer)
            self._turn_away(peer, "it waited too long to be let in")
        for peer in slow:
            self._turn_away(peer, "it did not say who it is, and others wait")
        self._let_in()

    def _turn_away(self, peer: Incoming, why: str) -> None:
        peer.cut()
        self._throttle.warning("turned away", peer=peer.address, why=why)

    def _known(self, peer: Incoming) -> None:
        self._queue.identified(peer)
        self._let_in()

    def _left(self, peer: Incoming) -> None:
        self._queue.release(peer)
        self._let_in()

    # --- a connection -------------------------------------------------------------------------------------------------

    async def _receive(self, peer: Incoming) -> None:
        try:
            if await self._handshakes(peer) and peer.wire is not None:
                async with peer.wire:
                    await self._serve(peer.wire)
        except Exception as error:  # the handshake's; `serve` judges its own
            self._throttle.warning("turned away", peer=peer.address, why=str(error) or type(error).__name__)
        finally:
            if peer.wire is not None and peer.wire.protocol.state is not State.CLOSED:
                peer.wire.transport.abort()
            self._peers.discard(peer)
            self._left(peer)

    async def _handshakes(self, peer: Incoming) -> bool:
        """TLS, if we have it, and HTTP; whether a websocket is open."""
        peer.sock.setblocking(False)
        if peer.sock.family != socket.AF_UNIX:
            with contextlib.suppress(OSError):
                peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._begins_well(peer):
            return False
        wire = self._wire(peer)
        try:
            if peer.tls is None:
                await self._loop.connect_accepted_socket(lambda: wire, peer.sock)
            else:
                tls = TlsTransport(peer.tls, wire)
                await self._loop.connect_accepted_socket(lambda: tls, peer.sock)
                await tls.handshake(TLS_SECONDS)
            peer.wire = wire
        except OSError as error:
            self._throttle.warning("turned away", peer=peer.address, why=handshake_error(error))
            return False
        try:
            async with asyncio.timeout(UPGRADE_SECONDS):
                await wire.handshake(self._judge, None, None)
        except TimeoutError:
            self._throttle.warning("turned away: no HTTP request came in time", peer=peer.address)
            return False
        return wire.protocol.state is State.OPEN

    def _begins_well(self, peer: Incoming) -> bool:
        """Whether a peer's first byte, which has come, is one of what is spoken here."""
        secure = peer.tls is not None
        try:
            first = peer.sock.recv(1, socket.MSG_PEEK)
            why = speaks_other_protocol(first, secure) if first else "it left without a word"
        except OSError as error:
            first, why = b"", handshake_error(error)
        if why:
            if first:
                answer_in_plain_text(peer.sock, secure)
            self._throttle.warning("turned away", peer=peer.address, why=why)
            peer.sock.close()
        return not why

    def _wire(self, peer: Incoming) -> Wire:
        wire = Wire(
            ServerProtocol(max_size=HELLO_BYTES),
            cast(Server, self),  # of which a connection asks only whether it is serving
            ping_interval=None,  # agents are heard by their heartbeats, clients are asked when they are quiet
            close_timeout=CLOSE_SECONDS,
            max_queue=QUEUE,
        )
        wire.address, wire.accepted = peer.address, peer.accepted
        wire.let_in = lambda: self._known(peer)
        return wire
