"""The session that both ends of a connection use, without I/O: bytes in, messages out, and the bytes to write.

A link knows its role, the peer's hello, the frame sequence in both directions and the time by which the peer must be
heard again. It never reads a clock: `now` is an argument. Its caller always does the same: feed `receive`, handle the
messages, write `data_to_send()`, and close the connection when the link raises.
"""

from typing import Any

from distributed_grid.protocol.codec import BULK_BYTES, CONTROL_BYTES, decode, decode_first, encode, escaped, unusable
from distributed_grid.protocol.errors import BadFrame, BadValue, OutOfBounds, ProtocolMismatch
from distributed_grid.protocol.messages import BlobData, Failed, FileData, Files, Hello, Output, Refused, Welcome

PROTOCOL = (1, 0)
"""Major and minor. Another major is refused; minors differ by what messages may carry, one apart works."""

ROLES = {
    "agent": ("FromAgent", "ToAgent"),
    "agent-data": ("FromAgentData", "ToAgentData"),
    "client": ("FromClient", "ToClient"),
}
"""Role to the unions of messages: what the peer of that role sends, what is sent to it."""

SILENCE = 10.0
"""Seconds without a frame after which the other end of a control connection counts as gone."""


def compatible(ours: tuple[int, int], theirs: tuple[int, int]) -> bool:
    """Whether two protocol versions can talk: the same major, minors at most one apart."""
    return ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= 1


class _Unsendable(Exception):
    """A message cannot be encoded."""

    def __init__(self, unsent: Any, reason: BadValue) -> None:
        super().__init__(str(reason))
        self.unsent = unsent
        self.reason = reason


def _no_answer(message: Any, error: BadValue, to_client: bool) -> Any:
    """Return an answer to the same question that says why the intended one cannot be sent. Raises BadValue if the
    message answers no question."""
    text = f"the answer cannot be sent: {error.what}: {error.why}".encode(errors="backslashreplace").decode()[:1000]
    match message:
        case Output():
            return Output(id=message.id, offset=message.offset, error=text)
        case Files() | FileData() | BlobData():
            return type(message)(id=message.id, error=text)
        case _:
            number = getattr(message, "id", None)
            if not to_client or not isinstance(number, int):
                raise error
            return Failed(id=number, code="internal", what=text)


class Link:
    """One end of one connection. Make it with `dial` (agents, clients) or `answer` (coordinator)."""

    def __init__(self, hello: Hello | None, now: float) -> None:
        self.hello = hello
        self.welcome: Welcome | None = None
        self.last_received = now
        self._dialling = hello is not None
        self._queue: list[Any] = []
        self._sent = 0
        self._received = 0
        self._limit = CONTROL_BYTES if hello is not None and hello.role == "agent" else BULK_BYTES
        if hello is not None:
            self._queue.append(hello)

    @classmethod
    def dial(cls, hello: Hello, now: float) -> "Link":
        """The end that opens the connection; its hello is the first thing to send."""
        return cls(hello, now)

    @classmethod
    def answer(cls, now: float) -> "Link":
        """The end that was called; it waits for a hello."""
        return cls(None, now)

    @property
    def open(self) -> bool:
        """Both hellos are done."""
        return self.hello is not None and self.welcome is not None

    def receive(self, frame: bytes | bytearray | memoryview | str, now: float) -> list[Any]:
        """The messages of one frame. Before the welcome: exactly one Hello, or Welcome, or Refused. What a client asks
        with a value out of bounds is an Unusable, so that it can be answered; of an agent it is a BadFrame.

        Raises BadFrame or ProtocolMismatch; the connection must then be closed, nothing of the frame was taken.
        """
        if isinstance(frame, str):
            raise BadFrame("a text frame", why="this protocol has binary frames only")
        if not self.open:
            return [self._first(frame, now)]
        assert self.hello is not None
        theirs, ours = ROLES[self.hello.role]
        try:
            sequence, messages = decode(ours if self._dialling else theirs, frame)
        except OutOfBounds as error:
            if self._dialling or self.hello.role != "client":
                raise
            sequence, messages = unusable(frame, error)
        if sequence != self._received + 1:
            raise ProtocolMismatch(
                f"frame {sequence} came after frame {self._received}", why="frames of a session come in sequence"
            )
        self._received = sequence
        self.last_received = now
        return messages

    def _first(self, frame: bytes | bytearray | memoryview, now: float) -> Hello | Welcome | Refused:
        message = self._answered(frame) if self._dialling else self._called(frame)
        self._received = 1
        self.last_received = now
        return message

    def _answered(self, frame: bytes | bytearray | memoryview) -> Welcome | Refused:
        message: Welcome | Refused = decode_first(frame, Welcome | Refused)
        if isinstance(message, Welcome):
            self._check(message.protocol, message.software)
            self.welcome = message
        return message

    def _called(self, frame: bytes | bytearray | memoryview) -> Hello:
        if self.hello is not None:
            raise ProtocolMismatch("a second message before the welcome", why="a peer waits for its welcome")
        hello: Hello = decode_first(frame, Hello)
        self._check(hello.protocol, hello.software)
        if hello.role not in ROLES:
            raise ProtocolMismatch(f"unknown role {hello.role!r}", why=f"roles are {', '.join(ROLES)}")
        if hello.role == "agent" and hello.facts is None:
            raise ProtocolMismatch("an agent's hello without facts", why="a node must say what it has")
        self.hello = hello
        return hello

    def _check(self, theirs: tuple[int, int], software: str) -> None:
        if not compatible(PROTOCOL, theirs):
            raise ProtocolMismatch(
                f"the peer speaks protocol {theirs[0]}.{theirs[1]} (software {software}), "
                f"this end {PROTOCOL[0]}.{PROTOCOL[1]}",
                why="one minor version apart works, more does not",
                hint="update the older side",
            )

    def accept(self, welcome: Welcome) -> None:
        """Answer a hello: from here on typed messages flow."""
        assert self.hello is not None and not self._dialling
        self._queue.append(welcome)
        self.welcome = welcome

    def refuse(self, refused: Refused) -> None:
        """Queue a refusal; the shell writes it and closes."""
        self._queue.append(refused)

    def send(self, *messages: Any) -> None:
        """Queue messages; they leave with the next `data_to_send`."""
        self._queue.extend(messages)

    def data_to_send(self) -> list[bytes]:
        """Return the frames to write now. A hello, welcome or refusal is a frame of its own; the rest travels together,
        in as many frames as the peer's limit requires. Only these three are sent before the link is open. A message
        that cannot be encoded raises BadValue and is dropped; the others leave with the next call."""
        sent, queue = self._sent, list(self._queue)
        try:
            return self._frames(None)
        except _Unsendable as error:
            self._sent = sent
            self._queue = [message for message in queue if message is not error.unsent]
            raise error.reason from None

    def data_to_send_anyway(self) -> tuple[list[bytes], list[tuple[Any, BadValue]]]:
        """As `data_to_send`, for services, where one message must not harm another. A message that cannot be encoded is
        sent with its texts escaped; else, if it answers a question, an answer with the error is sent instead; else it
        is dropped. Returns the frames, and these messages with their errors."""
        unsent: list[tuple[Any, BadValue]] = []
        return self._frames(unsent), unsent

    def _frames(self, unsent: list[tuple[Any, BadValue]] | None) -> list[bytes]:
        frames: list[bytes] = []
        while self._queue and isinstance(self._queue[0], Hello | Welcome | Refused):
            first = self._queue.pop(0)
            try:
                frames.append(self._frame([first]))
            except BadValue as error:
                self._replace(first, error, frames, unsent)
        if self._queue and self.open:
            queue, self._queue = self._queue, []
            self._split(queue, frames, unsent)
        return frames

    def _frame(self, messages: list[Any]) -> bytes:
        """A frame has its number once it is encoded, so no number is left out."""
        frame = encode(self._sent + 1, messages)
        self._sent += 1
        return frame

    def _split(self, messages: list[Any], frames: list[bytes], unsent: list[tuple[Any, BadValue]] | None) -> None:
        """Append the frames for these messages."""
        try:
            frame = self._frame(messages)
            if len(frame) <= self._limit:
                frames.append(frame)
                return
            self._sent -= 1
            why = f"{self._limit} bytes are the most that the other side reads"
            raise BadValue(f"a message of {len(frame)} bytes cannot be sent", why=why)
        except BadValue as error:
            if len(messages) == 1:
                self._replace(messages[0], error, frames, unsent)
                return
        half = len(messages) // 2
        self._split(messages[:half], frames, unsent)
        self._split(messages[half:], frames, unsent)

    def _replace(
        self, message: Any, error: BadValue, frames: list[bytes], unsent: list[tuple[Any, BadValue]] | None
    ) -> None:
        if unsent is None:
            raise _Unsendable(message, error)
        unsent.append((message, error))
        to_client = not self._dialling and self.hello is not None and self.hello.role == "client"
        for answers in (False, True):
            try:
                instead = _no_answer(message, error, to_client) if answers else escaped(message)
                frame = encode(self._sent + 1, [instead])
            except BadValue:
                continue
            if len(frame) <= self._limit:
                self._sent += 1
                frames.append(frame)
                return

    def deadline(self) -> float:
        """Return when the peer counts as gone unless it is heard before."""
        return self.last_received + SILENCE
