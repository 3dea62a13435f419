"""The whole grid in a few numbers: what its nodes have, offer, lend and use, and how busy they are."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from distributed_grid.protocol.history.trends import Measured, NodeTrends, Trend
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.protocol.resources import MILLI, Resources


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
