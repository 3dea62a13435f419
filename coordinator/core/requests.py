"""What users ask for: jobs to take, jobs to end, signals to send. Every request is answered by exactly one command."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from distributed_grid.coordinator.core import dependencies, groups
from distributed_grid.coordinator.core.constraints import marked
from distributed_grid.coordinator.core.feasible import can_fit, never_fits, unknown_name
from distributed_grid.coordinator.core.matching import amount
from distributed_grid.coordinator.core.model import (
    Accepted,
    CancelAsked,
    Granted,
    Job,
    JobsSubmitted,
    RecordJob,
    Rejected,
    Send,
    SignalAsked,
)
from distributed_grid.protocol import naming
from distributed_grid.protocol.jobs import Request, State
from distributed_grid.protocol.messages import Signal
from distributed_grid.protocol.resources import MILLI

if TYPE_CHECKING:
    from distributed_grid.coordinator.core.ledger import Ledger


# --- submit ---------------------------------------------------------------------------------------------------------


def which(number: int, count: int, name: str) -> str:
    """Which of the jobs of one call is spoken of; nothing where it is the only one."""
    called = f" ({name})" if name else ""
    return f"job {number} of {count}{called}: " if count > 1 else ""


def submit(ledger: "Ledger", event: JobsSubmitted) -> None:
    """Take these jobs, all or none. A key that is known stands for the job that is there."""
    ids: list[str] = []
    new: dict[str, Job] = {}
    keys: dict[tuple[str, str], str] = {}
    sound: set[Request] = set()
    stands_for: dict[str, str] = {}
    groups_of = {group.id: group for group in event.groups}
    for number, job in enumerate(event.jobs, 1):
        key = (job.user, job.key)
        known = ledger.keys.get(key) or ledger.past_keys.get(key) or keys.get(key)
        if known is not None:
            ids.append(known)
            stands_for[job.id] = known
            continue
        refused, job.request = None, marked(ledger.policy, job.request, job.user)
        if job.id in ledger.jobs or job.id in ledger.groups or job.id in new:
            refused = Rejected(event.token, "bad-value", f"there is a job {job.id} already", "ids are never used twice")
        elif job.request not in sound:
            refused = refusal(ledger, event.token, job.request)
            sound.add(job.request)
        if refused is not None:
            what = which(number, len(event.jobs), job.spec.name) + refused.what
            ledger.out.append(replace(refused, what=what))
            return
        ids.append(job.id)
        new[job.id] = job
        keys[key] = job.id
    for job in new.values():
        if stands_for and job.after:
            job.after = tuple(replace(one, on=stands_for.get(one.on, one.on)) for one in job.after)
        if (group := groups_of.get(job.id)) is not None:
            group.after = job.after
            if group.after or group.begin > ledger.now:
                dependencies.hold(ledger, group)
            groups.take(ledger, group, job)
            continue
        ledger.enter(job)
        ledger.tell(job, "submitted")
        ledger.out.append(RecordJob(job, new=True))
    fit = can_fit(ledger, event.jobs[0].request) if event.jobs else 0
    ledger.out.append(Accepted(event.token, tuple(ids), fit, len(ledger.nodes)))


def refusal(ledger: "Ledger", token: int, request: Request) -> Rejected | None:
    """Why this can never be done, if so."""
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
    if not ledger.nodes:
        return None  # the first agents may be about to come
    if name := unknown_name(ledger, request):
        return unknown_node(ledger, token, name)
    able = can_fit(ledger, request)
    if not able:
        what, why, hint = never_fits(ledger, request)
        return Rejected(token, "never-fits", what, why, hint)
    if request.gang > able:
        what = f"asks {wanted} on each of {request.gang} nodes; {able} of {len(ledger.nodes)} could ever run it"
        why, hint = "the members of a gang run on different nodes", f"ask for {able} nodes or less"
        return Rejected(token, "never-fits", what, why, hint)
    return None


def unknown_node(ledger: "Ledger", token: int, name: str) -> Rejected:
    """The answer to who names a node that is not known."""
    unknown = naming.unknown_node(name, ledger.nodes)
    return Rejected(token, "bad-value", unknown.what, unknown.why, unknown.hint)


# --- cancel and signal ----------------------------------------------------------------------------------------------


def cancel(ledger: "Ledger", event: CancelAsked) -> None:
    """End these jobs. Names are resolved outside, so an id that is not here is that of a job that has ended."""
    asked = over = 0
    for name in event.jobs:
        one = ledger.jobs.get(name)
        members = ledger.groups.get(one.group if one is not None and one.request.gang else name)  # a gang ends as one
        found = [ledger.jobs[each] for each in members.live] if members is not None else [one]
        for job in found:
            if job is None:
                over += 1
                continue
            asked += 1
            if job.id in ledger.jobs:
                groups.end(ledger, job, event.reason or "cancelled", event.grace)
    some = f"{over} of {asked + over} had ended already" if over else ""
    ledger.out.append(Granted(event.token, some if asked else "already ended"))


def signal(ledger: "Ledger", event: SignalAsked) -> None:
    """Send a signal to a job that runs."""
    job = ledger.jobs.get(event.job)
    if job is None:
        ledger.out.append(Rejected(event.token, "not-allowed", f"{event.job} has ended", "there is nothing to signal"))
        return
    if job.state is not State.RUNNING:
        what = f"{job.id} is {job.state.value} and cannot be sent a signal"
        hint = "wait until it runs, or cancel it" if job.state in (State.WAITING, State.STARTING) else ""
        ledger.out.append(Rejected(event.token, "unavailable", what, "signals go to running jobs only", hint))
        return
    if not ledger.nodes[job.node].session:
        what, why = f"{job.node} cannot be reached", "its agent is not connected"
        ledger.out.append(Rejected(event.token, "unavailable", what, why, "try again when it is back"))
        return
    ledger.out.append(Send(job.node, Signal(allocation=job.allocation, signal=event.signal)))
    ledger.out.append(Granted(event.token))
