"""A token bucket gives what was saved, then a debt with the time that it takes to pay it."""

import asyncio
import time

import pytest

from distributed_grid.coordinator.net.limits import FAILURES, PER, Bucket, FailedTries, Measured
from distributed_grid.protocol.errors import GridError


def test_what_was_saved_is_given_at_once_and_what_is_over_takes_its_time() -> None:
    bucket = Bucket(rate=10, most=100, now=0.0)
    assert bucket.take(100, 0.0) == 0
    assert bucket.take(5, 0.0) == 0.5
    assert bucket.debt(0.25) == 0.25
    assert bucket.take(5, 1.0) == 0


def test_nothing_is_saved_above_the_most_and_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = Bucket(rate=10, most=100, now=0.0)
    bucket.take(100, 0.0)
    assert not bucket.full(9.0)
    assert bucket.full(1000.0)
    assert bucket.take(101, 1000.0) == 0.1
    assert bucket.debt(500.0) == 0.1


@pytest.mark.parametrize(
    ("peers", "other"),
    [(["192.0.2.1"], "192.0.2.2"), ([f"2001:db8::{number}" for number in range(1, FAILURES + 1)], "2001:db8:0:1::1")],
    ids=["one address", "the addresses of an IPv6 site"],
)
def test_who_failed_too_often_is_refused_for_a_while_and_nobody_else(peers: list[str], other: str) -> None:
    now = 0.0
    tries = FailedTries(lambda: now)
    for number in range(FAILURES):
        tries.check(peers[0])
        tries.failed(peers[number % len(peers)])
    with pytest.raises(GridError, match="too many tries"):
        tries.check(peers[0])
    tries.check(other)
    now = PER + 1
    tries.check(peers[0])


def _busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_what_a_request_takes_is_measured_without_what_others_take_while_it_waits() -> None:
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def request() -> None:
        _busy(0.02)
        waits.set()
        await goes_on.wait()
        _busy(0.02)

    measured = Measured(request())
    task = asyncio.ensure_future(measured)
    await waits.wait()
    _busy(0.2)
    goes_on.set()
    await task
    assert 0.04 <= measured.seconds < 0.1


async def test_a_measured_request_is_cancelled_and_fails_as_it_would_without_that() -> None:
    cleared = []

    async def request() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleared.append(1)

    task = asyncio.ensure_future(Measured(request()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleared

    async def fails() -> None:
        await asyncio.sleep(0)
        raise GridError("no")

    with pytest.raises(GridError):
        await Measured(fails())
