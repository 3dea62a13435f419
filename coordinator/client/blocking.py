"""The command line's connection to the coordinator: blocking, and without asyncio, so that a command starts quickly."""

import contextlib
import math
import os
import pwd
import socket
import time
from collections import deque
from pathlib import Path
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from distributed_grid import __version__
from distributed_grid.protocol.codec import BULK_BYTES
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import Failed, Hello, NewCertificate, Refused, WantCertificate, Welcome
from distributed_grid.runtime.local import LOCAL_URI, NoSocket, dial, socket_path

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
PING_SECONDS = 5.0
SILENT_SECONDS = 15.0
"""A coordinator that was pinged and not heard for so long counts as gone."""
READ_BYTES = 1 << 18
RENEW_AGAIN = 60.0
"""Seconds until a renewal that failed is tried again."""
UNKNOWN = "it answered 401"
NOT_OURS = ("it answered ", "what listens there ", "what came ")


class Unreachable(GridError):
    """Nobody answers at the coordinator's address, or it turned us away for now. `lasting`: waiting cannot help."""

    def __init__(self, url: str, why: str, hint: str = "", lasting: bool = False) -> None:
        self.lasting = lasting
        what = f"cannot reach the coordinator at {url}"
        super().__init__(
            what, why, hint or "grid coordinator run · grid dev up (a grid on this machine) · --coordinator"
        )


class ConnectionLost(GridError):
    """The connection broke; what was asked may or may not have been done."""

    def __init__(self, why: str) -> None:
        super().__init__("the connection to the coordinator was lost", why=why, hint="try again")


class Denied(GridError):
    """The coordinator answered that it cannot be done; `code` is its short stable word, as in messages.Failed."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.what, failed.why, failed.hint)
        self.code = failed.code


def user_name() -> str:
    """Who we are to the grid: the owner of this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class Connection:
    """One open connection. Raises Unreachable where there is none to be had."""

    def __init__(self, url: str, timeout: float = CONNECT_SECONDS, identity: Path | None = None) -> None:
        self.url = url
        self.user = self.role = self.grid = ""
        self.heard = time.monotonic()
        self._identity = identity
        self._renew_at = math.inf
        self._answered = False
        self._numbers = 0
        self._inbox: deque[Any] = deque()
        self._parts: list[bytes] = []
        self._pinged = self.heard
        self._link = Link.dial(
            Hello(protocol=PROTOCOL, software=__version__, role="client", name=user_name(), host=socket.gethostname()),
            self.heard,
        )
        self._dial(timeout)

    # --- opening ------------------------------------------------------------------------------------------------------

    def _dial(self, timeout: float) -> None:
        path = socket_path(self.url)
        try:
            uri = parse_uri(self.url if path is None else LOCAL_URI)
        except (InvalidURI, ValueError):
            hint = "write it as ws://HOST:PORT, wss://HOST:PORT or unix://PATH (of ports 1 to 65535)"
            raise BadValue(f"{self.url!r} is not a coordinator's address", hint=hint) from None
        deadline = time.monotonic() + timeout
        try:
            if path is None:
                self._socket = socket.create_connection((uri.host, uri.port), timeout)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                self._socket = dial(path, timeout)
        except NoSocket as error:
            raise Unreachable(self.url, error.why, error.hint) from None
        except OSError as error:
            raise Unreachable(self.url, _reason(error), lasting=isinstance(error, socket.gaierror)) from None
        try:
            headers: dict[str, str] = {}
            if uri.secure:
                from distributed_grid.identity.credentials import as_member
                from distributed_grid.identity.member import identity_at

                self._identity = self._identity or identity_at(self.url)
                context, headers = as_member(self._identity)
                self._socket = context.wrap_socket(self._socket, server_hostname=uri.host)
            self._protocol = ClientProtocol(uri, max_size=BULK_BYTES + 1024)
            request = self._protocol.connect()
            request.headers.update(headers)
            self._protocol.send_request(request)
            self._flush()
            while self._protocol.state is State.CONNECTING:
                self._read(deadline)
            self._send_queued()
            while not self._inbox:
                self._read(deadline)
        except (ConnectionLost, OSError) as error:
            self.close()
            raise self._not_let_in(error) from None
        except GridError:
            self.close()
            raise
        welcome = self._inbox.popleft()
        self._enter(welcome)
        if self._identity is not None and (welcome.renew or welcome.renew_in):
            self._renew_at = time.time() + welcome.renew_in
            self._renew_if_due()

    def _not_let_in(self, error: ConnectionLost | OSError) -> GridError:
        if isinstance(error, TimeoutError) or self._answered:
            why = error.why if isinstance(error, ConnectionLost) else _reason(error)
            asked = "grid login, with a new token from one of its operators" if why.startswith(UNKNOWN) else ""
            return Unreachable(self.url, why, asked, lasting=why.startswith(NOT_OURS))
        from distributed_grid.identity.credentials import has_identity
        from distributed_grid.identity.enrollment import has_expired, hung_up

        if self._identity is not None and has_identity(self._identity) and has_expired(self._identity):
            return GridError(
                f"your certificate for the grid at {self.url} has expired",
                why="it is renewed by using it, and was not used for long",
                hint="grid login grid://HOST:PORT/TOKEN, with a token from one of its operators",
            )
        if isinstance(error, ConnectionLost | ConnectionResetError | BrokenPipeError):
            return Unreachable(self.url, hung_up(self.url, self._identity))
        return Unreachable(self.url, _reason(error))

    def _enter(self, answer: Welcome | Refused) -> None:
        if isinstance(answer, Refused):
            self.close()
            if answer.final:
                raise GridError(answer.what, answer.why, answer.hint)
            raise Unreachable(self.url, f"it turned us away: {answer.what}", answer.hint)
        self.user = answer.user or user_name()
        self.role, self.grid = answer.role, answer.grid

    def _renew_if_due(self) -> None:
        """Have a new certificate when most of the life of ours is over: the coordinator ends a connection with the
        certificate that it was made or renewed with. If that fails, it is tried again."""
        if self._identity is None or time.time() < self._renew_at:
            return
        from distributed_grid.identity.enrollment import Asked, renewal_time

        self._renew_at = time.time() + RENEW_AGAIN
        with contextlib.suppress(GridError):
            asked = Asked(self._identity)
            question = WantCertificate(id=self.number(), request=asked.request)
            answer: NewCertificate = self.call(question, CONNECT_SECONDS)
            if answer.certificate:
                asked.keep(answer.certificate)
                self._renew_at = renewal_time(self._identity)

    def _read(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer")
        self._socket.settimeout(left)
        self._take()

    # --- talking ------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        """A fresh number for a request."""
        self._numbers += 1
        return self._numbers

    def send(self, *messages: Any) -> None:
        """Say these messages. Raises ConnectionLost."""
        self._link.send(*messages)
        self._send_queued()

    def call(self, message: Any, timeout: float = ANSWER_SECONDS) -> Any:
        """The answer to a request (one with an `id` of `number()`). Raises Denied for a Failed, ConnectionLost."""
        self.send(message)
        deadline = time.monotonic() + timeout
        others: deque[Any] = deque()
        while True:
            while self._inbox:
                one = self._inbox.popleft()
                if getattr(one, "id", None) != message.id:
                    others.append(one)
                    continue
                self._inbox.extendleft(reversed(others))
                if isinstance(one, Failed):
                    raise Denied(one)
                return one
            try:
                self._read(deadline)
            except TimeoutError:
                raise ConnectionLost(f"it did not answer within {timeout:g} s") from None

    def receive(self, timeout: float | None = 0.0) -> list[Any]:
        """The messages that are there, or come within `timeout` seconds (none: however long it takes); pings a quiet
        coordinator. Raises ConnectionLost."""
        self._renew_if_due()
        if not self._inbox:
            self._socket.settimeout(timeout)
            try:
                self._take()
            except (TimeoutError, BlockingIOError):
                self.keep_alive()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def keep_alive(self) -> None:
        """Ping a coordinator that has not been heard for a while; one that does not answer is lost."""
        now = time.monotonic()
        if now - max(self.heard, self._pinged) >= PING_SECONDS:
            self._pinged = now
            self._protocol.send_ping(b"")
            self._flush()
        if now - self.heard >= SILENT_SECONDS and now - self._pinged < SILENT_SECONDS:
            raise ConnectionLost(f"nothing was heard for {now - self.heard:.0f} s")

    def fileno(self) -> int:
        """For select and poll."""
        return self._socket.fileno()

    def waiting(self) -> bool:
        """Whether messages are there without reading from the socket."""
        return bool(self._inbox)

    def close(self) -> None:
        """Leave. Jobs go on."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._flush()
        except (ConnectionLost, AttributeError):
            pass
        self._socket.close()

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _send_queued(self) -> None:
        for frame in self._link.data_to_send():
            self._protocol.send_binary(frame)
        self._flush()

    def _flush(self) -> None:
        try:
            for data in self._protocol.data_to_send():
                if data:
                    self._socket.settimeout(ANSWER_SECONDS)
                    self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(_reason(error)) from None

    def _take(self) -> None:
        """Read once and take in what came. Raises TimeoutError or BlockingIOError where nothing did."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            if type(error).__name__ == "SSLWantReadError":  # a record that is not all there yet, or had no words in it
                raise BlockingIOError from None
            raise ConnectionLost(_reason(error)) from None
        if data:
            self._answered = True
            self.heard = time.monotonic()
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._frame(event)
            elif isinstance(event, Response) and self._protocol.handshake_exc:
                raise ConnectionLost(_not_ours(event, self._protocol.handshake_exc))
        if self._protocol.state is State.OPEN:
            self._flush()
        elif self._protocol.state is not State.CONNECTING and not self._inbox:
            raise ConnectionLost(self._ended())

    def _ended(self) -> str:
        exc = self._protocol.handshake_exc
        if isinstance(exc, InvalidHandshake | InvalidMessage | EOFError):
            return "what listens there does not speak our protocol"
        broken = self._protocol.parser_exc
        if broken is not None and not isinstance(broken, EOFError):  # the end of the stream is one too
            return f"what came is not a websocket frame: {broken}"
        if (close := self._protocol.close_rcvd) is not None:
            return f"the coordinator closed it: {close}"
        return "the coordinator is gone"

    def _frame(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.BINARY, Opcode.CONT, Opcode.TEXT):
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            whole, self._parts = b"".join(self._parts), []
            self._inbox.extend(self._link.receive(whole, self.heard))


def _not_ours(response: Response, error: Exception) -> str:
    body = (response.body or b"")[:200].decode(errors="replace").strip()
    return f"it answered {response.status_code}: {body or error}"


def _reason(error: OSError) -> str:
    if type(error).__module__ == "ssl":
        from distributed_grid.identity.credentials import tls_words

        return tls_words(error)  # type: ignore[arg-type]
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, socket.gaierror):
        return f"the host name is not known: {error.strerror}"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror or str(error) or type(error).__name__).lower()
