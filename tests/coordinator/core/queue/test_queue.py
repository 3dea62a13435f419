import random

from distributed_grid.coordinator.core.queue.precedence import NO_LIMIT
from distributed_grid.coordinator.core.queue.queue import Key, Line, Queue, Rank
from distributed_grid.protocol.jobs import Priority, Request
from distributed_grid.protocol.resources import Resources
from tests.depth import tries


def asks(cores: int, priority: Priority = Priority.MEDIUM, user: str = "ann", memory: int = 0, gpus: int = 0) -> Key:
    return user, Request(Resources(cores * 1000, memory, gpus * 1000), priority), 0.0, False


ONE, TWO = asks(1), asks(2)
URGENT = asks(1, Priority.URGENT)


def test_equal_requests_stand_in_one_line_by_their_turn() -> None:
    queue = Queue()
    for turn, name in ((2, "b"), (3, "c"), (1, "a")):
        queue.add(name, asks(1), turn)
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
    while (line := first(queue)) is not None:
        name = queue.head(line)[1]
        served.append(name)
        queue.remove(name)
        if name == "b" and served.count("b") == 1:
            queue.add("a", small, 0)  # back at its old place
            queue.add("b", large, 1)  # the last of its line: a line of its own anew
    assert served == ["u", "a", "b", "a", "b", "c"]


def test_nobody_wants_less_than_the_least() -> None:
    queue = Queue()
    queue.add("a", asks(2, memory=5), 1)
    queue.add("b", asks(1, memory=9), 2)
    queue.add("c", asks(4, memory=9, gpus=1), 3)
    assert queue.least == Resources(1000, 5)
    for name in "ab":
        queue.remove(name)
    assert queue.least == Resources(4000, 9, 1000)


def first(queue: Queue) -> Line | None:
    standings = (queue.first(priority) for priority in queue.order)
    standing = next(filter(None, standings), None)
    return None if standing is None else queue.first_line(standing)


def test_users_of_a_class_come_by_their_rank_and_then_by_the_turn_of_their_first_job() -> None:
    queue = Queue()
    for turn, user in enumerate(("ann", "ben", "cleo")):
        queue.add(f"{user}1", asks(1, user=user), turn)
        queue.add(f"{user}2", asks(1, user=user), turn + 10)
    queue.rank(queue.standings[Priority.MEDIUM, "ann", NO_LIMIT], Rank(0.5))
    served = []
    while (line := first(queue)) is not None:
        served.append(queue.head(line)[1])
        queue.remove(served[-1])
    assert served == ["ben1", "cleo1", "ben2", "cleo2", "ann1", "ann2"]


def test_a_rank_that_changes_ten_thousand_times_leaves_no_trace() -> None:
    queue = Queue()
    queue.add("a", asks(1), 1)
    queue.add("b", asks(1, user="ben"), 2)
    for number in range(10_000):
        queue.rank(queue.standings[Priority.MEDIUM, "ann", NO_LIMIT], Rank(float(number)))
    assert len(queue.order[Priority.MEDIUM]) < 100
    assert first(queue) is queue.line("b")


def test_all_ranks_at_once_are_those_ranks_one_by_one() -> None:
    chance = random.Random(1)
    for _ in range(tries(20)):
        served = list[list[str]]()
        one, other = Queue(), Queue()
        for turn in range(30):
            how = asks(chance.randint(1, 3), chance.choice((*Priority,)), chance.choice(("ann", "ben", "cleo")))
            for queue in (one, other):
                queue.add(f"j{turn}", how, turn)
        excluded = chance.choice([*one.lines])
        for queue in (one, other):
            queue.exclude(queue.lines[excluded])
        ranks = {key: Rank(float(chance.randint(0, 3)), "", chance.choice((-1, 3)), 2.0) for key in one.standings}
        for key, rank in ranks.items():
            one.rank(one.standings[key], rank)
        other.rank_all((other.standings[key], rank) for key, rank in ranks.items())
        assert sum(map(len, other.order.values())) <= len(other.standings)
        for queue in (one, other):
            served.append([])
            while (line := first(queue)) is not None:
                served[-1].append(queue.head(line)[1])
                queue.remove(served[-1][-1])
        assert served[0] == served[1] and served[0]


def test_ahead_takes_other_users_to_take_turns() -> None:
    queue = Queue()
    for number in range(100):
        queue.add(f"a{number}", asks(1), number)
    for number in range(3):
        queue.add(f"b{number}", asks(1, user="ben"), 100 + number)
    queue.add("l", asks(1, Priority.LOW), 200)
    assert [queue.ahead(name) for name in ("a0", "b0", "a1", "b1")] == [0, 1, 2, 3]
    assert queue.ahead("a50") == 53
    assert queue.ahead("l") == 103
