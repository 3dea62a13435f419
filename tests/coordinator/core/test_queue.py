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


def test_lines_come_in_the_order_of_service_whoever_left_or_came_back() -> None:
    queue, small, large, urgent = Queue(), asks(1), asks(2), asks(3, Priority.URGENT)
    for turn, (name, request) in enumerate([("a", small), ("b", large), ("c", small), ("u", urgent)]):
        queue.add(name, request, turn)
    served = []
    while (line := queue.first()) is not None:
        name = queue.head(line)[1]
        served.append(name)
        queue.remove(name)
        if name == "b" and served.count("b") == 1:
            queue.add("a", small, 0)  # back at its old place
            queue.add("b", large, 1)  # the last of its line: a line of its own anew
    assert served == ["u", "a", "b", "a", "b", "c"]


def test_nobody_wants_less_than_the_least() -> None:
    queue = Queue()
    queue.add("a", Request(Resources(2000, 5)), 1)
    queue.add("b", Request(Resources(1000, 9)), 2)
    queue.add("c", Request(Resources(4000, 9, 1000)), 3)
    assert queue.least == Resources(1000, 5)
    for name in "ab":
        queue.remove(name)
    assert queue.least == Resources(4000, 9, 1000)


def asks(cores: int, priority: Priority = Priority.MEDIUM) -> Request:
    return Request(Resources(cpu=cores * 1000), priority)
