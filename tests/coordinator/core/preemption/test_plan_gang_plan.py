"""Who gives way to a gang, against all there could be: every set of jobs and gangs is tried, and none is cheaper."""

import random
from itertools import combinations

import pytest

from distributed_grid.coordinator.core.placement.capacity import Capacity
from distributed_grid.coordinator.core.policy import Preempting
from distributed_grid.coordinator.core.preemption.plan import Cost, NoPlan, Plan, View, cost, gang_plan, unit
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.messages.operator import Victim
from distributed_grid.protocol.resources import GIB, MILLI, Grant, Resources
from tests.coordinator.core.scene import facts, offer
from tests.depth import tries

RULES = Preempting()
Unit = list[tuple[str, Victim]]


def full(name: str, cores: int = 1, free: tuple[int, ...] = ()) -> Capacity:
    """A node of which nothing but these cores is to be had."""
    of = facts(name, cores)
    return Capacity.of(of, offer(of, cores=free, memory=0, gpus=()))


def victim(name: str, *cores: int, lost: float = 1.0, low: bool = True, gang: int = 0) -> Victim:
    grant = Grant(cores or (0,))
    return Victim(f"{name}.1", name, "ann", Priority.LOW if low else Priority.MEDIUM, grant, lost, lost, gang)


def wants(many: int = 2, cores: float = 1, nodes: tuple[str, ...] = ()) -> Request:
    return Request(Resources(int(cores * MILLI)), Priority.URGENT, nodes, gang=many)


def found(views: list[View], request: Request, rules: Preempting = RULES, spent: float = 0.0) -> Plan:
    made = gang_plan(views, request, rules, spent)
    assert isinstance(made, Plan), made
    return made


def reason(views: list[View], request: Request, rules: Preempting = RULES, spent: float = 0.0) -> tuple[str, str]:
    made = gang_plan(views, request, rules, spent)
    assert isinstance(made, NoPlan), made
    return made.code, made.text


def lot_of(chance: random.Random, alone: bool) -> tuple[dict[str, Capacity], list[Unit], Request]:
    """A few nodes and up to 8 who hold parts of them, some on several nodes; and a gang that wants nodes."""
    capacities: dict[str, Capacity] = {}
    for number in range(chance.randint(2, 5)):
        of = facts(f"n{number}", chance.randint(1, 4), 8 * GIB)
        capacities[of.name] = Capacity.of(of, offer(of))
    units: list[Unit] = []
    for number in range(chance.randint(2, 8)):
        wanted = Resources(chance.choice((500, MILLI, MILLI, 2 * MILLI)), chance.choice((0, GIB, 4 * GIB)))
        many = 1 if alone else chance.choice((1, 1, 2, 3))
        places = [name for name, capacity in capacities.items() if capacity.fits(wanted)]
        if len(places) < many:
            continue
        lost = chance.choice((0.0, 1.0, 2.0, 2.0, chance.uniform(0, 9))) * many
        priority = chance.choice((Priority.LOW, Priority.MEDIUM))
        gives, held = chance.random() < 0.9, list[tuple[str, Victim]]()
        for rank, name in enumerate(chance.sample(places, many)):
            grant = capacities[name].choose(wanted)
            capacities[name].take(grant)
            job = f"j{number}_{rank}" if many > 1 else f"j{number}"
            member = Victim(f"{job}.1", job, "ann", priority, grant, lost, lost, many if many > 1 else 0)
            held.append((name, member))
        if gives:
            units.append(held)
    wanted = Resources(chance.choice((500, MILLI, MILLI, 2 * MILLI)), chance.choice((0, GIB, 6 * GIB)))
    return capacities, units, Request(wanted, Priority.URGENT, gang=chance.choice((2, 2, 3)))


def fitting(capacities: dict[str, Capacity], units: tuple[Unit, ...], request: Request) -> set[str]:
    trial = {name: capacity.copy() for name, capacity in capacities.items()}
    for held in units:
        for name, one in held:
            trial[name].give(one.grant)
    return {name for name, capacity in trial.items() if capacity.fits(request.resources)}


def least(capacities: dict[str, Capacity], units: list[Unit], request: Request) -> Cost | None:
    costs = [
        cost(held[0][1] for held in them)
        for count in range(len(units) + 1)
        for them in combinations(units, count)
        if len(fitting(capacities, them, request)) >= request.gang
    ]
    return min(costs, default=None)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("seed", range(tries(4, 2)))
def test_no_set_of_jobs_and_gangs_that_makes_room_for_all_members_loses_less(seed: int, alone: bool) -> None:
    chance = random.Random(f"{seed} {alone}")
    planned = several = 0
    for _ in range(tries(60)):
        capacities, units, request = lot_of(chance, alone)
        views = [
            View(name, capacity, tuple(one for held in units for at, one in held if at == name))
            for name, capacity in capacities.items()
        ]
        before = {name: capacity.copy() for name, capacity in capacities.items()}
        made, best = gang_plan(views, request, RULES, 0.0), least(capacities, units, request)
        for name, capacity in capacities.items():
            assert capacity == before[name]
        if best is None:
            assert isinstance(made, NoPlan) and made.code == "no-victims"
        elif best == (0.0, 0, 0.0, 0):
            assert isinstance(made, NoPlan) and made.code == "ending"
        else:
            assert isinstance(made, Plan) and cost(made.victims) == pytest.approx(best)
            chosen = tuple(held for held in units if unit(held[0][1]) in set(map(unit, made.victims)))
            assert len(chosen) == len(made.victims), "each that gives way is named once"
            names = [place.node for place in made.places]
            assert len(set(names)) == request.gang and set(names) <= fitting(capacities, chosen, request)
            planned += 1
            several += len(made.victims) > 1
    assert planned > 20 and several > 5


def test_nobody_gives_way_where_there_would_not_be_room_for_all_members() -> None:
    views = [View("n1", full("n1"), (victim("a"),)), View("n2", full("n2"), ())]
    text = "with all who may give way there is room on 1 of the 2 nodes that it needs at once"
    assert reason(views, wants()) == ("no-victims", f"no preemption: {text}")


def test_what_is_free_is_used_first_and_only_for_the_rest_somebody_gives_way() -> None:
    views = [View(name, full(name), (victim(name),)) for name in ("n1", "n2")] + [View("n3", full("n3", free=(0,)), ())]
    made = found(views, wants(2))
    assert [(one.job, one.node) for one in made.victims] == [("n1", "n1")]
    assert {place.node for place in made.places} == {"n1", "n3"}
    assert [(one.node, one.victims) for one in made.alternatives] == [("n2", 1)]


def test_a_gang_that_frees_all_nodes_gives_way_before_jobs_that_lose_more_together() -> None:
    views = [
        View(f"n{i}", full(f"n{i}", 2), (victim(f"g_{i}", 0, lost=5.0, gang=2), victim(f"a{i}", 1, lost=3.0)))
        for i in range(2)
    ]
    assert {unit(one) for one in found(views, wants(2)).victims} == {"g"}


def test_of_more_who_may_give_way_than_are_all_compared_nobody_chosen_could_have_been_spared() -> None:
    views = [
        View(f"n{i}", full(f"n{i}", 2), (victim(f"g{i // 2}_{i % 2}", 0, lost=i, gang=2), victim(f"a{i}", 1, lost=i)))
        for i in range(20)
    ]
    capacities = {view.node: view.capacity for view in views}
    made = found(views, wants(6))
    held = {name: [(view.node, one) for view in views for one in view.able if unit(one) == name]
            for name in map(unit, made.victims)}  # fmt: skip
    assert len(fitting(capacities, tuple(held.values()), wants(6))) >= 6
    for spared in held:
        others = tuple(them for name, them in held.items() if name != spared)
        assert len(fitting(capacities, others, wants(6))) < 6


def test_where_those_who_end_already_make_room_nobody_is_evicted() -> None:
    views = [View("n1", full("n1", free=(0,)), (), ending=1), View("n2", full("n2", 2, (0,)), (victim("b", 1),))]
    assert reason(views, wants()) == ("ending", "no preemption: 1 job ends on n1 already")


def test_the_budget_is_one_for_all_victims() -> None:
    views = [View(name, full(name), (victim(name, lost=60.0),)) for name in ("n1", "n2")]
    rules = Preempting(badput_budget=150.0)
    assert len(found(views, wants(), rules, 30.0).victims) == 2
    text = "120 core-seconds would be lost on n1, n2, the badput budget has 119 left for this hour"
    assert reason(views, wants(), rules, 31.0) == ("badput-budget", f"no preemption: {text}")
    none = "no preemption: the badput budget is 0, so nobody is evicted"
    assert reason(views, wants(), Preempting(badput_budget=0)) == ("badput-budget", none)


def test_a_node_that_alone_would_be_beyond_the_budget_is_passed_for_another() -> None:
    views = [View("n1", full("n1"), (victim("dear", lost=99.0),)), View("n2", full("n2", free=(0,)), ())]
    views.append(View("n3", full("n3"), (victim("medium", lost=1.0, low=False),)))
    assert [one.job for one in found(views, wants(), Preempting(badput_budget=50.0)).victims] == ["medium"]


def test_who_is_too_young_is_waited_for() -> None:
    views = [View("n1", full("n1"), (victim("a"),)), View("n2", full("n2"), (), young=50710.5)]
    text = "no preemption: min-hold protects who began lately, until 14:05:10 UTC"
    assert reason(views, wants()) == ("min-hold", text)


def test_preferred_nodes_come_first_among_equal_ones_and_get_the_first_rank() -> None:
    views = [View(name, full(name), (victim(name),)) for name in ("n1", "n2", "n3")]
    made = found(views, wants(2, nodes=("n3",)))
    assert [place.node for place in made.places] == ["n3", "n1"]
