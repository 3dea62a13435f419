"""The budget: hard, whatever is created, refused, lost or late."""

import random

import pytest

from distributed_grid.coordinator.core.scaling.budget import DAY, HOUR, OVERRUN, Budget, Refused, cost_on
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.pools import Billing, Limits, Pool, Scaling, Shape
from tests.depth import tries

NOON = 20_000 * DAY + DAY / 2


def shape(price: float | None = 1.0) -> Shape:
    return Shape(resources=Resources(4000, 8 * GIB), price=price)


def pool(price: float | None = 1.0, **more: object) -> Pool:
    return Pool(**({"name": "a", "provider": "p", "shapes": (shape(price),), "life": 4 * HOUR} | more))  # type: ignore


def machine(name: str = "a-1", **more: object) -> Machine:
    given = {"name": name, "pool": "a", "provider": "p", "state": MachineState.CREATING, "price": 1.0, "born": NOON}
    return Machine(**(given | {"ends_by": NOON + 4 * HOUR} | more))  # type: ignore[arg-type]


def allowed(scaling: Scaling, *machines: Machine, lasts: float = 0.0, unrecorded: int = 0) -> float | Refused:
    one = scaling.pools[0]
    return Budget(scaling, machines, {"a": unrecorded} if unrecorded else {}, NOON).allows(one, one.shapes[0], lasts)


def test_what_is_being_created_counts() -> None:
    scaling = Scaling(pools=(pool(max=2),))
    assert allowed(scaling, machine()) == 4 * HOUR
    assert allowed(scaling, machine(), machine("a-2")) == Refused("pool a has 2 of 2 machines (max)")
    assert allowed(scaling, machine(), machine("a-2", state=MachineState.GONE)) == 4 * HOUR


def test_unrecorded_count() -> None:
    assert isinstance(allowed(Scaling(pools=(pool(max=2),)), machine(), unrecorded=1), Refused)


@pytest.mark.parametrize("limits", [Limits(max_workers=1), Limits(max_cost_per_hour=1.5), Limits(max_cost_per_day=4.4)])
def test_each_limit_of_all_pools_stops_the_second_machine(limits: Limits) -> None:
    scaling = Scaling(pools=(pool(),), limits=limits)
    assert allowed(scaling) == 4 * HOUR
    assert isinstance(allowed(scaling, machine()), Refused)


def test_a_machine_that_its_provider_has_refused_has_cost_nothing_also_where_begun_hours_are_paid() -> None:
    scaling = Scaling(pools=(pool(billing=Billing.HOUR),), limits=Limits(max_cost_per_day=5.0))
    refused = [machine(f"a-{n}", state=MachineState.FAILED, over=NOON + 1, born=NOON - 1) for n in range(9)]
    assert allowed(scaling, *refused) == allowed(scaling) == 4 * HOUR - OVERRUN
    assert Budget(scaling, refused, {}, NOON).spent(refused) == 0.0
    assert cost_on(refused[0], 20_000, NOON, Billing.HOUR) == 0.0


def test_an_unknown_price_counts_against_the_number_alone() -> None:
    scaling = Scaling(pools=(pool(None),), limits=Limits(max_cost_per_hour=0.5, max_cost_per_day=0.5))
    assert allowed(scaling, machine(price=None)) == 4 * HOUR


def test_a_machine_that_costs_nothing_counts_against_the_number_alone() -> None:
    limits = Limits(max_workers=2, max_cost_per_hour=0.0, max_cost_per_day=0.0)
    scaling = Scaling(pools=(pool(0.0),), limits=limits)
    assert allowed(scaling, machine(price=0.0)) == 4 * HOUR
    full = Refused("there are 2 of 2 machines (scaling.max_workers)")
    assert allowed(scaling, machine(price=0.0), machine("a-2", price=0.0)) == full
    assert Budget(scaling, [machine(price=0.0)], {}, NOON).rate == 0


def test_the_life_is_shortened_to_what_the_day_leaves() -> None:
    life = allowed(Scaling(pools=(pool(),), limits=Limits(max_cost_per_day=3.0)))
    assert life == pytest.approx(3 * HOUR - OVERRUN)


def test_a_job_that_would_not_end_in_time_gets_none() -> None:
    scaling = Scaling(pools=(pool(),), limits=Limits(max_cost_per_day=3.0))
    assert isinstance(allowed(scaling, lasts=3.5 * HOUR), Refused)


def test_the_next_day_has_its_own_limit() -> None:
    scaling = Scaling(pools=(pool(life=20 * HOUR),), limits=Limits(max_cost_per_day=12.1))
    assert allowed(scaling) == 20 * HOUR  # 12 today, 8 tomorrow


def test_an_hour_that_has_begun_is_paid_whole() -> None:
    one = machine(over=NOON + 90 * 60, state=MachineState.GONE)
    day = int(NOON // DAY)
    assert cost_on(one, day, NOON + 2 * HOUR) == 1.5
    assert cost_on(one, day, NOON + 2 * HOUR, Billing.HOUR) == 2.0


def test_of_what_was_spent_today_a_begun_hour_counts_whole_where_it_is_paid_so() -> None:
    runs = machine(born=NOON - 90 * 60)
    for billing, spent in ((Billing.SECOND, 1.5), (Billing.HOUR, 2.0)):
        scaling = Scaling(pools=(pool(billing=billing),))
        assert Budget(scaling, [runs], {}, NOON).spent([runs]) == pytest.approx(spent)
    late = machine(born=NOON - 20 * 60 - DAY / 2)  # before midnight: 20 minutes of its hours are of the day before
    scaling = Scaling(pools=(pool(billing=Billing.HOUR),))
    assert Budget(scaling, [late], {}, NOON - DAY / 2 + 60).spent([late]) == pytest.approx(40 / 60)


def test_an_hour_that_ends_after_midnight_counts_on_the_next_day_too() -> None:
    limits = Limits(max_cost_per_day=2.0)
    scaling = Scaling(pools=(pool(billing=Billing.HOUR),), limits=limits)
    midnight = NOON + DAY / 2
    gone = machine(born=midnight - 40 * 60, over=midnight - 30 * 60, state=MachineState.GONE)  # paid until 00:20
    late = Budget(scaling, [gone], {}, midnight - 25 * 60).allows(scaling.pools[0], shape(), 0.0)
    assert late == pytest.approx((25 + 2 * 60 - 20 - 60) * 60 - OVERRUN)  # of the 2 hours of that day 1:40 are left


@pytest.mark.parametrize("seed", range(tries(20, 8)))
def test_no_limit_is_ever_exceeded(seed: int) -> None:
    """Machines are created whenever that is allowed, fail, come late, end early or at the end of their lives."""
    chance = random.Random(seed)
    one = pool(max=chance.randint(1, 8), life=chance.choice([2, 5, 12]) * HOUR, billing=chance.choice([*Billing]))
    limits = Limits(
        max_workers=chance.randint(1, 8),
        max_cost_per_hour=chance.choice([None, 2.0, 4.5]),
        max_cost_per_day=chance.choice([None, 6.0, 20.0, 40.0]),
    )
    scaling, machines, now = Scaling(pools=(one,), limits=limits), list[Machine](), NOON
    for number in range(250):
        now += chance.uniform(0, 1200)
        for at, old in enumerate(machines):
            if old.live and (now >= old.ends_by or chance.random() < 0.05):
                failed = old.state is MachineState.WANTED
                over = min(now, old.ends_by + chance.uniform(0, OVERRUN))
                state = MachineState.FAILED if failed else MachineState.GONE
                machines[at] = machine(old.name, born=old.born, ends_by=old.ends_by, over=over, state=state)
        allows = Budget(scaling, machines, {}, now).allows(one, one.shapes[0], 0.0)
        if not isinstance(allows, Refused):
            machines.append(machine(f"a-{number}", born=now, ends_by=now + allows))
        live = [old for old in machines if old.live]
        assert len(live) <= min(one.max, limits.max_workers)
        if limits.max_cost_per_hour is not None:
            assert len(live) * 1.0 <= limits.max_cost_per_hour
        if limits.max_cost_per_day is not None:
            for day in {int(NOON // DAY), int(now // DAY), int(now // DAY) + 1}:
                assert sum(cost_on(old, day, now, one.billing) for old in machines) <= limits.max_cost_per_day + 1e-6
