"""TLS between sockets and protocols: what is said arrives whole where it should; who breaks TLS harms nobody else."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.net.tls import PIECE, TlsTransport
from distributed_grid.identity.credentials import server_context, trusting_context

LONG = bytes(range(256)) * (PIECE // 64) + b"end"
"""More than four pieces."""


class Heard(asyncio.Protocol):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.transport = cast(asyncio.Transport, None)
        self.data = bytearray()
        self.ended = asyncio.get_running_loop().create_future()
        self.failed: OSError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)

    async def has(self, size: int) -> bytes:
        """What it has heard, once it is so much."""
        async with asyncio.timeout(30):
            while len(self.data) < size:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return bytes(self.data)


class Serving:
    """A socket that listens; `peers` are those whose handshake is over."""

    def __init__(self, pki: Pki, seconds: float) -> None:
        self._context = server_context(pki.folder)
        self._seconds = seconds
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self.trusts = trusting_context(pki.authority.pem.decode())
        self.peers: asyncio.Queue[Heard] = asyncio.Queue()
        self.accepting = asyncio.create_task(self._accept())
        self._each: set[asyncio.Task[None]] = set()

    async def _accept(self) -> None:
        while True:
            made, _ = await asyncio.get_running_loop().sock_accept(self._socket)
            self._each.add(asyncio.create_task(self._shake(made)))

    async def _shake(self, made: socket.socket) -> None:
        heard = Heard()
        tls = TlsTransport(self._context, heard)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: tls, made)
        try:
            await tls.handshake(self._seconds)
        except OSError as error:
            heard.failed = error
        self.peers.put_nowait(heard)

    async def next(self) -> Heard:
        async with asyncio.timeout(30):
            return await self.peers.get()

    async def dial(self, **more: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Heard]:
        """A connection whose handshake is over, at both ends."""
        ends = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trusts, server_hostname="localhost", **more
        )
        return *ends, await self.next()

    def close(self) -> None:
        for task in (self.accepting, *self._each):
            task.cancel()
        self._socket.close()


@asynccontextmanager
async def serving(place: Path, seconds: float = 30.0) -> AsyncIterator[Serving]:
    pki = Pki.create(place / "pki", "f00d", ["localhost"])
    one = Serving(pki, seconds)
    try:
        yield one
    finally:
        one.close()
        pki.close()


async def test_what_is_longer_than_a_piece_arrives_whole_both_ways(tmp_path: Path) -> None:
    async with serving(tmp_path) as grid:
        reader, writer, heard = await grid.dial()
        writer.write(LONG)
        assert await heard.has(len(LONG)) == LONG
        heard.transport.write(LONG)
        assert await reader.readexactly(len(LONG)) == LONG
        writer.close()
        assert await heard.ended is None


async def test_what_two_say_at_once_is_not_mixed_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as grid:
        _, ann, of_ann = await grid.dial()
        _, bob, of_bob = await grid.dial()
        for at in range(0, len(LONG), 1000):
            ann.write(LONG[at : at + 1000])
            bob.write(LONG[at : at + 1000][::-1])
        assert await of_ann.has(len(LONG)) == LONG
        assert await of_bob.has(len(LONG)) == b"".join(LONG[at : at + 1000][::-1] for at in range(0, len(LONG), 1000))
        ann.close()
        bob.close()


async def test_who_has_paused_reading_hears_the_rest_when_it_reads_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as grid:
        _, writer, heard = await grid.dial()
        take = heard.data_received

        def once(data: bytes) -> None:
            take(data)
            heard.transport.pause_reading()

        heard.data_received = once  # type: ignore[method-assign]
        heard.transport.pause_reading()
        for at in range(0, 5000, 50):  # a hundred records, which the socket then has together
            writer.write(LONG[at : at + 50])
        await asyncio.sleep(0.01)
        heard.transport.resume_reading()
        first = len(await heard.has(1))
        await asyncio.sleep(0.01)
        assert len(heard.data) == first == 50
        heard.data_received = take  # type: ignore[method-assign]
        heard.transport.resume_reading()
        assert await heard.has(5000) == LONG[:5000]
        writer.close()


async def test_an_end_is_told_by_tls_itself_and_nothing_is_written_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as grid:
        reader, writer, heard = await grid.dial()
        heard.transport.write(b"last words")
        heard.transport.close()
        heard.transport.write(b"too late")
        assert heard.transport.is_closing()
        assert await reader.read() == b"last words"
        assert await heard.ended is None
        writer.close()


async def test_garbage_after_the_handshake_ends_that_connection_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as grid:
        _, good, of_good = await grid.dial()
        _, bad, of_bad = await grid.dial()
        under = bad.transport.get_extra_info("socket")
        socket.socket(fileno=under.fileno()).send(b"\x17\x03\x03\x00\x05junk!")
        await of_bad.ended
        assert not of_bad.data
        good.write(b"still here")
        assert await of_good.has(10) == b"still here"
        good.close()
        bad.transport.abort()


async def test_a_handshake_fails_in_time_or_when_the_peer_goes_or_with_what_is_wrong(tmp_path: Path) -> None:
    async with serving(tmp_path, seconds=0.2) as grid:
        with socket.create_connection(("127.0.0.1", grid.port)) as silent:
            assert isinstance((await grid.next()).failed, ConnectionAbortedError)
            silent.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
    async with serving(tmp_path / "other") as grid:
        with socket.create_connection(("127.0.0.1", grid.port)) as gone:
            gone.send(b"\x16")
        assert isinstance((await grid.next()).failed, ConnectionResetError)
        with socket.create_connection(("127.0.0.1", grid.port)) as wrong:
            wrong.send(b"\x16\x03\x01\x00\x05junk!")
            assert isinstance((await grid.next()).failed, ssl.SSLError)
            wrong.setblocking(False)
            alert = await asyncio.get_running_loop().sock_recv(wrong, 100)
        assert alert[:1] == b"\x15"
