"""Which walls a node can build is found by building them, and why not stronger ones is said."""

import os
from pathlib import Path

import pytest

from distributed_grid.agent.walls import available, enclosure, forkserver
from distributed_grid.agent.walls.enclosure import LANDLOCK, NAMESPACE, NONE, USER

LEVELS = (USER, NAMESPACE, LANDLOCK, NONE)


def test_the_strongest_walls_are_found_with_a_reason_for_each_stronger_kind(tmp_path: Path) -> None:
    found = available.survey(tmp_path)
    stronger = LEVELS[: LEVELS.index(found.walls)]
    assert tuple(found.why) == stronger and all(found.why.values())
    assert available.why_not(found.walls, tmp_path) == ""
    assert {level: available.why_not(level, tmp_path) for level in stronger} == found.why


def test_each_level_is_taken_where_all_stronger_ones_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "privileged", lambda: False)
    assert available.survey(tmp_path).walls != USER
    monkeypatch.setattr(available, "_no_namespace", lambda state_dir: "none can be made")
    monkeypatch.setattr(enclosure, "why_no_landlock", lambda state_dir: "")
    assert available.survey(tmp_path).walls == LANDLOCK
    monkeypatch.setattr(enclosure, "why_no_landlock", lambda state_dir: "this kernel has none")
    found = available.survey(tmp_path)
    assert found.walls == NONE and found.why[NAMESPACE] == "none can be made"
    assert found.why[LANDLOCK] == "this kernel has none" and "takes root, or a service" in found.why[USER]


def test_jobs_of_other_users_need_a_way_to_their_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "privileged", lambda: True)
    closed = tmp_path / "closed"
    (closed / "state").mkdir(parents=True)
    closed.chmod(0o700)
    said = available.why_not(USER, closed / "state")
    assert " is closed to other users, and the directories of jobs are below it" in said


def test_no_walls_can_always_be_built(tmp_path: Path) -> None:
    assert available.why_not(NONE, tmp_path) == ""


def test_what_is_tried_is_tried_in_a_child_and_its_error_is_told() -> None:
    def fails() -> None:
        os.environ["GRID_TRIED"] = "1"
        raise PermissionError(1, "Operation not permitted")

    assert available._tried(fails) == "Operation not permitted" and "GRID_TRIED" not in os.environ
    assert available._tried(lambda: None) == ""
