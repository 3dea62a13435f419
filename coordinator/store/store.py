"""The coordinator's store: SQLite with one writer, and the queries on it.

Live state is in the ledger's memory. The store is what that is rebuilt from at a start, and where ended jobs are found.
A commit has two steps: `snapshot` on the loop encodes the current records, `commit` may run in a thread. Queries see
only what is committed.
"""

import itertools
import json
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from distributed_grid.coordinator.core.commands import (
    Audit,
    Record,
    RecordAllocation,
    RecordBalancing,
    RecordForgotten,
    RecordGroup,
    RecordJob,
    RecordLoan,
    RecordLoss,
    RecordNode,
    RecordOrders,
    RecordReceipt,
    RecordReturns,
    RecordRights,
    RecordShare,
    RecordSpent,
)
from distributed_grid.coordinator.core.model import Allocation, Group, Job
from distributed_grid.coordinator.core.queue.quotas import Spent
from distributed_grid.coordinator.core.rollback import Point, Traces, joined
from distributed_grid.coordinator.core.scaling.events import RecordMachine, RecordPauses
from distributed_grid.coordinator.core.scaling.state import Paused
from distributed_grid.coordinator.store import open
from distributed_grid.coordinator.store import rows as store_receipts
from distributed_grid.coordinator.store import rows as store_sums
from distributed_grid.coordinator.store.errors import DiskTrouble, Reserve, StoreFailed, as_sqlite, failure
from distributed_grid.coordinator.store.evidence import MarkFile
from distributed_grid.coordinator.store.open import AUDIT_ROWS, NO_TRACES, TRIM_AUDIT, begin, connect
from distributed_grid.coordinator.store.rows import (
    BALANCING,
    CHUNKS,
    MACHINE,
    META,
    OF_KNOWN,
    PAUSED,
    RETURNS,
    STATEMENTS,
    Snapshot,
    decode_job,
    encode_change,
    find_jobs,
)
from distributed_grid.protocol.jobs import State, has_failed
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.messages.rights import Rights
from distributed_grid.protocol.nodes import NO_ORDERS, NodeFacts, NodeOrders
from distributed_grid.protocol.scaling.machines import Machine
from distributed_grid.protocol.sharing.policies import NO_ORDER, BalancingOrder
from distributed_grid.runtime.faults import fault

HOUR = 3600.0
AUDIT_TEXT = 500
"""Characters of such a line, which contains names chosen by peers."""


@dataclass(slots=True)
class Living:
    """State loaded at a restart: jobs not ended (oldest first, members of a group by index), allocations not ended, all
    nodes ever seen, their orders, groups not ended, past usage by user (amount, time), granted rights, and what was
    spent of a day by pool."""

    jobs: list[Job]
    allocations: list[Allocation]
    nodes: list[NodeFacts]
    orders: dict[str, NodeOrders]
    groups: list[Group]
    receipts: list[Receipt] = field(default_factory=list)
    """Preemptions of the last hour."""
    shares: dict[str, tuple[float, float]] = field(default_factory=dict)
    rights: dict[str, Rights] = field(default_factory=dict)
    spent: dict[str, Spent] = field(default_factory=dict)
    balancing: BalancingOrder = NO_ORDER
    """What operators have set of mode and policy."""
    lent: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """What users have lent on average (amount, time), by lender and borrower."""
    machines: list[Machine] = field(default_factory=list)
    """Those that are there, and those that are remembered, in the order in which they were wanted."""
    paused: dict[str, Paused] = field(default_factory=dict)
    """Pools in which nothing is created."""
    returns: dict[str, tuple[int, int]] = field(default_factory=dict)
    """How often jobs went on after an owner's return, and were recalled, by node."""


ENDED_JOBS = "SELECT jobs.body, ended.body FROM ended CROSS JOIN jobs ON jobs.n = ended.n"
_encode = msgspec.msgpack.Encoder().encode
_allocation = msgspec.msgpack.Decoder(Allocation).decode
_facts = msgspec.msgpack.Decoder(NodeFacts).decode
_orders = msgspec.msgpack.Decoder(NodeOrders).decode
_group = msgspec.msgpack.Decoder(Group).decode
_rights = msgspec.msgpack.Decoder(Rights).decode


def _in_order(job: Job) -> tuple[float, str, int]:
    return job.submitted, job.group or job.id, job.index


@fault("coordinator.commit", error=as_sqlite)
def _commit(db: sqlite3.Connection) -> None:
    db.execute("COMMIT")


class Store:
    """An open store. Opening it begins a new epoch, durably. `reserve`: space that is given up when needed; `traces`:
    other evidence of it. `loss`: why nothing may be started from it; None: nothing is lost. `key`: that of its stamps
    (contradictions.py); `found`: its commits when it was opened."""

    def __init__(self, path: Path, reserve: Reserve | None = None, traces: Traces = NO_TRACES) -> None:
        self._path = path
        self._reserve = reserve
        self._audited = self._receipts = 0
        try:
            self._writer, self._point, self.loss, self.key, self.found = begin(path, traces)
            self._reader = sqlite3.connect(path, isolation_level=None)
            self._reader.execute("PRAGMA query_only = 1")
        except sqlite3.Error as error:
            raise failure(path, error) from error
        self.grid, self.epoch, self.clock = self._point.grid, self._point.epoch, self._point.clock
        self._mark = MarkFile(path, self.key)
        self._mark.write(self._point)
        self.restored = float(self._meta("restored") or 0)
        """When it was last restored from a backup, or its loss accepted, in grid time; 0: never."""
        self.restored_epoch = int(self._meta("restored-epoch") or 0)
        """The first epoch after that."""

    @property
    def commits(self) -> int:
        """The number of its last commit."""
        return self._point.commits

    def _meta(self, name: str) -> Any:
        row = self._reader.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Close after all commits; the next start need not check for damage."""
        self._reader.close()
        with suppress(sqlite3.Error):  # then the next start checks
            self._writer.execute("UPDATE meta SET value = 1 WHERE name = 'clean'")
        self._writer.close()
        self._mark.close()

    def abandon(self) -> None:
        """Close after a failure: uncommitted records are lost."""
        self._reader.close()
        self._writer.close()
        self._mark.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def snapshot(self, records: Iterable[Record], clock: float) -> Snapshot:
        """Encode records as they are now; of several records of one object only the newest is kept."""
        out = Snapshot(clock)
        jobs: dict[str, Job] = {}
        first: dict[str, None] = {}
        allocations: dict[str, Allocation] = {}
        groups: dict[str, Group] = {}
        nodes: dict[str, NodeFacts] = {}
        orders: dict[str, NodeOrders] = {}
        gone: dict[str, None] = {}
        receipts: dict[str, Receipt] = {}
        shares: dict[str, tuple[str, float, float]] = {}
        loans: dict[tuple[str, str], tuple[str, str, float, float]] = {}
        rights: dict[str, Rights | None] = {}
        spent: dict[str, Spent] = {}
        machines: dict[str, Machine | None] = {}
        returns: dict[str, tuple[int, int]] = {}
        for record in records:
            if type(record) is RecordJob:  # by far the most frequent
                jobs[record.job.id] = record.job
                if record.new:
                    first[record.job.id] = None
                continue
            match record:
                case RecordAllocation(allocation):
                    allocations[allocation.id] = allocation
                case RecordGroup(group):
                    groups[group.id] = group
                case RecordNode(facts):
                    nodes[facts.name] = facts
                    gone.pop(facts.name, None)
                case RecordForgotten(node):
                    gone[node] = None
                    nodes.pop(node, None)
                case RecordOrders(node, ordered):
                    orders[node] = ordered
                case RecordReceipt(receipt):
                    receipts[receipt.id] = receipt
                case RecordShare(user, past, at):
                    shares[user] = (user, past, at)
                case RecordLoan(lender, borrower, past, at):
                    loans[lender, borrower] = (lender, borrower, past, at)
                case RecordReturns(node, thawed, recalled):
                    returns[node] = (thawed, recalled)
                case RecordBalancing(order):
                    out.meta.append((BALANCING, _encode(order)))
                case RecordMachine(name, machine):
                    machines[name] = machine
                case RecordPauses(paused):
                    out.meta.append((PAUSED, _encode(paused)))
                case RecordRights(name, granted):
                    rights[name] = granted
                case RecordSpent(pool, some):
                    spent[pool] = some
                case RecordLoss(found):
                    out.found.append(found)
                case Audit(node, what):
                    out.audit.append((clock, node, what[:AUDIT_TEXT]))
        newest: dict[str, bytes] = {}
        for a in allocations.values():
            of = jobs.get(a.job)
            if of is not None and of.allocation == a.id:
                newest[a.job] = _encode(a)
            elif a.state is not State.ENDED:
                raise ValueError(f"{a.id} is recorded without its job")
            if a.state is State.ENDED and (of is None or of.state is not State.ENDED):
                body = _encode(a)
                out.past_allocations.append((a.id, a.node, body, store_sums.checksum(body, a.id, a.node)))
        for id_, j in jobs.items():
            state, is_new = j.state, id_ in first
            if is_new:
                body, searched = _encode(j), (id_, j.key, j.user, j.spec.name, j.submitted)
                out.jobs.append((*searched, body, store_sums.checksum(body, *searched)))
            if state is State.ENDED:
                marks = int(j.spec.boost is not None), int(j.outcome is not None and has_failed(j.outcome))
                of_end, body = (id_, j.user, j.ended, *marks), encode_change(j)
                out.ended.append((*of_end, body, store_sums.checksum(body, *of_end)))
            elif not is_new or state is not State.WAITING:
                of_change, body, grant = (id_, state.value, j.node), encode_change(j), newest.get(id_)
                grant_sum = store_sums.checksum(grant) if grant is not None else None
                out.changes.append((*of_change, body, grant, store_sums.checksum(body, *of_change), grant_sum))
        for g in groups.values():
            of_group, body = (g.id, g.key, g.user, g.submitted, g.ended), _encode(g)
            out.groups.append((*of_group, body, store_sums.checksum(body, *of_group)))
        out.gone_nodes = [(name,) for name in gone]
        out.gone_meta += ((RETURNS + name,) for name in gone)
        for facts in nodes.values():
            body = _encode(facts)
            out.nodes.append((facts.name, clock, body, store_sums.checksum(body, facts.name)))
        out.receipts = [store_receipts.receipt_row(receipt) for receipt in receipts.values()]
        out.shares = list(shares.values())
        out.loans = list(loans.values())
        for name, ordered in orders.items():
            if ordered == NO_ORDERS:
                out.gone_orders.append((name,))
            else:
                body = _encode(ordered)
                out.node_orders.append((name, body, store_sums.checksum(body, name)))
        out.meta += ((RETURNS + name, _encode(counted)) for name, counted in returns.items())
        for name, machine in machines.items():
            if machine is None:
                out.gone_meta.append((MACHINE + name,))
            else:
                out.machines.append((MACHINE + name, _encode(machine)))
        out.spent = [(pool, some.day, some.cpu, some.gpu) for pool, some in spent.items()]
        for name, granted in rights.items():
            if granted is None:
                out.gone_rights.append((name,))
            else:
                body = _encode(granted)
                out.rights.append((name, body, store_sums.checksum(body, name)))
        return out

    def commit(self, snapshot: Snapshot) -> None:
        """Commit durably. Raises DiskTrouble, after which `reopen` must follow (what is on the disk is unknown), or
        StoreFailed, which is final."""
        execute = self._writer.execute
        try:
            if not self._writer.in_transaction:
                execute("BEGIN IMMEDIATE")
            for table, rows in snapshot.tables():
                at = 0
                for count in CHUNKS:
                    while len(rows) - at >= count:
                        values = [*itertools.chain.from_iterable(rows[at : at + count])]
                        if execute(STATEMENTS[table, count], values).rowcount != count and table in OF_KNOWN:
                            raise sqlite3.IntegrityError(f"{table}: a job is not there")
                        at += count
            self._receipts += len(snapshot.receipts)
            if self._receipts >= store_receipts.RECEIPTS_KEPT // 10:
                self._receipts = 0
                execute(store_receipts.TRIM_RECEIPTS, (store_receipts.RECEIPTS_KEPT,))
            self._audited += len(snapshot.audit)
            if self._audited >= AUDIT_ROWS // 10:
                self._audited = 0
                execute(TRIM_AUDIT, (AUDIT_ROWS,))
            if snapshot.found:
                self._lose(snapshot.found, snapshot.clock)
            point = Point(self.grid, self.epoch, self._point.commits + 1, snapshot.clock)
            execute(open.SET_HEAD, (open.encode_head(point),))
            _commit(self._writer)
            self._point = point
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._writer.rollback()
            raise failure(self._path, error) from error
        self._mark.write(point)

    def _lose(self, found: Iterable[str], at: float) -> None:
        """Record evidence of lost commits: it stands until an operator accepts it."""
        loss = joined(open.standing_loss(self._writer), secrets.token_hex(4), at, found)
        if loss is not None:
            open.put_loss(self._writer, loss)
            self.loss = loss

    def accept(self, snapshot: Snapshot) -> None:
        """Commit this and the operator's acceptance of the loss. The epoch becomes greater than any that the lost store
        can have had. Only before the epoch is told to anybody."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            self.epoch = max(self.epoch, int(time.time()))
            open.accept_loss(self._writer, snapshot.clock, self.epoch)
        except sqlite3.Error as error:
            raise failure(self._path, error) from error
        self.commit(snapshot)
        self.loss, self.restored, self.restored_epoch = None, snapshot.clock, self.epoch

    def reopen(self) -> None:
        """After a DiskTrouble: write through a new connection, with the reserve's space. The kernel reports a failed
        sync once, so the file may look intact and not be; a new connection writes everything again. Raises DiskTrouble
        if that fails now, StoreFailed if committed data is missing."""
        self._writer.close()
        if self._reserve is not None:
            self._reserve.give_up()
        try:
            self._writer = connect(self._path)
            found = open.read_head(self._writer)
        except sqlite3.Error as error:
            raise failure(self._path, error) from error
        same = (found.grid, found.epoch) == (self.grid, self.epoch)
        if not same or found.commits < self._point.commits:
            raise StoreFailed(
                f"{self._path} is not what it was",
                why="what was committed is not in it any more" if same else "another coordinator has begun on it",
                hint="see what became of that disk, then start again",
            )
        self._point = found  # a commit that failed may have succeeded

    def secure(self) -> DiskTrouble | None:
        """Restore the reserve if it was given up; why that cannot be done now."""
        why = self._reserve.make() if self._reserve is not None else ""
        return DiskTrouble(f"no space left for {self._path}", why, "free some space on that disk") if why else None

    # --- reading ------------------------------------------------------------------------------------------------------

    def forget_nodes(self, before: float) -> None:
        """Forget the nodes last seen before then, unless they are declared, or have a live job or orders. Only before
        `load`: a ledger remembers those it knows. Raises StoreFailed."""
        idle = "name NOT IN (SELECT node FROM changes)"
        free = "name NOT IN (SELECT name FROM node_orders)"
        try:
            self._writer.execute("DELETE FROM node_orders WHERE body = ?", (_encode(NO_ORDERS),))
            query = f"SELECT name, body FROM nodes WHERE seen < ? AND {idle} AND {free}"  # noqa: S608
            unseen = self._writer.execute(query, (before,)).fetchall()
            gone = json.dumps([name for name, body in unseen if _facts(body).declared is None])
            self._writer.execute("DELETE FROM nodes WHERE name IN (SELECT value FROM json_each(?))", (gone,))
            left = "name >= ? AND name < ? AND substr(name, ?) NOT IN (SELECT name FROM nodes)"
            self._writer.execute(f"DELETE FROM meta WHERE {left}", (RETURNS, RETURNS + "~", len(RETURNS) + 1))  # noqa: S608
        except sqlite3.Error as error:
            raise failure(self._path, error) from error
        except ValueError as error:
            raise failure(self._path, sqlite3.DatabaseError(str(error))) from None

    def load(self) -> Living:
        """Load all live state, independent of the size of the history. Raises StoreFailed."""
        try:
            return self._load()
        except (sqlite3.Error, ValueError, OverflowError) as error:  # what msgspec raises is a ValueError
            raise failure(self._path, sqlite3.DatabaseError(str(error))) from None

    def _load(self) -> Living:
        read = self._reader.execute
        ordered = self._meta(BALANCING)
        live = read(
            "SELECT jobs.body, changes.body, allocation, state FROM live CROSS JOIN jobs ON jobs.n = live.n "
            "LEFT JOIN changes ON changes.n = live.n"
        ).fetchall()
        return Living(
            sorted((decode_job(body, change) for body, change, _, _ in live), key=_in_order),
            [_allocation(body) for _, _, body, state in live if state not in (None, State.WAITING)],
            [_facts(row[0]) for row in read("SELECT body FROM nodes ORDER BY name")],
            {name: _orders(body) for name, body in read("SELECT name, body FROM node_orders")},
            [_group(row[0]) for row in read("SELECT body FROM groups INDEXED BY groups_live WHERE ended = 0")],
            store_receipts.find_receipts(self._reader, store_receipts.RECEIPTS_KEPT, since=self.clock - HOUR),
            {user: (past, at) for user, past, at in read("SELECT user, past, at FROM shares WHERE past > 0")},
            {name: _rights(body) for name, body in read("SELECT name, body FROM rights")},
            {pool: Spent(*spent) for pool, *spent in read("SELECT pool, day, cpu, gpu FROM spent")},
            META[BALANCING](ordered) if ordered is not None else NO_ORDER,
            {(one, other): told for one, other, *told in read("SELECT * FROM loans WHERE past > 0")},
            sorted(self._machines(), key=lambda one: (one.wanted, len(one.name), one.name)),
            META[PAUSED](paused) if (paused := self._meta(PAUSED)) is not None else {},
            {name.removeprefix(RETURNS): META[RETURNS](value) for name, value in self._of_meta(RETURNS)},
        )

    def _machines(self) -> Iterator[Machine]:
        return (META[MACHINE](value) for _, value in self._of_meta(MACHINE))

    def _of_meta(self, begin: str) -> Iterator[tuple[str, Any]]:
        """The rows of `meta` whose names begin so."""
        return self._reader.execute("SELECT name, value FROM meta WHERE name >= ? AND name < ?", (begin, begin + "~"))

    def receipts(self, limit: int, job: str = "", node: str = "", only: str = "") -> list[Receipt]:
        """Preemptions, newest first; of a job, on a node, or in which this user had a part."""
        return store_receipts.find_receipts(self._reader, limit, job, node, only=only)

    def known(self, user: str, keys: Sequence[str]) -> dict[str, str]:
        """Which of a user's keys were submitted before, with the ids of their jobs or groups."""
        found: dict[str, str] = {}
        for at in range(0, len(keys), 500):
            part = keys[at : at + 500]
            marks = ", ".join("?" * len(part))
            for table, more in (("jobs", "AND key <> id"), ("groups", "")):  # members are known by their group's
                rows = self._reader.execute(
                    f"SELECT key, id FROM {table} WHERE user = ? AND key IN ({marks}) {more}",  # noqa: S608
                    (user, *part),
                )
                found.update(rows.fetchall())
        return found

    def job(self, job: str) -> Job | None:
        """A job as last stored."""
        row = self._reader.execute("SELECT body, change FROM whole WHERE id = ?", (job,)).fetchone()
        return decode_job(*row) if row else None

    def group(self, group: str) -> Group | None:
        """A group as last stored."""
        row = self._reader.execute("SELECT body FROM groups WHERE id = ?", (group,)).fetchone()
        return _group(row[0]) if row else None

    def find(self, ref: str, user: str, only: str = "", by_name: bool = True) -> list[str]:
        """The ids of matching jobs or groups: see rows.find_jobs."""
        return find_jobs(self._reader.execute, ref, user, only, by_name)

    def newest_names(self, user: str) -> list[str]:
        """Ids and names of a user's newest jobs, for suggestions."""
        rows = self._reader.execute(
            "SELECT id, name FROM jobs WHERE user = ? ORDER BY submitted DESC LIMIT 200", (user,)
        )
        return [text for row in rows for text in row if text]

    def groups_ended(self, limit: int, user: str = "", failed: bool = False) -> list[Group]:
        """Ended groups, latest end first; of one user if given; `failed`: those with failed members only."""
        mine = "AND user = ?" if user else ""
        rows = self._reader.execute(
            f"SELECT body FROM groups WHERE ended > 0 {mine} ORDER BY ended DESC",  # noqa: S608
            [user] if user else [],
        )
        found = map(_group, (row[0] for row in rows))
        return list(itertools.islice((group for group in found if group.failed or not failed), limit))

    def list_ended(
        self,
        limit: int,
        user: str = "",
        past: tuple[float, str] | None = None,
        alone: bool = False,
        boosts: bool = False,
        failed: bool = False,
    ) -> list[Job]:
        """Ended jobs, latest end first; of one user if given; `past`: after the one with this end and id; `alone`:
        without members of groups; `boosts` and `failed`: those only."""
        which: list[tuple[str, tuple[Any, ...]]] = [("true", ())]
        which += [("ended.user = ?", (user,))] if user else []
        which += [("ended <= ? AND (ended, id) < (?, ?)", (past[0], *past))] if past else []
        which += [("instr(id, '_') = 0", ())] if alone else []
        which += [("boost = 1", ())] if boosts else []
        which += [("failed = 1", ())] if failed else []
        rows = self._reader.execute(
            f"{ENDED_JOBS} WHERE {' AND '.join(text for text, _ in which)} ORDER BY ended DESC, id DESC LIMIT ?",
            (*(value for _, values in which for value in values), limit),
        )
        return [decode_job(*row) for row in rows]

    def past(self, allocation: str) -> Allocation | None:
        """An allocation that came to nothing, while its job went on; None: there is no such one."""
        row = self._reader.execute("SELECT body FROM past_allocations WHERE id = ?", (allocation,)).fetchone()
        return _allocation(row[0]) if row else None
