"""What the ledger decided, in short: picked out of its commands, to be written down and compared by `grid replay`.

A decision is a tuple of plain things. It begins with what kind it is and whom it concerns:

    ("start", allocation, node, grant)    launch it there (also when the launch is said again)
    ("job", job, state, node, cause)      the job is in this state now; the cause once it has ended
    ("send", node, what, allocation)      anything else that an agent is told
    ("refuse", token, code, what)         a request is refused
    ("accept", token, jobs)               jobs are taken, or were already
    ("orders", node, what)                what the operator ordered for a node is now this
    ("audit", node, what)                 an agent's word that changed nothing
    ("loss", found)                       commits of the store are lost, so nothing is started any more
    ("reserve", allocation, node)         Ray is to reserve it on its node of this id
    ("unreserve", allocation)             Ray is to let go of it
"""

from collections.abc import Iterable
from typing import Any

from distributed_grid.coordinator.core.commands import Reserve, Unreserve
from distributed_grid.coordinator.core.model import (
    Accepted,
    AckExits,
    Audit,
    Command,
    RecordAllocation,
    RecordForgotten,
    RecordJob,
    RecordLoss,
    RecordOrders,
    Rejected,
    Send,
)
from distributed_grid.protocol.messages import Launch, Renewed

Decision = tuple[Any, ...]


def decisions(commands: Iterable[Command]) -> list[Decision]:
    """The decisions among these commands, in order. It is on the path of every job, so the frequent come first."""
    found: list[Decision] = []
    for command in commands:
        if type(command) is RecordJob:
            if command.new:
                continue  # it was accepted
            job = command.job
            found.append(("job", job.id, job.state, job.node, job.outcome.cause if job.outcome is not None else ""))
        elif type(command) is RecordAllocation or type(command) is AckExits:
            continue  # the job says it, or the agent
        elif type(command) is Send:
            message = command.message
            if type(message) is Launch:
                found.append(("start", message.allocation, command.node, message.grant))
            elif not isinstance(message, Renewed):  # said with every heartbeat
                what = type(message).__name__.lower()
                found.append(("send", command.node, what, getattr(message, "allocation", "")))
        elif type(command) is Accepted:
            found.append(("accept", command.token, command.jobs))
        elif type(command) is Rejected:
            found.append(("refuse", command.token, command.code, command.what))
        elif type(command) is RecordOrders:
            found.append(("orders", command.node, command.orders))
        elif type(command) is RecordForgotten:
            found.append(("forget", command.node))
        elif type(command) is Audit:
            found.append(("audit", command.node, command.what))
        elif type(command) is RecordLoss:
            found.append(("loss", command.found))
        elif type(command) is Reserve:
            found.append(("reserve", command.allocation, command.node))
        elif type(command) is Unreserve:
            found.append(("unreserve", command.allocation))
    return found
