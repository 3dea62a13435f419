"""The audit log of requests: bounded, chained line by line, and no disk ends the service for its sake."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator.audit import log as module
from distributed_grid.coordinator.audit.log import NOTHING, RequestLog, hashed
from distributed_grid.coordinator.audit.verify import DoesNotFit, StoreAnchor, Verified, files_of, read, verify
from distributed_grid.coordinator.store.store import Store


class Kept:
    """An anchor that a test can look at."""

    def __init__(self) -> None:
        self.at = (0, NOTHING)
        self.oldest = 0

    def read(self) -> tuple[int, str, int]:
        return *self.at, self.oldest

    def write(self, number: int, hashed: str, oldest: int) -> None:
        self.at, self.oldest = (number, hashed), oldest


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "audit.log").read_bytes().splitlines()]


def written(folder: Path, count: int, anchor: Kept | None = None) -> None:
    audit = RequestLog(folder / "audit.log", anchor)
    for number in range(count):
        audit.request("ann", "cancel", jobs=[f"j-{number}"])
    audit.close()


def judged(folder: Path, anchor: Kept | None = None) -> Verified:
    return verify(read(files_of(folder / "audit.log")), anchor.read() if anchor is not None else (0, NOTHING, 0))


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


def test_what_is_no_log_at_all_is_turned_over_and_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_text('{"event": "submit", "user": "ann"}\n' * 3)
    written(tmp_path, 1)
    assert (tmp_path / "audit.log.1").read_text().count("submit") == 3
    with pytest.raises(DoesNotFit, match=r"audit.log.1, line 1 is no line of an audit log"):
        judged(tmp_path)


def test_the_store_keeps_the_anchor(tmp_path: Path) -> None:
    store = Store(tmp_path / "grid.db")
    anchor = StoreAnchor(tmp_path / "grid.db")
    assert anchor.read() == (0, NOTHING, 0)
    audit = RequestLog(tmp_path / "audit.log", anchor)
    audit.request("ann", "status")
    audit.close()
    assert anchor.read()[0::2] == (2, 1)
    store.close()
    store = Store(tmp_path / "grid.db")
    assert anchor.read()[0] == 2
    store.close()


# --- what does not fit ------------------------------------------------------------------------------------------------


def changed(raw: list[bytes]) -> list[bytes]:
    return [*raw[:4], raw[4].replace(b"ann", b"bob"), *raw[5:]]


HARM: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a line was changed": (changed, "audit.log, line 6 does not fit: it or the one before it"),
    "a line was removed": (lambda raw: raw[:4] + raw[5:], "line 5 does not fit: line 5 is missing before it"),
    "many were removed": (lambda raw: raw[:4] + raw[7:], "line 5 does not fit: lines 5 to 7 are missing before it"),
    "a line was put in": (lambda raw: [*raw[:4], raw[3], *raw[4:]], "line 5 does not fit: it is not in its place"),
    "two changed places": (
        lambda raw: [*raw[:4], raw[5], raw[4], *raw[6:]],
        "line 5 does not fit: line 5 is missing before it",
    ),
    "one was written anew": (
        lambda raw: [*raw[:4], raw[4][:-1] + b" }", *raw[5:]],
        "line 6 does not fit: it or the one before it",
    ),
    "it is no line": (lambda raw: [*raw[:4], b"{}", *raw[5:]], "line 5 is no line of an audit log"),
    "the beginning was taken off": (lambda raw: raw[3:], "begins too late: lines 1 to 3 are missing"),
    "the end was taken off": (lambda raw: raw[:-2], "ends too soon: lines 10 to 11 are missing"),
    "the last was changed": (lambda raw: [*raw[:-1], raw[-1].replace(b"ann", b"bob")], "line 11 is not what was"),
    "all is gone": (lambda raw: [], "ends too soon: lines 1 to 11 are missing"),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_was_done_to_it_shows(tmp_path: Path, harm: str) -> None:
    do, said = HARM[harm]
    anchor = Kept()
    written(tmp_path, 10, anchor)
    assert judged(tmp_path, anchor).lines == 11
    raw = (tmp_path / "audit.log").read_bytes().splitlines()
    (tmp_path / "audit.log").write_bytes(b"".join(line + b"\n" for line in do(raw)))
    with pytest.raises(DoesNotFit) as found:
        judged(tmp_path, anchor)
    assert said in found.value.what


@pytest.mark.parametrize("harm", ["the end was taken off", "the last was changed", "all is gone"])
def test_it_still_shows_after_the_coordinator_was_started_again(tmp_path: Path, harm: str) -> None:
    anchor = Kept()
    written(tmp_path, 10, anchor)
    raw = (tmp_path / "audit.log").read_bytes().splitlines()
    left = HARM[harm][0](raw)
    (tmp_path / "audit.log").write_bytes(b"".join(line + b"\n" for line in left))
    with capture_logs() as said:
        written(tmp_path, 3, anchor)
    assert said[0]["event"] == "the audit log is not what it was"
    with pytest.raises(DoesNotFit) as found:
        judged(tmp_path, anchor)
    assert left or "begins too late: lines 1 to 11 are missing" in found.value.what


def test_lines_that_were_turned_over_are_not_missed_and_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 600)
    anchor = Kept()
    written(tmp_path, 9, anchor)
    assert anchor.oldest == judged(tmp_path, anchor).first == 1
    written(tmp_path, 40, anchor)
    found = judged(tmp_path, anchor)
    assert found.first == anchor.oldest > 1
    oldest = tmp_path / "audit.log.3"
    oldest.write_bytes(oldest.read_bytes().split(b"\n", 1)[1])
    with pytest.raises(DoesNotFit, match=f"begins too late: line {found.first} is missing"):
        judged(tmp_path, anchor)
    oldest.unlink()
    with pytest.raises(DoesNotFit, match="begins too late"):
        judged(tmp_path, anchor)


def test_a_log_that_was_there_before_the_oldest_line_was_kept_is_taken_as_it_is(tmp_path: Path) -> None:
    anchor = Kept()
    written(tmp_path, 5, anchor)
    raw = (tmp_path / "audit.log").read_bytes().splitlines(keepends=True)
    (tmp_path / "audit.log").write_bytes(b"".join(raw[2:]))
    anchor.oldest = 0
    written(tmp_path, 1, anchor)
    assert judged(tmp_path, anchor).first == anchor.oldest == 3


def test_a_whole_file_that_was_taken_away_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 600)
    written(tmp_path, 9)
    (tmp_path / "audit.log.1").unlink()
    with pytest.raises(DoesNotFit, match="missing before it"):
        judged(tmp_path)
