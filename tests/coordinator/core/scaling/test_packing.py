"""Machines as planned are filled as nodes are: equal ones together, and never more than they have."""

import random

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.packing import (
    Ask,
    Bin,
    Stock,
    able,
    most_memory,
    never,
    node_of,
    pool_for,
    spread,
)
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Limits, Pool, Scaling, ScalingMode, Shape
from tests.coordinator.core.scene import facts, join
from tests.depth import tries

SHAPE = Shape(resources=Resources(4500, 8 * GIB, 2000), gpu_model="T4", gpu_memory=16 * GIB)
POOL = Pool(name="a", provider="p", shapes=(SHAPE,), labels={"cloud": "x"})
TWO_MACHINES = Pool(name="a", provider="p", shapes=(Shape(resources=Resources(8000, 8 * GIB)),), max=2)


def ask(cpu: int, count: int = 1, gpu: int = 0, **more: object) -> Ask:
    return Ask(request=Request(Resources(cpu, GIB, gpu)), count=count, **more)  # type: ignore[arg-type]


def bins(many: int) -> Bin:
    node = node_of(POOL, SHAPE)
    assert node.capacity is not None
    return Bin(node, node.capacity.copy(), [f"m{number}" for number in range(many)], 3600.0)


def test_a_planned_machine_is_a_node_with_all_that_its_shape_says() -> None:
    node = node_of(POOL, SHAPE)
    assert node.capacity is not None and node.capacity.left == SHAPE.resources
    assert node.usable and node.facts.labels == {"cloud": "x", "pool": "a"}
    assert able(node, Request(Resources(4500, GIB, 2000)))
    assert not able(node, Request(Resources(4501)))
    assert never(node, Request(Resources(9000))).startswith("lends")


def test_equal_machines_are_filled_equally() -> None:
    stock = Stock([bins(100)], Resources(1000, GIB))
    served = stock.serve(ask(1000), 250)
    assert sum(served.values()) == 250 and max(served.values()) == 4
    assert sum(stock.serve(ask(1000), 1000).values()) == 150, "four each, and no more"
    assert not stock.serve(ask(1000), 1)


def test_jobs_apart_and_members_of_a_gang_share_no_machine() -> None:
    alone = ask(100, alone=True)
    assert sum(Stock([bins(3)], Resources(100)).serve(alone, 9).values()) == 3


def test_a_job_that_outlasts_the_machine_is_not_put_there() -> None:
    assert not Stock([bins(3)], Resources(100)).serve(ask(100, lasts=3601.0), 1)


def test_jobs_are_named_for_the_machine_that_they_are_on() -> None:
    assert spread({"a": 2, "b": 1}, ("j1", "j2", "j3"), 5) == {"a": ("j1", "j2"), "b": ("j3",)}
    assert spread({"a": 3, "b": 1}, ("j1", "j2", "j3", "j4"), 2) == {"a": ("j1", "j2"), "b": ("j4",)}


@pytest.mark.parametrize("seed", range(tries(10, 5)))
def test_no_machine_gets_more_than_it_has(seed: int) -> None:
    chance = random.Random(seed)
    stock, held = Stock([bins(7)], Resources(250, GIB)), dict[str, Resources]()
    for _ in range(20):
        one = ask(chance.choice([250, 500, 1000, 1500]), gpu=chance.choice([0, 0, 500, 1000]))
        for key, count in stock.serve(one, chance.randint(1, 9)).items():
            wanted = one.request.resources
            more = Resources(wanted.cpu * count, wanted.memory * count, wanted.gpu * count)
            held[key] = held.get(key, Resources()) + more
    assert all(one.fits(SHAPE.resources) for one in held.values())


@pytest.mark.parametrize("seed", range(tries(10, 5)))
def test_a_machine_that_is_repeated_has_the_room_of_one_that_was_filled_itself(seed: int) -> None:
    chance = random.Random(seed)
    one = ask(chance.choice([1000, 1500, 4000]), gpu=chance.choice([0, 500, 1000]), alone=chance.random() < 0.2)
    lives = [chance.choice([3600.0, 60.0]) for _ in range(5)]
    node = node_of(POOL, SHAPE)
    assert node.capacity is not None
    least = Resources(500, GIB)
    filled, repeated = Stock([], least), Stock([], least)
    for number, left in enumerate(lives):
        added = Bin(node, node.capacity.copy(), [f"+{number}"], left, whole=True)
        if number:
            repeated.repeat(f"+{number - 1}", [f"+{number}"], left)
        else:
            repeated.add(added.copy())
            each = sum(repeated.serve(one, 99).values())
        filled.add(added)
        assert filled.serve(one, each) == {f"+{number}": each}
    for _ in range(5):
        more, count = ask(chance.choice([500, 1000]), lasts=chance.choice([0.0, 600.0])), chance.randint(1, 9)
        assert repeated.serve(more, count) == filled.serve(more, count)


def found(request: Request, mode: ScalingMode = ScalingMode.ACT) -> str:
    return pool_for(Ledger(policy=Policy(scaling=Scaling(mode=mode, pools=(TWO_MACHINES,)))).state, request)


def test_a_pool_is_found_that_is_large_enough() -> None:
    assert found(Request(Resources(8000))) == "a"
    assert found(Request(Resources(8001))) == ""


def test_a_gang_needs_as_many_machines_as_there_may_be() -> None:
    assert found(Request(Resources(8000), gang=2)) == "a"
    assert found(Request(Resources(8000), gang=3)) == ""


def test_the_machines_of_all_pools_and_the_nodes_that_are_there_count_for_a_gang_up_to_the_limit_of_machines() -> None:
    other = replace(TWO_MACHINES, name="b")
    ledger = Ledger(policy=Policy(scaling=Scaling(pools=(TWO_MACHINES, other), limits=Limits(max_workers=3))))
    for name in ("n1", "n2"):
        join(ledger, facts(name, cores=8))
    join(ledger, facts("small", cores=4))
    assert pool_for(ledger.state, Request(Resources(8000), gang=5)) == "a"
    assert pool_for(ledger.state, Request(Resources(8000), gang=6)) == ""


def test_the_most_memory_is_that_of_machines_that_could_run_it() -> None:
    large = replace(TWO_MACHINES, name="b", shapes=(Shape(resources=Resources(2000, 64 * GIB)),))
    state = Ledger(policy=Policy(scaling=Scaling(pools=(TWO_MACHINES, large)))).state
    assert most_memory(state, Request(Resources(2000, GIB))) == 64 * GIB
    assert most_memory(state, Request(Resources(4000, GIB))) == 8 * GIB
    assert most_memory(state, Request(Resources(9000, GIB))) == 0


def test_no_machine_is_promised_where_none_is_created() -> None:
    assert found(Request(Resources(8000)), ScalingMode.OFF) == ""


def test_a_pool_that_may_have_no_machine_promises_none() -> None:
    state = Ledger(policy=Policy(scaling=Scaling(pools=(replace(TWO_MACHINES, max=0),)))).state
    assert pool_for(state, Request(Resources(1000))) == ""
