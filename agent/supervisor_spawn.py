"""How a job's process is made. As a rule by posix_spawn, which costs little; in a fork of ours where the job is to be
another user, or is kept out of our state directory: that takes steps of which posix_spawn has none. Stdlib only.
"""

import errno
import json
import os
import select
import signal
from contextlib import suppress
from typing import Any, NoReturn

from distributed_grid.agent import supervisor_hide as hide
from distributed_grid.faults import fault

_PATH = "/usr/local/bin:/usr/bin:/bin"
_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""A job treats all signals as a fresh process does, whatever we, or who started us (a shell in the background ignores
some), made of them."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
_UMASK = 0o022  # of jobs that run as another user than we; ours get ours
_BEGIN = 15.0  # seconds that a fork may take to become the job: its user may stop it as soon as it is his


class CannotStart(Exception):
    """No process was made: the outcome's cause, and why in words."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text


def spawn(order: dict[str, Any], folder: str) -> int:
    """Make the job's process, with its output in `folder`, and return its pid. Raises CannotStart.

    Changes this process's directory, and its cores where the order names some, and leaves them so: the child has them
    from its first instruction. The caller puts both back.
    """
    try:
        pid = _make(order, folder)
    except OSError as error:
        raise CannotStart("spawn-failed", f"no process could be made: {error.strerror}") from None
    if not pid:  # no system does that; a fault point may
        raise CannotStart("spawn-failed", f"{order['argv'][0]} could not be started: no process was made")
    return pid


@fault("supervisor.spawn")
def _make(order: dict[str, Any], folder: str) -> int:
    if order.get("user") is not None or order.get("hide"):
        return _fork(order, folder)
    program = _find(order, folder)
    try:
        if order["cores"]:
            os.sched_setaffinity(0, order["cores"])
        return os.posix_spawn(
            program,
            order["argv"],
            order["env"],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.path.join(folder, "stdout"), _CREATE, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, os.path.join(folder, "stderr"), _CREATE, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
    except (OSError, ValueError) as error:
        raise _explain(error, program, folder, order["cores"]) from None


def _find(order: dict[str, Any], folder: str) -> str:
    """Go to the job's directory, and look up its program, both as who we are by now."""
    argv, cwd = order["argv"], order["cwd"]
    # The directory that we gave it is no link; where it named one of its own, that is its affair.
    follow = os.O_NOFOLLOW if os.path.dirname(cwd) == folder else 0
    try:
        fd = os.open(cwd, os.O_PATH | os.O_DIRECTORY | follow)
        try:
            os.fchdir(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise CannotStart("workdir-failed", f"cannot use the working directory {cwd}: {error.strerror}") from None
    if not argv or not argv[0]:
        raise CannotStart("not-found", "there is no command")
    return find_program(argv[0], order["env"].get("PATH", _PATH))


# --- in a fork --------------------------------------------------------------------------------------------------------


def _fork(order: dict[str, Any], folder: str) -> int:
    try:  # here and not in the fork, which has a fault of memory for each page that it writes to
        rules = hide.rules(os.path.dirname(folder), folder) if order.get("hide") else -1
    except OSError as error:
        raise CannotStart("spawn-failed", f"it cannot be kept out of the agent's directory: {error.strerror}") from None
    end, begin = os.pipe()  # closed by the exec: nothing in it means that the job runs
    try:
        pid = os.fork()
        if pid == 0:
            _become(order, folder, begin, rules)
        os.close(begin)
        begin = -1
        said = _hear(end)
    finally:
        for fd in (end, begin, rules):
            if fd >= 0:
                os.close(fd)
    if said == b"":
        return pid
    if said is None:
        os.kill(pid, signal.SIGKILL)  # not reaped yet: nobody else has its number
    os.waitpid(pid, 0)
    if said is None:
        raise CannotStart("spawn-failed", f"its process did not get as far as its program in {_BEGIN:g} s")
    raise CannotStart(*json.loads(said))


def _hear(end: int) -> bytes | None:
    """What a fork has to say until it becomes the job, or ends; None if it does neither."""
    said = b""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    while poll.poll(_BEGIN * 1000):
        part = os.read(end, 1 << 16)
        if not part:
            return said
        said += part
    return None


def _become(order: dict[str, Any], folder: str, begin: int, rules: int) -> NoReturn:
    """Be the job; or say why not, and end."""
    program = ""
    try:
        os.setsid()
        for signum in _SIGNALS:  # those that are handled are as in a fresh process after the exec
            if signal.getsignal(signum) is signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if order["cores"]:
            os.sched_setaffinity(0, order["cores"])
        user = order.get("user")
        _open_streams(folder, user)
        if user is not None:
            os.umask(_UMASK)
            os.setgroups(user["groups"])
            os.setresgid(user["gid"], user["gid"], user["gid"])
            os.setresuid(user["uid"], user["uid"], user["uid"])
        program = _find(order, folder)
        if rules >= 0:
            hide.obey(rules)
        os.execve(program, order["argv"], order["env"])  # noqa: S606 - no shell is what is wanted
    except CannotStart as why:
        said = why.cause, why.text
    except (OSError, ValueError) as error:
        failed = _explain(error, program or "the job", folder, order["cores"])
        said = failed.cause, failed.text
    except BaseException as error:
        said = "spawn-failed", f"its process could not be prepared: {error!r}"
    with suppress(OSError):
        os.write(begin, json.dumps(said).encode())
    os._exit(127)


def _open_streams(folder: str, user: dict[str, Any] | None) -> None:
    """Output belongs to who runs: what opens /dev/stderr anew is let in."""
    streams = [os.open("/dev/null", os.O_RDONLY)]
    for name in ("stdout", "stderr"):
        streams.append(os.open(os.path.join(folder, name), _CREATE, 0o600))
        if user is not None:
            os.fchown(streams[-1], user["uid"], user["gid"])
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)


# --- what went wrong --------------------------------------------------------------------------------------------------


def _explain(error: OSError | ValueError, program: str, folder: str, cores: list[int]) -> CannotStart:
    """Which of the steps inside posix_spawn failed: it has one error number for all of them."""
    if isinstance(error, ValueError):
        return CannotStart("spawn-failed", f"the command cannot be passed on: {error}")
    match error.errno:
        case errno.EEXIST:
            # Output is there of an allocation that the journal does not know: its record was lost, not its past.
            return CannotStart("supervisor-lost", "it was started before, and the record of that is lost")
        case errno.ENOENT if os.path.isdir(folder):
            if os.path.exists(program):
                return CannotStart("not-found", f"{program}: the interpreter in its first line is not there")
            return CannotStart("not-found", f"{program}: no such file")
        case errno.ENOTDIR if os.path.isdir(folder):
            return CannotStart("not-found", f"{program}: no such file")
        case errno.EACCES | errno.EPERM:
            return CannotStart("not-executable", f"{program}: {_why_not(program)}")
        case errno.ENOEXEC:
            return CannotStart("not-executable", f"{program}: neither a program nor a script with #! in its first line")
        case errno.EINVAL if cores:
            return CannotStart("spawn-failed", f"the cores {sorted(cores)} cannot be used on this node")
        case _:
            return CannotStart("spawn-failed", f"{program} could not be started: {error.strerror}")


def _why_not(program: str) -> str:
    return "is a directory" if os.path.isdir(program) else "permission denied (is it executable?)"


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
