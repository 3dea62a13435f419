"""The journal: what is read back, what is dropped, and what is never lost without a word."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.supervisor.job import Job, Leases
from distributed_grid.agent.supervisor.journal import Journal, JournaledJobs, line, parse, read_mark

RECORDS: list[list[Any]] = [
    ["boot", "b"],
    ["intent", "j-a.1", 1.5, 0.0, 5.0, [0, 1]],
    ["exit", "j-a.1", {"cause": "exited"}],
]


def written(path: Path, *records: list[Any]) -> tuple[Journal, list[str]]:
    log: list[str] = []
    journal = Journal(str(path), log.append)
    journal.rewrite([])
    for record in records:
        journal.append(*record)
    journal.commit()
    journal.sync()
    return journal, log


def appended(path: Path) -> bytes:
    """What is in the file, without the zeros that wait to be replaced."""
    return path.read_bytes().rstrip(b"\0")


def another_boot(path: Path) -> None:
    """As after a power cut: the mark is of an earlier boot."""
    mark = read_mark(str(path))
    assert mark is not None
    (path.parent / "journal.mark").write_bytes(line(["an earlier boot", *mark[1:]]))


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
    another_boot(tmp_path / "journal")
    assert journal.load() == RECORDS[:2] and not journal.doubt
    assert [text.rpartition(": ")[2] for text in log] == ["the last line was cut and is dropped"]
    assert sorted(os.listdir(tmp_path)) == ["journal", "journal.mark"]


def test_a_last_line_of_the_right_length_with_wrong_bytes_is_a_torn_one(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    whole = appended(tmp_path / "journal")
    (tmp_path / "journal").write_bytes(whole[:-20] + b"\0" * 19 + b"\n")
    another_boot(tmp_path / "journal")
    assert journal.load() == RECORDS[:2]
    assert len(log) == 1
    assert not [*tmp_path.glob("*corrupt*")]


def test_a_damaged_line_is_told_and_the_file_kept_and_the_rest_used(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    lines = appended(tmp_path / "journal").splitlines(keepends=True)
    damaged = lines[0] + lines[1] + lines[2].replace(b"j-a.1", b"j-b.1") + lines[3]
    (tmp_path / "journal").write_bytes(damaged)
    assert journal.load() == [RECORDS[0], RECORDS[2]]
    assert (tmp_path / "journal.corrupt-1").read_bytes() == damaged
    assert "1 of 4 lines are damaged (line 3)" in log[0]
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
    journal.append("warned", "j-a.1")
    journal.commit()
    assert journal.load() == [RECORDS[0], ["warned", "j-a.1"]]
    assert journal.size == len(appended(tmp_path / "journal"))


def test_an_acknowledgement_waits_for_what_comes_next_if_something_does(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal", *RECORDS)
    before = appended(tmp_path / "journal")
    journal.append("forget", "j-a.1")
    journal.commit(patient=True)
    assert appended(tmp_path / "journal") == before
    journal.append("warned", "j-b.1")
    journal.commit(patient=True)
    assert journal.load() == [*RECORDS, ["forget", "j-a.1"], ["warned", "j-b.1"]]


def test_acknowledgements_do_not_pile_up(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal")
    for number in range(2000):
        journal.append("forget", f"j-{number}.1")
        journal.commit(patient=True)
    assert len(journal.load()) >= 1000


def test_appending_fills_room_that_is_there_and_makes_more(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal")
    room = (tmp_path / "journal").stat().st_size
    many = [["warned", f"j-{number}.1", "x" * 1000] for number in range(2500)]
    sizes = set()
    for record in many:
        journal.append(*record)
        journal.commit()
        sizes.add((tmp_path / "journal").stat().st_size)
    assert sizes == {room, 2 * room, 3 * room}
    assert journal.load() == many
    assert log == []


def test_a_rewrite_that_fails_leaves_the_old_journal(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal", *RECORDS)

    def broken() -> Iterator[list[Any]]:
        yield ["boot", "c"]
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        journal.rewrite(broken())
    assert journal.load() == RECORDS


# --- a journal that is not what was written -------------------------------------------------------------------------


def flipped(whole: bytes) -> bytes:
    return bytes([whole[0] ^ 1]) + whole[1:]


def without_line(number: int) -> Callable[[bytes], bytes]:
    return lambda whole: b"".join(one for at, one in enumerate(whole.splitlines(keepends=True), 1) if at != number)


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "emptied": (lambda _: b"", "is empty"),
    "zeros": (lambda whole: bytes(len(whole)), "is empty"),
    "one flipped bit in line 1": (flipped, "line 1 of the journal is damaged"),
    "a flipped bit in the middle": (
        lambda whole: whole.replace(b"intent", b"intenu"),
        "line 3 of the journal is damaged",
    ),
    "without its first line": (without_line(1), "lines of the journal are missing"),
    "without a line in the middle": (without_line(3), "lines of the journal are missing"),
    "without its last line": (without_line(4), "ends at line 3, and 4 were written"),
    "torn in a line that was committed": (lambda whole: whole[:-3], "ends at line 3, and 4 were written"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_not_all_that_was_written_in_this_boot_is_doubted(tmp_path: Path, name: str) -> None:
    damage, says = DAMAGES[name]
    _, log = written(tmp_path / "journal", *RECORDS)
    (tmp_path / "journal").write_bytes(damage(appended(tmp_path / "journal")))
    journal = Journal(str(tmp_path / "journal"), log.append)
    journal.load()
    assert says in journal.doubt and log
    another_boot(tmp_path / "journal")
    journal.load()
    assert journal.doubt == ""


def test_a_journal_that_is_gone_is_doubted_by_its_mark(tmp_path: Path) -> None:
    journal, log = written(tmp_path / "journal", *RECORDS)
    (tmp_path / "journal").unlink()
    assert journal.load() == [] and "not there any more" in journal.doubt and "not there" in log[0]


@pytest.mark.parametrize("mark", [None, b"", bytes(160), b"00000000 []"])
def test_a_journal_without_its_mark_is_doubted(tmp_path: Path, mark: bytes | None) -> None:
    journal, _ = written(tmp_path / "journal", *RECORDS)
    path = tmp_path / "journal.mark"
    path.unlink() if mark is None else path.write_bytes(mark)
    assert journal.load() == RECORDS and "mark" in journal.doubt


def test_an_older_copy_that_was_put_back_is_doubted(tmp_path: Path) -> None:
    journal, _ = written(tmp_path / "journal", *RECORDS)
    before = (tmp_path / "journal").read_bytes()
    journal.append("forget", "j-a.1")
    journal.commit()
    journal.sync()
    after = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(before)
    assert journal.load() and "ends at line 4, and 5 were written" in journal.doubt
    (tmp_path / "journal").write_bytes(after)
    assert journal.load() and not journal.doubt
    journal.rewrite(RECORDS)
    (tmp_path / "journal").write_bytes(after)
    assert journal.load() and "older copy" in journal.doubt


def test_a_supervisor_that_is_killed_between_any_two_steps_leaves_no_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ("write", "fsync", "rename", "pwrite", "fdatasync", "open", "close")
    for stop_at in range(1, 40):
        place = tmp_path / str(stop_at)
        place.mkdir()
        journal, log = written(place / "journal", *RECORDS)
        left = [stop_at]

        def die_at(name: str, left: list[int] = left) -> Callable[..., Any]:
            real = getattr(os, name)

            def step(*args: Any) -> Any:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt  # nothing that was written after this is there
                return real(*args)

            return step

        with monkeypatch.context() as patched:
            for name in steps:
                patched.setattr(os, name, die_at(name))
            patched.setattr(os, "unlink", lambda _: None)
            with contextlib.suppress(KeyboardInterrupt):
                journal.append("forget", "j-a.1")
                journal.commit()
                journal.sync()
                journal = Journal(str(place / "journal"), log.append)  # the next supervisor
                journal.load()
                journal.rewrite(RECORDS)
                journal.append("forget", "j-a.1")
                journal.commit()
        again = Journal(str(place / "journal"), log.append)
        assert again.load()[:3] == RECORDS and again.doubt == "", stop_at


def test_an_intent_that_a_patient_write_left_is_written_before_the_next_sync_begins(tmp_path: Path) -> None:
    journaled: JournaledJobs[str] = JournaledJobs(str(tmp_path / "journal"), Leases(), print)
    journaled.read()
    assert journaled.write()
    mark = journaled.syncs.mark
    journaled.journal.append("ahead", "j-b.1", 0.0, 5.0, [], 0.0, 0.0, {}, None)
    assert journaled.write(patient=True) and b"ahead" not in appended(tmp_path / "journal")
    journaled.begin_sync([])
    journaled.end_sync()  # where the disk is slow, it is under way
    assert journaled.syncs.is_durable(mark) and b"ahead" in appended(tmp_path / "journal")


def test_ends_that_wait_for_others_are_neither_written_nor_told(tmp_path: Path) -> None:
    journaled: JournaledJobs[str] = JournaledJobs(str(tmp_path / "journal"), Leases(), print)
    journaled.read()
    assert journaled.write()
    job = journaled.jobs["j-a.1"] = Job("j-a.1", outcome={"cause": "exited", "code": 0})
    journaled.syncs.over.append(job)
    journaled.journal.append("start", "j-b.1", 7, 1, 2)
    assert journaled.write(ends=False)
    journaled.begin_sync(["a launch"])
    journaled.end_sync()  # where the disk is slow, it is under way
    assert journaled.syncs.take_released() == ([], [], ["a launch"], []) and journaled.syncs.over == [job]
    written = (tmp_path / "journal").read_bytes()
    assert b'"start"' in written and b'"exit"' not in written
    assert journaled.write() and journaled.syncs.take_released() == ([], [], [], [])
    journaled.begin_sync([])
    journaled.end_sync()  # where the disk is slow, it is under way
    assert journaled.syncs.take_released().ends == [job] and journaled.syncs.over == []
    assert b'"exit"' in (tmp_path / "journal").read_bytes()
