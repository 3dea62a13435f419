"""The life of gangs: groups whose members run as one, each on a node of its own.

The first member stands in the queue for all of them, and all are granted in one pass or none is. A member whose part is
over, while others still have theirs, waits beside the queue with what came of it. When the last part is over the whole
is decided at once: its members end, or all of them wait again. So no member of one attempt ever runs beside one of
another, and whatever is decided is on disk in one transaction.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from distributed_grid.coordinator.core.explain.feasible import can_fit
from distributed_grid.coordinator.core.lifecycle import granting, oom, outcomes, retries, stopping
from distributed_grid.coordinator.core.model import Allocation, Job, Placement, RecordAllocation
from distributed_grid.coordinator.core.placement.gangs import meeting
from distributed_grid.coordinator.core.records import Fate, Part
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.groups import Gang
from distributed_grid.protocol.jobs import Cause, Outcome, Reason, Request, RetryOn, State
from distributed_grid.protocol.nodes import NodeState

ORIGINS = (Fate.NEVER_BEGAN, Fate.TAKEN_BACK, Fate.TO_RETRY, Fate.FAILED)
"""Ends that end a gang. The others are no reason to, or what followed from it."""


def members(state: GridState, job: Job) -> list[Job]:
    """All members of a job's gang by their rank: none of them ends before all do."""
    return [state.jobs[name] for name in state.groups[job.group].live]


def leads(job: Job) -> bool:
    """Whether this member stands in the queue for its gang."""
    return job.index == 0


# --- beginning --------------------------------------------------------------------------------------------------------


def meet(state: GridState, leader: Job, nodes: Sequence[str]) -> tuple[Gang, ...] | None:
    """What each member is told if they start on these nodes now; None: there is no port left for them to meet at."""
    facts = [state.nodes[name].facts for name in nodes]
    return meeting(f"{leader.id}.{leader.tries + 1}", facts, state.meetings, state.policy)


def start(state: GridState, leader: Job, found: Sequence[Placement], met: Sequence[Gang]) -> None:
    """Grant all members their places and have them launched."""
    for job, placement, part in zip(members(state, leader), found, met, strict=True):
        granting.start(state, job, placement, part)


# --- ending -----------------------------------------------------------------------------------------------------------


def part_over(
    state: GridState, job: Job, allocation: Allocation, outcome: Outcome | None, text: str, again: bool = True
) -> None:
    """The part of one member is over; without an `outcome` it never began, since its node would not have it. `again`:
    nothing of it is alive for sure."""
    mates = [mate for one in members(state, job) if (mate := state.allocations.get(one.allocation)) is not None]
    away = any(not _reached(state, mate) for mate in mates if mate is not allocation)
    told = retries.told(allocation, outcome) if outcome is not None else None
    fate = _fate(job, allocation, outcome) if again else Fate.UNSURE
    job.part, job.suspended = Part(state.now, fate, told, away), None
    allocation.outcome = outcome
    state.move(allocation, State.ENDED)
    state.move(job, State.WAITING, text)
    state.out.append(RecordAllocation(allocation))
    if len(mates) == 1:
        _decide(state, members(state, job))
        return
    if fate is not Fate.DONE:
        stopping.ask_gang(state, job, f"{job.id} of its gang: {text}", -1.0)
    state.waits_for(job, reason(state, job))
    state.changed(job)


def _reached(state: GridState, allocation: Allocation) -> bool:
    node = state.nodes[allocation.node]
    return node.state is NodeState.UP and node.synced


def _fate(job: Job, allocation: Allocation, outcome: Outcome | None) -> Fate:
    """What the end of a part means to its gang."""
    if outcome is None:
        return Fate.NEVER_BEGAN
    if outcome.cause is Cause.EXITED and outcome.code == 0:
        return Fate.DONE
    if retries.CLASSES.get(outcome.cause) is RetryOn.LOST:  # also where it had been told to end with the others
        return Fate.TO_RETRY if retries.listed(job, outcome) else Fate.FAILED
    if allocation.stop is not None and allocation.stop.cause == Cause.GANG.value:
        return Fate.ENDED
    if retries.was_taken_back(job, allocation, outcome):
        return Fate.TAKEN_BACK
    return Fate.TO_RETRY if retries.wanted(job, allocation, outcome) else Fate.FAILED


def waiting_over(state: GridState, job: Job, outcome: Outcome, text: str) -> None:
    """A member that holds nothing is to be over: cancelled, or never placed. So are all, once none of them holds
    anything."""
    whole = members(state, job)
    if not any(one.allocation in state.allocations for one in whole):
        for one in whole:  # of which some may have begun before, in vain
            began = one.retried > 0 or one.taken_back > 0
            outcomes.conclude(state, one, replace(outcome, started=outcome.started or began), text=text)
    elif job.part is not None and job.part.fate not in (Fate.DONE, Fate.FAILED, Fate.UNSURE):
        began = job.part.outcome is not None and job.part.outcome.started
        job.part = Part(state.now, Fate.FAILED, replace(outcome, started=outcome.started or began))
        state.changed(job)


# --- the decision -----------------------------------------------------------------------------------------------------


def _decide(state: GridState, whole: list[Job]) -> None:
    """The last part is over."""
    first = _first(whole)
    parts = [one.part for one in whole if one.part is not None]
    cancelled = any(part.outcome is not None and part.outcome.cause is Cause.CANCELLED for part in parts)
    unsure = any(part.fate is Fate.UNSURE for part in parts)
    request = _next_request(state, first) if first is not None and not cancelled and not unsure else None
    if first is not None and first.part is not None and request is not None:
        _wait_again(state, whole, first, first.part.fate, request)
    else:
        for one in whole:
            outcomes.conclude(state, one, _outcome(one, first, cancelled))


def _next_request(state: GridState, first: Job) -> Request | None:
    """What all members ask for when they wait again, after this one's end; None: they do not."""
    part = first.part
    if part is None or part.fate is Fate.FAILED:
        return None
    if part.fate is not Fate.TO_RETRY or part.outcome is None:
        return first.request
    request = oom.next_request(state, first, part.outcome)
    return request if request is not None and can_fit(state, request) >= request.gang else None


def _first(whole: list[Job]) -> Job | None:
    """The member whose end ended the gang. One that never began comes before all, for what others made of that says
    nothing; and one whose node was lost before those that failed while that could not be reached."""
    found = [
        (part.fate is not Fate.NEVER_BEGAN, part.away, part.at, one.index, one)
        for one in whole
        if (part := one.part) is not None and part.fate in ORIGINS
    ]
    return min(found, key=lambda one: one[:4])[4] if found else None


def _outcome(job: Job, first: Job | None, cancelled: bool) -> Outcome:
    if job.part is not None and job.part.outcome is not None:
        return job.part.outcome
    cause = Cause.CANCELLED if cancelled else Cause.GANG
    because = f"{first.id} of its gang has ended" if first is not None else ""
    return Outcome(cause=cause, text=because, started=job.retried > 0 or job.taken_back > 0)


def _wait_again(state: GridState, whole: list[Job], first: Job, fate: Fate, request: Request) -> None:
    """All of them, with the age of the first."""
    again = f"; to be run again{oom.with_more(first.request, request)} ({first.retried + 1} of {request.retries})"
    text = f"its gang waits again, since {first.id} {_WORDS[fate]}{again if fate is Fate.TO_RETRY else ''}"
    for one in whole:
        part, one.part = one.part, None
        one.retried += fate is Fate.TO_RETRY
        began = part is not None and part.outcome is not None and part.outcome.started
        one.taken_back += fate is not Fate.TO_RETRY and began
        one.node, one.grant, one.started, one.suspended_for = "", None, 0.0, 0.0
        state.waits_for(one, None)
        one.request = request
        state.tell(one, text)
        if leads(one):
            state.enqueue(one)
        state.changed(one)


_WORDS = {
    Fate.NEVER_BEGAN: "could not begin",
    Fate.TAKEN_BACK: "lost its place",
    Fate.TO_RETRY: "has ended",
}


# --- words and checks -------------------------------------------------------------------------------------------------


def reason(state: GridState, job: Job) -> Reason:
    """Why a member waits that is not in the queue."""
    whole = members(state, job)
    if job.part is not None:
        left = sum(one.allocation in state.allocations for one in whole)
        return Reason("Gang", f"its part is over; {left} of the {len(whole)} of its gang go{'es' * (left == 1)} on")
    leader = whole[0]
    told = state.queue.line(leader.id).reason if leader.id in state.queue else leader.reason
    return told or Reason("Gang", f"it waits with {leader.id}, the first of its gang")


def check(state: GridState, whole: list[Job], count: int) -> None:
    """Raise AssertionError where a gang is not as one."""
    name = whole[0].group
    assert [one.index for one in whole] == list(range(count)), f"members of the gang {name} are gone before the others"
    assert len({one.tries for one in whole}) == 1, f"members of the gang {name} are at different attempts"
    holding = [one for one in whole if one.allocation in state.allocations]
    assert not any(one.kept is not None for one in whole[1:]), f"not the first of the gang {name} has its places kept"
    if not holding:
        assert all(one.part is None for one in whole), f"the gang {name} is over, and nothing was decided"
        return
    assert whole[0].kept is None, f"the gang {name} holds something, and places are kept for it"
    nodes = {one.node for one in holding}
    assert len(nodes) == len(holding), f"two members of the gang {name} are on one node"
    assert not any(one.id in state.queue for one in whole), f"the gang {name} is in the queue and holds something"
    for one in whole:
        assert (one.part is None) == (one in holding), f"{one.id} holds something and is over, or neither"
    broken = any(one.part is not None and one.part.fate is not Fate.DONE for one in whole)
    for one in holding:
        asked = state.allocations[one.allocation].stop
        assert asked is not None or not broken, f"{one.id} goes on, though a part of its gang is over"
