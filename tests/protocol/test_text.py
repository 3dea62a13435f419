"""Durations and moments in and out of people's hands."""

import datetime

import pytest

from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.text import by_number, clock, format_duration, parse_duration, unknown_node


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


def test_a_moment_of_another_day_is_told_with_its_date_as_the_calendar_has_it() -> None:
    assert clock(86_400.0 + 3_723.9, 86_400.0) == clock(86_400.0 + 3_723.9) == "01:02:03 UTC"
    for day in (*range(-800, 800), *range(0, 80_000, 37), 19_781, 19_782, 47_540, 47_541, 2_900_000):
        date = datetime.date.fromordinal(719_163 + day).isoformat()
        assert clock(86_400.0 * day + 61.0, 86_400.0 * (day + 1)) == f"{date} 00:01:01 UTC"


@pytest.mark.parametrize("text", ["", "0", "-5", "nan", "inf", "1e308", "soon", "5x", "1m1h", "1:99", "0s"])
def test_a_duration_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(BadValue) as refused:
        parse_duration(text)
    assert "30m" in refused.value.hint


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2s"), (42, "42s"), (724, "12m04s"), (11_100, "3h05m"), (525_600, "6d02h")],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_names_are_in_the_order_of_their_numbers() -> None:
    names = ["lab2", "Lab", "lab10", "lab", "lab2b", "7", "lab02", "a" + 40 * "9", "10"]
    expected = ["7", "10", "Lab", "a" + 40 * "9", "lab", "lab02", "lab2", "lab2b", "lab10"]
    assert sorted(names, key=by_number) == expected


def test_who_mistypes_a_node_is_told_the_nodes_in_that_order() -> None:
    assert unknown_node("nobody", ["lab10", "lab2", "lab1"]).why == "the nodes of this grid are lab1, lab2, lab10"
