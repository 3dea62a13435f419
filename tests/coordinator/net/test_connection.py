"""A peer that does not read or says nothing loses its connection."""

import asyncio
import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.asyncio.server import broadcast
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.net import connection as connections
from distributed_grid.protocol.messages import (
    ListJobs,
)
from tests.coordinator.ends import (
    Coordinator,
    agent,
    client,
    coordinator,
    job,
    until_away,
    works,
)


def wires(grid: Coordinator) -> list[Any]:
    return [guest.wire for guest in grid.server._listener._peers if guest.wire is not None]


async def test_a_client_that_never_reads_is_cut_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below what makes the library pause: who is slow enough to wait for that would not get above its outbox.
    monkeypatch.setattr(connections, "OUTBOX_BULK", 16 << 10)
    async with coordinator(tmp_path) as grid:
        worker, ann = await agent(grid.url), await client(grid.url)
        await ann.submit(*(job("x" * 1000, cpu=4000) for _ in range(200)), watch=False)
        before = set(wires(grid))
        deaf = await client(grid.url, "deaf")
        (wire,) = set(wires(grid)) - before
        deaf.socket.transport.pause_reading()
        async with asyncio.timeout(60):
            for number in itertools.count():
                if wire.transport.is_closing():
                    break
                assert wire.transport.get_write_buffer_size() < 1 << 20
                deaf.link.send(ListJobs(number))  # each answer has some 250 KiB
                broadcast([deaf.socket], deaf.link.data_to_send()[0])
                await asyncio.sleep(0.001)
        await works(grid, worker)
        await ann.close()
        await worker.close()


async def test_pings_whose_pongs_are_never_read_do_not_fill_memory(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as grid:
        stranger = await connect(grid.url, compression=None, ping_interval=None)
        stranger.transport.pause_reading()
        (wire,) = wires(grid)
        async with asyncio.timeout(60):
            while wire.state.name == "OPEN":
                for _ in range(1000):
                    stranger.protocol.send_ping(b"x" * 125)
                stranger.send_data()
                assert wire.transport.get_write_buffer_size() < 1 << 20
                await asyncio.sleep(0)
        stranger.transport.abort()


async def test_a_silent_agent_loses_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.protocol.link.SILENCE", 0.3)
    with capture_logs() as lines:
        async with coordinator(tmp_path) as grid:
            with contextlib.suppress(ConnectionClosed):  # on a busy machine: while it has yet to say what it offers
                await (await agent(grid.url)).gone()
            await until_away(grid)
    assert [line["node"] for line in lines if line["event"] == "agent is silent"] == ["n1"]
