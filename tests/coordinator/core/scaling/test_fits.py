"""Which pool a request could wait for."""

from msgspec.structs import replace

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.fits import most_memory, pool_for
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Limits, Pool, Scaling, ScalingMode, Shape
from tests.coordinator.core.scene import facts, join

POOL = Pool(name="a", provider="p", shapes=(Shape(resources=Resources(8000, 8 * GIB)),), max=2)


def found(request: Request, mode: ScalingMode = ScalingMode.ACT) -> str:
    return pool_for(Ledger(policy=Policy(scaling=Scaling(mode=mode, pools=(POOL,)))).state, request)


def test_a_pool_is_found_that_is_large_enough() -> None:
    assert found(Request(Resources(8000))) == "a"
    assert found(Request(Resources(8001))) == ""


def test_a_gang_needs_as_many_machines_as_there_may_be() -> None:
    assert found(Request(Resources(8000), gang=2)) == "a"
    assert found(Request(Resources(8000), gang=3)) == ""


def test_the_machines_of_all_pools_and_the_nodes_that_are_there_count_for_a_gang_up_to_the_limit_of_machines() -> None:
    other = replace(POOL, name="b")
    ledger = Ledger(policy=Policy(scaling=Scaling(pools=(POOL, other), limits=Limits(max_workers=3))))
    for name in ("n1", "n2"):
        join(ledger, facts(name, cores=8))
    join(ledger, facts("small", cores=4))
    assert pool_for(ledger.state, Request(Resources(8000), gang=5)) == "a"
    assert pool_for(ledger.state, Request(Resources(8000), gang=6)) == ""


def test_the_most_memory_is_that_of_machines_that_could_run_it() -> None:
    large = replace(POOL, name="b", shapes=(Shape(resources=Resources(2000, 64 * GIB)),))
    state = Ledger(policy=Policy(scaling=Scaling(pools=(POOL, large)))).state
    assert most_memory(state, Request(Resources(2000, GIB))) == 64 * GIB
    assert most_memory(state, Request(Resources(4000, GIB))) == 8 * GIB
    assert most_memory(state, Request(Resources(9000, GIB))) == 0


def test_no_machine_is_promised_where_none_is_created() -> None:
    assert found(Request(Resources(8000)), ScalingMode.OFF) == ""


def test_a_pool_that_may_have_no_machine_promises_none() -> None:
    state = Ledger(policy=Policy(scaling=Scaling(pools=(replace(POOL, max=0),)))).state
    assert pool_for(state, Request(Resources(1000))) == ""
