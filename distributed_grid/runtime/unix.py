"""Unix sockets in directories of any length, and the process at the other end, held by a pidfd while it is checked.
Stdlib only: the supervisor uses it."""

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

AnyPath = str | os.PathLike[str]


def connected(path: AnyPath, timeout: float) -> socket.socket:
    """Return a connection to the listener at a path. The timeout is in seconds, and stays; 0: it does not block. Raises
    OSError."""
    ours = socket.socket(socket.AF_UNIX)
    try:
        ours.settimeout(timeout)
        with _short(path) as name:
            ours.connect(name)
    except BaseException:
        ours.close()
        raise
    return ours


def bound(path: AnyPath) -> socket.socket:
    """Return a socket bound to a path, for this user alone. Raises OSError, also if the path exists."""
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
def _short(path: AnyPath) -> Iterator[str]:
    parent, name = os.path.split(os.fspath(path))
    folder = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


AGENT, SUPERVISOR = "grid-agent", "grid-supervisor"
"""The names of these processes (at most 15 bytes). A process can change its own name only, so no job can change these,
and everybody may read them, whichever user's they are."""
_SO_PEERPIDFD = 77
_PR_SET_NAME = 15
_TICKS = os.sysconf("SC_CLK_TCK")
_DEPTH = 1024
"""Ancestors that a peer may have."""
_TRIES = 20
"""Ancestors may end while they are looked at; then they are looked at again."""
_GONE = "the process that connected is gone, and cannot be identified"


class PeerRefused(Exception):
    """A peer is not let in; the text says why. `job`: because it is a job's."""

    def __init__(self, why: str, job: bool = False) -> None:
        super().__init__(why)
        self.job = job


class Peer(NamedTuple):
    """The process that connected, and the user it was then."""

    pid: int
    uid: int


class _Seen(NamedTuple):
    name: str
    parent: int
    start: int


class _Changed(Exception):
    """Something ended while it was looked at."""


def name_process(name: str) -> None:
    """Give this process a name that other processes can recognise it by."""
    import ctypes  # takes 2 ms, and commands only connect

    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def process_name(pid: int) -> str:
    """Return a process's name; empty if there is none, or /proc hides it."""
    seen = _stat(pid)
    return seen.name if seen is not None else ""


boot_clock = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since boot, going on while the machine sleeps, as start times of processes are counted."""


def credentials(connection: socket.socket) -> Peer:
    """Return the process that connected, without checking whether it still exists."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


def judge(
    connection: socket.socket,
    owned: str = "",
    roots: Collection[int] = (),
    accepted: float | None = None,
    is_job: Callable[[int], bool] = lambda pid: False,
) -> Peer:
    """The peer of a connection that was accepted, if it is no job. Raises PeerRefused.

    `owned`: what only our own user and root may connect to, such as "this agent"; empty: every user may. `roots`:
    processes whose descendants are jobs, besides those of every agent and supervisor that is not above us.
    `accepted`: when the connection was, by `boot_clock`; by default now. `is_job`: what else is known of the peer and
    of each of its ancestors, up to the first one that is above us, too.
    """
    try:
        peer = credentials(connection)
    except OSError:
        raise PeerRefused(_GONE) from None
    if peer.pid <= 0:
        raise PeerRefused("it is a process of another pid namespace, which cannot be judged from here")
    fd = _hold(connection, peer.pid, boot_clock() if accepted is None else accepted)
    try:
        _check_alive(fd)
        if owned and peer.uid not in (0, os.geteuid()):
            raise PeerRefused(f"user {peer.uid} does not run {owned}")
        if _in_another_namespace(peer.pid):
            raise PeerRefused("it is in another user namespace, as jobs and containers are")
        if _is_of_job(peer.pid, roots, is_job):
            raise PeerRefused("it is a job's process, or was started by one", job=True)
        _check_alive(fd)  # so all that was read was about this process
    finally:
        os.close(fd)
    return peer


def lineage(pid: int) -> list[tuple[int, str]]:
    """The ancestors of a process with their names, its parent first, as far up as we can see: to the first process of
    our pid namespace, or to one that /proc hides from us. Raises PeerRefused where they cannot be told."""
    for _ in range(_TRIES):
        with contextlib.suppress(_Changed):
            return list(_ancestors(pid))
    raise PeerRefused("the processes that started it end too fast to be looked at")


# --- one process ------------------------------------------------------------------------------------------------------


def _hold(connection: socket.socket, pid: int, accepted: float) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise PeerRefused(_GONE) from None
    # A kernel before 6.5. What connected began before it connected, and so before we accepted.
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        raise PeerRefused(_GONE) from None
    seen = _stat(pid)
    if seen is not None and seen.start > accepted * _TICKS:
        os.close(fd)
        raise PeerRefused(_GONE)
    return fd


def _check_alive(fd: int) -> None:
    """A pidfd is readable once its process has ended, reaped or not."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if poll.poll(0):
        raise PeerRefused(_GONE)


def _in_another_namespace(pid: int) -> bool:
    try:
        ours, theirs = os.stat("/proc/self/ns/user"), os.stat(f"/proc/{pid}/ns/user")
        return (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino)
    except PermissionError:  # another user's; only root can make a namespace that maps users as its parent does
        return read(f"/proc/{pid}/uid_map") != read("/proc/self/uid_map")
    except FileNotFoundError:  # hidden from us, gone (which is looked at later), or a kernel without user namespaces
        return False
    except OSError:
        raise PeerRefused(_GONE) from None


def _stat(pid: int) -> _Seen | None:
    text = read(f"/proc/{pid}/stat").decode(errors="replace")
    if not text:
        return None
    begin, end = text.index("("), text.rindex(")")  # the name may hold spaces and parentheses
    fields = text[end + 2 :].split()
    return _Seen(text[begin + 1 : end], int(fields[1]), int(fields[19]))


def read(path: str) -> bytes:
    """Return the contents of a file, such as one of /proc; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # the process went away while it was read
        return b""
    finally:
        os.close(fd)


# --- its ancestors ----------------------------------------------------------------------------------------------------


def _ancestors(pid: int) -> Iterator[tuple[int, str]]:
    child, seen = pid, _stat(pid)
    for _ in range(_DEPTH):
        if seen is None or seen.parent == 0:
            if seen is None and not _exists(child):
                raise _Changed
            return
        parent = _stat(seen.parent)
        # Still its parent: so it has not ended, and what was read was about it.
        if _stat(child) != seen:
            raise _Changed
        yield seen.parent, parent.name if parent is not None else ""
        child, seen = seen.parent, parent
    raise PeerRefused(f"it has more than {_DEPTH} ancestors")


def _exists(pid: int) -> bool:
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
        return False
    return True


def _is_of_job(pid: int, roots: Collection[int], is_job: Callable[[int], bool]) -> bool:
    if is_job(pid):
        return True
    above_us = {above for above, _ in lineage(os.getpid())}
    for above, name in lineage(pid):
        if above in roots:
            return True
        if above in above_us:  # we are below it as well, be it what it may
            return False
        if name in (AGENT, SUPERVISOR) or is_job(above):
            return True
    return False
