"""What the ledger goes by is whole in itself."""

import math

import msgspec
import pytest

from distributed_grid.coordinator.core.policy import DEFAULT, WEIGHTS, Policy
from distributed_grid.protocol.placement import Strategy


@pytest.mark.parametrize("strategy", Strategy)
def test_the_weights_of_each_strategy_make_one(strategy: Strategy) -> None:
    assert math.fsum(msgspec.structs.astuple(WEIGHTS[strategy])) == pytest.approx(1.0)


def test_who_names_no_strategy_goes_by_the_policys_own_weights() -> None:
    own = WEIGHTS[Strategy.PACK]
    policy = Policy(strategy=Strategy.SPREAD, weights=own)
    assert policy.weights_of(None) is policy.weights_of(Strategy.SPREAD) is own
    assert policy.weights_of(Strategy.BEST_FIT) is WEIGHTS[Strategy.BEST_FIT]


def test_silence_makes_a_node_suspect_before_it_is_disconnected() -> None:
    assert 0 < DEFAULT.suspect_after < DEFAULT.disconnected_after < DEFAULT.disconnected_after + DEFAULT.lost_after
