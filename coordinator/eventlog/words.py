"""Events and decisions in words, for who replays a log."""

from collections.abc import Sequence
from typing import Any

import msgspec

from distributed_grid.coordinator.core.commands import RayLooked, Reserved, ReserveRefused
from distributed_grid.coordinator.core.model import (
    CancelAsked,
    DrainAsked,
    Event,
    ExtendAsked,
    ForgetAsked,
    Heard,
    Hold,
    JobsSubmitted,
    Joined,
    LabelAsked,
    Left,
    LossFound,
    NodeDoubted,
    NodeDown,
    NodeUp,
    SignalAsked,
    Tick,
    Told,
    UndrainAsked,
)
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import MILLI, Grant, format_bytes, format_milli

NAMED = 3
"""So many of a kind are named in a sentence."""


def names(of: Sequence[str]) -> str:
    """A few names: `a, b, c and 4 more`."""
    return ", ".join(of[:NAMED]) + (f" and {len(of) - NAMED} more" if len(of) > NAMED else "")


def event_words(event: Event) -> str:
    """What happened."""
    match event:
        case NodeUp(facts):
            return f"{facts.name} came"
        case NodeDown(node):
            return f"the connection of {node} closed"
        case Heard(node):
            return f"{node} was heard"
        case Told(node, message):
            about = getattr(message, "allocation", "")
            return f"{node} told {type(message).__name__.lower()}{f' of {about}' if about else ''}"
        case JobsSubmitted(_, jobs):
            return f"{jobs[0].user} submitted {names([job.id for job in jobs])}" if jobs else "no jobs were submitted"
        case CancelAsked(_, jobs, reason):
            return f"the end of {names(jobs)} was asked for{f': {reason}' if reason else ''}"
        case SignalAsked(_, job, number):
            return f"signal {number} for {job} was asked for"
        case Hold(on):
            return "the disk refused, nothing new is to start" if on else "the disk is well again"
        case Tick():
            return "time passed"
        case DrainAsked(_, nodes, by, reason):
            return f"{by} drained {names(nodes)}{f': {reason}' if reason else ''}"
        case UndrainAsked(_, nodes, by):
            return f"{by} undrained {names(nodes)}"
        case LabelAsked(_, nodes, _, by):
            return f"{by} labelled {names(nodes)}"
        case Joined(allocation, node):
            return f"Ray showed {allocation} as node {node[:12]}"
        case Left(allocation, why):
            return f"{allocation} was not in Ray any more: {why}"
        case ExtendAsked(_, job, seconds):
            return f"{job} was to last {seconds:g} s longer"
        case ForgetAsked(_, nodes, by):
            return f"{by} had {names(nodes)} forgotten"
        case RayLooked(nodes, trouble):
            return f"Ray could not be asked: {trouble}" if trouble else f"Ray told of its nodes on {names(list(nodes))}"
        case Reserved(allocation):
            return f"Ray reserved {allocation}"
        case ReserveRefused(allocation, why):
            return f"Ray did not reserve {allocation}: {why}"
        case LossFound(found):
            return f"the store showed to have lost commits: {found}"
        case NodeDoubted(node, found):
            return f"{node} said what it cannot prove: {found}"


def event_concerns(event: Event, job: str) -> bool:
    """Whether it is about this job."""
    match event:
        case Told(_, message):
            return str(getattr(message, "allocation", "")).rpartition(".")[0] == job
        case JobsSubmitted(_, jobs):
            return any(one.id == job for one in jobs)
        case CancelAsked(_, jobs):
            return job in jobs
        case SignalAsked(_, name) | ExtendAsked(_, name):
            return name == job
        case Joined(allocation) | Left(allocation) | Reserved(allocation) | ReserveRefused(allocation):
            return allocation.rpartition(".")[0] == job
        case _:
            return False


def decision_words(decision: Sequence[Any]) -> str:
    """What was decided; one of a kind that is not known here as it stands."""
    match decision:
        case ["start", allocation, node, grant]:
            return f"start {allocation} on {node} with {grant_words(grant)}"
        case ["job", job, State.WAITING.value, *_]:
            return f"{job} waits"
        case ["job", job, State.ENDED.value, _, cause]:
            return f"{job} has ended: {cause}"
        case ["job", job, state, node, _]:
            return f"{job} is {state} on {node}"
        case ["send", node, what, allocation]:
            return f"tell {node}: {what} {allocation}".rstrip()
        case ["accept", _, [*jobs]]:
            return f"take {names([str(job) for job in jobs])}"
        case ["refuse", _, code, what]:
            return f"refuse ({code}): {what}"
        case ["orders", node, orders]:
            return f"{node} is under these orders: {orders or 'none'}"
        case ["audit", node, what]:
            return f"note of {node}: {what}"
        case ["loss", found]:
            return f"start nothing, since the store has lost commits: {found}"
        case ["reserve", allocation, node]:
            return f"have Ray reserve {allocation} on its node {node[:12]}"
        case ["unreserve", allocation]:
            return f"have Ray let go of {allocation}"
        case _:
            return str(decision)


def decision_concerns(decision: Sequence[Any], job: str) -> bool:
    """Whether it is about this job."""
    match decision:
        case ["start" | "reserve" | "unreserve", allocation, *_] | ["send", _, _, allocation]:
            return str(allocation).rpartition(".")[0] == job
        case ["job", name, *_]:
            return bool(name == job)
        case ["accept", _, [*jobs]]:
            return job in jobs
        case _:
            return False


def grant_words(grant: Any) -> str:
    """What is granted, from its plain form."""
    try:
        whole = msgspec.convert(grant, Grant)
    except msgspec.ValidationError:
        return str(grant)
    parts = [f"cores {','.join(map(str, whole.cores))}"] if whole.cores else []
    if whole.shared_core >= 0:
        parts.append(f"{format_milli(whole.shared_milli)} of core {whole.shared_core}")
    parts += [f"{format_milli(gpu.milli)} of {gpu.uuid}" if gpu.milli < MILLI else gpu.uuid for gpu in whole.gpus]
    if whole.memory:
        parts.append(f"{format_bytes(whole.memory)} memory")
    return ", ".join(parts) or "nothing"
