"""What a job asks for when it is run again after it ran out of memory."""

import msgspec

from distributed_grid.coordinator.core.explain.feasible import can_fit
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.placement.matching import able
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.resources import MILLI, format_bytes


def next_request(state: GridState, job: Job, outcome: Outcome) -> Request | None:
    """What the next attempt asks for: with more memory where its owner wants that, and it ran out of its own and not
    its node's. As much of that as any node could ever lend; None if that is not more than it had."""
    request = job.request
    if outcome.cause is not Cause.OUT_OF_MEMORY or not request.retry_memory:
        return request
    had = request.resources
    wanted = msgspec.structs.replace(had, memory=had.memory * request.retry_memory // MILLI)
    more = msgspec.structs.replace(request, resources=wanted)
    if not can_fit(state, more):
        could = (node.facts.lendable.memory for node in state.nodes.values() if able(node, request))
        most = max(could, default=0)
        if most <= had.memory:
            return None
        more = msgspec.structs.replace(request, resources=msgspec.structs.replace(had, memory=most))
    return more


def with_more(before: Request, after: Request) -> str:
    """For a job's story: what the next attempt asks for, where that is more."""
    memory = after.resources.memory
    return f" with {format_bytes(memory)} of memory" if memory > before.resources.memory else ""


def in_vain(outcome: Outcome) -> Outcome:
    """The end of a job that would run again with more, if there were more."""
    return msgspec.structs.replace(outcome, text=f"{outcome.text}; no node could ever lend it more")
