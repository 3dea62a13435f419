"""Backup, restore and check of the grid's authority and of what is known of identities: with them the nodes and people
of a grid come in again after a restore, and without them they would all have to join anew."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from distributed_grid.coordinator.access.ca import Authority, identity_of
from distributed_grid.coordinator.access.pki import IDENTITIES, PKI, Pki
from distributed_grid.coordinator.backup.state import copy_store
from distributed_grid.coordinator.store.errors import failure
from distributed_grid.coordinator.store.open import sync
from distributed_grid.identity.keys import certificate_in
from distributed_grid.identity.tls import AUTHORITY, CERTIFICATE, KEY, check_private
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.identity import Identity, Role

FILES = ("ca.key", AUTHORITY, KEY, CERTIFICATE)
AGAIN = "restore a backup, which has all of them"


def copy(source: Path, target: Path) -> int:
    """Copy the authority of a state directory or backup to another, readable by its owner alone; its bytes, none where
    the grid was not founded. Raises GridError, OSError."""
    if not Pki.exists(source / PKI):
        return 0
    place = target / PKI
    place.mkdir(mode=0o700)
    for name in (IDENTITIES, *FILES):
        (place / name).touch(0o600)
    for name in FILES:
        shutil.copyfile(source / PKI / name, place / name)
        sync(place / name)
    with closing(_read(source / PKI / IDENTITIES)) as db:
        copy_store(db, place / IDENTITIES)
    sync(place / IDENTITIES)
    return sum((place / name).stat().st_size for name in (IDENTITIES, *FILES))


def bring_up_to_date(restored: Path, before: Path) -> None:
    """What was taken back since the backup was taken stays so, as far as it is still known; and no token opens anything
    any more, since it may have been used up since. Raises GridError."""
    path, known = restored / PKI / IDENTITIES, before / PKI / IDENTITIES
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}", uri=True, isolation_level=None)) as db:
            db.execute("UPDATE tokens SET uses = 0")
            if known.exists():
                with suppress(sqlite3.Error):  # it may be damaged
                    db.execute("ATTACH ? AS known", (f"file:{quote(str(known))}?mode=ro",))
                    db.execute("INSERT OR REPLACE INTO certificates SELECT * FROM known.certificates")
    except sqlite3.Error as error:
        raise failure(path, error) from None


def findings(folder: Path, grid: str) -> Iterator[tuple[str, str, str]]:
    """What is not as it must be with the authority in a state directory or backup: where, what, and what to do."""
    place = folder / PKI
    if not Pki.exists(place):
        return
    try:
        authority = Authority.load(place, grid)
        own = certificate_in(place)
        check_private(place / IDENTITIES)
        own.verify_directly_issued_by(authority.certificate)
        named = identity_of(own.public_bytes(serialization.Encoding.DER))
        if named != Identity(grid, Role.COORDINATOR):
            yield PKI, f"its certificate is for {named.uri}, and the store is of grid {grid}", AGAIN
    except GridError as error:
        yield PKI, f"{error.what}: {error.why}" if error.why else error.what, error.hint or AGAIN
    except (OSError, ValueError, TypeError, BadValue, InvalidSignature, x509.ExtensionNotFound) as error:
        yield PKI, f"its keys and certificates do not belong together: {error or type(error).__name__}", AGAIN
    try:
        with closing(_read(place / IDENTITIES)) as db:
            for (said,) in db.execute("PRAGMA integrity_check(5)"):
                if said != "ok":
                    yield f"{PKI}/{IDENTITIES}", str(said), AGAIN
            db.execute("SELECT count(*) FROM certificates").fetchone()
    except sqlite3.Error as error:
        yield f"{PKI}/{IDENTITIES}", f"cannot be read: {error}", AGAIN


def _read(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, timeout=5)
