"""The start of a job that is expected to be short is told with its end, or by itself where the job lasts; and it is
noted at once, for the next supervisor."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.agent.walls import spawner, wire
from tests.agent.walls.test_spawner_prepared import Told
from tests.grid_fixture import until


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path)
    yield made
    made.close()


def spawn(told: Told, *argv: str, short: bool) -> None:
    with open(os.devnull, "wb") as nowhere:
        told.order("spawn", "j1", *argv, fds=(nowhere.fileno(), nowhere.fileno()), short=short)


def reports(told: Told) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found or found[-1].get("left", True):
        found.append(wire.receive(told.channel)[0])
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short on an idle machine lasts on a busy one."""
    monkeypatch.setattr(spawner, "_PATIENCE", 60.0)


def test_a_short_jobs_start_is_told_with_its_end(patient: None, told: Told) -> None:
    spawn(told, "true", short=True)
    (only,) = reports(told)
    assert (only["op"], only["status"], only["left"]) == ("ended", 0, False)
    assert only["pid"] == told.noted()[2] > 0


def test_the_start_of_one_that_lasts_is_told_by_itself_and_once(told: Told) -> None:
    spawn(told, "sleep", "0.3", short=True)
    first, last = reports(told)
    assert (first["op"], last["op"]) == ("spawned", "ended")
    assert "pid" not in last


def test_the_start_of_another_job_is_told_at_once(told: Told) -> None:
    spawn(told, "true", short=False)
    assert [one["op"] for one in reports(told)][0] == "spawned"


def test_a_job_is_noted_before_it_has_a_process(told: Told) -> None:
    _, wrote = told.run("j1", "cat", str(told.folder / "note"))
    job, status, pid, *_ = json.loads(wrote)
    assert (job, status, pid) == ("j1", None, 0)


def test_what_cannot_be_noted_gets_no_process(tmp_path: Path) -> None:
    with closing(Told(tmp_path, os.O_RDONLY)) as told:
        said, wrote = told.run("j1", "echo", "ran")
    assert (said["op"], said["cause"], wrote) == ("failed", "disk-failed", "")


def test_a_short_job_is_noted_while_it_runs(told: Told) -> None:
    spawn(told, "sleep", "0.5", short=True)
    until(lambda: told.noted() and told.noted()[2], "it is noted")
    job, status, pid, before, after, *_ = told.noted()
    assert (job, status) == ("j1", None)
    assert os.path.exists(f"/proc/{pid}") and before <= after
    assert wire.receive(told.channel)[0]["pid"] == pid
    reports(told)
    assert told.noted()[:3] == ["j1", 0, pid]
