"""Machines as processes on this machine, each with a real agent. For trying out, and for one large machine that is
shared out in parts.

Each has a directory (agent/machine.py). It is alive while somebody holds the lock there, or anything that names the
directory runs. The mark `ended` is set before it is ended, also where it never was: a call to create it that comes late
is refused.
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
KEPT = 3600.0
"""For how long the directory of a machine that is over is kept, with its log (s)."""
LOOK = 0.05


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
        with (folder / "log").open("ab") as log:
            subprocess.Popen(
                [sys.executable, "-m", "distributed_grid.agent.machine", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )

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
        deadline, first = time.monotonic() + GRACE, True
        there = False
        while found := _processes(folder):
            there = True
            late = time.monotonic() > deadline
            if first or late:
                _signal(found, signal.SIGKILL if late or not _lives(folder) else signal.SIGTERM, folder)
                first = False
            time.sleep(LOOK)
        return there

    def list_workers(self) -> list[Listed]:
        """All that run. Removes what is left of those that ended long ago."""
        found: list[Listed] = []
        for folder in sorted(self._home.iterdir()) if self._home.is_dir() else []:
            if not _processes(folder):
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
                )
            )
        return found

    def get_available_resources(self) -> dict[str, Any]:
        """What this machine has."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        return {"cpus": os.cpu_count() or 1, "memory": memory}

    def _folder(self, name: str) -> Path:
        if not name or "/" in name or name.startswith("."):
            raise ProviderRefused(Answer.REFUSED, f"a machine cannot be called {name[:80]!r}")
        return self._home / name


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
    """Processes of ours whose command line names this directory: the machine, its agent and its supervisor."""
    here, inside = os.fsencode(folder), os.fsencode(folder) + b"/"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                    if any(word == here or word.startswith(inside) for word in words):
                        found.append(int(name))
    return found


def _signal(pids: list[int], number: int, folder: Path) -> None:
    """Signal the machine, or kill all of it. A pid is held while it is looked at again, so that no other is hit."""
    for pid in pids:
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                meant = number == signal.SIGKILL or b"distributed_grid.agent.machine" in words
                if meant and any(word.startswith(os.fsencode(folder)) for word in words):
                    signal.pidfd_send_signal(pidfd, number)
            finally:
                os.close(pidfd)
