"""`grid coordinator backup`: a directory that a coordinator can be restored from, made while one runs or not.

It has what a restore needs and nothing else: the store, whole and of one moment, the shipped files of the jobs that
live in it, and the grid's authority, whose key makes it a secret. The store in it is marked as a backup, so that no
coordinator is started on it by mistake.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from distributed_grid.coordinator.backup import pki
from distributed_grid.coordinator.backup.state import (
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
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import sync
from distributed_grid.protocol.errors import GridError


class Backup(NamedTuple):
    """What was written: where, what of, how many blobs, bytes in all, and live jobs that lack shipped files."""

    path: Path
    content: Content
    blobs: int
    size: int
    lacking: tuple[str, ...]


def backup(state_dir: Path, target: Path, force: bool) -> Backup:
    """Write a backup of the coordinator of `state_dir` to `target`: whole and on the disk, or not at all. With `force`
    an earlier backup there is replaced. Raises GridError."""
    target = target.absolute()
    _refuse(target, force)
    with looking_into(state_dir) as db:
        try:
            with scratch(target) as fresh:
                made = _write(db, state_dir, fresh)
                _put_in_place(fresh, target)
        except OSError as error:
            raise GridError(f"{target} cannot be written", why=error.strerror or str(error)) from None
    return made._replace(path=target)


def _refuse(target: Path, force: bool) -> None:
    if not target.parent.is_dir():
        raise GridError(f"{target} cannot be written", why=f"there is no directory {target.parent}")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise GridError(f"{target} is there already", hint="give another name, or --force to replace that backup")
    try:
        with looking_into(target) as db:
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
        blobs, missing = blobs_of_the_living(copy, state_dir)
        copy.close()
    except sqlite3.Error as error:
        raise failure(store, error) from None
    size = copy_blobs(blobs - missing.keys(), state_dir, fresh) + pki.copy(state_dir, fresh)
    sync(store)
    sync_tree(fresh)
    lacking = tuple(sorted(set(missing.values())))
    return Backup(fresh, what, len(blobs - missing.keys()), size + store.stat().st_size, lacking)


def _put_in_place(fresh: Path, target: Path) -> None:
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
