"""Signs of an active owner beside foreign use: programs that wait for a resource (PSI), and keyboard or terminal input.

PSI is per machine or per control group (v2). The machine's figure includes waits of the grid's own jobs, so only groups
without a process of the grid are read: the siblings of the groups of agent, supervisor and jobs, and of their
ancestors. A kernel without PSI shows no such signs.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from distributed_grid.agent.sampling.host import ROOT
from distributed_grid.runtime.unix import boot_clock

RESOURCES = ("cpu", "memory", "io")
QUIET = 1.0
"""Percent. No group has more pressure than the machine: below this, groups are not read."""
OURS = ("grid-", "j-")
"""Name prefixes of control groups of ours: services, and jobs of which nothing is left."""
_KEYS = b"i8042"  # the controller of built-in keyboards and touchpads


def pressure(own: Iterable[int], root: Path = ROOT) -> dict[str, float]:
    """Percent of the last ten seconds in which some foreign program had to wait, by resource, in the worst group; empty
    where the kernel does not say. `own` are the pids of all processes of the grid."""
    waiting = [name for name in RESOURCES if _some(root / "proc/pressure" / name) >= QUIET]
    if not waiting:
        return {}
    groups = list(foreign_groups(own, root))
    found = {}
    for name in waiting:
        if worst := max((_some(group / f"{name}.pressure") for group in groups), default=0.0):
            found[name] = worst
    return found


def foreign_groups(own: Iterable[int], root: Path = ROOT) -> Iterator[Path]:
    """Yield the topmost control groups without a process of the grid."""
    base = next((at for at in (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified") if _is_group(at)), None)
    if base is None:
        return
    ours = {base}
    for pid in own:
        group = base / _group_of(pid, root).lstrip("/")
        ours |= {group, *group.parents}
    todo = [base]
    while todo:
        for below in _children(todo.pop()):
            if below in ours:
                todo.append(below)
            elif not below.name.startswith(OURS):
                yield below


def _is_group(at: Path) -> bool:
    return (at / "cgroup.controllers").exists()


def _children(group: Path) -> list[Path]:
    try:
        return [Path(one.path) for one in os.scandir(group) if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _group_of(pid: int, root: Path) -> str:
    try:
        lines = (root / f"proc/{pid}/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _some(path: Path) -> float:
    """Return `avg10` of the line `some`; 0 if there is none."""
    try:
        text = path.read_text()
    except OSError:
        return 0.0
    for word in text.partition("\n")[0].split():
        name, _, value = word.partition("=")
        if name == "avg10":
            return float(value)
    return 0.0


class InputWatch:
    """Time since the last input at a terminal or built-in keyboard. (A USB keyboard is seen only by its terminal
    input.)"""

    def __init__(self, root: Path = ROOT, terminals: Callable[[], Iterable[str]] | None = None) -> None:
        self._root = root
        self._terminals = terminals or (lambda: [user.terminal for user in psutil.users() if user.terminal])
        self._keys, self._used = self._count(), self._last_used()
        self._looked = boot_clock()
        self._at: float | None = None
        """The last input, by the boot clock: the clock of the files may be set."""

    def idle(self) -> float:
        """Seconds since the last input; below 0: none since the start."""
        now, wall = boot_clock(), time.time()
        inputs: list[float] = []
        if (keys := self._count()) != self._keys:
            self._keys = keys
            inputs.append(now)
        for terminal, used in self._last_used().items():
            if used != self._used.get(terminal):
                self._used[terminal] = used
                inputs.append(max(self._looked, now - max(0.0, wall - used)))
        self._looked, self._at = now, max(inputs, default=self._at)
        return now - self._at if self._at is not None else -1.0

    def _last_used(self) -> dict[str, float]:
        """Return when each terminal was last used, by the clock of the files."""
        found = {}
        for terminal in self._terminals():
            with suppress(OSError):
                found[terminal] = os.stat(self._root / "dev" / terminal).st_atime
        return found

    def _count(self) -> int:
        try:
            lines = (self._root / "proc/interrupts").read_bytes().splitlines()
        except OSError:
            return 0
        return sum(int(word) for line in lines if _KEYS in line for word in line.split() if word.isdigit())
