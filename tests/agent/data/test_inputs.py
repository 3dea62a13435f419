"""Standard input reaches a job's pipe byte by byte, goes on with the next agent, and is never cut without a word."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.data.inputs import PATIENCE, WINDOW, Inputs
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import InputTaken, PutInput, Stop

JOB = "j-reads.1"


class Node:
    """An allocation with a pipe that is held open, as its supervisor does, and who reads from it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.stops: list[Stop] = []
        self.whole: list[str] = []
        self.now = 1000.0
        folder = place / "allocs" / JOB
        folder.mkdir(parents=True)
        self.pipe = folder / "stdin"
        os.mkfifo(self.pipe)
        self.reader = os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.holder = os.open(self.pipe, os.O_WRONLY | os.O_NONBLOCK)
        self.inputs = self.agent()

    def agent(self) -> Inputs:
        """An agent that begins to expect this input."""
        self.inputs = Inputs(self.place, self.stops.append, self.whole.append, lambda: self.now)
        self.inputs.expect(JOB)
        return self.inputs

    async def put(self, offset: int, data: bytes = b"", **more: object) -> InputTaken:
        return await self.inputs.put(PutInput(1, JOB, offset, data, **more))  # type: ignore[arg-type]

    def read(self, size: int = 1 << 20) -> bytes:
        """What is in the pipe now."""
        got = b""
        while len(got) < size:
            try:
                data = os.read(self.reader, size - len(got))
            except BlockingIOError:
                break
            if not data:
                break
            got += data
        return got

    def close(self) -> None:
        self.inputs.close()
        for fd in (self.reader, self.holder):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
async def node(tmp_path: Path) -> "Iterator[Node]":  # type: ignore[misc]
    made = Node(tmp_path)
    yield made
    made.close()


async def test_bytes_come_out_of_the_pipe_as_they_went_in(node: Node) -> None:
    first = await node.put(0)
    assert (first.offset, first.next, first.until, first.over) == (0, 0, WINDOW, False)
    assert (await node.put(0, b"one ")).next == 4
    assert (await node.put(4, b"two")).next == 7
    assert node.read() == b"one two"


async def test_bytes_that_came_before_are_taken_once(node: Node) -> None:
    await node.put(0, b"abc")
    told = await node.put(0, b"abcdef")
    assert told.next == 6
    assert node.read() == b"abcdef"


async def test_bytes_beyond_a_gap_are_not_taken_and_the_answer_says_where_it_is(node: Node) -> None:
    await node.put(0, b"abc")
    told = await node.put(10, b"xyz", wait=60.0)
    assert told.next == 3
    assert node.read() == b"abc"


async def test_a_job_that_does_not_read_is_sent_no_more_than_a_window_beyond_its_pipe(node: Node) -> None:
    fcntl.fcntl(node.holder, 1031, 1 << 16)
    at = 0
    for _ in range(10):
        told = await node.put(at, b"x" * PART_BYTES)
        at = told.next
    assert (told.offset, told.until) == (1 << 16, (1 << 16) + WINDOW)
    assert told.next == told.until
    waiting = asyncio.create_task(node.put(at, until=told.until, wait=60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert len(node.read(1 << 16)) == 1 << 16
    more = await asyncio.wait_for(waiting, 30)
    assert more.until > told.until


async def test_the_end_travels_when_all_is_in_the_pipe_and_not_before(node: Node) -> None:
    fcntl.fcntl(node.holder, 1031, 1 << 12)
    data = os.urandom(3 << 12)
    await node.put(0, data)
    end = asyncio.create_task(node.put(len(data), end=True, wait=60.0))
    got = b""
    while not end.done():
        assert not node.whole or len(got) + (1 << 12) >= len(data)
        got += node.read(1 << 12)
        await asyncio.sleep(0)
    assert end.result().over
    assert got + node.read() == data
    assert node.whole == [JOB] and not node.stops


async def test_the_next_agent_goes_on_where_the_pipe_was_filled_to(node: Node) -> None:
    fcntl.fcntl(node.holder, 1031, 1 << 12)
    data = os.urandom(2 << 12)
    told = await node.put(0, data)
    assert (told.offset, told.next) == (1 << 12, len(data))
    node.inputs.close()  # as far as the disk knows, it was killed
    node.agent()
    told = await node.put(len(data))
    assert (told.offset, told.next) == (1 << 12, 1 << 12)
    got = node.read()
    await node.put(told.next, data[told.next :])
    assert got + node.read() == data


async def test_an_agent_that_was_killed_at_a_write_ends_the_job_for_that_reason(node: Node) -> None:
    await node.put(0, b"abc")
    node.inputs.close()
    note = node.pipe.with_name("stdin.at")
    noted = bytearray(note.read_bytes())
    noted[15] += 1  # what it meant to have written, and did not say that it had
    note.write_bytes(noted)
    node.agent()
    assert (await node.put(3, b"def")).over
    assert [(stop.allocation, stop.cause) for stop in node.stops] == [(JOB, Cause.INPUT_LOST)]
    assert "after 3 bytes" in node.stops[0].text and "agent was killed" in node.stops[0].text


async def test_the_next_agent_tells_the_supervisor_again_that_an_input_has_ended(node: Node) -> None:
    await node.put(0, b"abc")
    assert (await node.put(3, end=True, wait=60.0)).over
    node.agent()
    node.inputs.resume(JOB)
    assert node.whole == [JOB, JOB]


async def test_a_job_that_closes_its_input_ends_it_quietly(node: Node) -> None:
    await node.put(0, b"abc")
    os.close(node.reader)
    node.reader = -1
    assert (await node.put(3, b"def")).over
    node.agent()
    assert (await node.put(3)).over
    assert not node.stops and not node.whole


async def test_an_input_that_its_sender_cuts_ends_the_job_and_is_not_closed(node: Node) -> None:
    await node.put(0, b"abc")
    assert (await node.put(3, cut="its client left")).over
    assert node.stops[0].text == "its standard input ended too early, after 3 bytes: its client left"
    assert not node.whole
    assert node.read() == b"abc"
    with pytest.raises(BlockingIOError):  # and no end
        os.read(node.reader, 1)


async def test_a_sender_that_is_not_heard_of_loses_the_job_its_input(node: Node) -> None:
    await node.put(0, b"abc")
    node.now += PATIENCE + 1
    node.inputs.poll(connected=False)  # it could not reach us
    node.inputs.poll(connected=True)
    assert not node.stops
    node.now += PATIENCE + 1
    node.inputs.poll(connected=True)
    assert [stop.cause for stop in node.stops] == [Cause.INPUT_LOST]


async def test_an_input_that_is_all_here_needs_no_sender(node: Node) -> None:
    fcntl.fcntl(node.holder, 1031, 1 << 12)
    await node.put(0, b"x" * (2 << 12), end=True)
    node.now += PATIENCE + 1
    node.inputs.poll(connected=True)
    assert not node.stops


async def test_a_note_that_a_job_replaced_is_not_left_open_however_often_it_is_tried(node: Node) -> None:
    note = node.pipe.with_name("stdin.at")
    os.mkfifo(note)
    holder = os.open(note, os.O_RDWR)
    for _ in range(3):
        told = await node.put(0, b"abc")
        assert told.error == f"the pipe of {JOB} cannot be opened: Illegal seek"
    os.close(holder)
    with pytest.raises(OSError, match="No such device"):  # nobody has it open
        os.open(note, os.O_WRONLY | os.O_NONBLOCK)


async def test_a_job_that_was_given_no_input_takes_none(node: Node) -> None:
    told = await node.inputs.put(PutInput(1, "j-other.1", 0, b"abc"))
    assert told.error == "j-other.1 takes no standard input here"
