"""TCP connections within this machine: the kernel says which user is at the other end. Without TLS nothing else does,
because every user of a machine may listen on its ports, and connect to them."""

import errno
import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import Any

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.accounts import COORDINATOR, name_of, service_users, uid_of

SETTING = "GRID_COORDINATOR__USER"
"""Tells clients which other user's coordinator they may use (`coordinator.user`)."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.02


class NotTrusted(GridError):
    """The coordinator that listens there is another user's."""


class UnknownUser(Exception):
    """The kernel does not report the user at the other end; the text says why."""


def connect(host: str, port: int, timeout: float, trusts: str = "") -> socket.socket:
    """Return a connection without TLS, over which nothing was sent yet. Within this machine it leads to a coordinator
    of the present user, of root, of the machine's service, or of the user `trusts` (empty: the one that the environment
    names). The timeout is in seconds, and stays. Raises NotTrusted, OSError."""
    until = time.monotonic() + timeout
    # A name in bytes is not given to the codec for international ones, which takes milliseconds to load.
    name: Any = host.encode() if host.isascii() else host
    ours = socket.create_connection((name, port), timeout)
    try:
        if _is_near(ours):
            _check_server(
                ours,
                until,
                f"ws://{f'[{host}]' if ':' in host else host}:{port}",
                trusts or os.environ.get(SETTING, ""),
            )
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        ours.close()
        raise
    return ours


def peer_user(connection: socket.socket) -> int | None:
    """Return the user who made the other end of a connection, if that is on this machine; None: it is on another one.
    Raises UnknownUser if the kernel does not report it, for instance once the other end was closed."""
    try:
        if not _is_near(connection):
            return None
        end = _other_end(connection)
    except OSError as error:
        raise UnknownUser(f"the kernel cannot be asked who connected: {error.strerror}") from None
    if end is None or not end[1]:
        raise UnknownUser("the process that connected is gone, and nobody can say whose it was")
    return end[0]


def _is_near(connection: socket.socket) -> bool:
    """Whether both ends are on this machine."""
    (here, _), (there, _) = _at(connection.getsockname()), _at(connection.getpeername())
    return there in (here, _LOOPBACK6) or (len(there) == _IPV4 and there[0] == _LOOPBACK4)


def _check_server(ours: socket.socket, until: float, url: str, trusts: str) -> None:
    """Raise NotTrusted unless the user who has accepted this connection is trusted. Before it is accepted it has no
    user."""
    pause = _FIRST_PAUSE
    while True:
        spoke = _readable(ours)
        uid, inode = _other_end(ours) or (0, 0)
        if inode:
            break
        if spoke:  # what was accepted before, and belongs to nobody now, is closed
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE, 2 * pause)
    if uid in (0, os.geteuid(), uid_of(trusts)) or uid in service_users(COORDINATOR):
        return
    user = name_of(uid)
    raise NotTrusted(
        f"the coordinator at {url} is another user's",
        why=f"{user} runs it, and would get all that is sent there, and say what runs here",
        hint=f"grid dev up, for a grid of your own; or, if you trust that user: {SETTING}={user}",
    )


def _readable(ours: socket.socket) -> bool:
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    return bool(poll.poll(0))


# --- the kernel's table of connections --------------------------------------------------------------------------------


_End = tuple[int, int]
"""One end of a connection: the user it belongs to, and the inode of its socket; 0: no process has it (it is not
accepted yet, or closed), and the user is not known."""
_At = tuple[bytes, int]
"""An address and a port."""
_LISTEN = 10
_SOCK_DIAG, _ERROR, _REQUEST = 20, 2, 1
_HEADER = struct.Struct("=IHHII")
_ASK = struct.Struct("=BBxxI")
_ID = struct.Struct("!HH16s16s")
_TOLD = struct.Struct("=xBxx48x12xII")
_ANY_STATE = _NO_COOKIE = 0xFFFFFFFF
_IPV4 = 4
_MAPPED = bytes(10) + b"\xff\xff"
"""Before an address of IPv4, where it is one of IPv6."""
_LOOPBACK4, _LOOPBACK6 = 127, bytes(15) + b"\x01"
"""This machine: how its addresses of IPv4 begin, and that of IPv6."""


def _other_end(ours: socket.socket) -> _End | None:
    """Return the other end of this connection, which is on this machine; None: there is none. Raises OSError."""
    near, far = _at(ours.getpeername()), _at(ours.getsockname())
    try:
        return _from_netlink(near, far)
    except OSError:  # no such protocol in this kernel, or we may not use it
        return _from_proc(near, far)


def _at(name: tuple[Any, ...]) -> _At:
    """An address in bytes: of IPv4, also where a socket for IPv6 has it."""
    host = name[0].partition("%")[0]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    return packed.removeprefix(_MAPPED) if len(packed) > _IPV4 else packed, name[1]


def _from_netlink(near: _At, far: _At) -> _End | None:
    """Look up one connection by sock_diag(7), independently of their number."""
    (near_address, near_port), (far_address, far_port) = near, far
    family = socket.AF_INET if len(near_address) == _IPV4 else socket.AF_INET6
    ident = _ID.pack(near_port, far_port, near_address, far_address)
    ident += struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    ask = _ASK.pack(family, socket.IPPROTO_TCP, _ANY_STATE) + ident
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 4) as kernel:  # NETLINK_SOCK_DIAG
        kernel.send(_HEADER.pack(_HEADER.size + len(ask), _SOCK_DIAG, _REQUEST, 1, 0) + ask)
        answer = kernel.recv(1 << 13)
    _, kind, _, _, _ = _HEADER.unpack_from(answer)
    body = answer[_HEADER.size :]
    if kind == _ERROR:
        (code,) = struct.unpack_from("=i", body)
        if code == -errno.ENOENT:
            return None
        raise OSError(-code, os.strerror(-code))
    state, uid, inode = _TOLD.unpack_from(body)
    # Where there is no such connection, it looks for who listens there.
    return (uid, inode) if state != _LISTEN else None


def _from_proc(near: _At, far: _At) -> _End | None:
    """Look up a connection in /proc, which lists all of them; those of IPv4 that a socket for IPv6 has are in the file
    of IPv6."""
    (near_address, near_port), (far_address, far_port) = near, far
    for file, before in (("tcp", b""), ("tcp6", _MAPPED)) if len(near_address) == _IPV4 else (("tcp6", b""),):
        row = f" {_shown(before + near_address, near_port)} {_shown(before + far_address, far_port)} ".encode()
        for line in Path(f"/proc/thread-self/net/{file}").read_bytes().splitlines()[1:]:
            if row in line and int((fields := line.split())[3], 16) != _LISTEN:
                return int(fields[7]), int(fields[9])
    return None


def _shown(address: bytes, port: int) -> str:
    """Return an address as /proc shows it: each four bytes as one number."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
