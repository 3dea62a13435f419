"""What the list of nodes says of orders, walls and devices."""

from distributed_grid.cli.grid.nodes import _gpus_of, _state, _walls, node_json, orders_words
from distributed_grid.protocol.nodes import Aside, Drain, GpuFacts, NodeOrders, NodeState, NodeView
from tests.coordinator.core.scene import facts

DRAINED = NodeOrders(drain=Drain(since=1.0, by="ann", reason="new disk"))


def view(orders: NodeOrders = NodeOrders(), state: NodeState = NodeState.UP, jobs: int = 0) -> NodeView:  # noqa: B008
    return NodeView(facts=facts("n1"), state=state, orders=orders, jobs=jobs)


def test_the_state_has_the_link_and_the_order() -> None:
    assert _state(view()) == "up"
    assert (_state(view(DRAINED)), _state(view(DRAINED, jobs=1))) == ("drained", "draining")
    assert _state(view(DRAINED, NodeState.LOST)) == "lost, drained"
    assert _state(view(NodeOrders(aside=Aside(until=9.0, seconds=5.0, failures=3)))) == "set aside"


def test_orders_are_told_with_who_and_why() -> None:
    assert orders_words(view()) == ""
    assert "drained by ann" in orders_words(view(DRAINED)) and orders_words(view(DRAINED)).endswith(": new disk")
    aside = NodeOrders(aside=Aside(until=9e9, seconds=5.0, failures=3, why="no GPU"))
    assert "3 launches in a row failed, no GPU" in orders_words(view(aside))


def test_stand_ins_and_weak_walls_are_marked() -> None:
    node = facts("n1")
    named = (GpuFacts("a", 0, "A100", 1), GpuFacts("b", 1, "A100", 1), GpuFacts("c", 2, "T4", 1, stand_in=True))
    node = type(node)(**{name: getattr(node, name) for name in node.__struct_fields__} | {"gpus": named})
    assert _gpus_of(node) == "2 A100, 1 T4 (stand-in)"
    assert _walls(node).endswith(", owners")


def test_json_has_the_order_and_null_where_there_is_none() -> None:
    shown = node_json(view(DRAINED, jobs=1))
    assert shown["drained"]["by"] == "ann" and shown["drained"]["empty"] is False
    assert shown["set_aside"] is None and shown["name"] == "n1"
