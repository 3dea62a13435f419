"""Methods that several threads may not be in at once. What that is for: test_blocking.py."""

import threading

import pytest

from distributed_grid.coordinator.client.exclusive import Exclusive, exclusive
from distributed_grid.protocol.errors import GridError


class Counter(Exclusive):
    number = 0

    @exclusive
    def count(self, times: int = 1) -> int:
        self.number += 1
        return self.count(times - 1) if times > 1 else self.number

    @exclusive
    def within(self, other: threading.Thread) -> None:
        other.start()
        other.join()


def test_one_thread_after_another_may_call_them_and_they_each_other() -> None:
    counter = Counter()
    others = [threading.Thread(target=counter.count, args=(3,)) for _ in range(3)]
    for other in others:
        other.start()
        other.join()
    assert counter.count() == 10


def test_a_second_thread_is_told_before_anything_is_done_and_the_next_time_it_is_not() -> None:
    counter, told = Counter(), []

    def count() -> None:
        try:
            counter.count()
        except GridError as error:
            told.append(error.what)

    counter.within(threading.Thread(target=count))
    assert told == ["this Counter is in use by another thread"] and counter.number == 0
    other = threading.Thread(target=count)
    other.start()
    other.join()
    assert len(told) == 1 and counter.number == 1


def test_what_a_method_raises_leaves_it_free() -> None:
    counter = Counter()
    with pytest.raises(TypeError):
        counter.count("many")  # type: ignore[arg-type]
    done = threading.Thread(target=counter.count)
    done.start()
    done.join()
    assert counter.number == 2
