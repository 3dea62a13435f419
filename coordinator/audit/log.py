"""The audit log: one JSON line for each request of a person, with who asked, by which connection, for what, and the
result; never a command, an environment or a secret.

Each line has a number (`n`) and the SHA-256 of the line before it (`prev`), so verification detects a line that was
changed, removed, inserted or moved (verify.py). Lines removed at the end are detected by an anchor: every few seconds
the store saves the number and hash of a line that was on disk.

Lines are written once for each turn of the loop, before the answers of that turn are sent. They survive a kill of the
coordinator at once, and a loss of power after `SYNC_SECONDS`. A full disk does not stop the service: the number of
lines that could not be written is in the next line that can.
"""

import asyncio
import errno
import hashlib
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from distributed_grid import __version__
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.logs import get_logger

FILE_BYTES = 16 << 20
FILES = 4
SYNC_SECONDS = 2.0
NOTHING = "0" * 64
"""`prev` of the very first line."""

log = get_logger("audit")
_encode = msgspec.json.Encoder().encode


class Anchor(Protocol):
    """Keeps number and hash of the last line on disk apart from the log, and the number of the oldest line that has to
    be there (0: unknown)."""

    def read(self) -> tuple[int, str, int]: ...

    def write(self, number: int, hashed: str, oldest: int) -> None: ...


class NullAnchor:
    """An anchor that keeps nothing."""

    def read(self) -> tuple[int, str, int]:
        return 0, NOTHING, 0

    def write(self, number: int, hashed: str, oldest: int) -> None: ...


def hashed(line: bytes) -> str:
    """The hash of a line (without its newline), which the next line has as `prev`."""
    return hashlib.sha256(line).hexdigest()


class RequestLog:
    """Appends lines to a file that is rotated at a size: audit.log, audit.log.1, …; the oldest is removed."""

    def __init__(self, path: Path, anchor: Anchor | None = None) -> None:
        self._path = path
        self._anchor = anchor or NullAnchor()
        self._lines: list[bytes] = []
        self._due = False
        self._syncing: asyncio.TimerHandle | None = None
        self._missing = self._told = 0
        self._unanchored = False
        self._second = ("", 0)
        self._anchored, self._oldest = (0, NOTHING), 0
        self._open()
        self._number, self._hash = 0, NOTHING
        self._written = (0, NOTHING)
        """Number and hash of the last line in the file."""
        self._go_on()

    # --- writing ------------------------------------------------------------------------------------------------------

    def expect(self) -> None:
        """A line will be added in this turn of the loop: it is written before anything that is sent from now on."""
        if not self._due:
            self._due = True
            try:
                asyncio.get_running_loop().call_soon(self.flush)
            except RuntimeError:  # no loop: it is written at once
                self._due = False

    def request(self, user: str, what: str, result: str = "accepted", **about: Any) -> None:
        """Add one line."""
        self.expect()
        line = {"n": self._number + 1, "prev": self._hash, "at": self._now(), "event": what, "user": user}
        if self._missing:
            line["missing"], self._told, self._missing = self._missing, self._missing, 0
        try:
            data = _encode(line | about | {"result": result})
        except (UnicodeEncodeError, TypeError) as error:  # a word that is none is not worth a request
            data = _encode(line | {"result": result, "unsaid": type(error).__name__})
        self._number += 1
        self._hash = hashed(data)
        self._lines.append(data)
        if not self._due:
            self.flush()

    def _now(self) -> str:
        """The wall clock in ISO 8601, milliseconds."""
        now = time.time()
        if int(now) != self._second[1]:
            self._second = (datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%S"), int(now))
        return f"{self._second[0]}.{int(now % 1 * 1000):03d}Z"

    def flush(self) -> None:
        """Write the lines that wait."""
        self._due = False
        lines, self._lines = self._lines, []
        if not lines:
            return
        data = b"".join(line + b"\n" for line in lines)
        try:
            if self._file < 0:  # it could not be opened after it was turned over
                self._open()
            if self._size and self._size + len(data) > FILE_BYTES:
                self._turn_over()
            self._write(data)
        except OSError as error:
            if not self._told + self._missing:
                log.error("the audit log cannot be written", error=str(error))
            self._missing, self._told = self._missing + self._told + len(lines), 0
            self._number, self._hash = self._written
            return
        self._written = (self._number, self._hash)
        if self._told:
            log.warning("the audit log is written again", missing=self._told)
            self._told = 0
        self._sync_soon()

    def _write(self, data: bytes) -> None:
        written = os.write(self._file, data)
        if written < len(data):  # there was room only for the beginning of it
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._file).st_size

    def _turn_over(self) -> None:
        file, self._file = self._file, -1
        with suppress(OSError):
            os.fsync(file)
        os.close(file)
        self._let_go()
        for number in range(FILES - 1, 0, -1):
            older = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number}"))
        self._open()

    def _let_go(self) -> None:
        """If the oldest file is about to be removed, first anchor the line that is the oldest from then on."""
        last, next_ = (self._path.with_name(f"{self._path.name}.{FILES - number}") for number in (1, 2))
        if last.exists() and next_.exists() and (oldest := first_number(next_)):
            self._oldest = oldest
            try:
                self._anchor.write(*self._anchored, oldest)
            except GridError as error:
                log.warning("the audit log cannot be anchored", error=str(error))

    # --- the chain ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Continue after the last line, with a line that says in which state the log was found."""
        number, anchored, self._oldest = self._anchor.read()
        self._anchored = number, anchored
        about: dict[str, Any] = {"software": __version__}
        lines = self._read()
        if lines and lines[-1]:  # cut by a crash: it is no line, and what follows would be none either
            about["cut_off"] = len(lines[-1])
            self._size -= len(lines[-1])
            os.ftruncate(self._file, self._size)
        lines.pop()
        last = number_of(lines[-1]) if lines else 0
        if lines and not last:  # not a line of ours: nothing can be chained to it
            self._turn_over()
            lines = []
        self._number, self._hash = (last, hashed(lines[-1])) if lines else (0, NOTHING)
        there = next((line for line in reversed(lines) if number_of(line) <= number), b"") if number else b""
        if number and (last < number or (number_of(there) == number and hashed(there) != anchored)):
            say = log.error if lines else log.warning  # without any: the store is one that was restored elsewhere
            say("the audit log is not what it was", last=last, anchored=number, hint="grid audit verify")
            self._number, self._hash = max(last, number), anchored  # from here on it will not fit what is before
        self._written = (self._number, self._hash)
        if not self._oldest:  # from now on it is known
            oldest = (first_number(self._path.with_name(f"{self._path.name}.{n}")) for n in range(FILES - 1, 0, -1))
            self._oldest = next(filter(None, oldest), 0) or (number_of(lines[0]) if lines else 0) or self._number + 1
        self.request("", "begin", "", **about)
        self.flush()

    def _read(self) -> list[bytes]:
        data = os.pread(self._file, self._size, 0) if self._size else b""
        return data.split(b"\n")

    # --- on the disk --------------------------------------------------------------------------------------------------

    def _sync_soon(self) -> None:
        if self._syncing is None:
            with suppress(RuntimeError):  # without a loop it is synced when it is closed
                self._syncing = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._sync_in_thread)

    def _sync_in_thread(self) -> None:
        self._syncing = None
        if self._file >= 0:
            ours, at = os.dup(self._file), self._written
            asyncio.get_running_loop().run_in_executor(None, self._sync, ours, at)

    def _sync(self, file: int, at: tuple[int, str]) -> None:
        """Sync, and only then update the anchor."""
        try:
            os.fsync(file)
            self._anchor.write(*at, self._oldest)
            self._anchored, self._unanchored = at, False
        except (OSError, GridError) as error:
            if not self._unanchored:
                log.warning("the audit log cannot be anchored", error=str(error))
            self._unanchored = True
        finally:
            os.close(file)

    def close(self) -> None:
        """Write and sync all lines."""
        self.flush()
        if self._syncing is not None:
            self._syncing.cancel()
        if self._file >= 0:
            self._sync(self._file, self._written)
            self._file = -1


def number_of(line: bytes) -> int:
    """The number of a line; 0: it has none."""
    try:
        found = msgspec.json.decode(line)["n"]
        return found if isinstance(found, int) else 0
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError):
        return 0


def first_number(path: Path) -> int:
    """The number of the first line of a rotated file; 0: there is no such file."""
    with suppress(OSError), path.open("rb") as file:
        return number_of(file.readline(1 << 20).rstrip(b"\n"))
    return 0
