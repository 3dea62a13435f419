"""Writes files without allocating the blocks that contain only zeros. Stdlib only."""

import os

BLOCK = 4096
_ZEROS = bytes(BLOCK)


def write_sparse(fd: int, data: bytes, offset: int) -> None:
    """Write these bytes at this offset, which is the end of the file: blocks of zeros become holes. Raises OSError."""
    at, end = 0, len(data)
    while at < end:
        until = at
        while until < end and _is_zero(data, offset, until):
            until = _next(offset, until, end)
        if until > at:
            os.ftruncate(fd, offset + until)
            at = until
        while until < end and not _is_zero(data, offset, until):
            until = _next(offset, until, end)
        left = memoryview(data)[at:until]
        while left:
            written = os.pwrite(fd, left, offset + at)
            at, left = at + written, left[written:]


def _next(offset: int, at: int, end: int) -> int:
    """Return where the next block of the file begins."""
    return min(end, at + BLOCK - (offset + at) % BLOCK)


def _is_zero(data: bytes, offset: int, at: int) -> bool:
    """Whether this is the beginning of a whole block of zeros."""
    return (offset + at) % BLOCK == 0 and data[at : at + BLOCK] == _ZEROS
