"""What must be true of the order in which places are given, at every single grant. Two rules, and from them follows
that nobody starves:

- Who is passed on a node had no room there. At the grant of a place on a node nobody waits who comes before (in a
  higher class; in the same one a user with clearly the smaller share, or the same user's earlier job) and could be
  placed on it; unless that node is kept for somebody who comes before the passed one as well. (Who wants to be near to
  a job that was placed in this very pass is looked at in the next one, which follows at once.)
- Who has a node kept is not kept waiting longer. Whoever is granted something on a node that is kept for one before it
  is over by the moment that was promised, or leaves room for that one when those have ended whom it waits for.

So what waits is delayed only by those before it, and these come to an end: in a class no more than the ageing allows
can come before who waits, and the first that cannot start has its node, and keeps it. What users hold is added up here
from the allocations.
"""

from distributed_grid.coordinator.core.commands import Command, Event, RecordJob
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle.outcomes import part_of
from distributed_grid.coordinator.core.model import Allocation, Job, Placement
from distributed_grid.coordinator.core.placement.matching import able, has_room
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.queue.fairness import aged, dominant, weight
from distributed_grid.coordinator.core.queue.reservations import STARTING, asked
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.resources import Resources
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.quotas import nobody_passes_a_quota, nobody_waits_for_nothing

CLEARLY = 0.02
"""Shares that differ by less may be taken for equal: they change by themselves, and are looked at now and then."""


class Watched(Ledger):
    """A ledger of which every grant is looked at before it is made, and every job that it gives up."""

    def __init__(self, epoch: int, policy: Policy) -> None:
        super().__init__(epoch, policy=policy)
        self.state = _Watched(epoch, policy=policy)

    def handle(self, event: Event, now: float) -> list[Command]:
        return self._patiently(super().handle(event, now))

    def settle(self, now: float) -> list[Command]:
        return self._patiently(super().settle(now))

    def _patiently(self, commands: list[Command]) -> list[Command]:
        for command in commands:
            if type(command) is RecordJob:
                _not_given_up_early(self.state, command.job)
        return commands


class _Watched(GridState):
    def grant(self, job: Job, placement: Placement, lease: float, gang: Gang | None = None) -> Allocation:
        """What was kept for a job is nobody else's, so nobody is passed by that."""
        nobody_passes_a_quota(self, job, placement.grant.resources)
        if job.id in self.queue:
            _nobody_is_passed(self, job, placement.node)
            _nobody_is_delayed(self, job, placement)
        return super().grant(job, placement, lease, gang)

    def grant_next(self, job: Job, before: Allocation) -> Allocation:
        """Who is to take over the room of another job comes before all others that this room is enough for."""
        nobody_passes_a_quota(self, job, before.grant.resources, besides=before.grant.resources)
        _nobody_comes_before(self, job, before)
        return super().grant_next(job, before)


def _not_given_up_early(state: GridState, job: Job) -> None:
    """A job whose node has not lost anything is not ended as lost before that node was silent for long."""
    outcome = job.outcome
    if job.request.gang:  # whose end is told later: with the last of it
        part = part_of(job)
        outcome = part.outcome if part is not None and part.at == state.now else None
    if outcome is not None and outcome.cause is Cause.NODE_LOST and job.node:
        silent = state.now - state.nodes[job.node].last_seen
        if silent < state.policy.disconnected_after + state.policy.lost_after - 0.001:
            raise Violation(job.id, f"it is given up, {job.node} was heard {silent:.1f} s ago")


def _nobody_is_passed(state: GridState, job: Job, name: str) -> None:
    node, mine = state.nodes[name], state.queue.line(job.id)
    for line in state.queue.lines.values():
        if line.excluded:
            nobody_waits_for_nothing(state, line)
            continue
        if line is mine or line.request.gang or line.request.priority < job.request.priority:
            continue
        first = state.jobs[state.queue.head(line)[1]]
        just_now = first.id in state.fresh and not line.blocked
        if just_now or not _clearly_before(state, first, job) or not has_room(node, line.request, state.index):
            continue
        order = asked(state, first.id).order
        if not any(
            one.node == name and asked(state, one.job).order < order for one in state.reservations.by_job.values()
        ):
            what = f"{first.id} of {first.user} comes before it and has room there"
            raise Violation(job.id, f"it is granted {name}; {what}")


def _nobody_comes_before(state: GridState, job: Job, before: Allocation) -> None:
    node, mine = state.nodes[before.node], state.queue.line(job.id)
    assert node.room is not None
    room = node.room.copy()
    room.give(before.grant)
    for line in state.queue.lines.values():
        first = state.jobs[state.queue.head(line)[1]]
        if line.excluded or line is mine or first.id in state.fresh or not _clearly_before(state, first, job):
            continue
        if able(node, line.request) and room.fits(line.request.resources, line.request.constraints):
            raise Violation(job.id, f"it is to follow {before.id} on {before.node}; {first.id} comes before it")


def _clearly_before(state: GridState, first: Job, job: Job) -> bool:
    if first.request.priority != job.request.priority:
        return first.request.priority > job.request.priority
    if first.user == job.user:
        return state.turns[first.id] < state.turns[job.id]
    return _share(state, first) + CLEARLY < _share(state, job)


def _share(state: GridState, job: Job) -> float:
    """What decides between the users of a class: the dominant share of what they hold and held, by their weight, less
    the age of what waits of theirs."""
    user, sharing, now = job.user, state.policy.sharing, state.now
    held, capacity = Resources(), Resources()
    for one in state.holders():
        if state.jobs[one.job].user == user:
            held += one.grant.resources
    for node in state.nodes.values():
        capacity += node.facts.lendable
    account = state.shares.accounts.get(user)
    past = state.shares.past(account, now, sharing) if account is not None else 0.0
    standing = state.queue.line(job.id).standing
    heads = [state.queue.head(line) for line in state.queue.lines.values() if line.standing is standing]
    waits_since = state.jobs[min(heads)[1]].submitted
    return (dominant(held, capacity) + past) / weight(user, sharing) - aged(now - waits_since, sharing)


def _nobody_is_delayed(state: GridState, job: Job, placement: Placement) -> None:
    kept = state.reservations.by_job.values()
    limit = job.spec.time_limit
    mine = asked(state, job.id).order
    for one in kept:
        if one.node != placement.node or one.job == job.id or asked(state, one.job).order > mine:
            continue
        promised = max(other.at for other in kept if other.job == one.job)
        if limit and state.now + STARTING + limit + job.spec.grace <= promised:
            continue
        node, wants = state.nodes[one.node], state.jobs[one.job].request
        assert node.room is not None
        room = node.room.copy()
        for name in one.after:
            if (ending := node.allocations.get(name)) is not None:
                room.give(ending.grant)
        room.take(placement.grant)
        if not room.fits(wants.resources, wants.constraints):
            raise Violation(job.id, f"it is granted {one.node}, which is kept for {one.job}, and keeps that waiting")
