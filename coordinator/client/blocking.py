"""The blocking client of a grid, for programs (`distributed_grid.sync`) and for the command line. It needs no asyncio
and no threads, so that a command starts quickly.

    with GridClient() as grid:
        result = grid.run("python train.py", gpus=1, priority="high")

A program that also waits for other things polls `fileno()` until `timeout()`, and then calls `receive(0)`.
"""

import contextlib
import math
import random
import secrets
import socket
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from distributed_grid.config.places import as_path, usual_address
from distributed_grid.coordinator.client import requests
from distributed_grid.coordinator.client.exclusive import Exclusive, exclusive
from distributed_grid.coordinator.client.input import JobInput, Source, pieces_of
from distributed_grid.coordinator.client.output import JobOutput, Piece, unreadable
from distributed_grid.coordinator.client.requests import (
    Documented,
    Once,
    Pause,
    Post,
    Returned,
    Steps,
    Together,
    Until,
    advance,
)
from distributed_grid.coordinator.client.session import (
    CONNECT_SECONDS,
    PATIENCE,
    RENEW_AGAIN,
    Answer,
    Away,
    ConnectionLost,
    Event,
    Followed,
    Opened,
    Session,
    credentials,
    not_dialled,
    not_let_in,
    user_name,
    words_of,
)
from distributed_grid.protocol.bundle import BUNDLE_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import FileEntry
from distributed_grid.runtime import loopback
from distributed_grid.runtime.local import NoSocket, dial, socket_path

if TYPE_CHECKING:
    from distributed_grid.coordinator.client.results import JobResult
    from distributed_grid.coordinator.client.shipping import HashCache

WRITE_SECONDS = 30.0
ERROR_CHARS = 200
READ_BYTES = 1 << 18

P = ParamSpec("P")
T = TypeVar("T")


def _method(steps: Callable[P, Steps[T]]) -> "Callable[Concatenate[GridClient, P], T]":
    """A request as a method that blocks until it is answered."""

    @wraps(steps)
    def method(self: "GridClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.do(steps(*args, **kwargs))

    method.__wrapped__ = Documented(steps)
    return method


class GridClient(Exclusive):
    """One connection to a coordinator. Use it as `with GridClient(url) as grid`; only one thread may use it at a time.

    `patience` is how long (seconds) the client waits for a lost coordinator before it raises GridUnavailable; with 0 a
    request raises ConnectionLost while there is no connection. The first connect is tried once. `answer_seconds`: how
    long to wait for an answer (default: as long as the coordinator is there). `identity`: the folder of the identity to
    use, instead of the stored one for that address. `trusts`: another user of this machine, whose coordinator may be
    used (by ws://).
    """

    def __init__(
        self,
        url: str = "",
        *,
        user: str = "",
        patience: float = PATIENCE,
        answer_seconds: float = math.inf,
        connect_seconds: float = CONNECT_SECONDS,
        identity: Path | None = None,
        strict: bool = True,
        trusts: str = "",
    ) -> None:
        super().__init__()
        self.url = url = url or usual_address()
        self._trusts = trusts
        self.user = user or user_name()
        self.role = self.grid = self.reached_at = ""
        self._answer_seconds = answer_seconds
        self._connect_seconds = connect_seconds
        self._identity = identity
        self.session = Session(url, self.user, patience, random.uniform, self._not_let_in, strict)
        self._socket: socket.socket | None = None
        self._events: list[Event] = []
        self._answers: dict[int, Any] = {}
        """Answers to those who wait for them; None: not there yet."""
        self._renew_at = math.inf
        self._hashes: HashCache | None = None

    @exclusive
    def connect(self, patience: float = 0.0, away: Callable[[GridError, float], None] | None = None) -> "GridClient":
        """Connect; a coordinator that is away is waited for up to `patience` seconds, which `away` is told once. Raises
        GridUnavailable."""
        self.session.start(time.monotonic(), patience)
        while not self.session.open:
            self._collect(math.inf)
            for event in self._events:
                if isinstance(event, Away) and away is not None:
                    away(event.error, event.seconds)
            self._events.clear()
            if self.session.error is not None:
                raise self.session.error
        return self

    def close(self) -> None:
        """Leave; jobs run on."""
        last = self.session.close()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                for data in last:
                    self._socket.sendall(data)
        self._hang_up()

    def __enter__(self) -> "GridClient":
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    submit = _method(requests.submit)
    submit_many = _method(requests.submit_many)
    wait = _method(requests.wait)
    show = _method(requests.show)
    jobs = _method(requests.jobs)
    arrays = _method(requests.arrays)
    show_array = _method(requests.show_array)
    members = _method(requests.members)
    cancel = _method(requests.cancel)
    signal = _method(requests.signal)
    why = _method(requests.why)
    predict = _method(requests.predict)
    record_use = _method(requests.record_use)
    declare_node = _method(requests.declare_node)
    scaling = _method(requests.scaling)
    create_machine = _method(requests.create_machine)
    end_machine = _method(requests.end_machine)
    make_token = _method(requests.make_token)
    request_boost = _method(requests.request_boost)
    boosts = _method(requests.boosts)
    request_hold = _method(requests.request_hold)
    holds = _method(requests.holds)
    status = _method(requests.status)
    nodes = _method(requests.nodes)
    shared = _method(requests.shared)
    trends = _method(requests.trends)
    balancing = _method(requests.balancing)
    shares = _method(requests.shares)
    ledger = _method(requests.ledger)
    quota = _method(requests.quota)
    set_rights = _method(requests.set_rights)
    unset_rights = _method(requests.unset_rights)
    drain = _method(requests.drain)
    undrain = _method(requests.undrain)
    label = _method(requests.label)
    receipts = _method(requests.receipts)

    def files(self, job: str, *globs: str) -> list[FileEntry]:
        """The files in the job's working directory that match any of the globs (none: all), as `downloads.files`."""
        from distributed_grid.coordinator.client import downloads  # as shipping: not needed by most

        return self.do(downloads.files(job, *globs))

    def fetch(
        self, job: str, *globs: str, into: str | Path = ".", force: bool = False, executable: bool = False
    ) -> list[Path]:
        """Bring matching files of a job's working directory into a directory here, as `downloads.fetch`; their
        paths."""
        from distributed_grid.coordinator.client import downloads

        return self.do(downloads.fetch(job, *globs, into=into, force=force, executable=executable))

    def ship(
        self, directory: str | Path, *, links: str = "refuse", secrets: bool = False, ceiling: int = BUNDLE_BYTES
    ) -> str:
        """Send what of a directory (of at most `ceiling` bytes) the coordinator has not got yet; the hash is for
        `bundle=` of jobs. `links` that lead out of it are refused, or `"follow"`, `"keep"`, `"skip"`; `secrets`: also
        files that commonly hold them. What is left out is a ShippingWarning. Raises ShippingError."""
        from distributed_grid.coordinator.client import shipping, walk  # not needed by most, and slow to import

        self._hashes = self._hashes or shipping.HashCache()
        rules, place = walk.rules(ceiling, links, secrets), as_path("directory", directory)
        return shipping.warned(self.do(shipping.ship(self.number, place, self._hashes, rules)).bundle)

    def run(self, command: str | Sequence[str], *, stdin: Source | None = None, **options: Any) -> "JobResult":
        """Submit one job, wait for its end, and return its result with all of its output (up to 16 MiB a stream).
        `stdin` is what the job reads from its standard input: bytes, a binary file, or an iterator of bytes. An error
        of these ends the job, and is raised."""
        pieces = pieces_of(stdin) if stdin is not None else None
        job = self.do(requests.submit_one(command, stdin=pieces is not None, **options))
        if pieces is not None:
            self._feed(job, pieces)
        return self.result(job)

    def result(self, job: str) -> "JobResult":
        """Wait for a job's end and return its result with its output."""
        from distributed_grid.coordinator.client.results import ResultReader  # as shipping: not needed by most

        view = self.wait(job)
        reader = ResultReader(view)
        for piece in self._pieces(reader.output, view):
            reader.add(piece)
        return reader.result()

    def follow(self, job: str) -> Iterator[JobView]:
        """Yield the job now and whenever it changes, until it has ended. Changes that come faster than they are read
        are merged into one."""
        yield from self._views(self.show(job))

    def _views(self, view: JobView) -> Iterator[JobView]:
        followed = self.session.follow(view)
        try:
            yield view
            while view.state is not State.ENDED:
                while followed.view is view and followed.error is None:
                    self._collect(math.inf)
                if followed.view is view and followed.error is not None:
                    raise followed.error
                view = followed.view
                yield view
        finally:
            self.session.unfollow(followed)

    def stream(self, job: str) -> Iterator[tuple[str, bytes]]:
        """The job's output from its beginning, as (`stdout` or `stderr`, bytes), until both have ended. It goes on
        where it was after a lost connection, a restarted coordinator or agent. The job waits for its reader, for a
        minute without a sign of it. Where bytes are missing all the same, GridUnavailable is raised at the end."""
        output = JobOutput(reader=secrets.token_hex(8))
        for piece in self._pieces(output, self.show(job)):
            yield piece.stream, piece.data
        if (stream := output.incomplete()) is not None:
            raise unreadable(job, stream)

    def logs(self, job: str) -> tuple[bytes, bytes]:
        """Return all of an ended job's stdout and stderr, waiting for its end (up to 16 MiB each, the last ones)."""
        result = self.result(job)
        return result.stdout_bytes, result.stderr_bytes

    def _pieces(self, output: JobOutput, view: JobView) -> Generator[Piece, None, None]:
        followed = self.session.follow(view)
        asked: set[int] = set()
        try:
            pieces = output.update(view)
            while True:
                now = time.monotonic()  # the next pieces are on their way while these are used
                for question in output.questions(self.session.number, now):
                    asked.add(self._begin(question))
                self._flush()
                yield from pieces
                if output.over:
                    return
                pause = output.pause(now)
                self._collect_for(asked, followed, view, math.inf if pause is None else now + pause)
                if followed.error is not None:
                    raise followed.error
                pieces, view = [], followed.view
                for number in self._there(asked):
                    asked.discard(number)
                    pieces += output.receive(self._answered(number), time.monotonic())
                if view is not output.view:
                    pieces += output.update(view)
        finally:
            for number in asked:
                self._forget(number)
            if self.session.open:
                for question in output.leave(self.session.number):
                    self._forget(self._begin(question))
                self._flush()
            self.session.unfollow(followed)

    def _feed(self, job: str, pieces: Iterator[bytes]) -> None:
        """Send the job its standard input until it has ended."""
        stdin, asked, failed = JobInput(), set[int](), None
        followed = self.session.follow(self.show(job))
        try:
            while (view := followed.view).state is not State.ENDED:
                stdin.update(view)
                if stdin.room():
                    try:
                        stdin.put(next(pieces, None))
                    except Exception as error:
                        failed = error
                        stdin.fail(f"it cannot be read: {error!r}"[:ERROR_CHARS])
                now = time.monotonic()
                for message in stdin.messages(self.session.number, now):
                    asked.add(self._begin(message))
                self._flush()
                pause = 0.0 if stdin.room() else stdin.pause(now)
                self._collect_for(asked, followed, view, math.inf if pause is None else now + pause)
                if followed.error is not None:
                    raise followed.error
                for number in self._there(asked):
                    asked.discard(number)
                    stdin.receive(number, self._answers.pop(number), time.monotonic())
            if failed is not None:
                raise failed
        finally:
            for number in asked:
                self._forget(number)
            self.session.unfollow(followed)

    # --- asking -------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        """A fresh number for a request."""
        return self.session.number()

    @exclusive
    def do(self, steps: Steps[T]) -> T:
        """Run a request. Raises what it raises; GridError."""
        answer: Any = None
        error: GridError | None = None
        while not isinstance(step := advance(steps, answer, error), Returned):
            answer = error = None
            try:
                answer = self._step(step)
            except GridError as raised:
                error = raised
        result: T = step.value
        return result

    def _step(self, step: Any) -> Any:
        match step:
            case Once(message):
                return self.call(message, repeatable=False)
            case Post(message):
                self.session.post(message)
                self._flush()
            case Pause(seconds):
                self._pause(seconds)
            case Together(messages, most):
                return self._together(messages, most)
            case Until(view, reached):
                return next(one for one in self._views(view) if reached(one))
            case message:
                return self.call(message)

    def _pause(self, seconds: float) -> None:
        """Process events for this many seconds. If the session ends meanwhile, the next request raises its error."""
        until = time.monotonic() + seconds
        while self.session.error is None and time.monotonic() < until:
            self._collect(until)

    def _together(self, messages: Iterable[Any], most: int) -> list[Any]:
        numbers: list[int] = []
        answers: list[Any] = []

        def settle(left: int) -> bool:
            while len(numbers) - len(answers) > left:
                try:
                    answers.append(self._await(numbers[len(answers)]))
                except GridError as error:
                    answers.append(error)
            return not any(isinstance(answer, GridError) for answer in answers[-1:])

        for message in messages:
            numbers.append(self._begin(message))
            if most:
                self._flush()
                if not settle(most - 1):
                    break
        settle(0)
        for answer in answers:
            if isinstance(answer, GridError):
                raise answer
        return answers

    @exclusive
    def call(self, message: Any, timeout: float | None = None, repeatable: bool = True) -> Any:
        """The answer to a request. Raises RequestRefused, ConnectionLost."""
        return self._await(self._begin(message, repeatable), timeout)

    @exclusive
    def ask(self, *messages: Any, repeatable: bool = True) -> int:
        """Send requests whose answers come as Answer events; returns the number of the last one."""
        number = 0
        for message in messages:
            number = self.session.ask(message, repeatable)
        self._flush()
        return number

    @exclusive
    def watch(self, *jobs: str, whole: bool = False) -> int:
        """Subscribe to updates of these jobs, which come as events; a refusal is an Answer with the returned number."""
        number = self.session.watch(*jobs, whole=whole)
        self._flush()
        return number

    @exclusive
    def _begin(self, message: Any, repeatable: bool = True) -> int:
        number = self.session.ask(message, repeatable)
        self._answers[number] = None
        return number

    def _forget(self, number: int) -> None:
        self._answers.pop(number, None)
        self.session.forget(number)

    def _await(self, number: int, timeout: float | None = None) -> Any:
        seconds = self._answer_seconds if timeout is None else timeout
        deadline = time.monotonic() + seconds
        try:
            while self._answers[number] is None:
                if time.monotonic() >= deadline:
                    raise ConnectionLost(f"it did not answer within {seconds:g} s")
                self._collect(deadline)
            return self._answered(number)
        finally:
            self._forget(number)

    def _answered(self, number: int) -> Any:
        content = self._answers.pop(number)
        if isinstance(content, GridError):
            raise content
        return content

    # --- events -------------------------------------------------------------------------------------------------------

    @exclusive
    def receive(self, timeout: float = 0.0) -> list[Event]:
        """Return the events that have happened; if there are none, those that happen within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            if not self._events:
                self._collect(deadline)
            if self._events or self.session.error is not None or time.monotonic() >= deadline:
                events, self._events = self._events, []
                if not events and self.session.error is not None:
                    raise self.session.error
                return events

    def fileno(self) -> int:
        """Return the file descriptor for select and poll; -1 without a connection."""
        return self._socket.fileno() if self._socket is not None else -1

    def timeout(self) -> float:
        """Seconds until `receive` is to be called, also if nothing comes."""
        if self._events or self.session.events:
            return 0.0
        deadline = self.session.deadline()
        return math.inf if deadline is None else max(0.0, deadline - time.monotonic())

    def _collect_for(self, asked: set[int], followed: Followed, view: JobView, deadline: float) -> None:
        """Collect events, unless one of these requests is answered or there is a later view of the job: while it used
        the last result, the caller may have used this client for something else, which collected them."""
        if not self._there(asked) and followed.view is view and followed.error is None:
            self._collect(deadline)

    def _there(self, asked: set[int]) -> list[int]:
        """Return the numbers of these requests that are answered."""
        return [number for number in asked if self._answers.get(number) is not None]

    @exclusive
    def _collect(self, deadline: float) -> None:
        """Do what is due, or wait for an event until the deadline, and dispatch the events that have happened."""
        self._renew_if_due()
        if not self.session.events:
            self._advance(deadline)
        for event in self.session.take_events():
            match event:
                case Answer(number, content) if number in self._answers:
                    self._answers[number] = content
                case Opened():
                    self._entered()
                    self._events.append(event)
                case _ if not self.session.for_followers(event):
                    self._events.append(event)

    def _advance(self, deadline: float) -> None:
        session, now = self.session, time.monotonic()
        if session.dial_at is not None:
            if now >= session.dial_at:
                self._dial()
            elif (pause := min(deadline, session.dial_at) - now) > 0:
                time.sleep(pause)
            return
        session.tick(now)
        self._flush()
        if self._socket is None or session.events:
            return
        due = session.deadline()
        self._read(max(0.0, min(deadline, math.inf if due is None else due) - now))

    # --- the connection -----------------------------------------------------------------------------------------------

    def _dial(self) -> None:
        session, path, uri = self.session, socket_path(self.url), self.session.uri
        timeout = self._connect_seconds
        try:
            context, headers, self._identity = credentials(self.url, self._identity)
            if path is not None:
                self._socket = dial(path, timeout)
            elif context is None:
                self._socket = loopback.connect(uri.host, uri.port, timeout, self._trusts)
            else:
                self._socket = socket.create_connection((uri.host, uri.port), timeout)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket = context.wrap_socket(self._socket, server_hostname=uri.host)
        except (NoSocket, OSError) as error:
            self._hang_up()
            session.not_dialled(not_dialled(self.url, error, self._identity), time.monotonic())
        except GridError as error:
            session.not_dialled(error, time.monotonic())
        else:
            session.dialled(headers, time.monotonic())
            self._flush()

    def _not_let_in(self, why: str, answered: bool) -> GridError:
        return not_let_in(self.url, self._identity, why, answered)

    def _entered(self) -> None:
        """Handle the welcome of the coordinator, which says who this user is to the grid."""
        welcome = self.session.welcome
        assert welcome is not None  # noqa: S101
        self.user, self.role, self.grid = welcome.user or self.user, welcome.role, welcome.grid
        self.reached_at = welcome.reached_at
        if self._identity is not None and (welcome.renew or welcome.renew_in):
            self._renew_at = time.monotonic() + welcome.renew_in

    def _renew_if_due(self) -> None:
        """Renew the certificate when most of its validity is over; if that fails, it is tried again."""
        if self._identity is None or time.monotonic() < self._renew_at or not self.session.open:
            return
        self._renew_at = time.monotonic() + RENEW_AGAIN
        with contextlib.suppress(GridError):
            if seconds := self.do(requests.renew(self._identity)):
                self._renew_at = time.monotonic() + seconds

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _flush(self) -> None:
        data = b"".join(self.session.data_to_send())
        if data and self._socket is not None:
            try:
                self._socket.settimeout(WRITE_SECONDS)
                self._socket.sendall(data)
            except OSError as error:
                self.session.broken(words_of(error), time.monotonic())
        if not self.session.connected:
            self._hang_up()

    def _read(self, timeout: float) -> None:
        """Read once, and take what came."""
        assert self._socket is not None  # noqa: S101
        try:
            self._socket.settimeout(None if timeout == math.inf else timeout)
            data = self._socket.recv(READ_BYTES)
        except (TimeoutError, BlockingIOError):
            return
        except OSError as error:
            if type(error).__name__ != "SSLWantReadError":  # a record that is not all there yet, or had no words in it
                self.session.broken(words_of(error), time.monotonic())
        else:
            self.session.receive(data, time.monotonic())
        self._flush()
