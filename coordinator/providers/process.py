"""Machines as processes on this machine, each with a real agent. To try out pools, and to divide one large machine into
parts.

Each machine has a directory (agent/machine.py). The machine exists until its own program has ended all that it started
and has made the file `gone`; if that program was killed, it is run once more to do so. Before a machine is ended the
file `ended` is made, even if the machine never existed: a call to create it that comes late is refused.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.core.scaling.state import Answer, Listed
from distributed_grid.coordinator.providers.base import CloudProviderBase, ProviderRefused, WorkerSpec, machine_json
from distributed_grid.runtime.service import write_whole

READY_SECONDS = 15.0
"""Time for a machine to say that it has begun (s)."""
GRACE = 8.0
"""Time for a machine to end all that it has started, before that is killed (s)."""
LEFT_GRACE = 35.0
"""The same for the program that ends what a killed machine has left (s): less than what the coordinator waits for."""
KEPT = 3600.0
"""For how long the directory of a machine that is over is kept, with its log (s)."""
LOOK = 0.05
PID_FILE = "supervisor.pid"
"""Of the supervisor, in the agent's directory: a machine without it never had a job."""
AGENT = b"distributed_grid.cli.main"
PROGRAMS = (b"distributed_grid.agent.machine", AGENT, b"/supervisor/main.py")
"""What runs as a part of a machine, as a word of its command line."""


class ProcessProvider(CloudProviderBase):
    """`settings`: `directory`, below which each machine has one."""

    def __init__(self, grid: str, settings: Mapping[str, Any]) -> None:
        super().__init__(grid, settings)
        self._home = Path(settings["directory"]).expanduser() / grid

    def create_worker(self, spec: WorkerSpec) -> str:
        """Create it, and wait until it has begun."""
        folder = self._folder(spec.name)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if (folder / "ended").exists():
                raise ProviderRefused(Answer.REFUSED, f"{spec.name} has ended")
            if not (folder / "ready").exists() and not _lives(folder):
                self._begin(folder, spec)
            self._await(folder)
        except OSError as error:
            raise ProviderRefused(Answer.REFUSED, f"{folder}: {error.strerror or error}") from None
        return spec.name

    def _begin(self, folder: Path, spec: WorkerSpec) -> None:
        if spec.invitation:
            descriptor = os.open(folder / "invitation", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "w") as file:
                file.write(spec.invitation + "\n")
        told = {**machine_json(spec), "handle": spec.name}
        write_whole(folder / "machine.json", msgspec.json.encode(told).decode())
        _run(folder)

    def _await(self, folder: Path) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not (folder / "ready").exists():
            if time.monotonic() > deadline or (folder / "ended").exists():
                said = (folder / "log").read_bytes()[-500:].decode(errors="replace").strip().splitlines()
                raise ProviderRefused(Answer.REFUSED, f"it does not start: {said[-1] if said else 'it says nothing'}")
            time.sleep(LOOK)

    def terminate_worker(self, name: str, handle: str = "") -> bool:
        """End it, with all that it has started."""
        folder = self._folder(handle or name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "ended").touch()
        there, grace = _is_there(folder), GRACE
        if _lives(folder):
            _signal(folder, signal.SIGTERM)
        elif there and (folder / "machine.json").exists():
            _run(folder, "--end")
            grace = LEFT_GRACE
        deadline = time.monotonic() + grace
        while _processes(folder):
            over = (folder / "gone").exists() and not _lives(folder)
            if over or time.monotonic() > deadline:
                _signal(folder, signal.SIGKILL)
            time.sleep(LOOK)
        return there

    def list_workers(self) -> list[Listed]:
        """Return all running machines. Removes the remains of those that ended long ago."""
        found: list[Listed] = []
        for folder in sorted(self._home.iterdir()) if self._home.is_dir() else []:
            if not _is_there(folder):
                with suppress(OSError):
                    if (folder / "ended").exists() and time.time() - folder.stat().st_mtime > KEPT:
                        shutil.rmtree(folder)
                continue
            told: dict[str, Any] = {}
            with suppress(OSError, msgspec.DecodeError):
                told = msgspec.json.decode((folder / "machine.json").read_bytes())
            found.append(
                Listed(
                    handle=folder.name,
                    name=folder.name,
                    pool=str(told.get("pool", "")),
                    type=str(told.get("type", "")),
                    zone=str(told.get("zone", "")),
                    born=float(told.get("born", 0.0)),
                    ends_by=float(told.get("ends_by", 0.0)),
                    ending=(folder / "ended").exists(),
                    failed=(killed := _is_killed(folder)),
                    why="its processes were killed" if killed else "",
                )
            )
        return found

    def get_available_resources(self) -> dict[str, Any]:
        """Return the resources of this machine."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        return {"cpus": os.cpu_count() or 1, "memory": memory}

    def _folder(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise ProviderRefused(Answer.REFUSED, f"a machine cannot be called {name[:80]!r}")
        return self._home / name


def _run(folder: Path, *words: str) -> None:
    """Run the program of a machine, which outlives us."""
    with (folder / "log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "distributed_grid.agent.machine", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def _is_there(folder: Path) -> bool:
    """Whether anything of a machine runs, or may: it had jobs, and has not said that they are gone."""
    return bool(_processes(folder)) or ((folder / "agent" / PID_FILE).exists() and not (folder / "gone").exists())


def _is_killed(folder: Path) -> bool:
    """Whether its own program was killed, and the agent with it: it is not restarted."""
    if not (folder / "ready").exists() or (folder / "ended").exists() or _lives(folder):
        return False
    return not any(AGENT in _words(pid) for pid in _processes(folder))


def _lives(folder: Path) -> bool:
    """Whether the machine itself runs."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def _processes(folder: Path) -> list[int]:
    """Return the processes of this user that are the machine: itself, its agent, its supervisor and spawners. Programs
    that only name a file of it, such as an editor, do not count."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _is_of(int(name), folder):
            found.append(int(name))
    return found


def _is_of(pid: int, folder: Path) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
    except OSError:
        return False
    words = _words(pid)
    here = os.fsencode(folder)
    return any(
        word in (here, here + b"/agent.yaml", here + b"/agent")
        and any(before.endswith(program) for before in words[:number] for program in PROGRAMS)
        for number, word in enumerate(words)
    )


def _words(pid: int) -> list[bytes]:
    """The command line of a process; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _signal(folder: Path, number: int) -> None:
    """Signal the machine itself, or kill all of it. A pid is held while it is looked at again, so that no other is
    hit."""
    for pid in _processes(folder):
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                itself = b"distributed_grid.agent.machine" in _words(pid)
                if (itself or number == signal.SIGKILL) and _is_of(pid, folder):
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)
