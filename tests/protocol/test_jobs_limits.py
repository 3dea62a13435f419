"""Limits as people write them."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import JobLimits, RetryOn, parse_factor, parse_limits, parse_retries


@pytest.mark.parametrize(
    "text, limits",
    [("USR1@60", JobLimits(10, 60.0)), ("sigterm@5m", JobLimits(15, 300.0)), ("12@1h", JobLimits(12, 3600.0))],
)
def test_a_warning_is_a_signal_and_how_long_before(text: str, limits: JobLimits) -> None:
    assert parse_limits(text, time_limit=7200.0) == limits


@pytest.mark.parametrize("text", ["USR1", "@60", "KILL@60", "9@60", "99@60", "USR1@", "USR1@x", "USR1@60", "USR1@0"])
def test_a_warning_that_cannot_be_given_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_limits(text, time_limit=60.0)


def test_a_warning_needs_a_time_limit() -> None:
    with pytest.raises(BadValue, match="before which end"):
        parse_limits("USR1@60")


def test_a_number_of_processes_is_from_one_up() -> None:
    assert parse_limits(pids=7) == JobLimits(pids=7)
    for wrong in (0, -1, 1 << 30):
        with pytest.raises(BadValue):
            parse_limits(pids=wrong)


def test_a_factor_is_written_with_or_without_its_x() -> None:
    assert (parse_factor("2x"), parse_factor(" 1.5X "), parse_factor("3")) == (2000, 1500, 3000)


@pytest.mark.parametrize("text", ["1x", "0.5x", "-2x", "101x", "x", "nan", "inf", "two"])
def test_a_factor_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_factor(text)


def test_more_memory_for_the_next_attempt_means_a_retry_on_oom() -> None:
    assert parse_retries([], None, "2x") == {"retry_on": (RetryOn.OOM,), "retries": 1, "retry_memory": 2000}
    both = parse_retries(["lost"], 3, "1.5x")
    assert both == {"retry_on": (RetryOn.LOST, RetryOn.OOM), "retries": 3, "retry_memory": 1500}
