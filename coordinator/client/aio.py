"""The asyncio client of a grid.

    async with GridClient() as grid:
        result = await grid.run("python train.py", gpus=1, priority="high")

It connects again by itself and repeats what was not answered, which is safe: a job is submitted under a key of its own,
so however often it is submitted, it is one job.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from distributed_grid.config.places import usual_address
from distributed_grid.coordinator.client import downloads, requests, shipping, walk
from distributed_grid.coordinator.client.downloads import BadAnswer
from distributed_grid.coordinator.client.input import JobInput, Source
from distributed_grid.coordinator.client.output import (
    HOLD_AGAIN,
    JobOutput,
    JobResult,
    Piece,
    ResultReader,
    unreadable,
)
from distributed_grid.coordinator.client.reading import reader_of
from distributed_grid.coordinator.client.requests import Once, Post, Returned, Steps, Together, Until, advance
from distributed_grid.coordinator.client.session import (
    CONNECT_SECONDS,
    PATIENCE,
    RENEW_AGAIN,
    Answer,
    ConnectionLost,
    GridUnavailable,
    Lost,
    Opened,
    Over,
    RequestRefused,
    Session,
    credentials,
    not_dialled,
    not_let_in,
    user_name,
    words_of,
)
from distributed_grid.coordinator.client.shipping import HashCache
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.coordinator.client.walk import ShippingError
from distributed_grid.protocol.bundle import BUNDLE_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import JobUpdate
from distributed_grid.runtime import loopback
from distributed_grid.runtime.local import NoSocket, dial, socket_path

__all__ = [
    "BadAnswer",
    "ConnectionLost",
    "GridClient",
    "GridUnavailable",
    "JobResult",
    "RequestRefused",
    "ShippingError",
    "describe_job",
]

READ_BYTES = 1 << 18
CLOSE_SECONDS = 1.0
ERROR_CHARS = 200
RENEWAL_CHECK = 3600.0
"""The clock is looked at so often, in seconds: it may be set, and the machine may sleep."""

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    steps: Callable[P, Steps[T]], disk: bool = False
) -> "Callable[Concatenate[GridClient, P], Coroutine[Any, Any, T]]":
    """A request as a method to await. `disk`: it reads or writes files, in a thread."""

    @wraps(steps)
    async def method(self: "GridClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.do(steps(*args, **kwargs), disk)

    return method


class GridClient:
    """One connection to a coordinator. Use it as `async with GridClient(url) as grid`.

    `patience` is how long (seconds) a lost coordinator is waited for before GridUnavailable is raised; the first
    connect is tried once. `trusts`: another user of this machine, whose coordinator may be used (by ws://).
    """

    def __init__(self, url: str = "", *, user: str = "", patience: float = PATIENCE, trusts: str = "") -> None:
        self.url = url = url or usual_address()
        self._trusts = trusts
        self.user = user or user_name()
        self._session = Session(url, self.user, patience, random.uniform, self._not_let_in)
        self._identity: Path | None = None
        self._hashes = HashCache()
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
        """Connect; what is connected already stays as it is. Raises GridUnavailable where nobody answers."""
        self._check_loop()
        async with self._opening:
            if self._session.error is None:
                return
            await self._stop()
            loop = self._loop = asyncio.get_running_loop()
            self._opened = loop.create_future()
            self._session.start(loop.time())
            self._tasks = [asyncio.create_task(self._serve())]
            try:
                await asyncio.shield(self._opened)
            except asyncio.CancelledError:
                await self.close()
                raise

    async def close(self) -> None:
        """Leave; jobs run on. It may be connected again then, in another event loop too."""
        if self._loop is not None and self._loop.is_closed():
            self._forget_loop()
        self._check_loop()
        last = self._session.close()
        if self._writer is not None:
            self._writer.writelines(last)
        self._dispatch()
        await self._stop()
        self._loop = None

    def _check_loop(self) -> None:
        """Raise GridError where this client belongs to another event loop: nobody would serve the connection here."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            how = "is closed" if self._loop.is_closed() else "still exists"
            raise GridError(
                "this GridClient belongs to another event loop",
                why=f"it was connected in one that {how} (asyncio.run makes a new one each time)",
                hint="close it first, make one client for each loop (`async with GridClient(…)`), or use"
                " distributed_grid.sync, which needs no loop",
            )

    def _forget_loop(self) -> None:
        """The event loop is closed, and with it all that served the connection."""
        self._session.close()
        self._session.take_events()
        self._tasks.clear()
        self._answers.clear()
        self._changes.clear()
        self._writer = self._opened = self._loop = None
        self._opening, self._flushing = asyncio.Lock(), False

    async def __aenter__(self) -> "GridClient":
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
    request_boost = _method(requests.request_boost)
    boosts = _method(requests.boosts)
    status = _method(requests.status)
    nodes = _method(requests.nodes)
    shared = _method(requests.shared)
    shares = _method(requests.shares)
    quota = _method(requests.quota)
    set_rights = _method(requests.set_rights)
    unset_rights = _method(requests.unset_rights)
    drain = _method(requests.drain)
    undrain = _method(requests.undrain)
    label = _method(requests.label)
    receipts = _method(requests.receipts)
    files = _method(downloads.files)
    fetch = _method(downloads.fetch, disk=True)

    async def ship(
        self, directory: str | Path, *, links: str = "refuse", secrets: bool = False, ceiling: int = BUNDLE_BYTES
    ) -> str:
        """Send what of a directory (of at most `ceiling` bytes) the coordinator has not got yet; the hash is for
        `bundle=` of jobs. `links` that lead out of it are refused, or `"follow"`, `"keep"`, `"skip"`; `secrets`: also
        files that commonly hold them. What is left out is a ShippingWarning. Raises ShippingError."""
        rules = walk.rules(ceiling, links, secrets)
        shipped = await self.do(shipping.ship(self._session.number, Path(directory), self._hashes, rules), disk=True)
        return shipping.warned(shipped.bundle)

    async def run(
        self, command: str | Sequence[str], *, stdin: Source | AsyncIterable[bytes] | None = None, **options: Any
    ) -> JobResult:
        """Submit one job, wait for its end, and return its result with all of its output (up to 16 MiB a stream).
        `stdin` is what the job reads from its standard input: bytes, a binary file, or an iterator of bytes. An error
        of these ends the job, and is raised."""
        read = reader_of(stdin) if stdin is not None else None
        job = await self.submit(command, stdin=read is not None, **options)
        if read is None:
            return await self.result(job)
        feeding = asyncio.create_task(self._feed(job, read))
        try:
            result = await self.result(job)
            await feeding
            return result
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def result(self, job: str) -> JobResult:
        """Wait for a job's end and return its result with its output."""
        view = await self.wait(job)
        reader = ResultReader(view)
        async with contextlib.aclosing(self._pieces(reader.output, view)) as pieces:
            async for piece in pieces:
                reader.add(piece)
        return reader.result()

    async def follow(self, job: str) -> AsyncGenerator[JobView, None]:
        """The job now and whenever it changes, until it has ended. Changes that follow each other faster than they are
        read are told as one."""
        async with contextlib.aclosing(self._views(await self.show(job))) as views:
            async for view in views:
                yield view

    async def stream(self, job: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """The job's output from its beginning, as (`stdout` or `stderr`, bytes), until both have ended. It goes on
        where it was after a lost connection, a restarted coordinator or agent. The job waits for its reader, for a
        minute without a sign of it. Where bytes are missing all the same, GridUnavailable is raised at the end."""
        output = JobOutput(reader=secrets.token_hex(8))
        async with contextlib.aclosing(self._pieces(output, await self.show(job))) as pieces:
            async for piece in pieces:
                yield piece.stream, piece.data
        if (stream := output.incomplete()) is not None:
            raise unreadable(job, stream)

    async def logs(self, job: str) -> tuple[bytes, bytes]:
        """All of an ended job's stdout and stderr, waiting for its end (up to 16 MiB each, the last ones)."""
        result = await self.result(job)
        return result.stdout_bytes, result.stderr_bytes

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
            self._session.unfollow(followed)

    async def _pieces(self, output: JobOutput, view: JobView) -> AsyncGenerator[Piece, None]:
        session, loop = self._session, asyncio.get_running_loop()
        followed = session.follow(view)
        self._flush_soon()
        asking: set[asyncio.Task[Any]] = set()
        holding = asyncio.create_task(self._hold(output))
        try:
            pieces = output.update(view)
            while True:
                now = loop.time()  # the next pieces are on their way while these are used
                asking |= {asyncio.create_task(self._ask(one)) for one in output.questions(session.number, now)}
                for piece in pieces:
                    yield piece
                if output.over:
                    return
                if followed.view is output.view and followed.error is None:
                    change = self._change(view.id)
                    await asyncio.wait(
                        [*asking, change], timeout=output.pause(loop.time()), return_when=asyncio.FIRST_COMPLETED
                    )
                if followed.error is not None:
                    raise followed.error
                pieces = []
                for task in [one for one in asking if one.done()]:
                    asking.discard(task)
                    pieces += output.take(task.result(), loop.time())
                if followed.view is not output.view:
                    pieces += output.update(followed.view)
        finally:
            for task in (*asking, holding):
                task.cancel()
            await asyncio.gather(*asking, holding, return_exceptions=True)
            if session.open:
                for question in output.leave(session.number):
                    session.forget(session.ask(question))
                self._flush_soon()
            session.unfollow(followed)

    async def _hold(self, output: JobOutput) -> None:
        """Have the node know that we are there, while what was read is used: that may take its time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(HOLD_AGAIN / 3)
            for one in output.holds(self._session.number, loop.time()):
                with contextlib.suppress(GridError):
                    await self._ask(one)

    async def _feed(self, job: str, read: "Callable[[], asyncio.Future[bytes | None]]") -> None:
        """Send the job its standard input until it has ended; `read` begins to read the next piece."""
        session, loop, stdin = self._session, asyncio.get_running_loop(), JobInput()
        followed = session.follow(await self.show(job))
        self._flush_soon()
        asking: dict[asyncio.Task[Any], int] = {}
        reading: asyncio.Future[bytes | None] | None = None
        failed: Exception | None = None
        try:
            while (view := followed.view).state is not State.ENDED:
                stdin.update(view)
                if reading is None and stdin.room():
                    reading = read()
                messages = stdin.messages(session.number, loop.time())
                asking |= {asyncio.create_task(self._ask(one)): one.id for one in messages}
                if followed.error is not None:
                    raise followed.error
                waiting = [*asking, self._change(view.id)] + ([reading] if reading is not None else [])
                await asyncio.wait(waiting, timeout=stdin.pause(loop.time()), return_when=asyncio.FIRST_COMPLETED)
                for task in [one for one in asking if one.done()]:
                    stdin.take(asking.pop(task), task.exception() or task.result(), loop.time())
                if reading is not None and reading.done():
                    try:
                        stdin.put(reading.result())
                    except Exception as error:
                        failed = error
                        stdin.fail(f"it cannot be read: {error!r}"[:ERROR_CHARS])
                    reading = None
            if failed is not None:
                raise failed
        finally:
            ours = [*asking] + ([reading] if reading is not None else [])
            for one in ours:
                one.cancel()
            await asyncio.gather(*ours, return_exceptions=True)
            session.unfollow(followed)

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
        """Give what has happened to those who wait for it."""
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
        """We are let in, and told who we are."""
        welcome = self._session.welcome
        assert welcome is not None and self._opened is not None  # noqa: S101
        self.user = welcome.user or self.user
        _settle(self._opened, None)
        if self._identity is not None and (welcome.renew or welcome.renew_in):
            self._tasks.append(asyncio.create_task(self._keep_renewed(self._identity, welcome.renew_in)))

    async def _keep_renewed(self, identity: Path, seconds: float) -> None:
        """Have a new certificate whenever most of the life of ours is over; if that fails, it is tried again."""
        at = time.time() + seconds
        while True:
            if (left := at - time.time()) > 0:
                await asyncio.sleep(min(left, RENEWAL_CHECK))
                continue
            at = time.time() + RENEW_AGAIN * random.uniform(1, 2)  # noqa: S311
            with contextlib.suppress(GridError):  # nobody waits for it, and what is held goes on
                at = await self.do(requests.renew(identity), disk=True) or at

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
                session.tick(loop.time())
                try:
                    async with asyncio.timeout_at(session.deadline()):
                        data = await reader.read(READ_BYTES)
                    session.receive(data, loop.time())
                except TimeoutError:
                    pass
                except OSError as error:
                    session.broken(words_of(error), loop.time())
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
        """What is asked within one turn of the loop travels together."""
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
