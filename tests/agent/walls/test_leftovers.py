"""What a user leaves in everybody's directories is removed; what has not changed is not looked through again."""

import os
import time
from pathlib import Path

import pytest

from distributed_grid.agent.walls.leftovers import Leftovers

LATER = 10**19  # nanoseconds


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The directories that were listed, by their descriptors."""
    found: list[int] = []
    real = os.scandir

    def scandir(above: int) -> object:
        found.append(above)
        return real(above)

    monkeypatch.setattr(os, "scandir", scandir)
    return found


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is long after anything has changed."""
    monkeypatch.setattr(time, "time_ns", lambda: LATER)


def test_what_is_the_users_goes_and_a_name_that_is_spared_stays(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").touch()
    (tmp_path / "grid-r-1").touch()
    Leftovers(os.getuid()).clear((str(tmp_path),), spare="grid-r-")
    assert os.listdir(tmp_path) == ["grid-r-1"]


def test_what_is_another_users_stays(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Leftovers(os.getuid() + 1).clear((str(tmp_path),))
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_has_not_changed_is_listed_once(tmp_path: Path, listed: list[int], settled: None) -> None:
    found = Leftovers(os.getuid())
    for _ in range(3):
        found.clear((str(tmp_path),))
    assert len(listed) == 1
    (tmp_path / "file").touch()
    found.clear((str(tmp_path),))
    assert (len(listed), os.listdir(tmp_path)) == (2, [])


def test_a_directory_that_changed_a_moment_ago_is_listed_again(tmp_path: Path, listed: list[int]) -> None:
    """What is made in it in the same tick of the kernel's clock would not show."""
    (tmp_path / "file").touch()
    found = Leftovers(os.getuid() + 1)
    found.clear((str(tmp_path),))
    found.clear((str(tmp_path),))
    assert len(listed) == 2


def test_a_directory_in_which_something_is_spared_is_listed_again(
    tmp_path: Path, listed: list[int], settled: None
) -> None:
    (tmp_path / "grid-r-1").touch()
    found = Leftovers(os.getuid())
    found.clear((str(tmp_path),), spare="grid-r-")
    found.clear((str(tmp_path),))
    assert (len(listed), os.listdir(tmp_path)) == (2, [])


def test_a_directory_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    Leftovers(os.getuid()).clear((str(tmp_path / "missing"), str(tmp_path)))
