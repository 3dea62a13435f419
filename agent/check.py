"""`grid coordinator check --agent-state-dir`: whether the journal of a node's supervisor and the folders of its jobs
hold together. Nothing is changed, and an agent may be at work there."""

import os
import time
from pathlib import Path

import msgspec

from distributed_grid.agent.launch.workdir import read_launch
from distributed_grid.agent.supervisor import journal as supervisor_journal
from distributed_grid.agent.supervisor.book import REMEMBERED
from distributed_grid.agent.supervisor.procs import boot_id
from distributed_grid.protocol.errors import GridError

TRIES, PAUSE = 5, 0.1
"""How often a journal that an agent may be writing is read before it counts as damaged, and seconds between that."""
Finding = tuple[str, str, str]
"""Where, what, and what to do about it."""


def check(state_dir: Path) -> list[Finding]:
    """All that is not as it must be in an agent's state directory. Raises GridError where there is none."""
    allocs, journal = state_dir / "allocs", state_dir / "journal"
    if not journal.is_file() and not allocs.is_dir():
        raise GridError(
            f"there is no state of an agent in {state_dir}",
            why="there is neither a journal nor a folder allocs",
            hint="give the directory of an agent",
        )
    try:
        # Before the journal: a job that is begun meanwhile is in the journal, and not among these.
        started = {name for name in _folders(allocs) if (allocs / name / "stdout").exists()}
        found, live, known = _journal(journal)
    except OSError as error:
        raise GridError(f"{error.filename or state_dir} cannot be read", why=error.strerror or str(error)) from None
    for name in sorted(live):
        if read_launch(state_dir, name) is None:
            hint = "nothing, if it ends soon: until then it is not known what it holds"
            found.append((f"allocation {name}", "has not ended, and its spec cannot be read", hint))
    if len(known) < REMEMBERED:
        for name in sorted(started - known):
            hint = f"look at {allocs / name} and remove it"
            found.append((f"allocation {name}", "was started, and the journal does not know it", hint))
    for aside in sorted(state_dir.glob("journal.corrupt-*")):
        found.append((aside.name, "a journal was damaged and put aside", "look at that disk, then remove the file"))
    return found + _epoch(state_dir / "epoch")


def _folders(allocs: Path) -> list[str]:
    names = os.listdir(allocs) if allocs.is_dir() else []
    return [name for name in names if not name.startswith(".")]  # those are just being removed


def _journal(path: Path) -> tuple[list[Finding], set[str], set[str]]:
    """What is wrong with the journal; the allocations that have not ended in it; all that it knows."""
    marked = path.with_name("journal.mark").is_file()
    if not path.is_file() and not marked:
        return [("journal", "is not there", "nothing, if no job was ever run here")], set(), set()
    read = supervisor_journal.examine(path.read_bytes() if path.is_file() else None, None, False)
    hint = "the next supervisor says that it does not know what ran, and keeps the damaged file"
    found = [(f"journal, line {number}", "is damaged", hint) for number in read.bad]
    # The mark is read after the journal of an agent at work: it may be further, and never behind.
    mark = supervisor_journal.read_mark(str(path))
    if mark is None or mark.boot == boot_id():
        for _ in range(TRIES):
            whole = path.read_bytes() if path.is_file() else None
            read = supervisor_journal.examine(whole, supervisor_journal.read_mark(str(path)), marked)
            if not read.doubt:
                break
            time.sleep(PAUSE)  # it is just being written or replaced
        if read.doubt and not found:
            found.append(("journal", f"does not have all that was written: {read.doubt}", hint))
    live: dict[str, None] = {}
    known: set[str] = set()
    open_loss = ""
    for record in read.records:
        if record[0] in ("intent", "exit", "forget"):
            known.add(record[1])
            live.pop(record[1], None)
            if record[0] == "intent":
                live[record[1]] = None
        elif record[0] == "loss":
            open_loss = record[3] if record[5] and record[4] == boot_id() else ""
        elif record[0] == "proven":
            open_loss = ""
    if open_loss:
        hint = "look whether something of the jobs that ran here lives, then: grid agent accept-loss; or reboot"
        found.append(("journal", f"was damaged, and it is not known what ran before: {open_loss}", hint))
    return found, set(live), known


def _epoch(path: Path) -> list[Finding]:
    if not path.exists():
        return []
    try:
        if isinstance(msgspec.json.decode(path.read_bytes()), list):
            return []
    except (OSError, msgspec.DecodeError):
        pass
    hint = "remove it: the agent asks anew, and obeys the first coordinator that it reaches"
    return [("epoch", "cannot be read: which coordinator to obey is not known", hint)]
