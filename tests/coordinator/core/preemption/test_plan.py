"""Who gives way, against all there could be: every set of victims is tried, and none is cheaper."""

import random
from itertools import combinations
from typing import Any

import pytest

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.policy import Preempting
from distributed_grid.coordinator.core.preemption.plan import (
    NoPlan,
    Plan,
    View,
    cheapest,
    cost,
    may,
    min_hold_of,
    plan,
    work,
)
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.operator import Victim
from distributed_grid.protocol.resources import GIB, MILLI, GpuShare, Grant, Resources
from tests.coordinator.core.scene import facts, offer

RULES = Preempting()


def victim(name: str, *cores: int, lost: float = 1.0, low: bool = True, memory: int = 0, **more: Any) -> Victim:
    grant = Grant(cores, memory=memory, **more)
    return Victim(name, f"job-{name}", "ann", Priority.LOW if low else Priority.MEDIUM, grant, lost, lost)


def full(
    cores: int = 4, gpus: int = 0, name: str = "n1", memory: int = 8 * GIB, free: tuple[int, ...] = ()
) -> Capacity:
    """A node of which nothing but these cores is to be had."""
    of = facts(name, cores, memory, gpus)
    return Capacity.of(of, offer(of, cores=free, memory=0, gpus=()))


def asks(cpu: float = 0, memory: int = 0, gpu: float = 0, nodes: tuple[str, ...] = ()) -> Request:
    return Request(Resources(int(cpu * MILLI), memory, int(gpu * MILLI)), Priority.URGENT, nodes)


def names(found: Plan | NoPlan) -> set[str]:
    assert isinstance(found, Plan), found
    return {one.allocation for one in found.victims}


def some(chance: random.Random) -> tuple[Capacity, list[Victim], Resources]:
    """A node, up to 8 who hold parts of it, and a request."""
    cores, gpus, memory = chance.randint(1, 8), chance.choice((0, 0, 2, 4)), 16 * GIB
    of = facts("n1", cores, memory, gpus)
    capacity = Capacity.of(of, offer(of))
    able: list[Victim] = []
    for number in range(chance.randint(0, 8)):
        wanted = Resources(
            chance.choice((0, 300, 500, MILLI, MILLI, 2 * MILLI)),
            chance.choice((0, 0, GIB, 3 * GIB)),
            chance.choice((0, 0, 500, MILLI)),
        )
        if not wanted or not capacity.fits(wanted):
            continue
        grant = capacity.choose(wanted)
        capacity.take(grant)
        if chance.random() < 0.9:  # the others may not give way
            lost = chance.choice((0.0, 1.0, 2.0, 2.0, chance.uniform(0, 9)))
            priority = chance.choice((Priority.LOW, Priority.MEDIUM))
            able.append(Victim(f"a{number}", f"j{number}", "ann", priority, grant, lost, lost))
    wanted = Resources(
        chance.choice((0, 500, MILLI, 2 * MILLI, 4 * MILLI)),
        chance.choice((0, GIB, 6 * GIB, 14 * GIB)),
        chance.choice((0, 0, 500, MILLI, 2 * MILLI)),
    )
    return capacity, able, wanted


@pytest.mark.parametrize("seed", range(8))
def test_no_set_of_victims_that_makes_room_loses_less(seed: int) -> None:
    chance = random.Random(seed)
    planned = 0
    for _ in range(150):
        capacity, able, wanted = some(chance)
        enough = []
        for count in range(len(able) + 1):
            for them in combinations(able, count):
                trial = capacity.copy()
                for one in them:
                    trial.give(one.grant)
                if trial.fits(wanted):
                    enough.append(cost(them))
        found = cheapest(capacity, wanted, able)
        if not enough:
            assert found is None
        else:
            assert found is not None and cost(found) == pytest.approx(min(enough))
            planned += bool(found)
    assert planned > 20


@pytest.mark.parametrize("seed", range(4))
def test_nobody_among_the_victims_could_have_been_spared(seed: int) -> None:
    chance = random.Random(seed)
    of = facts("n1", 64)
    able = [victim(f"v{core}", core, lost=chance.uniform(0, 99), low=chance.random() < 0.5) for core in range(64)]
    capacity = Capacity.of(of, offer(of, cores=()))
    for wanted in (1, 17, 40):
        found = cheapest(capacity, Resources(wanted * MILLI), able)
        assert found is not None and len(found) == wanted
        assert cost(found) == cost(sorted(able, key=lambda one: (one.priority, one.lost))[:wanted])


def test_what_was_looked_at_is_as_it_was() -> None:
    capacity = full()
    before = capacity.copy()
    assert cheapest(capacity, Resources(2 * MILLI), [victim("a", 0, 1), victim("b", 2)])
    assert capacity == before


def test_a_low_job_goes_before_a_medium_one_however_much_more_it_loses() -> None:
    view = View("n1", full(), (victim("low", 0, lost=1e6), victim("medium", 1, lost=0.0, low=False)))
    assert names(plan([view], asks(1), RULES, 0.0)) == {"low"}


def test_one_who_loses_more_goes_before_two_who_lose_as_much_together_but_not_before_two_who_lose_less() -> None:
    large, small = victim("large", 0, 1, lost=4.0), (victim("b", 2, lost=2.0), victim("c", 3, lost=2.0))
    assert names(plan([View("n1", full(), (large, *small))], asks(2), RULES, 0.0)) == {"large"}
    dear = victim("large", 0, 1, lost=4.1)
    assert names(plan([View("n1", full(), (dear, *small))], asks(2), RULES, 0.0)) == {"b", "c"}


def test_what_is_free_is_used_first_and_is_part_of_what_is_kept() -> None:
    view = View("n1", full(free=(3,)), (victim("a", 0), victim("b", 1), victim("c", 2)))
    found = plan([view], asks(2), RULES, 0.0)
    assert len(names(found)) == 1
    assert isinstance(found, Plan) and 3 in found.grant.cores and len(found.grant.cores) == 2


def test_there_is_a_whole_plan_or_none_and_no_node_is_mixed_with_another() -> None:
    views = [View(name, full(name=name), (victim(name, 0),)) for name in ("n1", "n2")]
    found = plan(views, asks(2), RULES, 0.0)
    assert isinstance(found, NoPlan) and found.code == "no-victims"


def test_the_node_where_least_is_lost_is_taken_and_the_others_are_named_with_what_they_would_cost() -> None:
    views = [View(name, full(name=name), (victim(name, 0, lost=lost),)) for name, lost in (("n1", 5.0), ("n2", 3.0))]
    found = plan(views, asks(1), RULES, 0.0)
    assert isinstance(found, Plan) and (found.node, found.lost) == ("n2", 3.0)
    assert [(one.node, one.victims, one.lost) for one in found.alternatives] == [("n1", 1, 5.0)]


def test_of_equal_plans_one_on_a_preferred_node_is_taken() -> None:
    views = [View(name, full(name=name), (victim(name, 0),)) for name in ("n1", "n2")]
    found = plan(views, asks(1, nodes=("n2",)), RULES, 0.0)
    assert isinstance(found, Plan) and found.node == "n2"


def test_where_those_who_end_already_make_room_nobody_is_evicted() -> None:
    capacity = full(free=(0,))
    found = plan([View("n1", capacity, (victim("b", 1),), ending=1)], asks(1), RULES, 0.0)
    assert found == NoPlan("ending", "no preemption: 1 job ends on n1 already")


def test_beyond_the_badput_budget_nobody_is_evicted() -> None:
    views = [View("n1", full(), (victim("a", 0, lost=60.0),))]
    rules = Preempting(badput_budget=100.0)
    assert names(plan(views, asks(1), rules, 40.0)) == {"a"}
    found = plan(views, asks(1), rules, 41.0)
    assert isinstance(found, NoPlan) and found.code == "badput-budget"
    text = "60 core-seconds would be lost on n1, the badput budget has 59 left for this hour"
    assert found.text == f"no preemption: {text}"


def test_where_the_budget_is_none_nobody_gives_way_even_if_nothing_would_be_lost() -> None:
    found = plan([View("n1", full(), (victim("a", 0, lost=0.0),))], asks(1), Preempting(badput_budget=0), 0.0)
    assert isinstance(found, NoPlan) and found.code == "badput-budget"


def test_it_says_when_the_first_who_is_protected_may_give_way() -> None:
    found = plan([View("n1", full(), (), young=50710.5)], asks(1), RULES, 0.0)
    assert found == NoPlan("min-hold", "no preemption: min-hold protects who began lately, until 14:05:10 UTC", 50710.5)


def test_only_an_urgent_request_takes_places_and_only_from_two_classes_below() -> None:
    allowed = {(taker, holder) for taker in Priority for holder in Priority if may(taker, holder)}
    assert allowed == {(Priority.URGENT, Priority.LOW), (Priority.URGENT, Priority.MEDIUM)}


def test_who_took_a_place_can_never_be_made_to_give_it_back_to_its_victim() -> None:
    assert not any(may(one, other) and may(other, one) for one in Priority for other in Priority)


def test_each_eviction_doubles_the_time_for_which_a_place_is_kept_up_to_a_bound() -> None:
    rules = Preempting(min_hold=10.0, min_hold_most=100.0)
    assert [min_hold_of(rules, evicted) for evicted in (0, 1, 2, 3, 4, 10_000)] == [10, 20, 40, 80, 100, 100]


def test_work_counts_in_cores_of_the_node_by_the_largest_share() -> None:
    lendable = Resources(16 * MILLI, 64 * GIB, 2 * MILLI)
    assert work(Grant((0, 1)), lendable) == 2.0
    assert work(Grant((0,), memory=32 * GIB), lendable) == 8.0
    assert work(Grant((0,), gpus=(GpuShare("g"),)), lendable) == 8.0
