"""Signs of an active owner beside foreign use: programs that have to wait (PSI), and keyboard or terminal input.

The kernel's figures of pressure are of the whole machine, or of one control group (v2). The machine's contain what our
own jobs wait for, so only those of groups are taken in which nothing of ours is: the ones beside the groups of our
agent, supervisor and jobs, and beside those above them. Where the kernel has no such figures, there are none.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from distributed_grid.agent.sampling.host import ROOT

RESOURCES = ("cpu", "memory", "io")
QUIET = 1.0
"""Percent. A group cannot have more pressure than the machine: below this nobody looks at groups."""
OURS = ("grid-", "j-")
"""What the names of control groups begin with that are ours: services, and jobs of which nothing is left."""
_KEYS = b"i8042"  # the controller of built-in keyboards and touchpads


def pressure(own: Iterable[int], root: Path = ROOT) -> dict[str, float]:
    """Percent of the last ten seconds in which some program of others had to wait, by resource: the worst group's.
    Nothing where the kernel does not say, or nobody waits. `own` are the pids of all processes of the grid."""
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
    """The control groups nearest to the root in which there is nothing of ours."""
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
        lines = (root / f"proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _some(path: Path) -> float:
    """`avg10` of the line `some`; 0 where there is none."""
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
    """Since when nobody has used a terminal here, or a built-in keyboard. (One at a USB port is only seen by what is
    typed into a terminal with it.)"""

    def __init__(self, root: Path = ROOT, terminals: Callable[[], Iterable[str]] | None = None) -> None:
        self._root = root
        self._terminals = terminals or (lambda: [user.terminal for user in psutil.users() if user.terminal])
        self._keys = self._count()
        self._at = time.time()
        """When they moved last (wall clock, as files have it)."""
        self._ever = False

    def idle(self) -> float:
        """Seconds since then; below 0: not since we began to look."""
        now = time.time()
        if (keys := self._count()) != self._keys:
            self._keys, self._at, self._ever = keys, now, True
        for terminal in self._terminals():
            try:
                used = os.stat(self._root / "dev" / terminal).st_atime
            except OSError:
                continue
            if used > self._at:
                self._at, self._ever = used, True
        return max(0.0, now - self._at) if self._ever else -1.0

    def _count(self) -> int:
        try:
            lines = (self._root / "proc/interrupts").read_bytes().splitlines()
        except OSError:
            return 0
        return sum(int(word) for line in lines if _KEYS in line for word in line.split() if word.isdigit())
