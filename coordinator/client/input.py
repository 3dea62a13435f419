"""A job's standard input, sent piece by piece with its offset, as fast as the node accepts it. Without I/O.

Nothing is read before the job runs, nor more than the node accepts. Bytes that are not in the job's pipe yet are kept,
to be sent again after a lost connection or a restarted agent; and all bytes up to KEPT_BYTES, for another attempt of
the job.
"""

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import JobView, State
from distributed_grid.protocol.messages import InputTaken, PutInput

KEPT_BYTES = 8 << 20
"""Bytes from the beginning of the input that are kept for another attempt of the job."""
HOLD_SECONDS = 10.0
"""How long a node delays its answer until it has room for more (s)."""
RETRY_SECONDS = 0.5
"""Delay before a node that could not answer is asked again (s)."""


Source = bytes | BinaryIO | Iterable[bytes]
"""Sources of a job's standard input."""


def pieces_of(source: Source) -> Iterator[bytes]:
    """The content of a source in pieces; those of a file as soon as they can be read. Raises BadValue."""
    if isinstance(source, bytes | bytearray | memoryview):
        return (bytes(source[at : at + PART_BYTES]) for at in range(0, len(source), PART_BYTES))
    if isinstance(source, str | io.TextIOBase) or not hasattr(source, "__iter__"):
        raise _refused(source)
    read = getattr(source, "read1", None) or getattr(source, "read", None)
    return iter(source) if read is None else _read_on(read)


def _read_on(read: Callable[[int], bytes | None]) -> Iterator[bytes]:
    while data := read(PART_BYTES):
        yield data
    if data is None:  # of a file that does not block: there is nothing yet, which is not the end
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _refused(given: object) -> BadValue:
    hint = "give bytes, a file opened in binary mode, or an iterator of bytes"
    return BadValue(f"standard input cannot be {type(given).__name__}", hint=hint)


class JobInput:
    """The standard input of one job. While there is `room()`, `put` what was read, or `fail`."""

    def __init__(self) -> None:
        self._attempt = ""
        self._active = False
        self._over = False
        """The attempt takes no more."""
        self._kept = bytearray()
        self._from = 0
        """The offset of the first byte that is kept."""
        self._sent = self._until = 0
        self._ended = False
        self._cut = ""
        self._piece = self._question = self._cutting = 0
        """The numbers of the unanswered requests (0: none): one with bytes or their end, one to be told of room, and
        one that says that it cannot go on."""
        self._retry_at = 0.0

    @property
    def _end(self) -> int:
        return self._from + len(self._kept)

    def room(self) -> int:
        """Return how many bytes may be put now; 0: do not read any."""
        if not self._active or self._over or self._ended or self._cut:
            return 0
        return max(0, min(PART_BYTES, self._until - self._end))

    def put(self, data: bytes | None) -> None:
        """Take bytes that were read; None: there is no more. Raises BadValue for what is not bytes."""
        if not isinstance(data, bytes | bytearray | memoryview | None):
            raise _refused(data)
        self._kept += data or b""
        self._ended = data is None

    def fail(self, why: str) -> None:
        """Note that the rest cannot be read: the job must not take what it has got for the whole input."""
        self._cut = self._cut or why

    def leave(self) -> str:
        """Note that the client leaves while the job goes on. If no input was sent yet, the job sees an empty one; if it
        may have a part, it is ended. Returns a sentence about that for the user; empty: it has all its input."""
        if self._over or (self._ended and self._sent == self._end):
            return ""
        self._retry_at = 0.0  # now or never
        if not self._active:
            return "it is ended soon after it begins, as its standard input leaves with us (--no-stdin keeps it)"
        if self._end:
            self.fail("its client left")
            return "it is ended, as its standard input is not whole"
        self._ended = True
        return "its standard input is empty"

    def update(self, view: JobView) -> None:
        """Take in the state of the job."""
        if view.allocation != self._attempt:
            self._attempt, self._over = view.allocation, False
            self._sent = self._until = self._piece = self._question = self._cutting = 0
        self._active = view.state is State.RUNNING

    def messages(self, number: Callable[[], int], now: float) -> list[PutInput]:
        """Return the messages to send now."""
        if not self._active or self._over or self._retry_at > now:
            return []
        if self._cut:
            if self._cutting:
                return []
            self._cutting = number()
            return [PutInput(self._cutting, self._attempt, self._sent, cut=self._cut)]
        found = []
        if not self._piece and self._from <= self._sent < min(self._end, self._until):
            self._piece = number()
            data = bytes(self._kept[self._sent - self._from :][: min(PART_BYTES, self._until - self._sent)])
            found.append(PutInput(self._piece, self._attempt, self._sent, data))
            self._sent += len(data)
        elif not self._piece and self._ended and self._sent == self._end:
            self._piece = number()
            found.append(PutInput(self._piece, self._attempt, self._sent, end=True, wait=HOLD_SECONDS))
        elif not self._piece and not self._question:
            self._question = number()
            found.append(PutInput(self._question, self._attempt, self._sent, until=self._until, wait=HOLD_SECONDS))
        return found

    def receive(self, number: int, answer: Any, now: float) -> bool:
        """Handle an answer, or the error instead of one; returns False if it answers no request of this input."""
        if not number or number not in (self._piece, self._question, self._cutting):
            return False
        self._piece, self._question, self._cutting = (
            0 if number == one else one for one in (self._piece, self._question, self._cutting)
        )
        if not isinstance(answer, InputTaken) or answer.error:
            self._retry_at = now + RETRY_SECONDS
            return True
        self._until = max(self._until, answer.until)
        self._over = self._over or answer.over
        if not self._piece:  # else it is on its way, and its answer says how far it came
            self._sent = answer.next
        if not self._over and self._sent < self._from:
            self.fail(f"its first {self._from} bytes went to an earlier attempt, and are not kept here")
        elif self._sent > self._end:
            self.fail(f"the node has {self._sent} bytes of it, and {self._end} were sent")
        if self._end > KEPT_BYTES and (gone := min(answer.offset, self._end) - self._from) > 0:
            del self._kept[:gone]
            self._from += gone
        return True

    def pause(self, now: float) -> float | None:
        """Seconds until something is to be sent again; None: not before something is received or read."""
        waits = self._active and not self._over and self._retry_at > now
        return self._retry_at - now if waits else None
