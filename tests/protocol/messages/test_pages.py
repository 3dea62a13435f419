"""Answers that are lists come in pages, which are joined to one."""

from distributed_grid.protocol.messages import GetStatus, Jobs, ListJobs, Status, joined, next_page
from distributed_grid.protocol.nodes import NodeState, NodeView
from tests.coordinator.core.scene import facts


def status(number: int, names: tuple[str, ...], past: str = "") -> Status:
    views = tuple(NodeView(facts=facts(name), state=NodeState.UP) for name in names)
    return Status(
        id=number, grid="g", software="1", epoch=1, up_for=1.0, nodes=views, counts={}, ended={}, at=1.0, past=past
    )


def test_pages_are_asked_for_until_there_is_no_more_and_joined_without_repeats() -> None:
    asked = GetStatus(id=1)
    first, second = status(1, ("a", "b"), "b"), status(2, ("b", "c"))
    again = next_page(asked, first, 2)
    assert again == GetStatus(id=2, past="b") and next_page(again, second, 3) is None
    both = joined(first, second)
    assert [view.facts.name for view in both.nodes] == ["a", "b", "c"] and both.id == 2


def test_any_number_of_pages_is_joined_at_once() -> None:
    pages = [status(number, (f"n{number}", f"n{number + 1}")) for number in range(1000)]
    whole = joined(*pages)
    assert [view.facts.name for view in whole.nodes] == [f"n{number}" for number in range(1001)] and whole.id == 999
    assert joined(pages[0]) == pages[0]


def test_a_list_of_jobs_ends_with_its_limit() -> None:
    assert next_page(ListJobs(id=1, limit=5), Jobs(id=1, jobs=(), more=True), 2) is None
    assert next_page(ListJobs(id=1, limit=5), Jobs(id=1, jobs=(), more=False), 2) is None
