"""Peers that misbehave: what they are made of, and a crowd of all kinds that does so until it is told to stop."""

import asyncio
import contextlib
import secrets
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from distributed_grid.protocol.link import Link
from distributed_grid.protocol.messages import Hello
from distributed_grid.protocol.nodes import NodeFacts
from distributed_grid.protocol.resources import Resources


class Peer:
    """Dials, says what it likes, and can wait for its end."""

    def __init__(self, socket: ClientConnection, link: Link | None) -> None:
        self.socket = socket
        self.link = link
        self.name = ""

    async def say(self, *messages: Any) -> None:
        assert self.link is not None
        self.link.send(*messages)
        for frame in self.link.data_to_send():
            await self.socket.send(frame)

    async def next(self, kind: type) -> Any:
        """The next message of a kind."""
        assert self.link is not None
        async with asyncio.timeout(60):
            while True:
                for message in self.link.receive(await self.socket.recv(), 0.0):
                    if isinstance(message, kind):
                        return message

    async def cut(self, seconds: float = 60) -> None:
        """Wait until the coordinator ends it."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await self.socket.recv()


@asynccontextmanager
async def stranger(url: str) -> AsyncIterator[Peer]:
    """A peer that has said nothing yet."""
    socket = await connect(url, compression=None, ping_interval=None, max_size=None, open_timeout=60)
    try:
        yield Peer(socket, None)
    finally:
        if not socket.transport.is_closing():
            socket.transport.abort()


@asynccontextmanager
async def known(url: str, role: str, name: str = "", **facts: Any) -> AsyncIterator[Peer]:
    """A peer that was welcomed, as a client or as an agent."""
    name = name or f"liar-{secrets.token_hex(3)}"
    hello = Hello(protocol=(1, 0), software="test", role=role, name=name)
    if role == "agent":
        hello = replace(hello, facts=node(name, **facts))
    async with stranger(url) as peer:
        peer.link, peer.name = Link.dial(hello, 0.0), name
        await peer.say()
        peer.link.receive(await peer.socket.recv(), 0.0)
        yield peer


def node(name: str, **more: Any) -> NodeFacts:
    facts: dict[str, Any] = {
        "name": name, "hostname": "h", "boot_id": "b", "incarnation": 1, "cores": (0, 1), "memory": 1 << 30,
        "lendable": Resources(2000, 1 << 30), "walls": "user",
    }  # fmt: skip
    return NodeFacts(**(facts | more))


def masked(frame: bytes) -> bytes:
    """A whole binary websocket frame, with the mask of zeros."""
    short = len(frame) < 126
    head = bytes([0x82, 0x80 | len(frame)]) if short else b"\x82\xff" + struct.pack(">Q", len(frame))
    return head + bytes(4) + frame


async def flood(peer: Peer, data: bytes, read: bool, seconds: float = 60) -> bool:
    """Write the same all the time, reading or not, until it is cut or the time is over. Whether it was cut."""
    if not read:
        peer.socket.transport.pause_reading()
    with contextlib.suppress(OSError, ConnectionClosed, TimeoutError):
        async with asyncio.timeout(seconds):
            while not peer.socket.transport.is_closing():
                peer.socket.transport.write(data)
                await peer.socket.drain()
                await asyncio.sleep(0)
    cut = peer.socket.transport.is_closing()
    peer.socket.transport.abort()
    return cut
