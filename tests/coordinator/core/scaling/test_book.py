"""What is remembered: boots, refusals and utilisation."""

import pytest

from distributed_grid.coordinator.core.scaling.book import BOOTS_KEPT, SHUT_FIRST, SHUT_MOST, ScalingBook
from distributed_grid.protocol.scaling.machines import Machine


def machine(joined: float = 0.0) -> Machine:
    return Machine(name="a-1", pool="a", provider="p", type="x", zone="n", born=100.0, joined=joined)


def test_boot_times_are_learned_by_pool_and_type() -> None:
    book = ScalingBook()
    for seconds in (*range(1, 11), 1000):
        book.booted(machine(100.0 + seconds))
    assert book.boot_times() == {("a", "x"): (6, 10)}
    for _ in range(BOOTS_KEPT):
        book.booted(machine(107.0))
    assert book.boot_times() == {("a", "x"): (7, 7)}


def test_what_is_refused_again_and_again_is_left_alone_for_longer() -> None:
    book, now = ScalingBook(), 0.0
    seconds = []
    for _ in range(8):
        one = book.shut_out(machine(), "no capacity", now)
        seconds.append(one.seconds)
        now = one.until
    assert (
        seconds == [60, 120, 240, 480, 960, 1920, 3600, 3600] and seconds[0] == SHUT_FIRST and max(seconds) == SHUT_MOST
    )
    assert book.shut_now() == {("a", "n", "x"): (now, "no capacity")}
    assert book.shut_out(machine(), "no capacity", now + 3 * SHUT_MOST).seconds == SHUT_FIRST


def test_utilisation_is_the_mean_over_a_whole_window() -> None:
    book = ScalingBook()
    book.note_used(1.0, 0.0, 100.0)
    assert book.utilisation(99.0, 100.0) is None
    book.note_used(0.0, 50.0, 100.0)
    assert book.utilisation(100.0, 100.0) == pytest.approx(0.5)
    assert book.utilisation(125.0, 100.0) == pytest.approx(0.25)


def test_a_copy_shares_nothing_that_changes() -> None:
    book = ScalingBook()
    book.provider("p").strangers["x"] = 1
    other = book.copy()
    other.provider("p").strangers["y"] = 1
    other.paused["a"] = None  # type: ignore[assignment]
    other.boots["a/x"] = [1.0]
    assert book.provider("p").strangers == {"x": 1} and not book.paused and not book.boots
