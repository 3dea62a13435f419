"""Messages about scaling: an order names all pools unless it names one."""

from distributed_grid.protocol.messages import OrderScaling, ScalingStatus
from distributed_grid.protocol.scaling.plans import ScaleOrder
from distributed_grid.protocol.scaling.pools import ScalingMode


def test_an_order_is_for_all_pools_unless_it_names_one() -> None:
    assert (OrderScaling(1, ScaleOrder.PAUSE).pool, OrderScaling(1, ScaleOrder.PAUSE).why) == ("", "")


def test_a_grid_without_pools_has_no_plan() -> None:
    answer = ScalingStatus(1, ScalingMode.PLAN, 5.0)
    assert answer.plan is None and answer.machines == () and answer.pools == ()
