"""What a node sends is compared with what was asked, and written beneath one directory only."""

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.coordinator.client import downloads
from distributed_grid.coordinator.client.downloads import BadAnswer, Folder, Listed, NotWritten, Rules, compared
from distributed_grid.coordinator.client.output import RETRY_SECONDS, TRIES
from distributed_grid.coordinator.client.requests import Pause, Steps, advance
from distributed_grid.coordinator.client.session import GridUnavailable
from distributed_grid.protocol.errors import GridError
from distributed_grid.protocol.globs import Globs, Match
from distributed_grid.protocol.jobs import JobSpec, JobView, Request, State
from distributed_grid.protocol.messages import FileData, FileEntry, Files, Jobs
from distributed_grid.protocol.resources import Resources
from distributed_grid.protocol.text import to_wire
from tests import depth

NODE = "lab3"


def listed(globs: list[str], *entries: FileEntry) -> Listed:
    return compared(Files(id=1, files=entries), globs, NODE)


def bring(into: Path, path: str, content: bytes = b"new", glob: str = "", mode: int = 0o644, **rules: Any) -> None:
    """Write one file as a node sends it. It was submitted now, if nothing else is said."""
    entry = FileEntry(path, len(content), mode)
    rules.setdefault("since", time.time() + 1)
    with Folder(into) as folder:
        (file,) = listed([glob or path], entry).files
        with folder.begin(file, Rules(**rules), NODE) as writer:
            while writer.wanted:
                data = content[writer.offset : writer.offset + writer.wanted]
                writer.receive(FileData(id=1, data=data, end=writer.offset + len(data) == len(content)))
            writer.finish()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def asked(steps: Steps[Any], answer: Any = None) -> Any:
    """The next message that a request sends, and how long it paused before."""
    paused, step = 0.0, advance(steps, answer, None)
    while isinstance(step, Pause):
        paused, step = paused + step.seconds, advance(steps, None, None)
    return step, paused


# --- a node that is away ----------------------------------------------------------------------------------------------

AWAY = "unavailable: node lab3 is not connected"
JOB = JobView(id="j-a", user="ann", spec=JobSpec(("x",)), request=Request(Resources()), state=State.ENDED, submitted=0)


def test_files_of_a_node_that_is_away_are_asked_for_again_and_come(tmp_path: Path) -> None:
    steps = downloads.fetch("j-a", "a.txt", into=tmp_path)
    asked(steps)
    wanted, _ = asked(steps, Jobs(1, (JOB,)))
    assert asked(steps, Files(1, error=AWAY)) == (wanted, RETRY_SECONDS)
    part, _ = asked(steps, Files(1, (FileEntry("a.txt", 3),)))
    assert asked(steps, FileData(1, error=AWAY)) == (part, RETRY_SECONDS)
    asked(steps, FileData(1, b"new", end=True))
    assert (tmp_path / "a.txt").read_bytes() == b"new"


def test_a_node_that_stays_away_is_given_up_and_one_that_says_no_is_not_asked_again() -> None:
    for error, tries in ((AWAY, 1 + TRIES), ("gone: nothing is kept of it", 1)):
        steps = downloads.files("j-a")
        asked(steps)
        asked(steps, Jobs(1, (JOB,)))
        for _ in range(tries - 1):
            asked(steps, Files(1, error=error))
        with pytest.raises(GridUnavailable) as caught:
            asked(steps, Files(1, error=error))
        assert caught.value.why == error


# --- the list ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [".bashrc", "Makefile", ".git/hooks/pre-commit", "sub/result.txt", "../result.txt", "/etc/passwd", "a/../x", "a//b"]
    + ["", ".", "result.txt/", "a\0b", "x" * 256],
)
def test_what_was_not_asked_for_is_an_error_that_names_the_node(path: str) -> None:
    with pytest.raises(BadAnswer, match=NODE):
        listed(["result.txt"], FileEntry("result.txt", 1), FileEntry(path, 1))


@pytest.mark.parametrize("path", ["../up", "/etc/x", "a/../../b"])
def test_no_pattern_lets_a_path_lead_out(path: str) -> None:
    with pytest.raises(BadAnswer):
        listed(["**", "*"], FileEntry(path, 1))


def test_a_path_in_raw_bytes_is_judged_by_its_bytes() -> None:
    with pytest.raises(BadAnswer):
        listed(["result.txt"], FileEntry("result.txt", 1, raw=b".bashrc"))
    with pytest.raises(BadAnswer):
        listed(["**"], FileEntry("a", 1, raw=b"../a"))


@pytest.mark.parametrize("entries", [[FileEntry("a", -1)], [FileEntry("a", 1), FileEntry("a", 1)]])
def test_a_list_that_makes_no_sense_is_an_error(entries: list[FileEntry]) -> None:
    with pytest.raises(BadAnswer):
        listed(["*"], *entries)


def test_the_number_of_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_ENTRIES", 2)
    with pytest.raises(BadAnswer) as refused:
        listed(["*"], *(FileEntry(name, 1) for name in "abc"))
    assert refused.value.why == "it lists 3 files, and 2 are the most"


def test_the_number_of_directories_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_ENTRIES", 10)
    assert len(listed(["**"], FileEntry("a/" * 10 + "x", 0), FileEntry("a/" * 10 + "y", 0)).files) == 2
    with pytest.raises(BadAnswer) as refused:
        listed(["**"], FileEntry("a/" * 10 + "x", 0), FileEntry("b/x", 0))
    assert refused.value.why == "what it lists lies in more than 10 directories"


def test_more_than_the_disk_has_room_for_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with Folder(tmp_path) as folder, pytest.raises(GridError, match="node lab3 has"):
        folder.check_room(listed(["*"], FileEntry("a", 1 << 50), FileEntry("b", 1)))
    assert names(tmp_path) == []


def test_a_disk_of_unknown_size_is_tried() -> None:
    assert os.statvfs("/proc").f_blocks == 0
    with Folder(Path("/proc")) as folder:
        folder.check_room(listed(["*"], FileEntry("a", 1)))


def test_hidden_files_come_only_by_a_pattern_that_names_the_dot_and_are_told() -> None:
    found = listed(["out"], FileEntry("out/a", 1), FileEntry("out/.git/hooks/pre-commit", 1))
    assert [file.path for file in found.files] == ["out/a"]
    assert found.note() == (
        "1 file is left out: out/.git/hooks/pre-commit; hidden files and configurations of the grid come by a pattern "
        "that names them, such as --get 'out/.*'"
    )
    both = listed(["out", "out/.*"], FileEntry("out/a", 1), FileEntry("out/.zarray", 1))
    assert len(both.files) == 2 and both.note() == ""


def test_a_wildcard_brings_no_configuration_that_the_next_command_would_read() -> None:
    entries = [FileEntry("grid.yaml", 1), FileEntry("config/my-cluster.yaml", 1), FileEntry("config/mine.yaml", 1)]
    found = listed(["**"], *entries)
    assert [file.path for file in found.files] == ["config/mine.yaml"]
    assert found.left_out == ("grid.yaml", "config/my-cluster.yaml") and "--get 'grid.yaml'" in found.note()
    assert len(listed(["grid.yaml", "config"], *entries).files) == 2


# --- the data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        FileData(id=1, data=b"toolong"),
        FileData(id=1, data=b"ab", end=True),
        FileData(id=1, data=b""),
        FileData(id=1, data=b"", end=True),
        FileData(id=1, data=b"a", hole=2),
        FileData(id=1, hole=2, end=True),
    ],
    ids=["more", "less", "nothing", "nothing at the end", "bytes and a hole", "a hole and no more"],
)
def test_data_that_does_not_fit_the_list_is_an_error_and_leaves_nothing(tmp_path: Path, answer: FileData) -> None:
    (file,) = listed(["a"], FileEntry("a", 3)).files
    with Folder(tmp_path) as folder, pytest.raises(BadAnswer, match=NODE):  # noqa: SIM117
        with folder.begin(file, Rules(time.time()), NODE) as writer:
            writer.receive(answer)
            writer.finish()
    assert names(tmp_path) == []


def test_a_hole_is_brought_as_one(tmp_path: Path) -> None:
    size = 10 << 30
    (file,) = listed(["a"], FileEntry("a", size)).files
    with Folder(tmp_path) as folder, folder.begin(file, Rules(time.time()), NODE) as writer:
        writer.receive(FileData(id=1, data=b"x"))
        writer.receive(FileData(id=1, hole=size - 2))
        writer.receive(FileData(id=1, data=b"y", end=True))
        assert not writer.wanted
        writer.finish()
    seen = (tmp_path / "a").stat()
    assert seen.st_size == size and seen.st_blocks * 512 < 1 << 20


def test_zeros_that_are_brought_take_no_room(tmp_path: Path) -> None:
    bring(tmp_path, "a", bytes(1 << 20) + b"x")
    assert (tmp_path / "a").stat().st_blocks * 512 < 1 << 20
    assert (tmp_path / "a").read_bytes() == bytes(1 << 20) + b"x"


def test_a_hole_beyond_what_was_listed_brings_no_more_than_that(tmp_path: Path) -> None:
    (file,) = listed(["a"], FileEntry("a", 3)).files
    with Folder(tmp_path) as folder, folder.begin(file, Rules(time.time()), NODE) as writer:
        writer.receive(FileData(id=1, hole=1 << 60, end=True))
        writer.finish()
    assert (tmp_path / "a").read_bytes() == bytes(3)


def test_a_file_that_grows_on_the_node_is_brought_as_it_was_listed(tmp_path: Path) -> None:
    (file,) = listed(["log"], FileEntry("log", 3)).files
    with Folder(tmp_path) as folder, folder.begin(file, Rules(time.time()), NODE) as writer:
        assert writer.wanted == 3
        writer.receive(FileData(id=1, data=b"abc", end=False))
        assert writer.wanted == 0
        writer.finish()
    assert (tmp_path / "log").read_bytes() == b"abc"


def test_a_cut_transfer_leaves_the_old_file_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (file,) = listed(["a"], FileEntry("a", 6)).files
    with Folder(tmp_path) as folder, pytest.raises(ConnectionError):  # noqa: SIM117
        with folder.begin(file, Rules(time.time() + 1), NODE) as writer:
            writer.receive(FileData(id=1, data=b"new"))
            raise ConnectionError
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


# --- where it is written ----------------------------------------------------------------------------------------------


def test_files_come_with_their_directories(tmp_path: Path) -> None:
    bring(tmp_path / "new", "out/deep/a")
    assert (tmp_path / "new/out/deep/a").read_bytes() == b"new"


@pytest.mark.parametrize("force", [False, True])
def test_a_link_in_the_destination_leads_nowhere(tmp_path: Path, force: bool) -> None:
    here, outside = tmp_path / "here", tmp_path / "outside"
    here.mkdir()
    outside.mkdir()
    (here / "out").symlink_to(outside)
    (here / "in").symlink_to("real")
    (here / "real").mkdir()
    for path in ("out/a", "in/a"):
        with pytest.raises(NotWritten, match="is not written") as refused:
            bring(here, path, force=force)
        assert refused.value.reason.endswith("is a link here")
    assert names(outside) == names(here / "real") == []


def test_a_file_that_is_a_link_is_replaced_by_force_only_and_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "a").symlink_to("target")
    with pytest.raises(NotWritten):
        bring(tmp_path, "a")
    bring(tmp_path, "a", force=True)
    assert (tmp_path / "target").read_text() == "precious"
    assert not (tmp_path / "a").is_symlink() and (tmp_path / "a").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o111 == 0


def test_a_directory_or_fifo_with_the_name_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "b")
    for path, force in (("a", False), ("a", True), ("b", False)):
        with pytest.raises(NotWritten):
            bring(tmp_path, path, force=force)
    assert (tmp_path / "a").is_dir() and (tmp_path / "b").is_fifo() and names(tmp_path) == ["a", "b"]


def test_a_directory_that_is_exchanged_after_it_was_opened_gets_nothing(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (file,) = listed(["a"], FileEntry("a", 0)).files
    with Folder(here) as folder:
        here.rename(tmp_path / "moved")
        here.symlink_to("/nowhere")
        with folder.begin(file, Rules(time.time()), NODE) as writer:
            writer.finish()
    assert names(tmp_path / "moved") == ["a"]


# --- what is here already ---------------------------------------------------------------------------------------------


def test_a_file_that_changed_since_the_submission_stays_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    since = time.time() - 10
    with pytest.raises(NotWritten, match="is not written") as refused:
        bring(tmp_path, "a", since=since)
    assert refused.value.reason == "it changed here since the job was submitted"
    assert (tmp_path / "a").read_text() == "mine" and names(tmp_path) == ["a"]
    bring(tmp_path, "a", since=since, force=True)
    assert (tmp_path / "a").read_text() == "new"


def test_an_old_file_that_was_moved_here_since_the_submission_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    os.utime(tmp_path / "elsewhere", (1, 1))
    since = time.time() - 10
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    with pytest.raises(NotWritten):
        bring(tmp_path, "a", since=since)


def test_a_file_that_is_older_than_the_job_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    bring(tmp_path, "a", since=time.time() + 1)
    assert (tmp_path / "a").read_text() == "new"


def test_a_file_that_appears_during_the_transfer_stays(tmp_path: Path) -> None:
    (file,) = listed(["a"], FileEntry("a", 3)).files
    with Folder(tmp_path) as folder, pytest.raises(NotWritten):  # noqa: SIM117
        with folder.begin(file, Rules(time.time() - 1), NODE) as writer:
            writer.receive(FileData(id=1, data=b"new", end=True))
            (tmp_path / "a").write_text("mine")
            writer.finish()
    assert (tmp_path / "a").read_text() == "mine"


def test_the_same_content_again_is_no_refusal_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("new")
    before = (tmp_path / "a").stat()
    bring(tmp_path, "a", since=time.time() - 10)
    after = (tmp_path / "a").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    (tmp_path / "a").write_text("nEw")
    with pytest.raises(NotWritten):
        bring(tmp_path, "a", since=time.time() - 10)


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "executable", "there"),
    [
        (0o755, False, 0o644),
        (0o755, True, 0o755),
        (0o7777, True, 0o755),
        (0o6777, False, 0o644),
        (0o600, False, 0o600),
        (0o000, False, 0o400),
    ],
)
def test_rights_are_those_that_were_asked_for(tmp_path: Path, mode: int, executable: bool, there: int) -> None:
    before = os.umask(0o022)
    try:
        bring(tmp_path, "a", mode=mode, executable=executable)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == there


def test_a_file_that_is_replaced_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("old")
    (tmp_path / "tool").chmod(0o750)
    bring(tmp_path, "tool", mode=0o4777)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o750


# --- whatever a node sends --------------------------------------------------------------------------------------------

PARTS = ["a", "b", "link", "file", "dir", "..", ".", "", ".git", ".bashrc", "\udcff", "a\nb", "~", "-x", "x" * 255]
PATHS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join) | st.sampled_from(
    ["/etc/x", "//a", "a/"]
)
GLOBS = st.lists(
    st.sampled_from(["**", "*", "a", "a/**", "dir/", "**/.git", ".bashrc", "link/*", "file", "b/*/a"]),
    min_size=1,
    max_size=3,
)


@settings(max_examples=depth.tries(300, 80), deadline=None)
@given(st.lists(PATHS, max_size=5), GLOBS, st.booleans(), st.integers(0, 0o7777), st.booleans())
def test_whatever_a_node_lists_only_what_was_asked_for_is_written_and_only_here(
    paths: list[str], globs: list[str], force: bool, mode: int, as_bytes: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        here, outside = root / "here", root / "outside"
        (here / "dir").mkdir(parents=True)
        outside.mkdir()
        (outside / "a").write_text("precious")
        (here / "link").symlink_to(outside)
        (here / "file").write_text("mine")
        entries = []
        for path in paths:
            text, raw = to_wire(path)
            entries.append(FileEntry("shown", 3, mode, path.encode(errors="surrogateescape")) if as_bytes and path else
                           FileEntry(text, 3, mode, raw))  # fmt: skip
        with contextlib.suppress(GridError):
            found = listed(globs, *entries)
            with Folder(here) as folder:
                for file in found.files:
                    with contextlib.suppress(NotWritten), folder.begin(file, Rules(1.0, force), NODE) as writer:
                        writer.receive(FileData(id=1, data=b"new", end=True))
                        writer.finish()
        assert sorted(os.listdir(root)) == ["here", "outside"] and os.listdir(outside) == ["a"]
        assert (outside / "a").read_text() == "precious" and os.listdir(here / "dir") is not None
        for at, _, names in os.walk(here):
            for one in names:
                path = os.path.relpath(os.path.join(at, one), here)
                seen = os.lstat(os.path.join(at, one))
                if stat.S_ISREG(seen.st_mode) and (path != "file" or (here / "file").read_text() != "mine"):
                    assert Globs(globs).match(path) is Match.YES and path in paths
                    assert not seen.st_mode & 0o7111
