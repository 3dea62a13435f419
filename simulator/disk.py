"""The coordinator's store: what is committed, as bytes, so that no object of an earlier ledger is shared with the next
one. It replaces coordinator/store/store.py."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from distributed_grid.coordinator.core.commands import (
    Command,
    RecordAllocation,
    RecordForgotten,
    RecordGroup,
    RecordJob,
    RecordLoan,
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
from distributed_grid.protocol.jobs import Outcome, State
from distributed_grid.protocol.messages.operator import Receipt
from distributed_grid.protocol.messages.rights import Rights
from distributed_grid.protocol.nodes import NodeFacts, NodeOrders

_encode = msgspec.msgpack.Encoder().encode
_job = msgspec.msgpack.Decoder(Job).decode
_allocation = msgspec.msgpack.Decoder(Allocation).decode
_facts = msgspec.msgpack.Decoder(NodeFacts).decode
_group = msgspec.msgpack.Decoder(Group).decode
_orders = msgspec.msgpack.Decoder(NodeOrders).decode


class Row(msgspec.Struct, frozen=True, gc=False):
    """A job as it was when it was recorded."""

    id: str
    user: str
    key: str
    state: State
    allocation: str
    outcome: Outcome | None
    body: bytes
    grant: bytes | None
    new: bool = True


@dataclass(slots=True)
class Snapshot:
    """The data that one commit makes durable."""

    clock: float
    rows: list[Row] = field(default_factory=list)
    past: list[str] = field(default_factory=list)
    nodes: list[tuple[str, bytes]] = field(default_factory=list)
    orders: list[tuple[str, NodeOrders]] = field(default_factory=list)
    shares: list[tuple[str, tuple[float, float]]] = field(default_factory=list)
    loans: list[tuple[tuple[str, str], tuple[float, float]]] = field(default_factory=list)
    returns: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    groups: list[tuple[str, bytes]] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    rights: list[tuple[str, Rights | None]] = field(default_factory=list)
    spent: list[tuple[str, Spent]] = field(default_factory=list)


class Disk:
    """Everything committed. `past`: allocations that never started."""

    def __init__(self) -> None:
        self.epoch = 0
        self.clock = 0.0
        self.rows: dict[str, Row] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.past: dict[str, None] = {}
        self.nodes: dict[str, bytes] = {}
        self.node_orders: dict[str, bytes] = {}
        self.group_rows: dict[str, bytes] = {}
        self.receipts: dict[str, Receipt] = {}
        self.shares: dict[str, tuple[float, float]] = {}
        self.loans: dict[tuple[str, str], tuple[float, float]] = {}
        self.returns: dict[str, tuple[int, int]] = {}
        self.rights: dict[str, Rights] = {}
        self.spent: dict[str, Spent] = {}

    def copy(self) -> "Disk":
        """The same once more."""
        other = Disk()
        other.epoch, other.clock = self.epoch, self.clock
        other.rows, other.keys, other.past = dict(self.rows), dict(self.keys), dict(self.past)
        other.nodes, other.node_orders = dict(self.nodes), dict(self.node_orders)
        other.group_rows, other.shares, other.receipts = dict(self.group_rows), dict(self.shares), dict(self.receipts)
        other.rights, other.spent, other.loans = dict(self.rights), dict(self.spent), dict(self.loans)
        other.returns = dict(self.returns)
        return other

    def apply(self, snapshot: Snapshot) -> None:
        """A commit has taken place."""
        self.clock = snapshot.clock
        for row in snapshot.rows:
            before = self.rows.get(row.id)
            assert row.new or before is not None, f"{row.id} is not stored, so it cannot be changed"
            if row.grant is None and before is not None:
                row = msgspec.structs.replace(row, grant=before.grant)
            self.rows[row.id] = row
            self.keys[row.user, row.key] = row.id
        self.past.update(dict.fromkeys(snapshot.past))
        for name in snapshot.forgotten:
            self.nodes.pop(name, None)
            self.returns.pop(name, None)
        self.nodes.update(snapshot.nodes)
        self.node_orders.update((node, _encode(orders)) for node, orders in snapshot.orders)
        self.group_rows.update(snapshot.groups)
        self.receipts.update((receipt.id, receipt) for receipt in snapshot.receipts)
        self.shares.update(snapshot.shares)
        self.loans.update(snapshot.loans)
        self.returns.update(snapshot.returns)
        self.spent.update(snapshot.spent)
        for key, rights in snapshot.rights:
            self.rights.pop(key, None)
            self.rights |= {key: rights} if rights is not None else {}
        for group in map(_group, dict(snapshot.groups).values()):
            self.keys[group.user, group.key] = group.id

    def jobs(self) -> Iterator[Job]:
        """Jobs that have not ended, oldest first."""
        found = [_job(row.body) for row in self.rows.values() if row.state is not State.ENDED]
        return iter(sorted(found, key=lambda job: (job.submitted, job.group or job.id, job.index)))

    def allocations(self) -> Iterator[Allocation]:
        """Yield the allocations of jobs that have not ended."""
        for row in self.rows.values():
            if row.state not in (State.ENDED, State.WAITING) and row.grant is not None:
                yield _allocation(row.grant)

    def facts(self) -> Iterator[NodeFacts]:
        """Yield all nodes ever seen."""
        return (_facts(body) for _, body in sorted(self.nodes.items()))

    def group(self, name: str) -> Group | None:
        """A group, living or ended."""
        return _group(self.group_rows[name]) if name in self.group_rows else None

    def groups(self) -> list[Group]:
        """Return the groups of which a member lives."""
        return [group for group in map(_group, self.group_rows.values()) if not group.ended]

    def last_of(self, job: str) -> Allocation | None:
        """Return the last allocation of a job."""
        row = self.rows.get(job)
        return _allocation(row.grant) if row is not None and row.grant is not None else None

    def orders(self) -> dict[str, NodeOrders]:
        """Return the orders for nodes."""
        return {name: _orders(body) for name, body in self.node_orders.items()}


def snapshot(records: Iterable[Command], clock: float) -> Snapshot:
    """Records as they are now; of several of one thing the newest state."""
    out = Snapshot(clock)
    jobs: dict[str, Job] = {}
    first: set[str] = set()
    allocations: dict[str, Allocation] = {}
    for record in records:
        match record:
            case RecordJob(job, new):
                jobs[job.id] = job
                first |= {job.id} if new else set()
            case RecordAllocation(allocation):
                allocations[allocation.id] = allocation
            case RecordNode(facts):
                out.nodes.append((facts.name, _encode(facts)))
            case RecordForgotten(node):
                out.forgotten.append(node)
            case RecordGroup(group):
                out.groups.append((group.id, _encode(group)))
            case RecordReceipt(receipt):
                out.receipts.append(receipt)
            case RecordOrders(node, orders):
                out.orders.append((node, orders))
            case RecordShare(user, past, at):
                out.shares.append((user, (past, at)))
            case RecordLoan(lender, borrower, past, at):
                out.loans.append(((lender, borrower), (past, at)))
            case RecordReturns(node, thawed, recalled):
                out.returns.append((node, (thawed, recalled)))
            case RecordRights(key, rights):
                out.rights.append((key, rights))
            case RecordSpent(pool, spent):
                out.spent.append((pool, spent))
    newest: dict[str, bytes] = {}
    for one in allocations.values():
        of = jobs.get(one.job)
        if of is not None and of.allocation == one.id:
            newest[one.job] = _encode(one)
        else:
            assert one.state is State.ENDED, f"{one.id} is recorded without its job"
        if one.state is State.ENDED and (of is None or of.state is not State.ENDED):
            out.past.append(one.id)
    for job in jobs.values():
        grant = newest.get(job.id)
        what = job.id, job.user, job.key, job.state, job.allocation, job.outcome, _encode(job), grant
        out.rows.append(Row(*what, job.id in first))
    return out
