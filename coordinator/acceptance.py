"""An operator's word that a loss of the store is accepted: a file in the state directory. The coordinator takes it up
at its start, or while it waits for it.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from distributed_grid.coordinator.audit import RequestLog
from distributed_grid.coordinator.core.doubt import hold_back
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import RECORDS, Audit, Record
from distributed_grid.coordinator.core.rollback import Loss
from distributed_grid.coordinator.store import Store
from distributed_grid.coordinator.store_open import sync

NAME = "accept-loss"
LOOK_EVERY = 0.5
"""Seconds between looks for it."""
UNSURE = "the store had lost commits, so whether it ran is not known; submit it again if it should run"

log = structlog.get_logger("store")


class Accepted(msgspec.Struct, frozen=True):
    """Who accepts which loss (by its id). `resume`: nothing was lost that matters, so jobs that wait run."""

    loss: str
    by: str
    resume: bool = False


def write(state_dir: Path, accepted: Accepted) -> None:
    """Give the word, durably. Raises OSError."""
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
    """The word about this loss; None: there is none."""
    with suppress(OSError, msgspec.DecodeError):
        fd = os.open(state_dir / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            accepted = msgspec.json.decode(file.read(4096), type=Accepted)
        if loss is not None and accepted.loss == loss.id:
            return accepted
    return None


def remove(state_dir: Path) -> None:
    """It was taken up, or is about a loss that is not there any more."""
    with suppress(OSError):
        (state_dir / NAME).unlink()


def apply(store: Store, loss: Loss, accepted: Accepted, now: float, audit: RequestLog) -> None:
    """Go on with the store as it is: what waits has ended as `restored`, unless it is to resume, and what holds
    resources is left to the word of its node. Raises StoreFailed, and what a store raises that contradicts itself."""
    living = store.load()
    said = f"{accepted.by} accepted that commits are lost: {'; '.join(loss.found)}"
    records: list[Record] = [Audit("", said)]
    if not accepted.resume:
        ledger = Ledger(store.epoch)
        ledger.restore(living.jobs, living.allocations, living.nodes, now, many=living.groups)
        held = hold_back(ledger.state, UNSURE, "the store had lost commits")
        records += [one for one in held if isinstance(one, RECORDS)]
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
