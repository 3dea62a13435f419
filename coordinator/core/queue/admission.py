"""Admission: requests to submit, cancel and signal jobs, each with one answer; and how a new or restored job enters the
ledger."""

from typing import Any

from msgspec.structs import replace

from distributed_grid.coordinator.core.commands import (
    Accepted,
    CancelRequested,
    Granted,
    JobsSubmitted,
    RecordGroup,
    RecordJob,
    Rejected,
    Send,
    SignalRequested,
)
from distributed_grid.coordinator.core.explain.feasible import can_fit, never_fits, unknown_name
from distributed_grid.coordinator.core.lending import revocable
from distributed_grid.coordinator.core.lifecycle import holds
from distributed_grid.coordinator.core.model import Group, HeldBack, Job
from distributed_grid.coordinator.core.placement.constraints import amount, marked
from distributed_grid.coordinator.core.placement.constraints import marked_for_ray as marked_by_ray
from distributed_grid.coordinator.core.preemption import earmarks
from distributed_grid.coordinator.core.queue import groups, rights
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol import text
from distributed_grid.protocol.groups import indexes, member_id
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.messages import Signal
from distributed_grid.protocol.resources import MILLI

# --- coming ---------------------------------------------------------------------------------------------------------


def enter(state: GridState, job: Job) -> None:
    """Add a job, new or restored, with the next turn."""
    job.request = marked(state.policy, job.request, job.user, job.spec.hold)
    _enter(state, job)


def _enter(state: GridState, job: Job) -> None:
    job.request = marked_by_ray(state.policy, job.request, job.spec.boost is not None)
    state.add(job)
    state.index.mix.add(job.request)
    if job.group:
        groups.enter(state, job)
        return
    state.keys[(job.user, job.key)] = job.id
    phase = job.phase
    unmet = type(phase) is HeldBack and phase.after
    if not job.tries and (unmet or job.begin > state.now):
        state.hold_back(job)
    elif phase.state is State.WAITING:
        earmarks.wait(state, job)


def submitted(state: GridState, job: Job) -> None:
    """Add a new job, the request of which is marked."""
    _enter(state, job)
    state.tell(job, "submitted")
    state.out.append(RecordJob(job, new=True))


def submitted_group(state: GridState, group: Group, template: Job) -> None:
    """Add a new group, with all of its members."""
    if group.after or group.begin > state.now:
        state.hold_back(group)
    members = state.begin_group(group)
    state.out.append(RecordGroup(group, soon=False))
    assert group.array is not None
    for index in indexes(group.array.parts):
        name = member_id(group.id, index)
        member = Job(
            id=name,
            key=name,  # no client knows it: clients use the group's
            user=group.user,
            spec=template.spec,
            request=template.request,
            submitted=template.submitted,
            phase=HeldBack(),
            story=[],
            group=group.id,
            index=index,
            by_operator=template.by_operator,
        )
        submitted(state, member)
    groups.release(state, members)


# --- submit ---------------------------------------------------------------------------------------------------------


def which(number: int, count: int, name: str) -> str:
    """Prefix that says which job of a submission a message is about; empty for a single one."""
    called = f" ({name})" if name else ""
    return f"job {number} of {count}{called}: " if count > 1 else ""


def submit(state: GridState, event: JobsSubmitted) -> None:
    """Accept these jobs, all or none. A known key stands for the job that has it."""
    ids: list[str] = []
    new: dict[str, Job] = {}
    keys: dict[tuple[str, str], str] = {}
    sound: set[Request] = set()
    judged: tuple[Any, ...] = ()
    asked: tuple[Request, str, bool] | None = None
    stands_for: dict[str, str] = {}
    groups_of = {group.id: group for group in event.groups}
    for number, job in enumerate(event.jobs, 1):
        key = (job.user, job.key)
        known = state.keys.get(key) or state.past_keys.get(key) or keys.get(key)
        if known is not None:
            ids.append(known)
            stands_for[job.id] = known
            continue
        # Most of a long list are alike: what was worked out of the last one holds for the next.
        if asked is None or job.request is not asked[0] or job.user != asked[1] or job.spec.hold is not asked[2]:
            asked = job.request, job.user, job.spec.hold
            mark = marked(state.policy, *asked)
        refused, job.request = None, mark
        if job.id in state.jobs or job.id in state.groups or job.id in new:
            refused = Rejected(event.token, "bad-value", f"there is a job {job.id} already", "ids are never used twice")
        elif (alike := rights.judged_by(job)) != judged:
            judged = alike
            if job.request not in sound:
                refused = refusal(state, event.token, job.request)
                sound.add(job.request)
            refused = (
                refused
                or revocable.refusal(event.token, job.request, job.spec)
                or rights.refusal(state, event.token, job)
                or holds.refusal(state, event.token, job)
            )
        if refused is not None:
            what = which(number, len(event.jobs), job.spec.name) + refused.what
            state.out.append(replace(refused, what=what))
            return
        ids.append(job.id)
        new[job.id] = job
        keys[key] = job.id
    counted = ((job, groups_of[job.id].count if job.id in groups_of else 1) for job in new.values())
    if (many := rights.too_many(state, event.token, counted)) is not None:
        state.out.append(many)
        return
    for job in new.values():
        if stands_for and isinstance(job.phase, HeldBack):
            job.phase.after = tuple(replace(one, on=stands_for.get(one.on, one.on)) for one in job.after)
        if (group := groups_of.get(job.id)) is not None:
            group.after = job.after
            submitted_group(state, group, job)
        else:
            submitted(state, job)
    fit = can_fit(state, event.jobs[0].request) if event.jobs else 0
    state.out.append(Accepted(event.token, tuple(ids), fit, len(state.nodes)))


def refusal(state: GridState, token: int, request: Request) -> Rejected | None:
    """The rejection of a request that can never be met; None: it can."""
    wanted = request.resources
    if not wanted:
        return Rejected(token, "bad-value", "nothing is asked for", "every amount is zero", "ask for 1 cpu")
    if wanted.gpu > MILLI and wanted.gpu % MILLI:
        return Rejected(
            token,
            "bad-value",
            f"{amount('gpu', wanted)} cannot be granted",
            "a part of a GPU comes from one device, so above 1 only whole GPUs can be asked for",
            f"ask for {wanted.gpu // MILLI + 1}",
        )
    if (refused := revocable.refusal(token, request)) is not None:
        return refused
    if not state.nodes:
        return None  # the first agents may be about to connect
    if name := unknown_name(state, request):
        return unknown_node(state, token, name)
    able = can_fit(state, request)
    if (not able or request.gang > able) and state.policy.scaling.pools:
        from distributed_grid.coordinator.core.scaling.packing import pool_for  # only where there are pools

        if pool_for(state, request):
            return None
    if not able:
        what, why, hint = never_fits(state, request)
        return Rejected(token, "never-fits", what, why, hint)
    if request.gang > able:
        what = f"asks {wanted} on each of {request.gang} nodes; {able} of {len(state.nodes)} could ever run it"
        why, hint = "the members of a gang run on different nodes", f"ask for {text.counted(able, 'node')} or less"
        return Rejected(token, "never-fits", what, why, hint)
    return None


def unknown_node(state: GridState, token: int, name: str) -> Rejected:
    """The rejection of a request that names an unknown node."""
    unknown = text.unknown_node(name, state.nodes)
    return Rejected(token, "bad-value", unknown.what, unknown.why, unknown.hint)


# --- cancel and signal ----------------------------------------------------------------------------------------------


def cancel(state: GridState, event: CancelRequested) -> None:
    """Cancel these jobs. Names are resolved at submission, so an unknown id is that of a job that has ended."""
    asked = over = 0
    for name in event.jobs:
        one = state.jobs.get(name)
        members = state.groups.get(one.group if one is not None and one.request.gang else name)  # a gang ends as one
        found = [state.jobs[each] for each in members.live] if members is not None else [one]
        for job in found:
            if job is None:
                over += 1
                continue
            asked += 1
            if job.id in state.jobs:
                groups.end(state, job, event.reason or "cancelled", event.grace)
    some = f"{over} of {asked + over} had ended already" if over else ""
    state.out.append(Granted(event.token, some if asked else "already ended"))


def signal(state: GridState, event: SignalRequested) -> None:
    """Send a signal to a running job."""
    job = state.jobs.get(event.job)
    if job is None:
        state.out.append(Rejected(event.token, "not-allowed", f"{event.job} has ended", "there is nothing to signal"))
        return
    if job.state is not State.RUNNING:
        what = f"{job.id} is {job.state.value} and cannot be sent a signal"
        hint = "wait until it runs, or cancel it" if job.state in (State.WAITING, State.STARTING) else ""
        state.out.append(Rejected(event.token, "unavailable", what, "signals go to running jobs only", hint))
        return
    if not state.nodes[job.node].session:
        what, why = f"{job.node} cannot be reached", "its agent is not connected"
        state.out.append(Rejected(event.token, "unavailable", what, why, "try again when it is back"))
        return
    state.out.append(Send(job.node, Signal(allocation=job.allocation, signal=event.signal)))
    state.out.append(Granted(event.token))
