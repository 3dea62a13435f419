"""Rights and quotas (docs/rights.md): what is refused at submission, and what waits until a quota allows it.

A line of the queue whose quota is reached is excluded from the order of service: it gets no reservation, preempts
nothing and delays nothing, except later jobs of the same pool that would use what it waits for. Its jobs keep their
turns, and it is reviewed whenever resources of its pools become free. A quota never ends a running job.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import Granted, RecordRights, Rejected, RightsSet
from distributed_grid.coordinator.core.model import Allocation, Job
from distributed_grid.coordinator.core.queue.queue import Line
from distributed_grid.coordinator.core.queue.quotas import DAY, Pool, milliseconds, pool_of
from distributed_grid.coordinator.core.queue.reservations import STARTING, Ask, asked, ends
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Reason, Request
from distributed_grid.protocol.messages.rights import (
    A_DAY,
    HELD,
    NO_RIGHTS,
    Quota,
    Rights,
    Whose,
    amount_words,
    key_of,
    limit_words,
)
from distributed_grid.protocol.resources import NOTHING, Resources, capped
from distributed_grid.protocol.sharing.policies import OffloadingMode
from distributed_grid.protocol.text import clock, listed

HOUR = 3_600_000
"""A thousandth of a core-hour, in thousandths of a core times milliseconds."""
FEW = 64
"""A pool with at most this many excluded lines is reviewed at each change."""
REST = 0.00025
"""Seconds that a pool rests after a review for each of its excluded lines, if they are more than `FEW`: ten times what
it takes to review them, so that one user's many kinds of jobs do not take up the coordinator at each end."""
NAMED = 5
"""Maximum number of groups named in a sentence."""
RESTED = "rested"
"""The name of the deadline by which changed pools have rested."""
FIRST = (-(1 << 60), 0.0, 0)
"""Before all that wait in the queue: what has an earmark."""


class Over(msgspec.Struct, frozen=True):
    """A quota that does not allow a request now. `has`: what the pool has of it; `wants`: what the request needs.
    `behind`: the job that the rest is for. `day`: of a quota of hours, today (0) or tomorrow (1)."""

    pool: Pool
    limit: str
    has: int
    wants: int
    behind: str = ""
    day: int = 0


# --- what is held -----------------------------------------------------------------------------------------------------


def over(
    state: GridState, pools: Iterable[Pool], ask: Ask, own: Resources = NOTHING, line: Line | None = None
) -> Over | None:
    """The quota of these pools that does not allow this now; None: all do. `own`: what is earmarked for it, and counted
    already; `line`: where it waits."""
    for pool in pools:
        found = _over_held(state, pool, ask, own, line)
        if found is None and pool.by_day:
            end = state.now + STARTING + ask.lasts if ask.lasts else math.inf
            found = _over_hours(state, pool, ask, state.now, end, line)
        if found is not None:
            return found
    return None


def _over_held(state: GridState, pool: Pool, ask: Ask, own: Resources, line: Line | None) -> Over | None:
    many = max(1, ask.request.gang)
    first = _comes_first(state, pool.first, ask, line)
    for name, kind in HELD.items():
        limit: int | None = getattr(pool.limits, name)
        wants = getattr(ask.request.resources, kind) * many
        if limit is None or not wants:
            continue
        has = getattr(pool.held, kind) - getattr(own, kind)
        if has + wants > limit:
            return Over(pool, name, has, wants)
        if first is not None and has + wants + getattr(first.resources, kind) * max(1, first.gang) > limit:
            return Over(pool, name, has, wants, pool.first)
    return None


def _comes_first(state: GridState, name: str, ask: Ask, line: Line | None) -> Request | None:
    """The request of the first job of a pool, if it comes before this one; None: it does not, or may not start. Of one
    line only the head is ever asked about, and that keeps the others waiting by itself."""
    if not name or name not in state.queue or state.queue.line(name) is line:
        return None
    its = asked(state, name)
    waits = state.queue.line(name).excluded or name in state.reservations.by_job
    return its.request if waits and its.order < ask.order else None


# --- what is used in a day --------------------------------------------------------------------------------------------


def day_ends(now: float) -> float:
    """Return the end of the day in which hours are counted."""
    return (now // DAY + 1) * DAY


def _over_hours(
    state: GridState, pool: Pool, ask: Ask, begin: float, end: float, line: Line | None = None
) -> Over | None:
    """A job counts from its start with its time limit and grace: what of it falls in today has to be left today, and
    what falls in tomorrow has to be left then. (Later days have no more, since jobs only end.)"""
    turns = day_ends(state.now)
    first = _comes_first(state, pool.first_for_hours, ask, line)
    for name, kind in A_DAY.items():
        limit: int | None = getattr(pool.limits, name)
        wants = getattr(ask.request.resources, kind) * max(1, ask.request.gang)
        if limit is None or not wants:
            continue
        for day in (0, 1):
            needs = wants * milliseconds(max(begin, turns) if day else begin, min(end, turns + day * DAY))
            has = _used(state, pool, kind, day)
            if needs and has + needs > limit * HOUR:
                return Over(pool, name, -(-has // HOUR), -(-needs // HOUR), day=day)
            if day and needs and first is not None:
                its = _most_of_a_day(asked(state, pool.first_for_hours), kind)
                if has + its + needs > limit * HOUR:
                    return Over(pool, name, -(-has // HOUR), -(-needs // HOUR), pool.first_for_hours, day)
    return None


def _used(state: GridState, pool: Pool, kind: str, day: int) -> int:
    """Return what a pool has used today (0) or tomorrow (1), and will use if all its running jobs use up their time
    limits."""
    if (known := pool.used.get((kind, day))) is not None:
        used, number = known
        used += _run(state, pool.added[number:], kind, day)
    else:
        state.quotas.counted[pool.id] = pool
        used = _run(state, pool.allocations.values(), kind, day)
        used += 0 if day else getattr(state.quotas.spent_of(pool, int(state.now // DAY)), kind)
    pool.used[kind, day] = used, len(pool.added)
    return used


def _run(state: GridState, allocations: Iterable[Allocation], kind: str, day: int) -> int:
    """Return what these allocations have used today (0) or tomorrow (1), and will use if they use up their time
    limits."""
    turns = day_ends(state.now)
    begin, end = turns + (day - 1) * DAY, turns + day * DAY
    used = 0
    for one in allocations:
        if amount := getattr(one.grant.resources, kind):
            ending = max(state.now, ends(state, one, state.now))
            used += amount * milliseconds(max(begin, one.granted), min(ending, end))
    return used


def check_used(state: GridState) -> None:
    """Check that what is kept of the hours of pools is what a count from scratch finds."""
    for pool in state.quotas.counted.values():
        for kind, day in list(pool.used):
            used = _used(state, pool, kind, day)
            again = _run(state, pool.allocations.values(), kind, day)
            again += 0 if day else getattr(state.quotas.spent_of(pool, int(state.now // DAY)), kind)
            assert used == again, f"{pool.name} uses {again} of the {kind} of day {day}, not {used}"


def _most_of_a_day(ask: Ask, kind: str) -> int:
    """The most that a request may use in one day."""
    lasts = min(DAY, STARTING + ask.lasts) if ask.lasts else DAY
    amount: int = getattr(ask.request.resources, kind) * max(1, ask.request.gang)
    return amount * milliseconds(0.0, lasts)


# --- the order of service ---------------------------------------------------------------------------------------------


def of(state: GridState, job: Job) -> Over | None:
    """The quota that does not allow a job in the queue to start now."""
    pools = state.quotas.pools(job)
    return over(state, pools, asked(state, job.id), line=state.queue.line(job.id)) if pools else None


def admits(state: GridState, job: Job) -> bool:
    """Whether all quotas allow a job in the queue to start now. If not, its line is excluded."""
    if not state.quotas.pools(job) or (found := of(state, job)) is None:
        return True
    exclude(state, state.queue.line(job.id), job, found)
    return False


def allows_earmarked(state: GridState, job: Job, earmarked: Resources) -> bool:
    """Whether all quotas allow a job to start on what is earmarked for it."""
    pools, limit = state.quotas.pools(job), job.spec.time_limit
    return not pools or over(state, pools, Ask(job.request, limit and limit + job.spec.grace, FIRST), earmarked) is None


def exclude(state: GridState, line: Line, job: Job, found: Over) -> None:
    """Take a line out of the order of service, with its reservation; its first job may become the pool's first."""
    pool = found.pool
    if not line.excluded:
        line.blocked, line.reason = True, None
        state.queue.exclude(line)
        state.quotas.excluded[(line.standing.user, line.request, line.lasts, line.operator)] = None
        for name in {one.job for one in state.reservations.by_job.values()}:
            if state.queue.line(name) is line:
                state.unreserve(name)
    if found.limit in A_DAY:
        state.deadlines.arm("quota", "", day_ends(state.now))
    which = "first_for_hours" if found.limit in A_DAY else "first"
    for one in state.quotas.pools(job):  # it keeps nobody waiting for a quota that it does not wait for itself
        for its in ("first", "first_for_hours"):
            if getattr(one, its) == job.id and not (one is pool and its == which):
                setattr(one, its, "")
                state.quotas.changed[one.id] = None
    if found.behind:
        return
    name, ask = getattr(pool, which), asked(state, job.id)
    other = name in state.queue and state.queue.line(name) is not line
    if other and asked(state, name).order < ask.order:  # also one that has just been put back, and is to be placed
        return
    if not any(True for one in state.quotas.pools(job) for _ in _never(one, ask)):  # else it keeps nobody waiting
        if other:
            state.quotas.changed[pool.id] = None  # who waited behind that one may not wait behind this one
        setattr(pool, which, job.id)
        state.quotas.with_first[pool.id] = pool


def review(state: GridState) -> None:
    """Put the excluded lines back that a change may have allowed to start; they are tried in the next pass."""
    quotas, looked = state.quotas, Counter[str]()
    changed = {name: None for name in quotas.changed if _is_due(state, name)}
    quotas.changed = {name: None for name in quotas.changed if name not in changed}
    to_review: dict[tuple[str, bool], tuple[Pool, ...] | None] = {}
    for key in list(quotas.excluded):
        user, _, _, operator = key
        if (user, operator) not in to_review:
            pools = quotas.allowed(user, operator).pools if quotas.limited else ()
            has_changed = not pools or "" in changed or any(pool.id in changed for pool in pools)
            to_review[user, operator] = pools if has_changed else None
        if (of_user := to_review[user, operator]) is None:
            continue
        line = state.queue.lines.get(key)
        if line is None or not line.excluded:
            del quotas.excluded[key]
            continue
        head = state.queue.head(line)[1]
        looked.update(pool.id for pool in of_user)
        found = over(state, of_user, asked(state, head), line=line)
        if found is not None:
            exclude(state, line, state.jobs[head], found)
            line.reason = None  # found anew when it is asked for, or within a second
            continue
        del quotas.excluded[key]
        state.queue.include(line)
        line.blocked, line.reason = False, None
        state.fresh[head] = None
    for name, lines in looked.items():
        if lines > FEW and (pool := quotas.pool(name)) is not None:
            pool.rests_until = state.now + lines * REST


def _is_due(state: GridState, name: str) -> bool:
    """Whether this changed pool rests no more."""
    pool = state.quotas.pool(name)
    return pool is None or pool.rests_until <= state.now


def drop_reservations(state: GridState) -> None:
    """Exclude the lines that have a reservation, and whose quota was reached since."""
    for name in {one.job: None for one in state.reservations.by_job.values()}:
        admits(state, state.jobs[name])


def has_changed(state: GridState) -> bool:
    """Whether excluded lines are to be reviewed."""
    quotas = state.quotas
    if not quotas.excluded:
        quotas.changed = {}
        return False
    for pool in list(quotas.with_first.values()):  # a first job that is not excluded counts while it has a reservation
        for name in (pool.first, pool.first_for_hours):
            gone = name and name not in state.reservations.by_job
            if gone and not (name in state.queue and state.queue.line(name).excluded):
                quotas.changed[pool.id] = None
                pool.first = "" if pool.first == name else pool.first
                pool.first_for_hours = "" if pool.first_for_hours == name else pool.first_for_hours
        if not pool.first and not pool.first_for_hours:
            del quotas.with_first[pool.id]
    if quotas.changed and not any(_is_due(state, name) for name in quotas.changed):
        rested = [one.rests_until for name in quotas.changed if (one := quotas.pool(name)) is not None]
        state.deadlines.arm("quota", RESTED, min(rested))
        return False
    return bool(quotas.changed)


def turn_due(state: GridState, name: str) -> None:
    """A day of UTC has begun, something is to be reviewed, or a pool has rested (it is reviewed then, if it has
    changed)."""
    if state.quotas.excluded and name != RESTED:
        state.quotas.changed[""] = None
        state.deadlines.arm("quota", "", day_ends(state.now))


# --- why a job waits --------------------------------------------------------------------------------------------------


def reason(state: GridState, found: Over) -> Reason:
    """Why a job waits for a quota, with the numbers."""
    pool, limit = found.pool, getattr(found.pool.limits, found.limit)
    most = amount_words(found.limit, limit)
    wants, left = limit_words(found.limit, found.wants), limit_words(found.limit, max(0, limit - found.has))
    if found.limit in HELD:
        if found.behind:
            return Reason(
                "Quota", f"{pool.name} may hold {most} at once; {found.behind}, which comes first, needs them"
            )
        holds = limit_words(found.limit, found.has)
        return Reason("Quota", f"{pool.name} may hold {most} at once and holds {holds}; it needs {wants}")
    turns = clock(day_ends(state.now), state.now)
    when = f"until {turns}" if not found.day else f"for the day after {turns}"
    behind = f"; {found.behind}, which comes first, needs them" if found.behind else ""
    text = f"{pool.name} may use {most} a day, {left} are left {when}; it may use {wants}{behind}"
    return Reason("Quota", text)


def hint(found: Over) -> str:
    """Describe what would help a job over its quota."""
    if found.behind:
        return f"it starts when enough is free for {found.behind} and for it"
    needs = limit_words(found.limit, found.has + found.wants)
    return f"it starts when enough is free; an operator can allow more: {_command(found.pool, found.limit, needs)}"


def _command(pool: Pool, limit: str, value: str) -> str:
    return f"grid quota set {pool.option} --{limit.replace('_', '-')} {value}"


# --- the submission ---------------------------------------------------------------------------------------------------


def priority_refusal(state: GridState, token: int, user: str, operator: bool, request: Request) -> Rejected | None:
    """The rejection of a priority that a user may not ask for; None: the user may."""
    highest, asks = state.quotas.allowed(user, operator).highest, request.priority
    if asks <= highest:
        return None
    what, why = f"{user} may not ask for priority {asks.word}", f"the highest priority of {user} is {highest.word}"
    hint = f"--priority {highest.word}; or have an operator run: grid quota set {user} --highest-priority {asks.word}"
    return Rejected(token, "not-allowed", what, why, hint)


def judged_by(job: Job) -> tuple[Any, ...]:
    """Return everything that `refusal` depends on: for two jobs with an equal result the answer is the same."""
    spec = job.spec
    return job.request, job.user, job.by_operator, spec.boost, spec.hold, spec.time_limit, spec.grace


def refusal(state: GridState, token: int, job: Job) -> Rejected | None:
    """The rejection of a job that its user may not submit, or that no quota of its user could ever allow; None: it may
    be submitted."""
    allowed, request, user = state.quotas.allowed(job.user, job.by_operator), job.request, job.user
    if request.priority > allowed.highest:
        return priority_refusal(state, token, user, job.by_operator, request)
    if job.spec.boost is not None and (refused := boost_refusal(state, token)) is not None:
        return refused
    if job.spec.boost is not None and job.spec.boost.exclusive and not allowed.exclusive:
        what, why = f"{user} may not ask for exclusive boosts", "that right is not given to everybody"
        hint = f"leave out --exclusive; or have an operator run: grid quota set {user} --exclusive-boosts"
        return Rejected(token, "not-allowed", what, why, hint)
    limit = job.spec.time_limit
    for pool in allowed.pools if not request.within else ():  # inside of a hold nothing counts but the hold
        for name, most, wants in _never(pool, Ask(request, limit and limit + job.spec.grace, FIRST)):
            a_day = name in A_DAY
            each = f" on {request.gang} nodes together" if request.gang else ""
            what = f"asks {amount_words(name, wants)}{each}{' a day' if a_day else ''}"
            what += f"; {pool.name} may {'use' if a_day else 'hold'} {limit_words(name, most)}"
            why = (
                "it has no time limit, so it counts with whole days" if a_day and not limit else "it could never start"
            )
            less = "give it a shorter --time" if a_day else "ask for less"
            hint = f"{less}; or have an operator run: {_command(pool, name, limit_words(name, wants))}"
            return Rejected(token, "not-allowed", what, why, hint)
    return None


def _never(pool: Pool, ask: Ask) -> Iterator[tuple[str, int, int]]:
    """The quotas that this alone exceeds: name, limit, and what it needs."""
    for name, kind in HELD.items():
        limit: int | None = getattr(pool.limits, name)
        wants = getattr(ask.request.resources, kind) * max(1, ask.request.gang)
        if limit is not None and wants > limit:
            yield name, limit, wants
    for name, kind in A_DAY.items():
        limit = getattr(pool.limits, name)
        if limit is not None and (needs := _most_of_a_day(ask, kind)) > limit * HOUR:
            yield name, limit, -(-needs // HOUR)


def too_many(state: GridState, token: int, jobs: Iterable[tuple[Job, int]]) -> Rejected | None:
    """The rejection of these jobs, each with the number of its members, if too many would wait; None: they may."""
    if not state.quotas.limited:
        return None
    coming: dict[str, int] = {}
    pools: dict[str, Pool] = {}
    for job, count in jobs:
        for pool in state.quotas.pools(job):
            pools[pool.id] = pool
            coming[pool.id] = coming.get(pool.id, 0) + count
    for name, count in coming.items():
        pool = pools[name]
        most = pool.limits.jobs_waiting
        if most is not None and pool.waiting + count > most:
            what = f"{pool.name} may have {most} jobs waiting, and has {pool.waiting}; {count} more are too many"
            hint = "wait until some have started; or have an operator run: "
            hint += _command(pool, "jobs_waiting", str(pool.waiting + count))
            return Rejected(token, "not-allowed", what, "members of arrays and gangs count each", hint)
    return None


def boost_refusal(state: GridState, token: int) -> Rejected | None:
    """The rejection of any boost where the grid's mode allows none."""
    if state.policy.balancing.mode is not OffloadingMode.OFFLOAD_ONLY:
        return None
    order = state.balancing.order
    whose = f"order of {order.by}" if order.mode is not None else "resource_sharing.mode"
    what, why = "boosts are refused in this grid", f"its mode is {OffloadingMode.OFFLOAD_ONLY} ({whose})"
    hint = f"an operator may run: grid policy set --mode {OffloadingMode.SHARE_AND_OFFLOAD}"
    return Rejected(token, "boosts-refused", what, why, hint)


def extension_refusal(state: GridState, token: int, job: Job, limit: float) -> Rejected | None:
    """The rejection of a longer time limit of a boost that a quota of hours does not allow; None: it may have that."""
    if (refused := boost_refusal(state, token)) is not None:
        return refused
    allocation = state.allocations.get(job.allocation)
    if allocation is None:
        return refusal(state, token, replace(job, spec=replace(job.spec, time_limit=limit)))
    begin = ends(state, allocation, state.now)
    ask, end = Ask(job.request, limit, FIRST), begin + limit - job.spec.time_limit
    pools = (pool for pool in state.quotas.pools(job) if pool.by_day)
    found = next(filter(None, (_over_hours(state, pool, ask, begin, end) for pool in pools)), None)
    if found is None:
        return None
    text = reason(state, found).text
    more = limit_words(found.limit, found.has + found.wants)
    hint = f"have an operator run: {_command(found.pool, found.limit, more)}"
    return Rejected(token, "not-allowed", f"{job.id} cannot be extended so far", text, hint)


# --- changes by operators ---------------------------------------------------------------------------------------------


def set_rights(state: GridState, event: RightsSet) -> None:
    """Set or take back rights that an operator grants."""
    quotas, key = state.quotas, key_of(event.whose, event.name)
    if event.whose is Whose.GROUP and event.name not in quotas.rules.groups:
        known = sorted(quotas.rules.groups)
        why = f"the groups are {listed(known[:NAMED], NAMED, len(known))}" if known else "there are none"
        hint = "groups and their members are in the coordinator's configuration: rights.groups"
        state.out.append(Rejected(event.token, "bad-value", f"there is no group {event.name!r}", why, hint))
        return
    granted = event.rights.over(quotas.granted.get(key, NO_RIGHTS)) if event.rights is not None else None
    take_up(state, key, granted)
    quotas.rebuild(state.jobs, state.holders(), state.inside_holds())
    state.out.append(RecordRights(key, granted))
    now = quotas.rights_of(event.whose, event.name)
    who = {Whose.USER: event.name, Whose.GROUP: f"group {event.name}"}.get(event.whose, "the default")
    back = " by the configuration again" if granted is None else ""
    state.out.append(Granted(event.token, f"{who} has{back}: {now.words() or 'nothing of its own'}"))


def take_up(state: GridState, key: str, granted: Rights | None) -> None:
    """Store the rights granted to a user, group or everybody; None: remove them."""
    if granted is None:
        state.quotas.granted.pop(key, None)
    else:
        state.quotas.granted[key] = granted


# --- views ------------------------------------------------------------------------------------------------------------


def quotas(state: GridState, user: str, operator: bool, everybody: bool = False) -> tuple[Quota, ...]:
    """Return the rights in force, as an `operator` or a client sees them: those of one user and the user's groups. With
    `everybody` also the default, and those of all users who have jobs or are named."""
    rules, granted = state.quotas.rules, state.quotas.granted
    default = Quota(whose=Whose.DEFAULT, name="", rights=state.quotas.rights_of(Whose.DEFAULT), holds=NOTHING)
    jobs: dict[tuple[str, bool], list[Job]] = {}
    for job in state.jobs.values():
        if everybody or job.user == user:
            jobs.setdefault((job.user, job.by_operator), []).append(job)
    groups: Iterable[str]
    if not everybody:
        users, groups = set(jobs) if operator else set(), state.quotas.groups_of(user)
        if operator:  # an operator whose jobs are over is no client of that name
            users |= {(user, side) for side in (False, True) if pool_of(user, side) in state.quotas.spent}
        users = users or {(user, False)}
    else:
        named = {key.partition("/")[2] for key in granted if key.startswith(f"{Whose.USER}/")}
        users = {(user, operator), *jobs}
        users |= {(name, False) for name in (*rules.users, *named)}
        groups = sorted(rules.groups)
    found = [_of_user(state, *whom, jobs.get(whom, ())) for whom in sorted(users)]
    return (*[default] * everybody, *found, *(_of_group(state, name) for name in groups))


def _of_user(state: GridState, user: str, operator: bool, jobs: Collection[Job]) -> Quota:
    rights = state.quotas.in_force(user, operator)  # which makes the pool of who has no job since a restart
    pool = state.quotas.pool(pool_of(user, operator))
    if pool is not None:
        return _counted(
            state, pool, Quota(whose=Whose.USER, name=user, rights=rights, holds=Resources(), operator=operator)
        )
    held = [allocation for job in jobs if (allocation := state.allocations.get(job.allocation)) is not None]
    total = sum((one.grant.resources for one in held), Resources())
    waiting = len(jobs) - len(held)
    return Quota(whose=Whose.USER, name=user, rights=rights, holds=capped(total), waiting=waiting, operator=operator)


def _of_group(state: GridState, name: str) -> Quota:
    for member in state.quotas.rules.groups[name].members:
        state.quotas.allowed(member, False)
    rights = state.quotas.rights_of(Whose.GROUP, name)
    members = state.quotas.rules.groups[name].members
    view = Quota(whose=Whose.GROUP, name=name, rights=rights, holds=Resources(), members=members)
    pool = state.quotas.pool(key_of(Whose.GROUP, name))
    return _counted(state, pool, view) if pool is not None else view


def _counted(state: GridState, pool: Pool, view: Quota) -> Quota:
    return replace(
        view,
        holds=capped(pool.held),
        core_hours=_used(state, pool, "cpu", 0) // HOUR if pool.by_day else 0,
        gpu_hours=_used(state, pool, "gpu", 0) // HOUR if pool.by_day else 0,
        waiting=pool.waiting,
    )
