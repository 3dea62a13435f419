"""The form of the event log's files, and how they are read again.

A file is a stream of msgpack values, one after the other: a Header, the ledger as it was (a checkpoint), then arrays of
some Turns each. So each file can be replayed alone. Its end may be cut off anywhere, by a kill -9.
"""

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
"""Counted up when the meaning of a file changes, so that nobody reads it wrongly."""
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
    """The first record of a file. `follows`: nothing happened between the file before it and this one."""

    format: int
    software: str
    grid: str
    epoch: int
    follows: bool = False


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One turn of the driver: when it was, the events it handed over, and what was decided on them and on settling.
    `broken`: the ledger refused its own state, with these words, at the last of the events or when settling."""

    now: float
    events: list[Event]
    decisions: list[list[Any]]
    broken: str = ""


class BadLog(GridError):
    """This is no event log, or not all of it; says where it goes wrong."""


class Cut(msgspec.Struct, frozen=True):
    """The file ends in the middle of a record; so many bytes of it are there."""

    bytes: int


Record = Header | Checkpoint | Turn | Cut


def files(folder: Path) -> list[Path]:
    """The files of an event log, the oldest first. Raises OSError."""
    named = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named)]


def read(path: Path) -> Iterator[Record]:
    """What is in a file: Header, Checkpoint, Turns, and a Cut where the end is missing. Raises BadLog, OSError."""
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
    """Each value with the place where it begins."""
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
