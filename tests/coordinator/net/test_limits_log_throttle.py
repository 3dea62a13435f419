"""Lines about peers that are turned away: few, whoever comes how often."""

from structlog.testing import capture_logs

from distributed_grid.coordinator.net.limits import LOG_LINES, LOG_SECONDS, LOGGED_ADDRESSES, LogThrottle


def test_the_same_is_said_of_an_address_once_an_interval_and_how_often_it_was_not() -> None:
    throttle = LogThrottle()
    with capture_logs() as lines:
        for _ in range(1000):
            throttle.warning("turned away", peer="192.0.2.1", now=0.0, why="no hello")
        throttle.warning("turned away", peer="192.0.2.1", now=LOG_SECONDS, why="no hello")
    assert [line.get("unsaid") for line in lines] == [None, 999]


def test_another_address_and_another_reason_are_said() -> None:
    throttle = LogThrottle()
    assert throttle.warning("turned away", peer="192.0.2.1", now=0.0, why="no hello")
    assert throttle.warning("turned away", peer="192.0.2.1", now=0.0, why="not a hello")
    assert throttle.warning("turned away", peer="192.0.2.2", now=0.0, why="no hello")


def test_all_addresses_of_an_ipv6_site_are_one_and_each_line_has_its_own() -> None:
    throttle = LogThrottle()
    with capture_logs() as lines:
        for number in range(1, 1000):
            throttle.warning("turned away", peer=f"2001:db8::{number:x}", now=0.0, name=str(number))
        throttle.warning("turned away", peer="2001:db8:0:1::1", now=0.0)
    assert [line["peer"] for line in lines[:2]] == ["2001:db8::1", "2001:db8::2"]
    assert len(lines) == LOG_LINES + 1 and len(throttle._said) == 2


def test_who_makes_up_a_new_reason_each_time_is_not_written_of_without_end() -> None:
    throttle = LogThrottle()
    assert (
        sum(throttle.warning("turned away", peer="x", now=0.0, name=str(number)) for number in range(1000)) == LOG_LINES
    )


def test_what_is_remembered_is_bounded() -> None:
    throttle = LogThrottle()
    with capture_logs():
        for number in range(LOGGED_ADDRESSES + 100):
            throttle.warning("turned away", peer=str(number), now=0.0)
    assert len(throttle._said) == LOGGED_ADDRESSES
