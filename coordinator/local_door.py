"""The Unix socket in the state directory, by which who is on this machine comes in without a certificate: the kernel
says who is at the other end. Root and the coordinator's own user are operators, everybody else is a client under the
name of their user.

Everybody may open the socket, as with Slurm's and MUNGE's: what one may do is decided by who one is. Who is to be kept
out altogether is kept out by the mode of the state directory (0711 when it is made; 0700 keeps all others out).
"""

import asyncio
import os
import pwd
import re
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.asyncio.server import ServerConnection

from distributed_grid.local import SOCKET
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.unix import bound

OPEN_TO_PASS = 0o711
"""The mode of a state directory when it is made: others may go through it to the socket, and not look around."""
_NUMBERED = re.compile(r"uid-\d+")


def bind(state_dir: Path) -> socket.socket:
    """The socket, bound and open to everybody. One that is there was left by a coordinator that was killed, since we
    hold the directory's lock; something else is not ours to remove. Raises GridError, OSError."""
    path = state_dir / SOCKET
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise GridError(
                f"{path} is in the way",
                why="the coordinator's socket is to be there, and it is something else",
                hint="move it away, or give another --state-dir",
            )
        path.unlink()
    except FileNotFoundError:
        pass
    ours = bound(path)
    try:
        path.chmod(0o666)
    except BaseException:
        ours.close()
        raise
    return ours


@contextmanager
def closed_to_others(state_dir: Path) -> Iterator[None]:
    """Others may go through the state directory to the socket: nothing else in it, or made in it, is theirs to read."""
    before = os.umask(0o077)
    for entry in os.scandir(state_dir):
        mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
        if mode & 0o077 and not entry.is_symlink() and entry.name != SOCKET:
            os.chmod(entry.path, mode & 0o700)
    try:
        yield
    finally:
        os.umask(before)


def local_uid(wire: ServerConnection) -> int | None:
    """The user at the other end of a Unix socket, as the kernel noted it at the connect; None: it is another kind."""
    ours = wire.transport.get_extra_info("socket")
    if ours is None or ours.family != socket.AF_UNIX:
        return None
    return peer_uid(ours)


def peer_uid(ours: socket.socket) -> int:
    """The same of a connection over a Unix socket that was just accepted."""
    _, uid, _ = struct.unpack("iII", ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return int(uid)


async def identity_of_user(uid: int, grid: str) -> Identity:
    """Who a user of this machine is to the grid. The name is looked up each time, for users may change."""
    role = Role.OPERATOR if uid in (0, os.geteuid()) else Role.CLIENT
    return Identity(grid, role, await asyncio.to_thread(user_name, uid))


def user_name(uid: int) -> str:
    """The user's name; `uid-1234` where there is none, or none that could be written, or one that looks like that."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
    sane = 0 < len(name) <= 64 and name.isprintable() and not _NUMBERED.fullmatch(name)
    return name if sane else f"uid-{uid}"
