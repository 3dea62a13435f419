"""Idle detection: jobs that hold cores or GPUs and use almost none of them.

A device counts as idle after an uninterrupted streak of samples below the threshold, as long as the window. A sample
above it, a suspension or a gap in the reports resets the streak, so a job with alternating load is never idle. (A
streak takes constant memory, unlike a ring buffer of samples.)

The submitter is warned once, with the request that would have been enough. If the policy is to release, a job that uses
none of its GPUs for that much longer is ended as `released`. It is not requeued: it would be idle again.
"""

import math

from distributed_grid.coordinator.core.data import Idle, Streak
from distributed_grid.coordinator.core.lending import revocable, slack
from distributed_grid.coordinator.core.lifecycle import attempts
from distributed_grid.coordinator.core.model import Allocation, Job, Node
from distributed_grid.coordinator.core.policy import Unused
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.protocol.jobs import Cause, State, Use, Used
from distributed_grid.protocol.messages import InUse
from distributed_grid.protocol.resources import MILLI, format_milli
from distributed_grid.protocol.text import counted, format_duration

GAP = 60.0
"""Seconds without a report that reset the streaks."""
SAMPLES = 3
"""Minimum number of reports in a streak."""
CPU = "cpu"


def usage_reported(state: GridState, node: Node, message: InUse) -> None:
    """Handle a usage report of a node."""
    for use in message.uses:
        allocation = state.allocations.get(use.allocation)
        if allocation is None or allocation.node != node.facts.name or allocation.hold:
            continue
        if allocation.state is State.RUNNING:
            job = state.jobs[allocation.job]
            if job.active.frozen:
                continue
            before = job.used if job.used is not None and job.used.allocation == allocation.id else None
            job.used = (before or Used(allocation=allocation.id)).plus(use)
            slack.record_use(state, allocation, use)
            _judge(state, job, allocation, use)
    if state.usual:
        revocable.news(state)


def _judge(state: GridState, job: Job, allocation: Allocation, use: Use) -> None:
    policy, now = state.policy.unused, state.now
    before = state.idle.get(allocation.id)
    if before is None or now - before.reported > max(GAP, 3 * use.seconds):
        before = Idle(now, {})
    streaks = _streaks(before.streaks, allocation, use, policy, now)
    if not streaks and not job.unused:  # all that it holds is in use, as with most jobs
        state.idle[allocation.id] = Idle(now, streaks)
        return
    long = {
        name: streak
        for name, streak in streaks.items()
        if now - streak.since >= policy.window and streak.samples >= SAMPLES
    }
    known = [name for name in before.warned_devices if name in streaks]
    names, text = _sentence(job, allocation, long, now)
    if any(name not in known for name in names):
        _set_warning(state, job, allocation, text, text)
    elif job.unused and not streaks:
        _set_warning(state, job, allocation, "", "it uses what it holds again")
    gpus = [gpu.uuid for gpu in allocation.grant.gpus]
    none_used = bool(gpus) and all(uuid in long for uuid in gpus)
    warned = (before.warned or now) if none_used else 0.0
    state.idle[allocation.id] = Idle(now, streaks, tuple(dict.fromkeys([*known, *names])), warned)
    if policy.release_after and none_used and now - warned >= policy.release_after:
        since = max(long[uuid].since for uuid in gpus)
        unused = "GPU" if len(gpus) == 1 else counted(len(gpus), "GPU")
        text = f"its {unused} went unused for {format_duration(now - since)} (unused.policy)"
        attempts.request_stop(state, allocation, Cause.RELEASED, text, job.spec.grace)


def _set_warning(state: GridState, job: Job, allocation: Allocation, unused: str, text: str) -> None:
    job.unused = unused
    state.tell(job, text)
    state.changed(job, allocation, soon=True)


def _streaks(
    before: dict[str, Streak], allocation: Allocation, use: Use, policy: Unused, now: float
) -> dict[str, Streak]:
    found: dict[str, Streak] = {}
    grant = allocation.grant
    cores = len(grant.cores) + grant.shared_milli / MILLI  # none of one on slack
    if use.cpu_peak < policy.threshold * cores:
        last = before.get(CPU, Streak(now - use.seconds))
        used = last.used + use.cpu * use.seconds
        found[CPU] = Streak(last.since, last.samples + 1, used, max(last.peak, use.cpu_peak))
    for gpu in use.gpus:
        if gpu.peak < 100 * policy.threshold:
            last = before.get(gpu.uuid, Streak(now - use.seconds))
            found[gpu.uuid] = Streak(last.since, last.samples + 1)
    return found


def _sentence(job: Job, allocation: Allocation, long: dict[str, Streak], now: float) -> tuple[list[str], str]:
    """The idle devices to warn about, and the warning: what the job holds, what it used and for how long, and what
    would have been enough."""
    grant = allocation.grant
    names: list[str] = []
    holds, used, enough = [], [], []
    seconds = math.inf
    if (streak := long.get(CPU)) is not None:
        cores = _enough(streak.peak)
        if cores < grant.resources.cpu:
            mean = streak.used / (now - streak.since)
            names.append(CPU)
            holds.append(_cores(grant.resources.cpu))
            used.append("none of them" if mean < 0.05 else f"{mean:.1f} of {'one' if mean < 1 else 'them'}")
            enough.append(f"--cpus {format_milli(cores)}")
            seconds = now - streak.since
    if gpus := [gpu for gpu in grant.gpus if gpu.uuid in long]:
        names += [gpu.uuid for gpu in gpus]
        busy = len(grant.gpus) - len(gpus)
        holds.append(f"{format_milli(grant.resources.gpu)} GPU{'s' if len(grant.gpus) > 1 else ''}")
        used.append(f"{busy} of the GPUs" if busy else "no GPU" if holds[:-1] else "none")
        enough.append(f"--gpus {busy}" if busy else "no --gpus")
        seconds = min(seconds, *(now - long[gpu.uuid].since for gpu in gpus))
    if not names:
        return names, ""
    what = f"holds {' and '.join(holds)} and used {' and '.join(used)} for {format_duration(seconds)}"
    return names, f"{job.id} {what}; {' with '.join(enough)} would have been enough"


def _enough(peak: float) -> int:
    """Milli-cores to request for this peak: rounded up to whole cores, or to tenths below one half."""
    return max(1, math.ceil(peak * 10)) * MILLI // 10 if peak <= 0.5 else math.ceil(peak) * MILLI


def _cores(milli: int) -> str:
    return "1 core" if milli == MILLI else f"{format_milli(milli)} cores"
