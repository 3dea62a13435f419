"""Job output to our own stdout and stderr: the same bytes, unbuffered, without ever standing still in a write."""

import os
import stat
import time
from collections import deque
from collections.abc import Callable

from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.jobs import JobView
from distributed_grid.protocol.messages import WantOutput

PIECE = 4096
"""A pipe that is ready for writing takes this much without blocking (PIPE_BUF)."""

EMPTY_SECONDS = 0.05
RETRY_SECONDS = 0.5


class Sink:
    """One of our output streams, with what is still to be written to it. `closed`: nobody reads it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self.size = 0
        self._pieces: deque[memoryview] = deque()
        self._never_blocks = stat.S_ISREG(os.fstat(fd).st_mode)

    def put(self, data: bytes) -> None:
        """Take bytes to be written."""
        if data and not self.closed:
            self._pieces.append(memoryview(data))
            self.size += len(data)

    def write(self) -> None:
        """Write something; to be called when the stream is ready. What the reader has left behind is dropped."""
        while self._pieces:
            piece = self._pieces[0]
            try:
                written = os.write(self.fd, piece if self._never_blocks else piece[:PIECE])
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.closed = True
                self._pieces.clear()
                self.size = 0
                return
            self.size -= written
            if written < len(piece):
                self._pieces[0] = piece[written:]
            else:
                self._pieces.popleft()
            if not self._never_blocks:
                return


class Stream:
    """How far one stream of a job has been read. `asked` is the number of the unanswered request (0: none)."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self.sink = sink
        self.offset = 0
        self.asked = 0
        self.done = False
        self.failures = 0
        self.retry_at = 0.0
        self.missing = ""
        self.size = 0
        """Of an ended job, the size that its node told (0: not known): a node may send without end."""

    def begin_anew(self) -> None:
        """What was read is over, another output is read from its beginning."""
        self.offset = self.asked = self.size = 0
        self.done = self.sink.closed

    def question(self, number: Callable[[], int], allocation: str, wait: float, pending: int) -> list[WantOutput]:
        """What to ask for its next piece, unless it is asked for, or what was read before (`pending` bytes) is still to
        be written."""
        if self.done or self.asked or self.retry_at > time.monotonic() or pending >= PART_BYTES:
            return []
        self.asked = number()
        return [WantOutput(self.asked, allocation, self.name, offset=self.offset, size=PART_BYTES, wait=wait)]

    def ended(self, view: JobView) -> None:
        """Its job has ended: there never was any output, or the rest of it may be in the outcome."""
        outcome = view.outcome
        if outcome is None or not outcome.started or not view.allocation:
            self.done = True
        elif not self.done:
            out = self.name == "stdout"
            tail = outcome.stdout_tail if out else outcome.stderr_tail
            self.finish_from_tail(outcome.stdout_size if out else outcome.stderr_size, tail)

    def failed(self) -> None:
        """It could not be had: it is asked for again in a moment."""
        self.failures += 1
        self.retry_at = time.monotonic() + RETRY_SECONDS

    def take(self, offset: int, data: bytes) -> int:
        """Take bytes that begin at `offset`; how many before them are gone for good."""
        gap = max(0, offset - self.offset)
        if self.size:
            data = data[: max(0, self.size - offset)]
        self.sink.put(data[max(0, self.offset - offset) :])
        self.offset = max(self.offset, offset + len(data))
        self.done = self.done or 0 < self.size <= self.offset
        if not data:  # a node that answers at once with nothing is not asked without a pause
            self.retry_at = time.monotonic() + EMPTY_SECONDS
        return gap

    def finish_from_tail(self, size: int, tail: bytes) -> bool:
        """Take the rest from the end of the output, if that holds all of it."""
        begin = self.offset - (size - len(tail))
        if begin < 0:
            self.size = size
            return False
        self.sink.put(tail[begin:])
        self.offset = size
        self.done = True
        return True
