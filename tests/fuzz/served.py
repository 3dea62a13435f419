"""A whole coordinator without a socket: frames go in as bytes of a websocket, as its transport would hand them over."""

import asyncio
import contextlib
import itertools
import socket
import struct
import typing
from pathlib import Path
from typing import Any, cast

from websockets.asyncio.server import Server as Listener
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from distributed_grid.coordinator.net.connection import Wire
from distributed_grid.protocol import messages
from distributed_grid.protocol.codec import HELLO_BYTES, encode
from distributed_grid.protocol.messages import Hello, Inventory, Offer
from tests.coordinator.ends import Coordinator, node
from tests.fuzz.frames import Frames

FROM = {
    "client": {kind.__name__ for kind in typing.get_args(messages.FromClient)},
    "agent": {kind.__name__ for kind in typing.get_args(messages.FromAgent)},
}
TURNS = 50


class FarSocket(socket.socket):
    """As if somebody on another machine were connected to it."""

    def getsockname(self) -> tuple[str, int]:
        return ("192.0.2.2", 7433)

    def getpeername(self) -> tuple[str, int]:
        return ("192.0.2.1", 1)


class Nowhere(asyncio.Transport):
    """Takes what is written and forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: Wire | None = None
        self.closing = False
        self.socket = FarSocket()

    def write(self, data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            self.socket.close()
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    close = abort

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self.socket
        return ("192.0.2.1", 1) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def masked(frame: bytes) -> bytes:
    """A whole binary websocket message, with the mask of zeros."""
    size = len(frame)
    if size < 126:
        return bytes([0x82, 0x80 | size, 0, 0, 0, 0]) + frame
    head = b"\x82\xfe" + struct.pack(">H", size) if size < 1 << 16 else b"\x82\xff" + struct.pack(">Q", size)
    return head + bytes(4) + frame


class Served:
    """Peers of a coordinator, one after another."""

    def __init__(self, place: Path, seed: int) -> None:
        self.grid = Coordinator(place)
        self._frames = {role: Frames(seed, names) for role, names in FROM.items()}
        self._names = itertools.count()

    async def session(self, number: int, length: int) -> tuple[int, str]:
        """A client or an agent says hello, then up to this many frames from the number on, the last of them the least
        gentle; how many it could say, and what became of it."""
        role = ("client", "agent")[number // length % 2]
        name = f"fuzz{next(self._names) % 50}"
        wire, serving = self._open()
        facts = node(name) if role == "agent" else None
        hello = Hello(protocol=(1, 0), software="fuzz", role=role, name=name, facts=facts)
        said = [encode(1, [hello])]
        if role == "agent":
            said.append(encode(2, [Inventory(()), Offer(number=1, expires_in=60.0, cores=(0, 1), memory=1 << 30)]))
        first = len(said) + 1
        frames = self._frames[role]
        said += [frames.gentle(number + at, first + at) for at in range(length - 1)]
        said.append(frames.make(number + length, first + length - 1))
        let_in = asyncio.get_running_loop().create_future()
        wire.let_in = lambda: let_in.set_result(None)
        took = 0
        for frame in said:
            if wire.transport.is_closing() or wire.protocol.state is not State.OPEN:
                break
            wire.data_received(masked(frame))
            if not took:  # who says hello is found out in a thread, which may take any number of turns
                await asyncio.wait((let_in, serving), timeout=60, return_when=asyncio.FIRST_COMPLETED)
            for _ in range(3):
                await asyncio.sleep(0)
            took += 1
        for _ in range(TURNS):
            if wire.protocol.state is not State.OPEN:
                break
            await asyncio.sleep(0)
        ended = wire.protocol.state is not State.OPEN or serving.done()
        wire.transport.abort()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(serving, 60)
        if self.grid.driver.failed.done():
            self.grid.driver.failed.result()
        return took, f"served {role} after {took}: {'ended' if ended else 'still there'}"

    def _open(self) -> tuple[Wire, "asyncio.Task[None]"]:
        protocol = ServerProtocol(max_size=HELLO_BYTES, state=State.OPEN)
        wire = Wire(protocol, cast(Listener, None), ping_interval=None, close_timeout=0.01, max_queue=4)
        wire.request = Request("/", Headers())
        wire.address = "192.0.2.1"
        transport = Nowhere()
        transport.protocol = wire
        wire.connection_made(transport)
        return wire, asyncio.get_running_loop().create_task(self.grid.server._serve(wire))
