"""What the ledger goes by is whole in itself."""

import math

import msgspec
import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.policy import DEFAULT, GPU_WEIGHTS, WEIGHTS, Policy
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import Strategy
from distributed_grid.protocol.resources import Resources

ONE, A_GPU = Request(Resources(cpu=1000)), Request(Resources(cpu=1000, gpu=1000))


@pytest.mark.parametrize("strategy", Strategy)
def test_the_weights_of_each_strategy_make_one(strategy: Strategy) -> None:
    for weights in (WEIGHTS[strategy], GPU_WEIGHTS[strategy]):
        assert math.fsum(msgspec.structs.astuple(weights)) == pytest.approx(1.0)


def test_who_names_no_strategy_goes_by_the_policys_own_weights() -> None:
    own = WEIGHTS[Strategy.PACK]
    policy = Policy(strategy=Strategy.SPREAD, weights=own)
    spread, best_fit = (replace(ONE, strategy=one) for one in (Strategy.SPREAD, Strategy.BEST_FIT))
    assert policy.weights_of(ONE) is policy.weights_of(spread) is own
    assert policy.weights_of(best_fit) is WEIGHTS[Strategy.BEST_FIT]


def test_fragmentation_counts_for_requests_with_gpus_where_nothing_else_was_chosen() -> None:
    weights = DEFAULT.weights_of(A_GPU)
    assert weights.fragmentation > 4 * (weights.fit + weights.quiet + weights.priority)
    assert weights.preferred > 0.4, "of a gang, the nodes that were named come before those where less is lost"
    assert DEFAULT.weights_of(ONE).fragmentation == 0
    assert DEFAULT.by_strategy(Strategy.PACK).weights_of(A_GPU).fragmentation == 0


def test_silence_makes_a_node_suspect_before_it_is_disconnected() -> None:
    assert 0 < DEFAULT.suspect_after < DEFAULT.disconnected_after < DEFAULT.disconnected_after + DEFAULT.lost_after
