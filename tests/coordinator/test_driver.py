"""Records are on disk before anything is sent; commands go out in order; what cannot go on stops."""

import asyncio
import errno
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator.core import pipeline
from distributed_grid.coordinator.core.commands import (
    Command,
    Event,
    Granted,
    HeartbeatReceived,
    RecordJob,
    Send,
    StoreFailing,
    Tick,
)
from distributed_grid.coordinator.core.model import Job
from distributed_grid.coordinator.core.rollback import Point
from distributed_grid.coordinator.driver import CROWDED, QUICK_SECONDS, Clock, Driver, LedgerBroken
from distributed_grid.coordinator.store.errors import DiskTrouble, StoreFailed, as_sqlite, failure
from distributed_grid.coordinator.store.rows import Snapshot
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.jobs import JobSpec, Request
from distributed_grid.protocol.messages import Renewed
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources


class Scripted:
    """A ledger that answers events with what a function says."""

    def __init__(self, answer: Callable[[Any], list[Command]]) -> None:
        self.answer = answer
        self.deadline: float | None = None
        self.settled = 0
        self.ticks: list[float] = []

    def patience(self, event: Event) -> float:
        return 0.0

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
    """A store that counts commits, and holds them while it is told to: for some seconds, or while `gate` is shut."""

    commits = 0
    seconds = 0.0
    failure: Exception | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, snapshot: Snapshot) -> None:
        self.commits += 1
        time.sleep(self.seconds)
        assert self.gate.wait(60), "nobody let it go on: the loop waits for it"
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


async def until(there: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def beat(at: float = 0.0) -> HeartbeatReceived:
    return HeartbeatReceived("n1", Sample(at=1.0), at)


async def turns() -> None:
    """The loop goes round: what is due now is done."""
    for _ in range(10):
        await asyncio.sleep(0)


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


async def test_a_commit_on_a_quick_disk_and_its_commands_take_one_turn(store: Counting) -> None:
    seen: list[str] = []
    driver = driven(Scripted(recorded_and_granted), store, lambda command: seen.append(f"{command.token}"))
    driver.put(0)  # type: ignore[arg-type]
    driver.put(1)  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert (store.commits, seen) == (1, ["0", "1"])
    await driver.close()


async def test_a_slow_disk_does_not_hold_up_the_loop_and_keeps_the_order(store: Counting) -> None:
    store.seconds = 2 * QUICK_SECONDS
    done: list[int] = []
    driver = driven(Scripted(recorded_and_granted), store, lambda command: done.append(command.token))
    driver.put(0)  # type: ignore[arg-type]  # this one shows that it is slow
    await until(lambda: done)
    store.gate.clear()
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: store.commits == 2)  # the loop goes round while 1 is being stored
    driver.put(2)  # type: ignore[arg-type]
    await turns()
    assert done == [0] and store.commits == 2
    store.gate.set()
    await driver.close()
    assert done == [0, 1, 2] and store.commits == 3


async def test_commands_without_records_wait_for_the_records_before_them(store: Counting) -> None:
    done: list[int] = []

    def answer(number: int) -> list[Command]:
        return recorded_and_granted(number) if number == 1 else [Granted(number)]

    driver = driven(Scripted(answer), store, lambda command: done.append(command.token))
    driver._commit_seconds = 1.0  # through the thread
    store.gate.clear()
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: store.commits)  # the commit of 1 is under way
    driver.put(2)  # type: ignore[arg-type]
    await turns()
    assert done == []
    store.gate.set()
    await driver.close()
    assert done == [1, 2]


def told_of_a_start(number: Any) -> list[Command]:
    """Even numbers record what may wait, odd ones what may not."""
    return [msgspec.structs.replace(record(number), soon=number % 2 == 0), Granted(number)]


async def test_what_may_wait_is_told_at_once_and_goes_to_the_disk_with_the_next_that_may_not(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SOON_SECONDS", 1000.0)  # not what brings it to the disk
    done: list[int] = []
    driver = driven(Scripted(told_of_a_start), store, lambda command: done.append(command.token))
    for number in (0, 2, 4):
        driver.put(number)  # type: ignore[arg-type]
        await turns()
    assert (done, store.commits) == ([0, 2, 4], 0)
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: len(done) == 4)
    assert store.commits == 1
    assert set(store.known("ann", ["k-0", "k-1", "k-2", "k-4"])) == {"k-0", "k-1", "k-2", "k-4"}
    await driver.close()


async def test_what_may_wait_and_finds_no_company_is_on_disk_within_a_moment(store: Counting) -> None:
    driver = driven(Scripted(told_of_a_start), store, lambda command: None)
    driver.put(0)  # type: ignore[arg-type]
    await until(lambda: store.known("ann", ["k-0"]))
    driver.put(2)  # type: ignore[arg-type]
    await driver.close()
    assert set(store.known("ann", ["k-2"])) == {"k-2"}, "closing leaves nothing behind"


async def test_what_may_wait_and_came_during_a_commit_is_not_forgotten(store: Counting) -> None:
    driver = driven(Scripted(told_of_a_start), store, lambda command: None)
    driver._commit_seconds = 1.0  # through the thread
    store.gate.clear()
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: store.commits)
    driver.put(2)  # type: ignore[arg-type]
    await turns()
    store.gate.set()
    await until(lambda: store.known("ann", ["k-2"]))
    assert store.commits == 2
    await driver.close()


async def test_a_damaged_store_stops_everything_unacknowledged(store: Counting) -> None:
    done: list[int] = []
    store.failure = StoreFailed("the store is damaged")
    driver = driven(Scripted(recorded_and_granted), store, lambda command: done.append(command.token))
    driver.put(1)  # type: ignore[arg-type]
    with pytest.raises(StoreFailed):
        await asyncio.wait_for(driver.failed, 60)
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
        await asyncio.wait_for(driver.failed, 60)
    await driver.close()
    assert done == []


async def test_deadlines_are_kept_and_move_when_an_earlier_one_appears(store: Counting) -> None:
    ledger = Scripted(lambda number: [])
    driver = Driver(ledger, store, clock := Clock(0.0))
    ledger.deadline = clock() + 3600
    driver.begin(lambda command: None, [])
    ledger.deadline = due = clock() + 0.05
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: ledger.ticks)
    assert due - 0.01 <= ledger.ticks[0] < due + 60
    await driver.close()


async def test_a_crowded_queue_makes_its_sources_wait(store: Counting) -> None:
    driver = driven(Scripted(lambda number: []), store, lambda command: None)
    await asyncio.wait_for(driver.room(), 60)
    for number in range(CROWDED + 1):
        driver.put(number)  # type: ignore[arg-type]
    assert driver.crowded
    await asyncio.wait_for(driver.room(), 60)
    assert not driver.crowded
    await driver.close()


def test_grid_time_goes_on_from_what_was_stored_when_the_wall_clock_fell_back() -> None:
    with capture_logs() as said:
        assert Clock(5000.0, wall=100.0)() >= 5000.0
    assert [line["event"] for line in said] == ["this machine's clock is 1h21m behind the latest time in the store"]
    assert Clock(100.0, wall=5000.0)() >= 5000.0


def test_grid_time_stands_still_while_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: moment)
    clock = Clock(0.0, wall=5000.0)
    moment += 100.0
    assert clock() == 5100.0  # it does not beat yet
    clock.beat()
    moment += 2.5
    assert clock() == 5102.5
    moment += 77.5
    with capture_logs() as said:
        assert clock() == 5103.0
    assert [line["seconds"] for line in said] == [77.0]
    moment += 1.0
    clock.beat()
    moment += 2.0
    assert clock() == 5106.0


async def test_a_driver_that_was_stopped_finds_no_deadline_passed_by_that(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Scripted(lambda number: [])
    driver = Driver(ledger, store, clock := Clock(0.0))
    driver.begin(lambda command: None, [])
    began, real = clock(), time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: real() + 500.0)
    driver.put(1)  # type: ignore[arg-type]
    assert clock() < began + 400.0
    await driver.close()


# --- a disk in trouble ------------------------------------------------------------------------------------------------


class Ailing(Counting):
    """A store whose disk fails as it is told to; what is tried on the failed connection is an error of ours."""

    ails: sqlite3.OperationalError | None = None
    reopened = 0
    short = ""
    trusted = True

    def commit(self, snapshot: Snapshot) -> None:
        assert self.trusted, "the connection that failed was used again"
        self.commits += 1
        if self.ails is not None:
            self.trusted = False
            raise failure(Path("grid.db"), self.ails)
        Store.commit(self, snapshot)

    def reopen(self) -> None:
        super().reopen()
        self.reopened += 1
        self.trusted = True

    def secure(self) -> DiskTrouble | None:
        return DiskTrouble("no space left", self.short) if self.short else None


def full() -> sqlite3.OperationalError:
    return as_sqlite(OSError(errno.ENOSPC, "full"))


@pytest.fixture
def ailing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ailing:
    monkeypatch.setattr(pipeline, "AGAIN_SECONDS", 0.02)
    return Ailing(tmp_path / "grid.db")


class ToldOfTheStore(Scripted):
    """Notes whether it was told to start nothing new."""

    failing: list[bool]

    def __init__(self, answer: Callable[[Any], list[Command]]) -> None:
        super().__init__(answer)
        self.failing = []

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, StoreFailing):
            self.failing.append(event.on)
            return []
        return super().handle(event, now)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
async def test_what_the_disk_refuses_is_kept_and_done_in_order_once_it_takes_it(ailing: Ailing, number: int) -> None:
    done: list[int] = []
    ledger = ToldOfTheStore(recorded_and_granted)
    driver = driven(ledger, ailing, lambda command: done.append(command.token))
    told: list[str] = []
    driver.trouble.on_change = told.append
    ailing.ails = as_sqlite(OSError(number, "it fails"))
    for event in (1, 2):
        driver.put(event)  # type: ignore[arg-type]
    await until(lambda: ailing.reopened >= 2)
    driver.put(3)  # type: ignore[arg-type]
    await until(lambda: ailing.reopened >= 4)
    assert done == [] and ledger.failing == [True] and "grid.db" in driver.trouble.words()
    with pytest.raises(GridError, match="no new jobs"):
        driver.trouble.refuse()
    ailing.ails = None
    await until(lambda: ledger.failing == [True, False])
    assert done == [1, 2, 3] and not driver.trouble.words()
    driver.trouble.refuse()
    assert len(told) == 2 and told[0] and not told[1]
    driver.put(4)  # type: ignore[arg-type]
    await driver.close()
    assert done == [1, 2, 3, 4] and not driver.failed.done()
    assert set(ailing.known("ann", ["k-1", "k-2", "k-3", "k-4"])) == {"k-1", "k-2", "k-3", "k-4"}


async def test_a_record_is_stored_as_it_is_when_the_disk_takes_it_and_only_once(ailing: Ailing) -> None:
    thing = record(1)

    def answer(number: int) -> list[Command]:
        thing.job.tries = number
        return [thing, Granted(number)]

    done: list[int] = []
    driver = driven(ToldOfTheStore(answer), ailing, lambda command: done.append(command.token))
    ailing.ails = full()
    for number in range(200):
        driver.put(number)  # type: ignore[arg-type]
        await asyncio.sleep(0)
    before = ailing.reopened
    await until(lambda: ailing.reopened >= before + 2)  # the second try has found all of it
    assert len(list(driver.being_stored())) <= 2
    ailing.ails = None
    await until(lambda: done == list(range(200)))
    found = ailing.job("j-1")
    assert found is not None and found.tries == 199
    await driver.close()


async def test_leases_are_renewed_while_the_disk_takes_nothing(ailing: Ailing) -> None:
    done: list[Command] = []
    renewed = Send("n1", Renewed(7.0))

    def answer(number: int) -> list[Command]:
        return recorded_and_granted(number) if number == 1 else [renewed]

    driver = driven(ToldOfTheStore(answer), ailing, done.append)
    ailing.ails = full()
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: ailing.reopened)
    driver.put(2)  # type: ignore[arg-type]
    await until(lambda: done)
    assert done == [renewed]
    ailing.ails = None
    await until(lambda: done == [renewed, Granted(1)])
    await driver.close()


async def test_no_new_jobs_are_taken_before_the_reserve_is_there_again_but_results_are_stored(ailing: Ailing) -> None:
    done: list[int] = []
    ledger = ToldOfTheStore(recorded_and_granted)
    driver = driven(ledger, ailing, lambda command: done.append(command.token))
    ailing.ails, ailing.short = full(), "15 MiB are free"
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: ailing.reopened)
    ailing.ails = None
    await until(lambda: done == [1])
    driver.put(2)  # type: ignore[arg-type]
    await until(lambda: done == [1, 2])
    await until(lambda: "15 MiB" in driver.trouble.words())
    assert ledger.failing == [True]
    ailing.short = ""
    await until(lambda: ledger.failing == [True, False])
    await driver.close()


async def test_a_start_without_room_for_the_reserve_holds_from_the_first_event_on(ailing: Ailing) -> None:
    ailing.short = "1 MiB is free"
    ledger = ToldOfTheStore(recorded_and_granted)
    driver = driven(ledger, ailing, lambda command: None)
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: ailing.commits)
    assert ledger.failing == [True] and "1 MiB" in driver.trouble.words()
    await driver.close()


async def test_leaving_in_trouble_tries_once_more_and_says_what_was_in_the_way(ailing: Ailing) -> None:
    done: list[int] = []
    driver = driven(ToldOfTheStore(recorded_and_granted), ailing, lambda command: done.append(command.token))
    ailing.ails = full()
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: ailing.reopened)
    await asyncio.wait_for(driver.close(), 60)
    with pytest.raises(DiskTrouble, match="no space left"):
        driver.failed.result()
    assert done == []


async def test_a_store_that_has_lost_what_was_committed_is_not_gone_on_with(
    ailing: Ailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driven(ToldOfTheStore(recorded_and_granted), ailing, lambda command: None)
    ailing.ails = full()
    monkeypatch.setattr(ailing, "_point", Point(ailing.grid, ailing.epoch, 1 << 40, 0.0))
    driver.put(1)  # type: ignore[arg-type]
    with pytest.raises(StoreFailed, match="not what it was"):
        await asyncio.wait_for(driver.failed, 60)
    await driver.close()


async def test_a_commit_that_does_not_come_back_is_trouble_until_it_does(
    ailing: Ailing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "STALLED_SECONDS", 0.02)
    back = threading.Event()
    commit = ailing.commit

    def stuck(snapshot: Snapshot) -> None:
        back.wait(60)
        commit(snapshot)

    monkeypatch.setattr(ailing, "commit", stuck)
    ledger = ToldOfTheStore(recorded_and_granted)
    done: list[int] = []
    driver = driven(ledger, ailing, lambda command: done.append(command.token))
    driver._commit_seconds = 1.0  # through the thread
    driver.put(1)  # type: ignore[arg-type]
    await until(lambda: ledger.failing == [True])
    assert "does not answer" in driver.trouble.words() and done == []
    back.set()
    await until(lambda: ledger.failing == [True, False] and done == [1])
    await driver.close()


async def test_a_heartbeat_is_handled_at_once_and_settled(store: Counting) -> None:
    done: list[Any] = []
    renewed = Send("n1", Renewed(7.0))
    ledger = Scripted(lambda event: [renewed] if event.at else [])
    driver = driven(ledger, store, done.append)
    driver.heartbeat(beat())
    assert (done, ledger.settled) == ([], 1)
    driver.heartbeat(beat(7.0))
    assert (done, ledger.settled) == ([renewed], 2)
    await driver.close()


async def test_a_heartbeat_is_not_handled_before_what_came_before_it(store: Counting) -> None:
    handled: list[Any] = []
    ledger = Scripted(lambda event: handled.append(event) or [])  # type: ignore[func-returns-value]
    driver = driven(ledger, store, lambda command: None)
    driver.put(StoreFailing(True))
    driver.heartbeat(beat())
    assert handled == []
    await turns()
    assert handled == [StoreFailing(True), beat()]
    await driver.close()


async def test_who_waits_for_room_has_a_turn_though_another_fills_it_whenever_there_is_some(store: Counting) -> None:
    driver = driven(Scripted(lambda event: []), store, lambda command: None)
    had_a_turn = False

    async def flood() -> int:
        for rounds in range(50):
            for number in range(CROWDED + 1):
                driver.put(number)  # type: ignore[arg-type]
            if had_a_turn:
                return rounds
            await driver.room()
        return 50

    async def waits() -> None:
        nonlocal had_a_turn
        await driver.room()
        had_a_turn = True

    rounds, _ = await asyncio.gather(flood(), waits())
    assert rounds <= 2
    await driver.close()


async def test_a_deadline_that_a_heartbeat_brings_is_kept(store: Counting) -> None:
    ledger = Scripted(lambda event: [])
    driver = driven(ledger, store, lambda command: None)

    def armed(event: Any) -> list[Command]:
        ledger.deadline = driver._clock() + 0.01
        return []

    ledger.answer = armed
    driver.heartbeat(beat())
    await until(lambda: ledger.ticks)
    await driver.close()


async def test_a_heartbeat_that_breaks_the_ledger_ends_the_driver(store: Counting) -> None:
    def broken(event: Any) -> list[Command]:
        raise AssertionError("impossible")

    driver = driven(Scripted(broken), store, lambda command: None)
    driver.heartbeat(beat())
    assert isinstance(driver.failed.exception(), LedgerBroken)
