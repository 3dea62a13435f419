"""`grid coordinator accept-loss`: continue with a store that has lost commits, or with a new one if the store is gone.
Nothing is started again by itself, and nothing that runs is ended. The operator's decision is a file in the state
directory, which the coordinator reads at its start, or while it waits for the decision."""

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from distributed_grid.coordinator.audit.log import RequestLog
from distributed_grid.coordinator.audit.verify import StoreAnchor
from distributed_grid.coordinator.backup.check import check
from distributed_grid.coordinator.backup.state import STORE, open_read_only
from distributed_grid.coordinator.core.commands import RECORDS, Audit, Record
from distributed_grid.coordinator.core.ledger import Ledger, end_after_restore
from distributed_grid.coordinator.core.rollback import CHOOSE, Loss
from distributed_grid.coordinator.store import evidence
from distributed_grid.coordinator.store.errors import DiskTrouble, StoreFailed, StoreRefused
from distributed_grid.coordinator.store.open import standing_loss, sync
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.logs import get_logger
from distributed_grid.runtime.service import configure_logs, locked

NAME = "accept-loss"
LOOK_EVERY = 0.5
"""Interval between checks for the file (s)."""
UNSURE = "the store had lost commits, so whether it ran is not known; submit it again if it should run"

log = get_logger("store")


class Accepted(msgspec.Struct, frozen=True):
    """An accepted loss (by its id), and who accepts it. `resume`: nothing relevant was lost, so waiting jobs may
    run."""

    loss: str
    by: str
    resume: bool = False


def write(state_dir: Path, accepted: Accepted) -> None:
    """Write the operator's word, durably. Raises OSError."""
    fresh = state_dir / f".{NAME}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.getuid() == 0:  # who is root accepts it for the coordinator's own user
            owner = state_dir.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
        os.write(fd, msgspec.json.encode(accepted))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(fresh, state_dir / NAME)
    sync(state_dir)


def read(state_dir: Path, loss: Loss | None) -> Accepted | None:
    """Return the operator's acceptance of this loss; None: there is none."""
    with suppress(OSError, msgspec.DecodeError):
        fd = os.open(state_dir / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            accepted = msgspec.json.decode(file.read(4096), type=Accepted)
        if loss is not None and accepted.loss == loss.id:
            return accepted
    return None


def remove(state_dir: Path) -> None:
    """Remove the word: it was taken up, or is about another loss."""
    with suppress(OSError):
        (state_dir / NAME).unlink()


def apply(store: Store, loss: Loss, accepted: Accepted, now: float, audit: RequestLog) -> None:
    """Continue with the store as it is: waiting jobs end as `restored` unless they are to resume, and allocations that
    hold resources are settled by the reports of their nodes. Raises StoreFailed, and the errors of an inconsistent
    store."""
    living = store.load()
    said = f"{accepted.by} accepted that commits are lost: {'; '.join(loss.found)}"
    records: list[Record] = [Audit("", said)]
    if not accepted.resume:
        ledger = Ledger(store.epoch)
        ledger.restore(living.jobs, living.allocations, living.nodes, now, many=living.groups)
        ended_now = end_after_restore(ledger.state, UNSURE, "the store had lost commits")
        records += [one for one in ended_now if isinstance(one, RECORDS)]
    store.accept(store.snapshot(records, now))
    ended = 0 if accepted.resume else sum(not job.allocation or job.ended > 0 for job in living.jobs)
    taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(loss.at))
    about: dict[str, Any] = {
        "loss": loss.id,
        "found": list(loss.found),
        "since": taken,
        "held_back": ended,
        "resume": accepted.resume,
    }
    audit.request(accepted.by, "accept-loss", **about)
    log.warning("the loss is accepted: jobs are started again", by=accepted.by, **about)


PATIENCE = 30.0
"""Time that a running coordinator has to take up what was accepted (s)."""


class Known(NamedTuple):
    """The state of a loss before it is accepted: its evidence; whether the store cannot be read, so that a new one
    begins; and how many jobs wait, which would end as `restored`."""

    found: tuple[str, ...]
    unreadable: bool = False
    waiting: int = 0


def known(state_dir: Path) -> Known:
    """Return the state of the loss. Raises GridError if nothing is lost."""
    if not state_dir.is_dir():
        raise GridError(f"there is no coordinator's state in {state_dir}", hint="name it with --state-dir")
    try:
        checked = check(state_dir)
    except (DiskTrouble, StoreRefused):
        raise
    except StoreFailed as error:
        return Known((f"{error.what}: {error.why}" if error.why else error.what,), True)
    found = tuple(one.what if one.where == STORE else f"{one.where}: {one.what}" for one in checked.findings)
    lost = [one for one in checked.findings if one.hint == CHOOSE]
    if not lost and checked.content is not None:
        raise GridError(f"the store in {state_dir} has lost nothing", hint="grid coordinator check looks it through")
    if checked.content is None:
        return Known(found, (state_dir / STORE).exists())
    with open_read_only(state_dir) as db:
        return Known(found, False, db.execute("SELECT count(*) FROM whole WHERE state = 'waiting'").fetchone()[0])


def accept(state_dir: Path, by: str, resume: bool) -> str:
    """Accept the loss: at once if no coordinator runs, else through the running one; the outcome in words. Raises
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
        store = Store(path, traces=evidence.find_traces(state_dir))
        living = store.load()
    except (DiskTrouble, StoreRefused):
        raise
    except (StoreFailed, ValueError) as error:  # it cannot be read: a new one takes its place
        aside = _set_aside(state_dir)
        store = Store(path, traces=evidence.find_traces(state_dir))
        living = store.load()
        if store.loss is None:
            store.close()
            return f"what was left of the store ({error}) is in {aside}; a new grid begins"
    audit = RequestLog(state_dir / "audit.log", StoreAnchor(path))
    try:
        if store.loss is None:
            raise StoreFailed(f"the store in {state_dir} has lost nothing", hint="start the coordinator")
        now = max(time.time(), store.clock)
        apply(store, store.loss, Accepted(store.loss.id, by, resume), now, audit)
        remove(state_dir)
    except (AssertionError, KeyError, ValueError) as error:
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
        write(state_dir, Accepted(loss.id, by, resume))
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
    with open_read_only(state_dir) as db:
        return standing_loss(db)
