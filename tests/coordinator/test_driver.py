"""Records are on disk before anything is sent; commands go out in order; what cannot go on stops."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distributed_grid.coordinator.core.model import Command, Event, Granted, Job, RecordJob, Tick
from distributed_grid.coordinator.driver import CROWDED, QUICK_SECONDS, Clock, Driver, LedgerBroken
from distributed_grid.coordinator.store import Snapshot, Store, StoreFailed
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.resources import Resources


class Scripted:
    """A ledger that answers events with what a function says."""

    def __init__(self, answer: Callable[[Any], list[Command]]) -> None:
        self.answer = answer
        self.deadline: float | None = None
        self.settled = 0
        self.ticks: list[float] = []

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, Tick):
            self.ticks.append(now)
            return []
        return self.answer(event)

    def settle(self, now: float) -> list[Command]:
        self.settled += 1
        if self.deadline is not None and self.deadline <= now:
            self.deadline = None
        return []

    def next_deadline(self) -> float | None:
        return self.deadline


def record(number: Any) -> RecordJob:
    job = Job(
        id=f"j-{number}",
        key=f"k-{number}",
        user="ann",
        spec=JobSpec(("true",)),
        request=Request(Resources(cpu=1)),
        submitted=float(number),
    )
    return RecordJob(job, new=True)


def recorded_and_granted(number: Any) -> list[Command]:
    return [Granted(number), record(number)]


class Counting(Store):
    """A store that counts commits, and holds them while it is told to."""

    commits = 0
    seconds = 0.0
    failure: Exception | None = None

    def commit(self, snapshot: Snapshot) -> None:
        self.commits += 1
        time.sleep(self.seconds)
        if self.failure:
            raise self.failure
        super().commit(snapshot)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "grid.db")


def driven(ledger: Scripted, store: Store, perform: Callable[[Any], None]) -> Driver:
    driver = Driver(ledger, store, Clock(0.0))
    driver.begin(perform, [])
    return driver


async def test_a_record_is_on_disk_before_a_command_of_its_batch_is_performed(store: Counting, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def perform(command: Granted) -> None:
        with sqlite3.connect(tmp_path / "grid.db") as other:
            found = other.execute("SELECT count(*) FROM jobs WHERE id = ?", (f"j-{command.token}",)).fetchone()[0]
        seen.append((command.token, found))

    driver = driven(Scripted(recorded_and_granted), store, perform)
    for number in range(20):
        driver.put(number)  # type: ignore[arg-type]
        if number % 7 == 0:
            await asyncio.sleep(0.005)
    await driver.close()
    assert seen == [(number, 1) for number in range(20)]


async def test_a_burst_shares_commits_and_keeps_its_order(store: Counting) -> None:
    done: list[int] = []
    driver = driven(Scripted(recorded_and_granted), store, lambda command: done.append(command.token))
    for number in range(3000):
        driver.put(number)  # type: ignore[arg-type]
        if number % 100 == 0:
            await asyncio.sleep(0)
    await driver.close()
    assert done == list(range(3000))
    assert store.commits < 60
    assert len(store.load().jobs) == 3000


async def test_a_slow_disk_does_not_hold_up_the_loop_and_keeps_the_order(store: Counting) -> None:
    store.seconds = 2 * QUICK_SECONDS
    done: list[int] = []
    driver = driven(Scripted(recorded_and_granted), store, lambda command: done.append(command.token))
    driver.put(0)  # type: ignore[arg-type]  # this one shows that it is slow
    async with asyncio.timeout(5):
        while not done:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    driver.put(1)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    began = store.commits
    driver.put(2)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert began == 2 and done == [0]  # the loop goes round while 1 is being stored
    await driver.close()
    assert done == [0, 1, 2] and store.commits == 3


async def test_commands_without_records_wait_for_the_records_before_them(store: Counting) -> None:
    done: list[int] = []

    def answer(number: int) -> list[Command]:
        return recorded_and_granted(number) if number == 1 else [Granted(number)]

    driver = driven(Scripted(answer), store, lambda command: done.append(command.token))
    driver._commit_seconds = 1.0  # through the thread
    store.seconds = 0.05
    driver.put(1)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the commit of 1 is under way
    driver.put(2)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await driver.close()
    assert done == [1, 2]


def told_of_a_start(number: Any) -> list[Command]:
    """Even numbers record what may wait, odd ones what may not."""
    return [msgspec.structs.replace(record(number), soon=number % 2 == 0), Granted(number)]


async def test_what_may_wait_is_told_at_once_and_goes_to_the_disk_with_the_next_that_may_not(store: Counting) -> None:
    done: list[int] = []
    driver = driven(Scripted(told_of_a_start), store, lambda command: done.append(command.token))
    for number in (0, 2, 4):
        driver.put(number)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (done, store.commits) == ([0, 2, 4], 0)
    driver.put(1)  # type: ignore[arg-type]
    while len(done) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert store.commits == 1
    assert set(store.known("ann", ["k-0", "k-1", "k-2", "k-4"])) == {"k-0", "k-1", "k-2", "k-4"}
    await driver.close()


async def test_what_may_wait_and_finds_no_company_is_on_disk_within_a_moment(store: Counting) -> None:
    driver = driven(Scripted(told_of_a_start), store, lambda command: None)
    driver.put(0)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        while not store.known("ann", ["k-0"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    driver.put(2)  # type: ignore[arg-type]
    await driver.close()
    assert set(store.known("ann", ["k-2"])) == {"k-2"}, "closing leaves nothing behind"


async def test_what_may_wait_and_came_during_a_commit_is_not_forgotten(store: Counting) -> None:
    store.seconds = QUICK_SECONDS * 3
    driver = driven(Scripted(told_of_a_start), store, lambda command: None)
    driver.put(1)  # type: ignore[arg-type]  # slow, so that the next commit is in the thread
    while not store.known("ann", ["k-1"]):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    driver.put(3)  # type: ignore[arg-type]
    await asyncio.sleep(QUICK_SECONDS)
    driver.put(2)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        while not store.known("ann", ["k-2"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert store.commits == 3
    await driver.close()


async def test_a_disk_that_does_not_take_it_stops_everything_unacknowledged(store: Counting) -> None:
    done: list[int] = []
    store.failure = StoreFailed("no space left")
    driver = driven(Scripted(recorded_and_granted), store, lambda command: done.append(command.token))
    driver.put(1)  # type: ignore[arg-type]
    with pytest.raises(StoreFailed):
        await asyncio.wait_for(driver.failed, 5)
    driver.put(2)  # type: ignore[arg-type]
    await driver.close()
    assert done == [] and store.commits == 1


async def test_a_broken_ledger_stops_everything(store: Counting) -> None:
    done: list[int] = []

    def answer(number: int) -> list[Command]:
        assert number != 2, "an illegal move"
        return recorded_and_granted(number)

    driver = driven(Scripted(answer), store, lambda command: done.append(command.token))
    for number in (1, 2, 3):
        driver.put(number)  # type: ignore[arg-type]
    with pytest.raises(LedgerBroken, match="an illegal move"):
        await asyncio.wait_for(driver.failed, 5)
    await driver.close()
    assert done == []


async def test_deadlines_are_kept_and_move_when_an_earlier_one_appears(store: Counting) -> None:
    ledger = Scripted(lambda number: [])
    driver = Driver(ledger, store, clock := Clock(0.0))
    ledger.deadline = clock() + 3600
    driver.begin(lambda command: None, [])
    ledger.deadline = due = clock() + 0.05
    driver.put(1)  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        while not ledger.ticks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert due - 0.01 <= ledger.ticks[0] < due + 2
    await driver.close()


async def test_a_crowded_queue_makes_its_sources_wait(store: Counting) -> None:
    driver = driven(Scripted(lambda number: []), store, lambda command: None)
    await asyncio.wait_for(driver.room(), 1)
    for number in range(CROWDED + 1):
        driver.put(number)  # type: ignore[arg-type]
    assert driver.crowded
    await asyncio.wait_for(driver.room(), 5)
    assert not driver.crowded
    await driver.close()


def test_grid_time_goes_on_from_what_was_stored_when_the_wall_clock_fell_back() -> None:
    assert Clock(5000.0, wall=100.0)() >= 5000.0
    assert Clock(100.0, wall=5000.0)() >= 5000.0
