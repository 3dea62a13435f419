"""What the agent's user may access and not everybody: it is put out of reach of other users' jobs in namespaces,
because those have that user's id and groups. Stdlib only."""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator

from distributed_grid.agent.walls import accounts, syscalls

_SOCKETS = "/proc/net/unix"
_DEVICES = "/dev"
_FILESYSTEMS = {"/dev/pts": ("devpts", "newinstance,ptmxmode=0666,mode=0620"), "/dev/mqueue": ("mqueue", "")}
"""Filesystems of which a namespace may have its own: with terminals, and with POSIX queues."""
HIDDEN_TMPFS = "mode=0755,size=1m,nr_inodes=4096"
_USES = (os.R_OK, os.W_OK)
"""The same bits as those of everybody in a mode."""
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


def directories() -> list[str]:
    """The user's home, and directory of session sockets. To be asked for while the machine's own accounts are seen."""
    found = [f"/run/user/{os.geteuid()}"]
    with contextlib.suppress(KeyError, OSError):
        home = os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir)
        if home != "/" and os.stat(home).st_uid == os.geteuid():  # a service account may have / or none
            found.append(home)
    return found


def hide(path: str) -> None:
    """Mount an empty directory over this one, if there is one. Raises OSError."""
    if os.path.isdir(path):
        syscalls.mount("tmpfs", path, "tmpfs", _FLAGS, HIDDEN_TMPFS)


def cover() -> None:
    """In this mount namespace: terminals and queues of its own, and nothing at the sockets and devices that are there
    now and only our user or groups may use, such as those of a container engine or of a disk. Raises OSError."""
    for path, (kind, options) in _FILESYSTEMS.items():
        try:
            if os.path.isdir(path):
                syscalls.mount(kind, path, kind, syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)
        except OSError:
            hide(path)
    for path in {*_sockets(), *_devices()}:
        with contextlib.suppress(FileNotFoundError):
            _cover_one(path)


def _cover_one(path: str) -> None:
    """Mount the null device over a socket or device. Somebody's job may have made it, and put a link there since, to
    a file that is to be seen: so what is covered is what was looked at, and no link is followed."""
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:  # since it was looked at: nobody here gets to it now
        return
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            syscalls.mount(os.devnull, f"/proc/self/fd/{fd}", flags=syscalls.MS_BIND)
    finally:
        os.close(fd)


def _sockets() -> Iterator[str]:
    with open(_SOCKETS, "rb") as file:
        lines = file.read().split(b"\n")
    # Of a socket there is a line for each connection.
    for path in {os.fsdecode(line[line.find(b" /") + 1 :]) for line in lines if b" /" in line}:
        with contextlib.suppress(OSError, ValueError):
            mode = os.lstat(path).st_mode
            if stat.S_ISSOCK(mode) and os.access(path, os.W_OK) and not (mode & 0o002 and _passable(path)):
                yield path


def _passable(path: str) -> bool:
    """Whether everybody may enter the directories above."""
    while (path := os.path.dirname(path)) != "/":
        if not os.stat(path).st_mode & 0o001:
            return False
    return True


def _devices() -> Iterator[str]:
    gpus = accounts.gpu_nodes()
    for here, folders, names in os.walk(_DEVICES):
        folders[:] = [name for name in folders if os.path.join(here, name) not in _FILESYSTEMS]
        for path in (os.path.join(here, name) for name in names):
            with contextlib.suppress(OSError):
                mode = os.lstat(path).st_mode
                device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
                if device and path not in gpus and any(os.access(path, use) and not mode & use for use in _USES):
                    yield path
