"""Checks the order of grants, at every single grant. Two rules, from which follows that no job starves:

- A job that is passed over on a node had no room there. When a place on a node is granted, no job waits that comes
  before (in a higher class; in the same class if it is overdue, or clearly before by precedence or share, or earlier
  in the same lane) and could be placed on that node; unless the node is reserved for a job that comes before that one
  as well. (A job that has to be near another one that was placed in this very pass is considered in the next pass,
  which follows at once.)
- A job with a reserved node is not delayed. A job that is granted something on a node that is reserved for one before
  it ends before the promised start, or leaves enough room when the jobs that the reservation waits for have ended.

A successor that was overdue and is taken back before it has started is overdue again: it was not served.

So a waiting job is delayed only by those before it, and these come to an end: an overdue job is passed by no later job,
and the first job that cannot start has a reserved node and keeps it. A third rule checks that: the first job, if
overdue, starts by the time that is due to it. What users hold is added up here from the allocations.
"""

import math
from collections.abc import Hashable

from distributed_grid.coordinator.core.commands import Command, Event, MessageReceived, RecordJob
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.lifecycle.outcomes import end_of_member
from distributed_grid.coordinator.core.model import Allocation, Job, Node, Placement
from distributed_grid.coordinator.core.placement.capacity import FutureCapacity
from distributed_grid.coordinator.core.placement.matching import able, has_room
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.preemption.plan import may
from distributed_grid.coordinator.core.queue.fairness import aged, dominant, weight
from distributed_grid.coordinator.core.queue.precedence import limit_of, precedence
from distributed_grid.coordinator.core.queue.queue import Line, Standing
from distributed_grid.coordinator.core.queue.reservations import STARTING, asked
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Cause, Request, ServiceOrder, State
from distributed_grid.protocol.messages import Exited
from distributed_grid.protocol.resources import Resources
from distributed_grid.simulator.engine import Violation
from distributed_grid.simulator.judging.holds import nobody_waits_for_room_in_a_hold
from distributed_grid.simulator.judging.moves import headroom_stays_free
from distributed_grid.simulator.judging.quotas import nobody_passes_a_quota, nobody_waits_for_nothing

RANKED = 1.1
"""Seconds between two rankings of all, and a little more."""
SLACK = 4.0
"""Seconds for what is on its way: ends that were not told yet, ranks of a second ago, a slow disk."""
CLEARLY = 0.02
"""Shares that differ by less may be taken for equal: they change by themselves, and are looked at now and then."""


class Watched(Ledger):
    """A ledger of which every grant is looked at before it is made, and every job that it gives up."""

    def __init__(self, epoch: int, policy: Policy) -> None:
        super().__init__(epoch, policy=policy)
        self.overdue = FirstOverdue()
        self.state: _Watched = _Watched(epoch, policy, self.overdue)

    def handle(self, event: Event, now: float) -> list[Command]:
        if not (type(event) is MessageReceived and type(event.message) is Exited):
            return self._patiently(super().handle(event, now))
        ending = self.state.allocations.get(event.message.allocation)
        user = self.state.jobs[ending.job].user if ending is not None else ""
        known = self.state.queue.run_times.median(user)
        commands = self._patiently(super().handle(event, now))
        if self.state.queue.run_times.median(user) != known:
            self.state.relearned[user] = now
        if not event.message.outcome.started:
            self.state.was_not_served(event.message.allocation)
        return commands

    def settle(self, now: float) -> list[Command]:
        commands = self._patiently(super().settle(now))
        self.overdue.see(self.state)
        nobody_waits_for_room_in_a_hold(self.state)
        return commands

    def _patiently(self, commands: list[Command]) -> list[Command]:
        for command in commands:
            if type(command) is RecordJob:
                _not_given_up_early(self.state, command.job)
        return commands


class _Watched(GridState):
    def __init__(self, epoch: int, policy: Policy, overdue: "FirstOverdue") -> None:
        super().__init__(epoch, policy=policy)
        self._overdue = overdue
        self.relearned: dict[str, float] = {}
        """By user: when what their jobs without a time limit are expected to take has changed last."""
        self._given: dict[str, tuple[str, float]] = {}
        """By allocation: the successors that were overdue, and when they were granted that."""

    def grant(self, job: Job, placement: Placement, lease: float, gang: Gang | None = None) -> Allocation:
        """Check the order of grants. An earmark is for one job alone, so using it passes no other job."""
        if not job.by_operator:  # such as what the grid lends by itself
            nobody_passes_a_quota(self, job, placement.grant.resources)
        headroom_stays_free(self, job, placement)
        _has_the_labels(self, job, placement.node)
        if job.id in self.queue:
            _nobody_is_passed(self, job, placement.node)
            _nobody_is_delayed(self, job, placement)
            self._overdue.note_grant(self, job)
        return super().grant(job, placement, lease, gang)

    def grant_next(self, job: Job, before: Allocation) -> Allocation:
        """Check that the successor comes before all others that have room in its place."""
        nobody_passes_a_quota(self, job, before.grant.resources, besides=before.grant.resources)
        _nobody_comes_before(self, job, before)
        _has_the_labels(self, job, before.node)
        self._overdue.note_grant(self, job)
        overdue = self.queue.line(job.id).standing.overdue == self.queue.turns[job.id]
        allocation = super().grant_next(job, before)
        if overdue:
            self._given[allocation.id] = job.id, self.now
        return allocation

    def was_not_served(self, allocation: str) -> None:
        """Check that an attempt that ended before its start does not delay an overdue job."""
        job, granted = self._given.pop(allocation, ("", 0.0))
        if job in self.queue and self.queue.line(job).standing.served_at == granted:
            raise Violation(job, f"it was taken back before it started, and its lane waits as if {allocation} had")


def _has_the_labels(state: GridState, job: Job, name: str) -> None:
    """A job is granted a place on a node with the labels that it asks for."""
    node, asked = state.nodes[name], job.request.constraints
    has = {**node.facts.labels, **node.orders.labels}
    labels = {key: value for key, value in has.items() if value is not None}
    for rule in asked.labels if asked is not None else ():
        if not rule.met(labels):
            raise Violation(job.id, f"it is granted {name} ({labels}), and asked for {rule}")


def _not_given_up_early(state: GridState, job: Job) -> None:
    """A job whose node has not lost anything is not ended as lost before that node was silent for long."""
    outcome = job.outcome
    if job.request.gang:  # whose end is told later: with the last of it
        part = end_of_member(job)
        outcome = part.outcome if part is not None and part.at == state.now else None
    if outcome is not None and outcome.cause is Cause.NODE_LOST and job.node:
        silent = state.now - state.nodes[job.node].last_seen
        if silent < state.policy.disconnected_after + state.policy.lost_after - 0.001:
            raise Violation(job.id, f"it is given up, {job.node} was heard {silent:.1f} s ago")


def _nobody_is_passed(state: _Watched, job: Job, name: str) -> None:
    node, mine = state.nodes[name], state.queue.line(job.id)
    for line in state.queue.lines.values():
        if line.excluded:
            nobody_waits_for_nothing(state, line)
            continue
        if line is mine or line.request.gang or line.request.priority < job.request.priority:
            continue
        first = state.jobs[state.queue.head(line)[1]]
        just_now = first.id in state.fresh and not line.blocked
        if just_now or not has_room(node, line.request, state.index) or not _clearly_before(state, first, job):
            continue
        order = asked(state, first.id).order
        if not any(
            one.node == name and asked(state, one.job).order < order for one in state.reservations.by_job.values()
        ):
            what = f"{first.id} of {first.user} comes before it and has room there"
            raise Violation(job.id, f"it is granted {name}; {what}")


def _nobody_comes_before(state: _Watched, job: Job, before: Allocation) -> None:
    node, mine = state.nodes[before.node], state.queue.line(job.id)
    assert node.capacity is not None
    capacity = node.capacity.copy()
    capacity.give(before.grant)
    for line in state.queue.lines.values():
        first = state.jobs[state.queue.head(line)[1]]
        if line.excluded or line is mine or first.id in state.fresh or not _clearly_before(state, first, job):
            continue
        if able(node, line.request) and capacity.fits(line.request.resources, line.request.constraints):
            raise Violation(job.id, f"it is to follow {before.id} on {before.node}; {first.id} comes before it")


def _clearly_before(state: _Watched, first: Job, job: Job) -> bool:
    """Whether one waiting job comes before another, whatever changed since all were ranked."""
    if first.request.priority != job.request.priority:
        return first.request.priority > job.request.priority
    its, mine = state.queue.line(first.id).standing, state.queue.line(job.id).standing
    if its is mine:
        return state.turns[first.id] < state.turns[job.id]
    if state.policy.sharing.order is ServiceOrder.SHARE:
        most, least = _share(state, _first_of(state, its))[1], _share(state, _first_of(state, mine))[0]
        return most + CLEARLY < least
    ahead, behind = _first_of(state, its), _first_of(state, mine)
    if any(_limit(state, one) == math.inf or _has_relearned(state, one) for one in (ahead, behind)):
        return False
    due, other = _due(state, first), _due(state, job)
    if due + RANKED < state.now or other <= state.now:
        return due + RANKED < other
    return _precedence(state, ahead, clearly=True) > _precedence(state, behind)


def _first_of(state: GridState, standing: Standing) -> Job:
    lines = [line for line in state.queue.lines.values() if line.standing is standing and not line.excluded]
    return state.jobs[min(state.queue.head(line) for line in lines)[1]]


def _due(state: GridState, job: Job) -> float:
    """When this job comes before all that are not overdue: only the first of a standing ever does."""
    line = state.queue.line(job.id)
    if _first_of(state, line.standing) is not job:
        return math.inf
    since = max(job.waits_since, line.standing.served_at)
    return since + state.policy.sharing.overdue_after * _limit(state, job)


def _has_relearned(state: _Watched, job: Job) -> bool:
    """Whether all were ranked last by another limit of this job than it has now."""
    return not job.spec.time_limit and state.relearned.get(job.user, -math.inf) > state.now - RANKED


def _limit(state: GridState, job: Job) -> float:
    limit, sharing = job.spec.time_limit, state.policy.sharing
    if not limit and job.user not in state.queue.run_times.last:
        return math.inf  # it changes with what others run
    known = limit + job.spec.grace if limit else state.queue.run_times.median(job.user)
    assert known is not None
    return max(sharing.shortest, known)


def _precedence(state: GridState, job: Job, clearly: bool = False) -> float:
    """Return the precedence of a job that is not overdue: the highest possible one, or with `clearly` the lowest, since
    the last ranking."""
    sharing, limit = state.policy.sharing, _limit(state, job)
    (share, most), waited = _held(state, job.user), state.now - job.waits_since
    if clearly:
        share, waited = most + CLEARLY, waited - RANKED
    else:
        share = share - CLEARLY if share < 0.0 else max(0.0, share - CLEARLY)
    part = dominant(job.request.resources, _capacity(state)) * max(1, job.request.gang)
    return precedence(waited, limit, part, share, sharing)


def _share(state: GridState, job: Job) -> tuple[float, float]:
    """Return the least and the greatest share, less the age of the user's waiting jobs, by which a user may have been
    ranked."""
    age = aged(state.now - job.submitted, state.policy.sharing)
    least, most = _held(state, job.user)
    return least - age, most - age


def _capacity(state: GridState) -> Resources:
    return sum((node.facts.lendable for node in state.nodes.values()), Resources())


def _held(state: GridState, user: str) -> tuple[float, float]:
    """The dominant share of what a user holds and held, by their weight, less what others owe them: the least and the
    most since all were ranked. With a short half-life past and debts change by more than `CLEARLY` in that time."""
    sharing, held = state.policy.sharing, Resources()
    for one in state.holders():
        if state.jobs[one.job].user == user:
            held += one.grant.charged
    account, holds, by = state.shares.accounts.get(user), dominant(held, _capacity(state)), weight(user, sharing)
    shares = []
    for at in (state.now - RANKED, state.now):
        past = state.shares.past(account, at, sharing) if account is not None else 0.0
        shares.append((holds + past) / by - _credit(state, user, at))
    return min(shares), max(shares)


def _credit(state: GridState, user: str, at: float) -> float:
    """Return what a user lent less what they borrowed, from the averages of all pairs of users."""
    sharing, found = state.policy.sharing, 0.0
    for (lender, borrower), one in state.loans.pairs.items():
        average = one.average(at, sharing.half_life)
        found += average * ((lender == user) - (borrower == user))
    return max(-sharing.credit, min(sharing.credit, found))


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
        if _is_likely_over(state, job, wants, promised):
            continue
        assert node.capacity is not None
        capacity = node.capacity.copy()
        for name in one.after:
            if (ending := node.allocations.get(name)) is not None:
                capacity.give(ending.grant)
        capacity.take(placement.grant)
        if not capacity.fits(wants.resources, wants.constraints):
            raise Violation(job.id, f"it is granted {one.node}, which is kept for {one.job}, and keeps that waiting")


def _is_likely_over(state: GridState, job: Job, of: Request, promised: float) -> bool:
    """Whether a job is predicted to be over by then, and gives way to who waits for its place if it is not."""
    values = state.policy.preempting
    lasts = max(job.planned, values.min_hold)
    gives_way = may(of.priority, job.request.priority) and values.badput_budget > 0
    return job.planned > 0 and gives_way and state.now + STARTING + lasts <= promised < math.inf


# --- who is overdue ---------------------------------------------------------------------------------------------------


class FirstOverdue:
    """Watches the job that is first in the order of service and overdue, after each pass. It has to start when all is
    over that runs on the nodes which could run it, by the time limits alone: from that follows how long anybody waits
    at the most (docs/shares.md). Where something happens that this does not cover (a node or its offer changes, a job
    is frozen, starts late or has no limit, somebody who comes first is new or not held back by a quota any more), it is
    watched anew."""

    def __init__(self) -> None:
        self.watched = ""
        self.latest = math.inf
        self._covered: Hashable = None
        self.seen = 0
        """How many jobs were watched to their start."""

    def note_grant(self, state: GridState, job: Job) -> None:
        """Something is granted to a job, which may come before the watched one and start in the pass in which it came:
        by class, or since it was overdue before that."""
        watched = state.jobs.get(self.watched)
        if watched is None or watched.id not in state.queue or state.queue.line(watched.id).excluded:
            return
        if job.request.priority < watched.request.priority:
            return
        if job.request.priority > watched.request.priority or _due(state, job) <= _due(state, watched) + RANKED:
            self._covered = None

    def see(self, state: GridState) -> None:
        """Raises Violation if the watched job should have started."""
        first = None if state.halted else _first(state)
        nodes = [] if first is None else [node for node in state.nodes.values() if _lends(node, first.request)]
        covered = None if first is None else (first.id, *map(_as_lent, nodes))
        if covered is None or covered != self._covered or not all(_calm(state, node) for node in nodes):
            self.seen += self.watched != "" and self.watched not in state.queue.turns
            self.watched, self._covered, self.latest = "", covered, math.inf
        if first is None or not nodes:
            return
        if not self.watched:
            self.latest = max(_over(state, node) for node in nodes)
            self.watched = first.id if self.latest < math.inf else ""
        elif state.now > self.latest + SLACK:
            late = state.now - self.latest
            raise Violation(first.id, f"it is overdue and the first, and should have started {late:.1f} s ago")


def _first(state: GridState) -> Job | None:
    """The job that comes before all others, if it is overdue and the bound holds for it."""
    sharing, queue = state.policy.sharing, state.queue
    lines = [line for line in queue.lines.values() if not line.excluded]
    if sharing.order is ServiceOrder.SHARE or not lines:
        return None
    highest = max(line.request.priority for line in lines)
    firsts: dict[Standing, tuple[int, str, Line]] = {}
    for line in lines:
        if line.request.priority is highest:
            head = *queue.head(line), line
            firsts[line.standing] = min(head, firsts.get(line.standing, head))
    dues: list[tuple[float, int, str, Line]] = []
    for turn, name, line in firsts.values():
        if not line.lasts:
            return None  # its place changes with what others run
        limit = limit_of(line.lasts, line.standing.user, queue.run_times, sharing)
        since = max(state.jobs[name].waits_since, line.standing.served_at)
        dues.append((since + sharing.overdue_after * limit, turn, name, line))
    due, _, name, line = min(dues, key=lambda one: one[:2])
    asked = line.request.constraints
    near = asked is not None and (asked.near or asked.apart)
    reserves = state.quotas.allowed(line.standing.user, line.operator).reserves
    if due > state.now or line.request.gang or line.request.ray or near or not reserves:
        return None
    return state.jobs[name]


def _lends(node: Node, request: Request) -> bool:
    """Whether what a node lends now is enough for this, once nothing runs there: its owner may use the rest."""
    if node.capacity is None or not able(node, request):
        return False
    whole = FutureCapacity.of(node.capacity)
    for one in node.allocations.values():
        whole.give(one.grant)
    return whole.fits(request.resources, request.constraints)


def _as_lent(node: Node) -> Hashable:
    offer = node.offer
    lent = None if offer is None else (offer.cores, offer.memory, offer.gpus)
    return node.facts.name, node.usable, lent, tuple(sorted(node.closed)), len(node.not_holding)


def _calm(state: GridState, node: Node) -> bool:
    """Whether the end of all that is on a node is known, and nothing there starts or ends late: as on a node that has
    just gone, or after the clock of a new coordinator went ahead."""
    return node.usable and all(_ends(state, one) < math.inf for one in node.allocations.values())


def _over(state: GridState, node: Node) -> float:
    return max((_ends(state, one) for one in node.allocations.values()), default=state.now)


def _ends(state: GridState, one: Allocation) -> float:
    job = state.jobs[one.job]
    began = one.started or one.granted + STARTING
    if one.hold or job.planned:
        return math.inf  # what runs inside goes on when it ends; what was predicted may be wrong
    late = began > one.granted + STARTING or (not one.started and state.now > began)
    ending = one.stop is not None or one.state is State.LOST or job.active.frozen
    if late or ending or not job.spec.time_limit or job.request.gang or job.active.attempt.suspended_for:
        return math.inf
    over = began + job.spec.time_limit + job.spec.grace
    return over if state.now <= over + SLACK else math.inf
