"""The state directory of a service: made, or taken as it is, and refused with what to do where it cannot be used."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_grid.protocol.errors import GridError
from distributed_grid.runtime.service import prepare


def test_a_state_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("kept")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "elsewhere").symlink_to("nowhere")
    prepare(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blobs", "elsewhere", "journal"]
    assert (tmp_path / "journal").read_text() == "kept"


@pytest.mark.parametrize("linked", [False, True])
def test_a_fifo_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path, linked: bool) -> None:
    state = tmp_path / "state"
    prepare(state)
    os.mkfifo(tmp_path / "fifo" if linked else state / "journal")
    if linked:
        (state / "journal").symlink_to(tmp_path / "fifo")
    with pytest.raises(GridError) as refused:
        prepare(state)
    assert refused.value.what == f"{state / 'journal'} is no file"
    assert refused.value.why.startswith("it is a FIFO") and "remove it" in refused.value.hint


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GridError, match="cannot be written"):
        prepare(tmp_path / "file")


@pytest.mark.parametrize("below", [".", "state"])
def test_on_a_full_disk_it_is_said_to_make_room(
    tmp_path: Path, few_inodes: Callable[[Path, int], Path], below: str
) -> None:
    full = few_inodes(tmp_path / "disk", 1)
    with pytest.raises(GridError, match="cannot be written") as refused:
        prepare(full / below)
    assert (refused.value.why, "df -i" in refused.value.hint) == ("No space left on device", True)


def test_a_path_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="cannot be used") as refused:
        prepare(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    assert "UTF-8" in refused.value.why and list(tmp_path.iterdir()) == []
