from distributed_grid.coordinator.core.queue import Queue
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.resources import Resources

ONE, TWO = Request(Resources(cpu=1000)), Request(Resources(cpu=2000))
URGENT = Request(Resources(cpu=1000), Priority.URGENT)


def test_equal_requests_stand_in_one_line_by_their_turn() -> None:
    queue = Queue()
    for turn, name in ((2, "b"), (3, "c"), (1, "a")):
        queue.add(name, Request(Resources(cpu=1000)), turn)
    assert list(queue.lines) == [ONE]
    line = queue.lines[ONE]
    order = []
    while len(queue):
        order.append(queue.head(line)[1])
        queue.remove(order[-1])
    assert order == ["a", "b", "c"]
    assert queue.lines == {}


def test_who_comes_back_has_its_old_place() -> None:
    queue = Queue()
    queue.add("a", ONE, 1)
    queue.add("b", ONE, 2)
    queue.remove("a")
    queue.add("a", ONE, 1)
    assert queue.head(queue.line("b")) == (1, "a")


def test_ahead_counts_priority_before_turn() -> None:
    queue = Queue()
    queue.add("a", ONE, 1)
    queue.add("b", TWO, 2)
    queue.add("c", URGENT, 3)
    assert [queue.ahead(name) for name in "cab"] == [0, 1, 2]
    queue.remove("a")
    assert queue.ahead("b") == 1


def test_a_line_that_many_left_keeps_no_trace_of_them() -> None:
    queue = Queue()
    for turn in range(1000):
        queue.add(f"j{turn}", ONE, turn)
    for turn in range(999):
        queue.remove(f"j{turn}")
    assert len(queue.lines[ONE].heap) < 40
    assert queue.head(queue.lines[ONE]) == (999, "j999")
