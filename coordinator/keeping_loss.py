"""`grid coordinator accept-loss`: go on with a store that has lost commits, or with a new one where it is gone. Nothing
is run again unasked, and nothing that runs is ended.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from distributed_grid.coordinator import acceptance, traces
from distributed_grid.coordinator.acceptance import Accepted
from distributed_grid.coordinator.audit import RequestLog
from distributed_grid.coordinator.audit_anchor import StoreAnchor
from distributed_grid.coordinator.core.rollback import CHOOSE, Loss
from distributed_grid.coordinator.keeping import STORE, looking_into
from distributed_grid.coordinator.keeping_check import check
from distributed_grid.coordinator.store import Store
from distributed_grid.coordinator.store_failed import DiskTrouble, StoreFailed
from distributed_grid.coordinator.store_head import standing_loss
from distributed_grid.protocol.errors import GridError
from distributed_grid.service import configure_logs, locked

PATIENCE = 30.0
"""Seconds that a running coordinator has to take up what was accepted."""


class Known(NamedTuple):
    """What is known of a loss before it is accepted: what shows it; whether the store cannot be read, so that a new one
    begins; and how many jobs wait, which would end as `restored`."""

    found: tuple[str, ...]
    unreadable: bool = False
    waiting: int = 0


def known(state_dir: Path) -> Known:
    """What is lost. Raises GridError where nothing is."""
    if not state_dir.is_dir():
        raise GridError(f"there is no coordinator's state in {state_dir}", hint="name it with --state-dir")
    try:
        checked = check(state_dir)
    except DiskTrouble:
        raise
    except StoreFailed as error:
        return Known((f"{error.what}: {error.why}" if error.why else error.what,), True)
    found = tuple(one.what if one.where == STORE else f"{one.where}: {one.what}" for one in checked.findings)
    lost = [one for one in checked.findings if one.hint == CHOOSE]
    if not lost and checked.content is not None:
        raise GridError(f"the store in {state_dir} has lost nothing", hint="grid coordinator check looks it through")
    if checked.content is None:
        return Known(found, (state_dir / STORE).exists())
    with looking_into(state_dir) as db:
        return Known(found, False, db.execute("SELECT count(*) FROM jobs WHERE state = 'waiting'").fetchone()[0])


def accept(state_dir: Path, by: str, resume: bool) -> str:
    """Accept it: at once where no coordinator runs, else by the one that runs. In words what came of it. Raises
    GridError."""
    configure_logs("error")
    ours = False
    try:
        with locked(state_dir, "coordinator", "it is asked to do it"):
            ours = True
            return _accept_here(state_dir, by, resume)
    except GridError:
        if ours:
            raise
    return _ask_running(state_dir, by, resume)


def _accept_here(state_dir: Path, by: str, resume: bool) -> str:
    path, aside = state_dir / STORE, None
    try:
        store = Store(path, traces=traces.look(state_dir))
        living = store.load()
    except DiskTrouble:
        raise
    except (StoreFailed, ValueError) as error:  # it cannot be read: a new one takes its place
        aside = _set_aside(state_dir)
        store = Store(path, traces=traces.look(state_dir))
        living = store.load()
        if store.loss is None:
            store.close()
            return f"what was left of the store ({error}) is in {aside}; a new grid begins"
    audit = RequestLog(state_dir / "audit.log", StoreAnchor(path))
    try:
        if store.loss is None:
            raise StoreFailed(f"the store in {state_dir} has lost nothing", hint="start the coordinator")
        now = max(time.time(), store.clock)
        acceptance.apply(store, store.loss, Accepted(store.loss.id, by, resume), now, audit)
        acceptance.remove(state_dir)
    except (AssertionError, KeyError) as error:
        hint = f"grid coordinator check --state-dir {state_dir}, then restore a backup"
        raise StoreFailed(f"the store in {state_dir} contradicts itself", str(error), hint) from None
    finally:
        audit.close()
        store.close()
    kept = f"; what was left of the store is in {aside}" if aside is not None else ""
    return f"accepted, with {len(living.jobs)} live jobs in the store: start the coordinator{kept}"


def _set_aside(state_dir: Path) -> Path:
    aside = Path(tempfile.mkdtemp(prefix=time.strftime("before-accept-%Y%m%d-%H%M%S-"), dir=state_dir))
    for name in (f"{STORE}-wal", f"{STORE}-shm", STORE):
        if (state_dir / name).exists():
            os.rename(state_dir / name, aside / name)
    return aside


def _ask_running(state_dir: Path, by: str, resume: bool) -> str:
    loss = _standing(state_dir)
    if loss is None:
        hint = "grid status says how it is"
        raise GridError(f"the coordinator that runs on {state_dir} has found no loss", hint=hint)
    try:
        acceptance.write(state_dir, Accepted(loss.id, by, resume))
    except OSError as error:
        raise GridError(f"{state_dir} cannot be written", why=error.strerror or str(error)) from None
    deadline = time.monotonic() + PATIENCE
    while _standing(state_dir) is not None:
        if time.monotonic() > deadline:
            hint = "see its log; it takes it up at its next start at the latest"
            raise GridError("the coordinator has not taken it up yet", hint=hint)
        time.sleep(0.1)
    return "accepted: the coordinator begins anew and starts jobs again"


def _standing(state_dir: Path) -> Loss | None:
    with looking_into(state_dir) as db:
        return standing_loss(db)
