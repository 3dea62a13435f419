"""What a commit writes, as rows of tables, and the statements that write them: many rows at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

CHUNKS = (64, 16, 4, 1)
"""Rows per statement. One statement for many rows lets go of the interpreter once instead of once a row, so that the
writer thread and the loop do not take turns at every row; few sizes, so that the statements stay prepared."""


@dataclass(slots=True)
class Snapshot:
    """Rows to commit in one transaction."""

    clock: float
    jobs: list[Sequence[Any]] = field(default_factory=list)
    past_allocations: list[Sequence[Any]] = field(default_factory=list)
    groups: list[Sequence[Any]] = field(default_factory=list)
    gone_nodes: list[Sequence[Any]] = field(default_factory=list)
    nodes: list[Sequence[Any]] = field(default_factory=list)
    node_orders: list[Sequence[Any]] = field(default_factory=list)
    receipts: list[Sequence[Any]] = field(default_factory=list)
    shares: list[Sequence[Any]] = field(default_factory=list)
    audit: list[Sequence[Any]] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    """What shows that earlier commits are lost."""

    def tables(self) -> Iterator[tuple[str, list[Sequence[Any]]]]:
        """The names of the statements, in their order, with the rows of each."""
        for name in _WRITES:
            yield name, getattr(self, name)


_WRITES = {
    "jobs": (
        "INSERT INTO jobs (id, key, user, name, state, submitted, ended, node, body, allocation, boost, sum, "
        "allocation_sum) VALUES {} "
        "ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended = excluded.ended, node = excluded.node, "
        "body = excluded.body, allocation = coalesce(excluded.allocation, allocation), sum = excluded.sum, "
        "allocation_sum = coalesce(excluded.allocation_sum, allocation_sum)",
        13,
    ),
    "past_allocations": ("INSERT OR REPLACE INTO past_allocations (id, node, body, sum) VALUES {}", 4),
    "groups": (
        "INSERT INTO groups (id, key, user, submitted, ended, body, sum) VALUES {} "
        "ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, body = excluded.body, sum = excluded.sum",
        7,
    ),
    "gone_nodes": ("DELETE FROM nodes WHERE name IN ({})", 1),
    "nodes": (
        "INSERT INTO nodes (name, seen, body, sum) VALUES {} "
        "ON CONFLICT (name) DO UPDATE SET seen = excluded.seen, body = excluded.body, sum = excluded.sum",
        4,
    ),
    "node_orders": ("INSERT OR REPLACE INTO node_orders (name, body, sum) VALUES {}", 3),
    "receipts": ("INSERT OR REPLACE INTO receipts (id, at, node, jobs, body) VALUES {}", 5),
    "shares": ("INSERT OR REPLACE INTO shares (user, past, at) VALUES {}", 3),
    "audit": ("INSERT INTO audit (at, node, what) VALUES {}", 3),
}
STATEMENTS = {
    (table, count): text.format(", ".join([f"({', '.join('?' * width)})"] * count))
    for table, (text, width) in _WRITES.items()
    for count in CHUNKS
}
