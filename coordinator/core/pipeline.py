"""What waits for a disk in trouble, kept small: of several records or commands about one thing the newest is enough."""

from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from distributed_grid.coordinator.core.commands import (
    AckExits,
    Audit,
    Command,
    Publish,
    RecordAllocation,
    RecordForgotten,
    RecordGroup,
    RecordJob,
    RecordLoss,
    RecordNode,
    RecordOrders,
    RecordReceipt,
    RecordShare,
    Send,
)
from distributed_grid.protocol.messages import Launch, Stop

LINES_KEPT = 1000
"""Lines for the audit table that wait at the most; the newest stay."""
R = TypeVar("R", bound=Command)


def newest_records(records: Iterable[R]) -> list[R]:
    """Each job, allocation, group and node once, as it is now. (Of orders, which do not change, the last ones stay.)"""
    kept: dict[tuple[str, str], R] = {}
    lines: deque[R] = deque(maxlen=LINES_KEPT)
    for record in records:
        match record:
            case RecordJob(job):
                kept["job", job.id] = record
            case RecordAllocation(allocation):
                kept["allocation", allocation.id] = record
            case RecordGroup(group):
                kept["group", group.id] = record
            case RecordNode(facts):
                kept["node", facts.name] = record
            case RecordForgotten(node):
                kept["node", node] = record
            case RecordOrders(node):
                kept["orders", node] = record
            case RecordReceipt(receipt):
                kept["receipt", receipt.id] = record
            case RecordShare(user):
                kept["share", user] = record
            case RecordLoss(found):
                kept["loss", found] = record
            case Audit():
                lines.append(record)
            case _:
                raise TypeError(f"{type(record).__name__} is not a record")
    return [*kept.values(), *lines]


def newest_commands(commands: Iterable[Command]) -> list[Command]:
    """In order; what would be said several times only once, at the place of the first, in the words of the last."""
    kept: dict[Any, Command] = {}
    for number, command in enumerate(commands):
        match command:
            case Publish(view):
                kept["publish", view.id] = command
            case Send(node, Launch() | Stop() as order):
                kept[node, type(order), order.allocation] = command
            case AckExits(node, allocations):
                kept[node, allocations] = command
            case _:
                kept[number] = command
    return list(kept.values())
