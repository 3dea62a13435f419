"""Dependencies and begin times: a job or whole array is held back from the queue until other jobs have started or
ended, and its begin time has come. Jobs that are held back cost a pass nothing, and an event costs only the dependents
that it affects.

A met condition is removed from the dependent's record in the same transaction as the event that met it, so the
conditions that are left after a restart are the unmet ones.
"""

from distributed_grid.coordinator.core.commands import RecordGroup, RecordJob
from distributed_grid.coordinator.core.lifecycle import outcomes
from distributed_grid.coordinator.core.model import Condition, End, Group, HeldBack, Job
from distributed_grid.coordinator.core.queue import groups
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import After, Cause, Outcome, Reason
from distributed_grid.protocol.text import clock, format_duration

ENDS_KEPT = 4096
"""Number of ends kept in memory; older ones are on disk for sure, where the shell finds them."""
_SAYS = {After.STARTED: "to start", After.OK: "to exit with 0", After.ENDED: "to end"}


def forget(state: GridState, name: str) -> None:
    """Remove a waiter."""
    known = state.dependencies
    for condition in known.unmet.pop(name, ()):
        if (waiters := known.on[condition.kind].get(condition.on)) is not None:
            waiters.pop(name, None)
            if not waiters:
                del known.on[condition.kind][condition.on]
                if condition.kind is After.STARTED:
                    known.unstarted.pop(condition.on, None)


# --- what happens -----------------------------------------------------------------------------------------------------


def evaluate(state: GridState, name: str) -> None:
    """Evaluate the conditions of a new waiter; it fails if one can never be met."""
    if (waiter := _waiter(state, name)) is None or name not in state.dependencies.unmet:
        return
    unmet = []
    for condition in waiter.after:
        verdict = _judge(state, condition)
        if isinstance(verdict, End):
            _fail(state, waiter, condition, verdict)
            return
        if not verdict:
            unmet.append(condition)
    state.dependencies.unmet[name] = dict.fromkeys(unmet)
    _record(state, waiter, tuple(unmet))
    for condition in unmet:
        state.dependencies.on[condition.kind].setdefault(condition.on, {})[name] = condition
    if waiter.begin > state.now:
        state.deadlines.arm("begin", name, waiter.begin)
    _let_go(state, waiter)
    if isinstance(waiter, Job) and name in state.dependencies.unmet:
        state.waits_for(waiter, reason(state, waiter))
        state.publish(waiter)


def begin_due(state: GridState, name: str) -> None:
    """Handle a begin time."""
    waiter = _waiter(state, name)
    if waiter is None or name not in state.dependencies.unmet:
        return
    if waiter.begin > state.now:
        state.deadlines.arm("begin", name, waiter.begin)
    else:
        _let_go(state, waiter)


def follow_start(state: GridState, job: Job) -> None:
    """Resolve the conditions on a job's start."""
    _settle(state, After.STARTED, job.id, None)
    if job.group in state.dependencies.unstarted:
        _has_started(state, job)


def follow_end(state: GridState, job: Job) -> None:
    """Resolve the conditions on the end of a job or its group."""
    outcome = job.outcome
    assert outcome is not None
    known = state.dependencies
    if job.id in known.unmet:
        forget(state, job.id)
    root = known.roots.pop(job.id, "")
    ok = outcome.cause is Cause.EXITED and outcome.code == 0
    end = End(ok, outcome.started or job.has_begun, end_words(outcome), root)
    if not job.group:  # a member's is found by its group
        remember(state, job.id, end)
    _settle_all(state, job.id, end)
    if not job.group:
        return
    if not ok and known.on[After.OK].get(job.group):
        _settle(state, After.OK, job.group, End(False, True, f"has failed: {job.id} {end.text}", root))
    if job.group in known.unstarted:
        if end.started:
            _has_started(state, job)
        else:
            end = End(False, False, f"cannot start whole: {job.id} {end.text}", root)
            _settle(state, After.STARTED, job.group, end)


def follow_group(state: GridState, group: Group) -> None:
    """Resolve the conditions on the end of a group."""
    if group.id in state.dependencies.unmet:
        forget(state, group.id)
    end = group_end(group)
    remember(state, group.id, end)
    _settle_all(state, group.id, end)


def remember(state: GridState, name: str, end: End) -> None:
    """Keep an end for dependents that are submitted later."""
    ends = state.dependencies.ends
    ends[name] = end
    if len(ends) > ENDS_KEPT:
        del ends[next(iter(ends))]


def resume(state: GridState, waiters: list[str], ends: dict[str, End]) -> None:
    """Restore the waiters from a checkpoint."""
    known = state.dependencies
    known.ends = ends
    for name in waiters:
        waiter = _waiter(state, name)
        assert waiter is not None
        known.unmet[name] = dict.fromkeys(waiter.after)
        for condition in known.unmet[name]:
            known.on[condition.kind].setdefault(condition.on, {})[name] = condition
            if condition.kind is not After.STARTED or condition.on in known.unstarted:
                continue
            if (members := state.groups.get(condition.on)) is not None:
                known.unstarted[condition.on] = {one for one in members.live if not state.jobs[one].has_begun}


# --- descriptions -----------------------------------------------------------------------------------------------------


def group_end(group: Group) -> End:
    """The end of a group, or what it is so far."""
    bad = group.failed + group.cancelled
    return End(not bad, not group.never, f"has {bad} of {group.count} that did not exit with 0" if bad else "")


def end_words(outcome: Outcome) -> str:
    """Predicate that follows a job's name: how it ended."""
    match outcome.cause:
        case Cause.EXITED:
            return f"exited with {outcome.code}"
        case Cause.SIGNALLED:
            return f"was killed by signal {outcome.signal}"
        case Cause.CANCELLED:
            return "was cancelled"
        case Cause.DEPENDENCY_FAILED:
            return "was not run"
        case _:
            return f"ended by {outcome.cause.replace('-', ' ')}"


def reason(state: GridState, job: Job) -> Reason:
    """Why a job is held back."""
    waiter: Job | Group = state.groups[job.group].group if job.group else job
    unmet = state.dependencies.unmet.get(waiter.id)
    if unmet is None:
        return groups.reason(state, job)
    if unmet:
        first = next(iter(unmet))
        more = f", and {len(unmet) - 1} more" if len(unmet) > 1 else ""
        return Reason("Dependency", f"waits for {_label(first)} {_SAYS[first.kind]}{more}")
    left = max(0.0, waiter.begin - state.now)
    return Reason("Begin", f"is to begin at {clock(waiter.begin, state.now)}, in {format_duration(left)}")


def _label(condition: Condition) -> str:
    return f"{condition.on} ({condition.name})" if condition.name else condition.on


# --- within -----------------------------------------------------------------------------------------------------------


def _waiter(state: GridState, name: str) -> Job | Group | None:
    members = state.groups.get(name)
    return members.group if members is not None else state.jobs.get(name)


def _judge(state: GridState, condition: Condition) -> bool | End:
    """Whether a condition is met, or the end because of which it can never be."""
    end = condition.end or state.dependencies.ends.get(condition.on)
    if (job := state.jobs.get(condition.on)) is not None:
        return condition.kind is After.STARTED and job.has_begun
    if (members := state.groups.get(condition.on)) is not None:
        so_far = group_end(members.group)
        if condition.kind is After.ENDED:
            return False
        if condition.kind is After.OK:
            return False if so_far.ok else so_far
        if not so_far.started:
            return so_far
        if condition.on in state.dependencies.on[After.STARTED]:  # what another one waits for is counted already
            return False
        unstarted = {name for name in members.live if not state.jobs[name].has_begun}
        if unstarted:
            state.dependencies.unstarted[condition.on] = unstarted
        return not unstarted
    if end is None:
        return End(False, False, "is not known any more")
    return _meets(condition.kind, end) or end


def _meets(kind: After, end: End) -> bool:
    return kind is After.ENDED or (end.ok if kind is After.OK else end.started)


def _settle_all(state: GridState, name: str, end: End) -> None:
    for kind, waited_for in state.dependencies.on.items():
        if name in waited_for:
            _settle(state, kind, name, None if _meets(kind, end) else end)


def _settle(state: GridState, kind: After, name: str, bad: End | None) -> None:
    """Resolve all conditions of this kind on this job or group: met, or (`bad`) never to be met."""
    if kind is After.STARTED:
        state.dependencies.unstarted.pop(name, None)
    for who, condition in state.dependencies.on[kind].pop(name, {}).items():
        waiter = _waiter(state, who)
        if waiter is None or condition not in state.dependencies.unmet.get(who, ()):
            continue
        if bad is not None:
            _fail(state, waiter, condition, bad)
            continue
        left = state.dependencies.unmet[who]
        del left[condition]
        _record(state, waiter, tuple(left))
        _let_go(state, waiter)
        if isinstance(waiter, Job) and who in state.dependencies.unmet:
            state.waits_for(waiter, reason(state, waiter))
            state.publish(waiter)


def _has_started(state: GridState, member: Job) -> None:
    unstarted = state.dependencies.unstarted[member.group]
    unstarted.discard(member.id)
    if not unstarted:
        _settle(state, After.STARTED, member.group, None)


def _record(state: GridState, waiter: Job | Group, unmet: tuple[Condition, ...]) -> None:
    """Set the unmet conditions in the record of a waiting job."""
    if len(waiter.after) == len(unmet):
        return
    if isinstance(waiter, Group):
        waiter.after = unmet
    else:
        state.become(waiter, HeldBack(after=unmet, reason=waiter.reason))
    state.out.append(RecordGroup(waiter) if isinstance(waiter, Group) else RecordJob(waiter, soon=True))


def _let_go(state: GridState, waiter: Job | Group) -> None:
    if state.dependencies.unmet[waiter.id] or waiter.begin > state.now:
        return
    del state.dependencies.unmet[waiter.id]
    if isinstance(waiter, Group):
        members = state.groups[waiter.id]
        for name in members.live:
            state.jobs[name].released = state.now
        groups.release(state, members)
    else:
        state.waits_for(waiter, None)
        waiter.released = waiter.released or state.now
        state.enqueue(waiter)


def _fail(state: GridState, waiter: Job | Group, condition: Condition, end: End) -> None:
    """End a waiter whose condition can never be met, naming the original failure."""
    text = f"{_label(condition)} was not run, since {end.root}" if end.root else f"{_label(condition)} {end.text}"
    root = end.root or text
    forget(state, waiter.id)
    outcome = Outcome(cause=Cause.DEPENDENCY_FAILED, text=text, started=False)
    if isinstance(waiter, Group):
        members = state.groups[waiter.id]
        members.ending = True
        jobs = [state.jobs[name] for name in members.live]
    else:
        jobs = [waiter]
    for job in jobs:
        state.dependencies.roots[job.id] = root
        outcomes.conclude(state, job, outcome)
