"""What backup, restore and check share: reads a state directory or a backup (its store, shipped files and authority)
without changing it."""

import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from distributed_grid.coordinator.access.identities import IDENTITIES, PKI, has_authority
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import read_head, refuse_strangers, sync
from distributed_grid.coordinator.store.rows import decode_job
from distributed_grid.identity.credentials import AUTHORITY, CERTIFICATE, KEY, check_private
from distributed_grid.protocol.bundle import MANIFEST_BYTES, decode_manifest, is_blob_hash
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Identity, Role

STORE = "grid.db"
BLOBS = "blobs"
LIVE = "SELECT body, change FROM whole WHERE n IN (SELECT n FROM live)"


class Content(NamedTuple):
    """The contents of a store: its grid, its epoch, how many jobs live and how many have ended, and the moment that it
    shows (seconds since the epoch). `backup`: it was written by `grid coordinator backup`, and not just copied."""

    grid: str
    epoch: int
    live: int
    ended: int
    at: float
    backup: bool


@contextmanager
def open_read_only(folder: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection to the store in a folder; a coordinator may be using it. Raises GridError."""
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
    """The content of a store. Raises sqlite3.DatabaseError where its head is damaged."""
    point = read_head(db)
    backup = db.execute("SELECT value FROM meta WHERE name = 'backup'").fetchone()
    live, ended = (db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("live", "ended"))  # noqa: S608
    at = float(backup[0]) if backup is not None else point.clock
    return Content(point.grid, point.epoch, live, ended, at, backup is not None)


@contextmanager
def scratch(beside: Path) -> Iterator[Path]:
    """A temporary directory next to `beside`, to be renamed; what is left of it is removed in any case."""
    path = beside.with_name(f".{beside.name}.{secrets.token_hex(4)}")
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def copy_store(db: sqlite3.Connection, to: Path) -> None:
    """Copy the store as it is at this moment to an empty file. Raises GridError about that file."""
    try:
        db.execute("VACUUM INTO ?", (str(to),))
    except sqlite3.Error as error:
        raise failure(to, error) from None


# --- shipped files ----------------------------------------------------------------------------------------------------


def blob_path(folder: Path, blob: str) -> Path:
    """Return the path of a blob in a state directory or a backup."""
    return folder / BLOBS / blob[:2] / blob


def live_blobs(db: sqlite3.Connection, folder: Path) -> tuple[set[str], dict[str, str]]:
    """The blobs that live jobs need, and the missing ones with a job that needs each. Raises GridError."""
    needed: set[str] = set()
    missing: dict[str, str] = {}
    for body, change in db.execute(LIVE):
        try:
            job = decode_job(body, change)
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
    """Copy and sync blobs between folders; their bytes. A blob that has been removed meanwhile is left out."""
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
    """Sync a folder and all folders below it."""
    for place, _, _ in os.walk(folder):
        sync(Path(place))


PKI_FILES = ("ca.key", AUTHORITY, KEY, CERTIFICATE)
RESTORE_PKI = "restore a backup, which has all of them"


def copy_pki(source: Path, target: Path) -> int:
    """Copy the authority of a state directory or backup, readable by its owner alone; its bytes, 0 where the grid was
    not founded. Raises GridError, OSError."""
    if not has_authority(source / PKI):
        return 0
    _require_readable(source / PKI / IDENTITIES)
    place = target / PKI
    place.mkdir(mode=0o700)
    for name in (IDENTITIES, *PKI_FILES):
        (place / name).touch(0o600)
    for name in PKI_FILES:
        shutil.copyfile(source / PKI / name, place / name)
        sync(place / name)
    with closing(_read_identities(source / PKI / IDENTITIES)) as db:
        copy_store(db, place / IDENTITIES)
    sync(place / IDENTITIES)
    return sum((place / name).stat().st_size for name in (IDENTITIES, *PKI_FILES))


def _require_readable(path: Path) -> None:
    """Raise GridError where this record of members is damaged or is not there."""
    try:
        with closing(_read_identities(path)) as db:
            if (said := db.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(said)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise GridError(
            f"{path}, the record of who is a member and who was revoked, cannot be read",
            why=str(error),
            hint="restore the newest backup that has it (grid coordinator restore BACKUP --force), and revoke again"
            " whom you have revoked since",
        ) from None


MEMBERS = (("certificates", "serial"), ("bearers", "id"))
"""Tables of what members come in by, and their keys."""


def update_pki(restored: Path, before: Path) -> str:
    """Carry over revocations and members that the backup does not know, as far as they are known, and revoke all tokens
    to join with, which may have been used since. What is revoked in either stays revoked. Returns why not all of it is
    known (empty: it is). Raises GridError."""
    path, known = restored / PKI / IDENTITIES, before / PKI / IDENTITIES
    if not path.exists():
        return ""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}", uri=True, isolation_level=None)) as db:
            db.execute("UPDATE tokens SET uses = 0")
            if not known.exists():
                return f"there is no {known}"
            lost = [str(error) for statement in _carry_over() if (error := _tried(db, known, statement)) is not None]
            return f"{known} cannot be read: {lost[0]}" if lost else ""
    except sqlite3.Error as error:
        raise failure(path, error) from None


def _carry_over() -> Iterator[str]:
    """The statements that take over what another record knows, each by itself: a damaged table does not keep back what
    the others say. Revocations come first."""
    for table, key in MEMBERS:
        yield (
            f"UPDATE {table} SET revoked = was.revoked FROM known.{table} AS was"  # noqa: S608
            f" WHERE was.{key} = {table}.{key} AND {table}.revoked IS NULL"
        )
    for table in (*(table for table, _ in MEMBERS), "members"):  # members have the labels of nodes
        yield f"INSERT OR IGNORE INTO {table} SELECT * FROM known.{table}"  # noqa: S608


def _tried(db: sqlite3.Connection, known: Path, statement: str) -> Exception | None:
    """Run a statement beside another record; what has kept it from being done."""
    try:
        db.execute("ATTACH ? AS known", (f"file:{quote(str(known))}?mode=ro",))
        try:
            db.execute(statement)
        finally:
            db.execute("DETACH known")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return error
    return None


def pki_findings(folder: Path, grid: str) -> Iterator[tuple[str, str, str]]:
    """Defects of the authority in a state directory or backup: where, what, and what to do."""
    place = folder / PKI
    if not has_authority(place):
        return
    from cryptography import x509  # slow to load, and each coordinator loads this file
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    from distributed_grid.coordinator.access.ca import Authority, presented
    from distributed_grid.identity.keys import certificate_in

    try:
        authority = Authority.load(place, grid)
        own = certificate_in(place)
        check_private(place / IDENTITIES)
        own.verify_directly_issued_by(authority.certificate)
        named = presented(own.public_bytes(serialization.Encoding.DER)).identity
        if named != Identity(grid, Role.COORDINATOR):
            yield PKI, f"its certificate is for {named.uri}, and the store is of grid {grid}", RESTORE_PKI
    except GridError as error:
        yield PKI, f"{error.what}: {error.why}" if error.why else error.what, error.hint or RESTORE_PKI
    except (OSError, ValueError, TypeError, BadValue, InvalidSignature, x509.ExtensionNotFound) as error:
        yield PKI, f"its keys and certificates do not belong together: {error or type(error).__name__}", RESTORE_PKI
    try:
        with closing(_read_identities(place / IDENTITIES)) as db:
            for (said,) in db.execute("PRAGMA integrity_check(5)"):
                if said != "ok":
                    yield f"{PKI}/{IDENTITIES}", str(said), RESTORE_PKI
            db.execute("SELECT count(*) FROM certificates").fetchone()
    except sqlite3.Error as error:
        yield f"{PKI}/{IDENTITIES}", f"cannot be read: {error}", RESTORE_PKI


def _read_identities(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, timeout=5)
