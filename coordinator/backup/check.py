"""`grid coordinator check`: whether a store is consistent, both its rows and the ledger that is made from them. It
changes nothing, and works on the store of a running coordinator, of a stopped one, and on a backup."""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from distributed_grid.coordinator.backup.state import (
    STORE,
    Content,
    blob_path,
    content,
    live_blobs,
    open_read_only,
    pki_findings,
)
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.model import Allocation, Group, Job
from distributed_grid.coordinator.core.rollback import CHOOSE, Traces, missing
from distributed_grid.coordinator.store import evidence, rows
from distributed_grid.coordinator.store.errors import DiskTrouble, StoreFailed, StoreRefused
from distributed_grid.coordinator.store.open import Outside, examine, read_outside, standing_loss
from distributed_grid.coordinator.store.rows import decode_job
from distributed_grid.protocol.bundle import hasher
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.messages.rights import Rights
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders

T = TypeVar("T")
MOST = 100
"""Maximum number of findings listed; a damaged store has one for every row."""

RESTORE = "restore a backup, or report this if it came about without damage to the disk"


class Finding(NamedTuple):
    """A defect: where, what, and what to do about it."""

    where: str
    what: str
    hint: str = RESTORE


class Checked(NamedTuple):
    """The findings of a check; `more`: the number of those that are not listed."""

    content: Content | None
    findings: list[Finding]
    more: int = 0


def check(folder: Path) -> Checked:
    """Check the store in a state directory or a backup. Raises GridError if there is none that can be read, and no sign
    that there was one."""
    outside, seen = read_outside(folder / STORE), evidence.find_traces(folder)
    gone = missing(outside.mark, seen)
    if not outside.there and gone:
        return Checked(None, [Finding(STORE, one, CHOOSE) for one in gone])
    try:
        with open_read_only(folder) as db:
            return _checked(db, folder, outside, seen)
    except (DiskTrouble, StoreRefused):
        raise
    except StoreFailed as error:
        if not gone:
            raise
        return Checked(None, [Finding(STORE, f"{error.what}: {error.why}" if error.why else error.what, CHOOSE)])


def _checked(db: sqlite3.Connection, folder: Path, outside: Outside, seen: Traces) -> Checked:
    found: list[Finding] = []
    what = None
    db.execute("BEGIN")  # all of it at one moment
    try:
        if damage := _damage(db):
            return Checked(None, damage)
        found += _lost(db, outside, seen)
        if all(one.hint == CHOOSE for one in found):
            what = content(db)
            found += _Rows(db).findings() or _blobs(db, folder)
            found += (Finding(*one) for one in pki_findings(folder, what.grid))
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        found.append(Finding(STORE, f"cannot be read: {error}"))
    return Checked(what, found[:MOST], max(0, len(found) - MOST))


def _damage(db: sqlite3.Connection) -> list[Finding]:
    """The defects that SQLite finds; if there are any, rows are not checked."""
    said = [row[0] for row in db.execute(f"PRAGMA integrity_check({MOST})")]
    return [] if said == ["ok"] else [Finding(STORE, text, "restore a backup: the file is damaged") for text in said]


def _lost(db: sqlite3.Connection, outside: Outside, seen: Traces) -> Iterator[Finding]:
    """Evidence of lost commits. Nothing outside of a backup tells of it."""
    if db.execute("SELECT 1 FROM meta WHERE name = 'backup'").fetchone():
        yield from (Finding(STORE, one.what) for one in (*rows.stray_rows(db), *rows.unreadable_rows(db)))
        return
    gone = examine(db, outside, seen).found
    loss = standing_loss(db)
    bad = [one.what for one in rows.damaged_rows(db)]
    for one in dict.fromkeys([*(loss.found if loss is not None else ()), *gone, *bad]):
        yield Finding(STORE, one, CHOOSE)


def _blobs(db: sqlite3.Connection, folder: Path) -> Iterator[Finding]:
    """Check that the shipped files of live jobs are there and unchanged."""
    again = "cancel the job and submit it again from where its files are"
    needed, missing = live_blobs(db, folder)
    for blob, job in missing.items():
        yield Finding(f"job {job}", f"needs the shipped file {blob[:12]}…, which is not there", again)
    for blob in needed - missing.keys():
        digest = hasher()
        try:
            with blob_path(folder, blob).open("rb") as file:
                while part := file.read(1 << 20):
                    digest.update(part)
        except OSError as error:
            yield Finding(f"blob {blob[:12]}…", f"cannot be read: {error.strerror}", "look at the disk it is on")
            continue
        if digest.hexdigest() != blob:
            yield Finding(f"blob {blob[:12]}…", "has another content than its name says", again)


class _Rows:
    """Checks every row by itself, then the relations between them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._found: list[Finding] = []
        self._jobs: list[Job] = []
        self._allocations: list[Allocation] = []
        self._nodes: dict[str, NodeFacts] = {}
        self._orders: dict[str, NodeOrders] = {}
        self._groups: list[Group] = []

    def findings(self) -> list[Finding]:
        nodes = self._db.execute("SELECT name, NULL, body FROM nodes")
        found = self._records("node", nodes, NodeFacts, "name")
        self._nodes = {where.removeprefix("node "): facts for where, facts, _ in found}
        for name, body in self._db.execute("SELECT name, body FROM node_orders"):
            if (orders := self._decoded(f"orders for {name}", body, NodeOrders)) is not None:
                self._orders[name] = orders
        for name, body in self._db.execute("SELECT name, body FROM rights"):
            self._decoded(f"rights of {name}", body, Rights)
        rows = self._db.execute("SELECT id, key, user, submitted, ended, NULL, body FROM groups")
        groups = self._records("group", rows, Group, "id", "key", "user", "submitted", "ended")
        self._groups = [group for _, group, _ in groups if not group.ended]
        self._check_jobs()
        past = self._db.execute("SELECT id, node, NULL, body FROM past_allocations")
        deque(self._records("allocation", past, Allocation, "id", "node"), maxlen=0)
        if not self._found:
            self._found += self._as_a_ledger()
        return self._found

    def _records(self, what: str, rows: sqlite3.Cursor, kind: type[T], *fields: str) -> Iterator[tuple[str, T, Any]]:
        """Readable records, each with the column before it. The first columns have to equal these fields of the
        record."""
        for *values, more, body in rows:
            where = f"{what} {values[0]}"
            if (record := self._decoded(where, body, kind)) is not None:
                self._compare(where, record, fields, values)
                yield where, record, more

    def _compare(self, where: str, record: Any, fields: Sequence[str], values: Sequence[Any]) -> None:
        names = [field.rpartition(".")[2] for field in fields]
        inside = [attrgetter(field)(record) for field in fields]
        self._same(where, dict(zip(names, values, strict=True)), dict(zip(names, inside, strict=True)))

    def _decoded(self, where: str, body: bytes, kind: type[T]) -> T | None:
        return self._read(where, partial(msgspec.msgpack.decode, body, type=kind))

    def _read(self, where: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (msgspec.DecodeError, ValueError, OverflowError) as error:
            self._found.append(Finding(where, f"its record cannot be read: {error}"))
            return None

    def _same(self, where: str, columns: dict[str, Any], body: dict[str, Any]) -> None:
        for name, value in columns.items():
            if value != body[name]:
                self._found.append(Finding(where, f"its {name} is {value!r} in the table and {body[name]!r} inside"))

    def _check_jobs(self) -> None:
        fields = ("id", "key", "user", "spec.name", "submitted", "state", "ended", "node")
        rows = self._db.execute(
            "SELECT id, key, user, name, submitted, state, ended, node, allocation, body, change FROM whole"
        )
        for *values, encoded, body, change in rows:
            where = f"job {values[0]}"
            if (job := self._read(where, partial(decode_job, body, change))) is None:
                continue
            kept = len(fields) - (job.state is State.ENDED)  # of an ended job the node is not searched by
            self._compare(where, job, fields[:kept], values[:kept])
            allocation = self._decoded(where, encoded, Allocation) if encoded is not None else None
            if job.state is not State.ENDED:
                self._jobs.append(job)
                if job.state is not State.WAITING:
                    self._check_held(where, job, allocation)

    def _check_held(self, where: str, job: Job, allocation: Allocation | None) -> None:
        if allocation is None:
            self._found.append(Finding(where, f"is {job.state.value}, and what it holds is not kept"))
            return
        self._same(
            where,
            {"allocation": job.allocation, "state": job.state.value, "id": job.id},
            {"allocation": allocation.id, "state": allocation.state.value, "id": allocation.job},
        )
        if allocation.node not in self._nodes:
            self._found.append(Finding(where, f"is on {allocation.node}, which is not a node that is known"))
        self._allocations.append(allocation)

    def _as_a_ledger(self) -> Iterator[Finding]:
        """Check a ledger made from the rows, as a start makes it."""
        ledger = Ledger()
        try:
            facts = self._nodes.values()
            ledger.restore(self._jobs, self._allocations, facts, 0.0, ordered=self._orders, many=self._groups)
            ledger.check()
        except (AssertionError, KeyError, ValueError) as error:
            yield Finding(STORE, f"a ledger made of it contradicts itself: {error}")


def require_sound(folder: Path) -> Content:
    """The content of a store that has no defects (lost commits do not matter to a restore). Raises GridError with the
    first defect."""
    checked = check(folder)
    wrong = [one for one in checked.findings if one.hint != CHOOSE or checked.content is None]
    if checked.content is None or wrong:
        raise GridError(
            f"{folder} cannot be used",
            why=f"{wrong[0].where}: {wrong[0].what}",
            hint=f"grid coordinator check --state-dir {folder}",
        )
    return checked.content
