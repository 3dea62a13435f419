"""The kernel calls that walls need and Python 3.11 does not have. Stdlib only."""

import ctypes
import os
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_with_gil = ctypes.PyDLL(None, use_errno=True)
_with_gil.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_SLAVE = 4096, 16384, 1 << 19
_MNT_DETACH = 2

_MOUNT_SETATTR, _MOUNT_ATTR_RDONLY, _AT_RECURSIVE = 442, 1, 0x8000
_CLONE3, _CLONE_INTO_CGROUP = 435, 1 << 33
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}.get(os.uname().machine, -1)
_JOIN_SESSION_KEYRING = 1
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 36, 38, 47
_AMBIENT_RAISE, _AMBIENT_CLEAR = 2, 4
_CAPABILITY_VERSION = 0x20080522
CAP_CHOWN, CAP_SETGID, CAP_SETUID = 0, 6, 7


def unshare(flags: int) -> None:
    """Leave these namespaces for new ones. Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    encoded = os.fsencode(source), os.fsencode(target), kind.encode() or None
    _check(_libc.mount(*encoded, flags, data.encode() or None), f"mount {target}")


def unmount(path: str) -> None:
    """Detach the mount at `path`; processes using it keep it. Raises OSError."""
    _check(_libc.umount2(os.fsencode(path), _MNT_DETACH), f"umount {path}")


def make_read_only(path: str) -> None:
    """Make the mounts at and below `path` read-only in this mount namespace (Linux 5.12). Raises OSError."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    _check(_libc.syscall(_MOUNT_SETATTR, -1, path.encode(), _AT_RECURSIVE, attributes, len(attributes)), path)


def fork_into(group: int) -> int:
    """os.fork with the child in the control group of version 2 of this directory (Linux 5.7): unlike a move it does not
    wait for the machine's forks. For a single-threaded process. Raises OSError."""
    arguments = struct.pack("=11Q", _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_with_gil.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments))))
    number = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, f"clone3: {os.strerror(number)}")
    return pid


def set_dumpable(allowed: bool) -> None:
    """Whether processes of the same user may read this one's memory and trace it."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(allowed), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def become_subreaper() -> None:
    """Orphaned descendants become children of this process from now on."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def forbid_new_privileges() -> None:
    """Prevent programs that this process or its children execute from gaining privileges (set-user-id, file
    capabilities)."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def leave_session_keyring() -> None:
    """Leave the session keyring, which is that of whoever started us, for a new and empty one. Raises OSError."""
    number = _libc.syscall(_KEYCTL, _JOIN_SESSION_KEYRING, None)
    _check(min(number, 0), "keyctl(KEYCTL_JOIN_SESSION_KEYRING)")


# --- capabilities -----------------------------------------------------------------------------------------------------


def capabilities() -> tuple[int, int, int]:
    """The effective, permitted and inheritable capabilities of this process, as bit sets."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, data), "capget")
    effective, permitted, inheritable = (data[at] | data[at + 3] << 32 for at in range(3))
    return effective, permitted, inheritable


def set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    """Replace all three sets. Raises OSError for what is not permitted."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    for at, bits in enumerate((effective, permitted, inheritable)):
        data[at], data[at + 3] = bits & 0xFFFFFFFF, bits >> 32
    _check(_libc.capset(header, data), "capset")


def clear_ambient() -> None:
    """Prevent programs that this process executes from inheriting capabilities."""
    _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)


def raise_ambient(bits: int) -> None:
    """Programs that this process executes keep these capabilities. Raises OSError."""
    for number in range(64):
        if bits >> number & 1:
            _check(_libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, number, 0, 0), "prctl(PR_CAP_AMBIENT)")


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
