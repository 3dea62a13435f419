"""The passes of the benchmark of rebalancing are what they are called, and cheap enough."""

import pytest

from bench.decisions import rebalancing
from distributed_grid.protocol.sharing.policies import OffloadingMode


@pytest.mark.parametrize(("nodes", "goal"), [(1_000, 50.0), (10_000, 400.0)])
def test_a_pass_over_many_nodes_keeps_within_its_goal_in_cpu_time(nodes: int, goal: float) -> None:
    """With what comes of it: boosts are lent in all but the first."""
    found = rebalancing.passes(nodes, OffloadingMode.DYNAMIC_BALANCING, 6)
    assert found["median_ms"] < goal and found["boosts"] == 5 * 8


def test_what_is_only_decided_lends_nothing() -> None:
    assert rebalancing.passes(100, OffloadingMode.SHARE_AND_OFFLOAD, 4)["boosts"] == 0
