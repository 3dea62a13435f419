"""The precedence of waiting jobs, their lanes, and what counts as the limit of a job that has none."""

import math
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.core.policy import Sharing
from distributed_grid.coordinator.core.queue import precedence as module
from distributed_grid.coordinator.core.queue.precedence import (
    NO_LIMIT,
    SAMPLES,
    RunTimes,
    lane_of,
    limit_by,
    limit_of,
    precedence,
)
from distributed_grid.protocol.jobs import LimitBy, ServiceOrder

SHARING = Sharing()
LIMITS = st.floats(SHARING.shortest, 1e7)


@given(LIMITS, LIMITS)
def test_in_a_lane_limits_differ_by_less_than_half_an_octave(one: float, other: float) -> None:
    lanes = lane_of(one, SHARING), lane_of(other, SHARING)
    if lanes[0] == lanes[1]:
        assert max(one, other) / min(one, other) < math.sqrt(2) * (1 + 1e-12)
    assert (lanes[0] <= lanes[1]) is (one <= other) or lanes[0] == lanes[1]


def test_short_limits_share_a_lane_and_jobs_without_a_limit_have_their_own() -> None:
    assert lane_of(0.5, SHARING) == lane_of(SHARING.shortest, SHARING) != lane_of(2 * SHARING.shortest, SHARING)
    assert lane_of(0.0, SHARING) == NO_LIMIT


def test_by_share_there_are_no_lanes() -> None:
    by_share = Sharing(order=ServiceOrder.SHARE)
    assert {lane_of(limit, by_share) for limit in (0.0, 1.0, 1e6)} == {0}


@settings(max_examples=50)
@given(st.floats(0, 1e7), LIMITS, st.floats(1e-4, 1), st.floats(0, 2), st.floats(1.01, 10))
def test_precedence_grows_with_waiting_and_size_and_falls_with_limit_and_share(
    waited: float, limit: float, size: float, share: float, more: float
) -> None:
    value = precedence(waited, limit, size, share, SHARING)
    assert precedence(waited + 60 * more, limit, size, share, SHARING) > value
    assert precedence(waited, limit, size * more, share, SHARING) > value
    assert precedence(waited, limit * more, size, share, SHARING) < value
    assert precedence(waited, limit, size, share + more, SHARING) < value


def test_a_job_of_one_hour_that_has_waited_for_one_has_two_hours_by_the_formula() -> None:
    assert precedence(3600.0, 3600.0, 1 / 16, 0.2, SHARING) == 2.0 * 0.5 / math.sqrt(0.25)


@settings(max_examples=50)
@given(st.lists(st.floats(0.001, 1e5), min_size=1, max_size=3 * SAMPLES))
def test_the_median_is_that_of_the_last_run_times(runs: list[float]) -> None:
    known = RunTimes()
    for seconds in runs:
        known.learn("ann", seconds)
    assert known.median("ann") == statistics.median_high(runs[-SAMPLES:])


def test_what_a_job_without_a_limit_is_compared_by() -> None:
    known = RunTimes()
    assert (limit_of(0.0, "ann", known, SHARING), limit_by(0.0, "ann", known)) == (SHARING.usual, LimitBy.DEFAULT)
    known.learn("ben", 500.0)
    assert (limit_of(0.0, "ann", known, SHARING), limit_by(0.0, "ann", known)) == (500.0, LimitBy.EVERYONE)
    known.learn("ann", 200.0)
    assert (limit_of(0.0, "ann", known, SHARING), limit_by(0.0, "ann", known)) == (200.0, LimitBy.USER)
    assert (limit_of(90.0, "ann", known, SHARING), limit_by(90.0, "ann", known)) == (90.0, LimitBy.LIMIT)
    assert limit_of(1.0, "ann", known, SHARING) == SHARING.shortest


def test_only_so_many_users_are_remembered(monkeypatch: object) -> None:
    known = RunTimes()
    for number in range(module.USERS + 10):
        known.learn(f"u{number}", 1.0)
    assert len(known.last) == module.USERS and known.median("u0") == 1.0
    assert "u0" not in known.last and f"u{module.USERS}" in known.last
