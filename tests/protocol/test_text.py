"""Durations in and out of people's hands."""

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.text import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1800", 1800),
        ("0.5", 0.5),
        ("30m", 1800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172_800),
        ("90s", 90),
        ("01:30:00", 5400),
        ("10:00", 600),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "nan", "inf", "1e308", "soon", "5x", "1m1h", "1:99", "0s"])
def test_a_duration_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2s"), (42, "42s"), (724, "12m04s"), (11_100, "3h05m"), (525_600, "6d02h")],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
