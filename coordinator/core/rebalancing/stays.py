"""Jobs that could move before the owner of their node comes, and where they would go: jobs that may be run again, on
nodes whose owners are likely to return before the jobs end. For a job whose end is unknown, the policy's horizon is
used. Read-only."""

import math
from collections.abc import Iterable, Iterator
from heapq import nsmallest

from distributed_grid.coordinator.core.lifecycle.attempts import is_restartable
from distributed_grid.coordinator.core.model import Allocation, Job, Node, Refusal
from distributed_grid.coordinator.core.placement.matching import endurance
from distributed_grid.coordinator.core.preemption.candidates import ran
from distributed_grid.coordinator.core.preemption.plan import work
from distributed_grid.coordinator.core.queue.reservations import Ask, expected, places_for
from distributed_grid.coordinator.core.rebalancing.view import Stay
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.core.trends.stay import AHEAD
from distributed_grid.protocol.jobs import State
from distributed_grid.protocol.resources import NOTHING
from distributed_grid.protocol.sharing.policies import SharingPolicy

NODES = 64
"""Maximum number of nodes examined in a pass: those whose owners are most likely to return."""
JOBS = 64
"""Maximum number of jobs for which another node is sought in a pass."""
HOLD_MOST = 3600.0
"""The longest protection after a move (s)."""
PRIOR = 4.0
"""Weight of the grid's rate of recalls in that of a node, and of 1 in that of the grid, as a number of returns."""


def stays(state: GridState, values: SharingPolicy, now: float) -> Iterator[Stay]:
    """The jobs that may be moved on nodes that do not stay idle for long enough with the policy's confidence."""
    left, recalls = JOBS, _recalls(state.nodes.values(), 1.0)
    for node in _expecting(state, values):
        for allocation in node.allocations.values():
            job = state.jobs[allocation.job]
            if not left or not may_leave(job, allocation):
                continue
            if one := _stay(state, node, job, allocation, values, now, recalls):
                left -= 1
                yield one


def _expecting(state: GridState, values: SharingPolicy) -> list[Node]:
    """Nodes with jobs whose owners are likely to return within the horizon; the most likely first."""
    found = []
    for name, forecast in state.index.forecasts.items():
        node = state.nodes[name]
        if not forecast.idle or not node.allocations:
            continue
        if (likely := endurance(node, node.capacity, NOTHING, AHEAD)) < values.confidence:
            found.append((likely, name))
    return [state.nodes[name] for _, name in nsmallest(NODES, found)]


def may_leave(job: Job, allocation: Allocation) -> bool:
    """Whether this may be moved at all: it runs, and may be run again."""
    running = allocation.state is State.RUNNING and not allocation.handed_over and not job.active.frozen
    return running and not allocation.hold and is_restartable(job)


def _stay(
    state: GridState, node: Node, job: Job, allocation: Allocation, values: SharingPolicy, now: float, recalls: float
) -> Stay | None:
    """A job that may leave; None: it ends before its owner is likely to come. `recalls`: the grid's rate."""
    seconds, limit = ran(job, allocation, now), job.spec.time_limit
    length, told = expected(state, job.user, job.request, limit, job.planned), limit or job.planned
    if length <= seconds:  # longer than all runs like it
        length, told = (limit, limit) if limit > seconds else (math.inf, 0.0)
    within = min(AHEAD, length - seconds)
    soon = within if told else min(values.horizon, within)
    here, near = (endurance(node, node.capacity, NOTHING, ahead) for ahead in (within, soon))
    if near >= values.confidence:
        return None
    target, wanted = _elsewhere(state, job, node.facts.name, now), allocation.grant.resources
    there = state.nodes.get(target)
    return Stay(
        job=job.id,
        source=node.facts.name,
        resources=wanted,
        work=work(allocation.grant, node.facts.lendable),
        ran=seconds,
        within=within,
        returns=1.0 - here,
        soon=1.0 - near,
        looked=soon,
        target=target,
        target_returns=1.0 - endurance(there, there.capacity, wanted, within) if there is not None else 1.0,
        target_soon=1.0 - endurance(there, there.capacity, wanted, soon) if there is not None else 1.0,
        protected=allocation.granted + min(HOLD_MOST, values.min_hold * 2.0 ** min(job.evicted, 20)),
        recalls=_recalls((node,), recalls),
        target_recalls=_recalls((there,), recalls) if there is not None else 1.0,
    )


def _recalls(nodes: Iterable[Node], before: float) -> float:
    """The part of the owners' returns to jobs on these nodes that ended in a recall, drawn to this rate."""
    recalled, thawed = 0, 0
    for node in nodes:
        recalled, thawed = recalled + node.recalled, thawed + node.thawed
    return (recalled + PRIOR * before) / (recalled + thawed + PRIOR)


def _elsewhere(state: GridState, job: Job, source: str, now: float) -> str:
    """The node that a job would go to, as its request will name it; empty: none with a forecast has room."""
    limit = job.spec.time_limit
    length = expected(state, job.user, job.request, limit, job.planned) or AHEAD
    ask = Ask(job.request, limit, (-job.request.priority, math.inf, 0), length, source)
    found = places_for(state, state.reservations, ask, now)
    if isinstance(found, Refusal) or found[0].node == source or found[0].node not in state.index.forecasts:
        return ""
    return found[0].node
