"""The journal: what is read back, what is dropped, and what is never lost without a word."""

import errno
import os
from pathlib import Path

import pytest

from distributed_grid.agent.supervisor_journal import Journal, line, parse

RECORDS = [["boot", "b"], ["intent", "j-a.1", 1.5, 0.0, 5.0, [0, 1]], ["exit", "j-a.1", {"cause": "exited"}]]


def written(path: Path, *records: list[object]) -> tuple[Journal, list[str]]:
    log: list[str] = []
    journal = Journal(str(path), log.append)
    journal.rewrite([])
    for record in records:
        journal.append(*record)
    journal.commit(sync=True)
    return journal, log


def appended(path: Path) -> bytes:
    """What is in the file, without the zeros that wait to be replaced."""
    return path.read_bytes().rstrip(b"\0")


def test_what_was_committed_is_read_back_in_order(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    assert journal.load() == RECORDS
    assert log == []
    assert journal.size == len(appended(tmp_path / "journal"))


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal", RECORDS[0])
    journal.append(*RECORDS[1])
    assert journal.load() == RECORDS[:1]


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert Journal(str(tmp_path / "journal"), print).load() == []


@pytest.mark.parametrize("rest", [b"", bytes(5000)], ids=["the file ends there", "zeros follow"])
@pytest.mark.parametrize("cut", range(1, len(line(RECORDS[2]))))
def test_a_torn_last_line_is_dropped_with_a_word(tmp_path: Path, cut: int, rest: bytes) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    whole = appended(tmp_path / "journal")
    (tmp_path / "journal").write_bytes(whole[:-cut] + rest)
    assert journal.load() == RECORDS[:2]
    assert [text.rpartition(": ")[2] for text in log] == ["the last line was cut and is dropped"]
    assert sorted(os.listdir(tmp_path)) == ["journal"]


def test_a_last_line_of_the_right_length_with_wrong_bytes_is_a_torn_one(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    whole = appended(tmp_path / "journal")
    (tmp_path / "journal").write_bytes(whole[:-20] + b"\0" * 19 + b"\n")
    assert journal.load() == RECORDS[:2]
    assert len(log) == 1
    assert not [*tmp_path.glob("*corrupt*")]


def test_a_damaged_line_is_told_and_the_file_kept_and_the_rest_used(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    lines = appended(tmp_path / "journal").splitlines(keepends=True)
    damaged = lines[0] + lines[1].replace(b"j-a.1", b"j-b.1") + lines[2]
    (tmp_path / "journal").write_bytes(damaged)
    assert journal.load() == [RECORDS[0], RECORDS[2]]
    assert (tmp_path / "journal.corrupt-1").read_bytes() == damaged
    assert "1 of 3 lines are damaged (line 2)" in log[0]
    assert "journal.corrupt-1" in log[0]
    assert journal.load()
    assert (tmp_path / "journal.corrupt-2").exists()


@pytest.mark.parametrize("text", [b"", b"00000000", b"zzzzzzzz []", b"00000000 []", line([]).strip(), line([1])[:-2]])
def test_what_is_not_a_whole_record_is_none(text: bytes) -> None:
    assert parse(text) is None


def test_rewriting_replaces_everything_and_appending_goes_on(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal", *RECORDS)
    journal.append("never", "written")
    journal.rewrite(RECORDS[:1])
    journal.append("forget", "j-a.1")
    journal.commit(sync=False)
    assert journal.load() == [RECORDS[0], ["forget", "j-a.1"]]
    assert journal.size == len(appended(tmp_path / "journal"))


def test_appending_fills_room_that_is_there_and_makes_more(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal")
    room = (tmp_path / "journal").stat().st_size
    many = [["forget", f"j-{number}.1", "x" * 1000] for number in range(2500)]
    sizes = set()
    for record in many:
        journal.append(*record)
        journal.commit(sync=False)
        sizes.add((tmp_path / "journal").stat().st_size)
    assert sizes == {room, 2 * room, 3 * room}
    assert journal.load() == many
    assert log == []


def test_a_rewrite_that_fails_leaves_the_old_journal(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal", *RECORDS)

    def broken():  # type: ignore[no-untyped-def]
        yield ["boot", "c"]
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        journal.rewrite(broken())
    assert journal.load() == RECORDS
