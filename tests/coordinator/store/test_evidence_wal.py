"""What is behind a damaged frame of a write-ahead log is counted; the cut end that a crash leaves is not damage."""

import random
import sqlite3
from pathlib import Path

import pytest

from distributed_grid.coordinator.store import evidence
from distributed_grid.coordinator.store.evidence import FRAME, HEADER, Wal

PAGE = 4096
SEEDS = range(60)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The log of a database that was killed after the commit of its schema and of 40 rows, one page each."""
    path = tmp_path_factory.mktemp("wal") / "grid.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (x)")
    for number in range(40):
        db.execute("INSERT INTO t VALUES (?)", (number,))
    data = path.with_name("grid.db-wal").read_bytes()
    db.close()
    return data


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def frames(data: bytes) -> int:
    return (len(data) - HEADER) // (FRAME + PAGE)


def test_of_a_whole_log_all_is_taken(log: bytes) -> None:
    assert evidence.parse_wal(log) == Wal(41)


def test_there_may_be_none(tmp_path: Path) -> None:
    assert evidence.read_wal(tmp_path / "grid.db") == Wal() == evidence.parse_wal(b"") == evidence.parse_wal(bytes(100))


def test_an_end_that_is_cut_off_is_no_damage(log: bytes) -> None:
    assert evidence.parse_wal(log[:-100]) == Wal(40)
    assert evidence.parse_wal(log + log[HEADER : HEADER + 60]) == Wal(41)


def test_frames_of_before_the_log_was_begun_anew_are_no_damage(log: bytes) -> None:
    frame = FRAME + PAGE
    older = flipped(log[-5 * frame :], 9)
    for number in range(1, 5):
        older = flipped(older, number * frame + 9)
    assert evidence.parse_wal(log + older) == Wal(41)


@pytest.mark.parametrize("seed", SEEDS)
def test_behind_a_flipped_bit_commits_are_counted(log: bytes, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    at = draw.randrange(HEADER, HEADER + (FRAME + PAGE) * (frames(log) - 2))
    found = evidence.parse_wal(flipped(log, at, draw.randrange(8)))
    frame = (at - HEADER) // (FRAME + PAGE)
    assert found.damaged == HEADER + frame * (FRAME + PAGE) and found.commits < 41
    # The frame itself is not counted where the bit made it none of this log, or no commit.
    assert 41 - found.commits - 1 <= len(found.lost) <= 41 - found.commits


@pytest.mark.parametrize("at", range(HEADER))
def test_a_flipped_bit_in_the_header_is_found(log: bytes, at: int) -> None:
    found = evidence.parse_wal(flipped(log, at))
    assert found == Wal(41) or (found.commits == 0 and len(found.lost) == 41 and found.damaged == 0)


def test_zeros_in_the_middle_are_found(log: bytes) -> None:
    middle = len(log) // 2
    found = evidence.parse_wal(log[:middle] + bytes(2 * PAGE) + log[middle + 2 * PAGE :])
    assert found.commits + len(found.lost) in (38, 39, 40) and found.damaged > 0
