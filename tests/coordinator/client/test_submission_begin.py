"""When a job may begin, as people write it."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from distributed_grid.coordinator.client.submission import parse_begin
from distributed_grid.protocol.errors import BadValue

NOW = datetime(2030, 1, 31, 22, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("22:15", datetime(2030, 1, 31, 20, 15, tzinfo=UTC)),
        ("9:05:30", datetime(2030, 2, 1, 7, 5, 30, tzinfo=UTC)),
        ("22:00", datetime(2030, 2, 1, 20, 0, tzinfo=UTC)),
        ("2030-02-03", datetime(2030, 2, 2, 22, 0, tzinfo=UTC)),
        ("2030-02-03T10:00", datetime(2030, 2, 3, 8, 0, tzinfo=UTC)),
        ("2030-02-03T10:00Z", datetime(2030, 2, 3, 10, 0, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_as_of_here(text: str, at: datetime) -> None:
    assert parse_begin(text, NOW) == {"begin": at.timestamp()}


def test_a_delay_is_counted_by_who_takes_the_job() -> None:
    assert parse_begin("+1h30m", NOW) == {"delay": 5400.0}


@pytest.mark.parametrize("text", ["", "25:00", "tomorrow", "+", "2030-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_begin(text, NOW)
