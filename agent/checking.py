"""`grid coordinator check --agent-state-dir`: whether the journal of a node's supervisor and the folders of its jobs
hold together. Nothing is changed, and an agent may be at work there."""

import os
from pathlib import Path

import msgspec

from distributed_grid.agent import supervisor_journal
from distributed_grid.agent.supervisor_book import REMEMBERED
from distributed_grid.agent.workdir import read_launch
from distributed_grid.protocol.errors import GridError

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
    if not path.is_file():
        return [("journal", "is not there", "nothing, if no job was ever run here")], set(), set()
    lines = path.read_bytes().rstrip(b"\0").split(b"\n")
    lines.pop()  # what follows the last newline: nothing, or a line that was cut or is just being written
    found: list[Finding] = []
    live: dict[str, None] = {}
    known: set[str] = set()
    for number, text in enumerate(lines, 1):
        record = supervisor_journal.parse(text)
        if record is None:
            hint = "the next supervisor does without it, and keeps the damaged file"
            found.append((f"journal, line {number}", "is damaged", hint))
        elif record[0] in ("intent", "exit", "forget"):
            known.add(record[1])
            live.pop(record[1], None)
            if record[0] == "intent":
                live[record[1]] = None
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
