"""A process full of peers that misbehave in every way we know, all at once, until it is ended. Prints every second how
often each kind was at it and how often it was cut, as a line of JSON.

    python -m tests.e2e.security.crowd ws://127.0.0.1:PORT SEED
"""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec.structs import replace
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from distributed_grid.protocol.codec import BULK_BYTES, HELLO_BYTES
from distributed_grid.protocol.messages import GetStatus, ListJobs
from tests.e2e.security.abusers import Peer, known, masked, stranger
from tests.fuzz.frames import Frames
from tests.protocol.samples import MESSAGES

GREEDY = "greedy"
"""The user of those who ask for too much: one for all, so that they share one pace."""
ENDED = OSError, RuntimeError, ConnectionClosed, InvalidHandshake, InvalidMessage, TimeoutError, EOFError
SPELL = 20.0
"""Seconds after which each begins anew, if it was not cut before."""

Misdeed = Callable[[str, random.Random], Awaitable[None]]


async def pour(peer: Peer, data: bytes, read: bool) -> None:
    """Write the same until it is cut."""
    if not read:
        peer.socket.transport.pause_reading()
    while not peer.socket.transport.is_closing():
        peer.socket.transport.write(data)
        await peer.socket.drain()
        await asyncio.sleep(0.001)


# --- those that never get as far as a hello ---------------------------------------------------------------------------


async def say_nothing(url: str, rng: random.Random) -> None:
    host, port = url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer):
        await reader.read()


async def ask_slowly(url: str, rng: random.Random) -> None:
    """An HTTP request, a byte a second."""
    host, port = url.removeprefix("ws://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with contextlib.closing(writer):
        for byte in b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100:
            writer.write(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                if await asyncio.wait_for(reader.read(100), 1) == b"":
                    return


async def open_and_wait(url: str, rng: random.Random) -> None:
    async with stranger(url) as peer:
        await peer.cut(SPELL)


async def come_and_go(url: str, rng: random.Random) -> None:
    host, port = url.removeprefix("ws://").split(":")
    for _ in range(50):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.transport.abort()
        await asyncio.sleep(0.01)


async def begin_too_big(url: str, rng: random.Random) -> None:
    async with stranger(url) as peer:
        await peer.socket.send(bytes(rng.choice((HELLO_BYTES + 1, BULK_BYTES + 1))))
        await peer.cut()


async def begin_wrong(url: str, rng: random.Random) -> None:
    async with stranger(url) as peer:
        await peer.socket.send(Frames(rng.randrange(1 << 30)).make(0, 1))
        await peer.cut()


# --- those that do ----------------------------------------------------------------------------------------------------


def either(rng: random.Random) -> str:
    return rng.choice(("client", "agent"))


async def speak_slowly(url: str, rng: random.Random) -> None:
    """A frame of 60,000 bytes, ten a second."""
    async with known(url, either(rng)) as peer:
        for byte in b"\x82\xfe\xea\x60" + bytes(200):
            peer.socket.transport.write(bytes([byte]))
            await asyncio.sleep(0.1)


async def flood_pings(url: str, rng: random.Random) -> None:
    async with known(url, either(rng)) as peer:
        await pour(peer, (b"\x89\xfd" + bytes(4) + b"p" * 125) * 100, read=rng.random() < 0.5)


async def flood_fragments(url: str, rng: random.Random) -> None:
    async with known(url, either(rng)) as peer:
        peer.socket.transport.write(b"\x02\x80" + bytes(4))
        await pour(peer, (b"\x00\x80" + bytes(4)) * 500, read=True)


async def flood_empty_frames(url: str, rng: random.Random) -> None:
    async with known(url, either(rng)) as peer:
        for sequence in range(2, 1 << 20):
            peer.socket.transport.write(masked(b"\x92\xce" + sequence.to_bytes(4, "big") + b"\x90"))
            if sequence % 200 == 0:
                await peer.socket.drain()
                await asyncio.sleep(0.001)


async def ask_and_never_read(url: str, rng: random.Random) -> None:
    async with known(url, "client", name=GREEDY) as peer:
        peer.socket.transport.pause_reading()
        for number in range(1, 1 << 20):
            await peer.say(*(ListJobs(number * 100 + n, ended=True) for n in range(100)))
            await asyncio.sleep(0.01)


async def ask_for_too_much(url: str, rng: random.Random) -> None:
    async with known(url, "client", name=GREEDY) as peer:
        for number in range(1, 1 << 20):
            await peer.say(*(GetStatus(number * 1000 + n) for n in range(1000)))
            while (await peer.next(object)).id < number * 1000 + 999:
                pass


async def send_frames_that_are_none(url: str, rng: random.Random) -> None:
    role = either(rng)
    frames = Frames(rng.randrange(1 << 30))
    async with known(url, role) as peer:
        for number in range(4):
            await peer.socket.send(frames.gentle(number, number + 2) if number < 3 else frames.make(number, number + 2))
        await peer.cut()


async def send_too_much(url: str, rng: random.Random) -> None:
    async with known(url, either(rng)) as peer:
        await peer.socket.send(bytes(BULK_BYTES + 1))
        await peer.cut()


async def lie_about_jobs(url: str, rng: random.Random) -> None:
    """An agent that tells of jobs that were never given to it."""
    async with known(url, "agent") as peer:
        for number in range(200):
            exited = replace(MESSAGES["Exited"], allocation=f"j-aaaaaaa{number:05}.1")
            await peer.say(MESSAGES["Heartbeat"], exited, exited)
            await asyncio.sleep(0.02)


CROWD: dict[Misdeed, int] = {
    say_nothing: 20, ask_slowly: 6, open_and_wait: 20, come_and_go: 2, begin_too_big: 2, begin_wrong: 4,
    speak_slowly: 6, flood_pings: 3, flood_fragments: 2, flood_empty_frames: 2, ask_and_never_read: 3,
    ask_for_too_much: 8, send_frames_that_are_none: 4, send_too_much: 2, lie_about_jobs: 2,
}  # fmt: skip


async def again_and_again(misdeed: Misdeed, url: str, rng: random.Random, done: Counter[str]) -> None:
    while True:
        done[misdeed.__name__] += 1
        with contextlib.suppress(*ENDED):
            async with asyncio.timeout(SPELL):
                await misdeed(url, rng)
        await asyncio.sleep(0.1 + rng.random() / 2)


async def crowd(url: str, seed: int) -> None:
    done: Counter[str] = Counter()
    rng = random.Random(seed)  # noqa: S311
    async with asyncio.TaskGroup() as group:
        for misdeed, count in CROWD.items():
            for _ in range(count):
                group.create_task(again_and_again(misdeed, url, random.Random(rng.random()), done))  # noqa: S311
        while True:
            print(json.dumps(done), flush=True)
            await asyncio.sleep(1)


if __name__ == "__main__":
    os.nice(10)  # what they cost is to be seen in the coordinator, not in this machine's want of cores
    asyncio.run(crowd(sys.argv[1], int(sys.argv[2])))
