"""The notice that a job gets before its place is taken back, whatever lies where it is to go."""

import json
import os
import stat
from pathlib import Path

import pytest

from distributed_grid.agent.launch import workdir
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import Cause
from distributed_grid.protocol.messages import Stop

ID = "j-a.1"


def stop(cause: Cause = Cause.RECALLED, text: str = "the owner is back") -> Stop:
    return Stop(allocation=ID, cause=cause, text=text, grace=7.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := workdir.folder(tmp_path, ID)).mkdir(parents=True)
    return made


def test_the_notice_says_why_and_how_long_and_everybody_can_read_it_and_list_none(tmp_path: Path, folder: Path) -> None:
    workdir.write_recall(tmp_path, stop(), 7.0)
    path = Path(workdir.recall_path(tmp_path, ID))
    said = json.loads(path.read_bytes())
    assert (said["cause"], said["reason"], said["seconds"]) == ("recalled", "the owner is back", 7.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o711
    assert os.listdir(path.parent) == [ID]


def test_the_first_notice_stays(tmp_path: Path, folder: Path) -> None:
    workdir.write_recall(tmp_path, stop(), 7.0)
    workdir.write_recall(tmp_path, stop(text="again"), 7.0)
    assert json.loads(Path(workdir.recall_path(tmp_path, ID)).read_bytes())["reason"] == "the owner is back"


def test_who_is_not_to_be_run_again_gets_none_and_neither_does_what_never_ran(tmp_path: Path, folder: Path) -> None:
    workdir.write_recall(tmp_path, stop(Cause.CANCELLED), 7.0)
    workdir.write_recall(tmp_path, Stop(allocation="j-b.1", cause=Cause.RECALLED), 7.0)
    assert not (tmp_path / "recalls").exists()
    assert os.listdir(folder) == []
    with pytest.raises(BadValue):
        workdir.write_recall(tmp_path, Stop(allocation="..", cause=Cause.RECALLED), 7.0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["fifo", "link", "directory"])
@pytest.mark.usefixtures("folder")
def test_what_a_job_puts_in_its_place_is_not_followed_and_not_waited_for(tmp_path: Path, what: str) -> None:
    where = Path(workdir.recall_path(tmp_path, ID))
    (tmp_path / "own.crt").write_text("certificate")
    workdir.make_recalls(tmp_path)
    match what:
        case "fifo":
            os.mkfifo(where)
        case "link":
            where.symlink_to(tmp_path / "own.crt")
        case "directory":
            where.mkdir()
    workdir.write_recall(tmp_path, stop(), 7.0)
    assert (tmp_path / "own.crt").read_text() == "certificate"
    assert os.listdir(tmp_path / "recalls") == [ID]


def test_a_notice_is_forgotten_with_its_allocation(tmp_path: Path, folder: Path) -> None:
    workdir.write_recall(tmp_path, stop(), 7.0)
    workdir.remove_recall(tmp_path, ID)
    workdir.remove_recall(tmp_path, ID)
    assert os.listdir(tmp_path / "recalls") == []
