"""Which pool a request could wait for."""

from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.core.scaling.fits import pool_for
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.resources import GIB, Resources
from distributed_grid.protocol.scaling.pools import Pool, Scaling, ScalingMode, Shape

POOL = Pool(name="a", provider="p", shapes=(Shape(resources=Resources(8000, 8 * GIB)),), max=2)


def found(request: Request, mode: ScalingMode = ScalingMode.ACT) -> str:
    return pool_for(Ledger(policy=Policy(scaling=Scaling(mode=mode, pools=(POOL,)))).state, request)


def test_a_pool_is_found_that_is_large_enough() -> None:
    assert found(Request(Resources(8000))) == "a"
    assert found(Request(Resources(8001))) == ""


def test_a_gang_needs_as_many_machines_as_there_may_be() -> None:
    assert found(Request(Resources(8000), gang=2)) == "a"
    assert found(Request(Resources(8000), gang=3)) == ""


def test_no_machine_is_promised_where_none_is_created() -> None:
    assert found(Request(Resources(8000)), ScalingMode.OFF) == ""
