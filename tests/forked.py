"""`grid` commands as processes of their own that begin where an interpreter has imported everything: a server forks one
for each. To start an interpreter and to import for each takes 0.2 s of CPU time, ten times as much, and 0.4 s for a
service.

    done = forked.grid(["jobs"], environment, folder)
    agent = forked.service(["agent", "run"], environment, folder, log)
    other = forked.program(Path("program.py"), ["a"], environment, folder, log)

Such a process differs from `python -m distributed_grid.cli.main …` or `python -P program.py …` in its command line, and
in having imported more.
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

CLONE_NEWNET = 0x40000000
SERVICES = frozenset({"install"})
"""Words of commands that write down how services start."""
AT_START = ("PYTHON", "LC_", "LANG", "LANGUAGE", "COVERAGE", "MALLOC_", "LD_")
"""Beginnings of the names of variables that say how an interpreter starts."""
LATER = ("distributed_grid.agent.main", "distributed_grid.coordinator.main", "yaml")
"""What commands import when they are called, and takes longest."""
LARGEST = 1 << 20
HERE = "/proc/thread-self/ns/net"
"""The network namespace of this thread, which may not be that of others."""


def can(words: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this command begins so as it would by an interpreter of its own."""
    return not SERVICES & set(words) and _starts_alike(environment)


def can_serve(environment: Mapping[str, str], network: str = "") -> bool:
    """Whether a service begins so as it would by an interpreter of its own, in this network namespace, or else in that
    of the calling thread."""
    return _starts_alike(environment) and (bool(network) or os.readlink(HERE) == _server()[1])


def can_run(environment: Mapping[str, str]) -> bool:
    """Whether a program of Python's begins so as it would by an interpreter of its own, in the network of the calling
    thread. It may have a PYTHONPATH, and faults."""
    return _starts_alike(environment, but=("PYTHONPATH",)) and os.readlink(HERE) == _server()[1]


def _starts_alike(environment: Mapping[str, str], but: tuple[str, ...] = ()) -> bool:
    names = [name for name in {*environment, *os.environ} if name.startswith(AT_START) and name not in but]
    same = all(environment.get(name) == os.environ.get(name) for name in names)
    return same and not any(name.startswith("COVERAGE") for name in names)


class Service:
    """A service that was forked: what tests use of `subprocess.Popen`. Its parent is the server, which tells how it
    ended."""

    def __init__(self, command: Sequence[str], pid: int, told: IO[bytes]) -> None:
        self.args, self.pid, self.returncode = command, pid, None
        self._told: IO[bytes] = told

    returncode: int | None

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None: it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.read())
            self._told.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Command(Service):
    """`grid` with these words, forked, and its pipes: what tests use of `subprocess.Popen` with bytes."""

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        bufsize: int = -1,
    ) -> None:
        with _asking:
            asked = [list(words), dict(environment), str(folder), _network(), ""]
        with contextlib.ExitStack() as theirs:
            files, ours = list[int](), list[IO[bytes] | None]()
            for number, given in enumerate((stdin, stdout, stderr)):
                own = None
                if given == subprocess.PIPE:
                    read, write = os.pipe()
                    file, mine = (write, read) if number else (read, write)
                    theirs.callback(os.close, file)
                    own = open(mine, "rb" if number else "wb", bufsize)  # noqa: SIM115 (until it is closed as a pipe)
                elif given == subprocess.DEVNULL:
                    file = theirs.enter_context(open(os.devnull, "r+b", 0)).fileno()
                elif given == subprocess.STDOUT:
                    file = files[1]
                else:
                    file = number if given is None else given if isinstance(given, int) else given.fileno()
                files.append(file)
                ours.append(own)
            command = ["grid", *words]
            super().__init__(command, *_asked_for(asked, files))
        self.stdin, self.stdout, self.stderr = ours
        self._reading: list[tuple[threading.Thread, list[bytes]]] | None = None
        """Threads with what they have read from its output and its errors."""

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Give it all of this input, and return its output and its errors once it has ended; None for what is no pipe.
        Raises subprocess.TimeoutExpired, after which it can be called again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._reading is None:
            self._reading = [_reading(file) for file in (self.stdout, self.stderr) if file is not None]
            if self.stdin is not None and not self.stdin.closed:
                threading.Thread(target=_give, args=(self.stdin, input or b""), daemon=True).start()
        for thread, _ in self._reading:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        said = iter([b"".join(read) for _, read in self._reading])
        return tuple(None if file is None else next(said) for file in (self.stdout, self.stderr))  # type: ignore[return-value]

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self.wait()


def _reading(file: IO[bytes]) -> tuple[threading.Thread, list[bytes]]:
    """A thread that reads it to its end and closes it, and what it has read."""
    read: list[bytes] = []

    def to_its_end() -> None:
        with file:
            while part := file.read(LARGEST):
                read.append(part)

    thread = threading.Thread(target=to_its_end, daemon=True)
    thread.start()
    return thread, read


def service(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, log: IO[bytes], network: str = ""
) -> Service:
    """Start `grid` with these words, without input, in this network namespace, or else in the server's; all it says
    goes into the log."""
    return _started(["grid", *words], [list(words), dict(environment), str(folder), network, ""], log)


def program(file: Path, words: Sequence[str], environment: Mapping[str, str], folder: Path, log: IO[bytes]) -> Service:
    """Start the program in this file with these words, without input; all it says goes into the log."""
    return _started([str(file), *words], [list(words), dict(environment), str(folder), "", str(file)], log)


def _started(command: Sequence[str], asked: list[Any], log: IO[bytes]) -> Service:
    with open(os.devnull, "rb", 0) as nothing:
        return Service(command, *_asked_for(asked, [nothing.fileno(), log.fileno(), log.fileno()]))


def _asked_for(asked: list[Any], files: list[int]) -> tuple[int, IO[bytes]]:
    """The pid of what was asked for, and the pipe that tells how it ended."""
    read, write = os.pipe()
    told = open(read, "rb", 0)  # noqa: SIM115 (the service's, until it has ended)
    with open(write, "wb", 0) as tell, _asking:
        socket.send_fds(_server()[0], [json.dumps(asked).encode()], [*files, tell.fileno()])
    return int(told.read(16)), told


def _network() -> str:
    """The network namespace that a command is to enter, or empty: that of the calling thread, which waits meanwhile."""
    if os.readlink(HERE) == _server()[1]:
        return ""
    return f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"


def grid(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    timeout: float = 60.0,
    input: bytes | None = None,
    network: str = "",
) -> subprocess.CompletedProcess[bytes]:
    """Run `grid` with these words to its end, in this network namespace, or in that of the calling thread. Its input is
    empty unless one is given. Raises subprocess.TimeoutExpired."""
    with contextlib.ExitStack() as files:

        def pipe() -> tuple[IO[bytes], IO[bytes]]:
            read, write = os.pipe()
            return files.enter_context(open(read, "rb", 0)), files.enter_context(open(write, "wb", 0))

        (stdin, ours), (out, stdout), (err, stderr), (told, tell) = pipe(), pipe(), pipe(), pipe()
        with _asking:
            asked = json.dumps([list(words), dict(environment), str(folder), network or _network(), ""]).encode()
            socket.send_fds(_server()[0], [asked], [one.fileno() for one in (stdin, stdout, stderr, tell)])
        for theirs in (stdin, stdout, stderr, tell):
            theirs.close()
        pid = int(told.read(16))
        answers: dict[str, bytes] = {}
        threads = [
            threading.Thread(target=lambda: _give(ours, input or b"")),
            threading.Thread(target=lambda: answers.update(out=out.read())),
            threading.Thread(target=lambda: answers.update(err=err.read())),
            threading.Thread(target=lambda: answers.update(status=told.read())),
        ]
        deadline = time.monotonic() + timeout
        for one in threads:
            one.daemon = True
            one.start()
        for one in threads[1:]:
            one.join(max(0.0, deadline - time.monotonic()))
        if any(one.is_alive() for one in threads[1:]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            for one in threads:
                one.join(5.0)  # what it started may have its output still
            raise subprocess.TimeoutExpired(["grid", *words], timeout, answers.get("out"), answers.get("err"))
        return subprocess.CompletedProcess(["grid", *words], int(answers["status"]), answers["out"], answers["err"])


def with_text(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    """The same, with text as subprocess has it."""
    out, err = (said.decode().replace("\r\n", "\n").replace("\r", "\n") for said in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def _give(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # who does not read it all ends before
        rest = memoryview(data)
        while rest:
            rest = rest[pipe.write(rest) :]


_asking = threading.Lock()


@functools.cache
def _server() -> tuple[socket.socket, str]:
    """The connection to the server of this process, which ends with it; and the server's network namespace, which is
    that of the thread that made it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
    command = [sys.executable, __file__, str(theirs.fileno())]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/")
    theirs.close()
    atexit.register(server.wait)
    atexit.register(ours.close)  # called before the wait
    return ours, os.readlink(HERE)


# --- the server -------------------------------------------------------------------------------------------------------


def serve(asked: socket.socket, points: Any) -> None:
    os.environ.pop("GRID_FAULTS", None)
    points.note()
    from distributed_grid.cli.main import COMMANDS

    for name in (*(command.target.partition(":")[0] for command in COMMANDS.values()), *LATER):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, int]] = {}
    """By the descriptor of each process: its pid, and the pipe that tells how it ended."""
    events = select.poll()
    events.register(asked, select.POLLIN)
    while True:
        for ready, _ in events.poll():
            if ready != asked.fileno():
                events.unregister(ready)
                tell_end(ready, *running.pop(ready))
                continue
            text, numbers, _, _ = socket.recv_fds(asked, LARGEST, 4)
            if not text:
                return
            tell = numbers.pop()
            if (child := os.fork()) == 0:
                for number in (asked.detach(), tell, *running, *(others for _, others in running.values())):
                    os.close(number)
                words, environment, folder, network, file = json.loads(text)
                end(run(words, environment, folder, network, file, numbers, points))
            for number in numbers:
                os.close(number)
            running[ended := os.pidfd_open(child)] = (child, tell)
            events.register(ended, select.POLLIN)
            with contextlib.suppress(BrokenPipeError):  # who asked for it may have ended
                os.write(tell, str(child).encode().ljust(16))


def tell_end(ended: int, child: int, tell: int) -> None:
    """Tell how a child ended, and close both descriptors."""
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())
    os.close(tell)
    os.close(ended)


def run(
    words: list[str],
    environment: dict[str, str],
    folder: str,
    network: str,
    file: str,
    numbers: list[int],
    points: Any,
) -> int:
    """What the end of cli/main.py does, or else this program, with these files; the exit code."""
    if network:
        with open(network) as there:
            if ctypes.CDLL(None).setns(there.fileno(), CLONE_NEWNET):
                raise OSError(f"cannot enter {network}")
    for number, standard in zip(numbers, range(3), strict=True):
        os.dup2(number, standard)
        os.close(number)
    sys.stdin = open(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=sys.stderr.encoding, errors="backslashreplace")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    random.seed()
    time.tzset()
    if environment.get("GRID_FAULTS"):
        points.arm()
    from distributed_grid.cli.main import main

    sys.argv = [file or "grid", *words]
    try:
        if file:
            sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
            runpy.run_path(file, run_name="__main__")
        else:
            main(prog_name="grid")
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> None:
    """End as an interpreter does, without taking apart what was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code)


if __name__ == "__main__":
    points = importlib.import_module("fault_points")
    del sys.path[0]  # it has modules of this folder
    with contextlib.suppress(KeyboardInterrupt):
        serve(socket.socket(fileno=int(sys.argv[1])), points)
