"""How well the grid serves its users, in four figures, since its coordinator started."""

import msgspec

from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Status
from distributed_grid.protocol.resources import MILLI, Grant

HOUR = 3600.0


class Performance(msgspec.Struct, frozen=True):
    """`execution_time`: for how long jobs ran, median and 95th percentile (s); None: none has run. `efficiency`: the
    part of the core-seconds held by what has ended that was used (a hold counts when it has ended, what ran inside as
    that ends); None: nothing was held. `success`: the part of
    requests that were placed, of those and the ones that ended as not placed; None: none was decided. `moves_an_hour`
    of rebalancing."""

    execution_time: tuple[float, float] | None
    efficiency: float | None
    success: float | None
    moves_an_hour: float

    def plain(self) -> dict[str, object]:
        """By the names of the sharing guide, for programs."""
        time = self.execution_time
        return {
            "task_execution_time": {"median": round(time[0], 3), "p95": round(time[1], 3)}
            if time is not None
            else None,
            "resource_efficiency": self.efficiency,
            "allocation_success_rate": self.success,
            "rebalancing_frequency": self.moves_an_hour,
        }


def performance(status: Status) -> Performance:
    """The figures of a status."""
    runs, refused = status.runs, status.ended.get(Cause.NOT_PLACED.value, 0)
    used, held = status.core_seconds_used, status.core_seconds_held
    return Performance(
        execution_time=(runs.median, runs.p95) if runs is not None else None,
        efficiency=round(min(1.0, used / held), 4) if held else None,
        success=round(status.placed / (status.placed + refused), 4) if status.placed + refused else None,
        moves_an_hour=round(status.moves * HOUR / max(1.0, status.up_for), 4),
    )


def core_seconds(request: Request, grant: Grant | None, outcome: Outcome) -> tuple[float, float]:
    """The core-seconds that an ended attempt has used and held. What it used beyond its grant counts for nothing, and
    what ran in a hold was held by that."""
    held = grant.resources.cpu / MILLI * outcome.seconds if grant is not None else 0.0
    return min(outcome.cpu_seconds, held), 0.0 if request.within else held
