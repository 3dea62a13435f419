"""Messages about rebalancing have defaults that change nothing."""

from distributed_grid.protocol.messages import BalancingStatus, GetBalancing, SetBalancing
from distributed_grid.protocol.messages.pages import joined, next_page
from distributed_grid.protocol.sharing.moves import LenderView
from distributed_grid.protocol.sharing.policies import NO_ORDER, Balancing


def page(*names: str, past: str = "") -> BalancingStatus:
    nodes = tuple(LenderView(node=name) for name in names)
    return BalancingStatus(id=1, balancing=Balancing(), configured=Balancing(), nodes=nodes, past=past)


def test_an_order_that_says_nothing_sets_nothing() -> None:
    assert (SetBalancing(1).mode, SetBalancing(1).policy, SetBalancing(1).unset) == (None, None, False)
    assert page().order == NO_ORDER


def test_the_nodes_of_a_large_grid_come_in_pages() -> None:
    first = page("lab1", "lab2", past="lab2")
    assert next_page(GetBalancing(1), first, 2) == GetBalancing(2, "lab2")
    second = page("lab3")
    assert next_page(GetBalancing(2, "lab2"), second, 3) is None
    assert [one.node for one in joined(first, second).nodes] == ["lab1", "lab2", "lab3"]
