"""Reading a job's standard input from its source, without blocking the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterable, Callable
from typing import Any, TypeVar

from distributed_grid.coordinator.client.input import Source, pieces_of

T = TypeVar("T")


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
    """Run a function that may block for ever in a thread of its own, which the end of the program does not wait for."""
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
