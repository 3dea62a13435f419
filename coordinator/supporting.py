"""What of the coordinator's state may be shown to who is to help: whether it holds together, how much there is, and
what happened last, by kinds and ids. Never what jobs are, say or get."""

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.eventlog_read import Turn, files, read
from distributed_grid.coordinator.keeping import looking_into
from distributed_grid.coordinator.keeping_check import check
from distributed_grid.protocol.errors import GridError

TURNS = 300
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NAMED = ("job", "allocation", "node", "session")
"""The fields of events and of messages of agents that are ids."""


def store(state_dir: Path) -> dict[str, Any]:
    """What the check says, and how many rows each table has."""
    try:
        checked = check(state_dir)
        with looking_into(state_dir) as db:
            tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
            # The names are the store's own.
            rows = {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables}  # noqa: S608
    except (GridError, OSError) as error:
        return {"error": str(error)}
    return {
        "content": checked.content._asdict() if checked.content else None,
        "findings": [one._asdict() for one in checked.findings],
        "more": checked.more,
        "rows": rows,
    }


def last_events(state_dir: Path) -> Iterator[dict[str, Any]]:
    """The end of the event log: when, what kinds of events about which ids, and what kinds of decisions."""
    try:
        names = files(state_dir / "events")
        turns = deque((one for one in read(names[-1]) if isinstance(one, Turn)), TURNS) if names else []
    except (GridError, OSError) as error:
        yield {"error": str(error)}
        return
    for turn in turns:
        yield {
            "at": turn.now,
            "events": [_about(event) for event in turn.events],
            "decisions": [str(one[0]) for one in islice(turn.decisions, 50) if one and _is_id(one[0])],
        }


def _about(event: msgspec.Struct) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": type(event).__name__}
    message = getattr(event, "message", None)
    if isinstance(message, msgspec.Struct):
        told["message"] = _about(message)
    for name in _NAMED:
        value = getattr(event, name, None)
        if _is_id(value):
            told[name] = value
    return told


def _is_id(value: object) -> bool:
    return isinstance(value, str) and bool(_ID.fullmatch(value))
