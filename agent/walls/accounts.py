"""The user of a slot: its user id, its entries in the /etc/passwd and /etc/group that its jobs see, and the groups with
access to the node's GPUs. The machine's own files are never changed. Stdlib only."""

import contextlib
import glob
import os
import re
import stat
from collections.abc import Container

from distributed_grid.agent.walls import syscalls

FILES = ("/etc/passwd", "/etc/group")
NSCD = "/var/run/nscd/socket"
SOURCE = b"/grid-agent.accounts"
"""The directory in /run from which the copies of the systemd unit are mounted; other mounts there are not ours."""
NAMELESS = "job"
SHELL = "/bin/sh"
_PLAIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_FIRST_PERSON, _NOBODY = 1000, 65534
_RECORD = 512
_MOST = 16 << 20


def login_name(submitter: str) -> str:
    """The user name in the submitter's slots: the one in the grid, if it is plain and no system account such as root or
    daemon."""
    if _PLAIN.fullmatch(submitter) is None:
        return NAMELESS
    for line in _lines(FILES[0]):
        name, *rest = line.split(b":")
        if name == submitter.encode() and (len(rest) < 2 or not _is_person(rest[1])):
            return NAMELESS
    return submitter


def _is_person(uid: bytes) -> bool:
    return uid.isdigit() and int(uid) >= _FIRST_PERSON and int(uid) != _NOBODY


def _entries(login: str, uid: int, gid: int, home: str) -> tuple[bytes, bytes]:
    """The entries for passwd and group, with `%s` for padding. Raises ValueError for a home that no entry can have."""
    if ":" in home or "\n" in home:
        raise ValueError(f"the home {home!r} cannot be in {FILES[0]}")
    after = os.fsencode(f":{home}:{SHELL}\n").replace(b"%", b"%%")
    return f"{login}:x:{uid}:{gid}:{login}%s".encode() + after, f"{login}:x:{gid}:%s\n".encode()


# --- mounts of a slot -------------------------------------------------------------------------------------------------


def mount_over(login: str, uid: int, gid: int, home: str) -> None:
    """Enter a new mount namespace in which the account files begin with an entry of this user. It receives later mounts
    of the machine. `home` exists. Raises OSError, or ValueError before anything is changed."""
    _entries(login, uid, gid, home)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
    mount_entries(login, uid, gid, home)


def mount_entries(login: str, uid: int, gid: int, home: str) -> None:
    """The same in the present mount namespace of this process."""
    entries = _entries(login, uid, gid, home)
    texts = [entry % b"" + _read(path) for entry, path in zip(entries, FILES, strict=True)]
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", home, "tmpfs", flags, "mode=0755")
    try:
        for path, text in zip(FILES, texts, strict=True):
            _mount_one(f"{home}/{os.path.basename(path)}", text, path, flags)
    finally:
        syscalls.unmount(home)  # the files stay where they were mounted


def _mount_one(source: str, text: bytes, target: str, flags: int) -> None:
    fd = os.open(source, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        if os.write(fd, text) != len(text):
            raise OSError(f"{source}: not all of it was written")
    finally:
        os.close(fd)
    syscalls.mount(source, target, flags=syscalls.MS_BIND)
    syscalls.mount("none", target, flags=syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY | flags)


# --- copies of the service --------------------------------------------------------------------------------------------


class Copies:
    """The service's own copies of the account files. A record is a line of fixed width. It begins as a comment: that
    byte is replaced last, and restored first, so no reader sees a partial record."""

    def __init__(self, fds: tuple[int, ...]) -> None:
        self._fds = fds
        sizes = [os.fstat(fd).st_size for fd in fds]
        self._begin = [(size // _RECORD + 1) * _RECORD for size in sizes]  # so no record is in two pages
        self._users: list[int] = []
        for fd, size, begin in zip(fds, sizes, self._begin, strict=True):
            gap = begin - size
            os.pwrite(fd, b"\n" + b"#" * (gap - 2) + b"\n" * (gap > 1), size)

    @classmethod
    def open(cls) -> "Copies | None":
        """The copies that the unit of this process has mounted; None: it has none."""
        fds: list[int] = []
        try:
            for path in FILES:
                if why_no_copy(path):
                    raise FileNotFoundError(path)
                fds.append(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
            return cls(tuple(fds))
        except OSError:
            for fd in fds:
                os.close(fd)
            return None

    def in_place(self) -> bool:
        """Whether new processes see them."""
        with contextlib.suppress(OSError):
            return all(os.path.samestat(os.stat(path), os.fstat(fd)) for path, fd in zip(FILES, self._fds, strict=True))
        return False

    def enter(self, login: str, uid: int, gid: int, home: str, living: Container[int]) -> None:
        """Write a record for this user, replacing one of a user without `living` processes. Raises OSError or
        ValueError."""
        free = next((at for at, user in enumerate(self._users) if user not in living), len(self._users))
        self._users[free : free + 1] = [uid]
        for fd, begin, entry in zip(self._fds, self._begin, _entries(login, uid, gid, home), strict=True):
            record = entry % (b" " * (_RECORD - len(entry % b"")))
            if len(record) != _RECORD:
                raise ValueError(f"the home {home!r} is too long")
            at = begin + free * _RECORD
            os.pwrite(fd, b"#", at)
            os.pwrite(fd, b"#" + record[1:], at)
            os.pwrite(fd, record[:1], at)


def why_no_copy(path: str) -> str:
    """Why this file is no copy that this process may change. Empty: it is one, a mount from the unit's directory, owned
    by the user of this process, which is not root."""
    try:
        owner = os.stat(path).st_uid
    except OSError as error:
        return f"{path}: {error.strerror}"
    if os.geteuid() == 0 or owner != os.geteuid():
        return f"{path} is the machine's own, and no copy for this service"
    found = b""
    for line in _lines("/proc/self/mountinfo"):
        fields = line.split(b" ")
        if fields[4:5] == [path.encode()]:
            found = fields[3]
    name = os.path.basename(path).encode()
    return "" if found.endswith(b"%s/%s" % (SOURCE, name)) else f"what is mounted on {path} is not of the unit"


def _lines(path: str) -> list[bytes]:
    with contextlib.suppress(OSError):
        return _read(path).split(b"\n")  # and not at a \r, which a mount point may have in its path
    return []


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST)


FIRST_UID, LAST_UID = 1_879_048_192, 1_879_113_727
"""65,536 ids above those of containers, which systemd leaves unused (systemd.io, "Users, Groups, UIDs and GIDs")."""


def is_slot_uid(uid: int) -> bool:
    """Whether this is the id of a slot."""
    return FIRST_UID <= uid <= LAST_UID


def uids_of_slots() -> set[int]:
    """The user ids of slots that some process has as its real one."""
    return {uid for pid in os.listdir("/proc") if pid.isdecimal() and is_slot_uid(uid := uid_of_process(int(pid)))}


def uid_of_process(pid: int) -> int:
    """The real user id of a process; -1 if it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
        return int(text[text.index(b"\nUid:") + 5 :].split(None, 1)[0])
    except (OSError, ValueError):
        return -1


def owner(folder: str) -> int:
    """The owner of a directory; -1 if it is gone."""
    try:
        return os.lstat(folder).st_uid
    except OSError:
        return -1


FOLDER = "/dev"
_GPU_NODES = ("nvidia*", "nvidia-caps/*", "kfd", "dri/renderD*")


def gpu_nodes() -> set[str]:
    """The paths of the device nodes of GPUs."""
    return {path for pattern in _GPU_NODES for path in glob.glob(f"{FOLDER}/{pattern}")}


def gpu_groups() -> tuple[int, ...]:
    """Groups, except root's, that may read and write a GPU's device node which is not open to everyone."""
    found = set()
    for path in gpu_nodes():
        try:
            seen = os.lstat(path)
        except OSError:
            continue
        mode = stat.S_IMODE(seen.st_mode)
        if stat.S_ISCHR(seen.st_mode) and mode & 0o060 == 0o060 and mode & 0o006 != 0o006:
            found.add(seen.st_gid)
    return tuple(sorted(found - {0}))
