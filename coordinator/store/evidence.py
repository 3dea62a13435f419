"""Evidence of lost commits outside the database: the store's high-water mark, a small file written after each commit
and not synced (behind the store after a power cut, never ahead); the write-ahead log, of which SQLite drops everything
after the first damaged frame; and other files of a coordinator in the state directory."""

import array
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.access.identities import PKI, has_authority
from distributed_grid.coordinator.core.rollback import Marked, Point, Traces
from distributed_grid.coordinator.eventlog.format import BadLog, Header, files, read
from distributed_grid.runtime.logs import get_logger

_MARK_MAGIC = b"GRIDMK01"
_FORM = struct.Struct("<8s16sQQd36s32s")
_SUM = struct.Struct("<I")
KEY_BYTES = 32

log = get_logger("store")


class Mark(NamedTuple):
    """The store's last commit, the boot in which the mark was written, and the key of the store's stamps
    (contradictions.py), with which a replacement of a lost store recognises what that one said."""

    point: Point
    boot: str
    key: bytes


def boot_id() -> str:
    """Id of the machine's current boot; empty if the kernel does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def encode_mark(mark: Mark) -> bytes:
    """The content of the mark's file."""
    point = mark.point
    known = point.grid.encode(), point.epoch, point.commits, point.clock
    body = _FORM.pack(_MARK_MAGIC, *known, mark.boot.encode(), mark.key)
    return body + _SUM.pack(zlib.crc32(body))


def decode_mark(data: bytes) -> Mark | None:
    """The mark in these bytes; None if they are damaged."""
    body, check = data[: _FORM.size], data[_FORM.size :]
    if len(body) != _FORM.size or check != _SUM.pack(zlib.crc32(body)) or not body.startswith(_MARK_MAGIC):
        return None
    _, grid, epoch, commits, clock, boot, key = _FORM.unpack(body)
    return Mark(Point(grid.rstrip(b"\0").decode(), epoch, commits, clock), boot.rstrip(b"\0").decode(), key)


def mark_path(store: Path) -> Path:
    """The path of this store's mark."""
    return store.with_suffix(".mark")


def read_mark(store: Path) -> Marked:
    """The mark of this store. Raises OSError if it is inaccessible."""
    try:
        fd = os.open(mark_path(store), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a FIFO there is nothing to read
    except FileNotFoundError:
        return Marked()
    with open(fd, "rb") as file:
        mark = decode_mark(file.read(4096))
    if mark is None:
        return Marked(why="damaged")
    return Marked(mark.point, "", bool(mark.boot) and mark.boot == boot_id(), mark.key)


class MarkFile:
    """The mark of an open store. A failed write is logged once and otherwise ignored: it is evidence only."""

    def __init__(self, store: Path, key: bytes) -> None:
        self._path = mark_path(store)
        self._key = key
        self._file = -1
        self._boot = boot_id()
        self._failed = False

    def write(self, point: Point) -> None:
        """Record the store's progress: after each commit, so it costs one system call."""
        try:
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._file = os.open(self._path, flags, 0o600)
            os.pwrite(self._file, encode_mark(Mark(point, self._boot, self._key)), 0)
        except OSError as error:
            if not self._failed:
                log.warning("the high-water mark cannot be written", file=str(self._path), error=str(error))
            self._failed = True

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


HEADER, FRAME = 32, 24
_WAL_MAGIC = (0x377F0682, 0x377F0683)
_WORD = 0xFFFFFFFF
_HEAD = re.compile(rb"head[!-~]+ \d+ \d+ [!-~]+ [0-9a-f]{8}")
"""The row of the head (open.py) as it is in a page."""


class Wal(NamedTuple):
    """Content of a log: how many commits SQLite will apply, and of each transaction after the first damaged frame,
    whether it wrote the head of the store, as each commit of the coordinator does. `damaged`: offset of that frame; -1:
    none, or the log's end was cut off by a crash."""

    commits: int = 0
    lost: tuple[bool, ...] = ()
    damaged: int = -1


def read_wal(store: Path) -> Wal:
    """The log of this store; empty if there is no file. Raises OSError."""
    try:
        return parse_wal(store.with_name(f"{store.name}-wal").read_bytes())
    except FileNotFoundError:
        return Wal()


def parse_wal(data: bytes) -> Wal:
    """Parse a log."""
    if len(data) < HEADER + FRAME:
        return Wal()
    magic, _, page_size, _ = struct.unpack_from(">4I", data)
    first, second = struct.unpack_from(">2I", data, 24)
    big = magic == _WAL_MAGIC[1]
    sums = _checksum(data[:24], (0, 0), big)
    if magic not in _WAL_MAGIC or sums != (first, second) or not _is_size(page_size):
        return _without_header(data)
    salts = data[16:24]
    commits, good_until = 0, 0
    for at, page, truncated, own in _frames(data, page_size):
        if own != salts or not page:
            break
        head, content = data[at : at + 8], data[at + FRAME : at + FRAME + page_size]
        sums = _checksum(content, _checksum(head, sums, big), big)
        if sums != struct.unpack_from(">2I", data, at + 16):
            break
        good_until = at + FRAME + page_size
        commits += bool(truncated)
    lost = _transactions(data, page_size, max(good_until, HEADER), salts)
    return Wal(commits, lost, max(good_until, HEADER) if lost else -1)


def _without_header(data: bytes) -> Wal:
    """The header is invalid, so SQLite applies nothing. The newest frames are at the start of the file: those with the
    salts of the first frame."""
    page_size = struct.unpack_from(">I", data, 8)[0]
    if not _is_size(page_size):
        page_size = 4096
    salts = [own for _, _, _, own in _frames(data, page_size)]
    current = max(set(salts), key=salts.count, default=b"")
    lost = _transactions(data, page_size, HEADER, current)
    return Wal(0, lost, 0 if lost else -1)


def _transactions(data: bytes, page_size: int, begin: int, salts: bytes) -> tuple[bool, ...]:
    """Whether each transaction of this log from this offset on wrote the head."""
    found: list[bool] = []
    wrote = False
    for at, _, truncated, own in _frames(data, page_size):
        if at >= begin and own == salts:
            wrote = wrote or _HEAD.search(data, at + FRAME, at + FRAME + page_size) is not None
            if truncated:
                found.append(wrote)
                wrote = False
    return tuple(found)


def _frames(data: bytes, page_size: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield each frame: offset, page, size of the database after it (0: no commit), and salts."""
    for at in range(HEADER, len(data) - FRAME - page_size + 1, FRAME + page_size):
        page, size = struct.unpack_from(">2I", data, at)
        yield at, page, size, data[at + 8 : at + 16]


def _is_size(page_size: int) -> bool:
    return 512 <= page_size <= 65536 and page_size & (page_size - 1) == 0


def _checksum(data: bytes, sums: tuple[int, int], big: bool) -> tuple[int, int]:
    words = array.array("I", data)
    if (sys.byteorder == "big") is not big:
        words.byteswap()
    one, two = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & _WORD
        two = (two + odd + one) & _WORD
    return one, two


NAMED = {
    "audit.log": "the audit log",
    "reserve": "the reserve",
    "coordinator.json": "what the last coordinator wrote of itself",
}
TAIL_BYTES = 256 << 10
"""How much of the audit log's end is read."""
LOOKED_AT = 8
"""Files of the event log tried for a readable header, newest first."""


class _Line(msgspec.Struct):
    event: str
    at: str
    result: str = ""
    ids: list[str] = []


_line = msgspec.json.Decoder(_Line).decode


def find_traces(state_dir: Path) -> Traces:
    """Return all traces. An unreadable one counts as missing: the store is examined in any case."""
    found: list[str] = []
    grid, epoch, count = _events(state_dir / "events")
    if count:
        found.append(f"the event log ({count} files" + (f", epoch {epoch})" if epoch else ")"))
    found += [words for name, words in NAMED.items() if _has_content(state_dir / name)]
    if has_authority(state_dir / PKI):
        found.append("the grid's authority")
        grid = grid or grid_of(state_dir / PKI)
    return Traces(tuple(found), grid, epoch, tuple(_accepted(state_dir / "audit.log")))


def _has_content(path: Path) -> bool:
    with suppress(OSError):
        return path.stat().st_size > 0
    return False


def _accepted(path: Path) -> Iterator[tuple[str, float]]:
    """The jobs of the last acknowledged submissions."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        for line in file.read(TAIL_BYTES).split(b"\n"):
            with suppress(ValueError):  # the first line may be cut; others' lines are skipped
                said = _line(line)
                if (said.event, said.result) == ("submit", "accepted"):
                    at = datetime.fromisoformat(said.at).timestamp()
                    yield from ((name, at) for name in said.ids)


def _events(folder: Path) -> tuple[str, int, int]:
    """Grid and epoch of the newest readable file, and the number of files."""
    try:
        there = files(folder)
    except OSError:
        return "", 0, 0
    for path in reversed(there[-LOOKED_AT:]):
        with suppress(BadLog, OSError):
            head = next(read(path), None)
            if isinstance(head, Header):
                return head.grid, head.epoch, len(there)
    return "", 0, len(there)


def grid_of(pki: Path) -> str:
    """The grid in the coordinator's certificate; empty if unreadable."""
    from cryptography.hazmat.primitives.serialization import Encoding

    from distributed_grid.coordinator.access.ca import presented
    from distributed_grid.identity.keys import certificate_in
    from distributed_grid.protocol.errors import GridError

    with suppress(GridError, OSError, ValueError):
        return presented(certificate_in(pki).public_bytes(Encoding.DER)).identity.grid
    return ""
