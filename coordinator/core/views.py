"""The clients' views of nodes, jobs, groups and shares; and their redaction by role, by the table in
protocol/messages/roles.py."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import RecordShare
from distributed_grid.coordinator.core.explain import reasons
from distributed_grid.coordinator.core.lifecycle.attempts import time_suspended
from distributed_grid.coordinator.core.model import Allocation, Node, time_limit
from distributed_grid.coordinator.core.placement.constraints import unjoined_key
from distributed_grid.coordinator.core.placement.matching import labels
from distributed_grid.coordinator.core.queue.fairness import Account, dominant, weight
from distributed_grid.coordinator.core.queue.queue import Standing
from distributed_grid.coordinator.core.queue.ranking import precedence_of
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.boosts import Boost, title
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import (
    JobSpec,
    JobView,
    Outcome,
    Precedence,
    Priority,
    Reason,
    Request,
    Step,
    Suspension,
)
from distributed_grid.protocol.messages import BoostView, RayNode, Why
from distributed_grid.protocol.messages.operator import Preemption, Receipt, UserShare, Victim
from distributed_grid.protocol.messages.roles import Reach
from distributed_grid.protocol.nodes import AllocationView, GpuOffer, NodeState, NodeView, OfferView, Withheld
from distributed_grid.protocol.resources import Grant, Resources, capped
from distributed_grid.protocol.sharing.moves import Move, Pass

_ID = re.compile(r"\b(j-[a-z2-7]{12}(?:_\d+)?)(?:\.p?\d+)?")
ANOTHER = "another user's job"
V = TypeVar("V", JobView, GroupView)
_EVERYBODYS = frozenset({Reach.ALL, Reach.OUTLINES})


def _nobody(_: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Visibility:
    """The jobs that a user may see. `owner` maps a job's id to its user; empty: unknown."""

    user: str
    reach: Reach
    owner: Callable[[str], str] = field(default=_nobody, compare=False, repr=False)

    @property
    def only(self) -> str:
        """The only user whose jobs are visible; empty: all are."""
        return "" if self.reach in _EVERYBODYS else self.user

    @property
    def by_name(self) -> bool:
        """Whether jobs can be looked up by name: an outline has none."""
        return self.reach is not Reach.OUTLINES

    def sees(self, user: str) -> bool:
        """Whether this user's jobs are visible."""
        return user == self.user or self.reach in _EVERYBODYS

    def names(self, job: str) -> bool:
        """Whether the job of this id is visible."""
        return self.reach in _EVERYBODYS or self.owner(job) == self.user

    # --- redacted views -----------------------------------------------------------------------------------------------

    def job(self, view: JobView) -> JobView:
        """A visible job."""
        if self.reach is Reach.ALL:
            return view
        return outline(view) if self.reach is Reach.OUTLINES else self._own(view)

    def boost(self, view: BoostView) -> BoostView:
        """A boost; of an invisible one nothing that identifies it."""
        job = view.job
        if self.names(job.id):
            return msgspec.structs.replace(view, job=self.job(job))
        redacted = msgspec.structs.replace(outline(job), id="", allocation="")
        node = self.raylet(view.node) if view.node is not None else None
        return msgspec.structs.replace(view, job=redacted, node=node)

    def raylet(self, node: RayNode) -> RayNode:
        """A Ray node, without the identity of an invisible boost."""
        if not node.boost or self.names(node.boost):
            return node
        return msgspec.structs.replace(node, boost="", name="")

    def group(self, view: GroupView) -> GroupView:
        """A visible group."""
        if self.reach is Reach.ALL:
            return view
        return outline_of_group(view) if self.reach is Reach.OUTLINES else self._own_group(view)

    def allocation(self, view: AllocationView) -> AllocationView:
        """An allocation of any job."""
        if self.reach is Reach.ALL:
            return view
        if self.reach is not Reach.OUTLINES and view.user == self.user:
            if not view.grant.slack:
                return view
            return msgspec.structs.replace(
                view, grant=self._grant(view.grant), suspended=self._redacted(view.suspended)
            )
        shown = self.reach is Reach.OUTLINES
        return AllocationView(
            id=view.id if shown else "",
            job=view.job if shown else "",
            user=view.user,
            node=view.node,
            state=view.state,
            grant=self._grant(view.grant),
            priority=view.priority,
            since=view.since,
            ends=view.ends,
        )

    def receipt(self, receipt: Receipt) -> Receipt | None:
        """A receipt; None: it does not concern the user."""
        if self.reach is Reach.ALL:
            return receipt
        if not any(map(self.sees, (receipt.user, *(one.user for one in receipt.victims)))):
            return None
        own, words = self.sees(receipt.user), self.reach is not Reach.OUTLINES
        return Receipt(
            id=receipt.id if own else "",
            job=receipt.job if own else "",
            user=receipt.user,
            priority=receipt.priority,
            wanted=receipt.wanted,
            node=receipt.node,
            grant=receipt.grant,
            at=receipt.at,
            victims=tuple(map(self._victim, receipt.victims)),
            lost=receipt.lost,
            why=self._redacted(receipt.why) if words else "",
            result=receipt.result,
            closed=receipt.closed,
            waited=receipt.waited,
            text=self._redacted(receipt.text) if words else "",
            more=receipt.more,
        )

    def _victim(self, victim: Victim) -> Victim:
        if self.sees(victim.user):
            return victim
        return msgspec.structs.replace(victim, allocation="", job="")

    def why(self, why: Why) -> Why:
        """An explanation of a user's own request, in which others appear as holders of what it lacks."""
        if self.reach is Reach.ALL:
            return why
        redacted = self._redacted
        return msgspec.structs.replace(
            why,
            reason=Reason(why.reason.code, redacted(why.reason.text)),
            hint=redacted(why.hint),
            funnel=tuple(
                msgspec.structs.replace(one, what=redacted(one.what), lost=redacted(one.lost)) for one in why.funnel
            ),
            verdicts=tuple(msgspec.structs.replace(one, why=redacted(one.why)) for one in why.verdicts),
            holders=tuple(map(self.allocation, why.holders)),
            grant=self._grant(why.grant) if why.grant is not None else None,
            job=self.job(why.job) if why.job is not None else None,
            preempts=self._preemption(why.preempts) if why.preempts is not None else None,
        )

    def _preemption(self, would: Preemption) -> Preemption:
        return msgspec.structs.replace(would, victims=tuple(map(self._victim, would.victims)))

    # --- texts that may name others' jobs -----------------------------------------------------------------------------

    def _own(self, view: JobView) -> JobView:
        changed: dict[str, object] = {}
        if view.reason is not None and "j-" in view.reason.text:
            changed["reason"] = Reason(view.reason.code, self._redacted(view.reason.text))
        if view.outcome is not None and "j-" in view.outcome.text:
            changed["outcome"] = msgspec.structs.replace(view.outcome, text=self._redacted(view.outcome.text))
        if any("j-" in step.text for step in view.story):
            changed["story"] = tuple(Step(step.at, step.state, self._redacted(step.text)) for step in view.story)
        if view.grant is not None and view.grant.slack:
            changed["grant"] = self._grant(view.grant)
        if view.suspended is not None and "j-" in view.suspended.why:
            changed["suspended"] = msgspec.structs.replace(view.suspended, why=self._redacted(view.suspended.why))
        return msgspec.structs.replace(view, **changed) if changed else view

    def _grant(self, grant: Grant) -> Grant:
        """A grant, which names no holder whose job is invisible."""
        if not grant.slack or self.names(grant.holder.rpartition(".")[0]):
            return grant
        return msgspec.structs.replace(grant, holder="")

    def _own_group(self, view: GroupView) -> GroupView:
        if view.reason is None or "j-" not in view.reason.text:
            return view
        return msgspec.structs.replace(view, reason=Reason(view.reason.code, self._redacted(view.reason.text)))

    def _redacted(self, text: str) -> str:
        """The text, with the ids of others' jobs redacted."""
        if "j-" not in text:
            return text
        return _ID.sub(lambda found: found[0] if self.owner(found[1]) == self.user else ANOTHER, text)


# --- outlines ---------------------------------------------------------------------------------------------------------


def outline(view: JobView) -> JobView:
    """State and allocation of a job, without its content."""
    return _outline(
        view,
        _OF_JOBS,
        outcome=_redacted_outcome(view.outcome) if view.outcome is not None else None,
        story=tuple(Step(step.at, step.state) for step in view.story),
        suspended=Suspension(view.suspended.since, "") if view.suspended is not None else None,
        awaits_reader=Suspension(view.awaits_reader.since, "") if view.awaits_reader is not None else None,
    )


def outline_of_group(view: GroupView) -> GroupView:
    """State of a group, without its content."""
    return _outline(view, _OF_GROUPS)


_OF_ALL = ("id", "user", "submitted", "ended", "begin")
_OF_JOBS = (
    *_OF_ALL, "state", "attempt", "allocation", "node", "grant", "started", "retried", "evicted", "group", "index",
    "suspended_for", "used",
)  # fmt: skip
_OF_GROUPS = (*_OF_ALL, "kind", "count", "array", "states", "failed", "cancelled")


def _outline(view: V, shown: tuple[str, ...], **bare: Any) -> V:
    """A view with the fields `shown` and the reduced ones in `bare`; all others are empty."""
    kept = {name: getattr(view, name) for name in shown}
    reason = Reason(view.reason.code) if view.reason is not None else None
    spec, request = _redacted_spec(view.spec), _redacted_request(view.request)
    return type(view)(spec=spec, request=request, reason=reason, **kept, **bare)


def _redacted_spec(spec: JobSpec) -> JobSpec:
    boost = _redacted_boost(spec.boost) if spec.boost is not None else None
    return JobSpec((), time_limit=spec.time_limit, grace=spec.grace, limits=spec.limits, boost=boost)


def _redacted_boost(boost: Boost) -> Boost:
    """Return a boost without the address of its Ray cluster."""
    return Boost(target=boost.target, address="", kind=boost.kind, amount=boost.amount, exclusive=boost.exclusive)


def _redacted_request(request: Request) -> Request:
    return Request(
        request.resources,
        request.priority,
        immediate=request.immediate,
        retry_on=request.retry_on,
        retries=request.retries,
        requeue=request.requeue,
        gang=request.gang,
        retry_memory=request.retry_memory,
        strategy=request.strategy,
    )


def _redacted_outcome(outcome: Outcome) -> Outcome:
    return Outcome(
        outcome.cause,
        outcome.code,
        outcome.signal,
        started=outcome.started,
        seconds=outcome.seconds,
        cpu_seconds=outcome.cpu_seconds,
        peak_memory=outcome.peak_memory,
        stdout_size=outcome.stdout_size,
        stderr_size=outcome.stderr_size,
        suspended=outcome.suspended,
    )


def shares_due(state: GridState, name: str) -> None:
    """Save changed accounts, and remove negligible ones."""
    shares = state.shares
    for user in shares.unsaved:
        account = shares.accounts.get(user)
        if account is not None:
            state.out.append(RecordShare(user, account.past, account.at, True))
    shares.unsaved = {}
    for user in shares.drop(state.now, state.policy.sharing):
        state.out.append(RecordShare(user, 0.0, 0.0, True))


def restore_shares(state: GridState, past: Mapping[str, tuple[float, float]]) -> None:
    """Restore the accounts: past use and its time from disk, and current use from the allocations."""
    accounts = state.shares.accounts
    for user, (share, at) in past.items():
        accounts[user] = Account(past=share, at=min(at, state.now))
    for held in state.holders():
        user = state.jobs[held.job].user
        account = accounts.setdefault(user, Account(at=min(held.granted, state.now)))
        account.held = account.held + held.grant.charged
        state.shares.stale[user] = None


# --- views ------------------------------------------------------------------------------------------------------------


def shares(state: GridState, now: float) -> tuple[UserShare, ...]:
    """Return all users with current or past use or waiting jobs: first those who wait, in the order of service."""
    running: dict[str, int] = {}
    for held in state.holders():
        user = state.jobs[held.job].user
        running[user] = running.get(user, 0) + 1
    waiting: dict[str, dict[str, int]] = {}
    first: dict[str, tuple[tuple[int, float, int], Standing]] = {}
    for (priority, user, _), standing in state.queue.standings.items():
        counts = waiting.setdefault(user, {})
        counts[priority.word] = counts.get(priority.word, 0) + standing.count
        place = (-priority, *state.queue.place(standing))
        if user not in first or place < first[user][0]:
            first[user] = place, standing
    order = sorted(first, key=lambda user: first[user][0])
    known = state.shares.accounts.keys() | state.loans.lent.keys() | running.keys()
    others = sorted(known - first.keys())
    found = []
    for number, user in enumerate((*order, *others), 1):
        account = state.shares.accounts.get(user, Account(at=now))
        words = [one.word for one in reversed(Priority) if one.word in waiting.get(user, ())]
        found.append(
            UserShare(
                user=user,
                holds=capped(account.held),
                held=dominant(account.held, state.shares.capacity),
                past=state.shares.past(account, now, state.policy.sharing),
                weight=weight(user, state.policy.sharing),
                share=state.shares.share(user, now, state.policy.sharing),
                running=running.get(user, 0),
                waiting={word: waiting[user][word] for word in words},
                position=number if number <= len(order) else 0,
                precedence=_precedence(state, first[user][1], now) if user in first else None,
                credit=state.loans.credit(user, now, state.policy.sharing),
            )
        )
    return tuple(found)


def _precedence(state: GridState, standing: Standing, now: float) -> Precedence | None:
    line = state.queue.first_line(standing)
    return None if line is None else precedence_of(state, state.jobs[state.queue.head(line)[1]], now)


def job(state: GridState, name: str) -> JobView | None:
    """A live job; None: unknown here (it may have ended)."""
    found = state.jobs.get(name)
    return None if found is None else found.view(reasons.now_for(state, found))


def _lent(node: Node) -> Resources:
    held = [allocation.grant.resources for allocation in node.allocations.values()]
    return Resources(sum(r.cpu for r in held), sum(r.memory for r in held), sum(r.gpu for r in held))


def _withheld(node: Node) -> tuple[Withheld, ...]:
    told = node.offer.withheld if node.offer is not None else ()
    unjoined = {unjoined_key(address): why for address, why in node.unjoined.items()}
    ours = (
        Withheld(key, f"did not join: {unjoined[key]}")
        if key in unjoined
        else Withheld(key or "node", "refused at the claim, left alone for a while")
        for key in sorted(node.closed)
    )
    return (*told, *ours)


def offer_view(node: Node, now: float) -> OfferView | None:
    """The valid offer of a node; None: it has none, or cannot be reached."""
    if node.state not in (NodeState.UP, NodeState.SUSPECT) or node.offer is None or node.capacity is None:
        return None
    capacity, lent = node.capacity.left, _lent(node)
    gpus = tuple(
        GpuOffer(gpu.uuid, gpu.index, gpu.model, gpu.memory, gpu.memory_free, node.capacity.gpus[gpu.uuid])
        for gpu in node.capacity.offers.values()
        if node.capacity.gpus.get(gpu.uuid, 0) > 0 and gpu.uuid not in node.closed
    )
    idle = node.sample.at - node.offer.idle_since if node.sample is not None and node.offer.idle_since else 0.0
    return OfferView(
        node=node.facts.name,
        state=node.state,
        room=capacity,
        total=capacity + lent,
        cores=node.capacity.free_cores(),
        virtual=node.facts.virtual,
        gpus=gpus,
        expires_in=max(0.0, node.offer_until - now),
        idle_for=max(0.0, idle),
        withheld=_withheld(node),
    )


def allocations(state: GridState, only: str = "") -> tuple[AllocationView, ...]:
    """Live allocations, in the order of their grants."""
    if only:
        node = state.nodes.get(only)
        return tuple(allocation_view(state, one) for one in node.known) if node is not None else ()
    return tuple(allocation_view(state, one) for one in state.allocations.values())


def allocation_view(state: GridState, allocation: Allocation) -> AllocationView:
    """An allocation, with the latest time of its end, if known."""
    job = state.jobs[allocation.job]
    limit = time_limit(job, allocation)
    return AllocationView(
        id=allocation.id,
        job=job.id,
        user=job.user,
        node=allocation.node,
        state=allocation.state,
        grant=allocation.grant,
        priority=job.request.priority.word,
        since=allocation.granted,
        ends=allocation.started + limit + time_suspended(job, state.now) if allocation.started and limit else 0.0,
        name=job.spec.name or (title(job.spec.boost) if job.spec.boost is not None else ""),
        suspended=job.active.suspended.why if job.active.suspended is not None else "",
        by_holder=job.active.suspended is not None and job.active.suspended.by_holder,
        awaits_reader=job.active.awaits_reader.why if job.active.awaits_reader is not None else "",
        next_after=job.active.predecessor.rpartition(".")[0],
    )


def node_view(node: Node, now: float) -> NodeView:
    """A node."""
    return NodeView(
        facts=node.facts,
        state=node.state,
        silent_for=max(0.0, now - node.last_seen),
        sample=node.sample,
        offered=node.capacity.left if node.capacity is not None else Resources(),
        lent=_lent(node),
        jobs=len(node.launched),
        withheld=_withheld(node),
        orders=node.orders,
        labels=labels(node),
    )


# --- rebalancing ------------------------------------------------------------------------------------------------------


def visible_pass(visibility: Visibility, found: Pass) -> Pass:
    """Return the part of a rebalancing pass that a user may see: an order to release an unused boost is shown to its
    user alone, and to operators."""
    hints = tuple(one for one in found.hints if visibility.names(one.boost))
    return replace(found, moves=tuple(visible_move(visibility, one) for one in found.moves), hints=hints)


def visible_move(visibility: Visibility, move: Move) -> Move:
    """A move, without the id of an invisible boost."""
    return move if not move.boost or visibility.names(move.boost) else replace(move, boost="")
