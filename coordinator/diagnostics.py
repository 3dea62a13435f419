"""Diagnostics of a coordinator. For `grid doctor` on the master: whether it runs, its port, certificates and disk. For
`grid support-dump`: whether the store is consistent, row counts, and the last events by kind and id; never a job's
command, environment or output."""

import re
import socket
import sqlite3
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.access.identities import PKI
from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE, open_read_only
from distributed_grid.coordinator.core.rollback import CHOOSE, missing
from distributed_grid.coordinator.eventlog.format import Turn, files, read
from distributed_grid.coordinator.store import evidence
from distributed_grid.coordinator.store.evidence import mark_path
from distributed_grid.coordinator.store.open import examine, read_outside, standing_loss
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.health import Finding, Level, authority, certificate, disk, failed, running_service


def is_master(state_dir: Path) -> bool:
    """Whether a coordinator has ever been here, or a grid was founded."""
    store = state_dir / STORE
    return store.exists() or mark_path(store).exists() or (state_dir / PKI).is_dir()


def run_checks(state_dir: Path, host: str, port: int) -> Iterator[Finding]:
    """Yield all findings, if there is a coordinator's state directory."""
    if not is_master(state_dir):
        return
    running = running_service(state_dir / "coordinator.json")
    if running is not None:
        yield Finding("coordinator", Level.OK, f"it runs as process {running['pid']} at {running.get('url', '?')}")
    else:
        start = "systemctl start grid-coordinator, where it is installed; else: grid coordinator run"
        yield Finding("coordinator", Level.ERROR, "it does not run", f"nobody has {state_dir}", start)
        yield _port(host, port)
    yield from _store(state_dir)
    if (state_dir / PKI).is_dir():
        yield certificate("coordinator's identity", state_dir / PKI, "start the coordinator, which renews it")
        yield from authority(state_dir / PKI)
    yield disk("coordinator's disk", state_dir)


def _store(state_dir: Path) -> Iterator[Finding]:
    """Whether the store has lost commits, as far as that shows without reading all of it."""
    try:
        outside, seen = read_outside(state_dir / STORE), evidence.find_traces(state_dir)
        found = [] if outside.there else missing(outside.mark, seen)
        if outside.there:
            with open_read_only(state_dir) as db:
                loss = standing_loss(db)
                found = [*(loss.found if loss is not None else ()), *examine(db, outside, seen).found]
    except GridError as error:
        yield failed("store", error)
        return
    except sqlite3.Error as error:
        hint = "grid coordinator check"
        yield Finding("store", Level.ERROR, f"the store in {state_dir} cannot be read", str(error), hint)
        return
    if found:
        yield Finding("store", Level.ERROR, "it has lost commits, so nothing is started", found[0], CHOOSE)


def _port(host: str, port: int) -> Finding:
    """Whether the port could be listened on."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return Finding("port", Level.OK, f"port {port} is free")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = f"ss -ltnp 'sport = :{port}' shows who has it; or set coordinator.port"
        return Finding("port", Level.ERROR, f"the coordinator cannot listen on {host} port {port}", why, hint)


TURNS = 300
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NAMED = ("job", "allocation", "node", "session")
"""Fields of events and messages that are ids."""


def store(state_dir: Path) -> dict[str, Any]:
    """Return the result of the check, and how many rows each table has."""
    try:
        checked = check(state_dir)
        with open_read_only(state_dir) as db:
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
    """The end of the event log: time, kinds and ids of events, and kinds of decisions."""
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
    summary: dict[str, Any] = {"kind": type(event).__name__}
    message = getattr(event, "message", None)
    if isinstance(message, msgspec.Struct):
        summary["message"] = _about(message)
    for name in _NAMED:
        value = getattr(event, name, None)
        if _is_id(value):
            summary[name] = value
    return summary


def _is_id(value: object) -> bool:
    return isinstance(value, str) and bool(_ID.fullmatch(value))
