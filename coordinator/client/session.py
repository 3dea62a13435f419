"""A client's connection to the coordinator: requests and answers by number, watched jobs, reconnecting, and the
renewal of its certificate.
"""

import asyncio
import itertools
import random
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from distributed_grid import __version__
from distributed_grid.identity.credentials import as_member, has_identity
from distributed_grid.identity.member import identity_at, identity_for
from distributed_grid.protocol.codec import BULK_BYTES, decode, encode
from distributed_grid.protocol.errors import BadFrame, BadValue, GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.link import PROTOCOL, Link
from distributed_grid.protocol.messages import (
    Failed,
    Hello,
    Jobs,
    JobUpdate,
    NewCertificate,
    Refused,
    ShowJobs,
    WantCertificate,
    Watch,
    Welcome,
    joined,
    next_page,
)
from distributed_grid.runtime.local import LOCAL_URI, NoSocket, dial, socket_path

LOOK_EVERY = 3600.0
"""Seconds between looks at the clock at the latest: it may be set, and the machine may sleep."""
RENEW_AGAIN = 60.0
"""Seconds, twice at most, until a renewal that failed is tried again."""


async def keep_renewed(
    url: str, welcome: Welcome | None, number: Callable[[], int], ask: Callable[[WantCertificate], Awaitable[Any]]
) -> None:
    """Renew the certificate with which this grid is spoken to whenever most of its life is over, for as long as it is
    connected: the coordinator ends a connection with the certificate that it was made or renewed with. What goes wrong
    leaves the old one, and is tried again."""
    folder = identity_for(url) if url.startswith("wss:") else None
    if folder is None or not has_identity(folder):
        return
    at = 0.0
    if welcome is not None and welcome.renew_in:
        at = time.time() + welcome.renew_in
    elif welcome is None or not welcome.renew:
        with suppress(GridError):
            at = await asyncio.to_thread(_renewal_time, folder)
    while True:
        if (left := at - time.time()) > 0:
            await asyncio.sleep(min(left, LOOK_EVERY))
            continue
        at = time.time() + RENEW_AGAIN * random.uniform(1, 2)  # noqa: S311
        with suppress(GridError):  # nobody waits for it, and what is held goes on
            if await _renew(folder, number(), ask):
                at = await asyncio.to_thread(_renewal_time, folder)


def _renewal_time(folder: Path) -> float:
    from distributed_grid.identity.enrollment import renewal_time

    return renewal_time(folder)


async def _renew(folder: Path, number: int, ask: Callable[[WantCertificate], Awaitable[Any]]) -> bool:
    from distributed_grid.identity.enrollment import Asked

    asked = await asyncio.to_thread(Asked, folder)
    answer: NewCertificate = await ask(WantCertificate(id=number, request=asked.request))
    if answer.certificate:
        await asyncio.to_thread(asked.keep, answer.certificate)
    return bool(answer.certificate)


CONNECT_SECONDS = 5.0
PING_SECONDS = 5.0
"""How often a quiet coordinator is asked whether it is there; twice that without an answer, and it is not."""
FIRST_BACKOFF = 0.05
MOST_BACKOFF = 2.0
_HOST = socket.gethostname()


class GridUnavailable(GridError):
    """The coordinator cannot be reached, or was lost for longer than the client's patience."""


class ConnectionLost(GridUnavailable):
    """The connection broke before the answer came, and the request is not one to say twice."""


class RequestRefused(GridError):
    """The coordinator answered that it cannot be done. `code` is a short stable word, as in messages.Failed."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.what, failed.why, failed.hint)
        self.code = failed.code


def unreachable(url: str, why: str) -> GridUnavailable:
    """The error for a coordinator that does not answer."""
    return GridUnavailable(f"cannot reach the coordinator at {url}", why=why, hint="grid status · grid coordinator run")


@dataclass(slots=True)
class _Pending:
    message: Any
    future: "asyncio.Future[Any]"
    retry: bool


class Session:
    """`on_update` gets every JobUpdate; `on_open` is called after each connect, to say again what has to be; `on_end`
    when no connection will be made again, with the reason."""

    def __init__(
        self,
        url: str,
        user: str,
        patience: float,
        on_update: Callable[[JobUpdate], None],
        on_open: Callable[[], None],
        on_end: Callable[[GridError], None],
    ) -> None:
        self.url = url
        self.welcome: Welcome | None = None
        self._user = user
        self._patience = patience
        self._on_update = on_update
        self._on_open = on_open
        self._on_end = on_end
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._link: Link | None = None
        self._connection: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._written = asyncio.Event()
        self._opening = asyncio.Lock()
        self._dead: GridError | None = None

    async def open(self) -> None:
        """Connect once; what is open already stays as it is. Raises GridUnavailable (nobody there) or GridError (the
        coordinator's refusal)."""
        async with self._opening:
            if self._task is None or self._task.done():
                self._dead = None
                self._task = asyncio.create_task(self._run(*await self._dial()))

    async def close(self) -> None:
        """Leave. Jobs run on."""
        self._dead = GridUnavailable("the client is closed", hint="use it inside `async with`, or connect() first")
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        self._fail_all(self._dead)

    # --- asking -------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        """A fresh number for a request."""
        return next(self._ids)

    async def ask(self, message: Any, retry: bool = True) -> Any:
        """The answer to a request (a message with an `id` of `number()`). Raises RequestRefused, GridUnavailable."""
        if self._task is None or self._dead is not None:
            raise self._dead or GridUnavailable("the client is not connected", hint="await client.connect() first")
        _check(message)
        future = asyncio.get_running_loop().create_future()
        if self._link is None and not retry:
            raise self._lost()
        self._pending[message.id] = _Pending(message, future, retry)
        self._tell(message)
        try:
            return await future
        finally:
            self._pending.pop(message.id, None)

    async def ask_all(self, message: Any) -> Any:
        """As `ask`, for a list, over as many answers as it takes."""
        answer = await self.ask(message)
        page = answer
        while (message := next_page(message, page, self.number())) is not None:
            page = await self.ask(message)
            answer = joined(answer, page)
        return answer

    async def show(self, job: str) -> JobView:
        """A job as it stands."""
        answer: Jobs = await self.ask(ShowJobs(id=self.number(), jobs=(job,)))
        if answer.groups:
            raise BadValue(f"{answer.groups[0].id} is many jobs", why="this is for one", hint="name one of its members")
        return answer.jobs[0]

    async def post(self, message: Any) -> None:
        """Say something that is not answered, and wait until it has left. Raises ConnectionLost."""
        link = self._link
        if link is None:
            raise self._lost()
        self._tell(message)
        await self._written.wait()
        if self._link is not link:
            raise self._lost()

    def _tell(self, message: Any) -> None:
        """Say something if there is a connection."""
        if self._link is not None:
            self._link.send(message)
            self._written.clear()
            self._wake.set()

    def _lost(self) -> ConnectionLost:
        return ConnectionLost("the connection to the coordinator was lost", why="it broke before the answer came")

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _dial(self) -> tuple[ClientConnection, Link]:
        """A connection that was let in, and taken into use: what is unanswered is said again at once."""
        loop = asyncio.get_running_loop()
        path = socket_path(self.url)
        try:
            context, headers = as_member(identity_at(self.url)) if self.url.startswith("wss:") else (None, {})
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await connect(
                    self.url if path is None else LOCAL_URI,
                    sock=dial(path, CONNECT_SECONDS) if path is not None else None,
                    ssl=context,
                    additional_headers=headers,
                    compression=None,
                    proxy=None,
                    max_size=BULK_BYTES + 1024,
                    ping_interval=PING_SECONDS,
                    ping_timeout=2 * PING_SECONDS,
                    close_timeout=1.0,
                )
                hello = Hello(protocol=PROTOCOL, software=__version__, role="client", name=self._user, host=_HOST)
                link = Link.dial(hello, loop.time())
                for frame in link.data_to_send():
                    await connection.send(frame)
                (answer,) = link.receive(await connection.recv(), loop.time())
        except TimeoutError:
            raise unreachable(self.url, f"no answer within {CONNECT_SECONDS:g} s") from None
        except NoSocket as error:
            raise GridUnavailable(error.what, error.why, error.hint) from None
        except InvalidURI:
            hint = "write it as ws://HOST:PORT, wss://HOST:PORT or unix://PATH"
            raise GridError(f"{self.url!r} is not a coordinator's address", hint=hint) from None
        except OSError as error:
            raise unreachable(self.url, _reason(error)) from None
        except (ConnectionClosed, InvalidHandshake) as error:
            raise unreachable(self.url, f"what listens there does not speak our protocol: {error}") from None
        if isinstance(answer, Refused):
            await connection.close()
            kind = GridError if answer.final else GridUnavailable
            raise kind(answer.what, answer.why, answer.hint)
        self.welcome = answer
        self._link = link
        self._connection = connection
        for pending in self._pending.values():
            self._tell(pending.message)
        self._on_open()
        return connection, link

    async def _run(self, connection: ClientConnection, link: Link) -> None:
        """Serve one connection after the other, until the client's patience ends."""
        while True:
            try:
                await self._serve(connection, link)
            except (ConnectionClosed, OSError, GridError):
                pass
            finally:
                self._link = None
                self._written.set()
                await connection.close()
            for pending in list(self._pending.values()):
                if not pending.retry and not pending.future.done():
                    pending.future.set_exception(self._lost())
            try:
                connection, link = await self._again()
            except GridError as error:
                self._dead = error
                self._fail_all(error)
                return

    async def _again(self) -> tuple[ClientConnection, Link]:
        """Connect again, with a random pause that grows."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        pause = FIRST_BACKOFF
        while True:
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311
            pause = min(MOST_BACKOFF, pause * 2)
            try:
                return await self._dial()
            except GridUnavailable:
                if loop.time() > until:
                    raise

    async def _serve(self, connection: ClientConnection, link: Link) -> None:
        """Read and write until the connection ends."""
        writer = asyncio.create_task(self._write(connection, link))
        renewing = asyncio.create_task(keep_renewed(self.url, self.welcome, self.number, self.ask))
        loop = asyncio.get_running_loop()
        try:
            async for frame in connection:
                for message in link.receive(frame, loop.time()):
                    self._take(message)
        finally:
            writer.cancel()
            renewing.cancel()
            await asyncio.gather(writer, renewing, return_exceptions=True)

    async def _write(self, connection: ClientConnection, link: Link) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for frame in link.data_to_send():
                await connection.send(frame)
            if not self._wake.is_set():
                self._written.set()

    def _take(self, message: Any) -> None:
        if isinstance(message, JobUpdate):
            self._on_update(message)
            return
        pending = self._pending.get(message.id)
        if pending is None or pending.future.done():
            return
        if isinstance(message, Failed):
            pending.future.set_exception(RequestRefused(message))
        else:
            pending.future.set_result(message)

    def _fail_all(self, error: GridError) -> None:
        self._on_end(error)
        for pending in list(self._pending.values()):
            if not pending.future.done():
                pending.future.set_exception(error)


def _check(message: Any) -> None:
    """Hold that the coordinator will understand it: what it does not ends the connection, for all who ask on it.
    Raises BadValue."""
    try:
        decode("FromClient", encode(1, [message]))
    except (BadFrame, TypeError, OverflowError) as error:
        raise BadValue("this cannot be asked", why=error.what if isinstance(error, BadFrame) else str(error)) from None


def _reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on that port"
    return error.strerror or str(error) or type(error).__name__


@dataclass(slots=True)
class _Watched:
    """A job with those who wait for its next change."""

    view: JobView
    change: "asyncio.Future[None]"
    followers: int = 0

    def fail(self, error: GridError) -> None:
        if not self.change.done():
            self.change.set_exception(error)
            self.change.exception()  # so that asyncio does not complain where nobody waits just now


class Watches:
    """`ask` asks the coordinator, `number` makes a number for that."""

    def __init__(self, ask: Callable[[Any], Awaitable[Any]], number: Callable[[], int]) -> None:
        self._ask = ask
        self._number = number
        self._jobs: dict[str, _Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, view: JobView) -> AsyncGenerator[JobView, None]:
        """The job as it stands and whenever it changes, until it has ended. Changes that follow each other faster than
        they are read are told as one."""
        if view.state is State.ENDED:
            yield view
            return
        watched = self._begin(view)
        try:
            while True:
                view, change = watched.view, watched.change
                yield view
                if view.state is State.ENDED:
                    return
                await asyncio.shield(change)
        finally:
            self._end(watched)

    def _begin(self, view: JobView) -> _Watched:
        watched = self._jobs.get(view.id)
        if watched is None:
            watched = self._jobs[view.id] = _Watched(view, asyncio.get_running_loop().create_future())
            self._subscribe(view.id)
        watched.followers += 1
        return watched

    def _end(self, watched: _Watched) -> None:
        watched.followers -= 1
        if not watched.followers:
            self._jobs.pop(watched.view.id, None)

    def update(self, message: JobUpdate) -> None:
        """The coordinator told how a job stands."""
        watched = self._jobs.get(message.job.id)
        if watched is not None:
            watched.view = message.job
            change, watched.change = watched.change, asyncio.get_running_loop().create_future()
            if not change.done():
                change.set_result(None)

    def renew(self) -> None:
        """There is a new connection: say again who is watched."""
        for job, watched in self._jobs.items():
            if watched.view.state is not State.ENDED:
                self._subscribe(job)

    def _subscribe(self, job: str) -> None:
        task = asyncio.create_task(self._watch(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, job: str) -> None:
        try:
            await self._ask(Watch(id=self._number(), jobs=(job,)))
        except GridError as error:
            if watched := self._jobs.get(job):
                watched.fail(error)

    def fail(self, error: GridError) -> None:
        """No update will ever come again: tell those who wait."""
        for watched in self._jobs.values():
            watched.fail(error)
