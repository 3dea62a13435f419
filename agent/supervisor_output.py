"""Keeps an output file within its share of the disk: the first MiB and the newest part stay, what lies between is given
back. Offsets do not change, so a reader can go on; it is told of the gap by a small file beside. Stdlib only."""

import os
from collections.abc import Callable

from distributed_grid.agent.supervisor_procs import punch

KEPT_FIRST = 1 << 20
_BLOCK = 4096


def bound(path: str, limit: int, log: Callable[[str], None]) -> None:
    """If the file takes more than `limit` bytes on disk, give back all but its first MiB and its last half limit."""
    try:
        seen = os.lstat(path)
        if seen.st_blocks * 512 <= limit:
            return
        end = (seen.st_size - limit // 2) // _BLOCK * _BLOCK
        if end <= KEPT_FIRST:
            return
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        # The note first: a reader that saw the hole without it would take the zeros for output.
        with open(f"{path}.gap.new", "w") as note:
            note.write(f"{KEPT_FIRST} {end}\n")
        os.replace(f"{path}.gap.new", f"{path}.gap")
        punch(fd, KEPT_FIRST, end)
    except OSError as error:
        log(f"{path} takes more than {limit} bytes and cannot be cut ({error.strerror})")
    finally:
        os.close(fd)
