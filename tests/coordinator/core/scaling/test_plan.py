"""The plan: machines for what waits, none for what does not, and none that go to and fro."""

import math
import random
from typing import Any

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.budget import Budget
from distributed_grid.coordinator.core.scaling.packing import Ask, Bin, Demand, Seen, View, node_of
from distributed_grid.coordinator.core.scaling.plan import could_come, plan
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.placement import Constraints, LabelRule, Sign
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.machines import Machine, MachineState
from distributed_grid.protocol.scaling.plans import DrainCause, ScalePlan
from distributed_grid.protocol.scaling.pools import Billing, Limits, Pool, Scaling, Shape
from tests.depth import tries

NOW = 1_000_000.0


def shape(type: str = "", cpus: int = 4, price: float | None = None, **more: Any) -> Shape:
    gpus = more.pop("gpus", 0)
    return Shape(type=type, resources=Resources(cpus * 1000, 2 * cpus * GIB, gpus * 1000), price=price, **more)


def pool(*shapes: Shape, **more: Any) -> Pool:
    return Pool(**({"name": "a", "provider": "p", "shapes": shapes or (shape(),)} | more))


def ask(cpus: float = 1, count: int = 1, **more: Any) -> Ask:
    parts = {name: more.pop(name) for name in ("gang", "constraints", "ray") if name in more}
    wanted = Resources(int(cpus * 1000), GIB, more.pop("gpus", 0) * 1000)
    jobs = tuple(f"j-{number}" for number in range(count))
    given: dict[str, Any] = {"request": Request(wanted, **parts), "count": count, "jobs": jobs, "user": "ann"}
    return Ask(**(given | more))


def machine(name: str = "a-1", state: MachineState = MachineState.JOINED, **more: Any) -> Machine:
    given: dict[str, Any] = {
        "name": name,
        "pool": "a",
        "provider": "p",
        "born": NOW - 5000,
        "joined": NOW - 4990,
        "state": state,
    }
    given |= {"ends_by": NOW + 40_000, "resources": Resources(4000, 8 * GIB)}
    return Machine(**(given | more))


def planned(*asks: Ask, pools: tuple[Pool, ...] = (), machines: tuple[Machine, ...] = (), **more: Any) -> ScalePlan:
    scaling = Scaling(pools=pools or (pool(),), **{k: more.pop(k) for k in [*more] if k in Scaling.__struct_fields__})
    return plan(View(**more), Demand(asks=asks), machines, scaling, NOW)


def sizes(found: ScalePlan) -> list[tuple[str, str, int]]:
    return [(one.pool, one.type, one.serves) for one in found.creates]


# --- up ---------------------------------------------------------------------------------------------------------------


def test_nothing_waits_and_nothing_is_done() -> None:
    assert planned().quiet


def test_a_machine_is_created_for_what_waits_and_says_why() -> None:
    found = planned(ask(2, 2))
    assert sizes(found) == [("a", "", 2)]
    assert found.creates[0].jobs == ("j-0", "j-1")
    assert found.creates[0].why.startswith("2 jobs of ann wait for 2 cpu, 1G memory")


def test_whether_a_machine_could_come_is_asked_of_one_job_alone() -> None:
    scaling = Scaling(pools=(pool(max=1, life=3600.0, boot=60.0),))
    coming, there = machine(state=MachineState.BOOTING, born=NOW, ends_by=NOW + 3600.0), machine()
    assert could_come(View(), ask(), [], scaling, NOW)
    assert not could_come(View(), ask(lasts=3600.0), [], scaling, NOW), "none lives for so long"
    assert could_come(View(), ask(lasts=1800.0), [coming], scaling, NOW), "it is on its way"
    assert not could_come(View(), ask(), [there], scaling, NOW), "there may be no other"
    assert not could_come(View(), ask(gang=2), [], scaling, NOW), "of two members one would have none"
    assert could_come(View(), ask(gang=2, have=1), [], scaling, NOW)


def test_jobs_are_packed_and_not_given_a_machine_each() -> None:
    assert sizes(planned(ask(1, 9), ask(3, 1))) == [("a", "", 4), ("a", "", 4), ("a", "", 2)]


def test_the_cheapest_for_what_it_serves_comes_first() -> None:
    small, large = shape("small", 4, 0.2), shape("large", 16, 0.5)
    assert sizes(planned(ask(1, 16), pools=(pool(small, large),))) == [("a", "large", 16)]
    assert sizes(planned(ask(1, 2), pools=(pool(small, large),))) == [("a", "small", 2)]


def test_of_equal_prices_what_comes_up_sooner() -> None:
    slow, quick = pool(shape(price=1.0), boot=300), pool(shape(price=1.0), name="b", boot=30)
    assert sizes(planned(ask(), pools=(slow, quick))) == [("b", "", 1)]
    learned = {("a", ""): (10.0, 12.0)}
    assert sizes(planned(ask(), pools=(slow, quick), boots=learned)) == [("a", "", 1)]


@pytest.mark.parametrize("state", [MachineState.WANTED, MachineState.CREATING, MachineState.BOOTING])
def test_what_is_on_its_way_is_filled_first(state: MachineState) -> None:
    assert planned(ask(1, 4), machines=(machine(state=state),)).quiet
    assert sizes(planned(ask(1, 5), machines=(machine(state=state),))) == [("a", "", 1)]


def test_a_machine_that_has_just_joined_and_does_not_offer_yet_counts_as_on_its_way() -> None:
    assert planned(ask(1, 4), machines=(machine(),), seen={"a-1": Seen()}).quiet


@pytest.mark.parametrize(
    "one", [machine(), machine(state=MachineState.DRAINING)], ids=["joined", "that could be taken back"]
)
def test_a_machine_that_has_no_offer_for_long_is_not_counted_on(one: Machine) -> None:
    found = planned(ask(), machines=(one,), seen={"a-1": Seen(coming=False, cause=DrainCause.IDLE)})
    assert len(found.creates) == 1 and not found.returns


def test_a_machine_that_ends_is_not_counted_on() -> None:
    assert len(planned(ask(), machines=(machine(state=MachineState.ENDING),)).creates) == 1


def test_a_drained_machine_takes_jobs_again_before_another_is_created() -> None:
    back = machine(state=MachineState.DRAINING)
    found = planned(ask(), machines=(back,), seen={"a-1": Seen(cause=DrainCause.IDLE)})
    assert [one.machine for one in found.returns] == ["a-1"] and not found.creates
    gone = planned(ask(), machines=(back,), seen={"a-1": Seen(cause=DrainCause.LIFE)})
    assert not gone.returns and len(gone.creates) == 1


def test_labels_and_gpu_models_are_matched_by_the_functions_that_match() -> None:
    gpus = pool(shape(gpus=2, gpu_model="Tesla T4", gpu_memory=16 * GIB), name="g", labels={"cloud": "aws"})
    label = Constraints(labels=(LabelRule("cloud", Sign.IS, "aws"),))
    assert sizes(planned(ask(constraints=label), pools=(pool(), gpus))) == [("g", "", 1)]
    named = Constraints(labels=(LabelRule("pool", Sign.IS, "a"),))
    assert sizes(planned(ask(constraints=named), pools=(gpus, pool()))) == [("a", "", 1)]
    assert sizes(planned(ask(gpus=1, constraints=Constraints(gpu_model="t4")), pools=(pool(), gpus))) == [("g", "", 1)]
    assert planned(ask(gpus=1, constraints=Constraints(gpu_model="a100")), pools=(pool(), gpus)).quiet


def test_what_no_pool_could_run_says_why() -> None:
    found = planned(ask(30))
    assert found.quiet and found.not_done[0].code == "no-pool"
    assert found.not_done[0].why == "a machine of pool a lends 4 cpu, 8G memory at the most"


def test_a_job_that_outlasts_the_life_of_a_machine_creates_none_and_says_why() -> None:
    found = planned(ask(lasts=5 * 3600.0), pools=(pool(life=4 * 3600.0),))
    assert found.quiet and "lives for 4h" in found.not_done[0].why
    late = machine(state=MachineState.BOOTING, ends_by=NOW + 1800)
    assert len(planned(ask(lasts=3600.0), machines=(late,)).creates) == 1


def test_of_a_machines_life_its_boot_and_the_end_in_which_jobs_leave_are_none_for_jobs() -> None:
    """A job that needs them would be told to leave before it is over, on each machine that is created for it."""
    lives = pool(life=4 * 3600.0, boot=120.0)
    assert len(planned(ask(lasts=4 * 3600.0 - 180.0), pools=(lives,)).creates) == 1
    found = planned(ask(lasts=4 * 3600.0 - 179.0), pools=(lives,))
    assert found.quiet and "lives for 4h00m (life), of which jobs have 3h57m" in found.not_done[0].why
    short = planned(ask(lasts=69.0), pools=(pool(life=100.0, boot=20.0, idle=20.0),))
    assert len(short.creates) == 1, "where a life is short, jobs leave in its last tenth"


@pytest.mark.parametrize("since", [0.0, 60.0, 119.0])
def test_a_job_that_just_fits_the_life_of_a_machine_gets_no_second_one_while_the_first_boots(since: float) -> None:
    lives = pool(life=4 * 3600.0, boot=120.0)
    first = machine(state=MachineState.BOOTING, born=NOW - since, ends_by=NOW - since + 4 * 3600.0, joined=0.0)
    assert planned(ask(lasts=4 * 3600.0 - 180.0), pools=(lives,), machines=(first,)).quiet


def test_a_gang_gets_a_machine_for_each_missing_member_or_none() -> None:
    assert len(planned(ask(4, gang=3, have=1)).creates) == 2
    assert planned(ask(4, gang=3, have=3)).quiet
    found = planned(ask(4, gang=3, have=0), ask(1), pools=(pool(max=2),))
    assert sizes(found) == [("a", "", 1)], "what is left goes to the next one"
    assert [one.count for one in found.not_done] == [1] and "(max)" in found.not_done[0].why


def test_jobs_that_are_to_be_apart_get_a_machine_each() -> None:
    assert len(planned(ask(1, 3, alone=True)).creates) == 3


def test_a_refused_type_is_left_alone_and_the_next_one_is_taken_at_once() -> None:
    both = pool(shape("x", price=0.1), shape("y", price=0.2), zones=("n", "s"))
    refused = {("a", "n", "x"): (NOW + 60, "no capacity")}
    first = planned(ask(), pools=(both,), backoffs=refused).creates[0]
    assert (first.type, first.zone) == ("x", "s")
    refused[("a", "s", "x")] = (NOW + 60, "no capacity")
    second = planned(ask(), pools=(both,), backoffs=refused).creates[0]
    assert (second.type, second.zone) == ("y", "n")
    refused |= {("a", zone, "y"): (NOW + 60, "no capacity") for zone in "ns"}
    assert "no capacity; asked again in 1m" in planned(ask(), pools=(both,), backoffs=refused).not_done[0].why


def test_a_paused_pool_does_not_block_another() -> None:
    found = planned(ask(), pools=(pool(shape(price=0.1)), pool(shape(price=9.0), name="b")), paused={"a": "by ann"})
    assert sizes(found) == [("b", "", 1)]


def test_the_backlog_limits_what_is_on_its_way() -> None:
    found = planned(ask(4, 5), pools=(pool(backlog=2),))
    assert len(found.creates) == 2 and found.not_done[0].count == 3 and "(backlog)" in found.not_done[0].why


def test_a_pool_has_its_minimum_without_demand() -> None:
    assert len(planned(pools=(pool(min=2),)).creates) == 2


def test_utilisation_adds_one_only_while_jobs_wait_and_between_cooldowns() -> None:
    waits = ask(1)

    def with_a_node_that_is_free_soon(*asks: Ask, **more: Any) -> ScalePlan:
        node = node_of(pool(), shape())
        assert node.capacity is not None
        return planned(*asks, soon=[Bin(node, node.capacity.copy(), ["n1"], math.inf)], **more)

    assert len(with_a_node_that_is_free_soon(waits, utilisation=0.9).creates) == 1
    assert with_a_node_that_is_free_soon(utilisation=0.9).quiet
    assert with_a_node_that_is_free_soon(waits, utilisation=0.79).quiet
    assert with_a_node_that_is_free_soon(waits, utilisation=0.9, raised=NOW - 100).quiet


def test_utilisation_adds_none_for_jobs_that_no_machine_could_run() -> None:
    """One after the other would be without jobs until it ends, for as long as such a job waits."""
    assert planned(ask(64), utilisation=0.9).quiet
    assert planned(ask(1, lasts=5 * 3600.0), pools=(pool(life=4 * 3600.0),), utilisation=0.9).quiet


# --- down -------------------------------------------------------------------------------------------------------------


def idle(since: float) -> Seen:
    return Seen(idle_since=NOW - since, usable=True)


def test_a_machine_without_jobs_is_drained_after_its_time() -> None:
    assert planned(machines=(machine(),), seen={"a-1": idle(599)}).quiet
    found = planned(machines=(machine(),), seen={"a-1": idle(600)})
    assert [(one.machine, one.cause) for one in found.drains] == [("a-1", DrainCause.IDLE)]


def test_the_time_is_never_less_than_it_takes_to_boot() -> None:
    assert planned(machines=(machine(),), seen={"a-1": idle(700)}, boots={("a", ""): (500.0, 900.0)}).quiet


def test_a_machine_whose_node_is_lost_ends_also_where_its_pool_is_to_have_it() -> None:
    least = (pool(min=1),)
    lost = Seen(idle_since=NOW - 600, coming=False, lost=True)
    found = planned(machines=(machine(),), seen={"a-1": lost}, pools=least)
    assert [(one.machine, one.cause) for one in found.drains] == [("a-1", DrainCause.LOST)]
    for stays in (Seen(idle_since=NOW - 599, lost=True), Seen(allocations=1, lost=True), idle(700)):
        assert planned(machines=(machine(),), seen={"a-1": stays}, pools=least).quiet


@pytest.mark.parametrize("seen", [Seen(allocations=1, usable=True), Seen(joined=False)])
def test_a_machine_with_jobs_or_one_that_has_not_joined_stays(seen: Seen) -> None:
    assert planned(machines=(machine(),), seen={"a-1": seen}).quiet


def test_a_machine_that_a_waiting_job_reserves_stays() -> None:
    assert planned(machines=(machine(),), seen={"a-1": Seen(idle_since=1.0, usable=True, reserved=True)}).quiet


def test_a_pool_keeps_its_minimum() -> None:
    seen = {"a-1": idle(900), "a-2": idle(800)}
    found = planned(machines=(machine(), machine("a-2")), seen=seen, pools=(pool(min=1),))
    assert len(found.drains) == 1 and not found.creates


def test_an_hour_that_is_paid_is_used() -> None:
    hourly = pool(billing=Billing.HOUR)
    half = machine(born=NOW - 1800)
    assert planned(machines=(half,), seen={"a-1": idle(900)}, pools=(hourly,)).quiet
    late = machine(born=NOW - 3600 * 2 + 100)
    assert len(planned(machines=(late,), seen={"a-1": idle(900)}, pools=(hourly,)).drains) == 1


def test_machines_of_a_pool_that_is_not_configured_any_more_are_drained_with_their_jobs() -> None:
    found = planned(machines=(machine(pool="old"),), seen={"a-1": Seen(allocations=3, usable=True)})
    assert [one.cause for one in found.drains] == [DrainCause.REMOVED]


def test_a_machine_that_boots_counts_by_what_it_has_where_its_pool_names_its_type_no_more() -> None:
    boots = machine(state=MachineState.BOOTING, type="old")
    assert planned(ask(3), pools=(pool(shape("new")),), machines=(boots,)).quiet
    assert sizes(planned(ask(6), pools=(pool(shape("new", 8)),), machines=(boots,))) == [("a", "new", 1)]
    removed = planned(ask(3), machines=(replace(boots, pool="old"),))
    assert sizes(removed) == [("a", "", 1)], "it ends when it has joined"


def test_a_machine_whose_life_is_over_is_drained() -> None:
    found = planned(machines=(machine(ends_by=NOW + 100),), seen={"a-1": Seen(allocations=1, usable=True)})
    assert [one.cause for one in found.drains] == [DrainCause.LIFE]


def test_more_than_max_are_drained_without_waiting() -> None:
    machines = tuple(machine(f"a-{number}") for number in range(3))
    found = planned(machines=machines, seen={one.name: idle(1) for one in machines}, pools=(pool(max=2),))
    assert [one.cause for one in found.drains] == [DrainCause.TOO_MANY]


def test_low_utilisation_drains_the_one_whose_jobs_end_soonest_where_the_rest_suffices() -> None:
    machines = (machine(), machine("a-2"))
    seen = {
        "a-1": Seen(allocations=1, ends=NOW + 900, usable=True),
        "a-2": Seen(allocations=1, ends=NOW + 60, usable=True),
    }
    whole = Resources(8000, 16 * GIB)
    found = planned(machines=machines, seen=seen, utilisation=0.2, capacity=whole)
    assert [(one.machine, one.cause) for one in found.drains] == [("a-2", DrainCause.UNUSED)]
    assert planned(machines=machines, seen=seen, utilisation=0.2, capacity=whole, lowered=NOW - 100).quiet
    fixed = {name: Seen(allocations=1, fixed=True, usable=True) for name in seen}
    assert planned(machines=machines, seen=fixed, utilisation=0.2, capacity=whole).quiet
    assert planned(machines=machines[:1], seen=seen, utilisation=0.2, capacity=Resources(4000, 8 * GIB)).quiet


# --- never to and fro -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(tries(10, 5)))
def test_constant_demand_converges(seed: int) -> None:
    """Machines come up and take what waits; once all is served, no plan does anything any more."""
    chance = random.Random(seed)
    pools = tuple(
        pool(shape("x", chance.choice([2, 4, 8]), chance.choice([None, 0.1, 1.0])), name=name, max=50) for name in "ab"
    )
    asks = [ask(chance.choice([0.5, 1, 2]), chance.randint(1, 9)) for _ in range(5)]
    scaling, machines = Scaling(pools=pools, limits=Limits(max_workers=100)), list[Machine]()
    first = plan(View(), Demand(asks=tuple(asks)), machines, scaling, NOW)
    served = sum(one.serves for one in first.creates)
    assert served == sum(one.count for one in asks), "all are served"
    machines = [
        machine(f"{one.pool}-{number}", MachineState.BOOTING, pool=one.pool, type=one.type, price=one.price)
        for number, one in enumerate(first.creates)
    ]
    assert plan(View(), Demand(asks=tuple(asks)), machines, scaling, NOW + 1).quiet, "it waits for what it creates"
    there = [machine(one.name, pool=one.pool, type=one.type) for one in machines]
    seen = {one.name: Seen(allocations=1, usable=True) for one in there}
    for later in range(0, 7200, 600):
        assert plan(View(seen=seen, utilisation=0.6), Demand(), there, scaling, NOW + later).quiet


def test_the_limits_hold_within_one_plan() -> None:
    found = planned(ask(4, 50), limits=Limits(max_workers=7), pools=(pool(max=100),))
    assert len(found.creates) == 7 and found.not_done[0].count == 43


@pytest.mark.parametrize("seed", range(tries(20, 8)))
def test_machines_that_are_planned_in_one_go_are_those_that_were_planned_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    pools = tuple(
        pool(
            *(shape(type, chance.choice([1, 2, 8]), chance.choice([None, 0.0, 0.1, 1.0])) for type in "xy"),
            name=name, zones=("n", "s"), max=chance.randint(1, 60), backlog=chance.choice([0, 0, 5]),
            max_cost_per_hour=chance.choice([None, None, chance.uniform(0, 9)]),
            max_cost_per_day=chance.choice([None, None, chance.uniform(0, 90)]),
        )
        for name in "abc"
    )  # fmt: skip
    limits = Limits(max_workers=chance.randint(1, 150), max_cost_per_hour=chance.choice([None, chance.uniform(0, 30)]))
    refused = {("a", "n", "x"): (NOW + 60, "no capacity")}
    asks = [
        ask(chance.choice([0.25, 1, 2, 7]), chance.randint(1, 120), gang=gang, alone=not gang and chance.random() < 0.1)
        for gang in (chance.choice([0, 0, 0, 0, 3]) for _ in range(20))
    ]
    at_once = planned(*asks, pools=pools, limits=limits, backoffs=refused)
    monkeypatch.setattr(Budget, "room", lambda *_: 0)
    assert planned(*asks, pools=pools, limits=limits, backoffs=refused) == at_once
    assert at_once.creates and len(at_once.creates) <= limits.max_workers


def test_members_of_gangs_are_described_by_their_number() -> None:
    assert "for 3 nodes with 4 cpu" in planned(ask(4, gang=3)).creates[0].why
