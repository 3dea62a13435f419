"""The audit log of requests is bounded, and no disk ends the service for its sake."""

import json
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator import audit as module
from distributed_grid.coordinator.audit import RequestLog


class Full:
    """A file on a disk on which there is room for a few bytes more."""

    closed = False

    def __init__(self, fd: int, room: int) -> None:
        self.fd, self.room = fd, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        written, self.room = os.write(self.fd, data[: self.room]), 0
        return written

    def close(self) -> None:
        pass


def test_lines_that_find_no_room_are_left_out_and_that_is_said_once_and_again_when_it_is_over(tmp_path: Path) -> None:
    audit = RequestLog(tmp_path / "audit.log")
    file = audit._file
    audit.request("ann", "submit", jobs=1)
    with capture_logs() as said:
        kept, file._file = file._file, Full(file._file.fileno(), room=10)  # type: ignore[assignment]
        for _ in range(5):
            audit.request("ann", "cancel")
        file._file = kept
        audit.request("bob", "submit", jobs=2)
        audit.request("bob", "status")
    audit.close()
    assert [line["event"] for line in said] == ["the audit log cannot be written", "the audit log is written again"]
    assert said[1]["missing"] == 5
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert len(lines) == 4 and len(lines[1]) == 10
    assert [json.loads(line)["event"] for line in (lines[0], *lines[2:])] == ["submit", "submit", "status"]


def test_a_line_that_was_cut_by_a_crash_stays_a_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "audit.log").write_bytes(b'{"event": "sub')
    audit = RequestLog(tmp_path / "audit.log")
    audit.request("ann", "status")
    audit.close()
    assert json.loads((tmp_path / "audit.log").read_text().splitlines()[1])["event"] == "status"


def test_it_is_turned_over_and_goes_on_where_that_failed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 200)
    audit = RequestLog(tmp_path / "audit.log")
    for _ in range(10):
        audit.request("ann", "status")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]
    oldest = (tmp_path / "audit.log.3").read_bytes()

    def refused(*_: object) -> int:
        raise OSError(28, "No space left on device")

    audit._file._size = 200
    monkeypatch.setattr(module.os, "open", refused)
    for _ in range(3):
        audit.request("ann", "lost")
    monkeypatch.undo()
    audit.request("ann", "found")
    audit.close()
    assert "found" in (tmp_path / "audit.log").read_text()
    assert (tmp_path / "audit.log.3").read_bytes() != oldest
    assert sum(1 for path in tmp_path.iterdir() if path.stat().st_size) == 4, "it was turned over once"
