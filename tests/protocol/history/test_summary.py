"""The grid in a few numbers."""

from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.protocol.history.summary import summary, trend_of
from distributed_grid.protocol.history.trends import Measured, NodeTrends, Trend
from distributed_grid.protocol.nodes import NodeState, NodeView
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.sharing.pressure import Pressure
from tests.coordinator.core.scene import facts


def told(name: str, cores: int, cpu: float, score: float, **more: Any) -> NodeTrends:
    return NodeTrends(
        node=name,
        state=NodeState.UP,
        total=Resources(1000 * cores),
        all=Pressure(score),
        owner=Pressure(score / 2),
        trends=(Trend(what=Measured.CPU, step=10.0, buckets=30, level=cpu, owner=cpu / 2, **more),),
    )


def test_a_grid_without_nodes_has_a_summary_too() -> None:
    found = summary([], [])
    assert (found.states, found.total, found.used, found.pressure, found.busiest) == ({}, Resources(), {}, None, "")


def test_use_is_weighed_by_what_nodes_have_and_pressure_is_their_mean() -> None:
    found = summary([], [told("a", 1, 1.0, 0.9), told("b", 3, 0.0, 0.1)])
    assert found.used == {Measured.CPU: (0.25, 0.125)}
    assert found.pressure == pytest.approx((0.5, 0.25)) and found.busiest == "a"


def test_nodes_that_are_not_up_offer_nothing_and_are_counted() -> None:
    up = NodeView(facts=facts("n1"), state=NodeState.UP, offered=Resources(1000), lent=Resources(2000))
    lost = NodeView(facts=facts("n2"), state=NodeState.LOST, lent=Resources(4000))
    found = summary([up, lost], [])
    assert dict(found.states) == {"up": 1, "lost": 1}
    assert (found.offered, found.lent) == (Resources(1000), Resources(2000))
    assert found.total.cpu == 1000 * len(up.facts.cores)


def test_what_was_not_measured_does_not_count() -> None:
    silent = NodeTrends(node="c", state=NodeState.LOST, total=Resources(8000))
    young = told("d", 8, 0.0, 0.3, why="2 of at least 3 buckets")
    found = summary([], [told("a", 1, 1.0, 0.9), silent, young])
    assert found.used == {Measured.CPU: (1.0, 0.5)} and found.pressure == pytest.approx((0.6, 0.3))
    assert trend_of(silent, Measured.CPU) is None


def test_nodes_without_agent_are_counted_as_such() -> None:
    declared = replace(facts("w1"), declared=Resources(1000))
    assert summary([NodeView(facts=declared, state=NodeState.UP)], []).states == {"no agent": 1}
