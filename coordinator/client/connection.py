"""The asyncio connection of a client: dials, reads and writes for a session (session.py), and runs requests over it. It
reconnects by itself and repeats requests that were not answered."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from distributed_grid.config.places import usual_address
from distributed_grid.coordinator.client import requests
from distributed_grid.coordinator.client.requests import Once, Pause, Post, Returned, Steps, Together, Until, advance
from distributed_grid.coordinator.client.session import (
    CONNECT_SECONDS,
    PATIENCE,
    RENEW_AGAIN,
    Answer,
    ConnectionLost,
    Followed,
    Lost,
    Opened,
    Over,
    Session,
    credentials,
    not_dialled,
    not_let_in,
    user_name,
    words_of,
)
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import JobUpdate
from distributed_grid.runtime import loopback
from distributed_grid.runtime.local import NoSocket, dial, socket_path

READ_BYTES = 1 << 18
CLOSE_SECONDS = 1.0

T = TypeVar("T")


class Connection:
    """One connection to a coordinator, in one event loop; arguments as of GridClient. Requests (requests.py) are run by
    `do`."""

    def __init__(self, url: str = "", *, user: str = "", patience: float = PATIENCE, trusts: str = "") -> None:
        self.url = url = url or usual_address()
        self._trusts = trusts
        self.user = user or user_name()
        self._session = Session(url, self.user, patience, random.uniform, self._not_let_in)
        self._identity: Path | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._changes: dict[str, asyncio.Future[None]] = {}
        """By job, for those who follow it: done at the next change."""
        self._opening = asyncio.Lock()
        self._opened: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        """What serves the connection, and what renews our certificate."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that serves the connection."""
        self._writer: asyncio.StreamWriter | None = None
        self._flushing = False

    async def connect(self) -> None:
        """Connect; no effect if connected already, unless the event loop of that connection was closed. Raises
        GridUnavailable if there is no answer."""
        self._forget_closed_loop()
        self._check_loop()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._opening = loop, asyncio.Lock()  # a lock that several tasks wait for belongs to their loop
        async with self._opening:
            if self._session.error is None:
                return
            await self._stop()
            self._loop = loop
            self._opened = loop.create_future()
            self._session.start(loop.time())
            self._tasks = [asyncio.create_task(self._serve())]
            try:
                await asyncio.shield(self._opened)
            except asyncio.CancelledError:
                await self.close()
                raise
            except GridError:
                await self._stop()
                self._loop = None
                raise

    async def close(self) -> None:
        """Leave; jobs run on. It may be connected again then, in another event loop too."""
        self._forget_closed_loop()
        self._check_loop()
        last = self._session.close()
        if self._writer is not None:
            self._writer.writelines(last)
        self._dispatch()
        await self._stop()
        self._loop = None

    def _check_loop(self) -> None:
        """Raise GridError if this client belongs to another event loop, where the connection would not be served."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            how = "is closed" if self._loop.is_closed() else "still exists"
            raise GridError(
                "this GridClient belongs to another event loop",
                why=f"it was connected in one that {how} (asyncio.run makes a new one each time)",
                hint="connect it here once that one is closed, make one client for each loop"
                " (`async with GridClient(…)`), or use distributed_grid.sync, which needs no loop",
            )

    def _forget_closed_loop(self) -> None:
        """If the event loop is closed, forget the connection and the tasks that served it."""
        if self._loop is None or not self._loop.is_closed():
            return
        self._session.close()
        self._session.take_events()
        self._tasks.clear()
        self._answers.clear()
        self._changes.clear()
        self._writer = self._opened = self._loop = None
        self._flushing = False

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _views(self, view: JobView) -> AsyncGenerator[JobView, None]:
        followed = self._session.follow(view)
        self._flush_soon()
        try:
            yield view
            while view.state is not State.ENDED:
                while followed.view is view:
                    if followed.error is not None:
                        raise followed.error
                    await asyncio.shield(self._change(view.id))
                view = followed.view
                yield view
        finally:
            self._unfollow(followed)

    def _unfollow(self, followed: Followed) -> None:
        self._session.unfollow(followed)
        if followed.view.id not in self._session.followed:
            self._changes.pop(followed.view.id, None)

    # --- asking -------------------------------------------------------------------------------------------------------

    async def do(self, steps: Steps[T], disk: bool = False) -> T:
        """Run a request; `disk`: in a thread. Raises what it raises; GridError."""
        self._check_loop()
        answer: Any = None
        error: GridError | None = None
        try:
            while True:
                if disk:
                    step = await asyncio.to_thread(advance, steps, answer, error)
                else:
                    step = advance(steps, answer, error)
                if isinstance(step, Returned):
                    result: T = step.value
                    return result
                answer = error = None
                try:
                    answer = await self._step(step)
                except GridError as raised:
                    error = raised
        finally:
            with contextlib.suppress(ValueError):  # a thread is in it still, which we were not to wait for
                steps.close()

    async def _step(self, step: Any) -> Any:
        match step:
            case Once(message):
                return await self._ask(message, repeatable=False)
            case Post(message):
                return await self._post(message)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Together(messages, most):
                return await self._together(messages, most)
            case Until(view, reached):
                async with contextlib.aclosing(self._views(view)) as views:
                    async for view in views:
                        if reached(view):
                            return view
            case message:
                return await self._ask(message)

    async def _together(self, messages: Iterable[Any], most: int) -> list[Any]:
        asked: list[asyncio.Task[Any]] = []
        try:
            for message in messages:
                asked.append(asyncio.create_task(self._ask(message)))
                if not most:
                    continue
                await asyncio.sleep(0)  # it leaves before the next is made
                if len(asked) >= most:
                    await asyncio.wait([asked[-most]])
                    if asked[-most].exception() is not None:
                        break
            return await asyncio.gather(*asked)
        except asyncio.CancelledError:
            for one in asked:
                one.cancel()
            raise
        finally:  # what has left is answered
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, message: Any, repeatable: bool = True) -> Any:
        number = self._session.ask(message, repeatable)
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        self._dispatch()
        self._flush_soon()
        try:
            return await future
        finally:
            self._answers.pop(number, None)
            self._session.forget(number)

    async def _post(self, message: Any) -> None:
        opened = self._session.opened
        self._session.post(message)
        self._flush()
        if self._writer is not None:
            with contextlib.suppress(OSError):
                await self._writer.drain()
        if not self._session.open or self._session.opened != opened:
            raise ConnectionLost("it broke on the way")

    def _change(self, job: str) -> "asyncio.Future[None]":
        """Done when this job changes, or nothing more is told of it."""
        future = self._changes.get(job)
        if future is None:
            future = self._changes[job] = asyncio.get_running_loop().create_future()
        return future

    # --- events -------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Hand the events that have happened to the callers that wait for them."""
        for event in self._session.take_events():
            match event:
                case Answer(number, content):
                    if (answered := self._answers.pop(number, None)) is not None:
                        _settle(answered, content)
                    elif isinstance(content, GridError):
                        self._wake(*self._changes)
                case JobUpdate(view):
                    self._wake(view.id)
                case Opened():
                    self._entered()
                case Lost():
                    self._end_renewals()
                case Over(error):
                    self._wake(*self._changes)
                    if self._opened is not None:
                        _settle(self._opened, error)
                        self._opened.exception()  # whoever waits is told; nobody may

    def _wake(self, *jobs: str) -> None:
        for job in jobs:
            if (change := self._changes.pop(job, None)) is not None:
                _settle(change, None)

    def _entered(self) -> None:
        """Handle the welcome of the coordinator, which says who this user is to the grid."""
        welcome = self._session.welcome
        assert welcome is not None and self._opened is not None  # noqa: S101
        self.user = welcome.user or self.user
        _settle(self._opened, None)
        if self._identity is not None and (welcome.renew or welcome.renew_in):
            self._tasks.append(asyncio.create_task(self._keep_renewed(self._identity, welcome.renew_in)))

    async def _keep_renewed(self, identity: Path, seconds: float) -> None:
        """Renew the certificate whenever most of its validity is over; if that fails, it is tried again."""
        while True:
            await asyncio.sleep(seconds)
            seconds = RENEW_AGAIN * random.uniform(1, 2)  # noqa: S311
            with contextlib.suppress(GridError):  # nobody waits for it, and what is held goes on
                seconds = await self.do(requests.renew(identity), disk=True) or seconds

    def _end_renewals(self) -> None:
        for task in self._tasks[1:]:
            task.cancel()
        del self._tasks[1:]

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Dial, read, and do what is due, until the session is over."""
        session, loop = self._session, asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        while session.error is None:
            if session.dial_at is not None:
                await asyncio.sleep(max(0.0, session.dial_at - loop.time()))
                reader = await self._dial() or reader
            else:
                try:
                    async with asyncio.timeout_at(session.deadline()):
                        data = await reader.read(READ_BYTES)
                    session.receive(data, loop.time())
                except TimeoutError:
                    pass
                except OSError as error:
                    session.broken(words_of(error), loop.time())
            session.tick(loop.time())
            self._flush()
            self._dispatch()

    async def _dial(self) -> asyncio.StreamReader | None:
        session, loop, uri = self._session, asyncio.get_running_loop(), self._session.uri
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                context, headers, self._identity = credentials(self.url, None)
                where: dict[str, Any] = {"host": uri.host, "port": uri.port}
                if (path := socket_path(self.url)) is not None:
                    where = {"sock": dial(path, CONNECT_SECONDS)}
                elif context is not None:
                    where |= {"ssl": context, "server_hostname": uri.host}
                else:
                    reach = partial(loopback.connect, uri.host, uri.port, CONNECT_SECONDS, self._trusts)
                    where = {"sock": await asyncio.to_thread(reach)}
                reader, self._writer = await asyncio.open_connection(limit=READ_BYTES, **where)
        except (NoSocket, OSError) as error:
            session.not_dialled(not_dialled(self.url, error, self._identity), loop.time())
        except GridError as error:
            session.not_dialled(error, loop.time())
        else:
            session.dialled(headers, loop.time())
            return reader
        return None

    def _not_let_in(self, why: str, answered: bool) -> GridError:
        return not_let_in(self.url, self._identity, why, answered)

    def _flush_soon(self) -> None:
        """Flush at the end of this turn of the loop, so that the requests of one turn travel together."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self._session.data_to_send()
        if self._writer is not None:
            self._writer.writelines(data)
            if not self._session.connected:
                self._writer.close()
                self._writer = None

    async def _stop(self) -> None:
        """End what serves the connection, and hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if (writer := self._writer) is not None:
            self._writer = None
            writer.close()
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await writer.wait_closed()


def _settle(future: "asyncio.Future[Any]", content: Any) -> None:
    if future.done():
        return
    if isinstance(content, GridError):
        future.set_exception(content)
    else:
        future.set_result(content)
