"""The head of a store: one row that each commit writes, with its number, and with a checksum of its own."""

import sqlite3
import zlib
from typing import Any

import msgspec

from distributed_grid.coordinator.core.rollback import Loss, Point

SET = "UPDATE meta SET value = CASE name WHEN 'clock' THEN ?1 ELSE ?2 END WHERE name IN ('clock', 'head')"
"""What a commit says: the clock, which older versions read, and the head."""
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


def read(db: sqlite3.Connection) -> tuple[Point, str]:
    """How far the store says it has come, and what is wrong with that (empty: nothing). A store of an earlier version
    has made no numbered commit."""
    meta = dict(db.execute("SELECT name, value FROM meta").fetchall())
    try:
        plain = Point(str(meta["grid"]), int(meta["epoch"]), 0, float(meta["clock"]))
    except (KeyError, ValueError, TypeError):
        return Point("", 0, 0, 0.0), "its grid, epoch or clock is not there or not what it must be"
    if "head" not in meta:
        return plain, ""
    head = decode(meta["head"])
    if head is None:
        return plain, "its head is not what was written"
    if (head.grid, head.epoch, head.clock) != (plain.grid, plain.epoch, plain.clock):
        return head, "its head does not fit its grid, epoch or clock"
    return head, ""


def put(db: sqlite3.Connection, point: Point) -> None:
    """Have this as the head, and what belongs to it, in the transaction that is open."""
    for name, value in (("epoch", point.epoch), ("clock", point.clock), ("head", encode(point))):
        db.execute(_PUT, (name, value))


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
    """It stands no more; what began on nodes before `at` may be unknown here from now on. The next commit has to write
    a head with this epoch."""
    db.execute("DELETE FROM meta WHERE name = 'loss'")
    db.execute(_PUT, ("restored", at))
    db.execute(_PUT, ("epoch", epoch))
