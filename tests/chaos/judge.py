"""The judge: holds what the grid says against what the jobs wrote down."""

from collections import Counter
from dataclasses import dataclass, field, replace

from distributed_grid.protocol.jobs import TAIL_BYTES, Cause, JobView, Outcome, State
from tests.chaos.clients import Told
from tests.chaos.faults import Fault
from tests.chaos.gangs import not_as_one
from tests.chaos.jobs import RETRIES, Plan, RunRecord
from tests.chaos.many import out_of_order
from tests.chaos.world import CORES, by_uptime

MAY_END = {
    "exits": {Cause.EXITED},
    "retried": {Cause.EXITED},
    "killed": {Cause.SIGNALLED},
    "limited": {Cause.TIME_LIMIT},
    "missing": {Cause.NOT_FOUND},
    "cancelled": {Cause.CANCELLED},
    "gang": {Cause.EXITED, Cause.GANG, Cause.CANCELLED},
}
"""How each kind of job may end, beside UNKNOWN."""
UNKNOWN = {Cause.NODE_LOST, Cause.SUPERVISOR_LOST}
"""What the grid says where it cannot know the end of a job that is not to be run again."""
STARTING = 5.0
"""Seconds that a job may take from its launch to its first line, on a busy machine."""
Found = list[tuple[str, str]]
"""Jobs (or nothing), each with what is the matter with it."""


@dataclass
class Verdict:
    """The findings."""

    lost: Found = field(default_factory=list)
    twice: Found = field(default_factory=list)
    wrong: Found = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    """All ended jobs by cause."""
    attempts: int = 0
    """Allocations that started."""
    again: int = 0
    """Those of them that were not the first of their job."""
    views: dict[str, JobView] = field(default_factory=dict)
    """All jobs, as the grid has them in the end."""

    @property
    def violations(self) -> Found:
        """Return all promises that were broken."""
        return [*self.lost, *self.twice, *self.wrong]


def judge(told: Told, views: dict[str, JobView], records: dict[str, RunRecord], faults: list[Fault]) -> Verdict:
    """Hold all of it together. `views`: every job the grid knows, in the end; `records`: what is true."""
    verdict = Verdict(attempts=len(records), views=views)
    of_job: dict[str, dict[str, RunRecord]] = {}
    for allocation, record in records.items():
        of_job.setdefault(allocation.rpartition(".")[0], {})[allocation] = record
    verdict.again = len(records) - len(of_job)
    for job, plan in told.plans.items():
        view, own = views.get(job), of_job.get(job, {})
        verdict.twice += [(job, text) for text in _twice(plan, own)]
        if view is None or view.outcome is None or view.state is not State.ENDED:
            verdict.lost.append((job, "is not known any more" if view is None else f"is still {view.state.value}"))
            continue
        verdict.ended[view.outcome.cause.value] += 1
        if job in told.after and view.outcome.cause is Cause.DEPENDENCY_FAILED and not own:
            verdict.wrong += [(job, text) for text in out_of_order(job, view, told, views, of_job)]
            continue
        if job in told.cancelled and plan.kind != "gang":
            plan = replace(plan, kind="cancelled")
        found = out_of_order(job, view, told, views, of_job)
        found += _wrong(plan, view, view.outcome, own) + _read(plan, view, view.outcome, told)
        found += _unjustified(view, view.outcome, own, faults)
        verdict.wrong += [(job, text) for text in found]
    verdict.twice += [(job, "is there though nobody submitted it") for job in views.keys() - told.plans.keys()]
    verdict.twice += [(job, "ran though nobody submitted it") for job in of_job.keys() - told.plans.keys()]
    for gang in told.gangs:
        verdict.wrong += [(gang[0], text) for text in not_as_one(gang, told, views, of_job)]
    verdict.wrong += [("", text) for text in [*told.broken, *_crowded(records)]]
    return verdict


def _twice(plan: Plan, own: dict[str, RunRecord]) -> list[str]:
    found = [f"{name} started {len(record.starts)} times" for name, record in own.items() if len(record.starts) != 1]
    most = 1 + (RETRIES if plan.kind == "retried" else 0)
    if len(own) > most and plan.kind != "gang":  # of which a part may begin in vain, and as often as it likes
        found.append(f"started as {', '.join(sorted(own))}: more often than {most} times")
    return found + [f"{name} ran beside an earlier attempt" for name, record in own.items() if record.beside]


def _wrong(plan: Plan, view: JobView, outcome: Outcome, own: dict[str, RunRecord]) -> list[str]:
    """Return how the outcome differs from the job's own record."""
    found = []
    cause, record = outcome.cause, own.get(view.allocation, RunRecord())
    end = record.ends[-1][1] if record.ends else "no end"
    late = plan.kind == "cancelled" and cause is Cause.EXITED  # it was over before the cancel reached it
    if cause not in MAY_END[plan.kind] | UNKNOWN and not late:
        found.append(f"was to be {plan.kind}, and ended as {cause.value}: {outcome.text}")
    if not outcome.started and (record.starts or (own and plan.kind not in ("retried", "gang"))):
        found.append(f"never started, says the grid; {', '.join(own)} did")
    wrote = f"says the grid; it wrote down {end}"
    if cause is Cause.EXITED and (end != str(outcome.code) or (not late and outcome.code != plan.code)):
        found.append(f"exited with {outcome.code} ({plan.code} was planned), {wrote}")
    if cause is Cause.SIGNALLED and (outcome.signal, end) != (9, "killed"):
        found.append(f"ended by signal {outcome.signal}, {wrote}")
    if cause in (Cause.CANCELLED, Cause.TIME_LIMIT) and outcome.code and str(outcome.code) != end:
        found.append(f"was ended with code {outcome.code}, {wrote}")
    return found


def _read(plan: Plan, view: JobView, outcome: Outcome, told: Told) -> list[str]:
    """Return how the answers to clients differ from the final state, and their output from what was written."""
    found = []
    seen, result, stream = told.ended.get(view.id), told.results.get(view.id), told.streams.get(view.id)
    if seen is not None and (seen.outcome, seen.allocation) != (view.outcome, view.allocation):
        found.append(f"ended with {seen.outcome} first, and with {view.outcome} later")
    if outcome.cause is not Cause.EXITED or plan.kind == "cancelled":
        return found
    if result is not None and result.output_error:
        found.append(f"its output cannot be read: {result.output_error}")
    for name, said in [
        ("stdout", result.stdout_bytes if result is not None else None),
        ("stderr", result.stderr_bytes if result is not None else None),
        ("stdout", stream),
    ]:
        true = plan.stdout if name == "stdout" else plan.stderr
        if said is stream and view.retried and said is not None:
            said = said[-len(true) :] if true else b""  # who followed it has read the attempts before it, too
        if said is not None and said != true:
            found.append(f"its {name} was read as {len(said)} bytes that are not the {len(true)} it wrote")
    for name, size, tail, true in [
        ("stdout", outcome.stdout_size, outcome.stdout_tail, plan.stdout),
        ("stderr", outcome.stderr_size, outcome.stderr_tail, plan.stderr),
    ]:
        if (size, tail) != (len(true), true[-TAIL_BYTES:]):
            found.append(f"its {name} has {size} bytes ending with {tail[-40:]!r}; {len(true)} were written")
    return found


def _unjustified(view: JobView, outcome: Outcome, own: dict[str, RunRecord], faults: list[Fault]) -> list[str]:
    """The grid may say that it does not know an end, if the job's node was in such trouble while the job lived."""
    if outcome.cause not in UNKNOWN:
        return []
    kinds = (
        ("killed",) if outcome.cause is Cause.SUPERVISOR_LOST else ("killed", "stopped", "cut", "cut to", "cut from")
    )
    ours = {f"supervisor of {view.node}"} | ({view.node} if outcome.cause is Cause.NODE_LOST else set())
    over = by_uptime(view.ended)
    since = min(own[view.allocation].starts) - STARTING if view.allocation in own else by_uptime(view.submitted)
    near = [one for one in faults if one.target in ours and one.kind in kinds and since <= one.end and one.begin < over]
    return [] if near else [f"ended as {outcome.cause.value}, and nothing had happened to {view.node}"]


def _crowded(records: dict[str, RunRecord]) -> list[str]:
    """Nodes that ran more jobs at a time than they have cores. Jobs that wrote down no end are left out."""
    steps: dict[str, list[tuple[float, int]]] = {}
    for record in records.values():
        for node in record.nodes:
            if record.ends:
                steps.setdefault(node, []).extend([(record.starts[0], 1), (record.ends[0][0], -1)])
    found = []
    for node, changes in steps.items():
        running = most = 0
        for _, step in sorted(changes):
            running += step
            most = max(most, running)
        if most > CORES:
            found.append(f"{node} ran {most} jobs at a time on {CORES} cores")
    return found
