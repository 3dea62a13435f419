"""Load shedding by the coordinator's own memory, so that there is room for what must not be lost. From four fifths of
the limit on, viewers and slow readers are disconnected; at the limit, new jobs are refused. Results and other reports
of nodes about their jobs are always accepted."""

import asyncio
import ctypes
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import to_next_second

SHED_AT, SHED_UNTIL = 0.80, 0.75
REFUSE_AT, REFUSE_UNTIL = 1.00, 0.95
"""Fractions of the limit at which each level begins and ends, apart so that it does not oscillate."""
PART = 0.80
"""The limit as a fraction of the memory that this process may have, where none is configured."""
CGROUPS = Path("/sys/fs/cgroup")

log = get_logger("memory")


class Busy(GridError):
    """New jobs are refused for lack of memory."""

    code = "busy"


class Shortage(IntEnum):
    """The services that are given up for lack of memory."""

    NONE = 0
    SHED = 1
    REFUSE = 2


def judge(used: int, mark: int, before: Shortage) -> Shortage:
    """The level for this use, given the one before."""
    if used >= mark * (REFUSE_UNTIL if before is Shortage.REFUSE else REFUSE_AT):
        return Shortage.REFUSE
    if used >= mark * (SHED_UNTIL if before is not Shortage.NONE else SHED_AT):
        return Shortage.SHED
    return Shortage.NONE


def resident() -> int:
    """Resident memory of this process, in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def allowed(groups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Memory that this process may use, in bytes: of the machine's, what its control groups (v2) leave it."""
    found = [os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()]
    with suppress(OSError):
        lines = [line.partition("::")[2] for line in own.read_text().splitlines() if line.startswith("0::")]
        for line in lines:
            for folder in (groups / line.lstrip("/"), *(groups / line.lstrip("/")).parents):
                if folder == groups:
                    break
                with suppress(OSError, ValueError):
                    found.append(int((folder / "memory.max").read_text()))  # `max` is no number
    return min(found)


class Memory:
    """`mark`: the limit in bytes, 0: by what this process may use. `shed` is called every second while memory is
    short."""

    def __init__(self, mark: int = 0, used: Callable[[], int] = resident) -> None:
        self.mark = mark or int(allowed() * PART)
        self.shortage = Shortage.NONE
        self.shed: Callable[[], None] = lambda: None
        self._used = used
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Check now, and again every second."""
        self.close()
        self._timer = asyncio.get_running_loop().call_later(to_next_second(), self.check)
        with suppress(OSError):  # too many open files: it goes by what it was a second ago
            self._bytes = self._used()
        before, self.shortage = self.shortage, judge(self._bytes, self.mark, self.shortage)
        if self.shortage is not before:
            told = log.info if self.shortage is Shortage.NONE else log.warning
            told("short of memory" if self.shortage else "there is enough memory again", shortage=self.shortage.name,
                 used_mib=self._bytes >> 20, mark_mib=self.mark >> 20)  # fmt: skip
        if self.shortage is not Shortage.NONE:
            self.shed()
            _give_back()

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def words(self) -> str:
        """One-line status; empty: there is enough memory."""
        if self.shortage is Shortage.NONE:
            return ""
        what = "no new jobs are taken and viewers" if self.shortage is Shortage.REFUSE else "viewers"
        return f"{what} are turned away: {self._reason()}"

    def refuse(self) -> None:
        """Raise Busy if no new jobs are taken."""
        if self.shortage is Shortage.REFUSE:
            hint = "try again when jobs have ended; what is there goes on (coordinator.memory_limit sets the mark)"
            raise Busy("the grid takes no new jobs now", self._reason(), hint)

    def _reason(self) -> str:
        return f"the coordinator uses {self._bytes >> 20} MiB of the {self.mark >> 20} it may have"


def _give_back() -> None:
    """Return free memory to the system: the C library keeps it otherwise, and it would count as used for good."""
    with suppress(OSError, AttributeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)
