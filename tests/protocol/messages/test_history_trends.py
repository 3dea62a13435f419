"""Trends of many nodes come in pages."""

from msgspec.structs import replace

from distributed_grid.protocol.messages import GetTrends, Shared, Trends, joined, next_page
from tests.protocol.samples import NODE_TRENDS


def test_trends_go_on_behind_the_last_node_of_a_page() -> None:
    asked = GetTrends(id=1, window=300.0)
    first = Trends(id=1, nodes=(NODE_TRENDS,), window=300.0, at=1.0, past="lab1")
    last = Trends(id=2, nodes=(replace(NODE_TRENDS, node="lab2"),), window=300.0, at=2.0)
    assert next_page(asked, first, 2) == GetTrends(id=2, window=300.0, past="lab1")
    assert next_page(asked, last, 3) is None
    assert [one.node for one in joined(first, last).nodes] == ["lab1", "lab2"]


def test_what_pages_say_of_idle_nodes_is_joined() -> None:
    first, last = Shared(1, (), (), "a", {"a": 0.5}), Shared(2, (), (), "", {"b": 0.75})
    assert joined(first, last).lasting == {"a": 0.5, "b": 0.75}
