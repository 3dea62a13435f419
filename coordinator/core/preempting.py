"""Preemption from the plan to its end: its victims are told to stop, what they free is kept for the one they give way
to, and it starts on that, or those who have given way for nothing resume first on what they gave.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from distributed_grid.coordinator.core import gangs, holds, reasons, stopping
from distributed_grid.coordinator.core.kept import Kept, RecordReceipt
from distributed_grid.coordinator.core.matching import usable
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.preemption import NoPlan, Plan, plan
from distributed_grid.coordinator.core.preemption_gangs import plan as plan_for_all
from distributed_grid.coordinator.core.reserving import release
from distributed_grid.coordinator.core.victims import Gives, end_of, views
from distributed_grid.protocol.jobs import Cause, Priority, Reason, Request, State
from distributed_grid.protocol.receipts import Place, Preemption, Receipt, Victim

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

EVERY = 1.0
"""Seconds between two looks at whether somebody may give way to the same job."""
JOBS = 16
"""So many urgent jobs are looked at in a pass."""
PLANS = 2
"""So many plans are tried in a pass; where many may give way on thousands of nodes each takes 20 to 30 ms."""
HOUR = 3600.0


@dataclass(slots=True)
class Book:
    """What a ledger knows of preemptions, beside what its jobs say themselves."""

    urgent: dict[str, float] = field(default_factory=dict)
    """Urgent jobs that wait in the queue, and when it is looked next whether somebody gives way to them."""
    takers: dict[str, str] = field(default_factory=dict)
    """Allocations that were told to give way in an open plan, and the job they give way to."""
    spent: list[tuple[float, float]] = field(default_factory=list)
    """When how many core-seconds were lost, of the last hour."""
    said: dict[Request, str] = field(default_factory=dict)
    """Why nobody gives way to a request, as last found; only told."""
    gives: Gives = field(default_factory=Gives, compare=False)
    """How much could be given way on each node, as far as that was asked; it follows from who is there."""

    def remember(self, receipts: Iterable[Receipt]) -> None:
        """What preemptions before the start have cost."""
        self.spent = sorted((receipt.at, receipt.lost) for receipt in receipts)


def takers_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Who gives way to whom, as these jobs say."""
    plans = ((job.id, job.kept.receipt) for job in jobs if job.kept is not None and job.kept.receipt is not None)
    return {victim.allocation: name for name, receipt in plans for victim in receipt.victims}


# --- looking for victims -------------------------------------------------------------------------------------------


def look(ledger: "Ledger") -> None:
    """After all who fit were placed: see whether others may give way to the urgent ones that are left."""
    book = ledger.preempting
    if ledger.halted:
        return
    if not book.urgent:
        book.said.clear()
        return
    refused: dict[Request, NoPlan] = {}
    later = 0.0
    for name in list(islice(book.urgent, JOBS)):
        job = ledger.jobs.get(name)
        if job is None or name not in ledger.queue:
            del book.urgent[name]
            continue
        at = book.urgent[name]
        if at <= ledger.now:
            if len(refused) == PLANS and job.request not in refused:
                later = min(later or math.inf, ledger.now + EVERY / 4)
                continue
            found = refused.get(job.request) or _plan(ledger, job.request, ledger.now)
            if isinstance(found, Plan) and job.request.gang and not _can_meet(ledger, job, found):
                found = NoPlan("no-port", "no preemption: no port is left where its gang could meet")
            if isinstance(found, Plan):
                del book.urgent[name]
                _open(ledger, job, found)
                continue
            refused[job.request] = found
            _say(ledger, job, found)
            at = ledger.now + EVERY
            at = min(at, found.again or at)
            del book.urgent[name]  # it goes behind the others, so that many of them keep nobody from being looked at
            book.urgent[name] = at
        later = min(later or at, at)
    if later:
        ledger.deadlines.arm("preempt", "", later)
    elif not book.urgent:
        book.said.clear()


def _can_meet(ledger: "Ledger", job: Job, found: Plan) -> bool:
    return gangs.meet(ledger, job, [place.node for place in found.places]) is not None


def due(ledger: "Ledger", name: str) -> None:
    """It is time to look again, which is done after each matching."""


def _say(ledger: "Ledger", job: Job, found: NoPlan) -> None:
    book = ledger.preempting
    if book.said.get(job.request) != found.text:
        book.said[job.request] = found.text
        reasons.renew(ledger, ledger.queue.line(job.id))


def _plan(ledger: "Ledger", request: Request, now: float) -> Plan | NoPlan:
    make = plan_for_all if request.gang else plan
    return make(views(ledger, request, now), request, ledger.policy.preempting, spent(ledger, now))


def foresee(ledger: "Ledger", request: Request, why: Reason, now: float) -> tuple[Reason, Preemption | None]:
    """Who would give way to a request that was only asked about and has no place now, by the functions that a pass
    uses; and `why` it does not start, with a word about that. Nothing is changed."""
    if request.priority is not Priority.URGENT or request.immediate or ledger.halted:
        return why, None
    found = _plan(ledger, request, now)
    if isinstance(found, NoPlan):
        return Reason(why.code, f"{why.text}; {found.text}"), None
    within = _ends(ledger, found, now) - now
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


def spent(ledger: "Ledger", now: float) -> float:
    """Core-seconds that preemption has cost within the last hour."""
    total = 0.0
    for at, lost in ledger.preempting.spent:
        if at > now - HOUR:
            total += lost
    return total


def _grace(ledger: "Ledger", victim: Victim) -> float:
    """Seconds between the SIGTERM and the SIGKILL of one that gives way."""
    policy = ledger.policy.preempting
    return min(policy.grace_most, policy.notice + ledger.jobs[victim.job].spec.grace)


def _ends(ledger: "Ledger", found: Plan, now: float) -> float:
    """By when all have ended that a plan waits for, if it is carried out now."""
    held = (one for place in found.places for one in ledger.nodes[place.node].allocations.values())
    others = [end_of(ledger, one, now) for one in held if one.state is State.STOPPING]
    return max(now, *others, *(now + _grace(ledger, victim) for victim in found.victims))


def _jobs(count: int) -> str:
    return "1 job has" if count == 1 else f"{count} jobs have"


# --- a plan is carried out -----------------------------------------------------------------------------------------


def _open(ledger: "Ledger", job: Job, found: Plan) -> None:
    """The victims are told to stop; what they free is kept for the job."""
    book, policy = ledger.preempting, ledger.policy.preempting
    job.plans += 1
    receipt = Receipt(
        id=f"{job.id}.p{job.plans}",
        job=job.id,
        user=job.user,
        priority=job.request.priority,
        wanted=job.request.resources,
        node=found.node,
        grant=found.grant,
        at=ledger.now,
        victims=found.victims,
        lost=found.lost,
        why=f"needs {job.request.resources}{_each(job.request)}, which nobody had free; least is lost by these",
        alternatives=found.alternatives,
        more=found.more,
    )
    book.spent = [one for one in book.spent if one[0] > ledger.now - HOUR]
    book.spent.append((ledger.now, found.lost))
    ends = _ends(ledger, found, ledger.now)
    for victim in found.victims:
        allocation, loser = ledger.allocations[victim.allocation], ledger.jobs[victim.job]
        book.takers[victim.allocation] = job.id
        for one in gangs.members(ledger, loser) if loser.request.gang else (loser,):
            one.taken_by = job.id
        words = f"gives way to {job.id} ({job.request.priority.word}, {job.user})"
        stopping.ask(ledger, allocation, Cause.PREEMPTED, words, _grace(ledger, victim))
    holds.keep(ledger, job, Kept(found.node, found.grant, ends + policy.hold, receipt, ends, found.more))
    _record(ledger, receipt)
    on = ", ".join(dict.fromkeys(victim.node or found.node for victim in found.victims))
    ledger.tell(job, f"{_jobs(len(found.victims))} to give way on {on}, {found.lost:.0f} core-seconds are lost")
    job.reason = holds.reason(job)
    ledger.changed(job)


def _each(request: Request) -> str:
    return f" on each of {request.gang} nodes" if request.gang else ""


def _record(ledger: "Ledger", receipt: Receipt) -> None:
    ledger.out.append(RecordReceipt(receipt))


def serve(ledger: "Ledger") -> None:
    """Before anybody else is placed: start those for whom a set is kept that is whole now."""
    for name in list(ledger.grown) if not ledger.halted else ():
        for waiting in list(ledger.nodes[name].kept):
            job = ledger.jobs[waiting]
            assert job.kept is not None
            places = holds.whole(ledger, job, job.kept)
            if places is not None:
                _start(ledger, job, places)


def _start(ledger: "Ledger", job: Job, places: tuple[Place, ...]) -> None:
    """The set is whole: the job starts on it, of a gang all members on theirs."""
    meeting = gangs.meet(ledger, job, [place.node for place in places]) if job.request.gang else ()
    if meeting is None:
        _wait_again(ledger, job, "no port is left where its gang could meet")
        return
    kept = holds.drop(ledger, job)
    if kept.receipt is not None:
        text = "" if places == kept.places else "on another part of the node, since that had changed"
        _close(ledger, kept.receipt, "started", text)
    if job.request.gang:
        gangs.start(ledger, job, [holds.placement(ledger, job, place) for place in places], meeting)
    else:
        ledger.start(job, holds.placement(ledger, job, places[0]))


def _close(ledger: "Ledger", receipt: Receipt, result: str, text: str) -> None:
    for victim in receipt.victims:
        ledger.preempting.takers.pop(victim.allocation, None)
    waited = max(0.0, ledger.now - receipt.at)
    _record(ledger, msgspec.structs.replace(receipt, result=result, closed=ledger.now, waited=waited, text=text))


# --- it comes to nothing -------------------------------------------------------------------------------------------


def give_back(ledger: "Ledger", job: Job, why: str) -> None:
    """What is kept for a job is so no more. Who has given way for it resumes on what it gave, before others; who still
    ends will do so then. Whether the job goes on waiting is the caller's."""
    kept = holds.drop(ledger, job)
    receipt = kept.receipt
    if receipt is None:
        return
    _close(ledger, receipt, "returned", why)
    for victim in receipt.victims:
        loser = ledger.jobs.get(victim.job)
        if loser is not None and loser.state is State.WAITING and loser.allocation == victim.allocation:
            _resume(ledger, loser, victim.node or kept.node, victim)


def _resume(ledger: "Ledger", loser: Job, name: str, victim: Victim) -> None:
    if loser.kept is None and not loser.request.gang and usable(ledger.nodes[name]):
        holds.keep(ledger, loser, Kept(name, victim.grant, ledger.now + ledger.policy.preempting.hold))
        ledger.tell(loser, f"gave way for nothing, and is the first to have its place on {name} again")
        loser.reason = holds.reason(loser)
        ledger.changed(loser)


def gave(ledger: "Ledger", job: Job, allocation: Allocation) -> None:
    """A job waits again. If it is a victim, and nobody waits for its place any more, it has that back first."""
    told = allocation.stop is not None and allocation.stop.cause == Cause.PREEMPTED
    if told and allocation.id not in ledger.preempting.takers:
        _resume(
            ledger, job, allocation.node,
            Victim(allocation.id, job.id, job.user, job.request.priority, allocation.grant),
        )  # fmt: skip


def kept_due(ledger: "Ledger", name: str) -> None:
    """A set was kept for so long that it is not waited for any more."""
    job = ledger.jobs.get(name)
    if job is None or job.kept is None:
        return
    if ledger.now < job.kept.until:
        ledger.deadlines.arm("kept", name, job.kept.until)
        return
    receipt = job.kept.receipt
    stuck = [one.job for one in receipt.victims if one.allocation in ledger.allocations] if receipt else []
    words = f"{' and '.join(stuck[:3])} did not end" if stuck else "it did not become free as a whole"
    on = ", ".join(place.node for place in job.kept.places)
    _wait_again(ledger, job, f"{words} on {on} in time")


def abandon(ledger: "Ledger", node: Node) -> None:
    """The node is cut off: who waits for a set there waits in the queue again."""
    for name in list(node.kept):
        _wait_again(ledger, ledger.jobs[name], f"{node.facts.name} is {node.state.value}")


def _wait_again(ledger: "Ledger", job: Job, why: str) -> None:
    give_back(ledger, job, why)
    job.reason = None
    ledger.tell(job, f"{why}: it waits for any place again")
    ledger.wait(job)
    ledger.changed(job)


# --- what the ledger asks ------------------------------------------------------------------------------------------


def waits(ledger: "Ledger", job: Job) -> None:
    """A job waits in the queue: if it is urgent, it is looked for others that may give way to it, or to its gang."""
    if job.request.priority is Priority.URGENT:
        ledger.preempting.urgent[job.id] = 0.0


def take_up(ledger: "Ledger", job: Job, kept: Kept) -> None:
    """A job waits for what was kept for it before the start."""
    ledger.preempting.takers |= takers_of([job])
    holds.take_up(ledger, job, kept)


def ended(ledger: "Ledger", job: Job) -> None:
    """A waiting job has come to its end: it waits for nothing any more."""
    if job.kept is not None:
        give_back(ledger, job, f"{job.id} was ended")
    else:
        ledger.queue.remove(job.id)
        release(ledger, job.id)
        ledger.fresh.pop(job.id, None)
