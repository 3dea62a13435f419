"""The event log: the ledger's events and decisions on disk, for `grid replay`.

It is between the driver and the ledger. It is evidence, not the record: nothing waits for it, nothing is synced. If it
cannot be written (the disk is full or slow) it pauses, logs that, and continues with a new file that begins with a
checkpoint. Its errors never reach the driver. It contains what users give their jobs, environment included, so its
files are private to their owner.
"""

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid import __version__
from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.commands import Command, Event, JobsSubmitted
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.eventlog.decisions import Decision, decisions
from distributed_grid.coordinator.eventlog.format import FORMAT, Header, files
from distributed_grid.runtime.logs import get_logger

PARTS = 8
"""Number of files that the allowed size is divided into."""
FILES_MOST = 64
"""Maximum number of files, however small: each start of a coordinator begins one."""
TURNS = 64
"""Turns per record."""
FLUSH_BYTES = 256 << 10
FLUSH_SECONDS = 0.5
"""Maximum size and age of unwritten data."""
WAITING_BYTES = 32 << 20
"""Size of pending writes above which the log pauses."""
SPARE_BYTES = 64 << 20
"""Free disk space left to the store."""
PAUSE_SECONDS, PAUSE_MOST = 10.0, 600.0
"""First pause, and the maximum after doubling."""

log = get_logger("eventlog")
_Turn = tuple[float, list[Event | msgspec.Raw], list[Decision] | tuple[()], str]
_encoder = msgspec.msgpack.Encoder()
_encode, _encode_into = _encoder.encode, _encoder.encode_into


class EventLog:
    """A ledger for the driver that logs every turn. To be made on the loop; `close` writes the rest.

    It runs for every heartbeat and every job: a microsecond counts."""

    def __init__(self, ledger: Ledger, folder: Path, size: int, grid: str) -> None:
        self._ledger = ledger
        self.patience, self.next_deadline = ledger.patience, ledger.next_deadline
        self._grid = grid
        self._files = _Files(folder, size)
        self._events: list[Event | msgspec.Raw] = []
        self._commands: list[Command] = []
        self._begin(follows=False)

    def handle(self, event: Event, now: float) -> list[Command]:
        """As the ledger's method."""
        self._events.append(event if type(event) is not JobsSubmitted else self._bytes_of(event))
        try:
            commands = self._ledger.handle(event, now)
        except Exception as error:
            self._broken(now, error)
            raise
        if commands:
            self._commands += commands
        return commands

    def settle(self, now: float) -> list[Command]:
        """As the ledger's method; it ends the turn. A turn has one time."""
        try:
            commands = self._ledger.settle(now)
        except Exception as error:
            self._broken(now, error)
            raise
        if commands:
            self._commands += commands
        events, self._events = self._events, []
        out = self._files
        try:
            said: list[Decision] | tuple[()] = ()
            if self._commands:
                said, self._commands = decisions(self._commands), []
            if out.open:
                out.turns.append((now, events, said, ""))
                if len(out.turns) >= TURNS or not out.timed:
                    out.push()
            if out.full:
                self._begin(follows=True)
            elif not out.open and out.rested():
                self._begin(follows=False)
        except Exception as error:  # an error of the log is not one of the ledger
            out.pause(error)
        return commands

    def close(self) -> None:
        """Write the rest. The ledger remains usable without it."""
        self._files.close()

    def _begin(self, follows: bool) -> None:
        """Begin a file with a checkpoint of the ledger."""
        try:
            header = Header(FORMAT, __version__, self._grid, self._ledger.state.epoch, follows)
            self._files.begin(_encode(header) + checkpoint.encode(checkpoint.take(self._ledger)))
        except Exception as error:
            self._files.pause(error)

    def _bytes_of(self, event: JobsSubmitted) -> Event | msgspec.Raw:
        """Encode a submission before the ledger modifies its jobs; other events stay as they are."""
        try:
            return msgspec.Raw(_encode(event))
        except Exception as error:
            self._files.pause(error)
            return event

    def _broken(self, now: float, error: Exception) -> None:
        if self._files.open:
            words = f"{type(error).__name__}: {error}"
            self._files.turns.append((now, self._events, decisions(self._commands), words))
            log.critical("what broke the ledger is in the event log", see=f"grid replay {self._files.path}")


class _Files:
    """Files in a folder, bounded in size, written by a thread."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eventlog")
        self._fd = -1  # the thread's alone
        self._number = 0
        with suppress(OSError, IndexError):  # there is none yet
            self._number = int(files(folder)[-1].stem)
        self.path = folder
        self.open = False
        """Whether something can be added now."""
        self.full = False
        """Whether a new file is due."""
        self._bytes = self._limit = 0
        self.turns: list[_Turn] = []
        """Turns to encode: in batches that is much cheaper."""
        self._buffer = bytearray()
        self.timed = False
        self._waiting = 0
        self._again = 0.0
        self._pause = PAUSE_SECONDS

    def rested(self) -> bool:
        """Whether the pause is over."""
        return self._loop.time() >= self._again

    def begin(self, head: bytes) -> None:
        """Begin a file with this content."""
        if 2 * len(head) > self._size:
            self.pause(OSError(errno.EFBIG, f"the ledger alone takes {len(head)} bytes, {self._size} are allowed"))
            return
        self._flush()
        self._number += 1
        self.path = self._folder / f"{self._number:06}.log"
        self._bytes, self._limit = len(head), max(self._size // PARTS, 2 * len(head))
        self.open, self.full = True, False
        self._hand_over(len(head), self._start, self.path, head)

    def push(self) -> None:
        """Schedule the write of turns: at once if there are many, else soon."""
        if len(self.turns) >= TURNS:
            self._encode()
        if len(self._buffer) >= FLUSH_BYTES:
            self._flush()
        elif not self.timed:
            self.timed = True
            self._loop.call_later(FLUSH_SECONDS, self._flush)

    def _encode(self) -> None:
        turns, self.turns = self.turns, []
        try:
            _encode_into(turns, self._buffer, -1)
        except Exception as error:
            self.pause(error)

    def pause(self, error: BaseException) -> None:
        """Stop writing for a while."""
        if not self._again:
            why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
            log.warning("the event log pauses; the grid goes on", why=why, folder=str(self._folder))
        self._again = self._loop.time() + self._pause
        self._pause = min(PAUSE_MOST, 2 * self._pause)
        self.open = self.full = False
        self.turns.clear()
        self._buffer.clear()

    def close(self) -> None:
        """Write the rest."""
        self._flush()
        self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    def _flush(self) -> None:
        self.timed = False
        if self.turns:
            self._encode()
        if not self._buffer:
            return
        data, self._buffer = self._buffer, bytearray()
        self._bytes += len(data)
        self.full = self._bytes >= self._limit
        self._hand_over(len(data), self._write, data)
        if self._waiting > WAITING_BYTES:
            self.pause(OSError(errno.EBUSY, "the disk is too slow for it"))

    def _hand_over(self, size: int, *work: Any) -> None:
        path = self.path
        self._waiting += size

        def done(future: asyncio.Future[None]) -> None:
            self._waiting -= size
            error = future.exception()
            if path != self.path or not self.open:
                return  # of a file that was given up
            if error is not None:
                self.pause(error)
            elif self._again:
                log.info("the event log goes on", file=str(path))
                self._again, self._pause = 0.0, PAUSE_SECONDS

        self._loop.run_in_executor(self._thread, *work).add_done_callback(done)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _start(self, path: Path, head: bytes) -> None:
        self._close()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._make_room(len(head))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._write(head)

    def _write(self, data: bytes) -> None:
        try:
            there = os.statvfs(self._folder)
            if there.f_bavail * there.f_frsize < SPARE_BYTES + len(data):
                raise OSError(errno.ENOSPC, f"there are less than {SPARE_BYTES >> 20} MiB left on the disk")
            left = memoryview(data)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._close()  # what is on its way here must not come after a gap
            raise

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _make_room(self, needed: int) -> None:
        """Delete the oldest files until there is space for another one."""
        there = files(self._folder)
        sizes = [path.stat().st_size for path in there]
        total = sum(sizes) + max(self._size // PARTS, 2 * needed)
        while there and (total > self._size or len(there) >= FILES_MOST):
            there.pop(0).unlink()
            total -= sizes.pop(0)
