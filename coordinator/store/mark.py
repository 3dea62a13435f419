"""The high-water mark of a store: a small file beside it that says how far the store had come.

Each commit has a number. It is written into the store with the commit, and into this file right after it. The file is
not synced: what a killed process wrote survives it, and after a power cut the file may be behind the store but never
ahead of it. So a store with a smaller number than its mark has lost commits.
"""

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from distributed_grid.coordinator.core.rollback import Marked, Point

_MAGIC = b"GRIDMK01"
_FORM = struct.Struct("<8s16sQQd36s32s")
_SUM = struct.Struct("<I")
KEY_BYTES = 32

log = structlog.get_logger("store")


class Mark(NamedTuple):
    """How far a store had come, the boot of the machine in which that was written, and the key of the store's stamps
    (contradictions.py): a new store in the place of one that is lost knows by it what the lost one said."""

    point: Point
    boot: str
    key: bytes


def boot_id() -> str:
    """The current boot of this machine; empty if the kernel does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def encode(mark: Mark) -> bytes:
    """The content of the file."""
    point = mark.point
    known = point.grid.encode(), point.epoch, point.commits, point.clock
    body = _FORM.pack(_MAGIC, *known, mark.boot.encode(), mark.key)
    return body + _SUM.pack(zlib.crc32(body))


def decode(data: bytes) -> Mark | None:
    """The mark in these bytes; None if they are not what was written."""
    body, check = data[: _FORM.size], data[_FORM.size :]
    if len(body) != _FORM.size or check != _SUM.pack(zlib.crc32(body)) or not body.startswith(_MAGIC):
        return None
    _, grid, epoch, commits, clock, boot, key = _FORM.unpack(body)
    return Mark(Point(grid.rstrip(b"\0").decode(), epoch, commits, clock), boot.rstrip(b"\0").decode(), key)


def path_of(store: Path) -> Path:
    """Where the mark of this store is."""
    return store.with_suffix(".mark")


def read(store: Path) -> Marked:
    """The mark of this store. Raises OSError where it is out of reach."""
    try:
        fd = os.open(path_of(store), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a FIFO there is nothing to read
    except FileNotFoundError:
        return Marked()
    with open(fd, "rb") as file:
        mark = decode(file.read(4096))
    if mark is None:
        return Marked(why="damaged")
    return Marked(mark.point, "", bool(mark.boot) and mark.boot == boot_id(), mark.key)


class MarkFile:
    """The mark of an open store. Failures to write it are logged once and trouble nobody: it is evidence only."""

    def __init__(self, store: Path, key: bytes) -> None:
        self._path = path_of(store)
        self._key = key
        self._file = -1
        self._boot = boot_id()
        self._failed = False

    def write(self, point: Point) -> None:
        """Say that the store has come so far. It is called after each commit, so it costs a system call and no more."""
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            os.pwrite(self._file, encode(Mark(point, self._boot, self._key)), 0)
        except OSError as error:
            if not self._failed:
                log.warning("the high-water mark cannot be written", file=str(self._path), error=str(error))
            self._failed = True

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
