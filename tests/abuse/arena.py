"""A real grid with one node, two users and a neighbour at work: what attacks are made in. Runs inside an enclosure
(enclosure.py) or inside the booted machine of tests/systemd, as root.

Under `user` the agent is root's, as the installed service is; below it is that of an ordinary user, who lends a machine
of their own.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_grid.cli.dev import processes
from tests import forked
from tests.grid_fixture import CONFIG, GRID, Grid

JOBS = Path(__file__).parent / "jobs"
PYTHON = "/usr/bin/python3"
NODE = "lab1"
PATIENCE = 60.0
SECRET = "the-secret-of-ann"
OWNER = "lender"
WARNING = ('"level": "warning"', '"level": "error"')


@dataclass
class Neighbour:
    """The neighbour's job: who it is, and where its process is seen from here."""

    job: str
    allocation: str
    pid: int
    start: int
    token: str
    uid: int


def awaited(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """What `holds` returns once it is true. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := holds():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"not within {seconds:g} s: {what}")


class Arena:
    """A grid whose node has this level of walls. `environment` goes to the agent."""

    def __init__(self, level: str, environment: dict[str, str] | None = None) -> None:
        self.level = level
        self.base = Path(tempfile.mkdtemp(prefix="abuse-", dir="/run"))
        self.base.chmod(0o755)
        self.programs = self.base / "programs"
        shutil.copytree(JOBS, self.programs, ignore=shutil.ignore_patterns("__pycache__"))
        self.state = self.base / "grid" / NODE
        self.coordinator_state = self.base / "grid" / "coordinator"
        self.environment = walls(level) | (environment or {})
        self.grid = Grid(self.base / "grid", CONFIG)
        self.config = self.grid.environment["XDG_CONFIG_HOME"]
        self.neighbour: Neighbour | None = None

    # --- services -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Found the grid, and wait until its node offers cores and the neighbour is at work."""
        self.grid.found()
        self.grid.start_coordinator()
        self.grid.join(NODE, "--node", NODE)
        if self.level != "user":
            for path in [self.state, *self.state.rglob("*")]:
                shutil.chown(path, OWNER, OWNER)
        self.start_agent()
        self.grid.await_offers(1)
        for user in ("ann", "mallory"):
            token = self.grid.run("token", "create", "--role", "client", "--user", user).stdout.strip()
            joined = self.run(user, "login", token)
            assert joined.returncode == 0, joined.stderr
        self.settle()

    def start_agent(self) -> None:
        """Start the agent as its owner."""
        argv = [*GRID, "-c", str(self.grid.home / "grid.yaml"), "agent", "run", "--name", NODE]
        argv += ["--state-dir", str(self.state)]
        argv += ["--virtual"] if len(os.sched_getaffinity(0)) < 2 else []
        who: dict[str, Any] = {} if self.level == "user" else {"user": OWNER, "group": OWNER, "extra_groups": []}
        with (self.grid.home / f"{NODE}.log").open("ab") as log:
            self.grid.processes[NODE] = subprocess.Popen(
                argv,
                cwd="/",
                env=self.grid.environment | self.environment | {"HOME": "/nonexistent"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **who,
            )

    def restart_agent(self) -> None:
        """kill -9 it, and start it again."""
        self.grid.kill(NODE, signal.SIGKILL)
        self.start_agent()

    @property
    def agent(self) -> int:
        """The agent's pid; 0: it is gone."""
        process = self.grid.processes[NODE]
        return process.pid if process.poll() is None else 0

    @property
    def supervisor(self) -> int:
        """The supervisor's pid; 0: there is none."""
        found = processes.read(self.state / "supervisor.pid")
        return found.pid if found is not None else 0

    @property
    def coordinator(self) -> int:
        """The coordinator's pid; 0: it is gone."""
        process = self.grid.processes["coordinator"]
        return process.pid if process.poll() is None else 0

    def log(self) -> str:
        """All that the agent and the coordinator logged."""
        return "".join((self.grid.home / f"{name}.log").read_text(errors="replace") for name in (NODE, "coordinator"))

    def warnings(self) -> list[str]:
        """What of it is for an operator to look at."""
        return [line for line in self.log().splitlines() if any(word in line for word in WARNING)]

    # --- users --------------------------------------------------------------------------------------------------------

    def run(self, user: str, *words: str, timeout: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """`grid …` as this user of the grid, in an empty folder of theirs, `here` of which is made anew."""
        try:
            if self.grid.command == GRID and forked.can(words, environment := self._environment(user)):
                done = forked.grid(words, environment, self.folder(user), timeout)
                return subprocess.CompletedProcess(words, done.returncode, *map(_text, (done.stdout, done.stderr)))
            with self.begin(user, *words) as process:
                try:
                    out, err = process.communicate(timeout=timeout)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise subprocess.TimeoutExpired(words, timeout, *process.communicate()) from None
        except subprocess.TimeoutExpired as late:
            out, err = late.stdout or b"", late.stderr or b""
            return subprocess.CompletedProcess(words, 124, _text(out), _text(err) + "\nHANGS")
        return subprocess.CompletedProcess(words, process.returncode, _text(out), _text(err))

    def begin(self, user: str, *words: str) -> "subprocess.Popen[bytes]":
        """The same, not waited for."""
        return subprocess.Popen(
            [*self.grid.command, *words],
            cwd=self.folder(user),
            env=self._environment(user),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def _environment(self, user: str) -> dict[str, str]:
        return self.grid.environment | {"XDG_CONFIG_HOME": str(self.base / f"of-{user}")}

    def folder(self, user: str) -> Path:
        """Where a user's commands run."""
        here = self.base / f"here-{user}"
        here.mkdir(exist_ok=True)
        return here

    # --- the neighbour ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let a neighbour of the user ann move in."""
        token = f"{time.monotonic_ns() % 10**9:09}"
        ending = self.base / f"end-{token}"
        submitted = self.run(
            "ann", "run-shared", "-d", "--cpus", "1", "--mem", "128M", "--no-ship", "-e", f"ANN={SECRET}", "--",
            PYTHON, "-B", str(self.programs / "neighbour.py"), token, str(ending),
        )  # fmt: skip
        assert submitted.returncode == 0, submitted.stderr
        job = submitted.stdout.split()[-1]

        def at_work() -> Neighbour | None:
            for pid in self.with_word(token):
                if b"neighbour.py" in cmdline(pid) and (start := started(pid)):
                    shown = json.loads(self.run("ann", "-o", "json", "job", "show", job).stdout)["jobs"][0]
                    uid = os.stat(f"/proc/{pid}").st_uid
                    return Neighbour(job, shown["allocation"], pid, start, token, uid)
            return None

        try:
            self.neighbour = awaited(at_work, "", 30)
        except TimeoutError:
            shown = self.run("ann", "job", "show", job).stdout
            raise TimeoutError(f"the neighbour is not at work: {shown}{self.log()[-3000:]}") from None
        try:
            awaited(lambda: self.beats()[0] > 1, "", 20)
        except TimeoutError:
            why = self.run("ann", "logs", job)
            raise TimeoutError(f"no output of the neighbour: {self.beats()}, {why}") from None

    def beats(self) -> tuple[int, str]:
        """How far the neighbour has counted, and what is wrong with its output; empty: nothing."""
        assert self.neighbour is not None
        try:
            lines = (self.state / "allocs" / self.neighbour.allocation / "stdout").read_text().splitlines()
        except OSError as error:
            return 0, f"its output cannot be read: {error}"
        numbers = [str(number + 1) for number in range(len(lines))]
        odd = [line for line, number in zip(lines, numbers, strict=True) if line != number]
        return len(lines), f"its output has {odd[0][:200]!r}" if odd else ""

    def grouped(self) -> bool:
        """Whether the neighbour's cores are kept by a control group."""
        assert self.neighbour is not None
        mine, agents = (_groups(pid) for pid in (self.neighbour.pid, self.agent))
        if "cpuset" in mine:
            return mine["cpuset"] != agents.get("cpuset")
        return Path(f"/sys/fs/cgroup{mine.get('', '')}/cpuset.cpus").exists() and mine != agents

    def dismiss(self) -> str:
        """Tell the neighbour to end; what is wrong with its end, empty: nothing."""
        assert self.neighbour is not None
        (self.base / f"end-{self.neighbour.token}").touch()
        done = self.run("ann", "job", "wait", self.neighbour.job, timeout=20)
        shown = json.loads(self.run("ann", "-o", "json", "job", "show", self.neighbour.job).stdout)["jobs"][0]
        attempts = shown.get("attempt", 1)
        if done.returncode != 7 or attempts != 1:
            return f"the neighbour ended with {done.returncode} in attempt {attempts}: {shown.get('outcome')}"
        return self.beats()[1]

    def with_word(self, word: str) -> list[int]:
        """Processes that have this word in their command line or environment, other than clients of ours."""
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            line = cmdline(int(name))
            if b"distributed_grid.cli.main" in line:
                continue
            environ = b""
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{name}/environ").read_bytes()
            if word.encode() in line + environ and state_of(int(name)) not in ("Z", "X", ""):
                found.append(int(name))
        return found

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all of it and leave nothing."""
        supervisor = self.supervisor
        self.grid.close()
        if supervisor:
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGKILL)
        if self.neighbour is not None:
            end(self.with_word(self.neighbour.token))
        shutil.rmtree(self.base, ignore_errors=True)


def _text(said: bytes) -> str:
    return said.decode("latin-1")


def walls(level: str) -> dict[str, str]:
    """What an agent's environment has to say for this level of walls."""
    # Below `namespace` a node runs only its owners' jobs, if its owner does not say otherwise; here it is said.
    return {"GRID_AGENT__TRUST": "everyone", "GRID_AGENT__WALLS": level}


def cmdline(pid: int) -> bytes:
    """A process's arguments; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _groups(pid: int) -> dict[str, str]:
    """The control groups of a process by controller; "" for version 2."""
    found: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        found |= dict.fromkeys(names.split(","), path)
    return found


def started(pid: int) -> int:
    """When a process began, in ticks since boot; 0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def state_of(pid: int) -> str:
    """The letter of a process's state; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def end(pids: list[int]) -> None:
    """SIGKILL to these."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def arena(level: str, **options: Any) -> Iterator[Arena]:
    """An arena that is at work; nothing is left of it."""
    made = Arena(level, **options)
    try:
        made.start()
        yield made
    finally:
        made.close()
