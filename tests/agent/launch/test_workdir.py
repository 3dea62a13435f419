"""What an allocation has on the node: its record, and the environment of its job."""

import os
import shutil
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distributed_grid.agent.gpus.base import cuda
from distributed_grid.agent.launch import workdir
from distributed_grid.agent.launch.workdir import Place, SlotIndex
from distributed_grid.protocol.errors import BadValue
from distributed_grid.protocol.jobs import PASSED_ON, JobSpec
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import GpuShare, Grant

ID = "j-abc.1"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (made := workdir.folder(tmp_path, ID)).mkdir(parents=True)
    return made


def launch(grant: Grant | None = None, **env: str) -> Launch:
    spec = JobSpec(argv=("true",), env=env)
    return Launch(allocation=ID, job="j-abc", user="u", epoch=1, grant=grant or Grant(), spec=spec)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "/etc", ".hidden", "a\0b", "A", "x" * 200])
def test_what_is_no_id_becomes_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadValue):
        workdir.folder(tmp_path, name)


class Clock:
    """By which making a directory takes as long as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.took = 0.001

    def __call__(self) -> float:
        self.now += self.took / 2
        return self.now


@pytest.fixture(params=["made where it stays", "made elsewhere and renamed"])
def folders(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> workdir.Folders:
    elsewhere = "elsewhere" in request.param
    monkeypatch.setattr(workdir, "is_ext4_without_journal", lambda _: elsewhere)
    monkeypatch.setattr(workdir, "_spread", lambda _: True)
    return workdir.Folders(tmp_path)


def test_a_folder_is_made_once_and_for_the_agent_alone(tmp_path: Path, folders: workdir.Folders) -> None:
    folders.make(ID)
    (workdir.folder(tmp_path, ID) / "stdout").touch()
    folders.make(ID)
    folders.make("j-b.1")
    assert os.listdir(workdir.folder(tmp_path, ID)) == ["stdout"]
    assert stat.S_IMODE(workdir.folder(tmp_path, ID).stat().st_mode) == 0o700
    assert {*os.listdir(tmp_path / "allocs")} == {ID, "j-b.1"}
    assert not [*tmp_path.glob("folders/*/*")]


def test_folders_are_made_though_somebody_removed_what_was_there(tmp_path: Path, folders: workdir.Folders) -> None:
    folders.make(ID)
    for path in tmp_path.iterdir():
        shutil.rmtree(path)
    folders.make(ID)
    assert workdir.folder(tmp_path, ID).is_dir()


def test_where_room_is_scarce_it_is_tried_whether_there_is_any(
    tmp_path: Path, folders: workdir.Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdir, "_SCARCE", 1 << 62)
    folders.make(ID)
    assert os.listdir(workdir.folder(tmp_path, ID)) == []
    monkeypatch.setattr(workdir, "_ROOM", 1 << 62)
    with pytest.raises(OSError, match="No space|too large"):
        folders.make("j-b.1")
    assert os.listdir(workdir.folder(tmp_path, "j-b.1")) == []


def test_no_path_is_made_of_what_is_no_id(folders: workdir.Folders) -> None:
    with pytest.raises(BadValue):
        folders.make("../x")


def test_another_place_is_taken_once_the_one_there_is_has_become_dear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workdir, "is_ext4_without_journal", lambda _: True)
    monkeypatch.setattr(workdir, "_spread", lambda _: True)
    clock = Clock()
    folders = workdir.Folders(tmp_path, clock)

    def places(took: float, *numbers: int) -> list[str]:
        clock.took = took
        for number in range(*numbers):
            folders.make(f"j{number}.1")
        return os.listdir(tmp_path / "folders")

    first = places(0.001, 100)
    assert places(0.0015, 100, 200) == first, "that is within what differs anyway"
    assert places(0.010, 200, 207) == first, "a few may be slow for any reason"
    assert places(0.010, 207, 220) != first
    assert len(os.listdir(tmp_path / "folders")) == 1, "of a place that was left nothing stays"
    assert len(os.listdir(tmp_path / "allocs")) == 220


def test_what_a_killed_agent_left_half_made_is_removed_and_a_filesystem_that_cannot_spread_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folders" / "7" / ID).mkdir(parents=True)
    monkeypatch.setattr(workdir, "is_ext4_without_journal", lambda _: False)
    workdir.Folders(tmp_path).make(ID)
    assert {*os.listdir(tmp_path)} == {"allocs"} and os.listdir(tmp_path / "allocs") == [ID]


def test_a_filesystem_is_asked_for_its_journal() -> None:
    assert not workdir.is_ext4_without_journal("/proc")


# --- where files are --------------------------------------------------------------------------------------------------


AWKWARD = Place("s2", 'a "b"\n\u2028é', "/place/with space")


def test_where_the_files_of_a_job_are_is_known_to_the_next_agent(tmp_path: Path) -> None:
    index = SlotIndex(tmp_path)
    index.note(ID, Place("s1", "ann"))
    index.note("j-b.1", AWKWARD)
    again = SlotIndex(tmp_path)
    assert (again.find(ID), again.find("j-b.1"), again.find("j-c.1")) == (Place("s1", "ann"), AWKWARD, Place())
    assert again.in_use() == {"s1", "s2"} and again.slot(ID) == "s1"


def test_a_place_that_is_noted_again_takes_no_second_line_and_another_one_counts(tmp_path: Path) -> None:
    index = SlotIndex(tmp_path)
    for slot in ("s1", "s1", "s2"):
        index.note(ID, Place(slot))
    assert len((tmp_path / "slots").read_text().splitlines()) == 2
    assert SlotIndex(tmp_path).slot(ID) == "s2"


def test_a_line_that_was_cut_or_that_an_earlier_release_wrote_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "slots").write_text(f'old.1 s1\n{ID} s2 ["ann", ""]\nj-c.1 s3 ["an')
    index = SlotIndex(tmp_path)
    assert (index.slot("old.1"), index.find(ID), index.slot("j-c.1")) == ("s1", Place("s2", "ann"), "")


def test_what_is_forgotten_leaves_the_file_in_time_and_what_comes_then_is_noted(tmp_path: Path) -> None:
    index = SlotIndex(tmp_path)
    for number in range(2100):
        index.note(f"j{number}.1", Place("s1"))
        index.forget(f"j{number}.1")
    index.note(ID, Place("s1"))
    assert len((tmp_path / "slots").read_text().splitlines()) < 1100
    assert SlotIndex(tmp_path).slot(ID) == "s1"


def test_a_thread_forgets_places_while_others_are_noted_and_none_of_those_is_lost(tmp_path: Path) -> None:
    index = SlotIndex(tmp_path)
    old, new = [f"old{number}.1" for number in range(2500)], [f"new{number}.1" for number in range(600)]
    for name in old:
        index.note(name, Place("s1"))

    def forget() -> None:
        for name in old:
            index.in_use()
            index.forget(name)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(1) as threads:
            forgotten = threads.submit(forget)
            for name in new:
                index.note(name, Place("s2"))
                time.sleep(0)  # the other one's turn
            forgotten.result()
    finally:
        sys.setswitchinterval(interval)
    again = SlotIndex(tmp_path)
    assert {*index.in_use()} == {"s2"}
    assert [name for name in new if again.slot(name) != "s2"] == []


# --- environment -----------------------------------------------------------------------------------------------------


def test_the_environment_is_an_allow_list_and_the_grids_own(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "GRID_TOKEN": "t", "AWS_SECRET": "s", "PYTHONPATH": "p"}
    grant = Grant(cores=(0, 1), gpus=(GpuShare("GPU-a"), GpuShare("GPU-b", 500)))
    gpus = cuda([share.uuid for share in grant.gpus])
    env = workdir.build_env(launch(grant), "node1", tmp_path, workdir.inherited(base, PASSED_ON), gpus)
    assert env == {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "PWD": str(tmp_path),
        "GRID_JOB_ID": "j-abc",
        "GRID_ALLOCATION_ID": ID,
        "GRID_NODE": "node1",
        "GRID_WORKDIR": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "NUMEXPR_NUM_THREADS": "2",
    }


def test_who_has_the_node_says_what_of_the_agents_environment_jobs_get(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "HOME": "/h", "MODULEPATH": "/m", "SITE_A": "1", "SITE_B": "2", "AWS_SECRET": "s"}
    assert workdir.inherited(base, ("PATH", "SITE_*")) == {"PATH": "/bin", "SITE_A": "1", "SITE_B": "2"}
    assert workdir.inherited(base, ()) == {}


def test_a_job_without_gpus_sees_none_and_its_own_variables_win(tmp_path: Path) -> None:
    env = workdir.build_env(launch(OMP_NUM_THREADS="9", GRID_ALLOCATION_ID="mine"), "n", tmp_path, {}, cuda([]))
    assert (env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("", "9", "1")
    assert env["GRID_ALLOCATION_ID"] == ID  # by it the supervisor knows whose a process is
    assert env["PATH"]


# --- unpacking -------------------------------------------------------------------------------------------------------
