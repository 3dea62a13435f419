"""The whole grid in a few numbers: what its nodes have, offer, lend and use, and how busy they are; and how well it
serves its users, in four figures since the start of its coordinator."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from distributed_grid.protocol.history.trends import Measured, NodeTrends, Trend
from distributed_grid.protocol.jobs import Cause, Outcome, Request
from distributed_grid.protocol.messages import Status
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.protocol.resources import MILLI, Grant, Resources

HOUR = 3600.0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`states`: nodes by state, `no agent` of those that were declared. `total`, `offered`, `lent` of the nodes that
    are up. `used`: part of what the measured nodes have that is in use, by all and by owners alone, by resource.
    `pressure`: the mean over nodes, of all use and of owners'; None: none was measured. `busiest`: the node under the
    highest pressure; empty: none."""

    states: Mapping[str, int]
    total: Resources
    offered: Resources
    lent: Resources
    used: Mapping[Measured, tuple[float, float]]
    pressure: tuple[float, float] | None
    busiest: str


def summary(nodes: Iterable[NodeView], trends: Iterable[NodeTrends]) -> Summary:
    """Sum up the nodes, and the trends of a window. A node's part of a resource weighs by how much of it the node
    has."""
    views = list(nodes)
    up = [node for node in views if node.state is NodeState.UP]
    total, offered, lent = Resources(), Resources(), Resources()
    for node in up:
        total += Resources(len(node.facts.cores) * MILLI, node.facts.memory, len(node.facts.gpus) * MILLI)
        offered, lent = offered + node.offered, lent + node.lent
    measured = [one for one in trends if one.all is not None and one.owner is not None]
    pressures = [(one.all.score, one.owner.score, one.node) for one in measured if one.all and one.owner]
    count = max(1, len(pressures))
    means = sum(score for score, _, _ in pressures) / count, sum(score for _, score, _ in pressures) / count
    return Summary(
        states=Counter(node.link for node in views),
        total=total,
        offered=offered,
        lent=lent,
        used={what: used for what in (Measured.CPU, Measured.MEMORY, Measured.GPU) if (used := _used(measured, what))},
        pressure=means if pressures else None,
        busiest=max(pressures)[2] if pressures else "",
    )


def _used(measured: Iterable[NodeTrends], what: Measured) -> tuple[float, float] | None:
    weight = all_ = owners = 0.0
    for node in measured:
        trend = trend_of(node, what)
        if trend is not None and trend.buckets and not trend.why:
            amount = {Measured.CPU: node.total.cpu, Measured.MEMORY: node.total.memory}.get(what, node.total.gpu)
            weight += amount
            all_ += trend.level * amount
            owners += trend.owner * amount
    return (all_ / weight, owners / weight) if weight else None


def trend_of(node: NodeTrends, what: Measured) -> Trend | None:
    """The node's trend of this resource; None: it was not asked for, or the node has none."""
    return next((one for one in node.trends if one.what is what), None)


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
        """The summary by the names of the sharing guide, for programs."""
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
