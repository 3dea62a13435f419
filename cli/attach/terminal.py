"""The local side of a followed job: signals that can be waited for, output that never blocks in a write, and the status
line."""

import os
import signal
import stat
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from distributed_grid.cli.context import Invocation, print_error, printable, write_error
from distributed_grid.coordinator.client.input import JobInput
from distributed_grid.protocol.jobs import JobView, State


class Signals:
    """While entered, these signals do nothing but show up in `taken()`, and make `fd` readable."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        # Under nohup a hang-up stays ignored. An interrupt does not: shells ignore it for whatever they start with `&`,
        # and who sends one to such a command means it.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._numbers = [number for number in numbers if not (ignored and number == signal.SIGHUP)]
        self._seen: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Signals":
        self.fd, self._in = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, lambda seen, _: self._seen.append(seen))
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.fd)
        os.close(self._in)

    def taken(self) -> list[int]:
        """The signals that came since the last call, in order."""
        try:
            while os.read(self.fd, 512):
                pass
        except BlockingIOError:
            pass
        seen, self._seen = self._seen, []
        return seen


STDIN = 0


def streams_stdin() -> bool:
    """Whether our standard input is one for a job: no terminal, not closed, and not /dev/null."""
    try:
        about = os.fstat(STDIN)
        return not os.isatty(STDIN) and about.st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False


def read_input(to: JobInput) -> None:
    """Read what there is of our standard input, as far as the job takes it; to be called when it is ready."""
    if not (room := to.room()):
        return
    try:
        to.put(os.read(STDIN, room) or None)
    except BlockingIOError:
        pass
    except OSError as error:
        to.fail(f"it cannot be read: {error.strerror}")


PIECE = 4096
"""A pipe that is ready for writing takes this much without blocking (PIPE_BUF)."""


class Sink:
    """One output stream of this command, with what is still to be written to it. `closed`: nothing is written to it any
    more, since it is not read, or because of `failure` (why; empty: none)."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self.failure = ""
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
                self._close()
                return
            except OSError as error:
                self.failure = error.strerror or type(error).__name__
                self._close()
                return
            self.size -= written
            if written < len(piece):
                self._pieces[0] = piece[written:]
            else:
                self._pieces.popleft()
            if not self._never_blocks:
                return

    def _close(self) -> None:
        self.closed = True
        self._pieces.clear()
        self.size = 0


QUIET_SECONDS = 3.0
"""Seconds that a job may wait before who reads no terminal is told why."""


class StatusLine:
    """The line under what the job prints. Clear it before anything else is written."""

    def __init__(self, invocation: Invocation) -> None:
        self._live = invocation.live()
        self._words = invocation.verbose and not invocation.quiet
        self._say = invocation.say
        self._shown = ""
        self._node = ""
        self._fit = ""
        self._unused = ""
        self._piped = not (self._live or self._words or invocation.quiet)
        self._why = ""
        """Why it does not run, since when, and whether that was said where nobody sees the line."""
        self._since = 0.0
        self._told = False

    def submitted(self, job: str, fit: int, nodes: int) -> None:
        """The job is taken; `fit` of `nodes` nodes could ever run it."""
        self._fit = f" · {fit} of {nodes} nodes can run it" if nodes else " · no node is known yet"
        if self._words:
            print_error(printable(f"grid: {job} queued{self._fit}"))

    def show(self, view: JobView) -> None:
        """The job changed. The warning about resources that it holds and does not use is printed once."""
        if view.unused != self._unused:
            self._unused = view.unused
            if view.unused:
                self.clear()
                self._say(view.unused)
        if view.state is State.WAITING:
            reason = f"{view.reason.code} – {view.reason.text}" if view.reason and view.reason.text else ""
            reason = reason or (view.reason.code if view.reason else "for a node")
            self._write(f"grid: {view.id} waiting: {reason}{self._fit}")
            self._held_up(f"{view.id} waits: {reason} (grid why {view.id})")
        elif view.state is State.STARTING:
            self._write(f"grid: {view.id} starting on {view.node}")
            self._held_up("")
        elif view.state is State.LOST:
            self._write(f"grid: {view.id}: node {view.node} is away; waiting for it")
            self._held_up(f"{view.id}: node {view.node} is away; waiting for it")
        elif view.suspended is not None and view.state is State.RUNNING:
            from distributed_grid.cli.formatting import frozen

            self._write(f"grid: {view.id} {frozen(view)} on {view.node}")
            self._held_up(f"{view.id} {frozen(view)} on {view.node}")
        else:
            self.clear()
            if view.state is State.RUNNING and (view.node != self._node or self._told):
                self._runs(view)
            self._held_up("")

    def _runs(self, view: JobView) -> None:
        """It runs, where it did not before; said to who sees the line, and who was told that it waits."""
        self._node = view.node
        if self._live or self._words or self._told:
            from distributed_grid.cli.formatting import grant_words

            held = f" · {grant_words(view.grant)}" if view.grant else ""
            print_error(printable(f"grid: {view.id} running on {view.node}{held}"))
        self._told = False

    def _held_up(self, why: str) -> None:
        """Why it does not run now; empty: it does."""
        if why and not self._why:
            self._since = time.monotonic()
        self._why = why

    def tick(self) -> None:
        """Time has passed."""
        if self._piped and self._why and not self._told and time.monotonic() > self._since + QUIET_SECONDS:
            self._told = True
            self._say(self._why)

    def again(self, view: JobView) -> None:
        """The job is run again after an attempt: print why."""
        self.clear()
        why = next((step.text for step in reversed(view.story) if step.state is State.WAITING), "it is run again")
        self._say(f"{view.id}: {why}")

    def interrupted(self) -> None:
        """The terminal has echoed ^C."""
        if self._live:
            print_error("")
        self._shown = ""

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._shown = ""
            write_error("\r\x1b[K")

    def _write(self, text: str) -> None:
        text = printable(text)
        if self._words and not self._live and text != self._shown:
            print_error(text)
        if not self._live:
            return
        import shutil

        line = text[: max(20, shutil.get_terminal_size().columns - 1)]
        if line != self._shown:
            self._shown = line
            write_error("\r\x1b[K" + line)
