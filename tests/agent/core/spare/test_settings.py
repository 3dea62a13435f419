"""A node's own configuration may lend less than the grid's, and never more; where one of them says nothing, the other
counts; and what nobody says is as usual."""

from typing import Any

import pytest

from distributed_grid.agent.core.spare.lender import Lender
from distributed_grid.agent.core.spare.settings import RULES, combine, limits_of
from distributed_grid.agent.core.spare.thresholds import Limits
from distributed_grid.config.kinds import settings_of
from distributed_grid.config.lending import defaults
from distributed_grid.config.schema import SETTINGS
from distributed_grid.config.sharing import NodeSharing, ResourceSharing, Thresholds
from distributed_grid.protocol.nodes import LENDING, Layer, Lending, OwnerPolicy
from distributed_grid.protocol.resources import GIB, MIB
from tests.agent.core.spare.scene import FACTS, seen, why

# Of each setting a value that lends less, and one that lends more.
LESS_AND_MORE: dict[str, tuple[Any, Any]] = {
    "enabled": (False, True),
    "can_share": (False, True),
    "max_share_cpu": (2.0, 4.0),
    "max_share_memory_gb": (0.0, 8.0),
    "max_share_gpu": (0, 1),
    "priority": (0.5, 2.0),
    "gpu_utilization_max": (10.0, 50.0),
    "gpu_memory_min_mb": (4096.0, 1.0),
    "memory_percent_max": (20.0, 100.0),
    "memory_min_gb": (8.0, 0.0),
    "cpu_percent_max": (5.0, 100.0),
    "cpu_min_cores": (4.0, 1.0),
    "monitoring_interval_seconds": (1.0, 60.0),
    "offer_expiry": (60.0, 600.0),
    "max_offers_per_node": (1, 9),
    "owner_policy": (OwnerPolicy.RECALL, OwnerPolicy.SUSPEND),
    "owner_after": (0.0, 5.0),
    "owner_quiet": (600.0, 1.0),
    "owner_most": (60.0, 0.0),
    "owner_hold": (0.0, 60.0),
    "owner_pressure": (10.0, 100.0),
    "owner_input": (True, False),
}
NEITHER = {"check_interval": (5.0, 600.0)}
ON_THE_MASTER = {path[-1] for path in SETTINGS if path[0] == "resource_sharing" and path[-1] not in LENDING}
"""What no agent follows: the coordinator decides by them."""


def of(origin: str, **values: Any) -> Layer:
    return Layer(Lending(**values), dict.fromkeys(values, origin))


def test_every_setting_of_sharing_has_a_rule_or_is_decided_on_the_master() -> None:
    every = {one.name for section in (ResourceSharing, Thresholds, NodeSharing) for one in settings_of(section)}
    assert set(RULES) == set(LENDING), "say in RULES which direction of a new setting lends less"
    assert every == set(RULES) | ON_THE_MASTER and not set(RULES) & ON_THE_MASTER
    assert set(LESS_AND_MORE) | set(NEITHER) == set(RULES)


@pytest.mark.parametrize("name", LESS_AND_MORE)
def test_what_lends_less_counts_whoever_says_it(name: str) -> None:
    less, more = LESS_AND_MORE[name]
    for grid, own, origin in ((less, more, "the grid"), (more, less, "own")):
        found = combine(of("the grid", **{name: grid}), of("own", **{name: own}), defaults())
        assert (getattr(found.values, name), found.origins[name]) == (less, origin)


def test_an_owner_policy_is_only_made_stricter() -> None:
    order = [OwnerPolicy.CONTINUE, OwnerPolicy.SUSPEND, OwnerPolicy.RECALL]
    for theirs in order:
        for ours in order:
            found = combine(of("g", owner_policy=theirs), of("o", owner_policy=ours), defaults()).values
            assert found.owner_policy is order[max(order.index(theirs), order.index(ours))]


def test_where_neither_direction_lends_more_the_nodes_own_word_counts() -> None:
    for name, both in NEITHER.items():
        for grid, own in (both, both[::-1]):
            found = combine(of("g", **{name: grid}), of("own", **{name: own}), defaults())
            assert (getattr(found.values, name), found.origins[name]) == (own, "own")


@pytest.mark.parametrize("name", RULES)
def test_where_one_says_nothing_the_other_counts_and_else_the_default(name: str) -> None:
    value = (LESS_AND_MORE | NEITHER)[name][1]
    usual = combine(Layer(), Layer(), defaults())
    assert getattr(usual.values, name) == getattr(defaults(), name)
    assert usual.origins.get(name, "default") == "default"
    theirs = combine(of("the grid", **{name: value}), Layer(), defaults())
    ours = combine(Layer(), of("own", **{name: value}), defaults())
    assert (getattr(theirs.values, name), theirs.origins[name]) == (value, "the grid")
    assert (getattr(ours.values, name), ours.origins[name]) == (value, "own")


def test_the_usual_settings_make_the_usual_limits() -> None:
    assert limits_of(combine(Layer(), Layer(), defaults()), Limits()) == Limits()


def test_limits_are_in_whole_units_and_keep_what_is_the_nodes_alone() -> None:
    own = Limits(reserve_cpu=500, offer_after=9.0)
    found = limits_of(of("g", max_share_cpu=1.5, memory_min_gb=0.5, gpu_memory_min_mb=3.0), own)
    assert (found.max_share_cpu, found.memory_min, found.gpu_memory_min) == (1500, GIB // 2, 3 * MIB)
    assert (found.reserve_cpu, found.offer_after) == (500, 9.0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            of("grid: grid.yaml:2", enabled=False),
            "shares nothing (resource_sharing.enabled is false: grid: grid.yaml:2)",
        ),
        (of("order of ann", can_share=False), "shares nothing (can_share is false: order of ann)"),
        (Layer(Lending(can_share=False)), "shares nothing (can_share is false)"),
    ],
)
def test_a_node_that_lends_nothing_says_who_wants_that(settings: Layer, text: str) -> None:
    lender = Lender(limits_of(settings, Limits(offer_after=0.0)), FACTS)
    offer = seen(lender, 100.0)
    assert offer is not None and not offer.resources and why(offer, "node") == text
