"""The coordinator's Unix socket, for programs on its own machine: its address, and how to connect to it."""

import os
import socket
import stat
from pathlib import Path

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.unix import connected

SOCKET = "coordinator.sock"
"""Its name in the coordinator's state directory."""
SCHEME = "unix://"
LOCAL_URI = "ws://localhost/"
"""What a websocket handshake over it says of where it goes."""


class NoSocket(GridError):
    """No coordinator can be reached by this socket."""


def socket_path(url: str) -> Path | None:
    """The socket that an address means: `unix://PATH`, or a path that begins as paths do; None: it means none."""
    if url.startswith(SCHEME):
        return Path(url.removeprefix(SCHEME)).expanduser()
    return Path(url).expanduser() if url.startswith(("/", "./", "../", "~/")) else None


def is_socket(path: Path) -> bool:
    """Whether we see a socket there."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def dial(path: Path, timeout: float) -> socket.socket:
    """A connection to the coordinator that listens there; the timeout is in seconds. Raises NoSocket."""
    what = f"cannot reach the coordinator at {SCHEME}{path}"
    start = "grid coordinator run makes it, in its state directory"
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise NoSocket(what, "that file is not a socket", start)
        return connected(path, timeout)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSocket(what, "there is no such socket", start) from None
    except PermissionError:
        why = f"you may not open it: {_closed(path)} lets in its owner only"
        raise NoSocket(what, why, "ask who runs the coordinator, or for a token: grid login") from None
    except ConnectionRefusedError:
        raise NoSocket(what, "no process listens on it: its coordinator does not run", "start it again") from None
    except OSError as error:
        raise NoSocket(what, (error.strerror or str(error)).lower(), start) from None


def _closed(path: Path) -> Path:
    """The first directory on the way that we may not go through; else the socket itself."""
    for folder in reversed(path.absolute().parents):
        if not os.access(folder, os.X_OK, effective_ids=True):
            return folder
    return path
