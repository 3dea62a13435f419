"""The asyncio client of a grid.

    async with GridClient() as grid:
        result = await grid.run("python train.py", gpus=1, priority="high")

It reconnects by itself and repeats requests that were not answered. That is safe: each job is submitted under a key of
its own, so however often it is submitted, it is one job.
"""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from distributed_grid.config.places import as_path
from distributed_grid.coordinator.client import downloads, requests, shipping, walk
from distributed_grid.coordinator.client.connection import Connection
from distributed_grid.coordinator.client.downloads import BadAnswer
from distributed_grid.coordinator.client.input import JobInput, Source, pieces_of
from distributed_grid.coordinator.client.output import HOLD_AGAIN, JobOutput, Piece, unreadable
from distributed_grid.coordinator.client.requests import Documented, Steps
from distributed_grid.coordinator.client.results import JobResult, ResultReader
from distributed_grid.coordinator.client.session import (
    PATIENCE,
    ConnectionLost,
    GridUnavailable,
    RequestRefused,
)
from distributed_grid.coordinator.client.shipping import HashCache
from distributed_grid.coordinator.client.submission import describe_job
from distributed_grid.coordinator.client.walk import ShippingError
from distributed_grid.protocol.bundle import BUNDLE_BYTES
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobView, State

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

ERROR_CHARS = 200

P = ParamSpec("P")
T = TypeVar("T")


def _method(
    steps: Callable[P, Steps[T]], disk: bool = False
) -> "Callable[Concatenate[GridClient, P], Coroutine[Any, Any, T]]":
    """A request as a method to await. `disk`: it reads or writes files, in a thread."""

    @wraps(steps)
    async def method(self: "GridClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.do(steps(*args, **kwargs), disk)

    method.__wrapped__ = Documented(steps)
    return method


class GridClient(Connection):
    """One connection to a coordinator. Use it as `async with GridClient(url) as grid`.

    `patience` is how long (seconds) the client waits for a lost coordinator before it raises GridUnavailable; the first
    connect is tried once. `trusts`: another user of this machine, whose coordinator may be used (by ws://).
    """

    def __init__(self, url: str = "", *, user: str = "", patience: float = PATIENCE, trusts: str = "") -> None:
        super().__init__(url, user=user, patience=patience, trusts=trusts)
        self._hashes = HashCache()

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
    files = _method(downloads.files)
    fetch = _method(downloads.fetch, disk=True)

    async def ship(
        self, directory: str | Path, *, links: str = "refuse", secrets: bool = False, ceiling: int = BUNDLE_BYTES
    ) -> str:
        """Send what of a directory (of at most `ceiling` bytes) the coordinator has not got yet; the hash is for
        `bundle=` of jobs. `links` that lead out of it are refused, or `"follow"`, `"keep"`, `"skip"`; `secrets`: also
        files that commonly hold them. What is left out is a ShippingWarning. Raises ShippingError."""
        rules, place = walk.rules(ceiling, links, secrets), as_path("directory", directory)
        shipped = await self.do(shipping.ship(self._session.number, place, self._hashes, rules), disk=True)
        return shipping.warned(shipped.bundle)

    async def run(
        self, command: str | Sequence[str], *, stdin: Source | AsyncIterable[bytes] | None = None, **options: Any
    ) -> JobResult:
        """Submit one job, wait for its end, and return its result with all of its output (up to 16 MiB a stream).
        `stdin` is what the job reads from its standard input: bytes, a binary file, or an iterator of bytes. An error
        of these ends the job, and is raised."""
        read = reader_of(stdin) if stdin is not None else None
        job = await self.do(requests.submit_one(command, stdin=read is not None, **options))
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
        """Yield the job now and whenever it changes, until it has ended. Changes that come faster than they are read
        are merged into one."""
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
        """Return all of an ended job's stdout and stderr, waiting for its end (up to 16 MiB each, the last ones)."""
        result = await self.result(job)
        return result.stdout_bytes, result.stderr_bytes

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
                    # What has come due since `now` was not asked for above: it must not be forgotten.
                    pause = output.pause(now)
                    timeout = None if pause is None else max(0.0, now + pause - loop.time())
                    waiting = [*asking, self._change(view.id)]
                    await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if followed.error is not None:
                    raise followed.error
                pieces = []
                for task in [one for one in asking if one.done()]:
                    asking.discard(task)
                    pieces += output.receive(task.result(), loop.time())
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
            self._unfollow(followed)

    async def _hold(self, output: JobOutput) -> None:
        """Tell the node regularly that the reader is attached, while the caller uses what was read, which may take
        long."""
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
                now = loop.time()
                messages = stdin.messages(session.number, now)
                asking |= {asyncio.create_task(self._ask(one)): one.id for one in messages}
                if followed.error is not None:
                    raise followed.error
                waiting = [*asking, self._change(view.id)] + ([reading] if reading is not None else [])
                await asyncio.wait(waiting, timeout=stdin.pause(now), return_when=asyncio.FIRST_COMPLETED)
                for task in [one for one in asking if one.done()]:
                    stdin.receive(asking.pop(task), task.exception() or task.result(), loop.time())
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
            self._unfollow(followed)


def reader_of(source: Source | AsyncIterable[bytes]) -> "Callable[[], asyncio.Future[bytes | None]]":
    """A function that begins to read the next piece; None: there is no more."""
    if isinstance(source, AsyncIterable):
        pieces = aiter(source)

        async def piece() -> bytes | None:
            return await anext(pieces, None)

        return lambda: asyncio.ensure_future(piece())
    each = pieces_of(source)
    return lambda: _in_thread(lambda: next(each, None))


def _in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run a function that may block for ever in a thread of its own, which does not delay the end of the program."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name="stdin", daemon=True).start()
    return future
