"""`grid coordinator restore`: begin again from a backup, without running anything twice.

What happened after the backup was taken is not in it. So a job that waits in it may have been run since, and is not run
now unless one asks for that (`resume`); one that holds resources in it is left to the word of its node. The epoch
becomes greater than any that the lost coordinator can have had: agents obey the restored one, never the other again.
"""

import os
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.access.pki import PKI
from distributed_grid.coordinator.backup import pki
from distributed_grid.coordinator.backup.check import refuse_unsound
from distributed_grid.coordinator.backup.state import (
    BLOBS,
    STORE,
    Content,
    blobs_of_the_living,
    content,
    copy_blobs,
    copy_store,
    looking_into,
    scratch,
    sync_tree,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import RECORDS, Audit, Record
from distributed_grid.coordinator.core.nodes.restore import hold_back
from distributed_grid.coordinator.core.rollback import Point
from distributed_grid.coordinator.store import head, mark
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import connect, sync
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import State
from distributed_grid.runtime.service import configure_logs, locked, prepare

BESIDE = (f"{STORE}-wal", f"{STORE}-shm", BLOBS, "events")
"""What else a restore moves aside: what belongs to the store's file, the shipped files, and the events of before."""


class Restored(NamedTuple):
    """What was restored: from what, under which epoch, how many jobs were held back, how many are left to the word of
    their nodes, and where what was there before is now (None: there was nothing)."""

    content: Content
    epoch: int
    held_back: int
    on_nodes: int
    before: Path | None


def restore(source: Path, state_dir: Path, force: bool, resume: bool) -> Restored:
    """Make the store of `state_dir` from a backup, or from a copy of a state directory. With `force` what is there is
    moved aside first; nothing is ever removed. Raises GridError."""
    configure_logs("warning")  # what a service logs about its store is not for who restores one
    if source.resolve() == state_dir.resolve():
        raise GridError(f"{source} is the state directory itself", hint="give the directory of a backup")
    what = refuse_unsound(source)
    prepare(state_dir)
    with locked(state_dir, "coordinator", "stop it first: what it would go on writing would be lost"):
        if (state_dir / STORE).exists() and not force:
            raise GridError(
                f"{state_dir} has a store already",
                why="a restore takes its place",
                hint="--force moves it aside first",
            )
        try:
            with scratch(state_dir / "restore") as fresh:
                _copy(source, fresh)
                restored = _renew(fresh, what, _reached(state_dir), resume)
                pki.bring_up_to_date(fresh, state_dir)
                before = _put_in_place(fresh, state_dir)
        except OSError as error:
            raise GridError(f"{state_dir} cannot be written", why=error.strerror or str(error)) from None
        except sqlite3.Error as error:
            raise failure(state_dir / STORE, error) from None
    return restored._replace(before=before)


def _reached(state_dir: Path) -> Point:
    """How far what is there now has come, as far as that can be read: its epoch, and the mark beside it."""
    marked = Point("", 0, 0, 0.0)
    with suppress(OSError):
        marked = mark.read(state_dir / STORE).point or marked
    try:
        with looking_into(state_dir) as db:
            return msgspec.structs.replace(marked, epoch=max(marked.epoch, content(db).epoch))
    except GridError:
        return marked


def _copy(source: Path, fresh: Path) -> None:
    (fresh / STORE).touch(0o600)
    with looking_into(source) as db:
        copy_store(db, fresh / STORE)
        blobs, missing = blobs_of_the_living(db, source)
    copy_blobs(blobs - missing.keys(), source, fresh)
    pki.copy(source, fresh)


def _renew(fresh: Path, what: Content, reached: Point, resume: bool) -> Restored:
    """Make of the copy a store that may be begun on."""
    now = max(time.time(), what.at)
    db = connect(fresh / STORE)
    point = head.read(db)
    db.execute("DELETE FROM meta WHERE name IN ('backup', 'loss', 'audit')")  # the audit log is not in a backup
    # What is in its place from now on has come as far as the mark says that is there, and further.
    epoch, commits = max(what.epoch, reached.epoch, int(now)), max(point.commits, reached.commits)
    head.put(db, msgspec.structs.replace(point, epoch=epoch, commits=commits))
    head.put_restored(db, now, epoch + 1)
    db.close()
    store = Store(fresh / STORE)
    living = store.load()
    taken = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(what.at))
    records: list[Record] = [Audit("", f"restored from a backup of {taken}, epoch {store.epoch}")]
    if not resume:
        ledger = Ledger(store.epoch)
        ledger.restore(living.jobs, living.allocations, living.nodes, now, many=living.groups)
        text = (
            f"a backup of {taken} was restored, and whether it ran since is not known; submit it again if it should run"
        )
        records += [one for one in hold_back(ledger.state, text) if isinstance(one, RECORDS)]
    store.commit(store.snapshot(records, now))
    store.close()
    waited = sum(job.state is State.ENDED for job in living.jobs)  # the ledger has ended them
    return Restored(what, store.epoch, waited, len(living.allocations), None)


def _put_in_place(fresh: Path, state_dir: Path) -> Path | None:
    """Move aside what is there, and what was made to its place. The store is replaced at once and last: at no moment is
    there none, since a start would then begin a new grid."""
    sync(fresh / STORE)
    sync_tree(fresh)
    store = state_dir / STORE
    before = None
    if any((state_dir / name).exists() for name in (STORE, *BESIDE)):
        before = Path(tempfile.mkdtemp(prefix=time.strftime("before-restore-%Y%m%d-%H%M%S-"), dir=state_dir))
    if before is not None and store.exists():
        with suppress(sqlite3.Error):  # it may be damaged
            connect(store).close()  # so that nothing of it is beside it
        os.link(store, before / STORE)
    # Of a grid that was founded after the backup, the authority stays: nodes and people are in by it.
    for name in (*BESIDE, PKI) if (fresh / PKI).exists() else BESIDE:
        if before is not None and (state_dir / name).exists():
            os.rename(state_dir / name, before / name)
        if (fresh / name).exists():
            os.rename(fresh / name, state_dir / name)
    if before is not None and _is_of_another(state_dir, fresh):
        os.rename(mark.path_of(store), before / mark.path_of(store).name)
    os.replace(fresh / STORE, store)
    sync(state_dir)
    return before


def _is_of_another(state_dir: Path, fresh: Path) -> bool:
    """Whether there is a mark that says nothing of the store that comes: it is damaged, or of another grid."""
    marked, ours = mark.read(state_dir / STORE), mark.read(fresh / STORE)
    return marked.why == "damaged" or (
        marked.point is not None and marked.point.grid != (ours.point and ours.point.grid)
    )
