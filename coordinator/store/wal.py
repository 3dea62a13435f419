"""The write-ahead log of a store, read as it lies on the disk, before SQLite opens it.

SQLite takes a log up to the first frame whose checksum does not fit, and drops the rest without a word, since it cannot
tell a damaged frame from one that a crash left half written. Whoever looks behind that frame can: frames there that
have the log's current salts were written after it. (SQLite, "Database File Format", section 4, The Write-Ahead Log)
"""

import array
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEADER, FRAME = 32, 24
_MAGIC = (0x377F0682, 0x377F0683)
_WORD = 0xFFFFFFFF


class Log(NamedTuple):
    """What a log holds: how many commits SQLite will take from it, and the transactions behind the first damaged frame,
    each as the numbers of its pages. `damaged`: where that frame begins, in bytes; -1: there is none, or it is the end
    of a log that a crash cut off."""

    commits: int = 0
    lost: tuple[frozenset[int], ...] = ()
    damaged: int = -1


def read(store: Path) -> Log:
    """The log of this store; an empty one where there is no file. Raises OSError."""
    try:
        return parse(store.with_name(f"{store.name}-wal").read_bytes())
    except FileNotFoundError:
        return Log()


def parse(data: bytes) -> Log:
    """What is in a log of these bytes."""
    if len(data) < HEADER + FRAME:
        return Log()
    magic, _, page_size, _ = struct.unpack_from(">4I", data)
    first, second = struct.unpack_from(">2I", data, 24)
    big = magic == _MAGIC[1]
    sums = _checksum(data[:24], (0, 0), big)
    if magic not in _MAGIC or sums != (first, second) or not _is_size(page_size):
        return _without_header(data)
    salts = data[16:24]
    commits, good_until = 0, 0
    pages: set[int] = set()
    for at, page, truncated, own in _frames(data, page_size):
        if own != salts or not page:
            break
        head, content = data[at : at + 8], data[at + FRAME : at + FRAME + page_size]
        sums = _checksum(content, _checksum(head, sums, big), big)
        if sums != struct.unpack_from(">2I", data, at + 16):
            break
        good_until = at + FRAME + page_size
        commits += bool(truncated)
    lost: list[frozenset[int]] = []
    for at, page, truncated, own in _frames(data, page_size):
        if at >= max(good_until, HEADER) and own == salts:
            pages.add(page)
            if truncated:
                lost.append(frozenset(pages))
                pages = set()
    return Log(commits, tuple(lost), max(good_until, HEADER) if lost else -1)


def _without_header(data: bytes) -> Log:
    """The header does not fit, so SQLite takes nothing of it. The newest frames are the first ones in the file: those
    that have the salts of the first frame."""
    page_size = struct.unpack_from(">I", data, 8)[0]
    if not _is_size(page_size):
        page_size = 4096
    salts = [own for _, _, _, own in _frames(data, page_size)]
    current = max(set(salts), key=salts.count, default=b"")
    lost = [frozenset({page}) for _, page, truncated, own in _frames(data, page_size) if own == current and truncated]
    return Log(0, tuple(lost), 0 if lost else -1)


def _frames(data: bytes, page_size: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Of each frame: where it begins, its page, the size of the database after it (0: no commit), and its salts."""
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
