"""`grid coordinator backup` and `grid coordinator restore`. A backup is a directory with all that a coordinator is
restored from; it can be made while one runs. A coordinator that starts from it runs nothing twice."""

import os
import shlex
import sqlite3
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from distributed_grid.coordinator.access.identities import PKI, has_authority
from distributed_grid.coordinator.backup.check import require_sound
from distributed_grid.coordinator.backup.state import (
    BLOBS,
    STORE,
    Content,
    content,
    copy_blobs,
    copy_pki,
    copy_store,
    live_blobs,
    open_read_only,
    scratch,
    sync_tree,
    update_pki,
)
from distributed_grid.coordinator.core.commands import RECORDS, Audit, Record
from distributed_grid.coordinator.core.ledger import Ledger, end_after_restore
from distributed_grid.coordinator.core.rollback import Point
from distributed_grid.coordinator.store import evidence
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import connect, put_head, put_restored, read_head, sync
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import State
from distributed_grid.runtime.service import configure_logs, locked, prepare


class Backup(NamedTuple):
    """A backup that was written: where, of what, how many blobs, total bytes, and live jobs that lack shipped files."""

    path: Path
    content: Content
    blobs: int
    size: int
    lacking: tuple[str, ...]


def backup(state_dir: Path, target: Path, force: bool) -> Backup:
    """Write a backup of the coordinator of `state_dir` to `target`: whole and on the disk, or not at all. With `force`
    an earlier backup there is replaced. Raises GridError."""
    target = target.absolute()
    _refuse_target(target, force)
    with open_read_only(state_dir) as db:
        try:
            with scratch(target) as fresh:
                made = _write(db, state_dir, fresh)
                _replace_backup(fresh, target)
        except OSError as error:
            raise GridError(f"{target} cannot be written", why=error.strerror or str(error)) from None
    return made._replace(path=target)


def _refuse_target(target: Path, force: bool) -> None:
    if not target.parent.is_dir():
        raise GridError(
            f"{target} cannot be written",
            why=f"there is no directory {target.parent}",
            hint=f"mkdir -p {shlex.quote(str(target.parent))}, then the same again",
        )
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise GridError(f"{target} is there already", hint="give another name, or --force to replace that backup")
    try:
        with open_read_only(target) as db:
            known = content(db).backup
    except GridError:
        known = False
    if not known:
        raise GridError(
            f"{target} is there and is no backup", why="only a backup is replaced", hint="give another name"
        )


def _write(db: sqlite3.Connection, state_dir: Path, fresh: Path) -> Backup:
    store = fresh / STORE
    store.touch(0o600)
    copy_store(db, store)
    try:
        with sqlite3.connect(store) as copy:
            copy.execute("INSERT OR REPLACE INTO meta (name, value) VALUES ('backup', ?)", (time.time(),))
        what = content(copy)
        blobs, missing = live_blobs(copy, state_dir)
        copy.close()
    except sqlite3.Error as error:
        raise failure(store, error) from None
    size = copy_blobs(blobs - missing.keys(), state_dir, fresh) + copy_pki(state_dir, fresh)
    sync(store)
    sync_tree(fresh)
    lacking = tuple(sorted(set(missing.values())))
    return Backup(fresh, what, len(blobs - missing.keys()), size + store.stat().st_size, lacking)


def _replace_backup(fresh: Path, target: Path) -> None:
    """A directory cannot be replaced at once: for a moment the earlier one has another name, and is whole."""
    if target.is_dir() and any(target.iterdir()):
        with scratch(target) as before:
            try:
                os.rename(target, before)
                os.rename(fresh, target)
            except BaseException:
                if not target.exists():
                    os.rename(before, target)
                raise
    else:
        os.rename(fresh, target)
    sync(target.parent)


BESIDE = (f"{STORE}-wal", f"{STORE}-shm", BLOBS, "events")
"""What else a restore moves aside: what belongs to the store's file, the shipped files, and the events of before."""


class Restored(NamedTuple):
    """The result of a restore: its source, the epoch, how many jobs were held back, how many are settled by the reports
    of their nodes, and where the earlier state is now (None: there was none). `unknown`: why it is not known who was
    revoked, or has joined, since the backup (empty: it is known)."""

    content: Content
    epoch: int
    held_back: int
    on_nodes: int
    before: Path | None
    unknown: str = ""


def restore(source: Path, state_dir: Path, force: bool, resume: bool) -> Restored:
    """Make the store of `state_dir` from a backup, or from a copy of a state directory. With `force` an existing one is
    moved aside first; nothing is ever removed. Raises GridError."""
    configure_logs("warning")  # what a service logs about its store is not for who restores one
    if source.resolve() == state_dir.resolve():
        raise GridError(f"{source} is the state directory itself", hint="give the directory of a backup")
    what = require_sound(source)
    prepare(state_dir)
    with locked(state_dir, "coordinator", "stop it first: what it would go on writing would be lost"):
        if (state_dir / STORE).exists() and not force:
            raise GridError(
                f"{state_dir} has a store already",
                why="a restore takes its place",
                hint="--force moves it aside first",
            )
        _refuse_another_grid(source, state_dir, what.grid)
        try:
            with scratch(state_dir / "restore") as fresh:
                _copy(source, fresh)
                restored = _renew(fresh, what, _reached(state_dir), resume)
                unknown = update_pki(fresh, state_dir)
                before = _put_in_place(fresh, state_dir)
        except OSError as error:
            raise GridError(f"{state_dir} cannot be written", why=error.strerror or str(error)) from None
        except sqlite3.Error as error:
            raise failure(state_dir / STORE, error) from None
    return restored._replace(before=before, unknown=unknown)


def _refuse_another_grid(source: Path, state_dir: Path, grid: str) -> None:
    """Raise GridError where the authority of another grid would stay, for which nodes and people are no members."""
    if has_authority(source / PKI) or (founded := evidence.grid_of(state_dir / PKI)) in ("", grid):
        return
    raise GridError(
        f"{source} is of another grid",
        why=f"it is of grid {grid} and has no authority, and {state_dir} was founded as grid {founded}",
        hint=f"give another --state-dir; or move {state_dir / PKI} away, restore, and found that grid with `grid init`",
    )


def _reached(state_dir: Path) -> Point:
    """Return the epoch and commits of the present state, as far as they can be read."""
    marked = Point("", 0, 0, 0.0)
    with suppress(OSError):
        marked = evidence.read_mark(state_dir / STORE).point or marked
    try:
        with open_read_only(state_dir) as db:
            return msgspec.structs.replace(marked, epoch=max(marked.epoch, content(db).epoch))
    except GridError:
        return marked


def _copy(source: Path, fresh: Path) -> None:
    (fresh / STORE).touch(0o600)
    with open_read_only(source) as db:
        copy_store(db, fresh / STORE)
        blobs, missing = live_blobs(db, source)
    copy_blobs(blobs - missing.keys(), source, fresh)
    copy_pki(source, fresh)


def _renew(fresh: Path, what: Content, reached: Point, resume: bool) -> Restored:
    """Make the copy a store that a coordinator may start on."""
    now = max(time.time(), what.at)
    db = connect(fresh / STORE)
    point = read_head(db)
    db.execute("DELETE FROM meta WHERE name IN ('backup', 'loss', 'audit')")  # the audit log is not in a backup
    # What is in its place from now on has come as far as the mark says that is there, and further.
    epoch, commits = max(what.epoch, reached.epoch, int(now)), max(point.commits, reached.commits)
    put_head(db, msgspec.structs.replace(point, epoch=epoch, commits=commits))
    put_restored(db, now, epoch + 1)
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
        records += [one for one in end_after_restore(ledger.state, text) if isinstance(one, RECORDS)]
    store.commit(store.snapshot(records, now))
    store.close()
    waited = sum(job.state is State.ENDED for job in living.jobs)  # the ledger has ended them
    return Restored(what, store.epoch, waited, len(living.allocations), None)


def _put_in_place(fresh: Path, state_dir: Path) -> Path | None:
    """Move the present state aside, and put the restored one in its place; returns where the former is (None: there was
    none). The store is replaced last, in one step, so that there always is one: a start without a store would begin a
    new grid."""
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
        os.rename(evidence.mark_path(store), before / evidence.mark_path(store).name)
    os.replace(fresh / STORE, store)
    sync(state_dir)
    return before


def _is_of_another(state_dir: Path, fresh: Path) -> bool:
    """Whether the mark does not apply to the restored store: it is damaged, or of another grid."""
    marked, ours = evidence.read_mark(state_dir / STORE), evidence.read_mark(fresh / STORE)
    return marked.why == "damaged" or (
        marked.point is not None and marked.point.grid != (ours.point and ours.point.grid)
    )
