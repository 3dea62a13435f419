"""The processes of a dev grid: known by pid and start time, and signalled only through a pidfd, so never another
process."""

import itertools
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process, known also when its pid is reused: pid and start time (clock ticks since boot)."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it runs; a zombie does not."""
        return _start_of(self.pid) == self.start

    def send(self, number: int) -> None:
        """Signal it, unless it has ended and its pid is another process's."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(fd)

    def wait(self, seconds: float) -> bool:
        """Whether it ends within this time, with all its threads: until then its files stay open."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            if _stat(self.pid)[1] != self.start:
                return True
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        finally:
            os.close(fd)

    def end(self, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds."""
        self.send(signal.SIGTERM)
        if not self.wait(grace):
            self.send(signal.SIGKILL)
            self.wait(grace)


def read(path: Path) -> Process | None:
    """The process that a pid file names; None if it does not run."""
    try:
        told = json.loads(path.read_text())
        process = Process(int(told["pid"]), int(told["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process if process.alive else None


def services(home: Path) -> dict[Path, Process]:
    """Our coordinators and agents that run on a directory below `home`, by that, from the moment when they exist: their
    pid files they write only once they have loaded all they need."""
    found: dict[Path, Process] = {}
    for process, words in _ours():
        if b"run" in words and b"--state-dir" in words[:-1]:
            state = _below_home(home, words[words.index(b"--state-dir") + 1])
            # One that it has forked has the same command line, and began later.
            if state is not None and (state not in found or process.start < found[state].start):
                found[state] = process
    return found


def supervisors(home: Path) -> list[Process]:
    """Return this user's supervisors on a directory below `home`, the oldest first."""
    found = [
        process
        for process, words in _ours()
        for program, state in itertools.pairwise(words)
        if program.endswith(b"/supervisor/main.py") and _below_home(home, state) is not None
    ]
    return sorted(found, key=lambda process: process.start)


def _below_home(home: Path, word: bytes) -> Path | None:
    """The directory in `home` that a word names, however it was written."""
    state = Path(os.fsdecode(word))
    return home / state.name if os.path.realpath(state.parent) == os.path.realpath(home) else None


def _ours() -> Iterator[tuple[Process, list[bytes]]]:
    """The processes of this user, with their command lines."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[:-1]
            status = Path(f"/proc/{name}/status").read_text(errors="replace")  # its files may be root's
        except OSError:
            continue
        began = _start_of(int(name))
        if began is not None and int(status.partition("\nUid:")[2].split()[1]) == os.geteuid():
            yield Process(int(name), began), words


def start(argv: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path) -> Process:
    """Start a program in a session of its own, so that it outlives this process."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            argv,
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    child.returncode = 0  # it is not ours to wait for
    return Process(child.pid, _start_of(child.pid) or 0)


def end_tree(root: Process, seconds: float) -> None:
    """End everything below a process, and then it. What is below may start more while we look, so look again."""
    until = time.monotonic() + seconds
    while below := list(_below(root.pid)):
        for process in below:
            process.send(signal.SIGKILL)
        for process in below:
            process.wait(0.5)
        if time.monotonic() > until:
            break
    root.end(2.0)


def jobs_under(directory: Path) -> Iterator[Process]:
    """Processes of jobs of this dev grid, recognised by their environment, whoever is their parent."""
    ours = {path.name for path in directory.glob("*/allocs/*")}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for one in environment:
            if one.startswith(b"GRID_ALLOCATION_ID=") and os.fsdecode(one[19:]) in ours:
                began = _start_of(int(name))
                if began is not None:
                    yield Process(int(name), began)


def _below(pid: int) -> Iterator[Process]:
    """Yield all live descendants, the deepest first."""
    for child in _children(pid):
        yield from _below(child)
        began = _start_of(child)
        if began is not None:
            yield Process(child, began)


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(one) for task in tasks for one in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return []


def _start_of(pid: int) -> int | None:
    """Return the start time of a process; None if there is none, or only a zombie."""
    state, start = _stat(pid)
    return None if state in ("Z", "X") else start


def _stat(pid: int) -> tuple[str, int | None]:
    """Return state and start time of a process; empty and None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", None
    return fields[0], int(fields[19])
