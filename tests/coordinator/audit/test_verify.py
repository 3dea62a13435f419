"""What was done to the audit log shows."""

from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from distributed_grid.coordinator.audit import log as module
from distributed_grid.coordinator.audit.log import NOTHING, RequestLog
from distributed_grid.coordinator.audit.verify import DoesNotFit, StoreAnchor, read, verify_own
from distributed_grid.coordinator.backup.archive import backup
from distributed_grid.coordinator.store.store import Store
from distributed_grid.protocol.errors import GridError
from tests.coordinator.audit.scene import Kept, judged, written


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


def test_a_backup_has_no_log_and_that_is_said_instead_of_what_is_missing(tmp_path: Path) -> None:
    state_dir = tmp_path / "coordinator"
    state_dir.mkdir()
    store = Store(state_dir / "grid.db")
    audit = RequestLog(state_dir / "audit.log", StoreAnchor(state_dir / "grid.db"))
    audit.request("ann", "status")
    audit.close()
    store.close()
    backup(state_dir, tmp_path / "monday", force=False)
    assert verify_own(state_dir).lines == 2
    with pytest.raises(GridError, match="is a backup, which has no audit log"):
        verify_own(tmp_path / "monday")


def test_a_directory_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="is a directory"):
        list(read([tmp_path]))


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
