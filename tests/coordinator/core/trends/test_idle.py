"""How long a node stays idle: learned from its own past, before what it is about, and told only where it holds."""

import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.trends import idle
from distributed_grid.coordinator.core.trends.idle import (
    DOUBTED,
    EVERY,
    HORIZONS,
    STEP,
    TRIED,
    Bin,
    IdleForecaster,
    Memory,
    Pool,
)
from tests.depth import tries

START = 6_000_000
DAY = 86400 // STEP


def live(one: IdleForecaster, pool: Pool, pattern: str, first: int = START) -> int:
    """Observe `i` (idle), `b` (in use) and `?` (not measured), interval by interval; the next one."""
    for at, what in enumerate(pattern):
        use = {"i": 0.0, "b": 0.9}.get(what, math.nan)
        one.observe(first + at, use, what == "i", pool)
    return first + len(pattern)


def test_a_node_in_use_or_not_measured_has_no_forecast() -> None:
    pool = Pool()
    for pattern in ("", "b", "iib", "ii?"):
        one = IdleForecaster()
        live(one, pool, pattern)
        assert one.forecast(pool) == ()


def test_without_any_past_nothing_is_known_either_way() -> None:
    one, pool = IdleForecaster(), Pool()
    live(one, pool, "i")
    assert [(told.probability, told.cases, told.believed) for told in one.forecast(pool)] == [(0.5, 0, True)] * 3


def test_a_node_that_is_idle_all_night_learns_that_it_stays_so_and_until_when() -> None:
    one, pool = IdleForecaster(), Pool()
    day = "b" * (DAY // 2) + "i" * (DAY // 2)
    first = live(one, pool, day * 20)
    first = live(one, pool, "b" * (DAY // 2) + "i" * 12, first)
    early = one.forecast(pool)
    live(one, pool, "i" * (DAY // 2 - 18), first)
    late = one.forecast(pool)
    assert early[1].probability > 0.85 and late[1].probability < 0.4
    assert early[1].cases >= 15 and early[1].cases == early[1].lasted


def test_a_forecast_is_learned_from_when_its_time_has_passed_and_not_before() -> None:
    one, pool = IdleForecaster(), Pool()
    first = START - START % EVERY
    live(one, pool, "ib" + "b" * (HORIZONS[0] // STEP - 2), first)
    assert pool.cases == [0, 0, 0]
    live(one, pool, "b", first + HORIZONS[0] // STEP)
    assert (pool.cases, pool.lasted) == ([1, 0, 0], [0, 0, 0])


def test_what_was_not_measured_is_not_learned_from() -> None:
    one, pool = IdleForecaster(), Pool()
    live(one, pool, ("i" * 6 + "?") * 50)
    assert pool.cases == [0, 0, 0]
    one.observe(START + 10_000, 0.0, True, pool)
    assert one.since == START + 10_000


def test_a_grid_that_knows_more_helps_a_node_that_knows_nothing() -> None:
    pool = Pool()
    live(IdleForecaster(), pool, "i" * 500)
    new = IdleForecaster()
    live(new, pool, "i", START + 500)
    assert new.forecast(pool)[0].probability > 0.9


def test_what_is_learned_is_kept_over_a_restart_and_not_learned_twice() -> None:
    one, pool = IdleForecaster(), Pool()
    pattern = ("i" * 30 + "b" * 7) * 40
    behind = live(one, pool, pattern)
    before = one.forecast(pool)
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(one.memory()), type=Memory)
    again, other = IdleForecaster(kept), Pool()
    other.add(kept)
    assert (other.cases, other.lasted) == (pool.cases, pool.lasted)
    live(again, other, pattern[-100:], behind - 100)
    assert (other.cases, again.since) == (pool.cases, one.since)
    assert [told.cases for told in again.forecast(other)] == [told.cases for told in before]


@pytest.mark.parametrize("pattern", ["i" * 400, "i" * 200 + "b" + "i" * 199, ("i" * 30 + "b" * 7) * 12])
def test_what_waits_for_its_time_at_a_restart_is_learned_once(pattern: str) -> None:
    """Restarts every hour or two: nothing would be learned of the next four hours otherwise."""
    steady, pool = IdleForecaster(), Pool()
    live(steady, pool, pattern)
    one, other, at = IdleForecaster(), Pool(), 0
    for part in range(0, len(pattern), 17):
        live(one, other, pattern[at : part + 17], START + at)
        at = min(part + 17, len(pattern))
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(one.memory()), type=Memory)
        one, other = IdleForecaster(kept), Pool()
        other.add(kept)
        live(one, other, pattern[:at])
    assert (other.cases, other.lasted) == (pool.cases, pool.lasted)
    assert [told.cases for told in one.forecast(other)] == [told.cases for told in steady.forecast(pool)]
    assert sum(one.count for one in other.bins[-1]) < sum(other.cases), "of those it is not known how good they were"


def test_both_together_are_used_where_they_erred_less() -> None:
    one, pool = IdleForecaster(), Pool()
    draw = random.Random(3)
    pattern = ""
    for _ in range(60):  # long idle times begin in the morning only: the base cannot see that
        hours = "".join("i" * 8 + "b" * 4 if draw.random() < 0.9 else "i" * 12 for _ in range(12))
        pattern += "i" * 140 + "b" * 4 + hours
    live(one, pool, pattern)
    learner = one._learners[0]
    assert sum(learner.learned.cases) >= TRIED and learner.uses_both
    assert learner.learned.wrong[1] < learner.learned.wrong[0]


def test_forecasts_that_do_not_come_true_as_said_are_not_believed() -> None:
    assert Bin(DOUBTED, 0.85 * DOUBTED, int(0.82 * DOUBTED)).believed
    assert not Bin(DOUBTED, 0.85 * DOUBTED, int(0.75 * DOUBTED)).believed
    assert Bin(DOUBTED - 1, 0.85 * DOUBTED, 0).believed


def test_said_probabilities_come_true_as_often_on_a_machine_without_memory() -> None:
    draw, pool, one = random.Random(7), Pool(), IdleForecaster()
    idle, pattern = True, ""
    for _ in range(20_000):
        idle = draw.random() < (0.97 if idle else 0.2)
        pattern += "i" if idle else "b"
    live(one, pool, pattern)
    for bins in pool.bins:
        told = sum(one.count for one in bins)
        assert told > 2000
        assert sum(abs(one.said - one.true) for one in bins) / told == pytest.approx(0.0, abs=0.06)


@settings(max_examples=tries(50), deadline=None)
@given(st.text("iib?", max_size=150), st.integers(0, 3))
def test_probabilities_are_probabilities_whatever_comes(pattern: str, jump: int) -> None:
    one, pool = IdleForecaster(), Pool()
    first = live(one, pool, pattern)
    live(one, pool, pattern, first + 7 * jump)
    live(one, pool, pattern, first - 50)  # a clock that went back: what was observed stands
    for told in one.forecast(pool):
        assert 0.0 < told.probability < 1.0 and told.lasted <= told.cases
    for cases, lasted in zip(pool.cases, pool.lasted, strict=True):
        assert 0 <= lasted <= cases


def test_what_the_owner_uses_of_an_idle_node_is_remembered_and_fades_by_half_each_day() -> None:
    one, pool = IdleForecaster(), Pool()
    told = [(0.1, True), (0.2, True), (0.1, True), (0.9, False), (0.05, True), (0.3, True), (math.nan, False)]
    for at, (use, quiet) in enumerate(told):
        one.observe(START + at, use, quiet, pool)
    assert one.peak == pytest.approx(0.2, rel=0.02), "what they use while it is not idle is not meant"
    live(one, pool, "i" * DAY, START + 7)
    assert one.peak == pytest.approx(0.1, rel=0.02)


def test_an_interval_in_which_the_owner_comes_or_leaves_is_no_use_of_an_idle_node() -> None:
    one, pool = IdleForecaster(), Pool()
    for at, use in enumerate([0.0, 0.0, 0.29, 0.75, 0.75, 0.25, 0.0, 0.0, 0.29, 0.75, 0.29, 0.28, 0.75]):
        one.observe(START + at, use, use <= 0.3, pool)
    assert one.peak == 0.0


def test_of_a_node_in_use_it_is_expected_what_holds_once_its_owner_leaves() -> None:
    one, pool = IdleForecaster(), Pool()
    first = live(one, pool, ("b" * (DAY // 2) + "i" * (DAY // 2)) * 20)
    first = live(one, pool, "b" * (DAY // 2), first)
    assert one.forecast(pool) == () and one.expected(pool)[1].probability > 0.8
    live(one, pool, "i", first)
    assert one.forecast(pool) == one.expected(pool)
    live(one, pool, "?", first + 1)
    assert one.expected(pool) == (), "nothing is expected of what is not measured"


def test_a_time_that_a_node_was_never_idle_for_has_the_node_s_mean_and_says_of_how_many_cases() -> None:
    one, pool = IdleForecaster(), Pool()
    first = live(one, pool, ("i" * 12 + "b" * 12) * 60)
    live(one, pool, "i" * 200, first)
    (half, *_) = one.expected(pool)
    assert half.cases == 0 or half.cases < half.past
    assert half.past == sum(one.memory().learned[0].cases) > 50


def test_what_came_of_a_day_and_of_a_week_before_is_known_for_a_week() -> None:
    learner, week = idle._Learner(idle.Learned()), idle.WEEK * idle.EVERY
    for at in range(0, 3 * week, idle.EVERY):
        learner.learn(idle._Made(at, 0, [0.0] * idle.FEATURES, 0.5, 0.5, 0), at // idle.EVERY % 2)
    newest = 3 * week - idle.EVERY
    for at in (newest, newest + idle.EVERY - 1):  # a forecast is made in the first of so many intervals
        assert learner.before(at, idle.WEEK) == (0.5 if newest // idle.EVERY % 2 else -0.5)
        assert learner.before(at, 1) == (-0.5 if newest // idle.EVERY % 2 else 0.5)
    assert learner.before(newest, idle.WEEK + 1) == 0.0, "forgotten"
    assert learner.before(newest + 2 * idle.EVERY, 1) == 0.0, "not known yet"
