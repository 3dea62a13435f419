"""What somebody may know of jobs, by the table in protocol/roles.py: the one place where that is judged.

Who reaches their own jobs only is told nothing of others' by which one could be named, and a job of another's is to
them as one that does not exist. Who reaches outlines sees all jobs, and of each only where it stands and what it holds:
no command, environment, directory, name, output, nor words that somebody wrote. An outline is made of what is named
here; what is new in a view is not in it until it is named.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from distributed_grid.protocol.boosts import Boost
from distributed_grid.protocol.groups import GroupView
from distributed_grid.protocol.jobs import JobSpec, JobView, Outcome, Reason, Request, Step, Suspension
from distributed_grid.protocol.messages import BoostView, RayNode, Why
from distributed_grid.protocol.nodes import AllocationView
from distributed_grid.protocol.preemption import Preemption, Receipt, Victim
from distributed_grid.protocol.roles import Reach

_ID = re.compile(r"\b(j-[a-z2-7]{12}(?:_\d+)?)(?:\.p?\d+)?")
ANOTHER = "another user's job"
V = TypeVar("V", JobView, GroupView)
_EVERYBODYS = frozenset({Reach.ALL, Reach.OUTLINES})


def _nobody(_: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What this user reaches of jobs. `owner` tells whose a job is, by its id; empty: there is none."""

    user: str
    reach: Reach
    owner: Callable[[str], str] = field(default=_nobody, compare=False, repr=False)

    @property
    def only(self) -> str:
        """Whose jobs alone are there; empty: everybody's."""
        return "" if self.reach in _EVERYBODYS else self.user

    @property
    def by_name(self) -> bool:
        """Whether jobs may be named by their names: an outline has none."""
        return self.reach is not Reach.OUTLINES

    def sees(self, user: str) -> bool:
        """Whether this user's jobs are there, to be seen and named."""
        return user == self.user or self.reach in _EVERYBODYS

    def names(self, job: str) -> bool:
        """Whether this id names a job that is there."""
        return self.reach in _EVERYBODYS or self.owner(job) == self.user

    # --- how what is there is shown -----------------------------------------------------------------------------------

    def job(self, view: JobView) -> JobView:
        """A job that is seen."""
        if self.reach is Reach.ALL:
            return view
        return outline(view) if self.reach is Reach.OUTLINES else self._own(view)

    def boost(self, view: BoostView) -> BoostView:
        """A boost, whoever's: of what is not there nothing by which it could be named."""
        job = view.job
        if self.names(job.id):
            return msgspec.structs.replace(view, job=self.job(job))
        veiled = msgspec.structs.replace(outline(job), id="", allocation="")
        node = self.raylet(view.node) if view.node is not None else None
        return msgspec.structs.replace(view, job=veiled, node=node)

    def raylet(self, node: RayNode) -> RayNode:
        """A node of Ray's, which has the name of its boost if it is one's."""
        if not node.boost or self.names(node.boost):
            return node
        return msgspec.structs.replace(node, boost="", name="")

    def group(self, view: GroupView) -> GroupView:
        """A group that is seen."""
        if self.reach is Reach.ALL:
            return view
        return outline_of_group(view) if self.reach is Reach.OUTLINES else self._own_group(view)

    def allocation(self, view: AllocationView) -> AllocationView:
        """What any job holds."""
        if self.reach is Reach.ALL or (self.reach is not Reach.OUTLINES and view.user == self.user):
            return view
        shown = self.reach is Reach.OUTLINES
        return AllocationView(
            id=view.id if shown else "",
            job=view.job if shown else "",
            user=view.user,
            node=view.node,
            state=view.state,
            grant=view.grant,
            priority=view.priority,
            since=view.since,
            ends=view.ends,
        )

    def receipt(self, receipt: Receipt) -> Receipt | None:
        """A preemption; None: one that is no matter of theirs."""
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
            why=self._veiled(receipt.why) if words else "",
            result=receipt.result,
            closed=receipt.closed,
            waited=receipt.waited,
            text=self._veiled(receipt.text) if words else "",
            more=receipt.more,
        )

    def _victim(self, victim: Victim) -> Victim:
        if self.sees(victim.user):
            return victim
        return msgspec.structs.replace(victim, allocation="", job="")

    def why(self, why: Why) -> Why:
        """An explanation of what is their own; others are in it as those who hold what it lacks."""
        if self.reach is Reach.ALL:
            return why
        veiled = self._veiled
        return msgspec.structs.replace(
            why,
            reason=Reason(why.reason.code, veiled(why.reason.text)),
            hint=veiled(why.hint),
            funnel=tuple(
                msgspec.structs.replace(one, what=veiled(one.what), lost=veiled(one.lost)) for one in why.funnel
            ),
            verdicts=tuple(msgspec.structs.replace(one, why=veiled(one.why)) for one in why.verdicts),
            holders=tuple(map(self.allocation, why.holders)),
            job=self.job(why.job) if why.job is not None else None,
            preempts=self._preemption(why.preempts) if why.preempts is not None else None,
        )

    def _preemption(self, would: Preemption) -> Preemption:
        return msgspec.structs.replace(would, victims=tuple(map(self._victim, would.victims)))

    # --- one's own, in words that may name others ---------------------------------------------------------------------

    def _own(self, view: JobView) -> JobView:
        changed: dict[str, object] = {}
        if view.reason is not None and "j-" in view.reason.text:
            changed["reason"] = Reason(view.reason.code, self._veiled(view.reason.text))
        if view.outcome is not None and "j-" in view.outcome.text:
            changed["outcome"] = msgspec.structs.replace(view.outcome, text=self._veiled(view.outcome.text))
        if any("j-" in step.text for step in view.story):
            changed["story"] = tuple(Step(step.at, step.state, self._veiled(step.text)) for step in view.story)
        return msgspec.structs.replace(view, **changed) if changed else view

    def _own_group(self, view: GroupView) -> GroupView:
        if view.reason is None or "j-" not in view.reason.text:
            return view
        return msgspec.structs.replace(view, reason=Reason(view.reason.code, self._veiled(view.reason.text)))

    def _veiled(self, text: str) -> str:
        """The text, with others' jobs not named in it."""
        if "j-" not in text:
            return text
        return _ID.sub(lambda found: found[0] if self.owner(found[1]) == self.user else ANOTHER, text)


# --- outlines ---------------------------------------------------------------------------------------------------------


def outline(view: JobView) -> JobView:
    """Where a job stands and what it holds."""
    return _outline(
        view,
        _OF_JOBS,
        outcome=_bare_outcome(view.outcome) if view.outcome is not None else None,
        story=tuple(Step(step.at, step.state) for step in view.story),
        suspended=Suspension(view.suspended.since, "") if view.suspended is not None else None,
    )


def outline_of_group(view: GroupView) -> GroupView:
    """Where a group stands."""
    return _outline(view, _OF_GROUPS)


_OF_ALL = ("id", "user", "submitted", "ended", "begin")
_OF_JOBS = (
    *_OF_ALL, "state", "attempt", "allocation", "node", "grant", "started", "retried", "taken_back", "group", "index",
    "suspended_for", "used",
)  # fmt: skip
_OF_GROUPS = (*_OF_ALL, "kind", "count", "array", "states", "failed", "cancelled")


def _outline(view: V, shown: tuple[str, ...], **bare: Any) -> V:
    """A view with these fields as they are, and these in a bare form; of what has none, nothing is shown."""
    kept = {name: getattr(view, name) for name in shown}
    reason = Reason(view.reason.code) if view.reason is not None else None
    spec, request = _bare_spec(view.spec), _bare_request(view.request)
    return type(view)(spec=spec, request=request, reason=reason, **kept, **bare)


def _bare_spec(spec: JobSpec) -> JobSpec:
    boost = _bare_boost(spec.boost) if spec.boost is not None else None
    return JobSpec((), time_limit=spec.time_limit, grace=spec.grace, limits=spec.limits, boost=boost)


def _bare_boost(boost: Boost) -> Boost:
    """What is lent to which node, which is what it holds; where that node's Ray is, is not told."""
    return Boost(target=boost.target, address="", kind=boost.kind, amount=boost.amount, exclusive=boost.exclusive)


def _bare_request(request: Request) -> Request:
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


def _bare_outcome(outcome: Outcome) -> Outcome:
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
