"""A log is decided again: the same, or where not, in words."""

from pathlib import Path

import msgpack
import pytest

from distributed_grid.coordinator.core.commands import CancelRequested
from distributed_grid.coordinator.core.policy import Policy
from distributed_grid.coordinator.eventlog.format import FORMAT, BadLog
from distributed_grid.coordinator.eventlog.replay import logs, replay
from distributed_grid.coordinator.eventlog.what_if import compare
from tests.coordinator.eventlog.stories import SILENT, places, rewrite, written


def test_all_is_decided_the_same_again_and_counted(tmp_path: Path) -> None:
    report = replay(written(tmp_path, SILENT))
    assert report.difference is None and (report.files, report.events, report.cut) == (1, len(SILENT), 0)
    assert (report.began, report.ended) == (0.0, 89.0) and report.decisions > 10


def test_a_policy_that_was_not_the_ordinary_one_is_in_the_log(tmp_path: Path) -> None:
    report = replay(written(tmp_path, SILENT, Policy(lost_after=20.0)))
    assert report.difference is None


def test_it_stops_where_it_is_told_to(tmp_path: Path) -> None:
    report = replay(written(tmp_path, SILENT), until=50.5)
    assert report.ended == 50.0


def test_the_story_of_a_job_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, [*SILENT, (90.0, CancelRequested(1, ("j1", "j2")))])
    assert [f"{one.at:g} {one.what}" for one in replay(path, job="j1").story] == [
        "1 ann submitted j1",
        "1 take j1",
        "1 j1 is starting on lab1",
        "1 start j1.1 on lab1 with cores 0",
        "2 lab1 sent started of j1.1",
        "2 j1 is running on lab1",
        "12 j1 is lost on lab1",
        "72 j1 has ended: node-lost",
        "72 tell lab1: stop j1.1",
        "90 the end of j1, j2 was asked for",
    ]


def test_the_first_turn_that_does_not_come_out_the_same_is_told_with_then_and_now(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    rewrite(path, lambda turn: [one if one[:2] != ["job", "j1"] else [*one[:3], "lab9", one[4]] for one in turn])
    found = replay(path).difference
    assert found is not None and found.at == 1.0
    assert found.events == ["ann submitted j1"]
    assert (found.then, found.now) == (["j1 is starting on lab9"], ["j1 is starting on lab1"])


def test_where_a_file_follows_another_the_whole_ledger_is_compared(tmp_path: Path) -> None:
    first = written(tmp_path, SILENT)
    second = written(tmp_path, SILENT[:1])
    values = list(msgpack.Unpacker(second.open("rb"), strict_map_key=False))
    values[0][5] = True  # as if nothing had happened in between
    second.write_bytes(b"".join(msgpack.packb(value) for value in values))
    found = replay(tmp_path).difference
    assert found is not None and found.file == str(first) and found.state == "now"


# --- logs that are not whole ------------------------------------------------------------------------------------------


def test_a_log_that_ends_anywhere_is_replayed_up_to_there(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    data = path.read_bytes()
    ends = places(path)
    start = ends[1]
    assert ends[-1] == len(data)
    for end in range(start, len(data), 97):
        path.write_bytes(data[:end])
        report = replay(path)
        assert report.difference is None
        assert report.cut == end - max(place for place in ends if place <= end)


@pytest.mark.parametrize("byte", [0xC1, 0xFF, 0x00])
def test_a_log_that_was_changed_is_told_by_record_and_never_a_traceback(tmp_path: Path, byte: int) -> None:
    path = written(tmp_path, SILENT)
    data = path.read_bytes()
    told = 0
    for at in range(0, len(data), 61):
        path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
        try:
            replay(path)
        except BadLog as error:
            told += 1
            assert str(path) in error.what and error.why
    assert told > 10


def test_the_record_that_cannot_be_read_is_numbered(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[3][5][1] = [["Nonsense"]]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    with pytest.raises(BadLog, match=f"record 4, which begins at byte {places(path)[2]}, cannot be read") as error:
        replay(path)
    assert "Nonsense" in error.value.why


def test_a_checkpoint_that_does_not_hold_together_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[1]["allocations"] = ["j9.1"]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    for replaying in (lambda: replay(path), lambda: compare(path, ["lost_after=30"])):
        with pytest.raises(BadLog, match="record 2, the ledger as it was, does not hold together"):
            replaying()


def test_a_newer_log_and_what_is_none_are_refused_in_words(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[0][1:3] = [FORMAT + 1, "9.9"]
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    with pytest.raises(BadLog, match=f"has format {FORMAT + 1}, this grid reads format {FORMAT}") as error:
        replay(path)
    assert error.value.why == "it was written by version 9.9"
    for content in (b"", b"hello", msgpack.packb({"a": 1}), b"\x93"):
        path.write_bytes(content)
        with pytest.raises(BadLog, match="is no event log"):
            replay(path)
    with pytest.raises(BadLog, match="cannot be read"):
        replay(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadLog, match="there is no event log in"):
        logs(tmp_path / "empty")


@pytest.mark.parametrize("content", [b"", b"\x93", b"garbage"])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_of_several_files_one_that_cannot_be_read_is_left_out_and_that_is_told(
    tmp_path: Path, content: bytes, place: str
) -> None:
    whole = written(tmp_path, SILENT).read_bytes()
    folder = tmp_path / "events"
    folder.mkdir()
    bad = {"first": 1, "middle": 2, "last": 3}[place]
    for number in (1, 2, 3):
        (folder / f"{number:06}.log").write_bytes(content if number == bad else whole)
    report = replay(folder)
    assert report.files == 2 and report.difference is None
    (told,) = report.skipped
    assert f"{bad:06}.log is no event log" in told
    compared = compare(folder, ["lost_after=30"])
    assert compared.report.skipped == report.skipped


def test_a_file_that_is_not_there_is_told_and_the_ledgers_around_it_are_not_compared(tmp_path: Path) -> None:
    path = written(tmp_path, SILENT)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "000001.log").write_bytes(path.read_bytes())
    values[0][5] = True  # it follows the one that is gone
    (folder / "000004.log").write_bytes(b"".join(msgpack.packb(value) for value in values))
    report = replay(folder)
    assert report.files == 2 and report.difference is None
    assert report.skipped == ["000002.log to 000003.log: not there, so what happened between 000001 and 000004 is not"]


def test_a_file_that_ends_early_before_another_is_named_and_the_ledgers_around_the_gap_are_not_compared(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, SILENT)
    whole, ends = path.read_bytes(), places(path)
    values = list(msgpack.Unpacker(path.open("rb"), strict_map_key=False))
    values[0][5] = True  # it follows the one that is cut
    folder = tmp_path / "events"
    folder.mkdir()
    (folder / "000001.log").write_bytes(whole[: ends[2] + 7])
    (folder / "000002.log").write_bytes(b"".join(msgpack.packb(value) for value in values))
    report = replay(folder)
    assert report.files == 2 and report.difference is None and report.cut == 0
    (told,) = report.skipped
    assert "000001.log: the last 7 bytes are no whole record" in told


def test_where_no_file_can_be_read_that_is_an_error(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number:06}.log").touch()
    with pytest.raises(BadLog, match="is no event log"):
        replay(tmp_path)
