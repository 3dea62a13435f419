"""A heartbeat is taken when it arrives, and nothing else changes: messages keep their order however the bytes come, and
what breaks the rules is judged as before."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from websockets.frames import Frame, Opcode

from distributed_grid.coordinator.api import server
from distributed_grid.coordinator.core.commands import HeartbeatReceived, MessageReceived
from distributed_grid.coordinator.net.connection import Connection, Wire, frame_at, last_of
from distributed_grid.protocol.codec import encode
from distributed_grid.protocol.messages import Heartbeat
from distributed_grid.protocol.nodes import Offer, Sample
from tests.coordinator.ends import AgentEnd, Coordinator, agent, coordinator

SIZES = st.sampled_from((0, 1, 124, 125, 126, 127, 128, 700, 65_535))


def framed(payload: bytes, opcode: Opcode = Opcode.BINARY, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


@given(st.lists(SIZES, min_size=1, max_size=4), st.binary(max_size=5))
def test_frames_are_found_where_the_library_would_find_them(sizes: list[int], before: bytes) -> None:
    frames = [framed(bytes(size)) for size in sizes]
    stream, at = before + b"".join(frames), len(before)
    for size, frame in zip(sizes, frames, strict=True):
        assert frame_at(stream, at) == (at + len(frame) - size, at + len(frame))
        at += len(frame)
    assert last_of(b"".join(frames)) == (at - len(before) - sizes[-1], at - len(before))


@pytest.mark.parametrize("size", (0, 125, 126, 700))
def test_a_frame_of_which_the_end_has_not_come_is_none(size: int) -> None:
    frame = framed(bytes(size))
    for length in range(len(frame)):
        assert frame_at(frame[:length], 0) == (0, 0)
        assert last_of(frame + frame[:length])[1] == (0 if length else len(frame))


def test_an_unmasked_frame_and_one_of_64_kib_are_left_to_the_library() -> None:
    for frame in (Frame(Opcode.BINARY, bytes(200)).serialize(mask=False), framed(bytes(1 << 16))):
        assert frame_at(frame, 0) == (0, 0)


class Listening:
    """What a coordinator has heard of an agent, in order, and what woke the task of its connection."""

    def __init__(self, grid: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Any] = []
        self.woken: list[Any] = []
        handle, receive = grid.ledger.handle, Connection.receive

        def handled(event: Any, now: float) -> Any:
            if isinstance(event, HeartbeatReceived | MessageReceived):
                self.events.append(event.sample.at if isinstance(event, HeartbeatReceived) else event.message)
            return handle(event, now)

        async def received(connection: Connection) -> list[Any]:
            messages = await receive(connection)
            self.woken += messages
            return messages

        monkeypatch.setattr(grid.ledger, "handle", handled)
        monkeypatch.setattr(Connection, "receive", received)

    async def until(self, last: Any) -> None:
        async with asyncio.timeout(60):
            while last not in self.events:  # noqa: ASYNC110
                await asyncio.sleep(0.002)


def wire_of(grid: Coordinator) -> Wire:
    """The coordinator's side of the agent's connection, which tests hand bytes to."""
    return grid.server._agents["n1"].control.wire


def beat(at: float) -> Heartbeat:
    return Heartbeat(Sample(at=at))


def bytes_of(end: AgentEnd, *messages: Any) -> bytes:
    end.link.send(*messages)
    return b"".join(framed(frame) for frame in end.link.data_to_send())


async def test_a_heartbeat_wakes_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with coordinator(tmp_path) as grid:
        heard = Listening(grid, monkeypatch)
        worker = await agent(grid.url)
        await worker.say(beat(1.0))  # after it the parser is known to stand between two frames
        await heard.until(1.0)
        heard.woken.clear()
        for at in range(2, 10):
            await worker.say(beat(at))
            await (await worker.socket.ping())
        await heard.until(9.0)
        assert [one for one in heard.events if isinstance(one, float)] == [float(at) for at in range(1, 10)]
        assert heard.woken == []
        assert grid.ledger.state.nodes["n1"].sample == Sample(at=9.0)
        await worker.close()


@pytest.mark.parametrize("seed", range(8))
async def test_messages_keep_their_order_however_the_bytes_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    async with coordinator(tmp_path) as grid:
        heard = Listening(grid, monkeypatch)
        worker = await agent(grid.url)
        wire = wire_of(grid)
        heard.events.clear()
        sent: list[Any] = []
        stream, ends = b"", []
        for number in range(100, 300):
            match rng.choice("bbbbopf"):
                case "b":
                    sent.append(float(number))
                    stream += bytes_of(worker, beat(number))
                case "o":
                    sent.append(Offer(number=number, expires_in=300.0))
                    stream += bytes_of(worker, sent[-1])
                case "p":
                    stream += framed(b"ping", Opcode.PING)
                case "f":  # in fragments, as a proxy may send it
                    sent.append(float(number))
                    worker.link.send(beat(number))
                    (frame,) = worker.link.data_to_send()
                    stream += framed(frame[:9], fin=False) + framed(frame[9:], Opcode.CONT)
            ends.append(len(stream))
        stream += bytes_of(worker, beat(1e6))
        ends.append(len(stream))
        at = 0
        while at < len(stream):
            size = rng.choice((1, 2, 7, 40, 90, 300, 2000))
            if rng.random() < 0.8:
                size = next(end for end in ends if end > at) - at
            wire.data_received(stream[at : at + size])
            at += size
            for _ in range(rng.choice((0, 0, 0, 1, 3, 10))):
                await asyncio.sleep(0)
        await heard.until(1e6)
        assert [one for one in heard.events if not isinstance(one, Offer) or one.number >= 100] == [*sent, 1e6]
        await worker.close()


@pytest.mark.parametrize(
    "frame", [encode(99, [beat(2.0)]), encode(4, [beat(2.0)])[:-3], b"\xc1"], ids=("sequence", "short", "none")
)
async def test_a_bad_frame_after_a_heartbeat_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frame: bytes
) -> None:
    async with coordinator(tmp_path) as grid:
        heard = Listening(grid, monkeypatch)
        worker = await agent(grid.url)
        await worker.say(beat(1.0))
        await heard.until(1.0)
        with capture_logs() as logs:
            await worker.socket.send(frame)
            await worker.gone()
        assert "turned away" in [line["event"] for line in logs]
        assert heard.events[-1] == 1.0


async def test_what_looks_like_a_heartbeat_inside_another_frame_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as grid:
        heard = Listening(grid, monkeypatch)
        worker = await agent(grid.url)
        await worker.say(beat(1.0))
        await heard.until(1.0)
        inside = bytes_of(worker, beat(2.0))
        whole = framed(bytes(10) + inside)
        wire = wire_of(grid)
        wire.data_received(whole[: -len(inside)])
        wire.data_received(inside)
        await worker.gone()
        assert heard.events[-1] == 1.0


async def test_heartbeats_beyond_the_nodes_budget_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "WORDS_PER_SECOND", 1.0)
    monkeypatch.setattr(server, "WORDS_AT_ONCE", 50.0)
    async with coordinator(tmp_path) as grid:
        heard = Listening(grid, monkeypatch)
        worker = await agent(grid.url)
        await worker.say(beat(1.0))
        await heard.until(1.0)
        for at in range(2, 200):
            await worker.say(beat(at))
        await heard.until(40.0)
        await asyncio.sleep(0.1)
        assert heard.events[-1] < 60.0
        worker.socket.transport.abort()
