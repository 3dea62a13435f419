"""The audit log of requests: bounded, chained line by line, and no disk ends the service for its sake."""

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator.audit import log as module
from distributed_grid.coordinator.audit.log import NOTHING, RequestLog, hashed
from tests.coordinator.audit.scene import Kept, judged, lines, written

# --- writing ----------------------------------------------------------------------------------------------------------


def test_each_line_has_its_number_and_the_hash_of_the_one_before_over_restarts(tmp_path: Path) -> None:
    anchor = Kept()
    written(tmp_path, 2, anchor)
    written(tmp_path, 1, anchor)
    found = lines(tmp_path)
    assert [(line["n"], line["event"]) for line in found] == [
        (1, "begin"), (2, "cancel"), (3, "cancel"), (4, "begin"), (5, "cancel"),
    ]  # fmt: skip
    raw = (tmp_path / "audit.log").read_bytes().splitlines()
    assert [line["prev"] for line in found] == [NOTHING, *map(hashed, raw[:-1])]
    assert anchor.at == (5, hashed(raw[-1]))
    assert found[1]["user"] == "ann" and found[1]["result"] == "accepted" and found[1]["at"].endswith("Z")
    done = judged(tmp_path, anchor)
    assert (done.lines, done.first, done.last, done.anchored, done.hash) == (5, 1, 5, 5, anchor.at[1])


async def test_the_lines_of_a_turn_are_written_at_once_before_what_is_said_after_them(tmp_path: Path) -> None:
    audit = RequestLog(tmp_path / "audit.log")
    audit.expect()
    seen: list[int] = []
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(lines(tmp_path))))  # as an answer leaves
    audit.request("ann", "submit", jobs=1)
    audit.request("ann", "submit", jobs=2)
    assert len(lines(tmp_path)) == 1
    await asyncio.sleep(0)
    assert seen == [3]
    audit.close()


def test_a_line_that_was_cut_by_a_crash_is_taken_off_and_that_is_said(tmp_path: Path) -> None:
    anchor = Kept()
    written(tmp_path, 1, anchor)
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(b'{"n":3,"prev"')
    assert judged(tmp_path, anchor).unfinished == 13
    written(tmp_path, 0, anchor)
    assert [line.get("cut_off", 0) for line in lines(tmp_path)] == [0, 0, 13]
    assert judged(tmp_path, anchor).last == 3


def test_lines_that_find_no_room_are_counted_in_the_next_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = RequestLog(tmp_path / "audit.log")
    room, really = [10], os.write

    def full(file: int, data: bytes) -> int:
        some, room[0] = data[: room[0]], 0
        if not some:
            raise OSError(28, "No space left on device")
        return really(file, some)

    with capture_logs() as said:
        monkeypatch.setattr(os, "write", full)
        for _ in range(5):
            audit.request("ann", "cancel")
        monkeypatch.undo()
        audit.request("bob", "submit", jobs=2)
        audit.request("bob", "status")
    audit.close()
    assert [line["event"] for line in said] == ["the audit log cannot be written", "the audit log is written again"]
    assert said[1]["missing"] == 5
    assert [(line["event"], line.get("missing")) for line in lines(tmp_path)[1:]] == [("submit", 5), ("status", None)]
    assert judged(tmp_path).missing == 5


def test_it_is_turned_over_in_one_chain_and_goes_on_where_that_failed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 500)
    anchor = Kept()
    audit = RequestLog(tmp_path / "audit.log", anchor)
    for _ in range(20):
        audit.request("ann", "status")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]
    oldest = (tmp_path / "audit.log.3").read_bytes()

    def refused(*_: object) -> int:
        raise OSError(28, "No space left on device")

    audit._size = 500
    monkeypatch.setattr(os, "open", refused)
    for _ in range(3):
        audit.request("ann", "lost")
    monkeypatch.undo()
    audit.request("ann", "found")
    audit.close()
    assert "found" in (tmp_path / "audit.log").read_text()
    assert (tmp_path / "audit.log.3").read_bytes() != oldest
    found = judged(tmp_path, anchor)
    assert found.first > 1 and found.last == anchor.at[0] and found.missing == 3


# --- what does not fit ------------------------------------------------------------------------------------------------
