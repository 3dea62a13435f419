"""Unix sockets in directories of any length: a socket's path may have 107 bytes, and that of a state directory more, so
they are bound and connected through the directory's descriptor. Stdlib only: the supervisor uses it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def connected(path: Path, timeout: float) -> socket.socket:
    """A connection to who listens there. The timeout is in seconds, and stays; 0: it does not block. Raises OSError."""
    ours = socket.socket(socket.AF_UNIX)
    try:
        ours.settimeout(timeout)
        with _short(path) as name:
            ours.connect(name)
    except BaseException:
        ours.close()
        raise
    return ours


def bound(path: Path) -> socket.socket:
    """A socket bound there, for our user alone. Raises OSError, also where something is there already."""
    ours = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with _short(path) as name:
            ours.bind(name)
    except BaseException:
        ours.close()
        raise
    finally:
        os.umask(before)
    return ours


@contextmanager
def _short(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
