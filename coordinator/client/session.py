"""A client's session with the coordinator, without I/O: bytes and times in; events, and bytes to write, out.

A session survives lost connections. Requests that were not answered are sent again on the next connection, except those
that are not safe to repeat (a signal, a part of a file); watched jobs are watched again. The pauses between attempts
grow, until the client's patience is over. The shells (`aio`, `blocking`) dial when `dial_at` has come, read, write, and
call `tick` at `deadline()`.
"""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidMessage, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State as Wire
from websockets.uri import WebSocketURI, parse_uri

from distributed_grid import __version__
from distributed_grid.protocol.codec import BULK_BYTES, decode, encode, unsendable
from distributed_grid.protocol.errors import BadFrame, BadValue, GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import (
    Failed,
    GroupUpdate,
    Hello,
    JobUpdate,
    Refused,
    Submitted,
    Watch,
    Welcome,
)
from distributed_grid.runtime.local import LOCAL_URI, NoSocket, socket_path

if TYPE_CHECKING:
    import ssl

PATIENCE = 300.0
"""How long a coordinator that was lost is waited for by programs, in seconds."""
CONNECT_SECONDS = 5.0
PING_SECONDS = 5.0
SILENT_SECONDS = 15.0
"""A coordinator that is not heard for so long, although it was pinged, counts as gone."""
UPLINK = 64 << 10
UPLINK_BYTES = 4 << 20
"""What was written may still be on its way, before the ping: a second more for so many bytes, of so many at most."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
RENEW_AGAIN = 60.0
"""A renewal of our certificate that failed is tried again after this."""
TIMED_OUT = "no answer in time"


class GridUnavailable(GridError):
    """The coordinator cannot be reached, or was lost for longer than the client's patience. `lasting`: waiting cannot
    help."""

    def __init__(self, what: str, why: str = "", hint: str = "", lasting: bool = False) -> None:
        super().__init__(what, why, hint)
        self.lasting = lasting


class ConnectionLost(GridUnavailable):
    """The connection broke before the answer came; what was asked may or may not have been done."""

    def __init__(self, why: str) -> None:
        super().__init__("the connection to the coordinator was lost", why, "try again")


class RequestRefused(GridError):
    """The coordinator answered that it cannot be done. `code` is a short stable word, as in messages.Failed."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.what, failed.why, failed.hint)
        self.code = failed.code


class Opened(msgspec.Struct, frozen=True):
    """A connection was let in; `again`: after one that was lost."""

    again: bool


class Away(msgspec.Struct, frozen=True):
    """The coordinator cannot be reached; the session keeps trying for this many seconds more."""

    error: GridError
    seconds: float


class Lost(msgspec.Struct, frozen=True):
    """The connection was lost, and is made again."""

    why: str


class Answer(msgspec.Struct, frozen=True):
    """The answer to the request with this number, or the error in its place."""

    number: int
    content: Any


class Over(msgspec.Struct, frozen=True):
    """The session has ended: it makes no connection any more, and all requests have got their answers."""

    error: GridError


Event = Opened | Away | Lost | Answer | Over | JobUpdate | GroupUpdate


class Followed(msgspec.Struct):
    """A job that is followed, as of its last view; `error`: why there will be no further view."""

    view: JobView
    number: int = 0
    followers: int = 0
    error: GridError | None = None


class _Request(msgspec.Struct):
    message: Any
    repeatable: bool


def user_name() -> str:
    """Return the name of this user in the grid: the owner of this process."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class Session:
    """`user` is how we call ourselves; `patience` how long a lost coordinator is waited for, in seconds; `jitter` a
    random number between two; `diagnose` the error for a connection that was not let in, from the reason and whether a
    word came back. `strict`: what the coordinator would not understand is refused here. Raises BadValue for what is no
    address."""

    def __init__(
        self,
        url: str,
        user: str,
        patience: float,
        jitter: Callable[[float, float], float],
        diagnose: Callable[[str, bool], GridError],
        strict: bool = True,
    ) -> None:
        self.url = url
        self.uri = address(url)
        self.patience = patience
        self.welcome: Welcome | None = None
        self.opened = 0
        """How many connections were let in."""
        self.dial_at: float | None = None
        """When to dial; None: there is a connection, or none is to be made."""
        self.error: GridError | None = GridUnavailable(
            "the client is not connected", hint="use it in a `with` block, or connect it first"
        )
        """Why nothing can be asked."""
        self.events: list[Event] = []
        self.followed: dict[str, Followed] = {}
        self._hello = Hello(protocol=PROTOCOL, software=__version__, role="client", name=user, host=os.uname().nodename)
        self._jitter = jitter
        self._diagnose = diagnose
        self._strict = strict
        self._numbers = 0
        self._requests: dict[int, _Request] = {}
        self._watches: dict[int, Watch] = {}
        self._wire: ClientProtocol | None = None
        self._link: Link | None = None
        self._parts: list[bytes] = []
        self._until = self._pause = 0.0
        self._received_at = self._pinged = self._sent_unanswered = 0.0
        self._answered = self._waited = False
        self._process = 0
        """The one that has dialled."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection, welcomed or not yet."""
        return self._wire is not None

    @property
    def open(self) -> bool:
        """Whether there is a connection that was welcomed."""
        return self._link is not None and self._link.open

    @property
    def inherited(self) -> bool:
        """The connection is that of the process which forked this one."""
        return self._wire is not None and self._process != os.getpid()

    def take_events(self) -> list[Event]:
        """Return the events since the last call, in order."""
        events, self.events = self.events, []
        return events

    # --- asking -------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        """A fresh number for a request."""
        self._numbers += 1
        return self._numbers

    def ask(self, message: Any, repeatable: bool = True) -> int:
        """Send a request; the Answer with the returned number comes as an event. A message with the id 0 gets a number.
        Without a connection it is sent later; if not `repeatable`, it fails with ConnectionLost. Raises BadValue for
        what cannot be sent, and the error of a session that is over."""
        self._check_usable()
        if not message.id:
            message = replace(message, id=self.number())
        self._check(message)
        number: int = message.id
        if not self.open and not repeatable:
            self.events.append(Answer(number, ConnectionLost("there is none now")))
            return number
        self._requests[number] = _Request(message, repeatable)
        self._send(message)
        return number

    def post(self, message: Any) -> None:
        """Send a message that is not answered. Raises ConnectionLost without a connection."""
        self._check_usable()
        if not self.open:
            raise ConnectionLost("there is none now")
        self._send(message)

    def _check_usable(self) -> None:
        if self.error is not None:
            raise self.error
        if self.inherited:
            raise GridError(
                "this GridClient belongs to another process",
                why="it was connected before this process was forked, and both would use one connection",
                hint="connect a client in each process; `close()` frees this one, and leaves the other's connection",
            )

    def forget(self, number: int) -> None:
        """Stop waiting for the answer to this request."""
        self._requests.pop(number, None)

    def watch(self, *jobs: str, whole: bool = False) -> int:
        """Subscribe to updates of these jobs, on this and every later connection. Returns the number of the first
        request."""
        number = self.number()
        self._watches[number] = Watch(id=number, jobs=jobs, whole=whole)
        return self.ask(self._watches[number])

    def unwatch(self, number: int) -> None:
        """Cancel a subscription of `watch` by its number: it is not renewed on the next connection."""
        self._watches.pop(number, None)
        self.forget(number)

    def rename(self, number: int, job: str) -> None:
        """Watch this job in place of the name watched under this number, also on the next connection: the name meant
        this job."""
        if number in self._watches:
            self._watches[number] = Watch(id=number, jobs=(job,))

    def follow(self, view: JobView) -> Followed:
        """Return the latest view of a job, kept up to date as long as it has followers."""
        if view.state is State.ENDED:
            return Followed(view)
        followed = self.followed.get(view.id)
        if followed is None:
            followed = self.followed[view.id] = Followed(view, self.watch(view.id))
        followed.followers += 1
        return followed

    def unfollow(self, followed: Followed) -> None:
        """Remove a follower; without any, the updates of the job are not watched any more."""
        followed.followers -= 1
        if not followed.followers and self.followed.get(followed.view.id) is followed:
            del self.followed[followed.view.id]
            self._watches.pop(followed.number, None)
            self.forget(followed.number)

    def for_followers(self, event: Event) -> bool:
        """Whether an event concerns only the followers of jobs, who see its content in their views."""
        numbers = {followed.number for followed in self.followed.values()}
        if isinstance(event, JobUpdate):
            return event.job.id in self.followed or self._watches.keys() <= numbers
        return isinstance(event, Answer) and event.number in numbers

    def _send(self, message: Any) -> None:
        if self._link is not None and self._link.open:
            self._link.send(message)

    def _check(self, message: Any) -> None:
        """Raise BadValue for what cannot be sent, or what the coordinator would end the connection for."""
        try:
            frame = encode(1, [message])
            if self._strict:
                decode("FromClient", frame)
        except (BadFrame, TypeError, OverflowError) as error:
            raise BadValue("this cannot be asked", why=unsendable(error)) from None
        if len(frame) > BULK_BYTES:
            why = f"{BULK_BYTES} bytes are the most that the other side reads"
            raise BadValue(f"a message of {len(frame)} bytes cannot be sent", why=why)

    # --- connections --------------------------------------------------------------------------------------------------

    def start(self, now: float, patience: float = 0.0) -> None:
        """Start the session, or restart it once it is over: dial, and retry for `patience` seconds."""
        if self.error is not None:
            self.error, self.opened = None, 0
            self._until, self._pause, self._waited = now + patience, FIRST_PAUSE, False
            self.dial_at = now

    def dialled(self, headers: dict[str, str], now: float) -> None:
        """Handle a new connection: the handshake begins."""
        self._process = os.getpid()
        self._wire = ClientProtocol(self.uri, max_size=BULK_BYTES + 1024)
        request = self._wire.connect()
        request.headers.update(headers)
        self._wire.send_request(request)
        self._link = Link.dial(self._hello, now)
        self._parts.clear()
        self._answered = False
        self._received_at = self._pinged = now
        self.dial_at = None

    def not_dialled(self, error: GridError, now: float) -> None:
        """A connection could not be made. A session that was never open gives up if waiting cannot help."""
        final = not isinstance(error, GridUnavailable) or (error.lasting and not self.opened)
        if final or now >= self._until:
            self._end(error)
            return
        if not self.opened and not self._waited:
            self.events.append(Away(error, self._until - now))
        self._waited = True
        self._dial_later(now)

    def broken(self, why: str, now: float) -> None:
        """The connection is no more."""
        was_open, self._link, self._wire = self.open, None, None
        if not was_open:
            self.not_dialled(self._diagnose(why, self._answered), now)
            return
        lost = ConnectionLost(why)
        for number, request in list(self._requests.items()):
            if not request.repeatable:
                del self._requests[number]
                self.events.append(Answer(number, lost))
        if not self.patience:
            self._end(lost)
            return
        self.events.append(Lost(why))
        self._until, self._pause = now + self.patience, FIRST_PAUSE
        self._dial_later(now)

    def _dial_later(self, now: float) -> None:
        self.dial_at = now + self._jitter(self._pause / 2, self._pause)
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)

    def close(self) -> list[bytes]:
        """Leave; jobs run on. What is to be written before the connection is closed."""
        last: list[bytes] = []
        if self._wire is not None and self._wire.state is Wire.OPEN and not self.inherited:
            self._wire.send_close(1000)
            last = [data for data in self._wire.data_to_send() if data]
        self._wire = self._link = None
        self._end(GridUnavailable("the client is closed", hint="use it in a `with` block, or connect it first"))
        return last

    def _end(self, error: GridError) -> None:
        self._wire = self._link = self.dial_at = None
        self.error = error
        self.events += [Answer(number, error) for number in self._requests]
        for followed in self.followed.values():
            followed.error = error
        self._requests.clear()
        self._watches.clear()
        self.followed.clear()
        self.events.append(Over(error))

    # --- time ---------------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when to call `tick`, or to dial; None: never."""
        if self._wire is None:
            return self.dial_at
        if not self.open:
            return self._received_at + CONNECT_SECONDS
        return self._pinged + self._silence() if self._pinged > self._received_at else self._received_at + PING_SECONDS

    def tick(self, now: float) -> None:
        """Time has passed: a quiet coordinator is pinged, and one that does not answer counts as gone."""
        deadline = self.deadline()
        if self._wire is None or deadline is None or now < deadline:
            return
        if not self.open:
            self.broken(TIMED_OUT, now)
        elif self._pinged > self._received_at:
            self.broken(f"nothing was heard for {now - self._received_at:.0f} s", now)
        else:
            self._pinged = now
            self._wire.send_ping(b"")

    def _silence(self) -> float:
        return SILENT_SECONDS - PING_SECONDS + min(self._sent_unanswered, UPLINK_BYTES) / UPLINK

    # --- bytes --------------------------------------------------------------------------------------------------------

    def data_to_send(self) -> list[bytes]:
        """Return the bytes to write now."""
        if self._wire is None or self._link is None:
            return []
        if self._wire.state is Wire.OPEN:
            for frame in self._link.data_to_send():
                self._wire.send_binary(frame)
        data = [piece for piece in self._wire.data_to_send() if piece]
        self._sent_unanswered += sum(map(len, data))
        return data

    def receive(self, data: bytes, now: float) -> None:
        """Take what was read; nothing: the other side has closed the connection."""
        if (wire := self._wire) is None:
            return
        if data:
            self._answered = True
            self._received_at, self._sent_unanswered = now, 0.0
            wire.receive_data(data)
        else:
            wire.receive_eof()
        why = ""
        try:
            for event in wire.events_received():
                if isinstance(event, Frame):
                    self._frame(event, now)
                elif isinstance(event, Response) and wire.handshake_exc is not None:
                    why = _not_ours(event, wire.handshake_exc)
        except GridError as error:
            if not self.open:
                self._refused(error, now)
            why = error.what
        if self._wire is not None and (why or wire.state in (Wire.CLOSING, Wire.CLOSED) or wire.handshake_exc):
            self.broken(why or _end_words(wire), now)

    def _frame(self, frame: Frame, now: float) -> None:
        if frame.opcode not in (Opcode.BINARY, Opcode.CONT, Opcode.TEXT) or self._link is None:
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            whole = b"".join(self._parts)
            self._parts.clear()
            for message in self._link.receive(whole, now):
                self._message(message, now)

    def _message(self, message: Any, now: float) -> None:
        match message:
            case Welcome():
                self._enter(message)
            case Refused(what, why, hint, final):
                away = unreachable(self.url, f"it turned us away: {what}", hint)
                self._refused(GridError(what, why, hint) if final else away, now)
            case JobUpdate(view):
                if (followed := self.followed.get(view.id)) is not None:
                    followed.view = view
                self.events.append(message)
            case GroupUpdate():
                self.events.append(message)
            case _:
                self._answer(message)

    def _refused(self, error: GridError, now: float) -> None:
        self._wire = self._link = None
        self.not_dialled(error, now)

    def _enter(self, welcome: Welcome) -> None:
        """We are let in: what was not answered is asked again, and what was watched is watched again."""
        self.welcome = welcome
        self.opened += 1
        for number, watch in self._watches.items():
            self._requests[number] = _Request(watch, True)
        for request in self._requests.values():
            self._send(request.message)
        self.events.append(Opened(self.opened > 1))

    def _answer(self, message: Any) -> None:
        number = message.id
        request = self._requests.pop(number, None)
        if request is None:
            return
        if isinstance(message, Failed):
            refused = RequestRefused(message)
            self._watches.pop(number, None)
            for followed in self.followed.values():
                if followed.number == number:
                    followed.error = refused
            self.events.append(Answer(number, refused))
            return
        if isinstance(message, Submitted) and getattr(request.message, "watch", False):
            self._watches[number] = Watch(id=number, jobs=message.jobs)
        self.events.append(Answer(number, message))


# --- addresses and errors ---------------------------------------------------------------------------------------------


def address(url: str) -> WebSocketURI:
    """The address of a coordinator, taken apart; for a Unix socket what the handshake says. Raises BadValue."""
    try:
        if not isinstance(url, str):
            raise ValueError("no text")
        plain = url if socket_path(url) is None else LOCAL_URI
        uri = parse_uri(plain)
        if uri.username is not None or urlsplit(plain).port == 0 or any(char.isspace() for char in plain):
            raise ValueError("nobody can be reached so")
    except (InvalidURI, ValueError):
        hint = "write it as ws://HOST:PORT, wss://HOST:PORT or unix://PATH (of ports 1 to 65535)"
        raise BadValue(f"{url!r} is not a coordinator's address", hint=hint) from None
    return uri


def credentials(url: str, identity: Path | None) -> tuple["ssl.SSLContext | None", dict[str, str], Path | None]:
    """Return what a connection needs: TLS and headers, by the identity in this folder or the stored one for that
    address; and the folder of that identity (None: without TLS). Raises GridError."""
    if not address(url).secure:
        return None, {}, None
    from distributed_grid.identity.credentials import as_member
    from distributed_grid.identity.member import identity_at

    identity = identity or identity_at(url)
    return *as_member(identity), identity


def unreachable(url: str, why: str, hint: str = "", lasting: bool = False) -> GridUnavailable:
    """The error for a coordinator that does not answer."""
    hint = hint or "grid coordinator run · grid dev up (a grid on this machine) · --coordinator"
    return GridUnavailable(f"cannot reach the coordinator at {url}", why, hint, lasting)


def not_dialled(url: str, error: OSError | NoSocket, identity: Path | None) -> GridError:
    """The error for a connection that cannot be made."""
    if isinstance(error, NoSocket):
        return unreachable(url, error.why, error.hint)
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return not_let_in(url, identity, "", False)
    if type(error).__module__ == "ssl":
        from distributed_grid.identity.credentials import hint_of
        from distributed_grid.identity.enrollment import expired
        from distributed_grid.identity.member import other_address

        hint = hint_of(error) or other_address(url, identity)  # type: ignore[arg-type]
        return expired(url, identity) or unreachable(url, words_of(error), hint)
    return unreachable(url, words_of(error), lasting=(error.errno or 0) < 0)  # the numbers of getaddrinfo are negative


def not_let_in(url: str, identity: Path | None, why: str, answered: bool) -> GridError:
    """The error for a connection that ended before we were let in; `answered`: the other side had said something."""
    if answered or why == TIMED_OUT:
        hint = "grid login, with a new token from one of its operators" if why.startswith("it answered 401") else ""
        if why.endswith("use wss://"):
            hint = f"its address is wss://{url.removeprefix('ws://')}"
        return unreachable(url, why, hint, why.startswith(("it answered ", "what listens there ", "what came ")))
    from distributed_grid.identity.enrollment import disconnect_reason, expired

    return expired(url, identity) or unreachable(url, disconnect_reason(url, identity))


def words_of(error: OSError) -> str:
    """An error of the network as a reason."""
    if type(error).__module__ == "ssl":
        from distributed_grid.identity.credentials import tls_words

        return tls_words(error)  # type: ignore[arg-type]
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, TimeoutError):
        return TIMED_OUT
    if (error.errno or 0) < 0:
        return f"the host name is not known: {error.strerror}"
    return (error.strerror or str(error) or type(error).__name__).lower()


def _not_ours(response: Response, error: Exception) -> str:
    status, body = response.status_code, (response.body or b"")[:200].decode(errors="replace").strip()
    if status < 400:
        return f"what listens there does not speak our protocol: it answered {status}"
    return f"it answered {status}: {body or error}"


def _end_words(wire: ClientProtocol) -> str:
    if isinstance(wire.handshake_exc, InvalidHandshake | InvalidMessage | EOFError):
        return "what listens there does not speak our protocol"
    broken = wire.parser_exc
    if broken is not None and not isinstance(broken, EOFError):  # the end of the stream is one too
        return f"what came is not a websocket frame: {broken}"
    if (close := wire.close_rcvd) is not None:
        return f"the coordinator closed it: {close}"
    return "the coordinator is gone"
