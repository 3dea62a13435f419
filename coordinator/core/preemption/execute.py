"""Executes preemptions: victims are told to stop, the resources they free are earmarked for the preemptor, and it
starts on them; or the preemption is cancelled, and the victims get their resources back first."""

import math
from itertools import islice

from distributed_grid.coordinator.core.commands import RecordReceipt
from distributed_grid.coordinator.core.data import HOUR
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lifecycle import attempts, outcomes
from distributed_grid.coordinator.core.model import Earmark, Earmarked, Job, Node
from distributed_grid.coordinator.core.preemption import earmarks
from distributed_grid.coordinator.core.preemption.candidates import end_of, views
from distributed_grid.coordinator.core.preemption.plan import NoPlan, Plan, gang_plan, plan
from distributed_grid.coordinator.core.queue import rights
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, Priority, Reason, Request, State
from distributed_grid.protocol.messages.operator import Place, Preemption, Receipt, Victim
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import counted

EVERY = 1.0
"""Interval between two plans for the same job (s)."""
JOBS = 16
"""Maximum number of urgent jobs considered in a pass."""
PLANS = 2
"""Maximum number of failed plans in a pass; with many candidates on thousands of nodes each takes 20 to 30 ms."""


# --- looking for victims -------------------------------------------------------------------------------------------


def plan_preemptions(state: GridState) -> None:
    """After the scheduling pass: plan preemptions for the urgent jobs that still wait."""
    preempting = state.preempting
    if state.halted:
        return
    if not preempting.urgent:
        preempting.refusals.clear()
        return
    refused: dict[tuple[Request, float], NoPlan] = {}
    later = 0.0
    served = (name for name in preempting.urgent if name not in state.queue or not state.queue.line(name).excluded)
    for name in list(islice(served, JOBS)):
        job = state.jobs.get(name)
        if job is None or name not in state.queue:
            del preempting.urgent[name]
            continue
        at = preempting.urgent[name]
        if not rights.admits(state, job):
            reasons.renew(state, state.queue.line(name))
            continue
        if at <= state.now:
            asked = job.request, _needs(state, name)
            if len(refused) == PLANS and asked not in refused:
                later = min(later or math.inf, state.now + EVERY / 4)
                continue
            found = refused.get(asked) or _plan(state, *asked, state.now)
            if isinstance(found, Plan) and job.request.gang and not _can_meet(state, job, found):
                found = NoPlan("no-port", "no preemption: no port is left where its gang could meet")
            if isinstance(found, Plan):
                del preempting.urgent[name]
                _open(state, job, found)
                continue
            refused[asked] = found
            _publish_reason(state, job, found)
            at = state.now + EVERY
            at = min(at, found.again or at)
            del preempting.urgent[name]  # to the end, so that all urgent jobs get their turn
            preempting.urgent[name] = at
        later = min(later or at, at)
    if later:
        state.deadlines.arm("preempt", "", later)
    elif not preempting.urgent:
        preempting.refusals.clear()


def _can_meet(state: GridState, job: Job, found: Plan) -> bool:
    return outcomes.gang_meeting(state, job, [place.node for place in found.places]) is not None


def due(state: GridState, name: str) -> None:
    """Wakes the ledger up; `plan_preemptions` runs after each scheduling pass."""


def _publish_reason(state: GridState, job: Job, found: NoPlan) -> None:
    preempting = state.preempting
    if preempting.refusals.get(job.request) != found.text:
        preempting.refusals[job.request] = found.text
        reasons.renew(state, state.queue.line(job.id))


def _needs(state: GridState, job: str) -> float:
    """Return how long a waiting job may need a machine (s; 0: no machine ends, or it does not matter)."""
    if not state.scaling.joined:
        return 0.0
    from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

    return lives.needs(state, state.queue.line(job))


def _plan(state: GridState, request: Request, needs: float, now: float) -> Plan | NoPlan:
    """Return the cheapest plan, as `places_for` does: machines that end within `needs` seconds are left out, as long as
    others are possible or another machine may come."""
    if not state.scaling.joined or not needs:
        return _plan_but(state, request, now)
    from distributed_grid.coordinator.core.scaling import lives  # only where there are machines

    late = lives.ending(state, request, needs, now)
    found = _plan_but(state, request, now, late)
    if not late or isinstance(found, Plan) or lives.may_come(state, request, needs, now):
        return found
    return _plan_but(state, request, now)


def _plan_but(state: GridState, request: Request, now: float, without: frozenset[str] = frozenset()) -> Plan | NoPlan:
    make = gang_plan if request.gang else plan
    return make(views(state, request, now, without), request, state.policy.preempting, spent(state, now))


def foresee(
    state: GridState, request: Request, needs: float, why: Reason, now: float
) -> tuple[Reason, Preemption | None]:
    """Return the reason `why` a request has to wait, amended with what a preemption would do, and that preemption
    (None: there would be none). The request is not submitted. `needs`: how long it may run (s; 0: unlimited); `state`:
    as the next pass would see it (`scheduler.next_pass`). Read-only."""
    if request.priority is not Priority.URGENT or request.immediate or state.halted:
        return why, None
    found = _plan(state, request, needs, now)
    if isinstance(found, NoPlan):
        return Reason(why.code, f"{why.text}; {found.text}"), None
    within = _ends(state, found, now) - now
    lost = f"{found.lost:.0f} core-seconds would be lost"
    on = ", ".join(place.node for place in found.places)
    text = f"it would start on {on} once {_jobs(len(found.victims))} given way, within {within:g} s; {lost}"
    would = Preemption(
        node=found.node,
        grant=found.grant,
        victims=found.victims,
        lost=found.lost,
        within=within,
        alternatives=found.alternatives,
        more=found.more,
    )
    return Reason("Preempts", text), would


def spent(state: GridState, now: float) -> float:
    """Core-seconds lost by preemption within the last hour."""
    total = 0.0
    for at, lost in state.preempting.spent:
        if at > now - HOUR:
            total += lost
    return total


def _grace(state: GridState, victim: Victim) -> float:
    """Seconds between the SIGTERM and the SIGKILL of a victim."""
    policy = state.policy.preempting
    return min(policy.grace_most, policy.notice + state.jobs[victim.job].spec.grace)


def _ends(state: GridState, found: Plan, now: float) -> float:
    """Return when the last of the allocations that a plan waits for has ended, if it is executed now."""
    held = (one for place in found.places for one in state.nodes[place.node].allocations.values())
    others = [end_of(state, one, now) for one in held if one.state is State.STOPPING]
    return max(now, *others, *(now + _grace(state, victim) for victim in found.victims))


def _jobs(count: int) -> str:
    return f"{counted(count, 'job')} {'has' if count == 1 else 'have'}"


# --- executing a plan ----------------------------------------------------------------------------------------------


def _open(state: GridState, job: Job, found: Plan) -> None:
    """Stop the victims and earmark what they free for the job."""
    preempting, policy = state.preempting, state.policy.preempting
    job.plans += 1
    receipt = Receipt(
        id=f"{job.id}.p{job.plans}",
        job=job.id,
        user=job.user,
        priority=job.request.priority,
        wanted=job.request.resources,
        node=found.node,
        grant=found.grant,
        at=state.now,
        victims=found.victims,
        lost=found.lost,
        why=f"needs {job.request.resources}{_each(job.request)}, which nobody had free; least is lost by these",
        alternatives=found.alternatives,
        more=found.more,
    )
    preempting.lose(found.lost, state.now)
    ends = _ends(state, found, state.now)
    for victim in found.victims:
        allocation, loser = state.allocations[victim.allocation], state.jobs[victim.job]
        preempting.preemptors[victim.allocation] = job.id
        for one in outcomes.gang_members(state, loser) if loser.request.gang else (loser,):
            one.preempted_by = job.id
        words = f"gives way to {job.id} ({job.request.priority.word}, {job.user})"
        attempts.request_stop(state, allocation, Cause.PREEMPTED, words, _grace(state, victim))
    earmarks.keep(state, job, Earmark(found.node, found.grant, ends + policy.hold, receipt, ends, found.more))
    state.out.append(RecordReceipt(receipt))
    on = ", ".join(dict.fromkeys(victim.node or found.node for victim in found.victims))
    state.tell(job, f"{_jobs(len(found.victims))} to give way on {on}, {found.lost:.0f} core-seconds are lost")
    state.waits_for(job, earmarks.reason(job, state.now))
    state.changed(job)


def _each(request: Request) -> str:
    return f" on each of {request.gang} nodes" if request.gang else ""


def serve(state: GridState) -> None:
    """Start the jobs whose earmarked resources are all free now, before the scheduling pass. A job that cannot start on
    them returns them, perhaps to others that start at once."""
    returned = not state.halted
    while returned:
        returned = False
        for name in list(state.freed_nodes):
            for waiting in list(state.nodes[name].earmarks):
                job = state.jobs[waiting]
                if not isinstance(job.phase, Earmarked):
                    continue  # it was given back with another one's
                places = earmarks.whole(state, job, job.phase.earmark)
                returned = (places is not None and not _start(state, job, places)) or returned


def _start(state: GridState, job: Job, places: tuple[Place, ...]) -> bool:
    """Start a job, or all members of a gang, on the earmarked resources. False: it waits again."""
    meeting = outcomes.gang_meeting(state, job, [place.node for place in places]) if job.request.gang else ()
    if meeting is None:
        _wait_again(state, job, "no port is left where its gang could meet")
        return False
    earmarked = sum((place.grant.resources for place in earmarks.of(job).places), Resources())
    if not rights.allows_earmarked(state, job, earmarked):
        _wait_again(state, job, "a quota does not allow it any more")
        return False
    earmark = earmarks.drop(state, job)
    if earmark.receipt is not None:
        text = "" if places == earmark.places else "on another part of the node, since that had changed"
        earmarks.close(state, earmark.receipt, "started", text)
    if job.request.gang:
        outcomes.start_gang(state, job, [earmarks.placement(state, job, place) for place in places], meeting)
    else:
        attempts.start(state, job, earmarks.placement(state, job, places[0]))
    return True


# --- calling a preemption off --------------------------------------------------------------------------------------


def earmark_due(state: GridState, name: str) -> None:
    """Handle the timeout of an earmark."""
    job = state.jobs.get(name)
    if job is None or not isinstance(job.phase, Earmarked):
        return
    earmark = job.phase.earmark
    if state.now < earmark.until:
        state.deadlines.arm("earmark", name, earmark.until)
        return
    receipt = earmark.receipt
    stuck = [one.job for one in receipt.victims if one.allocation in state.allocations] if receipt else []
    words = f"{' and '.join(stuck[:3])} did not end" if stuck else "it did not become free as a whole"
    on = ", ".join(place.node for place in earmark.places)
    _wait_again(state, job, f"{words} on {on} in time")


def abandon(state: GridState, node: Node) -> None:
    """The node is disconnected: requeue the jobs with an earmark there."""
    for name in list(node.earmarks):
        _wait_again(state, state.jobs[name], f"{node.facts.name} is {node.state.value}")


def _wait_again(state: GridState, job: Job, why: str) -> None:
    earmarks.give_back(state, job, why)
    state.waits_for(job, None)
    state.tell(job, f"{why}: it waits for any place again")
    state.enqueue(job)
    state.changed(job)
