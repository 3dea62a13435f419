"""`grid jobs --wasteful`, and a line of `grid job show`: resources that jobs held and did not use, and the request that
would have been enough."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from distributed_grid.cli import formatting
from distributed_grid.cli.context import Invocation
from distributed_grid.cli.jobs.predict import FEWEST_BYTES, STEP
from distributed_grid.protocol.jobs import Cause, JobView, State
from distributed_grid.protocol.resources import MILLI, format_bytes
from distributed_grid.protocol.text import counted

LOOKED_AT = 10_000
"""Maximum number of jobs examined, newest ends first."""
MARGIN = 1.1
"""Memory that counts as enough, as a multiple of the peak."""
TOO_MUCH = 0.75
"""A request is too large if this part of it would have been enough."""
GB_A_CORE = 4.0
"""GB-hours that weigh as much as one core-hour."""
GB = 1e9


class Waste(NamedTuple):
    """The unused part of what a job held: GB-hours of memory and core-hours; `memory` (bytes), `cores` and, on each
    GPU, `gpu_memory` (bytes) would have been enough (0: it did not request too much)."""

    view: JobView
    gb_hours: float
    core_hours: float
    memory: int
    cores: int
    gpu_memory: int = 0

    @property
    def weight(self) -> float:
        """The waste in core-hours, by which jobs are ordered."""
        return self.core_hours + self.gb_hours / GB_A_CORE

    def enough(self) -> str:
        """The options that would have been enough."""
        parts = [f"--cpus {self.cores}"] * bool(self.cores) + [f"--mem {format_bytes(self.memory)}"] * bool(self.memory)
        parts += [f"--gpu-memory {format_bytes(self.gpu_memory)}"] * bool(self.gpu_memory)
        return " ".join(parts)


def waste_of(view: JobView) -> Waste | None:
    """The waste of a job that asked for too much; None if it did not, or if that is unknown, as for a job that failed
    or was ended: it might have used more."""
    grant, outcome, used = view.grant, view.outcome, view.used
    if used is not None and used.allocation != view.allocation:
        used = None
    if grant is None or view.spec.boost is not None or view.spec.hold:
        return None
    if view.state is State.ENDED and (outcome is None or outcome.cause is not Cause.EXITED or outcome.code):
        return None
    seconds = used.seconds if used is not None else 0.0
    peak = used.memory if used is not None else 0
    cpu_seconds, most = (used.cpu_seconds, used.cpu_peak) if used is not None else (0.0, 0.0)
    if outcome is not None:
        seconds = max(0.0, outcome.seconds - outcome.suspended)
        peak, cpu_seconds = max(peak, outcome.peak_memory), outcome.cpu_seconds
    if not seconds:
        return None
    held, cores = grant.resources.memory, grant.resources.cpu / MILLI
    enough_memory = _rounded(peak) if peak else 0
    # How many cores a run used at once that was over before it was measured nobody knows: its mean says too little.
    known = cpu_seconds and used is not None
    enough_cores = max(1, math.ceil(max(most, cpu_seconds / seconds) - 0.05)) if known else 0
    found = Waste(
        view,
        max(0, held - peak) * seconds / 3600 / GB if 0 < enough_memory <= TOO_MUCH * held else 0.0,
        max(0.0, cores - cpu_seconds / seconds) * seconds / 3600 if 0 < enough_cores <= TOO_MUCH * cores else 0.0,
        enough_memory if enough_memory <= TOO_MUCH * held else 0,
        enough_cores if enough_cores <= TOO_MUCH * cores else 0,
        _gpu_memory(view, used.gpu_memory if used is not None else 0),
    )
    return found if found.memory or found.cores or found.gpu_memory else None


def _gpu_memory(view: JobView, peak: int) -> int:
    """The request for free GPU memory that would have been enough; 0: not less than it asked for, or unknown."""
    asked = view.request.constraints.gpu_memory if view.request.constraints is not None else 0
    enough = _rounded(peak) if peak else 0
    return enough if enough <= TOO_MUCH * asked else 0


def _rounded(peak: int) -> int:
    return -(-max(FEWEST_BYTES, int(peak * MARGIN)) // STEP) * STEP


def wasteful(views: Iterable[JobView]) -> list[Waste]:
    """The jobs that asked for too much, those that wasted most first."""
    return sorted(filter(None, map(waste_of, views)), key=lambda one: -one.weight)


def show_wasteful(invocation: Invocation, views: Iterable[JobView], limit: int) -> None:
    """Print jobs that asked for too much, what would have been enough, and the waste of each user."""
    found = wasteful(views)
    users: dict[str, list[Waste]] = {}
    for one in found:
        users.setdefault(one.view.user, []).append(one)
    match invocation.output:
        case "json" | "jsonl":
            rows = [_json(one) for one in found[:limit]]
            sums = [
                {
                    "user": user,
                    "jobs": len(ones),
                    "gb_hours": round(sum(one.gb_hours for one in ones), 3),
                    "core_hours": round(sum(one.core_hours for one in ones), 3),
                }
                for user, ones in users.items()
            ]
            formatting.emit_json(invocation, {"wasteful": rows, "users": sums}, rows="wasteful")
        case "quiet":
            formatting.emit("".join(f"{one.view.id}\n" for one in found[:limit]))
        case _ if not found:
            formatting.emit("no job asked for much more than it used\n")
        case _:
            header = ("ID", "NAME", "USER", "HELD", "WASTED", "ENOUGH")
            formatting.emit(formatting.table(invocation, header, map(_row, found[:limit])))
            for user, ones in users.items():
                core_hours, gb_hours = (sum(getattr(one, name) for one in ones) for name in ("core_hours", "gb_hours"))
                invocation.say(f"{user}: {_hours(core_hours, gb_hours)} in {counted(len(ones), 'job')}")


def _row(one: Waste) -> list[str]:
    view = one.view
    held = str(view.grant.resources) if view.grant is not None else "-"
    return [
        view.id,
        formatting.short_name(view.spec),
        view.user,
        held,
        _hours(one.core_hours, one.gb_hours),
        one.enough(),
    ]


def _hours(core_hours: float, gb_hours: float) -> str:
    parts = [f"{core_hours:.3g} core-hours"] * bool(core_hours) + [f"{gb_hours:.3g} GB-hours"] * bool(gb_hours)
    return " and ".join(parts)


def _json(one: Waste) -> dict[str, Any]:
    view = one.view
    return {
        "id": view.id,
        "name": view.spec.name,
        "user": view.user,
        "held": formatting.resources_json(view.grant.resources) if view.grant is not None else None,
        "gb_hours": round(one.gb_hours, 6),
        "core_hours": round(one.core_hours, 6),
        "enough": {"cpu": one.cores or None, "memory": one.memory or None, "gpu_memory": one.gpu_memory or None},
    }
