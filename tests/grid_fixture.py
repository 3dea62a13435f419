"""A real grid for tests: `grid coordinator run` and `grid agent run` as processes on a free port, in a directory of
their own, and the `grid` command to drive it. Everything that was started is ended by pid, jobs included.

    from tests.grid_fixture import Grid, running_grid

    with running_grid(tmp_path, agents=2) as grid:
        done = grid.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", "true")
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from distributed_grid.cli.main import main
from tests import forked

GRID = [sys.executable, "-m", "distributed_grid.cli.main"]
PATIENCE = 60.0
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
PIPES = {"bufsize", "stdin", "stdout", "stderr", "cwd"}
"""What a forked command takes of subprocess.Popen."""
HERE = threading.Lock()
"""Of the environment and the directory of this process, which there is one of."""
# A loaded test machine must not look busy to the agents; whoever tests thresholds gives others.
CONFIG = """
resource_sharing:
  monitoring_interval_seconds: 1
  owner_pressure: 100
  thresholds:
    cpu_percent_max: 100
    memory_percent_max: 100
    memory_min_gb: 0.1
agent:
  offer_after: 0
  reserve_memory_gb: 0
"""
EVERYONE = CONFIG + "  trust: everyone\n"
"""For tests with users who do not own the nodes, on machines where jobs get no strong walls."""


def pause(seconds: float, cpu_seconds: float) -> float:
    """How long to wait until a condition is looked at again that took this long to look at: no more than a
    thirtieth of a core is for looking."""
    return min(0.5, max(0.05, 3 * seconds, 30 * cpu_seconds))


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for a condition; fail with `what` if it does not come. One that takes long to look at is looked at less
    often: what is waited for needs the cores, too."""
    deadline = time.monotonic() + seconds
    while (begun := time.monotonic()) < deadline:
        used = time.process_time()
        if found := holds():
            return found
        time.sleep(pause(time.monotonic() - begun, time.process_time() - used))
    pytest.fail(f"not within {seconds:g} s: {what}")


def reserved_port(port: int = 0) -> socket.socket:
    """A socket that keeps a port (0: a free one) from all who take any free one, be it to listen or to connect from.
    Nobody answers there, unless a server is told that port."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", port))
    return kept


def contents(home: Path) -> Iterator[tuple[Path, bytes]]:
    """All files below a directory and what is in them, but for those that go while services are at work there."""
    for folder, _, names in os.walk(home):
        for path in (Path(folder, name) for name in names):
            with suppress(OSError):
                if path.is_file():
                    yield path, path.read_bytes()


class Grid:
    """A running grid. `url` is the coordinator's address, `home` its directory, `here` where commands run."""

    def __init__(self, home: Path, config: str = CONFIG) -> None:
        self.home = home
        self.here = home / "here"
        self.here.mkdir(parents=True)
        (home / "grid.yaml").write_text(config)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("GRID_")}
        self.environment |= {"XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config")}
        # Jobs give way to all else on the machine, and what that does is no part of a test's scene.
        self.environment["GRID_AGENT__NICE"] = "0"
        self.url = ""
        self.command = GRID
        self.network = ""
        """The network namespace that `command` enters, where it enters just that."""
        self.processes: dict[str, subprocess.Popen[bytes] | forked.Service] = {}
        self._port: socket.socket | None = None
        """What keeps the coordinator's port, also while it does not run."""

    # --- services -----------------------------------------------------------------------------------------------------

    def found(self) -> None:
        """Found a grid with an authority; we are its operator."""
        self.url = f"wss://localhost:{self._reserve()}"
        port = self.url.rpartition(":")[2]
        founded = self.run("init", "--port", port, "--state-dir", str(self.home / "coordinator"))
        assert founded.returncode == 0, founded.stderr

    def _reserve(self) -> int:
        self._port = reserved_port()
        port: int = self._port.getsockname()[1]
        return port

    def start_coordinator(self) -> None:
        """Start it, at the address it had before if it had one."""
        told = self.home / "coordinator" / "coordinator.json"
        told.unlink(missing_ok=True)
        if not self.url and self.command == GRID:
            self.url = f"ws://127.0.0.1:{self._reserve()}"
        port = self.url.rpartition(":")[2] or "0"
        self._start("coordinator", "coordinator", "run", "--port", port, "--state-dir", str(told.parent))
        until(told.exists, "the coordinator listens" + self.log("coordinator"))
        url = json.loads(told.read_text())["url"]
        # A founded grid is reached by the name it was founded with, which our own context is for.
        self.url = url.replace("wss://127.0.0.1:", "wss://localhost:")
        self.environment["GRID_COORDINATOR"] = self.url

    def start_agent(self, name: str, *flags: str, environment: dict[str, str] | None = None) -> None:
        """Start an agent, `flags` as for `grid agent run`."""
        words = ("agent", "run", "--name", name, "--state-dir", str(self.home / name), "--siblings", str(self.home))
        self._start(name, *words, *flags, environment=environment)

    def _start(self, name: str, *words: str, environment: dict[str, str] | None = None) -> None:
        words = ("-c", str(self.home / "grid.yaml"), *words)
        environment = self.environment | (environment or {})
        with (self.home / f"{name}.log").open("ab") as log:
            if (self.command == GRID or self.network) and forked.can_serve(environment, self.network):
                self.processes[name] = forked.service(words, environment, self.home, log, self.network)
                return
            self.processes[name] = subprocess.Popen(
                [*self.command, *words],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal a service, and wait for its end if that ends it."""
        self.processes[name].send_signal(number)
        if number not in (signal.SIGSTOP, signal.SIGCONT):
            self.processes[name].wait(PATIENCE)

    def log(self, name: str) -> str:
        """The end of what a service said."""
        path = self.home / f"{name}.log"
        return f"\n--- {name}\n{path.read_text()[-3000:]}" if path.exists() else ""

    def await_offers(self, count: int) -> None:
        """Wait until this many nodes offer cores."""

        def offering() -> bool:
            code, out, _ = self._ask("-o", "json", "shared-status")
            offers = json.loads(out)["offers"] if code == 0 else []
            return sum(bool(offer["offered"]["cpu"]) for offer in offers) >= count

        until(offering, f"{count} nodes offer cores{''.join(map(self.log, self.processes))}")

    def join(self, name: str, *words: str) -> str:
        """Make a token, `words` as for `grid token create`, and let a node of this name join with it; the token."""
        token = self.run("token", "create", *words).stdout.strip()
        joined = self.run("agent", "join", token, "--name", name, "--state-dir", str(self.home / name))
        assert joined.returncode == 0, joined.stderr
        return token

    # --- the command --------------------------------------------------------------------------------------------------

    def run(self, *words: str, timeout: float = PATIENCE, **options: Any) -> subprocess.CompletedProcess[str]:
        """`grid …`, to its end, with text."""
        if self._can_fork(words) and not set(options) - {"cwd", "input"}:
            given = options.get("input")
            return forked.with_text(self._fork(words, timeout, given.encode() if given else None, options.get("cwd")))
        options.setdefault("cwd", self.here)
        return subprocess.run(
            [*self.command, *words], env=self.environment, capture_output=True, text=True, timeout=timeout, **options
        )

    def _can_fork(self, words: Sequence[str]) -> bool:
        return (self.command == GRID or bool(self.network)) and forked.can(words, self.environment)

    def _fork(
        self, words: Sequence[str], timeout: float, given: bytes | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return forked.grid(words, self.environment, folder or self.here, timeout, given, self.network)

    def run_bytes(self, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[bytes]:
        """`grid …`, to its end, with bytes."""
        if self._can_fork(words):
            return self._fork(words, timeout)
        return subprocess.run(
            [*self.command, *words], env=self.environment, cwd=self.here, capture_output=True, timeout=timeout
        )

    def shared(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on one borrowed core, nothing shipped."""
        return self.run("run-shared", "-t", "cpu", "-a", "1", "--no-ship", *words, **options)

    def begin(self, *words: str, **options: Any) -> subprocess.Popen[bytes] | forked.Command:
        """`grid …`, not waited for; unbuffered, so that a line can be read before `communicate`."""
        options.setdefault("bufsize", 0)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.here)
        if self.command == GRID and set(options) <= PIPES and forked.can(words, self.environment):
            return forked.Command(words, self.environment, options.pop("cwd"), **options)
        return subprocess.Popen([*self.command, *words], env=self.environment, **options)

    def json(self, *words: str, **options: Any) -> Any:
        """What `grid -o json …` prints. By a process of its own only where it has to be one: tests ask again and again
        until something is there, and a process takes 0.2 s of a core to start."""
        code, out, err = self._ask("-o", "json", *words, **options)
        assert code == 0, err
        return json.loads(out)

    def _ask(self, *words: str, timeout: float = PATIENCE, **options: Any) -> tuple[int, str, str]:
        if options or (self.command != GRID and not self.network):
            done = self.run(*words, timeout=timeout, **options)
            return done.returncode, done.stdout, done.stderr
        with ThreadPoolExecutor(1) as thread:  # which may have an event loop, and a network, of its own
            return thread.submit(self._ask_here, words).result(timeout)

    def _ask_here(self, words: tuple[str, ...]) -> tuple[int, str, str]:
        if self.network:
            with open(self.network) as there:
                if LIBC.setns(there.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.network}")
        with HERE, patch.dict(os.environ, self.environment, clear=True), chdir(self.here):
            asked = CliRunner().invoke(main, words, prog_name="grid")
        return asked.exit_code, asked.stdout, asked.stderr

    def job(self, ref: str = "last") -> Any:
        """A job as `job show` has it."""
        return self.json("job", "show", ref)["jobs"][0]

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all of it: agents, then their supervisors with what is below them, then the coordinator."""
        from distributed_grid.cli.dev import processes

        agents = [process for name, process in self.processes.items() if name != "coordinator"]
        for process in agents:
            if process.poll() is None:
                process.kill()
                process.wait(PATIENCE)
        for path in self.home.glob("*/supervisor.pid"):
            if (supervisor := processes.read(path)) is not None:
                processes.end_tree(supervisor, 5.0)
        for stray in processes.jobs_under(self.home):
            stray.send(signal.SIGKILL)
        coordinator = self.processes.get("coordinator")
        if coordinator is not None and coordinator.poll() is None:
            coordinator.kill()
            coordinator.wait(PATIENCE)
        if self._port is not None:
            self._port.close()

    def processes_with(self, word: str) -> list[int]:
        """Processes of this grid whose command line has this word, other than commands of its users. A process that
        has the word and no environment is counted, too; one whose environment names another place is another grid's."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(FileNotFoundError, ProcessLookupError):
                argv = Path(f"/proc/{name}/cmdline").read_bytes()
                if word.encode() not in argv or b"\0distributed_grid.cli.main\0" in argv or int(name) == os.getpid():
                    continue
                if bytes(self.home) in argv or _may_be_below(self.home, int(name)):
                    found.append(int(name))
        return found


def _may_be_below(home: Path, pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return True
    return not environment or bytes(home) in environment


@contextmanager
def founded_grid(home: Path, config: str = CONFIG) -> Iterator[Grid]:
    """A grid with an authority and without nodes; we are its operator."""
    grid = Grid(home, config)
    try:
        grid.found()
        grid.start_coordinator()
        yield grid
    finally:
        grid.close()


@contextmanager
def running_grid(
    home: Path, agents: int = 1, flags: Sequence[Sequence[str]] = (), config: str = CONFIG
) -> Iterator[Grid]:
    """A coordinator and agents n1, n2, … which share out the machine's cores, or have the `flags` given for each."""
    grid = Grid(home, config)
    cores = sorted(os.sched_getaffinity(0))
    try:
        grid.start_coordinator()
        for number in range(agents):
            mine = ",".join(map(str, cores[number::agents])) or str(cores[0])
            grid.start_agent(f"n{number + 1}", *(flags[number] if flags else ("--cores", mine)))
        if agents:
            grid.await_offers(agents)
        yield grid
    finally:
        grid.close()
