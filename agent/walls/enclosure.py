"""Confines the calling process and its children permanently behind the walls of one slot: another user, namespaces,
Landlock, limits. Stdlib only."""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from distributed_grid.agent.walls import accounts, reserved, syscalls
from distributed_grid.agent.walls.syscalls import forbid_new_privileges

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on all machines
_ASK_VERSION = 1
_PATH_BENEATH = 1

_LEAST_VERSION = 2  # an older one forbids to rename from one directory to another
_WRITE_FILE, _READ_FILE = 1 << 1, 1 << 2
_REMOVE_AND_MAKE = 0x1FF0  # all rights to remove and make entries
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNAL = 1 << 0, 1 << 1
_SCOPES_FROM = 6  # the first version with scopes


def why_no_landlock(state_dir: str) -> str:
    """Why jobs that run as our user cannot be kept out of this directory; empty if they can."""
    if _landlock_version() < _LEAST_VERSION:
        return "this kernel has no Landlock (Linux 5.19)"
    for above in _directories_above(os.path.realpath(state_dir)):
        if os.access(above, os.W_OK, effective_ids=True):
            return f"the agent's user can write in {above}, above it"
        if os.path.exists(above) and not os.access(above, os.R_OK, effective_ids=True):
            return f"the agent's user cannot list {above}, above it, and so not allow what lies there"
    return ""


def landlock_rules(state_dir: str, allowed: Iterable[str], readable: Iterable[str] = ()) -> int:
    """A ruleset descriptor, to be closed: no access to the state directory except these paths, and no signals to
    processes outside. Raises OSError.

    Landlock only lists what is allowed: here, entry by entry, everything beside the path to the state directory.
    Entries that are made later are not allowed, so it is used only where our user cannot make any
    (`why_no_landlock`)."""
    version = _landlock_version()
    files = _WRITE_FILE | _READ_FILE | (_TRUNCATE if version >= 3 else 0)
    handled = files | _REMOVE_AND_MAKE | _REFER
    attributes = struct.pack("=QQQ", handled, 0, _SCOPE_SIGNAL)[: 24 if version >= _SCOPES_FROM else 8]
    made = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in [*_beside(os.path.realpath(state_dir)), *map(os.path.realpath, allowed)]:
            _allow(made, path, handled, files)
        for path in map(os.path.realpath, readable):
            _allow(made, path, _READ_FILE, _READ_FILE)
    except BaseException:
        os.close(made)
        raise
    return made


def _allow(made: int, path: str, in_directory: int, of_file: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # gone meanwhile
        return
    try:
        allowed = in_directory if os.path.isdir(path) else of_file
        _call(_ADD_RULE, made, _PATH_BENEATH, struct.pack("=Qi", allowed, fd), 0)
    finally:
        os.close(fd)


def isolate() -> None:
    """Keep this process and its children from signalling others and from connecting to their abstract sockets, such as
    those of an X server or a session bus. No effect on kernels without scopes. Raises OSError."""
    if _landlock_version() < _SCOPES_FROM:
        return
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_SIGNAL | _SCOPE_ABSTRACT_SOCKETS)
    made = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        obey_landlock(made)
    finally:
        os.close(made)


def obey_landlock(made: int) -> None:
    """Apply these rules to this process and its children. Raises OSError."""
    forbid_new_privileges()
    _call(_RESTRICT_SELF, made, 0)


def _landlock_version() -> int:
    return int(_libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION))


def _call(number: int, *arguments: object) -> int:
    answer = int(_libc.syscall(number, *(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def _directories_above(path: str) -> list[str]:
    """The directories above a path, from the root down."""
    above = os.path.dirname(path)
    return [above] if above == path or above == "/" else [*_directories_above(above), above]


def _beside(path: str) -> Iterator[str]:
    """Yield all entries of the directories above a path, except the path itself. Links are left out: their targets
    count."""
    for above in _directories_above(path):
        with os.scandir(above) as entries:
            for entry in entries:
                if not entry.is_symlink() and not (path + "/").startswith(entry.path + "/"):
                    yield entry.path


USER, NAMESPACE, LANDLOCK, NONE = "user", "namespace", "landlock", "none"
_CGROUPS = "/sys/fs/cgroup"
_TRIES = 20
OWN_TMP = {"/tmp": ".tmp", "/var/tmp": ".vartmp"}  # noqa: S108 - these are hidden
"""By path, the name in a private slot's directory of the directory that replaces it."""
_KINDS = ("user", "mnt", "pid", "ipc", "net", "uts", "cgroup", "time")
_NAMESPACES = 256
"""Maximum number of namespaces of each kind in a slot; a user may have ten thousands."""
_LOCKED = {os.ST_NOSUID: 2, os.ST_NODEV: 4, os.ST_NOEXEC: 8, os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048}
_ST_RELATIME, _MS_RELATIME = 4096, 1 << 21


class Slot(NamedTuple):
    """The walls that the supervisor orders. `folder` is the directory of the slot's jobs, `state` that of the agent.

    `uid`, `gid`, `groups`: its processes' user; `own`: only this slot uses that uid. `private`: /tmp, /dev/shm
    and terminals are not the machine's, and what only the agent's user may use is hidden (only behind `namespace`).
    `login` is the user name where one of these is set. `processes` (0: unlimited), `nice` and `oom` limit each job;
    `idle`: it gets only what others on its cores leave (SCHED_IDLE). `cgroup_procs` are the `cgroup.procs` files of the
    slot's control groups: a process enters by writing `0` there."""

    name: str
    walls: str
    folder: str
    state: str
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    own: bool = False
    login: str = ""
    private: bool = False
    processes: int = 0
    nice: int = 0
    oom: str = ""
    cgroup_procs: tuple[str, ...] = ()
    idle: bool = False

    def message(self) -> dict[str, Any]:
        """The slot as a message."""
        return self._asdict()


def slot(message: dict[str, Any]) -> Slot:
    """The slot of a message."""
    return Slot(**{**message, "groups": tuple(message["groups"]), "cgroup_procs": tuple(message["cgroup_procs"])})


def enter(wanted: Slot) -> None:
    """Become the slot's user, in its namespaces. The caller forks next. Raises OSError."""
    # The files below /proc/self belong to root as long as we are not dumpable. There is nothing secret in here.
    syscalls.set_dumpable(True)
    os.setsid()
    if wanted.oom:
        _write("/proc/self/oom_score_adj", wanted.oom)
    if wanted.nice:
        _lower_priority(wanted.nice)
    if wanted.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if wanted.walls == USER:
        if wanted.own:
            _limit_processes(wanted.processes)
        os.setgroups(wanted.groups)
        os.setresgid(wanted.gid, wanted.gid, wanted.gid)
        os.setresuid(wanted.uid, wanted.uid, wanted.uid)
        os.umask(0o022)
        drop_capabilities()
    elif wanted.walls == NAMESPACE:
        _unshare()
        # Not before: a limit that holds when a user namespace is made holds for all processes of that user outside.
        _limit_processes(wanted.processes)
        _mount(wanted)
    _leave_keyring(wanted)


def settle(wanted: Slot) -> None:
    """The second step, in the child. Raises OSError."""
    syscalls.set_dumpable(False)
    syscalls.become_subreaper()
    if wanted.walls == NAMESPACE:
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        _limit_namespaces()
        drop_capabilities()
    os.chdir("/")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would put all that a job knew on the owner's disk
    if wanted.own or wanted.walls == NAMESPACE:
        syscalls.forbid_new_privileges()
        isolate()
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError):  # signals reserved by the C library
            signal.signal(signum, signal.SIG_IGN)


def _leave_keyring(wanted: Slot) -> None:
    """Join a session keyring that no other slot has, with the user of the slot as its owner. A kernel without keys and
    a filter that refuses all calls about them do no harm; a user who has no more keys left does, if others are to be
    kept out."""
    try:
        syscalls.leave_session_keyring()
    except OSError as error:
        if wanted.walls in (USER, NAMESPACE) and error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def _limit_processes(most: int) -> None:
    """Limit the processes and threads of this user in this user namespace; the spawner counts, too."""
    if most:
        resource.setrlimit(resource.RLIMIT_NPROC, (most + 1, most + 1))


def _limit_namespaces() -> None:
    """Limit the namespaces of a job. They count for the agent's user outside, too: leave some for other slots."""
    for kind in _KINDS:
        with contextlib.suppress(OSError):  # a kernel that does not count these
            _write(f"/proc/sys/user/max_{kind}_namespaces", str(_NAMESPACES))


def _lower_priority(nice: int) -> None:
    """Lower the priority of the session too: with autogroups the kernel shares time between sessions, and niceness
    counts only within one (sched(7)). A non-root user may do so ten times a second per machine."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    for _ in range(_TRIES):
        try:
            _write("/proc/self/autogroup", str(nice))
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return  # this kernel has none
            time.sleep(0.1)


def try_namespaces() -> None:
    """Make a slot's namespaces in this process, with its own /proc. Raises OSError."""
    syscalls.set_dumpable(True)
    _unshare()
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
    syscalls.mount("tmpfs", "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV)  # noqa: S108 - hidden, not used
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
        except OSError as error:
            number = error.errno or errno.EINVAL
        finally:
            os._exit(number)
    if number := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise OSError(number, f"mount /proc: {os.strerror(number)}")


def drop_capabilities() -> None:
    """Drop all capabilities, for children too."""
    syscalls.clear_ambient()
    syscalls.set_capabilities(0, 0, 0)


# --- namespaces -------------------------------------------------------------------------------------------------------


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWPID
    syscalls.unshare(flags)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _mount(wanted: Slot) -> None:
    """Hide the agent's state, and with `private` what only the agent's user may use."""
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
    hidden = reserved.directories() if wanted.private else []  # before the slot's accounts, where the home is another
    if wanted.login:
        with contextlib.suppress(OSError, ValueError):  # then its entry names a home where nothing is
            accounts.mount_entries(wanted.login, wanted.uid, wanted.gid, wanted.folder)
    recalls = f"{wanted.state}/recalls"
    kept = {path: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for path in (wanted.folder, recalls)}
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    if wanted.private:
        own = {path: _own_tmp(wanted, path) for path in OWN_TMP}
        for path, fd in own.items():  # the slot's folder may be in one of these: from here on it is hidden there
            syscalls.mount(f"/proc/self/fd/{fd}", path, flags=syscalls.MS_BIND)
            os.close(fd)
        syscalls.mount("tmpfs", "/dev/shm", "tmpfs", flags, "mode=1777")  # noqa: S108
    for path in [*hidden, wanted.state]:
        reserved.hide(path)
    for path, fd in kept.items():
        os.makedirs(path, mode=0o755, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{fd}", path, flags=syscalls.MS_BIND)
        os.close(fd)
    with contextlib.suppress(OSError):  # in a private /tmp it is no mount, and belongs to nobody else
        syscalls.mount("none", wanted.state, flags=flags | syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    found = os.statvfs(recalls).f_flag
    locked = sum(flag for seen, flag in _LOCKED.items() if found & seen) | (_MS_RELATIME if found & _ST_RELATIME else 0)
    read_only = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
    syscalls.mount("none", recalls, flags=read_only | locked)
    if os.path.isdir(_CGROUPS):  # what is delegated to the agent's user could be changed by its jobs
        try:
            syscalls.make_read_only(_CGROUPS)
        except OSError:
            syscalls.mount("tmpfs", _CGROUPS, "tmpfs", flags | syscalls.MS_RDONLY)
    if wanted.private:
        reserved.cover()
    os.chdir("/")


def _own_tmp(wanted: Slot, path: str) -> int:
    """A descriptor of the slot's own directory that replaces this path."""
    own = f"{wanted.folder}/{OWN_TMP[path]}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(own, 0o700)
    return os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
