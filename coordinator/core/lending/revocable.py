"""Revocable jobs: they may run on slack if nothing else is free for them, and end when the holder of that slack ends.

Of a node they use up only memory. A node with a reservation lends slack only to jobs that request no memory, because
the memory might not be returned in time; the cores are, since revocable jobs end with the holder.
"""

import math

from distributed_grid.coordinator.core.commands import Rejected
from distributed_grid.coordinator.core.lending import slack
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import Allocation, Placement
from distributed_grid.coordinator.core.placement.matching import open_to
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, JobSpec, Priority, Request, State
from distributed_grid.protocol.resources import MILLI, Grant, format_milli

SOON = 1.0
"""Delay between a report of slack and the next attempt to start revocable jobs (s)."""


def refusal(token: int, request: Request, spec: JobSpec | None = None) -> Rejected | None:
    """The rejection of a request that cannot be revocable, or of a job of this `spec` that cannot; None: it can."""
    if not request.revocable:
        return None
    if not request.resources.cpu:
        why, hint = "only cores are lent on, and it asks for none", "ask for --cpus"
    elif request.resources.gpu:
        why, hint = "of what others hold and do not use only cores are lent on, never GPUs", "leave out one of the two"
    elif request.priority is Priority.URGENT:
        why, hint = "a revocable job gives way to the holder and preempts nobody", "ask for --priority high at most"
    elif request.gang:
        why, hint = "a gang ends as a whole when one of its members gives way", "submit single jobs"
    elif request.within:
        why, hint = "in a hold it runs on what is kept for it", "leave out --revocable or --in"
    elif spec is not None and spec.hold:
        why, hint = "a hold keeps cores that nobody else takes", "submit the job itself with --revocable"
    elif spec is not None and spec.boost is not None:
        why, hint = "Ray counts on what a boost lends to it", "request the boost without it"
    else:
        return None
    return Rejected(token, "bad-value", "this job cannot be revocable", why, hint)


def place(state: GridState, request: Request, now: float) -> Placement | None:
    """The place with the most slack left for a revocable request."""
    if not request.revocable or not state.policy.balancing.values.slack:
        return None
    wanted, memory = request.resources.cpu, request.resources.memory
    count = math.ceil(wanted / MILLI)
    reserved = {one.node for one in state.reservations.by_job.values()}
    best: tuple[int, Allocation, tuple[int, ...]] | None = None
    for name in state.usual:
        holder = state.allocations[name]
        node, (there, cores) = state.nodes[holder.node], slack.left(state, holder, now)
        if there < wanted or len(cores) < count or (best is not None and there <= best[0]):
            continue
        if not node.usable or node.capacity is None or (memory and holder.node in reserved):
            continue
        if memory <= node.capacity.free_memory and open_to(node, request, state.index):
            best = there, holder, cores
    if best is None:
        return None
    there, holder, cores = best
    slack_cores = tuple(sorted(cores[:count]))
    grant = Grant(memory=memory, virtual=holder.grant.virtual, slack=slack_cores, slack_milli=wanted, holder=holder.id)
    return Placement(holder.node, grant, 1.0, {"slack": min(1.0, there / holder.grant.resources.cpu)})


def words(state: GridState, request: Request, now: float) -> str:
    """Explain why a revocable request does not run on slack, or whose slack it would run on."""
    if not state.policy.balancing.values.slack:
        return f"the policy {state.policy.balancing.policy.value} lends no cores that jobs leave unused"
    found = place(state, request, now)
    if found is not None:
        return f"cores that {found.grant.holder.rpartition('.')[0]} leaves unused on {found.node} are enough"
    most = max((slack.left(state, state.allocations[name], now)[0] for name in state.usual), default=0)
    if most >= request.resources.cpu:
        return "where jobs leave enough cores unused its memory or constraints are not met"
    some = f"{format_milli(most)} at the most" if most else "none"
    return f"of the cores that jobs leave unused, beyond one of each, {some} can be lent"


def news(state: GridState) -> None:
    """Note that some allocation may have slack now, and try revocable jobs again soon."""
    if state.queue.lines and state.policy.balancing.values.slack:
        state.deadlines.arm("slack", "", state.now + SOON)


def due(state: GridState, name: str) -> None:
    """Try the lines of revocable jobs again."""
    for line in state.queue.lines.values():
        if line.request.revocable and line.blocked and not line.excluded:
            line.blocked = False
            state.fresh[state.queue.head(line)[1]] = None


def recall(state: GridState) -> None:
    """End revocable jobs whose holder holds nothing any more; all of them, if slack is not lent any more."""
    if state.on_slack and not state.policy.balancing.values.slack:
        for users in state.on_slack.values():
            state.recalls |= {user: "the policy in effect does not lend slack" for user in users}
    recalls, state.recalls = state.recalls, {}
    for name, why in recalls.items():
        allocation = state.allocations.get(name)
        if allocation is not None and allocation.state is not State.STOPPING:
            grace = state.jobs[allocation.job].spec.grace
            attempts.request_stop(state, allocation, Cause.RECALLED, f"recalled: {why}", grace)
