"""What backup, restore and check share: a look at a state directory, or at a backup, that changes nothing there."""

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.store import head
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import refuse_strangers, sync
from distributed_grid.protocol.bundle import MANIFEST_BYTES, decode_manifest, is_blob_hash
from distributed_grid.protocol.errors import BadValue, GridError

STORE = "grid.db"
BLOBS = "blobs"
LIVE = "SELECT body FROM jobs WHERE state <> 'ended'"

_job = msgspec.msgpack.Decoder(Job).decode


class Content(NamedTuple):
    """What is in a store: the grid it is of, its epoch, how many jobs live and how many have ended, and the moment it
    shows (seconds since the epoch). `backup`: it was written by `grid coordinator backup`, and not just copied."""

    grid: str
    epoch: int
    live: int
    ended: int
    at: float
    backup: bool


@contextmanager
def looking_into(folder: Path) -> Iterator[sqlite3.Connection]:
    """A connection to the store in a folder that only reads; a coordinator may be at work on it. Raises GridError."""
    path = folder / STORE
    if not path.is_file():
        raise GridError(
            f"there is no store of a coordinator in {folder}",
            why=f"there is no file {STORE}" if folder.is_dir() else "there is no such directory",
            hint="give the one that has it with --state-dir",
        )
    try:
        with path.open("rb"):
            pass
        db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, timeout=5)
        try:
            refuse_strangers(db, path)
            yield db
        finally:
            db.close()
    except OSError as error:
        raise GridError(f"{error.filename or path} cannot be read", why=error.strerror or str(error)) from None
    except sqlite3.Error as error:
        raise failure(path, error) from None
    except UnicodeDecodeError as error:  # what SQLite says of a damaged file quotes it
        raise failure(path, sqlite3.DatabaseError(str(error))) from None


def content(db: sqlite3.Connection) -> Content:
    """What is in it. Raises sqlite3.DatabaseError where its head is damaged."""
    point = head.read(db)
    backup = db.execute("SELECT value FROM meta WHERE name = 'backup'").fetchone()
    live = db.execute("SELECT count(*) FROM jobs WHERE state <> 'ended'").fetchone()[0]
    ended = db.execute("SELECT count(*) FROM jobs WHERE state = 'ended'").fetchone()[0]
    at = float(backup[0]) if backup is not None else point.clock
    return Content(point.grid, point.epoch, live, ended, at, backup is not None)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A directory next to `beside` to make something in that is then renamed; what is left goes, whatever happens."""
    path = beside.with_name(f".{beside.name}.{secrets.token_hex(4)}")
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def copy_store(db: sqlite3.Connection, to: Path) -> None:
    """Write what the store has at this moment to an empty file. Raises GridError about that file."""
    try:
        db.execute("VACUUM INTO ?", (str(to),))
    except sqlite3.Error as error:
        raise failure(to, error) from None


# --- shipped files ----------------------------------------------------------------------------------------------------


def blob_path(folder: Path, blob: str) -> Path:
    """Where a blob lies in a state directory or a backup."""
    return folder / BLOBS / blob[:2] / blob


def blobs_of_the_living(db: sqlite3.Connection, folder: Path) -> tuple[set[str], dict[str, str]]:
    """The blobs that live jobs need, and of those that cannot be had the job that misses each. Raises GridError."""
    needed: set[str] = set()
    missing: dict[str, str] = {}
    for (body,) in db.execute(LIVE):
        try:
            job = _job(body)
        except msgspec.DecodeError as error:
            hint = f"grid coordinator check --state-dir {folder}"
            raise GridError(f"a job in {folder} cannot be read", why=str(error), hint=hint) from None
        if (bundle := job.spec.bundle) and bundle not in needed:
            for blob in (bundle, *_named_in(blob_path(folder, bundle))):
                needed.add(blob)
                if not is_blob_hash(blob) or not blob_path(folder, blob).is_file():
                    missing[blob] = job.id
    return needed, missing


def _named_in(manifest: Path) -> Iterable[str]:
    try:
        with manifest.open("rb") as file:
            return decode_manifest(file.read(MANIFEST_BYTES + 1)).blobs
    except (OSError, BadValue):
        return ()


def copy_blobs(blobs: Iterable[str], from_: Path, to: Path) -> int:
    """Copy blobs between folders, synced; their bytes. One that is gone meanwhile is left out."""
    size = 0
    for blob in blobs:
        target = blob_path(to, blob)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            shutil.copyfile(blob_path(from_, blob), target)
        except FileNotFoundError:
            continue
        size += target.stat().st_size
        sync(target)
    return size


def sync_tree(folder: Path) -> None:
    """Have the names in a folder and in all below it on the disk."""
    for place, _, _ in os.walk(folder):
        sync(Path(place))
