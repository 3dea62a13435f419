"""What `grid doctor` looks at on the master: whether the coordinator runs, its port, its certificates, its disk."""

import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from distributed_grid.coordinator import traces
from distributed_grid.coordinator.core.rollback import CHOOSE, missing
from distributed_grid.coordinator.keeping import STORE, looking_into
from distributed_grid.coordinator.pki import PKI
from distributed_grid.coordinator.store_begin import examine, look_outside
from distributed_grid.coordinator.store_head import standing_loss
from distributed_grid.coordinator.store_mark import path_of
from distributed_grid.health import Finding, Level, authority, certificate, disk, failed, told
from distributed_grid.protocol.errors import GridError


def is_master(state_dir: Path) -> bool:
    """Whether a coordinator has ever been here, or a grid was founded."""
    store = state_dir / STORE
    return store.exists() or path_of(store).exists() or (state_dir / PKI).is_dir()


def look(state_dir: Path, host: str, port: int) -> Iterator[Finding]:
    """All of it, where a coordinator is at home."""
    if not is_master(state_dir):
        return
    running = told(state_dir / "coordinator.json")
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
    """Whether the store has lost anything, as far as that is seen without reading it through."""
    try:
        outside, seen = look_outside(state_dir / STORE), traces.look(state_dir)
        found = [] if outside.there else missing(outside.mark, seen)
        if outside.there:
            with looking_into(state_dir) as db:
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
    """Whether it could listen."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return Finding("port", Level.OK, f"port {port} is free")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        hint = f"ss -ltnp 'sport = :{port}' shows who has it; or set coordinator.port"
        return Finding("port", Level.ERROR, f"the coordinator cannot listen on {host} port {port}", why, hint)
