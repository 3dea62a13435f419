"""The receipts of preemptions in the store: the newest are kept, so many."""

import itertools
import sqlite3
from typing import Any

import msgspec

from distributed_grid.protocol.preemption import Receipt

ROWS = 10_000
"""So many are kept at least; a tenth more before the oldest go."""
TRIM = "DELETE FROM receipts WHERE at < (SELECT at FROM receipts ORDER BY at DESC LIMIT 1 OFFSET ?)"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Receipt).decode


def row(receipt: Receipt) -> tuple[str, float, str, str, bytes]:
    """As it is stored."""
    jobs = " ".join((receipt.job, *(victim.job for victim in receipt.victims)))
    nodes = " ".join((receipt.node, *(place.node for place in receipt.more)))
    return receipt.id, receipt.at, nodes, f" {jobs} ", _encode(receipt)


def find(
    db: sqlite3.Connection, limit: int, job: str = "", node: str = "", since: float = 0.0, only: str = ""
) -> list[Receipt]:
    """The newest first; of one job (its own, or where it gave way), of one node, of a time from then on; `only`: those
    in which this user had a part."""
    which: list[tuple[str, Any]] = [("at >= ?", since)]
    which += [("instr(jobs, ?) > 0", f" {job} ")] if job else []
    which += [("instr(' ' || node || ' ', ?) > 0", f" {node} ")] if node else []
    which += [("instr(body, ?) > 0", only.encode())] if only else []  # so that few others are decoded
    rows = db.execute(
        f"SELECT body FROM receipts WHERE {' AND '.join(text for text, _ in which)} "  # noqa: S608
        "ORDER BY at DESC, id DESC LIMIT ?",
        (*(value for _, value in which), -1 if only else limit),
    )
    found = (_decode(body) for (body,) in rows)
    theirs = (one for one in found if not only or only in (one.user, *(victim.user for victim in one.victims)))
    return list(itertools.islice(theirs, limit))
