"""A job's standard input as its sender sees it: as much as the node takes, again from where it was, or not at all."""

import io
import itertools
import os
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.client.input import KEPT_BYTES, RETRY_SECONDS, JobInput, pieces_of
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import JobSpec, JobView, Request, State
from distributed_grid.protocol.messages import InputTaken, PutInput
from distributed_grid.protocol.resources import Resources

VIEW = JobView(
    id="j-a",
    user="ann",
    state=State.RUNNING,
    spec=JobSpec(argv=("cat",), stdin=True),
    request=Request(Resources(cpu=1000)),
    submitted=1.0,
    allocation="j-a.1",
)
WINDOW = 2 * PART_BYTES


class Far:
    """The node at the other end: it takes what fits its window, and may lose what is not in the pipe."""

    def __init__(self, stdin: JobInput) -> None:
        self.stdin = stdin
        self.data = b""
        self.written = 0
        self.ended = False
        self.cut = ""
        self.held: PutInput | None = None
        self.number: Callable[[], int] = itertools.count(1).__next__

    def turn(self, now: float = 0.0) -> list[PutInput]:
        """Let it send once, and answer what is not held back."""
        sent = self.stdin.messages(self.number, now)
        for one in sent:
            if one.cut:
                self.cut = one.cut
            if one.offset <= len(self.data):
                fresh = one.data[len(self.data) - one.offset :]
                self.data += fresh[: self.written + WINDOW - len(self.data)]
                self.ended = self.ended or (one.end and one.offset == len(self.data))
            nothing = one.offset <= len(self.data) and self.written + WINDOW <= one.until
            if nothing and not (one.data or one.cut or self.ended):
                self.held = one
            else:
                self.answer(one, now)
        return sent

    def answer(self, one: PutInput, now: float = 0.0) -> None:
        over = (self.ended and self.written == len(self.data)) or bool(self.cut)
        told = InputTaken(one.id, self.written, len(self.data), self.written + WINDOW, over)
        assert self.stdin.receive(one.id, told, now)

    def drain(self) -> None:
        """The job reads all that is here, which the sender is told."""
        self.written = len(self.data)
        if self.held is not None:
            held, self.held = self.held, None
            self.answer(held)


@pytest.fixture
def stdin() -> JobInput:
    return JobInput()


@pytest.fixture
def far(stdin: JobInput) -> Far:
    return Far(stdin)


def test_nothing_is_read_or_sent_before_the_job_runs(stdin: JobInput, far: Far) -> None:
    stdin.update(replace(VIEW, state=State.WAITING, allocation=""))
    assert (stdin.room(), far.turn()) == (0, [])
    stdin.update(replace(VIEW, state=State.STARTING))
    assert (stdin.room(), far.turn()) == (0, [])


def test_nothing_is_read_before_the_node_says_how_much_it_takes(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    assert stdin.room() == 0
    assert [one.data for one in far.turn()] == [b""]
    assert stdin.room() == PART_BYTES


def test_all_of_it_arrives_in_order_with_its_end(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    data = bytes(range(256)) * 8192
    rest = data
    for _ in range(100):
        far.turn()
        far.drain()
        if room := stdin.room():
            stdin.put(rest[:room] or None)
            rest = rest[room:]
    assert far.data == data
    assert far.ended


def test_of_a_job_that_does_not_read_no_more_is_taken_than_a_window(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    read = 0
    for _ in range(50):
        far.turn()
        room = stdin.room()
        read += room
        if room:
            stdin.put(b"x" * room)
    assert read == WINDOW
    assert far.held is not None  # one question is held back, and nothing else under way
    assert far.turn() == []


def test_an_agent_that_lost_what_was_not_in_the_pipe_gets_it_again(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    far.turn()
    stdin.put(b"abc")
    far.turn()
    far.written = 1
    far.turn()
    far.turn()
    far.data = far.data[:1]  # it was restarted
    assert far.held is not None
    assert stdin.receive(far.held.id, InputTaken(far.held.id, error="unavailable"), 5.0)
    far.held = None
    assert far.turn(5.0) == []
    assert stdin.pause(5.0) == RETRY_SECONDS
    for _ in range(3):
        far.turn(5.0 + RETRY_SECONDS)
    assert far.data == b"abc"


def test_another_attempt_gets_all_of_it_from_the_beginning(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    far.turn()
    stdin.put(b"abc")
    stdin.put(None)
    far.turn()
    far.drain()
    far.turn()
    again = Far(stdin)
    again.number = far.number
    stdin.update(replace(VIEW, allocation="j-a.2"))
    for _ in range(4):
        again.turn()
        again.drain()
    assert again.data == b"abc" and again.ended


def test_another_attempt_is_ended_where_its_input_is_not_kept(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    while len(far.data) <= KEPT_BYTES + WINDOW:
        far.turn()
        if room := stdin.room():
            stdin.put(b"x" * room)
        far.drain()
    again = Far(stdin)
    again.number = far.number
    stdin.update(replace(VIEW, allocation="j-a.2"))
    for _ in range(3):
        again.turn()
    assert "went to an earlier attempt" in again.cut
    assert not again.data and not again.ended


def test_a_source_that_fails_ends_the_job_rather_than_its_input(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    far.turn()
    stdin.put(b"abc")
    stdin.fail("it cannot be read: I/O error")
    far.turn()
    assert far.cut == "it cannot be read: I/O error"
    assert stdin.room() == 0 and not far.ended


def test_who_leaves_says_what_becomes_of_it_also_where_the_node_could_not_answer(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    (asked,) = stdin.messages(far.number, 0.0)
    assert stdin.receive(asked.id, InputTaken(asked.id, error="not yet"), 0.0)
    assert stdin.messages(far.number, RETRY_SECONDS / 2) == []
    assert stdin.leave() == "its standard input is empty"
    (said,) = stdin.messages(far.number, RETRY_SECONDS / 2)
    assert said.end and not said.data


def test_a_file_without_anything_yet_is_not_at_its_end() -> None:
    begin, end = os.pipe2(os.O_NONBLOCK)
    with open(begin, "rb", buffering=0) as file, open(end, "wb", buffering=0) as other:
        other.write(b"one")
        pieces = pieces_of(file)
        assert next(pieces) == b"one"
        with pytest.raises(BlockingIOError):
            next(pieces)


def test_an_empty_piece_is_not_the_end(stdin: JobInput, far: Far) -> None:
    stdin.update(VIEW)
    far.turn()
    stdin.put(b"")
    far.turn()
    assert stdin.room() and not far.ended


def test_pieces_come_from_bytes_files_and_iterators() -> None:
    data = b"x" * (PART_BYTES + 1)
    assert [len(one) for one in pieces_of(data)] == [PART_BYTES, 1]
    assert b"".join(pieces_of(io.BytesIO(data))) == data
    assert list(pieces_of([b"a", b"b"])) == [b"a", b"b"]
    for wrong in ("text", io.StringIO(""), 7):
        with pytest.raises(BadValue, match="standard input cannot be"):
            pieces_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="standard input cannot be str"):
        JobInput().put("text")  # type: ignore[arg-type]
