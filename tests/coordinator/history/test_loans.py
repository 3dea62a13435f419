"""Loans in the history: summed by day, kept over restarts, bounded in age, and not lost where the disk refuses."""

from pathlib import Path

import pytest

from distributed_grid.coordinator.history.database import DAY, QUARTERS_KEPT, HistoryDatabase
from distributed_grid.coordinator.history.history import History, merged_loans
from distributed_grid.coordinator.store import disposable
from distributed_grid.protocol.messages import DayOfLoans
from tests.coordinator.history.scene import START, Clock

TODAY = int(START // DAY)
ALL = ("", "")


def lent(seconds: float, day: int = TODAY, lender: str = "ann", borrower: str = "ben", node: str = "n1") -> DayOfLoans:
    return DayOfLoans(day, lender, borrower, node, seconds / 4, seconds, 2 * seconds, 0.0)


def of(path: Path, size: int = 1 << 30) -> History:
    return History(path / "history.db", size, Clock())


async def written(history: History) -> None:
    """What it does by itself in two seconds: old rows are removed first."""
    for _ in range(2):
        history.tick()
        if (writing := history._writing) is not None:
            await writing


async def test_loans_of_a_day_are_summed_over_restarts(tmp_path: Path) -> None:
    history = of(tmp_path)
    history.lend([lent(10.0), lent(5.0, lender="cleo")])
    history.lend([lent(20.0)])
    both = [lent(30.0), lent(5.0, lender="cleo")]
    assert await history.lent(0, "", ALL, 10) == (both, 0), "also before they are written"
    await history.close()
    history = of(tmp_path)
    history.lend([lent(1.0)])
    assert await history.lent(0, "", ALL, 10) == ([lent(31.0), lent(5.0, lender="cleo")], 0)
    await history.close()


async def test_they_are_found_by_day_node_and_user(tmp_path: Path) -> None:
    history = of(tmp_path)
    rows = [lent(4.0), lent(3.0, TODAY - 1), lent(2.0, node="n2"), lent(1.0, lender="ben", borrower="cleo")]
    history.lend(rows)
    await written(history)
    history.lend([lent(0.5, node="n3")])
    assert await history.lent(TODAY, "", ALL, 10) == ([rows[0], rows[2], rows[3], lent(0.5, node="n3")], 0)
    assert await history.lent(0, "n2", ALL, 10) == ([rows[2]], 0)
    assert await history.lent(0, "", ("cleo", ""), 10) == ([rows[3]], 0)
    assert await history.lent(0, "", ("ben", "cleo"), 10) == ([rows[3]], 0)
    assert await history.lent(0, "", ("ann", "cleo"), 10) == ([], 0)
    await history.close()


async def test_what_the_disk_refuses_is_written_later_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, clock = of(tmp_path), Clock()
    history.now = clock
    history.lend([lent(10.0)])
    with monkeypatch.context() as patched:
        patched.setattr(disposable, "SPARE", 1 << 62)
        await written(history)
        assert "free on the disk" in history.trouble
        history.lend([lent(1.0)])
    clock.now += 120.0
    await written(history)
    assert not history._lent
    assert await history.lent(0, "", ALL, 10) == ([lent(11.0)], 0)
    await history.close()


async def test_without_a_history_nothing_is_kept(tmp_path: Path) -> None:
    history = of(tmp_path, 0)
    history.lend([lent(10.0)])
    assert await history.lent(0, "", ALL, 10) == ([], 0) and not history._lent
    await history.close()


def test_old_days_are_removed(tmp_path: Path) -> None:
    database = HistoryDatabase(tmp_path / "history.db", 1 << 30)
    database.lend([lent(1.0), lent(2.0, TODAY - 89), lent(3.0, TODAY - 91)])
    database.prune(START)
    assert [one.day for one in database.lent(0, "", ALL, 10)[0]] == [TODAY, TODAY - 89]
    assert QUARTERS_KEPT == 90 * DAY


def test_what_is_beyond_the_limit_is_counted(tmp_path: Path) -> None:
    database = HistoryDatabase(tmp_path / "history.db", 1 << 30)
    database.lend([lent(1.0, TODAY - ago, node=node) for ago in range(30) for node in ("n1", "n2")])
    found, more = database.lent(TODAY - 19, "", ALL, 12)
    assert (len(found), more, found[-1].day) == (12, 28, TODAY - 5)
    assert database.lent(0, "n2", ALL, 12)[1] == 18 and database.lent(TODAY + 1, "", ALL, 12) == ([], 0)


def test_lines_of_the_same_day_users_and_node_are_one() -> None:
    found = merged_loans([lent(1.0), lent(5.0, node="n2"), lent(2.0), lent(9.0, TODAY - 1)])
    assert found == [lent(5.0, node="n2"), lent(3.0), lent(9.0, TODAY - 1)]
