"""What enters the ledger is on disk with what it decided, bounded, for its owner alone; where the disk does not take
it, the grid goes on."""

import asyncio
import contextlib
import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator.core.commands import Command, Event, HeartbeatReceived, JobsSubmitted, Tick
from distributed_grid.coordinator.core.ledger import Ledger
from distributed_grid.coordinator.core.queue import scheduler
from distributed_grid.coordinator.core.state import GridState
from distributed_grid.coordinator.driver import Clock, Driver, LedgerBroken
from distributed_grid.coordinator.eventlog import write
from distributed_grid.coordinator.eventlog.format import Header, Turn, files, read
from distributed_grid.coordinator.eventlog.replay import replay
from distributed_grid.coordinator.eventlog.write import EventLog
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.jobs import Request
from distributed_grid.protocol.nodes import Sample
from distributed_grid.protocol.resources import Resources
from tests.coordinator.core.scene import facts, job, join
from tests.coordinator.core.test_ledger_honest_agents import Grid, play

SIZE = 1 << 20


class Logged(Grid):
    """The grid of honest agents, with its ledger behind an event log; several events a turn, by chance."""

    def __init__(self, rng: random.Random, folder: Path, size: int) -> None:
        super().__init__()
        self.rng = rng
        self.log = EventLog(self.ledger, folder, size, "grid")
        self.turn = 0.0

    def happen(self, event: Event) -> None:
        if self.turn != self.now or self.rng.random() < 0.7:  # all of a turn is at the same time
            self.end_turn()
            self.turn = self.now = self.now + 0.01
        self.answer(self.log.handle(event, self.now))

    def end_turn(self) -> None:
        self.answer(self.log.settle(self.turn))
        self.log.next_deadline()

    def answer(self, commands: list[Command]) -> None:
        for command in commands:
            self.perform(command)


@pytest.fixture
def small(monkeypatch: Any) -> None:
    """Write often, so that small files come out."""
    monkeypatch.setattr(write, "FLUSH_BYTES", 1024)


async def settled(there: Callable[[], object]) -> None:
    """Wait until something is there."""
    async with asyncio.timeout(60):
        while not there():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def one_job(number: int) -> JobsSubmitted:
    return JobsSubmitted(number, (job(f"j{number}", Request(Resources(cpu=1000))),))


@pytest.mark.parametrize("seed", range(5))
async def test_what_was_decided_is_decided_again_over_all_files(tmp_path: Path, seed: int, small: None) -> None:
    rng = random.Random(seed)
    grid = Logged(rng, tmp_path, 240_000)
    for number in range(700):
        play(grid, rng)
        if not number % 10:
            await asyncio.sleep(0)
    grid.end_turn()
    grid.log.close()
    report = replay(tmp_path)
    assert report.difference is None, report.difference
    assert report.files == len(files(tmp_path)) >= 2 and report.decisions > 300 and not report.cut
    follows = [record.follows for path in files(tmp_path) for record in read(path) if isinstance(record, Header)]
    assert all(follows[1:])


async def test_each_file_can_be_replayed_alone(tmp_path: Path, small: None) -> None:
    rng = random.Random(7)
    grid = Logged(rng, tmp_path, 160_000)
    for _ in range(600):
        play(grid, rng)
    grid.end_turn()
    grid.log.close()
    alone = [replay(path) for path in files(tmp_path)]
    assert len(alone) >= 2 and all(report.difference is None and report.decisions for report in alone)


async def test_its_files_are_for_their_owner_alone_and_bounded(tmp_path: Path, small: None) -> None:
    folder, size = tmp_path / "events", 200_000
    ledger = Ledger()
    log = EventLog(ledger, folder, size, "grid")
    join(ledger, facts("n1"))
    await settled(folder.exists)
    most = 0
    for number in range(4000):
        log.handle(HeartbeatReceived("n1", Sample(at=float(number), cores=dict.fromkeys(range(64), 7))), float(number))
        log.settle(float(number))
        if not number % 50:
            await asyncio.sleep(0.001)
            with contextlib.suppress(FileNotFoundError):  # the oldest may go while we look: then this look is none
                most = max(most, sum(path.stat().st_size for path in files(folder)))
    log.close()
    kept = files(folder)
    most = max(most, sum(path.stat().st_size for path in kept))  # a slow disk may have taken most of it just now
    assert 100_000 < most < 2 * size and sum(path.stat().st_size for path in kept) <= size
    assert kept[0].name > "000001.log" and replay(folder).difference is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


async def test_a_start_begins_a_new_file_and_only_so_many_are_kept(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "FILES_MOST", 3)
    for _ in range(5):
        EventLog(Ledger(), tmp_path, SIZE, "grid").close()
    assert [path.name for path in files(tmp_path)] == ["000003.log", "000004.log", "000005.log"]


async def test_a_full_disk_pauses_it_and_it_goes_on_with_a_new_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(write, "FLUSH_SECONDS", 0.01)
    ledger = Ledger()
    log = EventLog(ledger, tmp_path, SIZE, "grid")
    with capture_logs() as said:
        log.handle(one_job(1), 1.0)
        log.settle(1.0)
        await settled(lambda: files(tmp_path) and "j1" in files(tmp_path)[0].read_text(errors="replace"))
        with monkeypatch.context() as full:
            full.setattr(write, "SPARE_BYTES", 1 << 62)
            assert log.handle(one_job(2), 2.0)
            log.settle(2.0)
            await settled(lambda: any("pauses" in line["event"] for line in said))
            assert log.handle(one_job(3), 3.0)
            log.settle(3.0)
            await asyncio.sleep(0.3)  # tries again, in vain
            log.handle(one_job(4), 4.0)
            log.settle(4.0)

        def goes_on() -> bool:
            log.handle(Tick(), 5.0)
            log.settle(5.0)
            return any("goes on" in line["event"] for line in said)

        await settled(goes_on)
    log.handle(one_job(6), 6.0)
    log.settle(6.0)
    log.close()
    assert len([line for line in said if "pauses" in line["event"]]) == 1
    last = files(tmp_path)[-1]
    assert [record.follows for record in read(last) if isinstance(record, Header)] == [False]
    report = replay(tmp_path)
    assert report.difference is None
    assert {job for one in read(last) if isinstance(one, Turn) for job in map(str, one.events) if "j6" in job}
    assert set(ledger.state.jobs) == {"j1", "j2", "j3", "j4", "j6"}


async def test_nothing_comes_after_a_gap(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "TURNS", 1)
    monkeypatch.setattr(write, "FLUSH_BYTES", 1)
    log = EventLog(Ledger(), tmp_path, SIZE, "grid")
    await settled(lambda: files(tmp_path) and files(tmp_path)[0].stat().st_size)
    right, lengths = os.write, list[int]()

    def refusing_once(fd: int, data: memoryview) -> int:
        lengths.append(len(data))
        if len(lengths) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return right(fd, data)

    with monkeypatch.context() as sick:
        sick.setattr(os, "write", refusing_once)
        for number in range(1, 5):  # all are on their way before the second is refused
            log.handle(one_job(number), float(number))
            log.settle(float(number))
        log.close()
    report = replay(tmp_path)
    assert report.difference is None and report.events == 1


async def test_a_place_that_cannot_be_written_troubles_nobody(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    with capture_logs() as said:
        log = EventLog(Ledger(), tmp_path / "events", SIZE, "grid")
        assert log.handle(one_job(1), 1.0)
        log.settle(1.0)
        await settled(lambda: said)
        log.close()
    assert said[0]["log_level"] == "warning" and "pauses" in said[0]["event"]


async def test_a_disk_that_lags_behind_pauses_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(write, "WAITING_BYTES", 0)
    monkeypatch.setattr(write, "FLUSH_BYTES", 1)
    with capture_logs() as said:
        log = EventLog(Ledger(), tmp_path, SIZE, "grid")
        log.handle(one_job(1), 1.0)
        log.settle(1.0)
        log.close()
    assert said and "too slow" in said[0]["why"]


async def test_a_ledger_larger_than_the_log_may_be_is_not_written(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.handle(JobsSubmitted(1, tuple(job(f"j{n}", Request(Resources(cpu=1000))) for n in range(1000))), 1.0)
    ledger.settle(1.0)
    with capture_logs() as said:
        EventLog(ledger, tmp_path, 100_000, "grid").close()
    assert "the ledger alone takes" in said[0]["why"] and not files(tmp_path)


async def test_what_broke_the_ledger_is_in_the_log_and_breaks_it_again(tmp_path: Path, monkeypatch: Any) -> None:
    right = scheduler.match

    def sabotaged(state: GridState) -> None:
        if "j3" in state.jobs:
            raise AssertionError("j3 must not be")
        right(state)

    store = Store(tmp_path / "grid.db")
    ledger = Ledger()
    log = EventLog(ledger, tmp_path / "events", SIZE, "grid")
    driver = Driver(log, store, Clock(0.0))
    driver.begin(lambda command: None, [])
    with monkeypatch.context() as broken, capture_logs() as said:
        broken.setattr(scheduler, "match", sabotaged)
        for number in range(1, 5):
            driver.put(one_job(number))
            await asyncio.sleep(0.01)
        with pytest.raises(LedgerBroken, match="j3 must not be"):
            await driver.failed
        await driver.close()
        log.close()
        (path,) = files(tmp_path / "events")
        assert f"grid replay {path}" in [line.get("see") for line in said]
        again = replay(path)
        assert again.broken is not None and again.broken.what == "AssertionError: j3 must not be"
        assert again.difference is None
    mended = replay(path)
    assert mended.mended is not None and mended.mended.what == "AssertionError: j3 must not be" and not mended.broken


async def test_what_goes_wrong_in_the_log_is_nobody_elses_trouble(tmp_path: Path, monkeypatch: Any) -> None:
    def wrong(*_: object) -> None:
        raise RuntimeError("a mistake in here")

    log = EventLog(Ledger(), tmp_path, SIZE, "grid")
    with monkeypatch.context() as mistaken, capture_logs() as said:
        mistaken.setattr(write, "decisions", wrong)
        assert log.handle(one_job(1), 1.0)
        log.settle(1.0)
    log.close()
    assert "a mistake in here" in said[0]["why"]
