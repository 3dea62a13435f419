"""How many modules of the core a submit and a pass go through, how often they call from one into another, and how often
into one that is on the stack already: `python scripts/core_calls.py`, from the root of the repository."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from distributed_grid.coordinator.core.commands import JobsSubmitted, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join

CORE = "/coordinator/core/"


class Calls:
    """The calls while it was on: modules of the core, calls from one into another, and calls back into one that waits
    for an answer further down the stack."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.across = 0
        self.back = 0

    def trace(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by the interpreter for each call of a Python function."""
        here, caller = _module(frame), frame.f_back
        if event != "call" or not here:
            return
        self.modules.add(here)
        while caller is not None and not _module(caller):
            caller = caller.f_back
        if caller is None or _module(caller) == here:
            return
        self.across += 1
        while caller is not None:
            if _module(caller) == here:
                self.back += 1
                return
            caller = caller.f_back

    def of(self, work: Callable[[], object]) -> str:
        """Run the work and describe its calls."""
        sys.settrace(self.trace)
        try:
            work()
        finally:
            sys.settrace(None)
        return f"{len(self.modules)} modules, {self.across} calls from one into another, {self.back} of them back"


def _module(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    return name.rpartition(CORE)[2] if CORE in name else ""


def main() -> None:
    """A grid of two nodes with four cores: a job is submitted, and a pass starts it beside seven that wait."""
    ledger = Ledger()
    for number in (1, 2):
        join(ledger, facts(f"n{number}", 4))
    ledger.settle(0.0)
    jobs = tuple(job(f"j-{number}", Request(Resources(cpu=2000)), 1.0, "ann") for number in range(8))
    ledger.handle(JobsSubmitted(1, jobs[:-1]), 1.0)
    print("submit:", Calls().of(lambda: ledger.handle(JobsSubmitted(2, jobs[-1:]), 1.0)))
    print("pass:  ", Calls().of(lambda: ledger.settle(1.0)))
    ledger.handle(Tick(), 2.0)
    print("idle:  ", Calls().of(lambda: ledger.settle(2.0)))


if __name__ == "__main__":
    main()
