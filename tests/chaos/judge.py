"""The judge: holds what the grid says against what the jobs wrote down."""

from collections import Counter
from dataclasses import dataclass, field

from distributed_grid.protocol.jobs import TAIL_BYTES, Cause, JobView, Outcome, State
from tests.chaos.clients import Told
from tests.chaos.jobs import RETRIES, STOPPED, Book, Plan

UNKNOWN = (Cause.NODE_LOST, Cause.SUPERVISOR_LOST, Cause.LEASE_EXPIRED)
"""What the grid says when it cannot know, or has run out of retries."""
KINDS = {
    Cause.SIGNALLED: ("killed",),
    Cause.TIME_LIMIT: ("limited",),
    Cause.CANCELLED: ("cancelled",),
    Cause.NOT_FOUND: ("missing",),
    Cause.EXITED: ("exits", "retried"),
    Cause.LEASE_EXPIRED: ("retried",),
}
"""Which jobs may end in this way."""


@dataclass
class Verdict:
    """What was found. Each entry of the lists: the job (may be empty), and what is the matter with it."""

    lost: list[tuple[str, str]] = field(default_factory=list)
    twice: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    """All ended jobs by cause."""
    attempts: int = 0
    """Allocations that started."""
    views: dict[str, JobView] = field(default_factory=dict)
    """All jobs, as the grid has them in the end."""

    @property
    def violations(self) -> list[tuple[str, str]]:
        return [*self.lost, *self.twice, *self.wrong]


def judge(told: Told, views: dict[str, JobView], books: dict[str, Book]) -> Verdict:
    """Hold all of it together. `views`: every job the grid knows, in the end; `books`: what is true."""
    verdict = Verdict(attempts=len(books), views=views)
    of_job: dict[str, dict[str, Book]] = {}
    for allocation, book in books.items():
        of_job.setdefault(allocation.rpartition(".")[0], {})[allocation] = book
    for job, plan in told.plans.items():
        view = views.get(job)
        if view is None or view.outcome is None or view.state is not State.ENDED:
            verdict.lost.append((job, "is not known any more" if view is None else f"is still {view.state.value}"))
            continue
        verdict.ended[view.outcome.cause.value] += 1
        own = of_job.get(job, {})
        verdict.twice += [(job, text) for text in _twice(plan, own)]
        verdict.wrong += [(job, text) for text in _wrong(plan, view, view.outcome, own)]
        verdict.wrong += [(job, text) for text in _changed(told, view)]
    verdict.twice += [(job, "is there though nobody submitted it") for job in views.keys() - told.plans.keys()]
    verdict.twice += [(job, "ran though nobody submitted it") for job in of_job.keys() - told.plans.keys()]
    verdict.wrong += [("", text) for text in told.broken]
    return verdict


def _twice(plan: Plan, own: dict[str, Book]) -> list[str]:
    found = [f"{name} started {len(book.starts)} times" for name, book in own.items() if len(book.starts) != 1]
    most = 1 + (RETRIES if plan.kind == "retried" else 0)
    if len(own) > most:
        found.append(f"started as {', '.join(sorted(own))}, which is more than {most}")
    found += [f"{name} ran beside an earlier attempt" for name, book in own.items() if book.beside]
    return found


def _wrong(plan: Plan, view: JobView, outcome: Outcome, own: dict[str, Book]) -> list[str]:
    found = []
    cause = outcome.cause
    book = own.get(view.allocation)
    ran = book is not None
    if (
        cause not in UNKNOWN
        and plan.kind not in KINDS.get(cause, ())
        and not (plan.kind == "cancelled" and cause is Cause.EXITED)
    ):
        found.append(f"was to be {plan.kind}, and ended as {cause.value}: {outcome.text}")
    if not outcome.started and own and cause not in (Cause.CANCELLED,):
        found.append(f"never started, says the grid; {', '.join(own)} did")
    if not outcome.started and ran:
        found.append(f"its attempt {view.allocation} never started, says the grid; it did")
    end = book.ends[-1][1] if book is not None and book.ends else ""
    if cause is Cause.EXITED:
        if end != str(outcome.code):
            found.append(f"exited with {outcome.code}, says the grid; it wrote down {end or 'no end'}")
        if plan.kind != "cancelled" and outcome.code != plan.code:
            found.append(f"exited with {outcome.code}, says the grid; it was to be {plan.code}")
        found += _output(plan, outcome)
    if cause is Cause.SIGNALLED and (outcome.signal, end) != (9, "killed"):
        found.append(f"ended by signal {outcome.signal}, says the grid; it wrote down {end or 'no end'}")
    if cause in (Cause.CANCELLED, Cause.TIME_LIMIT) and outcome.started and not outcome.signal and end != str(STOPPED):
        found.append(f"was ended with code {outcome.code}, says the grid; it wrote down {end or 'no end'}")
    return found


def _output(plan: Plan, outcome: Outcome) -> list[str]:
    found = []
    said = {"stdout": (outcome.stdout_size, outcome.stdout_tail), "stderr": (outcome.stderr_size, outcome.stderr_tail)}
    true = {"stdout": plan.stdout, "stderr": plan.stderr}
    for stream, (size, tail) in said.items():
        if plan.kind != "cancelled" and (size, tail) != (len(true[stream]), true[stream][-TAIL_BYTES:]):
            found.append(f"its {stream} has {size} bytes ending with {tail[-40:]!r}; {len(true[stream])} were written")
    return found


def _changed(told: Told, view: JobView) -> list[str]:
    """What somebody who watched was told must be what stands there in the end."""
    found = []
    seen, result = told.ended.get(view.id), told.results.get(view.id)
    if seen is not None and (seen.outcome, seen.allocation) != (view.outcome, view.allocation):
        found.append(f"ended with {seen.outcome} first, and with {view.outcome} later")
    if result is not None:
        plan = told.plans[view.id]
        if result.output_error:
            found.append(f"its output cannot be read: {result.output_error}")
        elif (result.stdout_bytes, result.stderr_bytes) != (plan.stdout, plan.stderr) and plan.kind != "cancelled":
            found.append(f"its output is not what it wrote: {len(result.stdout_bytes)} bytes of {len(plan.stdout)}")
    return found
