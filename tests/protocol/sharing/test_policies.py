"""Modes and policies: four values, what each trades, and what operators set over the configuration."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.sharing.policies import (
    DOES,
    NO_ORDER,
    POLICIES,
    TRADES,
    Balancing,
    BalancingOrder,
    OffloadingMode,
    PolicyName,
    SharingPolicy,
    parse_mode,
    parse_policy,
    too_close,
    values_of,
)


def test_each_policy_has_its_values_and_each_number_says_what_it_trades() -> None:
    assert POLICIES.keys() == set(PolicyName)
    assert tuple(TRADES) == SharingPolicy.__struct_fields__
    assert DOES.keys() == set(OffloadingMode)


def test_an_eager_policy_waits_less_leaves_less_and_moves_more() -> None:
    calm, usual, eager = (POLICIES[PolicyName(name)] for name in ("conservative", "balanced", "aggressive"))
    for name in ("headroom", "sustained", "min_hold", "cooldown"):
        assert getattr(calm, name) > getattr(usual, name) > getattr(eager, name)
    assert calm.moves < usual.moves < eager.moves


@pytest.mark.parametrize(("name", "headroom"), [("balanced", 0.4), ("predictive", 0.4), ("aggressive", 0.05)])
def test_the_headroom_of_balanced_and_predictive_is_the_excess_threshold(name: str, headroom: float) -> None:
    assert values_of(PolicyName(name), 0.4).headroom == headroom


@pytest.mark.parametrize(("low", "refused"), [(0.6, False), (0.61, True), (0.8, True), (0.9, True)])
def test_marks_have_to_be_apart(low: float, refused: bool) -> None:
    assert too_close(0.8, low) is refused
    assert not too_close(0.5, 0.3), "which no float is exactly"


def test_an_order_stands_over_what_is_configured_as_far_as_it_says_something() -> None:
    configured = Balancing(mode=OffloadingMode.DYNAMIC_BALANCING, interval=7.0)
    assert NO_ORDER.over(configured) == configured
    found = BalancingOrder(policy=PolicyName.AGGRESSIVE, by="op").over(configured)
    assert (found.mode, found.policy, found.interval) == (configured.mode, PolicyName.AGGRESSIVE, 7.0)
    assert found.values == POLICIES[PolicyName.AGGRESSIVE]


def test_words_for_policies_and_modes_are_read_and_mistakes_are_answered_with_a_suggestion() -> None:
    assert parse_policy(" Balanced ") is PolicyName.BALANCED
    assert parse_mode("offload-only") is OffloadingMode.OFFLOAD_ONLY
    with pytest.raises(BadValue) as caught:
        parse_policy("agressive")
    assert "did you mean aggressive?" in caught.value.hint
    with pytest.raises(BadValue) as caught:
        parse_mode("dynamic")
    assert "dynamic_balancing" in caught.value.hint
