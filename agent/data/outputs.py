"""Serves what jobs have written, from the files they write to. A reader asks for a piece and waits for it if there is
none yet; it is woken by the kernel's word that the file grew, or because the job is over."""

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from distributed_grid.agent.launch import workdir
from distributed_grid.protocol.codec import PART_BYTES
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.messages import Output, WantOutput
from distributed_grid.runtime import beneath

_STREAMS = ("stdout", "stderr")
_NOTE_BYTES = 100
_POLL = 0.2  # seconds, where the kernel gives no inotify
_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_IN_NONBLOCK, _IN_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
_HEADER = struct.Struct("iIII")


@dataclass
class _Watch:
    """Who waits for an allocation; `number` is the kernel's for its folder, -1 without."""

    number: int = -1
    waiting: set[asyncio.Event] = field(default_factory=set)


class Outputs:
    """Outputs of all allocations of one agent. `running` says whether more may come of one; without it everything runs
    until `ended` is called for it."""

    def __init__(self, state_dir: Path, running: Callable[[str], bool] | None = None) -> None:
        self._dir = state_dir
        self._ended: set[str] = set()
        self._running = running or (lambda allocation: allocation not in self._ended)
        self._keep_ended = running is None
        self._watches: dict[str, _Watch] = {}
        self._numbers: dict[int, _Watch] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        self._loop: asyncio.AbstractEventLoop | None = None

    def ended(self, allocation: str) -> None:
        """It is over, nothing of it is alive: whoever waits for its output gets the end."""
        if self._keep_ended:
            self._ended.add(allocation)
        if (watch := self._watches.get(allocation)) is not None:
            for event in watch.waiting:
                event.set()

    def close(self) -> None:
        """Nobody reads any more."""
        if self._fd >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def read(self, want: WantOutput) -> Output:
        """The piece that is asked for. Empty and not the end if nothing came within `want.wait` seconds."""
        if want.stream not in _STREAMS:
            return Output(id=want.id, offset=want.offset, error=f"there is no stream {want.stream!r}")
        try:
            folder = workdir.folder(self._dir, want.allocation)
        except BadValue as error:
            return Output(id=want.id, offset=want.offset, error=error.what)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + want.wait
        with self._waiting(want.allocation, folder) as (event, polled):
            while True:
                event.clear()
                # Asked before the file is read: what is there once the job is over is all there ever will be.
                over = not self._running(want.allocation)
                piece = _piece(want, folder, over)
                left = deadline - loop.time()
                if piece is not None or left <= 0:
                    return piece or Output(id=want.id, offset=want.offset)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), min(left, _POLL) if polled else left)

    @contextlib.contextmanager
    def _waiting(self, allocation: str, folder: Path) -> Iterator[tuple[asyncio.Event, bool]]:
        """An event that is set when something in the folder grows; and whether one had better look without it too."""
        event = asyncio.Event()
        watch = self._watches.setdefault(allocation, _Watch())
        watch.waiting.add(event)
        if watch.number < 0 and self._fd >= 0:
            # The whole folder, since it also tells that a stream's file appears.
            number = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_MODIFY | _IN_CREATE)
            if number >= 0:
                watch.number = number
                self._numbers[number] = watch
                if self._loop is None:
                    self._loop = asyncio.get_running_loop()
                    self._loop.add_reader(self._fd, self._grown)
        try:
            yield event, watch.number < 0
        finally:
            watch.waiting.discard(event)
            if not watch.waiting:
                self._watches.pop(allocation, None)
                if watch.number >= 0 and self._fd >= 0:
                    self._numbers.pop(watch.number, None)
                    self._libc.inotify_rm_watch(self._fd, watch.number)

    def _grown(self) -> None:
        try:
            events = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        at = 0
        while at < len(events):
            number, _, _, length = _HEADER.unpack_from(events, at)
            at += _HEADER.size + length
            if (watch := self._numbers.get(number)) is not None:
                for event in watch.waiting:
                    event.set()


def _piece(want: WantOutput, folder: Path, over: bool) -> Output | None:
    """What the file has from the wanted offset on; None if that is nothing and more may come."""
    try:
        above = beneath.open_root(folder)
    except OSError:
        if not over:
            return None
        return Output(id=want.id, offset=want.offset, error="the output is not kept on the node any more")
    try:
        fd = beneath.open_regular(above, want.stream)
    except FileNotFoundError:  # it was never started, so it never wrote
        os.close(above)
        return Output(id=want.id, offset=want.offset, end=True) if over else None
    except OSError as error:
        os.close(above)
        return Output(id=want.id, offset=want.offset, error=f"the output cannot be read: {error.strerror}")
    try:
        size = os.fstat(fd).st_size
        asked = max(0, want.offset)
        data, offset = _read_around_gap(fd, above, want.stream, asked, min(want.size, PART_BYTES))
        end = over and offset + len(data) >= size
        if not data and not end:
            return None
        return Output(id=want.id, offset=offset, data=data, end=end, gap=offset - asked)
    finally:
        os.close(fd)
        os.close(above)


def _read_around_gap(fd: int, above: int, stream: str, offset: int, size: int) -> tuple[bytes, int]:
    """Bytes from `offset` on, or from the end of the gap if that is where it lies; and where they are from."""
    while True:
        data = os.pread(fd, size, offset)
        # The note is written before the hole is made, so zeros out of a hole that was just made are known as such.
        start, end = _gap(above, stream, os.fstat(fd).st_size)
        if offset < start < offset + len(data):
            return data[: start - offset], offset
        if not start <= offset < end:
            return data, offset
        offset = end


def _gap(above: int, stream: str, size: int) -> tuple[int, int]:
    """What is missing in the middle of an output, as the supervisor noted it; (0, 0) if nothing is."""
    try:
        start, end = map(int, beneath.read_whole(above, f"{stream}.gap", _NOTE_BYTES).split())
    except (OSError, ValueError):
        return 0, 0
    return (start, end) if 0 <= start <= end <= size else (0, 0)
