"""What has to happen before a job, or a whole array, is let into the queue: other jobs have started or ended, and a
time has come. Who waits for that is not in the queue and costs a pass nothing; whom an end or a start concerns is found
by its id, so it costs what it changes.

A condition that is met is taken off the record of who waits in the same transaction as what met it. So what is left of
them after a restart is what has not happened yet.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from distributed_grid.coordinator.core import groups
from distributed_grid.coordinator.core.conditions import Condition, End
from distributed_grid.coordinator.core.model import Group, Job, RecordGroup, RecordJob
from distributed_grid.protocol.after import After
from distributed_grid.protocol.jobs import Cause, Outcome, Reason, State

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

ENDS_KEPT = 4096
"""Ends that are remembered here, until the shell is sure to find them on disk."""
_SAYS = {After.STARTED: "to start", After.OK: "to exit with 0", After.ENDED: "to end"}


@dataclass(slots=True)
class Held:
    """Who is held back. A waiter is a job, or a group as a whole."""

    unmet: dict[str, dict[Condition, None]] = field(default_factory=dict)
    """The conditions of each waiter that are not met; none are left where only a time is waited for."""
    on: dict[After, dict[str, dict[str, Condition]]] = field(default_factory=lambda: {kind: {} for kind in After})
    """By what is waited for and its id: who waits, by which of its conditions."""
    unstarted: dict[str, set[str]] = field(default_factory=dict)
    """Of the groups whose start is waited for, the members that have not."""
    ends: dict[str, End] = field(default_factory=dict)
    """How those ended that did last."""
    new: list[str] = field(default_factory=list)
    """Waiters that were not looked at yet."""
    begun: list[Job] = field(default_factory=list)
    """Jobs that have just started, where that may be waited for."""
    over: list[Group] = field(default_factory=list)
    """Groups that have just ended."""
    roots: dict[str, str] = field(default_factory=dict)
    """What those that failed by their dependencies failed by at first, until their own end is followed."""


def is_held(ledger: "Ledger", job: Job) -> bool:
    """Whether a job waits and is not in the queue: for its dependencies, a time, or its turn in its array."""
    return job.state is State.WAITING and job.id not in ledger.queue and job.kept is None


def hold(ledger: "Ledger", waiter: Job | Group) -> None:
    """Someone new, or taken up after a restart, waits for something: it is looked at after the event."""
    ledger.held.unmet[waiter.id] = {}
    ledger.held.new.append(waiter.id)


def forget(ledger: "Ledger", name: str) -> None:
    """This waiter is held no more."""
    held = ledger.held
    for condition in held.unmet.pop(name, ()):
        if (waiters := held.on[condition.kind].get(condition.on)) is not None:
            waiters.pop(name, None)
            if not waiters:
                del held.on[condition.kind][condition.on]
                if condition.kind is After.STARTED:
                    held.unstarted.pop(condition.on, None)


# --- what happens -----------------------------------------------------------------------------------------------------


def look(ledger: "Ledger", name: str) -> None:
    """Look at a new waiter: which of its conditions are met, and can all of them be?"""
    if (waiter := _waiter(ledger, name)) is None or name not in ledger.held.unmet:
        return
    unmet = []
    for condition in waiter.after:
        verdict = _judge(ledger, condition)
        if isinstance(verdict, End):
            _fail(ledger, waiter, condition, verdict)
            return
        if not verdict:
            unmet.append(condition)
    _set(ledger, waiter, tuple(unmet))
    for condition in unmet:
        ledger.held.on[condition.kind].setdefault(condition.on, {})[name] = condition
    if waiter.begin > ledger.now:
        ledger.deadlines.arm("begin", name, waiter.begin)
    _let_go(ledger, waiter)
    if isinstance(waiter, Job) and name in ledger.held.unmet:
        waiter.reason = reason(ledger, waiter)
        ledger.publish(waiter)


def begin_due(ledger: "Ledger", name: str) -> None:
    """The time may have come at which this waiter may begin."""
    waiter = _waiter(ledger, name)
    if waiter is None or name not in ledger.held.unmet:
        return
    if waiter.begin > ledger.now:
        ledger.deadlines.arm("begin", name, waiter.begin)
    else:
        _let_go(ledger, waiter)


def started(ledger: "Ledger", job: Job) -> None:
    """A job has started to run."""
    job.begun = True
    if ledger.held.on[After.STARTED]:
        ledger.held.begun.append(job)


def follow_start(ledger: "Ledger", job: Job) -> None:
    """What follows from a start."""
    _settle(ledger, After.STARTED, job.id, None)
    if job.group in ledger.held.unstarted:
        _has_started(ledger, job)


def follow_end(ledger: "Ledger", job: Job) -> None:
    """What follows from the end of a job for those that wait for it, or for its group."""
    outcome = job.outcome
    assert outcome is not None
    held = ledger.held
    if job.id in held.unmet:
        forget(ledger, job.id)
    root = held.roots.pop(job.id, "")
    ok = outcome.cause is Cause.EXITED and outcome.code == 0
    end = End(ok, outcome.started or groups.has_begun(job), end_words(outcome), root)
    if not job.group:  # a member's is found by its group
        remember(ledger, job.id, end)
    _settle_all(ledger, job.id, end)
    if not job.group:
        return
    if not ok and held.on[After.OK].get(job.group):
        _settle(ledger, After.OK, job.group, End(False, True, f"has failed: {job.id} {end.text}", root))
    if job.group in held.unstarted:
        if end.started:
            _has_started(ledger, job)
        else:
            end = End(False, False, f"cannot start whole: {job.id} {end.text}", root)
            _settle(ledger, After.STARTED, job.group, end)


def follow_group(ledger: "Ledger", group: Group) -> None:
    """What follows from the end of a whole group."""
    if group.id in ledger.held.unmet:
        forget(ledger, group.id)
    end = group_end(group)
    remember(ledger, group.id, end)
    _settle_all(ledger, group.id, end)


def remember(ledger: "Ledger", name: str, end: End) -> None:
    """Keep an end for those that are about to ask for it."""
    ends = ledger.held.ends
    ends[name] = end
    if len(ends) > ENDS_KEPT:
        del ends[next(iter(ends))]


def resume(ledger: "Ledger", waiters: list[str], ends: dict[str, End]) -> None:
    """Hold these again, of a ledger that is made of a checkpoint."""
    held = ledger.held
    held.ends = ends
    for name in waiters:
        waiter = _waiter(ledger, name)
        assert waiter is not None
        held.unmet[name] = dict.fromkeys(waiter.after)
        for condition in waiter.after:
            held.on[condition.kind].setdefault(condition.on, {})[name] = condition
            if condition.kind is After.STARTED and (members := ledger.groups.get(condition.on)) is not None:
                held.unstarted[condition.on] = {one for one in members.live if not groups.has_begun(ledger.jobs[one])}


# --- ends in words ----------------------------------------------------------------------------------------------------


def group_end(group: Group) -> End:
    """How a group ended."""
    bad = group.failed + group.cancelled
    return End(not bad, not group.never, f"has {bad} of {group.count} that did not exit with 0" if bad else "")


def end_words(outcome: Outcome) -> str:
    """How a job ended, behind its name."""
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


def reason(ledger: "Ledger", job: Job) -> Reason:
    """Why a job is held."""
    waiter: Job | Group = ledger.groups[job.group].group if job.group else job
    unmet = ledger.held.unmet.get(waiter.id)
    if unmet is None:
        return groups.reason(ledger, job)
    if unmet:
        first = next(iter(unmet))
        more = f", and {len(unmet) - 1} more" if len(unmet) > 1 else ""
        return Reason("Dependency", f"waits for {_label(first)} {_SAYS[first.kind]}{more}")
    return Reason("Begin", f"is to begin in {max(0.0, waiter.begin - ledger.now):.0f} s")


def _label(condition: Condition) -> str:
    return f"{condition.on} ({condition.name})" if condition.name else condition.on


# --- within -----------------------------------------------------------------------------------------------------------


def _waiter(ledger: "Ledger", name: str) -> Job | Group | None:
    members = ledger.groups.get(name)
    return members.group if members is not None else ledger.jobs.get(name)


def _judge(ledger: "Ledger", condition: Condition) -> bool | End:
    """Whether it is met; the end by which it can never be."""
    end = condition.end or ledger.held.ends.get(condition.on)
    if (job := ledger.jobs.get(condition.on)) is not None:
        return condition.kind is After.STARTED and groups.has_begun(job)
    if (members := ledger.groups.get(condition.on)) is not None:
        so_far = group_end(members.group)
        if condition.kind is After.ENDED:
            return False
        if condition.kind is After.OK:
            return False if so_far.ok else so_far
        if not so_far.started:
            return so_far
        unstarted = {name for name in members.live if not groups.has_begun(ledger.jobs[name])}
        if unstarted:
            ledger.held.unstarted[condition.on] = unstarted
        return not unstarted
    if end is None:
        return End(False, False, "is not known any more")
    return _meets(condition.kind, end) or end


def _meets(kind: After, end: End) -> bool:
    return kind is After.ENDED or (end.ok if kind is After.OK else end.started)


def _settle_all(ledger: "Ledger", name: str, end: End) -> None:
    for kind, waited_for in ledger.held.on.items():
        if name in waited_for:
            _settle(ledger, kind, name, None if _meets(kind, end) else end)


def _settle(ledger: "Ledger", kind: After, name: str, bad: End | None) -> None:
    """What so many waited for has come, or (`bad`) never will."""
    if kind is After.STARTED:
        ledger.held.unstarted.pop(name, None)
    for who, condition in ledger.held.on[kind].pop(name, {}).items():
        waiter = _waiter(ledger, who)
        if waiter is None or condition not in ledger.held.unmet.get(who, ()):
            continue
        if bad is not None:
            _fail(ledger, waiter, condition, bad)
            continue
        _set(ledger, waiter, tuple(one for one in waiter.after if one != condition))
        _let_go(ledger, waiter)
        if isinstance(waiter, Job) and who in ledger.held.unmet:
            waiter.reason = reason(ledger, waiter)
            ledger.publish(waiter)


def _has_started(ledger: "Ledger", member: Job) -> None:
    unstarted = ledger.held.unstarted[member.group]
    unstarted.discard(member.id)
    if not unstarted:
        _settle(ledger, After.STARTED, member.group, None)


def _set(ledger: "Ledger", waiter: Job | Group, unmet: tuple[Condition, ...]) -> None:
    """From now on these are its conditions."""
    ledger.held.unmet[waiter.id] = dict.fromkeys(unmet)
    if waiter.after == unmet:
        return
    waiter.after = unmet
    ledger.out.append(RecordGroup(waiter) if isinstance(waiter, Group) else RecordJob(waiter, soon=True))


def _let_go(ledger: "Ledger", waiter: Job | Group) -> None:
    if ledger.held.unmet[waiter.id] or waiter.begin > ledger.now:
        return
    del ledger.held.unmet[waiter.id]
    if isinstance(waiter, Group):
        groups.let_go(ledger, ledger.groups[waiter.id])
    else:
        waiter.reason = None
        ledger.wait(waiter)


def _fail(ledger: "Ledger", waiter: Job | Group, condition: Condition, end: End) -> None:
    """It can never run: it ends, and says by whom."""
    text = f"{_label(condition)} was not run, since {end.root}" if end.root else f"{_label(condition)} {end.text}"
    root = end.root or text
    forget(ledger, waiter.id)
    outcome = Outcome(cause=Cause.DEPENDENCY_FAILED, text=text, started=False)
    if isinstance(waiter, Group):
        members = ledger.groups[waiter.id]
        members.ending = True
        jobs = [ledger.jobs[name] for name in members.live]
    else:
        jobs = [waiter]
    for job in jobs:
        ledger.held.roots[job.id] = root
        ledger.conclude(job, outcome)
