"""The ring of an hour: bounded, in place, and what was not measured is a gap."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.history.series import COUNT, GAP, Ring, Series
from distributed_grid.protocol.history.buckets import KEPT
from tests.depth import tries

FIRST = 1_000_000


def codes(one: int) -> tuple[int, ...]:
    return (one,) * COUNT


def test_a_node_takes_at_most_twelve_kib() -> None:
    ring = Ring(FIRST)
    assert sys.getsizeof(ring) + sys.getsizeof(ring._codes) <= 12 << 10


def test_what_was_not_measured_is_a_gap_and_can_be_filled_later() -> None:
    ring = Ring(FIRST)
    ring.put(FIRST, codes(1))
    ring.put(FIRST + 3, codes(4))
    assert ring.span(Series.NET, FIRST - 1, FIRST + 5).tolist() == [GAP, 1, GAP, GAP, 4, GAP]
    assert ring.put(FIRST + 1, codes(2))
    assert ring.span(Series.NET, FIRST, FIRST + 4).tolist() == [1, 2, GAP, 4]


def test_what_is_older_than_an_hour_is_gone_and_is_not_taken() -> None:
    ring = Ring(FIRST)
    ring.put(FIRST, codes(1))
    ring.put(FIRST + KEPT, codes(2))
    assert not ring.put(FIRST, codes(1))
    assert set(ring.span(Series.DISK, FIRST, FIRST + KEPT)) == {GAP}
    assert ring.span(Series.DISK, FIRST + KEPT, FIRST + KEPT + 1).tolist() == [2]


def test_a_minute_is_the_mean_of_what_was_measured_in_it() -> None:
    ring = Ring(FIRST - FIRST % 6)
    minute = FIRST // 6
    for at, one in ((0, 100), (2, 200)):
        ring.put(minute * 6 + at, codes(one))
    found = ring.minute(minute)
    assert found is not None
    assert (found[Series.OWN_CPU], found[Series.GPU_MOST]) == (150, 200)
    assert ring.minute(minute + 1) is None and ring.minute(minute - 70) is None


@settings(max_examples=tries(50), deadline=None)
@given(st.lists(st.tuples(st.integers(-400, 800), st.integers(0, GAP - 1)), max_size=60))
def test_the_ring_has_the_newest_word_of_each_bucket_of_the_last_hour(puts: list[tuple[int, int]]) -> None:
    ring, kept, newest = Ring(FIRST), dict[int, int](), FIRST - 1
    for at, one in puts:
        number = FIRST + at
        taken = ring.put(number, codes(one))
        assert taken == (number > newest - KEPT)
        newest = max(newest, number)
        if taken:
            kept[number] = one
    first = newest - KEPT + 1
    expected = [kept.get(number, GAP) for number in range(first, newest + 1)]
    assert ring.span(Series.OWN_GPU, first, newest + 1).tolist() == expected
