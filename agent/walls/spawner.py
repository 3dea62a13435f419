"""A spawner: the process behind the walls of one slot that makes the processes of its jobs, one job at a time, and
removes their leftovers outside of their own directory. Stdlib only."""

import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import time
from contextlib import suppress
from typing import Any, NoReturn

from distributed_grid.agent.supervisor import procs
from distributed_grid.agent.walls import enclosure, pipes, wire
from distributed_grid.agent.walls.enclosure import LANDLOCK, NAMESPACE, Slot
from distributed_grid.agent.walls.leftovers import DISK, MEMORY, Leftovers

_FOLDERS = "grid-r-"  # how the names of raylets' folders begin (agent/launch/raylet.py)
_NOTE_LINE = 255
_PATH = "/usr/local/bin:/usr/bin:/bin"
_SETTLED = 1.0
"""Time without a job after which leftovers on disks are removed, too (s)."""
_INPUT_EVERY = 0.2  # interval at which an orphaned spawner checks whether the input of its job has ended (s)
_PATIENCE = 0.002
"""Seconds for which the start of a job that is expected to be short waits for its end, to be told with it."""
_FOLDER_MODE = 0o700
_CORE_DUMPED = 0x80  # in a wait status
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Reset to their defaults for each job."""


_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


def cause_of(error: OSError, other: str) -> str:
    """The cause of a start that failed by this error: the node's disk where a file could not be made, else `other`."""
    return "disk-failed" if error.errno in _DISK_ERRORS and error.filename is not None else other


class CannotStart(Exception):
    """No process was made: the outcome's cause, and why as text."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text


class Spawner:
    """Serves one channel to the supervisor until that ends and no job is left. The file `note` records that its last
    job begins, its main process and how that ended, for the next supervisor: what was not reported yet is not lost with
    this one."""

    def __init__(self, slot: Slot, channel: socket.socket, note: int) -> None:
        self._slot = slot
        self._note = note
        self._note_from = -1  # behind what the supervisor has written of us before our first order
        self._channel: socket.socket | None = channel
        self._all_cores = os.sched_getaffinity(0)
        self._main = 0
        self._job = self._last = ""
        """The job that is here now, and the last one that was begun."""
        self._status: int | None = None
        """How the main process of its last job ended."""
        self._begin = 0, 0, 0
        """The main process of its last job, and the time before and after it was made (clock ticks since boot)."""
        self._untold = False
        """Whether its start is still to be told."""
        self._input = -1
        """The write end of its standard input: held open, so that the input does not end when its writers die."""
        self._ended_input = -1
        """That pipe, opened for neither reading nor writing, after the input has ended."""
        self._cpu, self._peak = 0.0, 0
        # Where no process but those of this slot's jobs has this user id, or is in these namespaces.
        self._leftovers = Leftovers(os.geteuid()) if slot.own or slot.private else None
        self._prepared = "", ""
        """The job in whose directory we are already, and its program."""
        self._untidy, self._tidied = False, 0.0
        self._begun = _limits()
        channel.setblocking(False)
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        self._woken, self._wake = woken, wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Run until the supervisor and the job are gone."""
        poll = select.poll()
        if self._channel is not None:
            poll.register(self._channel, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while self._channel is not None or self._job:
            orphaned = self._channel is None and max(self._input, self._ended_input) >= 0
            pause = _INPUT_EVERY if orphaned else _SETTLED if self._untidy and not self._job else None
            if waited := self._untold:
                pause = _PATIENCE
            found = poll.poll(None if pause is None else pause * 1000)
            if orphaned:
                self._poll_input()
            if not found and not self._job:
                self._tidy(DISK)
            for fd, _ in found:
                if fd == self._woken.fileno():
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                elif self._channel is not None and not self._handle_next(self._channel):
                    poll.unregister(self._channel)
                    self._channel.close()
                    self._channel = None
                    self._write_note()  # also what a supervisor was told that was killed before it wrote that
            self._reap()
            if waited and self._untold:
                self._tell_start()
        self._tidy(DISK)

    def _tidy(self, folders: tuple[str, ...]) -> None:
        """Remove leftovers of jobs outside of their directories: in memory after each job, on disk at most once a
        second. A raylet's folder in /tmp exists before its job."""
        now = time.monotonic()
        if folders is MEMORY and now >= self._tidied + _SETTLED:
            folders += DISK
        if self._leftovers is not None:
            self._leftovers.clear(folders, spare=_FOLDERS if self._channel is not None else "")
        self._untidy = folders is MEMORY
        if not self._untidy:
            self._tidied = now

    def _handle_next(self, channel: socket.socket) -> bool:
        """Handle one order; False when the supervisor is gone."""
        try:
            order, fds = wire.receive(channel)
        except BlockingIOError:
            return True
        except wire.Closed:
            return False
        try:
            if order["op"] == "spawn":
                self._spawn(order, fds)
            elif order["op"] == "prepare":
                self._prepare(order)
            elif order["op"] == "kill" and self._job and (self._slot.own or self._slot.walls == NAMESPACE):
                os.kill(-1, signal.SIGKILL)  # all of this user, or of this pid namespace, but this process
            elif order["op"] == "end-input" and order["id"] == self._job:
                self._end_input()
        except OSError:
            pass  # no process is left
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _poll_input(self) -> None:
        """Without a supervisor: end the input once its pipe is removed, and wake processes that open it after that, as
        the supervisor does (pipes.py)."""
        if self._input >= 0 and not os.fstat(self._input).st_nlink:
            self._end_input()
        if self._ended_input >= 0 and not pipes.wake(self._ended_input):
            os.close(self._ended_input)
            self._ended_input = -1

    def _end_input(self) -> None:
        """Close the standard input: all of it is in the pipe, or it is not read any more."""
        if self._input >= 0:
            self._ended_input = pipes.as_path(self._input)
            os.close(self._input)
            self._input = -1
        if not self._job and self._ended_input >= 0:
            os.close(self._ended_input)
            self._ended_input = -1

    def _tell(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        if self._channel is not None:
            with suppress(wire.Closed):  # seen at the next read
                wire.send(self._channel, message, fds)

    # --- a start ------------------------------------------------------------------------------------------------------

    def _prepare(self, order: dict[str, Any]) -> None:
        """Do what a spawn does before it makes a process, while the supervisor makes its intent durable. A step that
        fails here fails again then, and is reported."""
        with suppress(CannotStart, OSError, ValueError):
            self._prepared = order["id"], self._enter(order)

    def _enter(self, order: dict[str, Any]) -> str:
        self._prepared = "", ""
        return _find(order)

    def _take_cores(self, order: dict[str, Any]) -> None:
        os.sched_setaffinity(0, order["cores"] or self._all_cores)

    def _spawn(self, order: dict[str, Any], fds: list[int]) -> None:
        stdin, hold = (fds[2], fds[3]) if len(fds) > 3 else (-1, -1)
        before = procs.ticks()
        try:
            pid = self._make(order, fds[0], fds[1], stdin)
        except CannotStart as why:
            self._tell({"op": "failed", "id": order["id"], "cause": why.cause, "text": why.text})
            return
        finally:
            self._prepared = "", ""
            os.chdir("/")
        self._main, self._job = pid, order["id"]
        self._input = os.dup(hold) if hold >= 0 else -1
        self._begin = pid, before, procs.ticks()
        self._untold = True
        if order.get("short") and self._slot.walls != NAMESPACE:
            self._write_note()
        else:
            self._tell_start()

    def _tell_start(self) -> None:
        self._untold = False
        pid, *_ = self._begin
        if self._slot.walls != NAMESPACE:
            self._tell({"op": "spawned", "id": self._job, "pid": pid})
            return
        pidfd = os.pidfd_open(pid)  # our numbers mean nothing outside
        self._tell({"op": "spawned", "id": self._job, "pid": 0}, (pidfd,))
        os.close(pidfd)

    def _make(self, order: dict[str, Any], out: int, err: int, stdin: int) -> int:
        program = ""
        try:
            prepared, found = self._prepared
            program = found if prepared == order["id"] else self._enter(order)
            self._take_cores(order)  # always: entering a group may have changed them
            self._note_that_it_begins(order["id"])
            if self._slot.walls == LANDLOCK:
                return _fork(order, program, self._slot.state, out, err, stdin)
            return os.posix_spawn(
                program,
                order["argv"],
                order["env"],
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, stdin, 0)
                    if stdin >= 0
                    else (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_DUP2, err, 2),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=_SIGNALS,
            )
        except (OSError, ValueError) as error:
            raise _explain(error, program or "the job", order["cores"]) from None

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap all exits; report the main process's, and when nothing is left."""
        if not self._job:
            return
        status = None
        left = True
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                left = False
                break
            if seen is None:
                break
            if seen.si_pid == self._main:
                # Before its exit is visible: a report may be lost with a supervisor that is killed, and the next one
                # reads the note. Only what was looked at is reaped: it could end between a look at it and another.
                self._status = _wait_status(seen)
                self._write_note()
            pid, found, usage = os.wait4(seen.si_pid, 0)
            self._cpu += usage.ru_utime + usage.ru_stime
            self._peak = max(self._peak, usage.ru_maxrss << 10)
            if pid == self._main:
                self._main, status = 0, found
            if self._channel is None:  # what it took is told by the note alone
                self._write_note()
        if status is None and left:
            return
        said: wire.Message = {"op": "ended", "id": self._job, "left": left, "cpu": self._cpu, "peak": self._peak}
        if status is not None:
            said["status"] = status
            if self._untold:
                said["pid"], self._untold = self._begin[0], False
        if left:
            self._tell(said)
            return
        self._job = ""
        self._end_input()
        self._open_folder()
        if _limits() != self._begun:
            # A job can change them by prlimit, and we cannot change them back: the next job gets another spawner.
            said["spoiled"] = "a process of its own user changed its limits or its place in the schedule"
        self._tell(said)
        self._tidy(MEMORY)

    def _open_folder(self) -> None:
        """Restore the mode of the slot's directory: it belongs to the user of its jobs, who may have changed that, and
        the directories of later jobs are made and removed in it."""
        folder = self._slot.folder
        with suppress(OSError):
            if stat.S_IMODE(os.lstat(folder).st_mode) == _FOLDER_MODE:
                return
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.chmod(f"/proc/self/fd/{fd}", _FOLDER_MODE)
            finally:
                os.close(fd)

    def _note_that_it_begins(self, id: str) -> None:
        """Note that this job may have a process from now on: where we are killed, one that is not noted has none.
        Raises CannotStart."""
        self._last, self._status, self._begin = id, None, (0, 0, 0)
        self._cpu, self._peak = 0.0, 0
        try:
            self._put_note()
        except OSError as error:
            why = f"the note of its spawner on the node cannot be written ({error.strerror})"
            raise CannotStart("disk-failed", why) from None

    def _write_note(self) -> None:
        """Note the main process of our last job, with its wait status (None: it has not ended), and what of the job is
        reaped has taken. An earlier job's line is replaced."""
        if self._last:
            with suppress(OSError):
                self._put_note()

    def _put_note(self) -> None:
        if self._note_from < 0:
            self._note_from = os.fstat(self._note).st_size
        said = [self._last, self._status, *self._begin, round(self._cpu, 6), self._peak]
        line = json.dumps(said).ljust(_NOTE_LINE) + "\n"
        os.pwrite(self._note, line.encode(), self._note_from)


def _wait_status(seen: os.waitid_result) -> int:
    """Return how a child ended, as wait4 does."""
    if seen.si_code == os.CLD_EXITED:
        return seen.si_status << 8
    return seen.si_status | (_CORE_DUMPED if seen.si_code == os.CLD_DUMPED else 0)


def _limits() -> list[object]:
    """Attributes that other processes of our user can change in us, and that our children inherit."""
    limits = [resource.getrlimit(one) for one in _LIMITS]
    return [*limits, os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]


# --- one start --------------------------------------------------------------------------------------------------------


def _find(order: dict[str, Any]) -> str:
    """Change to the job's directory, and find its program."""
    argv, cwd = order["argv"], order["cwd"]
    try:
        if order["make"]:
            with suppress(FileExistsError):
                os.mkdir(cwd, 0o700)
        # The directory that we made is no link; one that the job named itself may be.
        fd = os.open(cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if order["make"] else 0))
        try:
            os.fchdir(fd)
        finally:
            os.close(fd)
    except OSError as error:
        cause = cause_of(error, "workdir-failed") if order["make"] else "workdir-failed"
        raise CannotStart(cause, f"cannot use the working directory {cwd}: {error.strerror}") from None
    if not argv or not argv[0]:
        raise CannotStart("not-found", "there is no command")
    return find_program(argv[0], order["env"].get("PATH", _PATH))


def find_program(name: str, path: str) -> str:
    """The file to run: `name` itself if it has a slash, else looked up in the job's own PATH. Raises CannotStart."""
    if "/" in name:
        return name
    refused = ""
    for folder in path.split(":"):
        candidate = os.path.join(folder or ".", name)
        if os.access(candidate, os.X_OK):
            if not os.path.isdir(candidate):
                return candidate
        elif not refused and os.path.isfile(candidate):
            refused = candidate
    if refused:
        raise CannotStart("not-executable", f"{refused}: permission denied (is it executable?)")
    raise CannotStart("not-found", f"{name}: not found in PATH ({path})")


def _fork(order: dict[str, Any], program: str, state: str, out: int, err: int, stdin: int) -> int:
    """Start by fork, since posix_spawn has no step for Landlock: each job has its own rules."""
    recalls = (f"{state}/recalls",)
    rules = enclosure.landlock_rules(
        state, (order["cwd"] if order["make"] else order["folder"], *order["outputs"]), recalls
    )
    failed, begin = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _exec(order, program, rules, begin, (stdin, out, err))
        os.close(begin)
        begin = -1
        number = os.read(failed, 8)
    finally:
        for fd in (rules, failed, begin):
            if fd >= 0:
                os.close(fd)
    if not number:
        return pid
    os.waitpid(pid, 0)
    raise OSError(int(number), os.strerror(int(number)))


def _exec(order: dict[str, Any], program: str, rules: int, begin: int, streams: tuple[int, int, int]) -> NoReturn:
    """Become the job, or report an error number."""
    number = errno.EINVAL
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for signum in _SIGNALS:
            with suppress(OSError):
                signal.signal(signum, signal.SIG_DFL)
        stdin, out, err = streams
        if stdin < 0:
            stdin = os.open("/dev/null", os.O_RDONLY)
        for fd, source in enumerate((stdin, out, err)):
            os.dup2(source, fd)
        enclosure.obey_landlock(rules)
        os.execve(program, order["argv"], order["env"])  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        number = error.errno or number
    finally:
        with suppress(OSError):
            os.write(begin, str(number).encode())
        os._exit(127)


def _explain(error: OSError | ValueError, program: str, cores: list[int]) -> CannotStart:
    """Find which step of a start failed: posix_spawn has one error number for all of them."""
    if isinstance(error, ValueError):
        return CannotStart("spawn-failed", f"the command cannot be passed on: {error}")
    match error.errno:
        case errno.ENOENT if os.path.exists(program):
            return CannotStart("not-found", f"{program}: the interpreter in its first line is not there")
        case errno.ENOENT | errno.ENOTDIR:
            return CannotStart("not-found", f"{program}: no such file")
        case errno.EACCES | errno.EPERM:
            return CannotStart("not-executable", f"{program}: {_why_not(program)}")
        case errno.ENOEXEC:
            return CannotStart("not-executable", f"{program}: neither a program nor a script with #! in its first line")
        case errno.EINVAL if cores:
            return CannotStart("spawn-failed", f"the cores {sorted(cores)} cannot be used on this node")
        case errno.EAGAIN:
            return CannotStart("spawn-failed", "no process could be made: too many of this user run already")
        case _:
            return CannotStart("spawn-failed", f"{program} could not be started: {error.strerror}")


def _why_not(program: str) -> str:
    if os.path.isdir(program):
        return "is a directory"
    if os.access(program, os.X_OK):  # then it is another file that the job's own user cannot run
        return "permission denied (can this job's user run the interpreter in its first line?)"
    return "permission denied (is it executable?)"
