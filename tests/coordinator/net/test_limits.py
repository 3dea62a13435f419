"""A token bucket gives what was saved, then a debt with the time that it takes to pay it."""

from distributed_grid.coordinator.net.limits import Bucket


def test_what_was_saved_is_given_at_once_and_what_is_over_takes_its_time() -> None:
    bucket = Bucket(rate=10, most=100, now=0.0)
    assert bucket.take(100, 0.0) == 0
    assert bucket.take(5, 0.0) == 0.5
    assert bucket.debt(0.25) == 0.25
    assert bucket.take(5, 1.0) == 0


def test_nothing_is_saved_above_the_most_and_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(rate=10, most=100, now=0.0)
    bucket.take(100, 0.0)
    assert not bucket.full(9.0)
    assert bucket.full(1000.0)
    assert bucket.take(101, 1000.0) == 0.1
    assert bucket.debt(500.0) == 0.1
