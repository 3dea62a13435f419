"""What reads frames, each as a function from a frame's number to a word for what became of it. Whatever is sent, only
the documented errors may come out."""

import re
from collections.abc import Callable
from typing import Any

from distributed_grid.protocol import codec
from distributed_grid.protocol.errors import BadFrame, BadValue, ProtocolMismatch
from distributed_grid.protocol.link import Link
from distributed_grid.protocol.messages import Hello, Refused, Welcome
from distributed_grid.protocol.messages.handshake import Join, Joined
from tests.fuzz.frames import Frames, golden

DIRECTIONS = ("FromAgent", "ToAgent", "FromAgentData", "ToAgentData", "FromClient", "ToClient")
FIRSTS: tuple[Any, ...] = (Hello, Welcome | Refused, Join, Joined | Refused)


def word(error: Exception) -> str:
    """An error as a kind: without its numbers and quotations."""
    text = re.sub(r"`.*|'.*?'|\".*?\"", "…", str(error))
    return f"{type(error).__name__}: {re.sub(r'[0-9]+', 'N', text)[:80]}"


def decoded(frames: Frames) -> Callable[[int], str]:
    """The codec. What it takes, it can also write, and reads again as the same."""

    def read(number: int) -> str:
        which = number % (len(DIRECTIONS) + len(FIRSTS))
        frame = frames.make(number)
        try:
            if which >= len(DIRECTIONS):
                codec.decode_first(frame, FIRSTS[which - len(DIRECTIONS)])
                return f"first {which}: taken"
            sequence, messages = codec.decode(DIRECTIONS[which], frame)
        except BadFrame as error:
            return f"{which}: {word(error)}"
        try:
            written = codec.encode(sequence, messages)
        except BadValue as error:
            return f"{which}: taken, and not written: {word(error)}"
        assert codec.encode(*codec.decode(DIRECTIONS[which], written)) == written, "read again, it is another"
        return f"{which}: {' '.join(sorted({type(one).__name__ for one in messages}))}"

    return read


HELLO = Hello(protocol=(1, 0), software="fuzz", role="client", name="ann")
WELCOME = Welcome(protocol=(1, 0), software="fuzz", epoch=1, grid="g", session="s")


def linked(frames: Frames) -> Callable[[int], str]:
    """A link, at either end, before and after its hello, which gets a few frames until it refuses one."""
    hellos = [codec.encode(1, [HELLO]), golden()["Hello"]]

    def read(number: int) -> str:
        called, opened = number & 1, number & 2
        link = Link.answer(0.0) if called else Link.dial(HELLO, 0.0)
        taken = 0
        try:
            if opened and called:
                link.receive(hellos[(number >> 2) & 1], 0.0)
                link.accept(WELCOME)
            elif opened:
                link.receive(codec.encode(1, [WELCOME]), 0.0)
            for sequence in range(2, 5):
                link.receive(frames.make(number * 4 + sequence, sequence), 0.0)
                link.data_to_send()
                taken += 1
        except (BadFrame, ProtocolMismatch) as error:
            return f"link {number & 3} after {taken}: {word(error)}"
        return f"link {number & 3}: taken"

    return read
