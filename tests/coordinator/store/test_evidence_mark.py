"""The high-water mark says how far a store had come, or that it cannot say."""

import time
from pathlib import Path

from structlog.testing import capture_logs

from distributed_grid.coordinator.core.rollback import Marked, Point
from distributed_grid.coordinator.store import evidence as store_mark
from distributed_grid.coordinator.store.evidence import Mark, MarkFile, decode_mark, encode_mark

POINT = Point("a" * 16, 7, 480, 1000.5)
KEY = bytes(range(32))
COST = 20e-6
"""Seconds that a write may take on a busy machine; it takes 3 µs on an idle one."""


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert store_mark.read_mark(tmp_path / "grid.db") == Marked(None, "missing", False)
    mark = MarkFile(tmp_path / "grid.db", KEY)
    for number in (3, 1_000_000, 480):
        mark.write(Point(POINT.grid, POINT.epoch, number, POINT.clock))
    assert store_mark.read_mark(tmp_path / "grid.db") == Marked(POINT, "", True, KEY)
    mark.close()
    assert (tmp_path / "grid.mark").stat().st_mode & 0o777 == 0o600


def test_one_of_another_boot_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "grid.mark").write_bytes(encode_mark(Mark(POINT, "another", KEY)))
    assert store_mark.read_mark(tmp_path / "grid.db") == Marked(POINT, "", False, KEY)


def test_every_flipped_bit_and_every_cut_of_it_is_seen() -> None:
    data = encode_mark(Mark(POINT, "boot", KEY))
    assert decode_mark(data) == Mark(POINT, "boot", KEY)
    for at in range(len(data)):
        assert decode_mark(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None
        assert decode_mark(data[:at]) is None


def test_where_it_cannot_be_written_that_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "grid.mark").mkdir()
    mark = MarkFile(tmp_path / "grid.db", KEY)
    with capture_logs() as said:
        mark.write(POINT)
        mark.write(POINT)
    assert [line["event"] for line in said] == ["the high-water mark cannot be written"]


def test_it_costs_next_to_nothing(tmp_path: Path) -> None:
    mark = MarkFile(tmp_path / "grid.db", KEY)
    best = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(200):
            mark.write(POINT)
        best = min(best, (time.perf_counter() - began) / 200)
    mark.close()
    assert best < COST
