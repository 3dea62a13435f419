"""The fork server: a small process that makes spawners, and the only one of the node that may become another user.
Stdlib only.

The supervisor forks it at its own start, and sends requests over a channel: `make` a spawner of a slot, fork a `files`
child that answers one request with the rights of a slot, or `act` as a slot's user (signals and affinity, which the
supervisor may not set for another user). A spawner's parent exits at once, so it becomes a child of the supervisor, the
nearest subreaper. The fork server can therefore be replaced at any time."""

import contextlib
import errno
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.walls import accounts, enclosure, files_socket, syscalls, wire
from distributed_grid.agent.walls.enclosure import LANDLOCK, Slot
from distributed_grid.agent.walls.leftovers import DISK, MEMORY, Leftovers
from distributed_grid.agent.walls.spawner import Spawner, cause_of

PRIVILEGES = 1 << syscalls.CAP_SETUID | 1 << syscalls.CAP_SETGID | 1 << syscalls.CAP_CHOWN
"""The capabilities that changing a folder's owner and becoming that user need."""


def privileged() -> bool:
    """Whether this process may hand jobs to other users."""
    permitted = syscalls.capabilities()[1]
    return permitted & PRIVILEGES == PRIVILEGES


def give_up_privileges() -> None:
    """Drop all capabilities for good: no other fork server can be started then. Root stays root. Threads that exist
    keep theirs, so call this before there are any."""
    if os.geteuid() != 0:
        enclosure.drop_capabilities()


def pass_on_privileges() -> None:
    """Give programs that this process executes the capabilities of a fork server, if we have them."""
    permitted = syscalls.capabilities()[1] & PRIVILEGES
    if os.geteuid() != 0 and permitted == PRIVILEGES:
        syscalls.set_capabilities(permitted, permitted, permitted)
        syscalls.raise_ambient(permitted)


class ForkServerGone(Exception):
    """The fork server is gone, and this non-root process has dropped the capabilities for another one."""


class ForkServer:
    """The supervisor's side. `start` forks; the next request restarts a dead server, and raises ForkServerGone if that
    is impossible."""

    def __init__(self) -> None:
        self.pid = 0
        self.only = os.geteuid() != 0 and privileged()
        """Whether no other server can be started after this one."""
        self._channel: socket.socket | None = None
        self.start()

    def start(self) -> None:
        """Fork a new server. Raises ForkServerGone."""
        if self.only and self.pid:
            raise ForkServerGone
        if self._channel is not None:
            self._channel.close()
        ours, theirs = wire.pair()
        self.pid = os.fork()
        if self.pid == 0:
            _serve(theirs)
        theirs.close()
        self._channel = ours

    def make(self, slot: Slot, note: int) -> socket.socket:
        """The supervisor's end of a new spawner's channel. Its first message is `made` with its pid, or `failed`. It
        appends to `note` how the main process of its last job ended. Raises wire.Closed if there is no fork server."""
        ours, theirs = wire.pair()
        try:
            self._ask({"op": "make", "slot": slot.message()}, (theirs.fileno(), note))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours

    def serve_files(self, slot: Slot, peer: socket.socket) -> None:
        """Fork a child with the slot's rights that answers `peer`. Raises wire.Closed."""
        self._ask({"op": "files", "slot": slot.message()}, (peer.fileno(),))

    def act(self, uid: int, gid: int, orders: list[list[Any]]) -> None:
        """Have this user perform `["signal", pid, start, number]`, `["cores", tid, cores]`, `["nice", tid, nice]`,
        `["session-nice", pid, nice]`, `["oom", pid, start, score]`, `["end"]` (kill all its processes) or `["clear"]`
        (remove its leftovers outside of its directories). There is no answer; the caller checks and repeats."""
        with contextlib.suppress(wire.Closed):
            self._ask({"op": "act", "uid": uid, "gid": gid, "orders": orders}, ())

    def close(self) -> None:
        """Let the fork server exit."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _ask(self, message: wire.Message, fds: tuple[int, ...]) -> None:
        if self._channel is not None:
            with contextlib.suppress(wire.Closed):
                wire.send(self._channel, message, fds)
                return
        self.start()
        assert self._channel is not None  # noqa: S101
        wire.send(self._channel, message, fds)


# --- the process itself -----------------------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> NoReturn:
    """Run the fork server until the channel ends."""
    try:
        gc.freeze()  # else garbage of our parent would close descriptors whose numbers are in use again
        _close_others(channel.fileno())
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(signum, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
        channel.setblocking(True)
        os.chdir("/")
        if os.geteuid() != 0:
            permitted = syscalls.capabilities()[1] & PRIVILEGES
            syscalls.set_capabilities(permitted, permitted, 0)
        while True:
            message, fds = wire.receive(channel)
            cgroup_procs = message["slot"]["cgroup_procs"] if message["op"] == "make" else ()
            try:
                _fork(lambda message=message, fds=fds: _do(message, fds), fds, cgroup_procs)  # type: ignore[misc]
            except OSError as error:  # the machine, or the service, may have no more processes now
                _tell_not_forked(message, fds, error)
            for fd in fds:
                os.close(fd)
    except (wire.Closed, OSError):
        pass
    finally:
        os._exit(0)


def _close_others(*kept: int) -> None:
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _fork(task: Callable[[], None], keep: list[int], cgroup_procs: Collection[str]) -> int:
    """Fork a child that runs this task in these control groups, with these descriptors only."""
    pid, left = _fork_into(cgroup_procs)
    if pid == 0:
        try:
            for procs_file in left:
                _enter_group(procs_file)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _close_others(*keep)
            task()
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(2, f"fork server: {type(error).__name__} {error}\n".encode(errors="replace"))
        finally:
            os._exit(0)
    return pid


def _fork_into(cgroup_procs: Collection[str]) -> tuple[int, list[str]]:
    """Fork, if possible into a group of version 2; returns the files of groups still to be entered."""
    for procs_file in cgroup_procs:
        if os.path.basename(procs_file) == "cgroup.procs":
            with contextlib.suppress(OSError):
                group = os.open(os.path.dirname(procs_file), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    return syscalls.fork_into(group), [one for one in cgroup_procs if one != procs_file]
                finally:
                    os.close(group)
    return os.fork(), [*cgroup_procs]


def _enter_group(procs_file: str) -> None:
    """Enter a control group. Failures are ignored: the supervisor checks it (agent/cgroups/groups.py)."""
    with contextlib.suppress(OSError):
        fd = os.open(procs_file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)


def _check_user(uid: int, gid: int, groups: Collection[int] = ()) -> None:
    """Refuse all users and groups but those of slots and GPUs, for a service whose capabilities are for users of slots
    only. Raises PermissionError."""
    if os.geteuid() == 0 or (uid, gid) == (os.geteuid(), os.getegid()):
        return
    if not accounts.is_slot_uid(uid):
        raise PermissionError(errno.EPERM, f"user {uid} is none of a slot")
    if gid != uid or (groups and not {*groups} <= {*accounts.gpu_groups()}):
        raise PermissionError(errno.EPERM, f"groups {sorted({gid, *groups} - {uid})} are not for user {uid} of a slot")


def _do(message: wire.Message, fds: list[int]) -> None:
    if message["op"] == "act":
        _act(message["uid"], message["gid"], message["orders"])
        return
    slot = enclosure.slot(message["slot"])
    peer = socket.socket(fileno=fds[0])
    try:
        _check_user(slot.uid, slot.gid, slot.groups)
        try:
            _make_folder(slot)
        except OSError as error:
            if message["op"] == "make":
                _tell_failed(peer, error, cause_of(error, "spawn-failed"))
            return
        if slot.own and message["op"] == "make" and os.geteuid() == 0:
            with contextlib.suppress(OSError, ValueError):  # then it has no name, and the node's facts say why
                accounts.mount_over(slot.login, slot.uid, slot.gid, slot.folder)
        enclosure.enter(slot)
        ready, begin = os.pipe()
        pid = os.fork()
    except OSError as error:
        if message["op"] == "make":
            _tell_failed(peer, error)
        return
    if pid == 0:
        os.close(begin)
        os.read(ready, 1)
        os.close(ready)
        _begin(message["op"], slot, peer, *fds[1:])
    if message["op"] == "make":
        wire.send(peer, {"op": "made", "pid": pid})
    # The child waits for our end: its messages come after this one.
    if message["op"] == "files":
        # Else it became a child of the supervisor, which would take it for an orphan of a killed spawner.
        os.close(ready)
        peer.close()
        os.close(begin)
        os.waitpid(pid, 0)


def _begin(op: str, slot: Slot, peer: socket.socket, note: int = -1) -> NoReturn:
    try:
        enclosure.settle(slot)
        if op == "make":
            wire.send(peer, {"op": "ready"})
            Spawner(slot, peer, note).run()
        else:
            if slot.walls == LANDLOCK:
                enclosure.obey_landlock(enclosure.landlock_rules(slot.state, (slot.folder,)))
            files_socket.serve(peer)
    except OSError as error:
        if op == "make":
            _tell_failed(peer, error)
    except wire.Closed:
        pass
    finally:
        os._exit(0)


def _tell_failed(peer: socket.socket, error: OSError, cause: str = "spawn-failed") -> None:
    with contextlib.suppress(wire.Closed):
        wire.send(peer, {"op": "failed", "text": error.strerror or str(error), "cause": cause})


def _tell_not_forked(message: wire.Message, fds: list[int], error: OSError) -> None:
    if message["op"] == "make":
        with socket.socket(fileno=os.dup(fds[0])) as peer:
            _tell_failed(peer, OSError(error.errno, f"no process could be forked: {error.strerror}"))


def _make_folder(slot: Slot) -> None:
    """Make the slot's own directory, owned by its user."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(slot.folder, 0o700)
        if slot.uid != os.geteuid() or slot.gid != os.getegid():
            os.chown(slot.folder, slot.uid, slot.gid, follow_symlinks=False)


def _act(uid: int, gid: int, orders: list[list[Any]]) -> None:
    if uid == os.geteuid():
        return  # `end` would kill processes that are no job's
    _check_user(uid, gid)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    enclosure.drop_capabilities()
    for what, *rest in orders:
        with contextlib.suppress(OSError):
            if what == "signal":
                procs.send(*rest)
            elif what == "cores":
                os.sched_setaffinity(*rest)
            elif what == "nice":
                procs.set_niceness(*rest)
            elif what == "session-nice":
                procs.set_session_niceness(*rest)
            elif what == "oom":
                procs.set_oom_score(*rest)
            elif what == "end" and accounts.is_slot_uid(uid):
                os.kill(-1, signal.SIGKILL)
            elif what == "clear" and accounts.is_slot_uid(uid):
                Leftovers(uid).clear((*MEMORY, *DISK))
