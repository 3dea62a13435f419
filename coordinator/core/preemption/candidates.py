"""Preemption candidates by node: the input of preemption plans (plan.py). Read-only.

Nodes are filtered in two steps. First the sum of what is free and what candidates hold is compared with the request as
plain amounts, which is cheap. The nodes that pass are checked one by one, those with the newest grant first, where the
least work is lost.
"""

from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.lifecycle.attempts import time_suspended
from distributed_grid.coordinator.core.model import Allocation, Job, MemberEnded, Node
from distributed_grid.coordinator.core.placement import constraints
from distributed_grid.coordinator.core.placement.catalogue import Bounds
from distributed_grid.coordinator.core.placement.constraints import admitted
from distributed_grid.coordinator.core.placement.matching import able, gang_candidates
from distributed_grid.coordinator.core.preemption.plan import View, may, min_hold_of, work
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Priority, Request, State
from distributed_grid.protocol.messages.operator import Victim
from distributed_grid.protocol.nodes import NodeState
from distributed_grid.protocol.resources import MILLI

NODES = 64
"""Maximum number of nodes compared where victims would make room."""
TRIED = 1024
"""Maximum number of nodes checked one by one; so many fail only if amounts suffice and single devices do not."""


def _sum(state: GridState, node: Node) -> tuple[int, str, int, int, int, float]:
    cpu = memory = gpu = 0
    newest = -1.0
    for one in node.allocations.values():
        if not one.grant.slack and (one.stop is not None or may(Priority.URGENT, state.jobs[one.job].request.priority)):
            has = one.grant.resources
            cpu, memory, gpu, newest = cpu + has.cpu, memory + has.memory, gpu + has.gpu, one.granted
    return len(node.allocations), next(reversed(node.allocations)), cpu, memory, gpu, newest


def views(state: GridState, request: Request, now: float, without: frozenset[str] = frozenset()) -> list[View]:
    """The nodes, other than these, where victims would make room for this (up to `NODES`, plus the number of members of
    a gang), then up to `NODES` others where candidates are too few or in their min-hold. For a gang, nodes with free
    room come first."""
    passed = [one for one in _large_enough(state, request) if one[1] not in without]
    bounds = state.index.affinity.bounds(request.constraints)
    free = _free(state, request, without) if request.gang else {}
    most = NODES + request.gang
    enough: list[View] = list(free.values())
    others: list[View] = []
    for _, name in passed[: TRIED + len(free) + 2 * request.gang]:
        node = state.nodes[name]
        lets = name not in free and (not request.ray or constraints.fits_on_ray(node, request, alone=True))
        lets = lets and not constraints.left_alone(node, request)
        if lets and node.usable and able(node, request) and _in_bounds(bounds, name):
            view = _view(state, node, request, now)
            if view.makes_room(request):
                enough.append(view)
                if len(enough) >= most:
                    break
            elif len(others) < NODES:
                others.append(view)
    return enough + others


def _free(state: GridState, request: Request, without: frozenset[str]) -> dict[str, View]:
    """The nodes with free room for a member of a gang that are not reserved for another urgent request."""
    first = (state.jobs[one.job].request for one in state.reservations.by_job.values())
    waiting = zip(state.reservations.by_job.values(), first, strict=True)
    kept = {one.node for one, its in waiting if its.priority is Priority.URGENT and its != request}
    found: dict[str, View] = {}
    for name in gang_candidates(state.nodes, state.index, request, state.policy):
        capacity = state.nodes[name].capacity
        if name not in kept and name not in without and capacity is not None:
            found[name] = View(name, capacity, ())
    return found


def _large_enough(state: GridState, request: Request) -> list[tuple[float, str]]:
    """The nodes where free capacity and what candidates and stopping allocations hold add up to the request; those with
    the newest grant first."""
    wanted, known = request.resources, state.preempting.preemptible.known
    found: list[tuple[float, str]] = []
    for name, node in state.nodes.items():
        held, capacity = node.allocations, node.capacity
        if not held or capacity is None:
            continue
        there = known.get(name)
        if there is None or there[0] != len(held) or there[1] != next(reversed(held)):
            there = known[name] = _sum(state, node)
        _, _, cpu, memory, gpu, newest = there
        if (
            newest >= 0
            and len(capacity.free) * MILLI + cpu + sum(capacity.parts.values()) >= wanted.cpu
            and capacity.memory + memory >= wanted.memory
            and capacity.whole_gpus * MILLI + gpu + sum(capacity.gpu_parts.values()) >= wanted.gpu
            and admitted(node.facts, request)
        ):
            found.append((-newest, name))
    found.sort()
    return found


def _in_bounds(bounds: Bounds, node: str) -> bool:
    """Whether the node meets the request's affinity."""
    return not bounds.missing and (bounds.near is None or node in bounds.near) and node not in bounds.apart


def _view(state: GridState, node: Node, request: Request, now: float) -> View:
    capacity = node.capacity
    assert capacity is not None
    who: list[Victim] = []
    ending, young = 0, 0.0
    for one in node.allocations.values():
        job = state.jobs[one.job]
        if one.state is State.STOPPING:
            if end_of(state, one, now):
                capacity = capacity.copy()
                capacity.give(one.grant)
                ending += 1
        elif one.grant.slack:
            continue  # its cores are the holder's
        elif may(request.priority, job.request.priority) and _whole(state, job, one) and not _in_use(node, job, one):
            able_at, lost = _min_hold_and_cost(state, job, one, now)
            if able_at > now:
                young = min(young or able_at, able_at)
            else:
                seconds = ran(job, one, now)
                many = job.request.gang
                urgency = job.request.priority
                victim = Victim(one.id, one.job, job.user, urgency, one.grant, seconds, lost, many, walls=one.walls)
                who.append(victim)
    return View(node.facts.name, capacity, tuple(who), ending, young)


def _whole(state: GridState, job: Job, allocation: Allocation) -> bool:
    """Whether this can be preempted now; of a gang, all of its members that hold something."""
    if allocation.hold and any(one.within == allocation.id for one in state.nodes[allocation.node].inside.values()):
        return False  # what runs inside would go on, and keep some of it
    if not job.request.gang:
        return _is_running(allocation)
    return all(
        _is_running(held) and state.nodes[held.node].state is NodeState.UP
        for member in outcomes.gang_members(state, job)
        if (held := state.allocations.get(member.allocation)) is not None
    )


def _in_use(node: Node, job: Job, allocation: Allocation) -> bool:
    """Whether what it holds would not be lent again: the node's owner uses it, or it cannot be read."""
    if job.active.suspended is not None:
        return True
    gpus = {share.uuid for share in allocation.grant.gpus}
    return bool(gpus) and node.offer is not None and any(one.what in gpus for one in node.offer.withheld)


def _is_running(allocation: Allocation) -> bool:
    return allocation.state in (State.STARTING, State.RUNNING)


def _min_hold_and_cost(state: GridState, job: Job, allocation: Allocation, now: float) -> tuple[float, float]:
    """Return when an allocation leaves its min-hold, and the core-seconds that would be lost; for a gang, those of all
    members, also of those that have ended, since all are run again."""
    policy = state.policy.preempting
    if not job.request.gang:
        lost = ran(job, allocation, now) * work(allocation.grant, state.nodes[allocation.node].facts.lendable)
        return allocation.granted + min_hold_of(policy, job.evicted), lost
    able_at = total = 0.0
    for member in outcomes.gang_members(state, job):
        held = state.allocations.get(member.allocation)
        if held is not None:
            able_at = max(able_at, held.granted + min_hold_of(policy, member.evicted))
        if member.grant is not None:
            worth = work(member.grant, state.nodes[member.node].facts.lendable)
            total += (ran(member, held, now) if held is not None else _part_ran(member)) * worth
    return able_at, total


def ran(job: Job, allocation: Allocation, now: float) -> float:
    """Seconds that an attempt has run, without suspensions."""
    return max(0.0, now - allocation.started - time_suspended(job, now)) if allocation.started else 0.0


def _part_ran(member: Job) -> float:
    """Seconds that a member of a gang ran that has ended."""
    phase = member.phase
    return max(0.0, phase.end.at - member.started) if isinstance(phase, MemberEnded) and member.started else 0.0


def end_of(state: GridState, stopping: Allocation, now: float) -> float:
    """Return when a stopping allocation has ended at the latest; 0: not soon, or it is overdue."""
    policy = state.policy.preempting
    end = stopping.stopped + (stopping.stop.grace if stopping.stop is not None else 0.0)
    return end if now - policy.hold < end <= now + policy.grace_most else 0.0
