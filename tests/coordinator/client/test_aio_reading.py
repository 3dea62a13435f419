"""Pieces of a job's standard input, from bytes, from a file and from an async iterable."""

import asyncio
import os
from collections.abc import AsyncIterator

from distributed_grid.coordinator.client.aio import reader_of


async def pieces() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


async def test_each_piece_is_read_once_and_then_there_is_no_more() -> None:
    for source, found in ((b"all", [b"all"]), (pieces(), [b"one", b"two"])):
        read = reader_of(source)
        assert [await read() for _ in range(len(found) + 1)] == [*found, None]


async def test_a_file_that_has_nothing_yet_holds_up_nobody() -> None:
    out, into = os.pipe()
    with open(out, "rb", buffering=0) as source:
        reading = reader_of(source)()
        await asyncio.sleep(0)
        assert not reading.done()
        os.write(into, b"late")
        assert await reading == b"late"
        os.close(into)
