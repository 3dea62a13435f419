"""A machine that a pool created: joins the grid, runs the agent, and ends itself. It does so even if no coordinator is
left to end it: when it has not joined in time, when the coordinator is silent for too long and no job runs, and when
its maximum lifetime is over.

Run as `python -m distributed_grid.agent.machine DIR`, with the fields of `Machine` in `DIR/machine.json`. The process
holds `DIR/lock` for as long as it lives, so a directory has one machine however often it is started. The file
`DIR/ended` means that the machine has ended and must not start again; `DIR/gone` means that nothing that it started is
left. With `--end` it ends the jobs that an earlier process of this machine left when it was killed.

SIGTERM ends it at once. SIGUSR1 means that its provider takes it back in `notice` seconds: its agent accepts no more
jobs, running jobs get most of that time to end, and then the machine ends.
"""

import ctypes
import fcntl
import json
import math
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from distributed_grid.agent.metadata import Metadata
from distributed_grid.protocol.text import format_duration
from distributed_grid.runtime import unix
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import configure_logs, write_whole

LOOK = 5.0
"""Maximum interval between two checks of the agent (s)."""
AGAIN = 2.0
"""Pause before joining is tried again, or an agent that has ended is started again (s)."""
STOP_SECONDS = 5.0
"""Time that the agent gets to stop, before all processes are killed (s)."""
JOIN_SECONDS = 60.0
NOBODY = "127.0.0.1:9"
"""Where no coordinator is."""
LEFT_SECONDS = 30.0
"""Time that what is left of a killed machine has to end (s)."""
HANDLE_VARIABLE = "GRID_MACHINE"
"""Environment variable with the provider's name for the machine, where only the machine itself can know that."""
GRACE, ENDING = 30.0, 10.0
"""Of the time until its provider takes a machine (s): the grace of jobs that are recalled, and what is reserved for the
end of the machine itself; at most half of that time each."""
_PR_SET_CHILD_SUBREAPER = 36

log = get_logger("machine")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a machine. `url`: the coordinator's, if no `invitation` has it. `ends_by`: seconds since the
    epoch, by the clock of a coordinator that may be wrong; so `life`, the seconds that it runs at the longest, counts
    too (0: not told). `cores` numbers virtual ones; 0: all of the machine. `gpus` 0: none, whatever is there. `handle`:
    its name at the provider. `metadata`: the metadata service (aws, gcp) that it may query; `spot`: also whether it is
    taken back. `notice`: seconds from SIGUSR1 until it is taken. `at_end`: the program that shuts the machine down;
    `scratch`: nothing of its directory is kept."""

    name: str
    url: str = ""
    ends_by: float
    life: float = 0.0
    join_within: float
    abandoned_after: float
    labels: dict[str, str] = {}
    cores: int = 0
    memory: int = 0
    gpus: int | None = None
    trust: str = "owner"
    handle: str = ""
    metadata: Literal["", "aws", "gcp"] = ""
    spot: bool = False
    notice: float = 60.0
    at_end: tuple[str, ...] = ()
    scratch: bool = False


CONFIG = """\
resource_sharing:
  monitoring_interval_seconds: 1
  owner_pressure: 100
  thresholds: {cpu_percent_max: 100, memory_percent_max: 100, memory_min_gb: 0.1}
agent: {offer_after: 0, reserve_memory_gb: 0}
"""
"""The configuration of the agent: nobody else uses a machine that the grid has created."""


class Timer:
    """Decides when a machine ends itself. Times are of the boot clock, which goes on while the machine sleeps. `again`:
    it has run before."""

    def __init__(self, of: Machine, now: float, wall: float, again: bool = False) -> None:
        self._of, self._began = of, now
        left = min(of.ends_by - wall, of.life or math.inf)
        if left <= 0 and of.life and not again:  # the coordinator's clock is far behind
            left = of.life
        self._life_ends = now + max(0.0, left)
        self._heard: float | None = None
        self._jobs = 0

    def look(self, now: float, connected: bool, jobs: int) -> None:
        """Take in the agent's status: whether it is connected, and how many jobs are alive."""
        self._jobs = jobs
        if connected or (jobs and self._heard is None):  # a job came from the coordinator
            self._heard = now

    def over(self, now: float) -> str:
        """Why the machine is to end now; empty: it is not."""
        if now >= self._life_ends:
            return "its life is over"
        if self._heard is None:
            if now >= self._began + self._of.join_within:
                return f"it has not joined within {format_duration(self._of.join_within)}"
        elif not self._jobs and now >= self._heard + self._of.abandoned_after:
            return f"the coordinator is silent for {format_duration(self._of.abandoned_after)}, and no job runs"
        return ""

    def wait(self, now: float) -> float:
        """Seconds until the next check."""
        soonest = self._life_ends
        if self._heard is None:
            soonest = min(soonest, self._began + self._of.join_within)
        return min(LOOK, max(0.1, soonest - now), max(0.1, self._of.abandoned_after / 4))


def agent_status(state_dir: Path) -> dict[str, Any] | None:
    """The agent's status; None: it does not answer."""
    try:
        connection = unix.connected(state_dir / "agent.sock", 2.0)
    except OSError:
        return None
    try:
        connection.sendall(b'{"op": "status"}\n')
        with connection.makefile("rb") as answers:
            said = json.loads(answers.readline(1 << 20))
        return said if isinstance(said, dict) and "jobs" in said else None
    except (OSError, ValueError):
        return None
    finally:
        connection.close()


def descendants(of: int) -> list[int]:
    """Return all processes below this one."""
    found: list[int] = []
    waiting = [of]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
                found += map(int, children)
                waiting += map(int, children)
    return found


class Running:
    """A machine with its agent."""

    def __init__(self, folder: Path, of: Machine) -> None:
        self._folder, self._of = folder, of
        self._state_dir = folder / "agent"
        self._grid = [sys.executable, "-m", "distributed_grid.cli.main", "-c", str(folder / "agent.yaml")]
        self._agent: subprocess.Popen[bytes] | None = None
        self._not_before, self._connects = 0.0, True
        self._wake, self._signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ended_by = ""
        self._taken, self._notice, self._cordoned = False, of.notice, False
        self._metadata = Metadata(of.metadata) if of.metadata else None
        self._looked = -math.inf
        self._leaving: socket.socket | None = None
        self._cordon: socket.socket | None = None
        """The connection with the order to take no more jobs, until a later order replaces it."""
        self._leaves_by = math.inf

    def run(self) -> str:
        """Run until the machine ends; returns why it does."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        write_whole(self._folder / "agent.yaml", CONFIG)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told)
        signal.signal(signal.SIGUSR1, self._noticed)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._signalled)
        timer = Timer(self._of, unix.boot_clock(), time.time(), again=(self._folder / "ready").exists())
        write_whole(self._folder / "ready", f"{os.getpid()}\n")
        while not self._ended_by or self._reprieved():
            now = unix.boot_clock()
            self.look_for_notice(now)
            if self.keep_order(now):
                return "its provider takes it back"
            self._keep_up(now)
            status = agent_status(self._state_dir)
            if status is not None:
                timer.look(now, status["connected_for"] is not None, len(status["jobs"]))
            if why := timer.over(unix.boot_clock()):
                return why
            quick = status is None or status["connected_for"] is None or self._taken
            self._sleep(min(0.5 if quick else LOOK, timer.wait(now)))
        return self._ended_by

    def _told(self, *_: object) -> None:
        self._ended_by = "its provider was asked to end it"

    def _noticed(self, *_: object) -> None:
        self._taken = True

    def _reprieved(self) -> bool:
        """Whether the request to end is about a machine that is taken back: its jobs may use the time that is left."""
        before, self._looked = self._taken, -math.inf
        self.look_for_notice(unix.boot_clock())
        if self._taken and not before:
            self._ended_by = ""
        return not self._ended_by

    def look_for_notice(self, now: float) -> None:
        """Ask a spot machine's metadata service whether the machine is taken back. If that is only likely, the machine
        takes no more jobs."""
        if self._metadata is None or not self._of.spot or self._taken or now < self._looked + LOOK:
            return
        self._looked = now
        if (found := self._metadata.notice(time.time())) is None:
            return
        if found.seconds is not None:
            self._taken, self._notice = True, found.seconds
        elif not self._cordoned:
            self._cordoned = True
            log.info("takes no more jobs", machine=self._of.name, why=found.why)

    def keep_order(self, now: float) -> bool:
        """Order the agent to act on a notice; returns whether that is done, and the machine is to end."""
        if self._taken:
            return self.left(now)
        if self._cordoned:
            self._order({"op": "stop", "jobs": "keep"})
        return False

    def left(self, now: float) -> bool:
        """Whether all jobs have left, or the time for that is over. Repeats the order until the agent has it: it takes
        no more jobs while the connection with the order is open."""
        if self._leaves_by == math.inf:
            # Withdrawn when the next order is answered: in between the agent would take jobs.
            self._cordon, self._leaving = self._leaving, None
            self._leaves_by = now + max(0.0, self._notice - min(ENDING, self._notice / 2))
            log.info("taken back by its provider", machine=self._of.name, seconds=self._notice)
        if now >= self._leaves_by:
            return True
        grace = min(GRACE, self._notice / 2)
        said = self._order({"op": "stop", "jobs": "drain", "deadline": max(0.1, self._leaves_by - now - grace)})
        if said and self._cordon is not None:
            self._cordon.close()
            self._cordon = None
        return b'"ready"' in said

    def _order(self, order: dict[str, Any]) -> bytes:
        """Send the agent this order, unless it has it already; returns its answer."""
        try:
            if self._leaving is None:
                self._leaving = unix.connected(self._state_dir / "agent.sock", 2.0)
                self._leaving.sendall(json.dumps(order).encode() + b"\n")
                self._leaving.setblocking(False)
            said = self._leaving.recv(65536)
        except BlockingIOError:
            return b""
        except OSError:
            said = b""
        if not said:  # that agent has ended
            self._let_go()
        return said

    def _let_go(self) -> None:
        """Withdraw the agent's order."""
        if self._leaving is not None:
            self._leaving.close()
            self._leaving = None

    def _sleep(self, seconds: float) -> None:
        select.select([self._wake], [], [], seconds)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def _keep_up(self, now: float) -> None:
        """Join and start the agent, where that is not done."""
        self._reap()
        if self._agent is not None and self._agent.poll() is None:
            return
        if now < self._not_before:
            return
        self._not_before = now + AGAIN
        if not self._joined():
            return
        of = self._of
        words = ["agent", "run", "--name", of.name, "--state-dir", str(self._state_dir), "--trust", of.trust]
        if of.cores:
            words += ["--virtual", "--cores", f"0-{of.cores - 1}" if of.cores > 1 else "0"]
        if of.gpus == 0:
            words += ["--gpus", "none"]
        if of.memory:
            words += ["--memory", f"{of.memory >> 20}M"]
        for name, value in of.labels.items():
            words += ["--label", f"{name}={value}"]
        member = (self._state_dir / "identity").exists()
        known = ["--coordinator", of.url] if of.url and not member else []
        if not self._connects:
            known = ["--coordinator", f"{'wss' if member else 'ws'}://{NOBODY}"]
        handle = of.handle or os.environ.get(HANDLE_VARIABLE, "") or (self._metadata.handle() if self._metadata else "")
        environment = {**os.environ, HANDLE_VARIABLE: handle}
        self._agent = subprocess.Popen(
            [*self._grid, *known, *words], stdin=subprocess.DEVNULL, cwd="/", env=environment
        )

    def _joined(self) -> bool:
        """Join by the invitation, if there is one; it is removed when it is used."""
        invitation = self._folder / "invitation"
        try:
            text = invitation.read_text()
        except OSError:
            return True
        words = ["agent", "join", "-", "--name", self._of.name, "--state-dir", str(self._state_dir)]
        try:
            said = subprocess.run([*self._grid, *words], input=text.encode(), timeout=JOIN_SECONDS, cwd="/")
        except subprocess.TimeoutExpired:
            return False
        if said.returncode == 0:
            invitation.unlink(missing_ok=True)
        return said.returncode == 0

    def _reap(self) -> None:
        """Reap children that have ended and that no other part waits for."""
        for pid in {pid for pid in descendants(os.getpid())} - (
            {self._agent.pid} if self._agent is not None else set()
        ):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def end_left(self) -> bool:
        """End the jobs of a machine whose own process was killed, by its agent, or by one that adopts what its
        supervisor has left; whether no job is left."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is told to end already
        self._connects = False  # nobody lets it in any more, and an agent that is refused ends
        (self._folder / "invitation").unlink(missing_ok=True)  # it is not to join any more
        deadline = unix.boot_clock() + LEFT_SECONDS
        while (now := unix.boot_clock()) < deadline:
            if agent_status(self._state_dir) is None:
                self._keep_up(now)
            elif b'"ready"' in self._order({"op": "stop", "jobs": "kill"}):
                return True
            time.sleep(0.1)
        return False

    def end(self) -> None:
        """End all that was started."""
        if self._agent is not None and self._agent.poll() is None:
            self._agent.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._agent.wait(STOP_SECONDS)
        while left := descendants(os.getpid()):
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)


def main(folder: Path, left: bool = False) -> int:
    """Run this machine until it ends, or end what is `left` of it; returns the exit code."""
    configure_logs("info")
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (most, most))
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("this machine runs already", folder=str(folder))
        return 0
    of = msgspec.json.decode((folder / "machine.json").read_bytes(), type=Machine)
    running = Running(folder, of)
    if left:
        over = running.end_left()
        running.end()
        if over:
            (folder / "gone").touch()
        return 0
    if (folder / "ended").exists():
        log.info("this machine is over", folder=str(folder))
        return 1
    try:
        why = running.run()
    finally:
        (folder / "ended").touch()
        running.end()
    (folder / "gone").touch()
    log.info("the machine ends", machine=of.name, why=why)
    if of.scratch:
        shutil.rmtree(folder, ignore_errors=True)
    if of.at_end:
        subprocess.run(of.at_end, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), left=sys.argv[2:] == ["--end"]))
