"""The Unix socket in the state directory, by which who is on this machine comes in without a certificate: the kernel
says who is at the other end. Root and the coordinator's own user are operators, everybody else is a client under the
name of their user. Jobs are nobody here, whichever user they run as: a job may not submit under the name of its node's
service account, nor of its owner.

Everybody may open the socket, as with Slurm's and MUNGE's: what one may do is decided by who one is. Who is to be kept
out altogether is kept out by the mode of the state directory (0711 when it is made; 0700 keeps all others out).
"""

import contextlib
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from websockets.asyncio.server import ServerConnection

from distributed_grid.coordinator.access.admission import NotAdmitted
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.identity import Identity, Role
from distributed_grid.protocol.walls import is_wall_uid
from distributed_grid.runtime import peer
from distributed_grid.runtime.local import SOCKET
from distributed_grid.runtime.unix import bound

OPEN_TO_PASS = 0o711
"""The mode of a state directory when it is made: others may go through it to the socket, and not look around."""
SERVICE_ACCOUNT, UNIT = "grid-agent", "grid-agent.service"
UNITS = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/usr/lib/systemd/system"))
OTHERWISE = "for a program that is to submit jobs, make a token of its own: grid token create --bearer --role client"
_USER = re.compile(r"^User=(\S+)", re.MULTILINE)
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


def local_peer(wire: ServerConnection) -> socket.socket | None:
    """The Unix socket that a connection came by; None: it is of another kind."""
    ours: socket.socket | None = wire.transport.get_extra_info("socket")
    return ours if ours is not None and ours.family == socket.AF_UNIX else None


def peer_uid(ours: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel noted it at the connect."""
    return peer.credentials(ours).uid


def identity_of_peer(ours: socket.socket, accepted: float, grid: str) -> Identity:
    """Who is at the other end of a Unix socket that was accepted then (by `peer.boot_clock`), to the grid. The name is
    looked up each time, for users may change. Raises NotAdmitted for jobs, and for peers that are gone."""
    try:
        uid = peer.judge(ours, accepted=accepted).uid
        if is_wall_uid(uid):
            raise peer.PeerRefused(f"user {uid} is of the range that walls give to jobs", job=True)
    except peer.PeerRefused as refused:
        what = "a job may not come in by the coordinator's socket" if refused.job else "this connection is refused"
        raise NotAdmitted(what, str(refused), OTHERWISE) from None
    own = os.geteuid()
    if uid not in (0, own) and uid in service_accounts():
        why = f"{user_name(uid)} is the user of this machine's agent, and jobs may run as it"
        raise NotAdmitted("a service account is no client of the grid", why, OTHERWISE)
    return Identity(grid, Role.OPERATOR if uid in (0, own) else Role.CLIENT, user_name(uid))


def service_accounts() -> set[int]:
    """The users of agents that this machine's systemd runs: the default one, and those that their unit names."""
    named = {SERVICE_ACCOUNT}
    for folder in UNITS:
        for path in (folder / UNIT, *folder.glob(f"{UNIT}.d/*.conf")):
            with contextlib.suppress(OSError):
                named |= set(_USER.findall(path.read_text(errors="replace")))
    found = set()
    for name in named:
        with contextlib.suppress(KeyError):
            found.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
    return found


def user_name(uid: int) -> str:
    """The user's name; `uid-1234` where there is none, or none that could be written, or one that looks like that."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"
    sane = 0 < len(name) <= 64 and name.isprintable() and not _NUMBERED.fullmatch(name)
    return name if sane else f"uid-{uid}"
