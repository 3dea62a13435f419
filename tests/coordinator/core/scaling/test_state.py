"""What is remembered: boots, refusals and utilisation."""

import pytest
from msgspec.structs import replace

from distributed_grid.coordinator.core.scaling.state import (
    BACKOFF_FIRST,
    BACKOFF_MOST,
    BOOTS_KEPT,
    Orphan,
    ScalingState,
)
from distributed_grid.protocol.scaling.machines import Machine


def machine(joined: float = 0.0) -> Machine:
    return Machine(
        name="a-1", pool="a", provider="p", type="x", zone="n", born=100.0, joined=joined, join_within=2000.0
    )


def test_boot_times_are_learned_by_pool_and_type() -> None:
    known = ScalingState()
    for seconds in (*range(1, 11), 1000):
        known.booted(machine(100.0 + seconds))
    assert known.boot_times() == {("a", "x"): (6, 10)}
    for _ in range(BOOTS_KEPT):
        known.booted(machine(107.0))
    assert known.boot_times() == {("a", "x"): (7, 7)}


def test_a_time_that_no_boot_may_take_is_none() -> None:
    known = ScalingState()
    for joined in (100.0 + 90_000.0, 100.0 - 90_000.0, 0.0):
        known.booted(machine(joined))
    assert known.boot_times() == {}, "the clock has jumped, or it was found running"


def test_what_is_refused_again_and_again_is_left_alone_for_longer() -> None:
    known, now = ScalingState(), 0.0
    seconds = []
    for _ in range(8):
        one = known.back_off(machine(), "no capacity", now)
        seconds.append(one.seconds)
        now = one.until
    assert (
        seconds == [60, 120, 240, 480, 960, 1920, 3600, 3600]
        and seconds[0] == BACKOFF_FIRST
        and max(seconds) == BACKOFF_MOST
    )
    assert known.backoffs_now() == {("a", "n", "x"): (now, "no capacity")}
    assert known.back_off(machine(), "no capacity", now + 3 * BACKOFF_MOST).seconds == BACKOFF_FIRST


def test_a_zone_is_left_alone_whatever_its_name() -> None:
    known = ScalingState()
    keys = [("a", zone, type) for zone in ("", "dc1/rack2", "50%2F") for type in ("", "x/y")]
    for _, zone, type in keys:
        known.back_off(replace(machine(), zone=zone, type=type), "no capacity", 0.0)
    assert list(known.backoffs_now()) == keys
    known.idle_in_vain(machine(), ["dc1/rack2"], 90.0)
    assert known.backoffs_now()["a", "dc1/rack2", "x"][0] == 150.0


def test_what_is_refused_several_times_at_once_is_left_alone_as_after_one_refusal() -> None:
    known = ScalingState()
    first = [known.back_off(machine(), "too many calls", now) for now in (0.0, 0.1, 59.9)]
    assert [(one.until, one.seconds) for one in first] == [(60.0, 60.0)] * 3


def test_utilisation_is_the_mean_over_a_whole_window() -> None:
    known = ScalingState()
    known.note_used(1.0, 0.0, 100.0)
    assert known.utilisation(99.0, 100.0) is None
    known.note_used(0.0, 50.0, 100.0)
    assert known.utilisation(100.0, 100.0) == pytest.approx(0.5)
    assert known.utilisation(125.0, 100.0) == pytest.approx(0.25)


def test_use_that_stays_the_same_is_noted_once_and_counts_for_as_long_as_it_lasts() -> None:
    known = ScalingState()
    for now in range(0, 150, 10):
        known.note_used(1.0 if now < 50 else 0.5, float(now), 100.0)
    assert known.used == [(0.0, 1.0), (50.0, 0.5)]
    assert known.utilisation(100.0, 100.0) == pytest.approx(0.75)
    known.note_used(0.5, 150.0, 100.0)
    assert known.used == [(50.0, 0.5)] and known.utilisation(150.0, 100.0) == pytest.approx(0.5)


def test_a_copy_shares_nothing_that_changes() -> None:
    known = ScalingState()
    known.provider("p").unrecorded["x"] = Orphan(1.0)
    other = known.copy()
    other.provider("p").unrecorded["y"] = Orphan(1.0)
    other.paused["a"] = None  # type: ignore[assignment]
    other.boots["a/x"] = [1.0]
    assert known.provider("p").unrecorded == {"x": Orphan(1.0)} and not known.paused and not known.boots
