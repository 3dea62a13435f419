"""Peers that send what they should not, before and after the hello, while real jobs run: only their own connection
ends. Jobs and heartbeats go on, the coordinator's memory stays bounded, and nothing is logged as a crash."""

import asyncio
import contextlib
import itertools
import math
import os
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from websockets.exceptions import ConnectionClosed

from distributed_grid.coordinator.client import GridClient
from distributed_grid.protocol.codec import BULK_BYTES, CONTROL_BYTES
from distributed_grid.protocol.jobs import Cause, Outcome, State
from distributed_grid.protocol.messages import Exited, GetStatus, Heartbeat, Inventory, Launch, Offer, Started
from distributed_grid.protocol.nodes import Known, Sample
from distributed_grid.protocol.resources import Resources
from tests.depth import tries
from tests.e2e.scenes import Scene, scene
from tests.e2e.security.abusers import Peer, flood, known, masked, stranger

GROWTH = 32 << 20
SILENT = 5.0  # a heartbeat comes every two seconds; at six a node is suspect
EMPTIES = tries(20_000)
"""Frames without messages that each of two peers sends at once."""
DEEP = b"\x91" * 200_000 + b"\xc0"


@pytest.fixture(scope="module")
def grid() -> Iterator[Scene]:
    """A grid with one real node, and a real job on it from the first test to the last."""
    with asyncio.Runner() as runner:
        context = scene()
        made = runner.run(context.__aenter__())
        try:
            runner.run(made.agent("n1", cores=[0, 1, 2], virtual=True))
            yield made
        finally:
            runner.run(context.__aexit__(None, None, None))


def rss(grid: Scene) -> int:
    """Return the resident memory of the coordinator, in bytes."""
    status = Path(f"/proc/{grid.parts['coordinator'].pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def peak(grid: Scene) -> int:
    """The most the coordinator ever had resident, in bytes."""
    status = Path(f"/proc/{grid.parts['coordinator'].pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@asynccontextmanager
async def undisturbed(grid: Scene) -> AsyncIterator[GridClient]:
    """Check what holds whatever happens inside the block: a running job runs on, another one can be run, the node is
    heard all the time, memory grows little, and no traceback is logged."""
    yardstick = grid.place / "yardstick"
    async with GridClient(grid.url) as client:
        job = await client.submit(["sh", "-c", "echo up; sleep 600"])
        await grid.until(lambda: _in_state(client, job, State.RUNNING), "the job runs")
        before = rss(grid)
        silence = stall = 0.0

        async def listen() -> None:
            nonlocal silence
            while True:
                silence = max(silence, *(n.silent_for for n in await client.nodes() if n.facts.name == "n1"))
                await asyncio.sleep(0.05)

        async def measure() -> None:
            """Measure how long this machine delays a process that does next to nothing."""
            nonlocal stall
            while True:
                began = time.monotonic()
                await asyncio.to_thread(sync, yardstick)
                await asyncio.sleep(0.05)
                stall = max(stall, time.monotonic() - began)

        listening = asyncio.gather(listen(), measure())
        try:
            yield client
            result = await asyncio.wait_for(client.run(["echo", "fine"], nodes=["n1"]), 60)
            assert (result.exit_code, result.stdout) == (0, "fine\n")
            assert (await client.show(job)).state is State.RUNNING
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            await client.cancel(job, grace=0)
            await client.wait(job)
    assert silence < SILENT + stall
    assert rss(grid) - before < GROWTH, f"{(rss(grid) - before) >> 20} MiB more"
    assert grid.parts["coordinator"].poll() is None
    for log in grid.place.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


async def _in_state(client: GridClient, job: str, state: State) -> bool:
    return (await client.show(job)).state is state


def sync(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"x")
        os.fsync(file.fileno())


def logged(grid: Scene, words: str) -> int:
    """Return how many lines of the coordinator's log have these words."""
    return (grid.place / "coordinator.log").read_text().count(words)


async def cut(grid: Scene, peer: Peer) -> None:
    """Wait until it is cut for what it said, and not for saying nothing."""
    await peer.cut()
    assert not peer.name or logged(grid, f'"node": "{peer.name}", "seconds"') == 0, "cut for its silence"


ROLES = ("client", "agent")


# --- frames that are none ---------------------------------------------------------------------------------------------

FRAMES: dict[str, bytes | str] = {
    "garbage": bytes(range(256)) * 16,
    "nothing": b"",
    "text": "hello there",
    "deep": DEEP,
    "a huge array that is not there": b"\xdd\xff\xff\xff\xff",
    "a huge map that is not there": b"\x92\x01\xdf\xff\xff\xff\xff",
    "huge bytes that are not there": b"\x92\x01\xc6\xff\xff\xff\xff",
    "unknown message": b"\x92\x02\x91\x81\xa4type\xa7unknown",
    "no message": b"\x92\x02\x91\xc0",
    "a broken string": b"\x92\x02\x91\x81\xa4type\xa3\xff\xfe\xfd",
    "a sequence that is no number": b"\x92\xa1a\x90",
    "a sequence beyond all": b"\x92\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x90",
    "deep in an unknown field": b"\x92\x02\x91\x83\xa4type\xaaget-status\xa2id\x01\xa4more" + DEEP,
}


async def test_frames_that_are_none_end_their_connection_and_nothing_else(grid: Scene) -> None:
    async with undisturbed(grid):
        for frame in FRAMES.values():
            async with stranger(grid.url) as peer:
                await peer.socket.send(frame)
                await cut(grid, peer)
            for role in ROLES:
                async with known(grid.url, role) as peer:
                    await peer.socket.send(frame)
                    await cut(grid, peer)


@pytest.mark.parametrize("size", [5 << 20, 100 << 20])
async def test_an_oversized_frame_is_not_read(grid: Scene, size: int) -> None:
    frame = bytes(size)
    before = peak(grid)
    async with undisturbed(grid):
        for role in ("", *ROLES):
            async with known(grid.url, role) if role else stranger(grid.url) as peer:
                with contextlib.suppress(ConnectionClosed):
                    await peer.socket.send(frame)
                await cut(grid, peer)
    assert peak(grid) - before < GROWTH


async def test_a_first_frame_of_four_mib_and_a_control_frame_above_its_limit_are_refused(grid: Scene) -> None:
    async with undisturbed(grid):
        async with stranger(grid.url) as peer:
            await peer.socket.send(bytes(BULK_BYTES))
            await cut(grid, peer)
        async with known(grid.url, "agent") as peer:
            await peer.socket.send(bytes(CONTROL_BYTES + 1))
            await cut(grid, peer)


async def test_a_message_in_endless_empty_fragments_is_not_collected(grid: Scene) -> None:
    empty = b"\x80" + bytes(4)  # a continuation without content, masked
    async with undisturbed(grid):
        for role in ("", *ROLES):
            async with known(grid.url, role) if role else stranger(grid.url) as peer:
                with contextlib.suppress(OSError, ConnectionClosed):
                    peer.socket.transport.write(b"\x02" + empty)
                    for _ in range(100):
                        peer.socket.transport.write((b"\x00" + empty) * 2000)
                        await peer.socket.drain()
                await cut(grid, peer)


# --- slow and silent ones ---------------------------------------------------------------------------------------------


async def test_slow_and_silent_strangers_are_turned_away_in_time(grid: Scene) -> None:
    host, port = grid.url.removeprefix("ws://").split(":")

    async def drip(data: Iterator[int]) -> None:
        """A byte a second, until it is cut."""
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError):
            while not reader.at_eof():
                writer.write(bytes([next(data)]))
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(100), 1)
        writer.close()

    async def frame_drip() -> None:
        async with stranger(grid.url) as peer:
            frame = b"\x82\xfe" + struct.pack(">H", 60_000) + bytes(4)
            while not peer.socket.transport.is_closing():
                peer.socket.transport.write(frame[:1])
                frame = frame[1:] or b"x"
                await asyncio.sleep(0.5)

    async def silent() -> None:
        async with stranger(grid.url) as peer:
            await peer.cut()

    async def unopened() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        assert await reader.read() == b""
        writer.close()

    async with undisturbed(grid), asyncio.timeout(60):
        request = itertools.chain(b"GET / HTTP/1.1\r\n", itertools.cycle(b"a: b\r\n"))
        many = [silent() for _ in range(20)] + [unopened() for _ in range(20)]
        await asyncio.gather(drip(request), drip(itertools.cycle(b"x")), frame_drip(), *many)


async def test_half_a_frame_from_a_known_peer_holds_up_nobody(grid: Scene) -> None:
    async with undisturbed(grid) as client, contextlib.AsyncExitStack() as stack:
        for role in ROLES:
            peer = await stack.enter_async_context(known(grid.url, role))
            peer.socket.transport.write(b"\x82\xff" + struct.pack(">Q", 4 << 20) + bytes(4) + b"x" * 1000)
        for _ in range(5):
            assert (await client.run(["true"], nodes=["n1"])).success


# --- floods -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [True, False], ids=["reading", "not reading"])
async def test_floods_of_pings(grid: Scene, read: bool) -> None:
    pings = (b"\x89\xfd" + bytes(4) + b"p" * 125) * 500
    peers = known(grid.url, "client"), known(grid.url, "agent"), stranger(grid.url)
    async with undisturbed(grid), peers[0] as one, peers[1] as two, peers[2] as three:
        why = "control frames without end"
        before = logged(grid, why)
        ended = await asyncio.gather(*(flood(peer, pings, read) for peer in (one, two, three)))
        assert all(ended)
        await grid.until(lambda: logged(grid, why) == before + 3, "all three are cut for their floods")


async def test_floods_of_frames_without_messages(grid: Scene) -> None:
    async with undisturbed(grid), known(grid.url, "client") as one, known(grid.url, "agent") as two:

        async def empties(peer: Peer) -> None:
            with contextlib.suppress(OSError, ConnectionClosed):
                for number in range(2, EMPTIES):
                    peer.socket.transport.write(masked(b"\x92\xce" + struct.pack(">I", number) + b"\x90"))
                    if number % 500 == 0:
                        await peer.socket.drain()
                        await asyncio.sleep(0)  # which a drained socket is not: the others, too
            peer.socket.transport.abort()

        await asyncio.gather(empties(one), empties(two))


async def test_a_frame_full_of_questions_keeps_nobody_else_waiting(grid: Scene) -> None:
    before = peak(grid)
    async with undisturbed(grid):
        for read in (True, False):
            async with known(grid.url, "client") as peer:
                if not read:
                    peer.socket.transport.pause_reading()
                await peer.say(*(GetStatus(id=number) for number in range(60_000)))
                if read:
                    with contextlib.suppress(TimeoutError):
                        await peer.cut(3)
                peer.socket.transport.abort()
    assert peak(grid) - before < 2 * GROWTH


# --- agents that lie --------------------------------------------------------------------------------------------------


def offer(**more: Any) -> Offer:
    usual: dict[str, Any] = {"number": 1, "expires_in": 60.0, "cores": (0, 1), "memory": 1 << 30}
    return Offer(**(usual | more))


async def test_an_agent_cannot_speak_for_another_nodes_jobs(grid: Scene) -> None:
    async with undisturbed(grid) as client:
        job = await client.submit(["sleep", "600"], nodes=["n1"])
        await grid.until(lambda: _in_state(client, job, State.RUNNING), "it runs")
        theirs = (await client.show(job)).allocation
        async with known(grid.url, "agent") as liar:
            await liar.say(Inventory(known=()), offer(cores=()))
            over = Exited(allocation=theirs, outcome=Outcome(Cause.EXITED, code=3), returned=True)
            await liar.say(Started(allocation=theirs), over, over)
            await liar.say(Inventory(known=(Known(theirs, State.ENDED, over.outcome),)))
            await client.status()
            assert (await client.show(job)).state is State.RUNNING
        await client.cancel(job, grace=0)
        await client.wait(job)


async def test_cores_that_a_node_has_not_got_are_not_lent(grid: Scene) -> None:
    async with undisturbed(grid), known(grid.url, "agent", name="liar") as liar:
        many = tuple(range(1000))
        await liar.say(Inventory(known=()), offer(cores=many, memory=1 << 59, shares=dict.fromkeys(many, 1000)))
        view = (await grid.until(lambda: grid.offers("liar"), "it offers"))[0]
        assert (view.cores, view.room) == ((0, 1), Resources(2000, 1 << 30))


async def test_words_about_ten_thousand_unknown_allocations_change_nothing(grid: Scene) -> None:
    async with undisturbed(grid), known(grid.url, "agent") as liar:
        names = [f"j-aaaaaaa{number:05}.1" for number in range(10_000)]
        for at in range(0, len(names), 2_500):
            some = names[at : at + 2_500]
            await liar.say(Inventory(known=tuple(Known(name, State.RUNNING) for name in some)))
            await liar.say(*(Started(allocation=name) for name in some))
            await liar.say(*(Exited(allocation=name, outcome=Outcome(Cause.EXITED), returned=True) for name in some))


BAD_NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1.0]


@pytest.mark.parametrize("number", BAD_NUMBERS)
async def test_numbers_that_are_none_from_an_agent_harm_nobody_else(grid: Scene, number: float) -> None:
    async with undisturbed(grid) as client:
        with contextlib.suppress(ConnectionClosed):
            async with known(grid.url, "agent", priority=number) as liar:
                await liar.say(Inventory(known=()), offer())
                await client.status()
        for wrong in (offer(expires_in=number), offer(idle_since=number)):
            with contextlib.suppress(ConnectionClosed):
                async with known(grid.url, "agent") as liar:
                    await liar.say(Heartbeat(sample=Sample(at=number, own_cpu=number, foreign_cpu=number)))
                    await liar.say(Inventory(known=()), wrong)
                    await client.status()
                    await client.shared()


async def test_an_outcome_with_impossible_numbers_is_not_taken_and_the_right_one_is(grid: Scene) -> None:
    async with undisturbed(grid) as client, asyncio.timeout(60):
        async with known(grid.url, "agent", name="liar") as liar:
            await liar.say(Inventory(known=()), offer())
            job = await client.submit(["true"], nodes=["liar"])
            launch = await liar.next(Launch)
        right = Outcome(Cause.EXITED, code=7)
        wrong: list[dict[str, Any]] = [
            {"seconds": math.nan},
            {"cpu_seconds": math.inf},
            {"code": 1 << 63},
            {"peak_memory": (1 << 64) - 1},
        ]
        for numbers in wrong:
            async with known(grid.url, "agent", name="liar") as liar:
                await liar.say(Inventory(known=(Known(launch.allocation, State.RUNNING),)))
                await liar.say(Exited(allocation=launch.allocation, outcome=replace(right, **numbers)))
                await liar.cut()
        async with known(grid.url, "agent", name="liar") as liar:
            await liar.say(Inventory(known=(Known(launch.allocation, State.RUNNING),)))
            await liar.say(Exited(allocation=launch.allocation, outcome=right, returned=True))
            view = await client.wait(job)
        assert view.outcome == right


async def test_duplicates_are_taken_once(grid: Scene) -> None:
    async with undisturbed(grid) as client, known(grid.url, "agent", name="twice") as liar:
        await liar.say(Inventory(known=()), offer())
        job = await client.submit(["true"], nodes=["twice"])
        launch = await liar.next(Launch)
        over = Exited(allocation=launch.allocation, outcome=Outcome(Cause.EXITED, code=4), returned=True)
        again = replace(over, outcome=Outcome(Cause.EXITED, code=5))
        await liar.say(*[Started(allocation=launch.allocation)] * 3, over, again, *[over] * 100)
        view = await client.wait(job)
        assert view.outcome is not None and view.outcome.code == 4
        (seen,) = await grid.offers("twice")
        assert seen.room == Resources(2000, 1 << 30)
