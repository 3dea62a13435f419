"""The supervisor's journal: what it promised, started and saw end, one checksummed line a record, only ever appended.

A line is eight hex digits of CRC-32, a space and a JSON array. What a killed process wrote is in the kernel and safe;
only `commit(sync=True)` makes it safe from a power cut as well. A torn last line is the ordinary trace of a cut and is
dropped; damage anywhere else puts the whole file aside for a person to look at, and what can be read of it is used.

The file is longer than what was appended: it is filled up with zeros, a chunk at a time. A sync of lines that replace
zeros writes just these; one of a file that grew waits for the filesystem's own journal, with all that others did there.

After a write or sync that failed nobody knows what the disk holds, and a second try on the same file may succeed all
the same, since the kernel has told its error and forgotten it. So that file is not used again: a new one is made.
Stdlib only.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

from distributed_grid.faults import fault

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
    """The journal at `path`, `size` bytes of records in it. `log` takes a sentence for a person when something was
    wrong with the file. `sound` says that all it was given is in the file that is at `path`; it is not until the first
    rewrite, and after an error not until the next one: until then a commit raises."""

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        self.path = path
        self.size = 0
        self.sound = False
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
            shown = ", ".join(map(str, bad[:10])) + ("…" if len(bad) > 10 else "")
            self._log(
                f"journal {self.path}: {len(bad)} of {len(lines)} lines are damaged (line {shown}); "
                f"the file is kept as {self._put_aside()} and the other lines are used"
            )
        return [record for record in parsed if record is not None]

    def _put_aside(self) -> str:
        """Give the file a second name, which stays when the journal is replaced. It takes no room on a full disk."""
        number = 1
        while os.path.exists(aside := f"{self.path}.corrupt-{number}"):
            number += 1
        try:
            os.link(self.path, aside)
        except OSError as error:
            return f"nothing ({error.strerror})"
        return aside

    @fault("supervisor.rewrite")
    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the journal, and what was appended to it, by these records: whole and durable, or not at all."""
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
            with contextlib.suppress(OSError):  # on a full disk its room is for others
                os.unlink(fresh)
            raise
        # From here on the old file has no name any more.
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size, self._room, self.sound = fd, len(body), room, False
        self._buffer.clear()
        folder = os.open(os.path.dirname(self.path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.sound = True

    def append(self, *record: Any) -> None:
        """Take a record; it is written by the next commit. Where a rewrite has to come first, that one says it all."""
        if self.sound:
            self._buffer.append(line(list(record)))

    def commit(self, sync: bool) -> None:
        """Write what was appended, with `sync` also through to the disk. After an OSError all of it has to be written
        anew, by a rewrite."""
        if not self.sound:
            raise OSError(errno.EIO, "an earlier write failed")
        body = b"".join(self._buffer)
        self._buffer.clear()
        self.sound = False
        if body:
            self._extend(body)
        if sync:
            _sync(self._fd)
        self.sound = True

    @fault("supervisor.write")
    def _extend(self, body: bytes) -> None:
        while self.size + len(body) > self._room:
            _write(self._fd, _ZEROS, self._room)
            self._room += _CHUNK
        _write(self._fd, body, self.size)
        self.size += len(body)


@fault("supervisor.sync")
def _sync(fd: int) -> None:
    os.fdatasync(fd)


def _write(fd: int, body: bytes, at: int) -> None:
    view = memoryview(body)
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
