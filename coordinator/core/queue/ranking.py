"""The ranks of standings, by which they are served within their class: by precedence or by share, as configured
(docs/shares.md). Ranks change with time and are computed again at an interval; the standings of a user whose holdings
change are ranked at once."""

import math

from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.queue.fairness import RANKED_EVERY, aged, dominant
from distributed_grid.coordinator.core.queue.precedence import (
    OVERDUE,
    divisor_of,
    limit_by,
    limit_of,
    precedence,
    scale_of,
    scaled,
)
from distributed_grid.coordinator.core.queue.queue import Line, Queue, Rank, Standing, key_of
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Precedence, Request, ServiceOrder

NOT_OVERDUE = -1


def rank(state: GridState) -> None:
    """Rank the standings of users whose share has changed or whose first job has left, and every `RANKED_EVERY` all,
    since ranks change with time. One that waits alone needs no rank, unless one of its jobs was overdue: another one
    may be its first by now."""
    if len(state.queue.standings) < 2 and all(one.overdue == NOT_OVERDUE for one in state.queue.standings.values()):
        return
    queue, standings, of_users = state.queue, to_rank(state, state.now), dict[str, float]()
    found = list[tuple[Standing, Rank]]()
    at = state.shares.ranked = as_of(state, state.now)
    for standing in standings:
        line = _first(queue, standing)
        if line is not None:
            found.append((standing, _rank_of(state, standing, line, at, of_users)))
    if len(standings) == len(queue.standings):
        queue.rank_all(found)
    else:
        for standing, its_rank in found:
            queue.rank(standing, its_rank)
    state.shares.stale, state.queue.unranked = {}, {}


def rank_again(state: GridState, user: str) -> None:
    """Rank the standings of a user who was granted something during a pass: by their first jobs, also those that were
    passed."""
    queue = state.queue
    if len(queue.standings) < 2:
        return  # it is ranked later: see `rank`
    of_users: dict[str, float] = {}
    for standing in queue.of_user.get(user, ()):
        line = queue.line(standing.head) if standing.head else None
        if line is None or line.excluded:
            line = _first(queue, standing)
        if line is not None:
            queue.rank(standing, _rank_of(state, standing, line, state.shares.ranked, of_users))


def _first(queue: Queue, standing: Standing) -> Line | None:
    """The line by which a standing is ranked: of one whose lines are all excluded, that too, since the first that waits
    for a quota keeps later ones waiting."""
    return queue.first_line(standing) or queue.first_excluded(standing)


def as_of(state: GridState, now: float) -> float:
    """Return the time that ranks are computed for: that of the last ranking of all. It also applies to users who are
    ranked in between, since a slightly higher age would move them past others without reason."""
    return now if now >= state.shares.ranked + RANKED_EVERY else state.shares.ranked


def to_rank(state: GridState, now: float) -> list[Standing]:
    """The standings whose ranks are not current."""
    queue = state.queue
    if now >= state.shares.ranked + RANKED_EVERY:
        return list(queue.standings.values())
    stale = [standing for user in state.shares.stale for standing in queue.of_user.get(user, ())]
    return [*stale, *(one for one in queue.unranked if one.count and one.user not in state.shares.stale)]


def ranks_as_of(state: GridState, now: float) -> dict[Standing, Rank]:
    """The ranks of the standings that are not current, as `rank` would set them."""
    at, of_users, found = as_of(state, now), dict[str, float](), dict[Standing, Rank]()
    for standing in to_rank(state, now):
        line = _first(state.queue, standing)
        if line is not None:
            found[standing] = _rank_of(state, standing, line, at, of_users)
    return found


def rank_of_new(state: GridState, request: Request, user: str, lasts: float, at: float, waited: float = 0.0) -> float:
    """The rank of a standing of such a job alone."""
    sharing = state.policy.sharing
    share = counted(state, user, at)
    if sharing.order is ServiceOrder.SHARE:
        return share - aged(waited, sharing)
    limit = limit_of(lasts, user, state.queue.run_times, sharing)
    return -precedence(waited, limit, _size(state, request), share, sharing)


def rank_of_successor(state: GridState, job: Job, lasts: float, standing: Standing | None) -> float:
    """The rank of a successor, if it waited in the queue: in this standing, or alone (None)."""
    sharing, at = state.policy.sharing, as_of(state, state.now)
    if sharing.order is not ServiceOrder.SHARE and (standing is None or state.turns[job.id] < standing.place[1]):
        since = job.waits_since if standing is None else max(job.waits_since, _served_without(state, standing, job))
        due = since + sharing.overdue_after * limit_of(lasts, job.user, state.queue.run_times, sharing)
        if due <= at:
            return due - OVERDUE
    if standing is not None:
        return standing.rank
    return rank_of_new(state, job.request, job.user, lasts, state.now, max(0.0, state.now - job.waits_since))


def not_served(state: GridState, job: Job) -> None:
    """A job is to go back to the queue without having started. If it was overdue when it was granted its place, it
    is so again: nothing of its lane was served by that."""
    overdue = state.chains.overdue
    if job.allocation not in overdue:
        return
    granted, before = overdue.pop(job.allocation)
    standing = _standing_of(state, job)
    if standing is None:
        return
    if standing.served_at == granted:
        standing.served_at = before
        return
    for name, (later, other) in overdue.items():  # of its lane, another one was granted something since
        if other == granted and _standing_of(state, state.jobs[state.allocations[name].job]) is standing:
            overdue[name] = (later, before)


def _served_without(state: GridState, standing: Standing, job: Job) -> float:
    """Return when an overdue job of a standing was served last, not counting a successor and those behind it."""
    served_at, overdue = standing.served_at, state.chains.overdue
    if overdue:
        for name in reversed([job.allocation, *state.chains.successors_of(job.allocation)]):
            granted, before = overdue.get(name, (math.inf, 0.0))
            if granted == served_at and _standing_of(state, state.jobs[state.allocations[name].job]) is standing:
                served_at = before
    return served_at


def _standing_of(state: GridState, job: Job) -> Standing | None:
    """Return the standing that a job would be in if it waited; None: no job waits there."""
    return state.queue.standings.get(state.queue.stand_of(job.user, job.request.priority, key_of(job)[2]))


def precedence_of(state: GridState, job: Job, now: float) -> Precedence | None:
    """Return the precedence of a job in the queue; None: it is served by share."""
    line, sharing = state.queue.line(job.id), state.policy.sharing
    if sharing.order is ServiceOrder.SHARE:
        return None
    known, waited = state.queue.run_times, max(0.0, now - job.waits_since)
    limit, size = limit_of(line.lasts, job.user, known, sharing), _size(state, job.request)
    value = precedence(waited, limit, size, counted(state, job.user, now), sharing)
    due = max(job.waits_since, line.standing.served_at) + sharing.overdue_after * limit
    by, credit = limit_by(line.lasts, job.user, known), state.loans.credit(job.user, now, sharing)
    return Precedence(waited, limit, by, value, max(0.0, due - now), credit)


def counted(state: GridState, user: str, now: float) -> float:
    """A user's share less their credit: what counts in the order of service."""
    sharing = state.policy.sharing
    return state.shares.share(user, now, sharing) - state.loans.credit(user, now, sharing)


def _rank_of(state: GridState, standing: Standing, line: Line, at: float, of_users: dict[str, float]) -> Rank:
    """The rank of a standing by the first job of this line. `of_users`: what a rank takes of each user, as far as
    it is known: in the order by share what counts as the share, else the divisor that follows from it."""
    sharing, user = state.policy.sharing, standing.user
    turn, name = state.queue.head(line)
    job = state.jobs[name]
    by_share = sharing.order is ServiceOrder.SHARE
    of_user = of_users.get(user)
    if of_user is None:
        share = counted(state, user, at)
        of_user = of_users[user] = share if by_share else divisor_of(share)
    if by_share:
        return Rank(of_user - aged(at - job.submitted, sharing), name)
    limit, since = limit_of(line.lasts, user, state.queue.run_times, sharing), job.waits_since
    due = max(since, standing.served_at) + sharing.overdue_after * limit
    rank = -scaled(at - since, limit, _scale(state, line), of_user, sharing)
    return Rank(rank, name, turn if due <= at else NOT_OVERDUE, due)


def _scale(state: GridState, line: Line) -> float:
    """The factor of the size of a line's jobs, which changes with the capacity of the grid alone."""
    if line.scale_at is not state.shares.capacity:
        line.scale, line.scale_at = scale_of(_size(state, line.request)), state.shares.capacity
    return line.scale


def _size(state: GridState, request: Request) -> float:
    """The part of the grid that a request is for; of a gang, all members together."""
    return dominant(request.resources, state.shares.capacity) * (request.gang or 1)
