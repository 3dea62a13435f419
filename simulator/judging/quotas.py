"""Checks quotas at every single grant, from the rules, from what operators have granted, and from the allocations,
without the ledger's own pools:

- Nobody passes a quota: with what is granted, a user or group holds no more than allowed, and uses no more hours of the
  day than allowed if all that runs uses its time limit. (What a lower quota finds running goes on.)
- Nobody waits for a quota that would allow a start, unless an earlier job of the same user or group waits for the rest.
"""

import math
from collections.abc import Iterator

from distributed_grid.coordinator.core.model import Earmarked, Job
from distributed_grid.coordinator.core.queue.queue import Line
from distributed_grid.coordinator.core.queue.quotas import DAY
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.messages.rights import NO_RIGHTS, UNLIMITED, Rights, Whose, key_of
from distributed_grid.protocol.resources import NOTHING, Resources
from distributed_grid.simulator.engine import Violation

SLACK = 60.0
"""Core-seconds that an hour quota may be passed by: starting takes seconds, and clocks of nodes differ."""


def limits_of(state: GridState, job: Job) -> Iterator[tuple[str, frozenset[str], Rights]]:
    """Yield the limits for a job: whose they are, the users who share them, and the limits."""
    rules, granted = state.policy.rights, state.quotas.granted

    def set_for(whose: Whose, name: str, configured: Rights) -> Rights:
        return granted.get(key_of(whose, name), NO_RIGHTS).over(configured)

    own = set_for(Whose.USER, job.user, rules.users.get(job.user, NO_RIGHTS))
    yield job.user, frozenset({job.user}), own.over(set_for(Whose.DEFAULT, "", rules.default))
    for name, group in rules.groups.items():
        if job.user in group.members:
            yield f"group {name}", frozenset(group.members), set_for(Whose.GROUP, name, group.rights)


def held_by(state: GridState, users: frozenset[str], but: str = "") -> Resources:
    """Return what these users hold, and what is earmarked for them; `but`: except what is earmarked for this job."""
    total = Resources()
    for one in state.holders():
        if state.jobs[one.job].user in users:
            total += one.grant.resources
    for job in state.jobs.values():
        if isinstance(job.phase, Earmarked) and job.user in users and job.id != but:
            for place in job.phase.earmark.places:
                total += place.grant.resources
    return total


def exceeded(limits: Rights, held: Resources, wants: Resources, more: Resources = NOTHING) -> str:
    """The limit that would be passed; empty: none."""
    for name, has, asks, others in (
        ("cores", held.cpu, wants.cpu, more.cpu),
        ("memory", held.memory, wants.memory, more.memory),
        ("gpus", held.gpu, wants.gpu, more.gpu),
    ):
        most = getattr(limits, name)
        if most not in (None, UNLIMITED) and asks and has + asks + others > most:
            return f"{name} {most}, {has} are held and {asks} asked for"
    return ""


def nobody_passes_a_quota(state: GridState, job: Job, wants: Resources, besides: Resources = NOTHING) -> None:
    """This is about to be granted to a job (of a gang, to one member); `besides`: what is given back before."""
    for who, users, limits in limits_of(state, job):
        if what := exceeded(limits, held_by(state, users, but=job.id) - besides, wants):
            raise Violation(job.id, f"it is granted more than {who} may hold: {what}")
        for name, kind in (("core_hours", "cpu"), ("gpu_hours", "gpu")):
            most = getattr(limits, name)
            if most not in (None, UNLIMITED) and getattr(wants, kind):
                used = _used_today(state, who, users, kind) + _today(state, job, getattr(wants, kind), state.now)
                if used > most * 3600 + SLACK * 1000:
                    raise Violation(
                        job.id, f"it is granted more {name} than {who} may use today: {used} of {most * 3600}"
                    )


def _used_today(state: GridState, who: str, users: frozenset[str], kind: str) -> float:
    """Thousandths times seconds: what ended attempts used, and what running ones will use at most."""
    group = who.startswith("group ")
    spent = state.quotas.spent.get(f"group/{who[6:]}" if group else f"user/{who}")
    day = int(state.now // DAY)
    used = getattr(spent, kind) / 1000 if spent is not None and spent.day == day else 0.0
    for one in state.holders():
        job = state.jobs[one.job]
        if job.user in users and one.granted < state.now:
            ending = max(state.now, one.stopped + one.stop.grace) if one.stop is not None else math.inf
            used += _today(state, job, getattr(one.grant.resources, kind), max(one.granted, day * DAY), ending)
    return used


def _today(state: GridState, job: Job, amount: int, begin: float, ending: float = math.inf) -> float:
    limit, ends = job.spec.time_limit, (state.now // DAY + 1) * DAY
    return amount * max(0.0, min(begin + limit if limit else math.inf, ending, ends) - begin)


def nobody_waits_for_nothing(state: GridState, line: Line) -> None:
    """A line is excluded: some quota does not allow its first job to start, or not before another one."""
    first = state.jobs[state.queue.head(line)[1]]
    for _, users, limits in limits_of(state, first):
        if limits.core_hours is not None or limits.gpu_hours is not None:
            return
        held, wants = held_by(state, users), whole(first.request)
        if exceeded(limits, held, wants):
            return
        for other in state.queue.turns:
            one = state.jobs[other]
            if one.user in users and one is not first and exceeded(limits, held, wants, whole(one.request)):
                return
    raise Violation(first.id, "it waits for a quota, and all of them would allow it to start")


def whole(request: Request) -> Resources:
    """Return what a request takes on all of its nodes."""
    asks, many = request.resources, max(1, request.gang)
    return Resources(asks.cpu * many, asks.memory * many, asks.gpu * many)


def rightly_waits(state: GridState, job: Job) -> bool:
    """Whether a job may wait for ever, or until a day has passed: for hours, or for more than it may ever hold."""
    for _, _, limits in limits_of(state, job):
        if (
            limits.core_hours is not None
            or limits.gpu_hours is not None
            or exceeded(limits, Resources(), whole(job.request))
        ):
            return True
    return False
