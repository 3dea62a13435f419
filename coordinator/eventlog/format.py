"""The file format of the event log, and its reader.

A file is a stream of msgpack values: a Header, a checkpoint of the ledger, then arrays of Turns, so each file can be
replayed alone. A kill -9 may truncate it anywhere."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from distributed_grid.coordinator.core import checkpoint
from distributed_grid.coordinator.core.checkpoint import Checkpoint
from distributed_grid.coordinator.core.commands import Event
from distributed_grid.protocol.errors import GridError

FORMAT = 1
"""Format version, increased when the meaning of a file changes."""
NAME = re.compile(r"(\d{6,})\.log")
CHUNK = 1 << 20
_LIMITS = {
    "max_buffer_size": 1 << 30,
    "max_str_len": 16 << 20,
    "max_bin_len": 16 << 20,
    "max_array_len": 4 << 20,
    "max_map_len": 4 << 20,
    "max_ext_len": 0,
}
TYPE = "grid-events"


class Header(msgspec.Struct, frozen=True, array_like=True, tag=TYPE):
    """The first record of a file. `follows`: nothing happened between the previous file and this one."""

    format: int
    software: str
    grid: str
    epoch: int
    follows: bool = False


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn of the driver: its time, the events, and the decisions on them and on settling. `broken`: the ledger's
    error if it found its state invalid, at the last of the events or when settling."""

    now: float
    events: list[Event]
    decisions: list[list[Any]]
    broken: str = ""


class BadLog(GridError):
    """Not an event log, or a damaged one; the error names the place."""


class Cut(msgspec.Struct, frozen=True):
    """The file ends in the middle of a record, after this many bytes of it."""

    bytes: int


Record = Header | Checkpoint | Turn | Cut


def files(folder: Path) -> list[Path]:
    """The files of an event log, oldest first. Raises OSError."""
    named = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named)]


def read(path: Path) -> Iterator[Record]:
    """The records of a file: Header, Checkpoint, Turns, and a Cut if it is truncated. Raises BadLog, OSError."""
    for number, (at, plain) in enumerate(_values(path)):
        if isinstance(plain, Cut):
            if number == 0:
                raise BadLog(f"{path} is no event log", why="there is no whole record in it")
            yield plain
            return
        try:
            some = _typed(path, number, plain)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise _bad(path, number, at, error) from None
        yield from some


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each value with its offset."""
    stream = msgpack.Unpacker(raw=False, strict_map_key=False, **_LIMITS)
    at = number = size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            try:
                stream.feed(chunk)
                for value in stream:
                    yield at, value
                    at, number = stream.tell(), number + 1
            except (msgpack.exceptions.UnpackException, ValueError, TypeError, RecursionError) as error:
                raise _bad(path, number, at, error) from None
    if size > at or not number:
        yield at, Cut(size - at)


def _bad(path: Path, number: int, at: int, error: Exception) -> BadLog:
    if not number:
        return BadLog(f"{path} is no event log", why=f"it does not begin as one: {_words(error)}")
    what = f"{path}: record {number + 1}, which begins at byte {at}, cannot be read"
    return BadLog(what, why=_words(error), hint="the file was changed or damaged; what comes before it can be replayed")


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _typed(path: Path, number: int, plain: Any) -> Sequence[Record]:
    if number > 1:
        return msgspec.convert(plain, list[Turn])
    if number == 1:
        return [checkpoint.convert(plain)]
    if not isinstance(plain, list) or len(plain) < 2 or plain[0] != TYPE:
        raise ValueError("the header is missing")
    if plain[1] != FORMAT:
        raise BadLog(
            f"{path} has format {plain[1]}, this grid reads format {FORMAT}",
            why=f"it was written by version {plain[2] if len(plain) > 2 else 'unknown'}",
            hint="replay it with that version",
        )
    return [msgspec.convert(plain, Header)]
