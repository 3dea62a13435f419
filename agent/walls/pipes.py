"""The pipes through which jobs read their standard input: FIFOs in the folders of their allocations, filled by the
agent. Supervisor and spawner both hold them open for writing, so a job never takes the death of one of our processes
for the end of its input. To end an input, the FIFO is removed and then closed by both. Stdlib only."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable

from distributed_grid.agent.supervisor.job import NEVER

PIPE = "stdin"
PIPE_BYTES = 1 << 18
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_SET_SIZE = 1031  # F_SETPIPE_SZ
_SOONEST, _LATEST = 0.02, 2.0  # shortest and longest interval between checks for readers of ended inputs (s)


def make(path: str, shared: bool) -> tuple[int, int]:
    """Make a pipe there. Returns its ends for reading (blocking) and writing (non-blocking). `shared`: the job runs as
    another user, which opens it as /dev/stdin, and its spawner for `wake`. It gets its name once it has a reader: else
    opening it for writing would report that it has none any more. Raises OSError."""
    fresh = f"{path}.new"
    os.mkfifo(fresh, 0o600)
    begin = os.open(fresh, os.O_RDONLY | os.O_NONBLOCK | _FLAGS)
    try:
        if shared:
            os.fchmod(begin, 0o666)  # nobody else can reach its path
        with contextlib.suppress(OSError):  # the default is smaller, and works as well
            fcntl.fcntl(begin, _SET_SIZE, PIPE_BYTES)
        os.rename(fresh, path)
        end = os.open(path, os.O_WRONLY | os.O_NONBLOCK | _FLAGS)
        fcntl.fcntl(begin, fcntl.F_SETFL, fcntl.fcntl(begin, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        return begin, end
    except OSError:
        os.close(begin)
        raise


def as_path(end: int) -> int:
    """Open the pipe with this end for neither reading nor writing."""
    return os.open(f"/proc/self/fd/{end}", os.O_PATH | os.O_CLOEXEC)


def wake(pipe: int) -> bool:
    """Wake programs that open a pipe by its name after its input has ended, as `cat /dev/stdin` does: in the kernel
    they wait until it is opened for writing once more. False: it has no reader, and will never have one."""
    try:
        os.close(os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


class Pipes:
    """The pipes of all jobs that have one. `close_spawners` has the spawner of an allocation close its end. `due` is
    when `poll` has something to do (seconds since boot)."""

    def __init__(self, allocs: str, close_spawners: Callable[[str], None]) -> None:
        self.due = NEVER
        self._allocs = allocs
        self._close_spawners = close_spawners
        self._held: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        """Pipes whose input has ended, opened for neither reading nor writing."""
        self._pause = _SOONEST

    def hold(self, key: str, end: int) -> None:
        """Keep this end of a pipe open, for a job that was handed to its spawner."""
        self._held[key] = end

    def adopt(self, key: str) -> None:
        """Hold the pipe of an earlier supervisor's job, if there is one and it has a reader."""
        self._held[key] = -1
        with contextlib.suppress(OSError):
            self._held[key] = os.open(self._path(key), os.O_WRONLY | os.O_NONBLOCK | _FLAGS)

    def end(self, key: str) -> None:
        """Let the job see the end of its input, all of which is in the pipe. A repetition has no effect. The spawner of
        an earlier supervisor's job notices that the pipe has lost its name."""
        if (held := self._held.get(key, -1)) >= 0:
            self._ended[key] = as_path(held)
            self.due, self._pause = 0.0, _SOONEST
        self._let_go(key)
        self._close_spawners(key)

    def poll(self, now: float) -> None:
        """Wake processes that open a pipe after its input has ended."""
        if now < self.due:
            return
        for key, pipe in [*self._ended.items()]:
            if not wake(pipe):
                os.close(self._ended.pop(key))
        self.due = now + self._pause if self._ended else NEVER
        self._pause = min(2 * self._pause, _LATEST)

    def drop(self, key: str) -> None:
        """The job is over."""
        if key in self._held:
            self._let_go(key)
        if (pipe := self._ended.pop(key, -1)) >= 0:
            os.close(pipe)

    def _let_go(self, key: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path(key))
        if (held := self._held.pop(key, -1)) >= 0:
            os.close(held)

    def _path(self, key: str) -> str:
        return os.path.join(self._allocs, key, PIPE)
