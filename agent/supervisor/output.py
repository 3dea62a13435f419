"""Keeps each output file within its share of the disk: the first MiB and the newest part stay, what lies between is
given back. Offsets do not change, so a reader can go on; it is told of the gap by a small file beside. Stdlib only."""

import errno
import os
import stat
from collections.abc import Callable

from distributed_grid.agent.supervisor.job import NEVER
from distributed_grid.agent.supervisor.procs import punch
from distributed_grid.runtime import beneath

KEPT_FIRST = 1 << 20
_BLOCK = 4096
_FAST = 3 << 30  # bytes a second that a stream may begin to grow by at any time
_SOONEST, _LATEST = 0.02, 1.0  # seconds to the next look at a stream


class _Stream:
    """An output file: its size when it was looked at last and when that was, and from when until when it is to be
    looked at again. `file` is which one it is (device and inode), so that nothing else is ever cut in its place.
    `uncut`: it takes more than it may, and could not be cut."""

    def __init__(self, path: str, now: float) -> None:
        self.path = path
        self.file: tuple[int, int] | None = None
        self.size = 0
        self.seen = now
        self.early = self.due = now
        self.uncut = False


class Outputs:
    """The output of all jobs that run, each stream at most `limit` bytes on disk. A stream is looked at again before it
    can take half as much again as it may, growing as fast as it did, or as fast as a job may begin to write at any
    time: with the usual limit some ten times a second, which costs microseconds. `due` is when one is due, or earlier
    (seconds since boot)."""

    def __init__(self, folder: str, limit: int, log: Callable[[str], None]) -> None:
        self.due = NEVER
        self._folder = folder
        self._limit = limit
        self._log = log
        self._streams: dict[str, tuple[_Stream, _Stream]] = {}

    def watch(self, key: str, now: float) -> None:
        """This allocation writes from now on."""
        folder = os.path.join(self._folder, key)
        both = _Stream(os.path.join(folder, "stdout"), now), _Stream(os.path.join(folder, "stderr"), now)
        for stream in both:
            _look(stream)
            self._plan(stream, 0, 0, now)
        self._streams[key] = both
        self.due = min(self.due, both[0].due)

    def leave(self, key: str) -> None:
        """It writes no more: what it has written is cut a last time."""
        for stream in self._streams.pop(key, ()):
            self._bound(stream)

    def look(self, now: float) -> None:
        """Look at what is due, and cut what is too long. With it at what is due soon: one wake-up does for many."""
        if now < self.due:
            return
        self.due = NEVER
        for both in self._streams.values():
            for stream in both:
                if stream.early <= now:
                    self._plan(stream, *self._bound(stream), now)
                self.due = min(self.due, stream.due)

    def _plan(self, stream: _Stream, used: int, size: int, now: float) -> None:
        grown = (size - stream.size) / (now - stream.seen) if now > stream.seen else 0.0
        room = 1.25 * self._limit - used  # the other quarter is for a look that comes late
        wait = _LATEST if stream.uncut else min(max(room / max(grown, _FAST), _SOONEST), _LATEST)
        stream.size, stream.seen = size, now
        stream.early, stream.due = now + wait / 2, now + wait

    def _bound(self, stream: _Stream) -> tuple[int, int]:
        """If it takes more than it may, give back all but its first MiB and its last half limit. What it takes on disk
        then, and its size."""
        path, limit = stream.path, self._limit
        seen = _look(stream)
        if seen is None:
            return 0, 0
        used, size = seen.st_blocks * 512, seen.st_size
        end = (size - limit // 2) // _BLOCK * _BLOCK
        if used <= limit or end <= KEPT_FIRST:
            return used, size
        try:
            _cut(stream, end)
        except OSError as error:
            if not stream.uncut:
                self._log(f"{path} takes more than {limit} bytes and cannot be cut ({error.strerror})")
            stream.uncut = True
            return used, size
        stream.uncut = False
        return size - end + KEPT_FIRST, size


def _look(stream: _Stream) -> os.stat_result | None:
    """What the stream's file is like; None where there is none, or something else in its place."""
    try:
        seen = os.lstat(stream.path)
    except OSError:
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    if stream.file is None:
        stream.file = seen.st_dev, seen.st_ino
    return seen if stream.file == (seen.st_dev, seen.st_ino) else None


def _cut(stream: _Stream, end: int) -> None:
    above, name = os.path.split(stream.path)
    folder = beneath.open_root(above)
    try:
        fd = beneath.open_regular(folder, name, os.O_RDWR)
        try:
            seen = os.fstat(fd)
            if (seen.st_dev, seen.st_ino) != stream.file:
                raise OSError(errno.ESTALE, "another file took its place")
            # The note first: a reader that saw the hole without it would take the zeros for output.
            beneath.replace_whole(folder, f"{name}.gap", b"%d %d\n" % (KEPT_FIRST, end))
            punch(fd, KEPT_FIRST, end)
        finally:
            os.close(fd)
    finally:
        os.close(folder)
