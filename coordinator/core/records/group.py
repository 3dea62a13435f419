"""A group as it is kept: what queue/groups.py and queue/gangs.py make of it is there."""

import msgspec

from distributed_grid.coordinator.core.records.conditions import Condition
from distributed_grid.protocol.bounds import Count, Finite
from distributed_grid.protocol.groups import Array, GroupKind
from distributed_grid.protocol.jobs import JobSpec, Request


class Group(msgspec.Struct, kw_only=True, gc=False):
    """Many jobs of one submission. Its members are jobs that have its id as their `group`; what is counted here are
    those that have ended otherwise than with exit code 0."""

    id: str
    key: str
    user: str
    kind: GroupKind
    spec: JobSpec
    request: Request
    submitted: Finite
    count: Count
    array: Array | None = None
    failed: Count = 0
    cancelled: Count = 0
    never: Count = 0
    """How many of them had never started."""
    ended: Finite = 0.0
    """When the last member had ended; 0: not yet."""
    after: tuple[Condition, ...] = ()
    begin: Finite = 0.0
