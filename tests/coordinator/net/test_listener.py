"""The listening sockets: who comes in silence, by the hundred, or with a web page's request keeps nobody else out."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.access.admission import host_of
from distributed_grid.coordinator.access.ca import Pki
from distributed_grid.coordinator.api import sessions
from distributed_grid.coordinator.net import handshakes, listener
from distributed_grid.coordinator.net.connection import Wire
from distributed_grid.coordinator.net.limits import LogThrottle
from distributed_grid.coordinator.net.listener import Listener
from distributed_grid.identity.credentials import server_context, trusting_context
from distributed_grid.protocol.codec import HELLO_BYTES
from distributed_grid.protocol.messages import Refused, Welcome
from tests.coordinator.ends import agent, client, coordinator, node


@asynccontextmanager
async def strangers(
    port: int, count: int, says: bytes = b"", addresses: bool = False
) -> AsyncIterator[list[socket.socket]]:
    """TCP connections that say no more than this, each from an address of its own or all from one."""
    loop = asyncio.get_running_loop()
    made = [socket.socket() for _ in range(count)]
    for number, one in enumerate(made):
        one.setblocking(False)
        if addresses:
            one.bind((f"127.1.{number >> 8}.{number & 255}", 0))
    try:
        await asyncio.gather(*(loop.sock_connect(one, ("127.0.0.1", port)) for one in made))
        await asyncio.gather(*(loop.sock_sendall(one, says) for one in made if says))
        yield made
    finally:
        for one in made:
            one.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def ended(one: socket.socket) -> bool:
    """Wait until the other side has closed it."""
    with contextlib.suppress(OSError):
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().sock_recv(one, 1) == b""
    return True


# --- crowds -----------------------------------------------------------------------------------------------------------


async def test_three_hundred_silent_connections_keep_no_client_out_and_fill_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "PLACE_SECONDS", 0.2)
    monkeypatch.setattr(handshakes, "LINE_SECONDS", 3.0)
    monkeypatch.setattr(listener, "UPGRADE_SECONDS", 3.0)
    async with coordinator(tmp_path) as grid:
        with capture_logs() as lines:
            async with strangers(port_of(grid.url), 300) as silent, asyncio.timeout(60):
                ann = await client(grid.url)
                assert isinstance(ann.seen[0], Welcome)
                assert all(await asyncio.gather(*map(ended, silent)))
        await ann.close()
    assert 1 <= len([line for line in lines if "turned away" in line["event"]]) <= 12
    assert not grid.server._listener._peers


async def test_two_hundred_agents_that_come_at_once_from_one_address_are_all_welcomed(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        with capture_logs() as lines:
            ends = await asyncio.gather(*(agent(grid.url, node(f"n{number}")) for number in range(200)))
        assert all(isinstance(end.seen[0], Welcome) for end in ends)
        assert not [line for line in lines if "turned away" in line["event"]]
        await asyncio.gather(*(end.close() for end in ends))


async def test_who_comes_when_the_line_is_full_is_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "LINE", 5)
    monkeypatch.setattr(handshakes, "PLACE_SECONDS", 60.0)
    count = handshakes.PLACES_OF_ADDRESS + 5
    async with coordinator(tmp_path) as grid, strangers(port_of(grid.url), count, b"G") as inside:
        while grid.server._listener._queue.waiting < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        async with strangers(port_of(grid.url), 1, b"G") as (late,):
            assert await ended(late)
        assert len(inside) == count


HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
UPGRADE = HALF + (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize("says", [b"", HALF, UPGRADE], ids=["silent", "half a request", "no hello"])
async def test_new_connections_get_through_beside_many_idle_ones_of_many_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    """The line and the places are 40 times smaller than they are, and so are the idle connections."""
    for name, value in {"PLACES": 4, "PLACES_OF_ADDRESS": 2, "LINE": 100}.items():
        monkeypatch.setattr(handshakes, name, value)
    async with coordinator(tmp_path) as grid:
        port = port_of(grid.url)
        async with contextlib.AsyncExitStack() as stack:
            greeted = [await client(grid.url, f"user{number}") for number in range(20)]
            await stack.enter_async_context(strangers(port, 200, says, addresses=True))
            while len(grid.server._listener._peers) < 120:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            async with asyncio.timeout(10):
                ends = await asyncio.gather(*(client(grid.url, f"new{number}") for number in range(23)))
            assert all(isinstance(end.seen[0], Welcome) for end in ends)
        assert not any(end.closed for end in greeted)
        for end in (*ends, *greeted):
            await end.close()


async def test_the_silent_make_way_where_files_run_out(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        async with strangers(port_of(grid.url), 3) as silent:
            while len(grid.server._listener._silent) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            grid.server._listener._most_files = 0
            ann = await client(grid.url)
            assert isinstance(ann.seen[0], Welcome) and await ended(silent[0])
            assert len(grid.server._listener._silent) == 2
        await ann.close()


async def test_a_person_has_only_so_many_connections_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "CONNECTIONS_OF_ONE", 3)
    async with coordinator(tmp_path) as grid:
        own = [await client(grid.url) for _ in range(3)]
        more = await client(grid.url)
        assert isinstance(more.seen[0], Refused) and "3 connections open" in more.seen[0].what
        other = await client(grid.url, "bob")
        assert isinstance(other.seen[0], Welcome)
        await own.pop().close()
        again = await client(grid.url)
        assert isinstance(again.seen[0], Welcome)
        for end in (*own, other, again):
            await end.close()


async def test_files_are_kept_for_the_store_when_connections_come_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as grid:
        grid.server._listener._most_files = 0
        async with strangers(port_of(grid.url), 1) as (one,):
            assert await ended(one)
        grid.server._listener._most_files = 1 << 20
        ann = await client(grid.url)
        assert isinstance(ann.seen[0], Welcome)
        await ann.close()


# --- web pages --------------------------------------------------------------------------------------------------------


async def asked(url: str, *headers: str) -> str:
    """The whole answer to an HTTP request for a websocket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    upgrade = "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    writer.write("\r\n".join(["GET / HTTP/1.1", *upgrade, key, *headers, "", ""]).encode())
    async with asyncio.timeout(60):
        answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer.decode()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Host: 127.0.0.1:7433"], 101),
        (["Host: LOCALHOST"], 101),
        (["Host: [::1]:7433"], 101),
        (["Host: 127.0.0.1", "Origin: http://127.0.0.1"], 403),
        (["Host: 127.0.0.1", "Origin: null"], 403),
        (["Host: rebound.example.org:7433"], 403),
        (["Host: 127.0.0.1.example.org"], 403),
        (["Host: 192.0.2.1"], 403),
        ([], 403),
    ],
)
async def test_only_who_means_us_and_is_no_web_page_gets_in(tmp_path: Path, headers: list[str], status: int) -> None:
    async with coordinator(tmp_path) as grid:
        answer = await asked(grid.url, *headers)
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "\r\nserver:" not in answer.lower()


@pytest.mark.parametrize(
    ("header", "host"),
    [("Master:7433", "master"), ("[2001:db8::1]:7433", "2001:db8::1"), ("[::1]", "::1"), ("", ""), (" a ", "a")],
)
def test_a_host_header_names_a_host(header: str, host: str) -> None:
    assert host_of(header) == host


# --- with TLS ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def with_tls(place: Path) -> AsyncIterator[tuple[int, Pki]]:
    """An entrance with TLS; who gets in is sent back its first message."""
    pki = Pki.create(place / "pki", "0123456789abcdef", ["localhost"])

    async def echo(wire: Wire) -> None:
        with contextlib.suppress(ConnectionClosed):
            message = await wire.recv()
            wire.known(1 << 20)
            await wire.send(message)

    made = Listener(echo, lambda wire, request: None, LogThrottle())
    try:
        yield await made.listen("127.0.0.1", 0, server_context(pki.folder)), pki
    finally:
        await made.close()
        pki.close()


async def test_plain_words_and_silence_where_tls_is_spoken_are_ended_in_time_with_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TLS_SECONDS", 0.3)
    with capture_logs() as lines:
        async with with_tls(tmp_path) as (port, pki), strangers(port, 3) as (silent, plain, _):
            await asyncio.get_running_loop().sock_sendall(plain, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await ended(silent)
            monkeypatch.setattr(listener, "TLS_SECONDS", 60.0)  # who speaks it has the time that a busy machine needs
            context = trusting_context(pki.authority.pem.decode())
            async with connect(f"wss://localhost:{port}", ssl=context, compression=None, proxy=None) as good:
                await good.send(b"hello")
                assert await good.recv() == b"hello"
    assert any("TLS" in str(line.get("why")) for line in lines), lines
    assert any("said nothing" in str(line.get("why")) for line in lines), lines
    assert all(line["log_level"] == "warning" for line in lines)


async def test_a_first_frame_beyond_its_limit_is_not_even_read(tmp_path: Path) -> None:
    async with with_tls(tmp_path) as (port, pki):
        context = trusting_context(pki.authority.pem.decode())
        async with connect(f"wss://localhost:{port}", ssl=context, compression=None, proxy=None) as socket:
            await socket.send(bytes(HELLO_BYTES + 1))
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 60)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
