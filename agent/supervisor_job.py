"""One job as the supervisor sees it: what was asked, what is left of it, how it ended, and how its process is made.
Stdlib only.
"""

import errno
import os
import signal
from collections.abc import Iterator
from typing import Any

from distributed_grid.faults import fault

NEVER = float("inf")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""A job treats all signals as a fresh process does, whatever we, or who started us (a shell in the background ignores
some), made of them."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW


class CannotStart(Exception):
    """No process was made: the outcome's cause, and why in words."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause
        self.text = text


class Job:
    """An allocation from its intent to its end. Times are seconds since boot, sizes bytes. `lease` and `since` are what
    supervisor_leases.py is told of it.

    `limits` is what it may take, as the agent said: `memory` bytes, `pids` processes and threads at once, `cpu`
    thousandths of a core, and `signal` is sent to it `before` seconds ahead of its time limit; what is not there is not
    limited. `confined` names the controllers whose cgroup it is in.

    `pid` names its main process, 0 until it is spawned; `spawned` is the time before and after that in clock ticks,
    and `start` the process's own start time, known only where it was looked up. `status` is that one's wait status,
    None while it lives, -1 if nobody knows it. `cause` and `text` say who ends it, empty if nobody does. `adopted`: it
    was spawned by a supervisor that is dead, and `pidfd` watches its main process, which is not our child.

    `frozen_at` is since when it is frozen (0: it is not), for `frozen_why`, and `frozen_for` how many seconds it was
    before that.

    `kill_at` is when it gets (the next) SIGKILL, `wake` when the loop looks at it again, `look` that it is due.
    """

    def __init__(
        self,
        id: str,
        began: float = 0.0,
        limit: float = 0.0,
        grace: float = 5.0,
        cores: list[int] | tuple[int, ...] = (),
        lease: float = 0.0,
        since: float = 0.0,
        limits: dict[str, Any] | None = None,
        outcome: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.began = began
        self.limit = limit
        self.grace = grace
        self.cores = frozenset(cores)
        self.lease = lease
        self.since = since
        self.limits = limits or {}
        self.memory = int(self.limits.get("memory", 0))
        self.pids = int(self.limits.get("pids", 0))
        self.cpu_limit = int(self.limits.get("cpu", 0))
        self.nice = int(self.limits.get("nice", 0))
        self.confined: frozenset[str] = frozenset()
        self.warn_signal = int(self.limits.get("signal", 0))
        self.warned = False
        self.outcome = outcome
        self.pid = 0
        self.start = 0
        self.spawned = (0, 0)
        self.pidfd = -1
        self.adopted = False
        self.status: int | None = None
        self.cause = ""
        self.text = ""
        self.frozen_at = 0.0
        self.frozen_why = ""
        self.frozen_for = 0.0
        self.kill_at = NEVER
        self.pause = 0.0
        self.wake = NEVER
        self.look = True
        self.cpu = 0.0
        self.peak = 0

    def records(self) -> Iterator[list[Any]]:
        """What the journal has to say of it now."""
        if self.outcome is not None:
            yield ["exit", self.id, self.outcome]
            return
        yield self.intent()
        if self.pid:
            yield self.begin()
        if self.cause:
            yield ["stop", self.id, self.cause, self.text]
        if self.warned:
            yield ["warned", self.id]
        if self.frozen_for:
            yield ["thaw", self.id, self.frozen_for]
        if self.frozen_at:
            yield ["freeze", self.id, self.frozen_at, self.frozen_why]

    def begin(self) -> list[Any]:
        return ["start", self.id, self.pid, *self.spawned]

    def intent(self) -> list[Any]:
        cores = sorted(self.cores)
        return ["intent", self.id, self.began, self.limit, self.grace, cores, self.lease, self.since, self.limits]

    def deadline(self) -> float:
        """When its time is up: NEVER without a time limit, and once it is ending anyway. Frozen time does not count."""
        if not self.limit or self.status is not None or self.cause or self.frozen_at:
            return NEVER
        return self.began + self.limit + self.frozen_for

    def warn_at(self) -> float:
        """When it is to be told that its time will be up soon; NEVER if it is not, or was told."""
        if not self.warn_signal or self.warned:
            return NEVER
        return self.deadline() - float(self.limits["before"])

    def used(self, usage: Any) -> None:
        """Add what the kernel says that a process of this job, and all it waited for, have used."""
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss << 10)

    def ended(self, now: float) -> dict[str, Any]:
        """Its outcome, now that nothing of it is alive."""
        said: dict[str, Any] = {"seconds": round(now - self.began, 6) if self.began else 0.0, "peak_memory": self.peak}
        said["cpu_seconds"] = round(self.cpu, 6)
        if frozen := self.frozen_for + (now - self.frozen_at if self.frozen_at else 0.0):
            said["suspended"] = round(frozen, 6)
        if self.status is None or self.status < 0:
            said["cause"] = self.cause or "supervisor-lost"
            said["text"] = self.text or "the node's supervisor was killed; how the job ended is not known"
            return said
        code = os.waitstatus_to_exitcode(self.status)
        if code >= 0:
            said |= {"cause": "exited", "code": code, "text": f"exited with code {code}" if code else ""}
        else:
            core = ", core dumped" if os.WCOREDUMP(self.status) else ""
            text = f"killed by signal {-code} ({signal_name(-code)}){core}"
            said |= {"cause": "signalled", "signal": -code, "text": text}
        if self.cause:
            how = f"; {said['text']}" if said["text"] else ""
            said |= {"cause": self.cause, "text": (self.text or self.cause) + how}
        return said


def never_ran(cause: str, text: str) -> dict[str, Any]:
    """The outcome of an allocation of which no process ever existed."""
    return {"cause": cause, "text": text, "started": False}


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; real-time signals by their distance from the first."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"


def spawn(order: dict[str, Any], folder: str) -> int:
    """Make the job's process, with its output in `folder`, and return its pid. Raises CannotStart.

    Changes this process's directory, and its cores where the order names some, and leaves them so: the child has them
    from its first instruction. The caller puts both back.
    """
    argv, cwd = order["argv"], order["cwd"]
    try:
        os.chdir(cwd)
    except OSError as error:
        raise CannotStart("workdir-failed", f"cannot use the working directory {cwd}: {error.strerror}") from None
    if not argv or not argv[0]:
        raise CannotStart("not-found", "there is no command")
    program = find_program(argv[0], order["env"].get("PATH", _PATH))
    try:
        if order["cores"]:
            os.sched_setaffinity(0, order["cores"])
        pid = _make(program, argv, order["env"], os.path.join(folder, "stdout"), os.path.join(folder, "stderr"))
    except (OSError, ValueError) as error:
        raise _explain(error, program, folder, order["cores"]) from None
    if not pid:  # no system does that; a fault point may
        raise CannotStart("spawn-failed", f"{program} could not be started: no process was made")
    return pid


@fault("supervisor.spawn")
def _make(program: str, argv: list[str], env: dict[str, str], out: str, err: str) -> int:
    return os.posix_spawn(
        program,
        argv,
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, out, _CREATE, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, err, _CREATE, 0o600),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET,
    )


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
