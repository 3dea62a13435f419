"""Verification of the audit log: every line in its place and unchanged, up to the anchored one. The anchor is in the
store: number and hash of a line that was on disk, and the number of the oldest line that has to exist."""

import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from distributed_grid.coordinator.audit.log import FILES, NOTHING, hashed
from distributed_grid.protocol.errors import GridError

NAME = "audit"


class StoreAnchor:
    """An anchor in the store, which is opened for each call: once in a few seconds, from a thread of its own."""

    def __init__(self, store: Path) -> None:
        self._store = store

    def read(self) -> tuple[int, str, int]:
        """Return the anchor; 0: there is none. Raises GridError."""
        with _opened(self._store, "ro") as db:
            row = db.execute("SELECT value FROM meta WHERE name = ?", (NAME,)).fetchone()
        parts = str(row[0]).split(" ") if row else []
        number, hashed, oldest = [*parts, *("0", NOTHING, "0")[len(parts) :]][:3]
        if not (number.isdecimal() and oldest.isdecimal()):
            raise GridError(f"the anchor of the audit log in {self._store} is damaged", hint="grid coordinator check")
        return int(number), hashed, int(oldest)

    def write(self, number: int, hashed: str, oldest: int) -> None:
        """Replace the anchor. Raises GridError."""
        with _opened(self._store, "rw") as db:
            said = f"{number} {hashed} {oldest}"
            db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (NAME, said))


@contextmanager
def _opened(store: Path, mode: str) -> Iterator[sqlite3.Connection]:
    try:
        db = sqlite3.connect(f"file:{quote(str(store))}?mode={mode}", uri=True, timeout=5, isolation_level=None)
        try:
            yield db
        finally:
            db.close()
    except sqlite3.Error as error:
        raise GridError(f"the anchor of the audit log in {store} is out of reach", why=str(error)) from None


class DoesNotFit(GridError):
    """A line was changed or is missing."""


@dataclass
class Verified:
    """The result of a verification: the number of lines, number and time of the first and the last, hash of the last,
    and the anchored number (0: none of these). `missing` lines found no room on the disk, `unfinished` bytes follow the
    last line."""

    lines: int = 0
    first: int = 0
    last: int = 0
    since: str = ""
    until: str = ""
    hash: str = NOTHING
    anchored: int = 0
    missing: int = 0
    unfinished: int = 0


class _Line(msgspec.Struct):
    n: int
    prev: str
    at: str
    missing: int = 0


_decode = msgspec.json.Decoder(_Line).decode


def files_of(path: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    older = (path.with_name(f"{path.name}.{number}") for number in range(FILES - 1, 0, -1))
    return [*(one for one in older if one.exists()), path]


def read(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of these files, the oldest first, each once even if they are rotated meanwhile.
    Raises GridError."""
    opened: dict[int, tuple[str, int]] = {}
    for path in reversed(list(paths)):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(os.fstat(file).st_mode):
            os.close(file)
            raise GridError(f"{path} is a directory", hint="give a file, such as audit.log in the state directory")
        opened.setdefault(os.fstat(file).st_ino, (path.name, file))
    for name, file in reversed(opened.values()):
        with open(file, "rb") as content:
            yield name, content.read()


def verify_own(state_dir: Path) -> Verified:
    """As `verify`, for the log of the coordinator that keeps its state here; it may run. Raises GridError."""
    anchor, store, log = (0, NOTHING, 0), state_dir / "grid.db", state_dir / "audit.log"
    if store.exists():
        if not any(path.exists() for path in files_of(log)) and _is_backup(store):
            raise GridError(
                f"{state_dir} is a backup, which has no audit log",
                hint="verify the log of the coordinator; or a copy of it that was kept: grid audit verify FILE",
            )
        anchor = StoreAnchor(store).read()  # before the log, which only grows
    return verify(read(files_of(log)), anchor)


def _is_backup(store: Path) -> bool:
    with _opened(store, "ro") as db:
        return db.execute("SELECT 1 FROM meta WHERE name = 'backup'").fetchone() is not None


def verify(files: Iterable[tuple[str, bytes]], anchor: tuple[int, str, int] = (0, NOTHING, 0)) -> Verified:
    """Verify these files, given from the oldest on, against the anchor. Raises DoesNotFit for the first line that is
    not right."""
    found, where = Verified(), ""
    for name, content in files:
        *lines, rest = content.split(b"\n")
        found.unfinished = len(rest)
        for index, line in enumerate(lines, 1):
            before, where = where, f"{name}, line {index}"
            _take(found, line, where, before, anchor)
    number, _, oldest = anchor
    if oldest and found.lines and found.first > oldest:
        raise DoesNotFit(
            f"the audit log begins too late: {_numbers(oldest, found.first - 1)} missing at its beginning",
            why=f"the store knows that line {oldest} is the oldest that is kept, and the first here is {found.first}",
        )
    if found.last < number:
        raise DoesNotFit(
            f"the audit log ends too soon: {_numbers(found.last + 1, number)} missing at its end",
            why=f"the store knows of line {number}, and the last here is {found.last}",
        )
    return found


def _take(found: Verified, line: bytes, where: str, before: str, anchor: tuple[int, str, int]) -> None:
    try:
        read = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise DoesNotFit(f"{where} is no line of an audit log", why=_shown(line)) from None
    if found.lines and read.n > found.last + 1:
        raise DoesNotFit(
            f"{where} does not fit: {_numbers(found.last + 1, read.n - 1)} missing before it",
            why=f"it is number {read.n}, and the one before it is {found.last}",
        )
    if found.lines and read.n <= found.last:
        raise DoesNotFit(
            f"{where} does not fit: it is not in its place",
            why=f"it is number {read.n}, and the one before it is {found.last}",
        )
    if found.lines and read.prev != found.hash:
        raise DoesNotFit(
            f"{where} does not fit: it or the one before it ({before}) is not what was written",
            why=f"number {read.n} was written behind a line with another hash than number {found.last} has here",
        )
    if not found.lines:
        found.first, found.since = read.n, read.at
        if read.n == 1 and read.prev != NOTHING:
            raise DoesNotFit(f"{where} does not fit: it is the first of all, and says that one was before it")
    found.lines += 1
    found.last, found.until, found.hash = read.n, read.at, hashed(line)
    found.missing += read.missing
    if read.n == anchor[0]:
        if found.hash != anchor[1]:
            raise DoesNotFit(f"{where} is not what was written", why=f"the store knows number {read.n} by another hash")
        found.anchored = read.n


def _numbers(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"


def _shown(line: bytes) -> str:
    return ascii(line[:80].decode(errors="replace"))
