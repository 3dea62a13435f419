"""The supervisor's journal: what it promised, started and saw end, one checksummed line a record, only ever appended.

A line is eight hex digits of CRC-32, a space and a JSON array. What a killed process wrote is in the kernel and safe;
only `commit(sync=True)` makes it safe from a power cut as well. A torn last line is the ordinary trace of a cut and is
dropped; damage anywhere else puts the whole file aside for a person to look at, and what can be read of it is used.

The file is longer than what was appended: it is filled up with zeros, a chunk at a time. A sync of lines that replace
zeros writes just these; one of a file that grew waits for the filesystem's own journal, with all that others did there.
Stdlib only.
"""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
Record = list[Any]
_encode = json.JSONEncoder(separators=(",", ":")).encode


def line(record: Record) -> bytes:
    """One record as it is written."""
    body = _encode(record).encode()
    return b"%08x %s\n" % (crc32(body), body)


def parse(text: bytes) -> Record | None:
    """The record of one line without its newline; None if it is not whole."""
    if len(text) < 9 or text[8:9] != b" ":
        return None
    try:
        if int(text[:8], 16) != crc32(text[9:]):
            return None
        record = json.loads(text[9:])
    except ValueError:
        return None
    return record if isinstance(record, list) and record else None


class Journal:
    """The open journal at `path`, `size` bytes of records in it. `log` takes a sentence for a person when something was
    wrong with the file."""

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        self.path = path
        self.size = 0
        self._log = log
        self._fd = -1
        self._room = 0  # bytes that the file has on disk
        self._buffer: list[bytes] = []

    def load(self) -> list[Record]:
        """All records that can be read, in order. Damage is told, and the damaged file is kept beside the journal."""
        try:
            with open(self.path, "rb") as file:
                whole = file.read()
        except FileNotFoundError:
            return []
        lines = whole.rstrip(b"\0").split(b"\n")
        torn = lines.pop()  # what follows the last newline: nothing, or a line that was cut
        parsed = [parse(text) for text in lines]
        bad = [number for number, record in enumerate(parsed, 1) if record is None]
        # Blocks reach the disk in any order, so a cut can also leave a last line of the right length with wrong bytes.
        if torn or bad == [len(lines)]:
            self._log(f"journal {self.path}: the last line was cut and is dropped")
            bad = [number for number in bad if number != len(lines)]
        if bad:
            aside = self._put_aside(whole)
            shown = ", ".join(map(str, bad[:10])) + ("…" if len(bad) > 10 else "")
            self._log(
                f"journal {self.path}: {len(bad)} of {len(lines)} lines are damaged (line {shown}); "
                f"the file is kept as {aside} and the other lines are used"
            )
        return [record for record in parsed if record is not None]

    def _put_aside(self, whole: bytes) -> str:
        number = 1
        while os.path.exists(aside := f"{self.path}.corrupt-{number}"):
            number += 1
        with open(aside, "xb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        return aside

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the journal, and what was appended to it, by these records: whole and durable, or not at all."""
        self._buffer.clear()
        body = b"".join(map(line, records))
        fresh = f"{self.path}.new"
        room = (len(body) // _CHUNK + 1) * _CHUNK
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            _write(fd, body.ljust(room, b"\0"), 0)
            os.fsync(fd)
            os.rename(fresh, self.path)
        except BaseException:
            os.close(fd)
            raise
        folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size, self._room = fd, len(body), room

    def append(self, *record: Any) -> None:
        """Take a record; it is written by the next commit."""
        self._buffer.append(line(list(record)))

    def commit(self, sync: bool) -> None:
        """Write what was appended, with `sync` also through to the disk.

        An error is left to the caller, who must rewrite: after a failed write or sync nobody knows what the disk holds.
        """
        if self._buffer:
            body = b"".join(self._buffer)
            self._buffer.clear()
            while self.size + len(body) > self._room:
                _write(self._fd, _ZEROS, self._room)
                self._room += _CHUNK
            _write(self._fd, body, self.size)
            self.size += len(body)
        if sync:
            os.fdatasync(self._fd)


def _write(fd: int, body: bytes, at: int) -> None:
    view = memoryview(body)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
