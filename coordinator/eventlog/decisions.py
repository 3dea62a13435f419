"""Decisions: the commands of a ledger in short form, which a replay compares."""

from collections.abc import Iterable
from typing import Any

from distributed_grid.coordinator.core.commands import (
    Accepted,
    AckExits,
    Audit,
    Command,
    Rebalanced,
    RecordAllocation,
    RecordBalancing,
    RecordForgotten,
    RecordJob,
    RecordLoss,
    RecordOrders,
    RecordRights,
    Rejected,
    Reserve,
    Send,
    Unreserve,
)
from distributed_grid.coordinator.core.model import Ended
from distributed_grid.coordinator.core.scaling.events import CreateMachine, EndMachine, ListMachines, RecordMachine
from distributed_grid.protocol.messages import Launch, Renewed

# A decision is a tuple of plain things. It begins with what kind it is and whom it concerns:
#
#    ("start", allocation, node, grant)    launch it there (also when the launch is said again)
#    ("job", job, state, node, cause)      the job is in this state now; the cause once it has ended
#    ("send", node, what, allocation)      anything else that an agent is told
#    ("refuse", token, code, what)         a request is refused
#    ("accept", token, jobs)               jobs are taken, or were already
#    ("orders", node, what)                what the operator ordered for a node is now this
#    ("rights", key, rights)               what operators have granted to a user or group is now this
#    ("audit", node, what)                 an agent's word that changed nothing
#    ("loss", found)                       commits of the store are lost, so nothing is started any more
#    ("reserve", allocation, node)         Ray is to reserve it on its node of this id
#    ("unreserve", allocation)             Ray is to let go of it
#    ("move", kind, boost, source, amount, applied)   rebalancing lends, gives back or moves, or proposes to
#    ("balancing", order)                  what operators have set of mode and policy is now this
#    ("machine", name, state)              a machine is in this state now
#    ("call", what, whom)                  a provider is asked to create, end or list

Decision = tuple[Any, ...]


def decisions(commands: Iterable[Command]) -> list[Decision]:
    """The decisions among these commands, in order. A hot path, so frequent commands are tested first."""
    found: list[Decision] = []
    for command in commands:
        if type(command) is RecordJob:
            if command.new:
                continue  # it was accepted
            job, phase = command.job, command.job.phase
            node = phase.attempt.node if phase.attempt is not None else ""
            found.append(("job", job.id, phase.state, node, phase.outcome.cause if isinstance(phase, Ended) else ""))
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
        elif type(command) is RecordRights:
            found.append(("rights", command.key, command.rights))
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
        elif type(command) is Rebalanced:
            found += (
                ("move", one.kind, one.boost or one.job, one.source, one.resources, command.applied)
                for one in command.moves
            )
        elif type(command) is RecordBalancing:
            found.append(("balancing", command.order))
        elif type(command) is RecordMachine:
            found.append(("machine", command.name, command.machine.state if command.machine is not None else ""))
        elif type(command) is CreateMachine:
            found.append(("call", "create", command.machine.name))
        elif type(command) is EndMachine:
            found.append(("call", "end", command.name or command.handle))
        elif type(command) is ListMachines:
            found.append(("call", "list", command.provider))
    return found
