"""The head of a store: one row that each commit writes, with its number, and with a checksum of its own."""

import sqlite3
import zlib
from contextlib import suppress
from typing import Any

import msgspec

from distributed_grid.coordinator.core.rollback import Loss, Point

SET = "UPDATE meta SET value = ? WHERE name = 'head'"
"""What a commit says."""
_PUT = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"


def encode(point: Point) -> str:
    """As it is stored."""
    text = f"{point.grid} {point.epoch} {point.commits} {point.clock!r}"
    return f"{text} {zlib.crc32(text.encode()):08x}"


def decode(text: object) -> Point | None:
    """The head in this text; None if it is not what was written."""
    said, _, check = str(text).rpartition(" ")
    parts = said.split(" ")
    try:
        if len(parts) == 4 and check == f"{zlib.crc32(said.encode()):08x}":
            return Point(parts[0], int(parts[1]), int(parts[2]), float(parts[3]))
    except ValueError:
        pass
    return None


def read(db: sqlite3.Connection) -> Point:
    """How far the store says it has come. Raises sqlite3.DatabaseError where that is not what was written."""
    row = db.execute("SELECT value FROM meta WHERE name = 'head'").fetchone()
    head = decode(row[0]) if row is not None else None
    if head is None:
        raise sqlite3.DatabaseError("its head is not what was written")
    return head


def put(db: sqlite3.Connection, point: Point) -> None:
    """Have this as the head, in the transaction that is open."""
    db.execute(_PUT, ("head", encode(point)))


def standing_loss(db: sqlite3.Connection) -> Loss | None:
    """The loss that no operator has accepted yet. Raises sqlite3.DatabaseError where it cannot be read."""
    row: Any = db.execute("SELECT value FROM meta WHERE name = 'loss'").fetchone()
    if row is None:
        return None
    try:
        return msgspec.json.decode(row[0], type=Loss)
    except (msgspec.DecodeError, TypeError) as error:
        raise sqlite3.DatabaseError(f"what it says of a loss cannot be read: {error}") from None


def put_loss(db: sqlite3.Connection, loss: Loss) -> None:
    """Have it stand until it is accepted, in the transaction that is open."""
    db.execute(_PUT, ("loss", msgspec.json.encode(loss).decode()))


def accept_loss(db: sqlite3.Connection, at: float, epoch: int) -> None:
    """It stands no more, from this epoch on."""
    db.execute("DELETE FROM meta WHERE name = 'loss'")
    put_restored(db, at, epoch)


def put_restored(db: sqlite3.Connection, at: float, epoch: int) -> None:
    """What began on nodes before `at`, or was told to them before this epoch, may be unknown here from now on."""
    db.execute(_PUT, ("restored", at))
    db.execute(_PUT, ("restored-epoch", epoch))


def key_of(db: sqlite3.Connection) -> bytes:
    """The key of the store's stamps; empty: it has none yet."""
    row = db.execute("SELECT value FROM meta WHERE name = 'key'").fetchone()
    with suppress(ValueError, TypeError):
        return bytes.fromhex(row[0]) if row is not None else b""
    return b""


def put_key(db: sqlite3.Connection, key: bytes) -> None:
    """Have this as the key of its stamps, in the transaction that is open."""
    db.execute(_PUT, ("key", key.hex()))
