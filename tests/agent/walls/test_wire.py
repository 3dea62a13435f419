"""Messages between supervisor, fork server and spawners, over a real channel."""

import json
import os
import socket
from collections.abc import Iterator

import pytest

from distributed_grid.agent.walls import wire

Channel = tuple[socket.socket, socket.socket]


@pytest.fixture
def channel() -> Iterator[Channel]:
    ours, theirs = wire.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [1, wire.INLINE_BYTES, 1 << 20], ids=["short", "at the bound", "long"])
def test_a_message_comes_whole_with_its_descriptors(channel: Channel, size: int) -> None:
    ours, theirs = channel
    read, write = os.pipe()
    wire.send(ours, {"op": "make", "text": "x" * size}, (write,))
    message, [theirs_write] = wire.receive(theirs)
    assert message == {"op": "make", "text": "x" * size}
    os.write(theirs_write, b"here")
    assert os.read(read, 10) == b"here"
    for fd in (read, write, theirs_write):
        os.close(fd)


@pytest.mark.parametrize("said", [b"", b"\0", b"[]", b"{", b"\xff", b"[" * 30_000, b"x" * (wire.INLINE_BYTES + 2)])
def test_what_is_no_message_ends_the_talk_and_leaves_no_descriptor(channel: Channel, said: bytes) -> None:
    ours, theirs = channel
    ours.send(said)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(wire.Closed):
        wire.receive(theirs)
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize(
    "value",
    [
        [],
        "",
        None,
        True,
        -1,
        1e-9,
        2**70,
        float("inf"),
        '\ud800 ä\n\0"',
        {"b": [1.5, {"a": (None, False)}], "a": {}},
        {1: "x"},
    ],
)
def test_what_is_encoded_is_the_compact_json_of_the_library(value: object) -> None:
    assert wire.encode(value) == json.dumps(value, separators=(",", ":")).encode()


def test_what_json_does_not_have_is_not_encoded() -> None:
    for value in (b"bytes", {"a": {1, 2}}, object(), {(1, 2): 3}):
        with pytest.raises(TypeError):
            wire.encode(value)


def test_a_peer_that_is_gone_is_told_apart_from_one_that_is_silent(channel: Channel) -> None:
    ours, theirs = channel
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        wire.receive(theirs)
    ours.close()
    with pytest.raises(wire.Closed, match="the channel was closed"):
        wire.receive(theirs)
    with pytest.raises(wire.Closed):
        wire.send(theirs, {"op": "ready"})


def test_who_does_not_read_is_not_waited_for(channel: Channel) -> None:
    ours, _ = channel
    ours.setblocking(False)
    with pytest.raises(wire.Closed):
        while True:
            wire.send(ours, {"text": "x" * 30_000})
