"""Preemption from the plan to its end: its victims are told to stop, what they free is kept for the one they give way
to, and it starts on that, or those who have given way for nothing resume first on what they gave.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from distributed_grid.coordinator.core import holds, reasons, stopping
from distributed_grid.coordinator.core.homes import Bounds
from distributed_grid.coordinator.core.kept import Kept, RecordReceipt
from distributed_grid.coordinator.core.matching import able, usable
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.preemption import NoPlan, Plan, View, hold_for, may, plan, work
from distributed_grid.coordinator.core.reserving import release
from distributed_grid.protocol.jobs import Cause, Priority, Request, State
from distributed_grid.protocol.receipts import Receipt, Victim

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger

EVERY = 1.0
"""Seconds between two looks at whether somebody may give way to the same job."""
JOBS = 16
"""So many urgent jobs are looked at in a pass."""
PLANS = 4
"""So many plans are tried in a pass; it takes some milliseconds each where many may give way."""
NODES = 64
"""On so many nodes it is looked for victims: those that were granted something last, where least is lost."""
ALLOCATIONS = 4096
"""So many allocations are gone through for that, the newest first."""
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
    if ledger.holding:
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
            found = refused.get(job.request) or _plan(ledger, job.request)
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


def due(ledger: "Ledger", name: str) -> None:
    """It is time to look again, which is done after each matching."""


def _say(ledger: "Ledger", job: Job, found: NoPlan) -> None:
    book = ledger.preempting
    if book.said.get(job.request) != found.text:
        book.said[job.request] = found.text
        reasons.renew(ledger, ledger.queue.line(job.id))


def _plan(ledger: "Ledger", request: Request) -> Plan | NoPlan:
    return plan(_views(ledger, request), request, ledger.policy.preempting, spent(ledger))


def spent(ledger: "Ledger") -> float:
    """Core-seconds that preemption has cost within the last hour."""
    book = ledger.preempting
    while book.spent and book.spent[0][0] <= ledger.now - HOUR:
        del book.spent[0]
    total = 0.0
    for _, lost in book.spent:
        total += lost
    return total


def _views(ledger: "Ledger", request: Request) -> list[View]:
    """The nodes that are looked at, with who may give way there. The newest allocations have least to lose."""
    nodes: dict[str, bool] = {}
    count = 0
    bounds = ledger.index.homes.bounds(request.constraints)
    for allocation in islice(reversed(ledger.allocations.values()), ALLOCATIONS):
        if allocation.node not in nodes and _may(request, ledger.jobs[allocation.job]):
            node = ledger.nodes[allocation.node]
            nodes[allocation.node] = usable(node) and able(node, request) and _in_bounds(bounds, allocation.node)
            count += nodes[allocation.node]
            if count == NODES:
                break
    return [_view(ledger, ledger.nodes[name], request) for name, fit in nodes.items() if fit]


def _in_bounds(bounds: Bounds, node: str) -> bool:
    """Whether the node is near to what the request wants to be near to, and apart from what it does not."""
    return not bounds.missing and (bounds.near is None or node in bounds.near) and node not in bounds.apart


def _view(ledger: "Ledger", node: Node, request: Request) -> View:
    policy, now, room = ledger.policy.preempting, ledger.now, node.room
    assert room is not None
    who: list[Victim] = []
    ending, young = 0, 0.0
    for one in node.allocations.values():
        job = ledger.jobs[one.job]
        if one.state is State.STOPPING:
            if _end(ledger, one):
                room = room.copy()
                room.give(one.grant)
                ending += 1
        elif one.state in (State.STARTING, State.RUNNING) and _may(request, job):
            able_at = one.granted + hold_for(policy, job.taken_back)
            if able_at > now:
                young = min(young or able_at, able_at)
            else:
                seconds = _ran(job, one, now)
                lost = seconds * work(one.grant, node.facts.lendable)
                who.append(Victim(one.id, one.job, job.user, job.request.priority, one.grant, seconds, lost))
    return View(node.facts.name, room, tuple(who), ending, young)


def _may(request: Request, job: Job) -> bool:
    """Whether a job may be made to give way. Of a gang all would end with one, so none of them is."""
    return may(request.priority, job.request.priority) and not job.request.gang


def _ran(job: Job, allocation: Allocation, now: float) -> float:
    """Seconds that an attempt has run, without those it was frozen."""
    frozen = job.suspended_for + (now - job.suspended.since if job.suspended is not None else 0.0)
    return max(0.0, now - allocation.started - frozen) if allocation.started else 0.0


def _end(ledger: "Ledger", stopping: Allocation) -> float:
    """By when one that was told to stop has ended; 0: not soon, or it should have and did not."""
    policy, now = ledger.policy.preempting, ledger.now
    end = stopping.stopped + (stopping.stop.grace if stopping.stop is not None else 0.0)
    return end if now - policy.hold < end <= now + policy.grace_most else 0.0


def _ends(ledger: "Ledger", node: Node) -> list[float]:
    return [_end(ledger, one) for one in node.allocations.values() if one.state is State.STOPPING]


# --- a plan is carried out -----------------------------------------------------------------------------------------


def _open(ledger: "Ledger", job: Job, found: Plan) -> None:
    """The victims are told to stop; what they free is kept for the job."""
    book, policy = ledger.preempting, ledger.policy.preempting
    node = ledger.nodes[found.node]
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
        why=f"needs {job.request.resources}, which nobody had free; least is lost by these",
        alternatives=found.alternatives,
    )
    book.spent.append((ledger.now, found.lost))
    ends = max([ledger.now, *_ends(ledger, node)])
    for victim in found.victims:
        allocation, loser = ledger.allocations[victim.allocation], ledger.jobs[victim.job]
        grace = min(policy.grace_most, policy.notice + loser.spec.grace)
        ends = max(ends, ledger.now + grace)
        book.takers[victim.allocation] = job.id
        loser.taken_by = job.id
        words = f"gives way to {job.id} ({job.request.priority.word}, {job.user})"
        stopping.ask(ledger, allocation, Cause.PREEMPTED, words, grace)
    holds.keep(ledger, job, Kept(found.node, found.grant, ends + policy.hold, receipt, ends))
    _record(ledger, receipt)
    ledger.tell(job, f"{_jobs(len(found.victims))} to give way on {found.node}, {found.lost:.0f} core-seconds are lost")
    job.reason = holds.reason(job)
    ledger.changed(job)


def _jobs(count: int) -> str:
    return "1 job has" if count == 1 else f"{count} jobs have"


def _record(ledger: "Ledger", receipt: Receipt) -> None:
    ledger.out.append(RecordReceipt(receipt))


def serve(ledger: "Ledger") -> None:
    """Before anybody else is placed: start those for whom a set is kept that is whole now."""
    for name in list(ledger.grown) if not ledger.holding else ():
        node = ledger.nodes[name]
        for waiting in list(node.kept):
            job = ledger.jobs[waiting]
            assert job.kept is not None
            grant = holds.whole(ledger, node, job, job.kept)
            if grant is not None:
                kept = holds.drop(ledger, job)
                if kept.receipt is not None:
                    text = "" if grant == kept.grant else "on another part of the node, since that had changed"
                    _close(ledger, kept.receipt, "started", text)
                ledger.start(job, holds.placement(ledger, node, job, grant))


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
            _resume(ledger, loser, kept.node, victim)


def _resume(ledger: "Ledger", loser: Job, name: str, victim: Victim) -> None:
    if loser.kept is None and usable(ledger.nodes[name]):
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
    _wait_again(ledger, job, f"{words} on {job.kept.node} in time")


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
    """A job waits in the queue: if it is urgent, it is looked for others that may give way to it."""
    if job.request.priority is Priority.URGENT and not job.request.gang:
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
