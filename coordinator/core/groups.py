"""Groups: many jobs of one submission. The members are made here, and the rules that go beyond a single job are here:
how many are let into the queue at once, when the rest is ended, and when the whole is over.

A member that was not let go yet waits and is not in the queue, so it costs a matching pass nothing.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from distributed_grid.coordinator.core import gangs, keys, stopping
from distributed_grid.coordinator.core.model import Group, Job, RecordGroup, RecordJob
from distributed_grid.protocol.after import Dependency
from distributed_grid.protocol.groups import GroupKind, GroupView, indexes, member_id
from distributed_grid.protocol.jobs import Cause, JobSpec, Outcome, Reason, State

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


@dataclass(slots=True)
class Members:
    """A group that lives. `pending` are those that were not let go yet, in the order of their indexes (those that have
    ended meanwhile are still in it), `active` how many were and have not ended."""

    group: Group
    live: dict[str, None] = field(default_factory=dict)
    pending: deque[str] = field(default_factory=deque)
    active: int = 0
    states: dict[State, int] = field(default_factory=dict)
    """How many of the live ones are in each state."""
    ending: bool = False
    """Too many have failed, and the others were told to end."""

    @property
    def most(self) -> int:
        """How many may be let go at once; 0: all."""
        return self.group.array.most if self.group.array is not None else 0

    def moved(self, before: State, after: State) -> None:
        """A member went from one state to another."""
        self.states[before] -= 1
        self.states[after] = self.states.get(after, 0) + 1


def take(ledger: "Ledger", group: Group, template: Job) -> None:
    """A new group, with all of its members."""
    members = ledger.groups[group.id] = Members(group)
    ledger.keys[(group.user, group.key)] = group.id
    ledger.out.append(RecordGroup(group, soon=False))
    assert group.array is not None
    for index in indexes(group.array.parts):
        name = member_id(group.id, index)
        job = Job(
            id=name,
            key=name,  # it was given by nobody: the group's is asked for
            user=group.user,
            spec=template.spec,
            request=template.request,
            submitted=template.submitted,
            story=[],
            group=group.id,
            index=index,
        )
        ledger.enter(job)
        ledger.tell(job, "submitted")
        ledger.out.append(RecordJob(job, new=True))
    let_go(ledger, members)


def begin(ledger: "Ledger", group: Group) -> None:
    """Take up a group that was on disk; its members that live are entered next, in the order of their indexes."""
    ledger.groups[group.id] = Members(group)
    ledger.keys[(group.user, group.key)] = group.id


def enter(ledger: "Ledger", job: Job) -> None:
    """Put a member into the ledger."""
    members = ledger.groups[job.group]
    members.live[job.id] = None
    members.states[job.state] = members.states.get(job.state, 0) + 1
    if job.request.gang:
        if gangs.leads(job) and job.state is State.WAITING and job.part is None:
            members.pending.append(job.id)
        return
    if job.state is State.WAITING and not job.tries and job.kept is None:
        members.pending.append(job.id)
        return
    members.active += 1
    if job.state is State.WAITING:  # again
        ledger.wait(job)


def go_on(ledger: "Ledger") -> None:
    """All members were entered: let go those that may be."""
    for members in ledger.groups.values():
        let_go(ledger, members)


def let_go(ledger: "Ledger", members: Members) -> None:
    """Put into the queue as many members as may be there."""
    if members.group.id in ledger.held.unmet:
        return
    while members.pending and (not members.most or members.active < members.most):
        job = ledger.jobs.get(members.pending.popleft())
        if job is not None:
            members.active += not job.request.gang
            job.reason = None
            ledger.wait(job)


def has_begun(job: Job) -> bool:
    """Whether it has ever started to run."""
    return job.begun or job.started > 0


def reason(ledger: "Ledger", job: Job) -> Reason:
    """Why a member waits that is not in the queue."""
    if job.request.gang:
        return gangs.reason(ledger, job)
    members = ledger.groups[job.group]
    return Reason("ArrayLimit", f"{members.active} of its array are at work, and at most {members.most} may be at once")


def gone(ledger: "Ledger", job: Job, active: bool) -> None:
    """A member has ended; `active`: it had been let go."""
    members = ledger.groups[job.group]
    group, outcome = members.group, job.outcome
    assert outcome is not None
    members.active -= active and not job.request.gang
    del members.live[job.id]
    if outcome.cause is not Cause.EXITED or outcome.code:
        if outcome.cause is Cause.CANCELLED:
            group.cancelled += 1
        else:
            group.failed += 1
        group.never += not outcome.started and not has_begun(job)
        ledger.out.append(RecordGroup(group))
    if not members.live:
        group.ended = ledger.now
        del ledger.groups[group.id]
        keys.put_by(ledger, group.user, group.key)
        ledger.held.over.append(group)
        ledger.out.append(RecordGroup(group))


def follow(ledger: "Ledger", job: Job) -> None:
    """What the end of a member means to the others: the next is let go, or the rest is ended."""
    members = ledger.groups.get(job.group)
    if members is None:
        return
    array, failed = members.group.array, members.group.failed
    if array is not None and 0 <= array.max_fails < failed:
        if members.ending:
            return
        members.ending = True
        text = f"{failed} of its array have failed, and --max-fails is {array.max_fails}"
        for name in list(members.live):
            end(ledger, ledger.jobs[name], text, -1.0)
    else:
        let_go(ledger, members)


def end(ledger: "Ledger", job: Job, text: str, grace: float) -> None:
    """Have a job end, as its owner's cancel does; `grace` below zero: its own."""
    allocation = ledger.allocations.get(job.allocation)
    if job.state is State.WAITING or allocation is None:
        # An attempt before may have run: then nobody is told that it never did.
        ledger.finish(job, Outcome(cause=Cause.CANCELLED, text=text, started=job.retried > 0 or job.taken_back > 0))
    else:
        stopping.ask(ledger, allocation, Cause.CANCELLED, text, job.spec.grace if grace < 0 else grace)


def spec_of(ledger: "Ledger", job: Job) -> JobSpec:
    """What a job is started with: a member is told which it is."""
    if not job.group:
        return job.spec
    group = ledger.groups[job.group].group
    if group.kind is GroupKind.GANG:
        return msgspec.structs.replace(job.spec, env={**job.spec.env, "GRID_GANG_ID": group.id})
    mine = {
        "GRID_ARRAY_ID": group.id,
        "GRID_ARRAY_INDEX": str(job.index),
        "GRID_ARRAY_COUNT": str(group.count),
    }
    return msgspec.structs.replace(job.spec, env={**job.spec.env, **mine})


def dependencies_of(waiter: Job | Group) -> tuple[Dependency, ...]:
    """What it waits for still."""
    return tuple(Dependency(condition.on, condition.kind) for condition in waiter.after) if waiter.after else ()


def view(group: Group, states: dict[State, int], why: Reason | None = None) -> GroupView:
    """A group as clients see it."""
    counted = {state.value: number for state, number in states.items() if number and state is not State.ENDED}
    if over := group.count - sum(counted.values()):
        counted[State.ENDED.value] = over
    return GroupView(
        id=group.id,
        user=group.user,
        kind=group.kind,
        spec=group.spec,
        request=group.request,
        submitted=group.submitted,
        count=group.count,
        array=group.array,
        states=counted,
        failed=group.failed,
        cancelled=group.cancelled,
        ended=group.ended,
        reason=why,
        after=dependencies_of(group),
        begin=group.begin,
    )
