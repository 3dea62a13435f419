"""What an allocation has on the node: its record, and the environment of its job."""

import os
import stat
from pathlib import Path

import pytest

from distributed_grid.agent.launch import workdir
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


def test_the_launch_is_kept_and_the_first_one_stays(tmp_path: Path, target: Path) -> None:
    first = launch(Grant(cores=(1, 2)))
    workdir.write_launch(tmp_path, first)
    workdir.write_launch(tmp_path, launch(Grant(cores=(3,))))
    assert workdir.read_launch(tmp_path, ID) == first
    assert workdir.read_launch(tmp_path, "j-other.1") is None


@pytest.mark.parametrize("left", [b"", b'{"allocation":"' + b"x" * 5000])
def test_a_launch_that_was_cut_while_it_was_written_is_written_again(tmp_path: Path, target: Path, left: bytes) -> None:
    (target.parent / "spec").write_bytes(left)
    whole = launch(Grant(cores=(1, 2)))
    workdir.write_launch(tmp_path, whole)
    assert workdir.read_launch(tmp_path, ID) == whole


# --- environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["fifo", "link", "directory", "5 GB", "rubbish", "nothing in it"])
def test_a_record_that_a_job_replaced_is_not_read_and_a_new_one_takes_its_place(tmp_path: Path, what: str) -> None:
    (tmp_path / "own.key").write_text("SECRET")
    (folder := workdir.folder(tmp_path, ID)).mkdir(parents=True)
    spec = folder / "spec"
    match what:
        case "fifo":
            os.mkfifo(spec)
        case "link":
            spec.symlink_to(tmp_path / "own.key")
        case "directory":
            spec.mkdir()
        case "5 GB":
            with spec.open("wb") as file:
                file.truncate(5 << 30)
        case "rubbish":
            spec.write_text("{")
        case _:
            spec.touch()
    assert workdir.read_launch(tmp_path, ID) is None
    asked = launch(Grant(cores=(0,)))
    workdir.write_launch(tmp_path, asked)
    assert workdir.read_launch(tmp_path, ID) == asked
    assert stat.S_IMODE(spec.lstat().st_mode) == 0o600
    assert (tmp_path / "own.key").read_text() == "SECRET"


def test_the_environment_is_an_allow_list_and_the_grids_own(tmp_path: Path) -> None:
    base = {"PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "GRID_TOKEN": "t", "AWS_SECRET": "s", "PYTHONPATH": "p"}
    grant = Grant(cores=(0, 1), gpus=(GpuShare("GPU-a"), GpuShare("GPU-b", 500)))
    env = workdir.build_env(launch(grant), "node1", tmp_path, workdir.passed_on(base, PASSED_ON))
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
    assert workdir.passed_on(base, ("PATH", "SITE_*")) == {"PATH": "/bin", "SITE_A": "1", "SITE_B": "2"}
    assert workdir.passed_on(base, ()) == {}


def test_a_job_without_gpus_sees_none_and_its_own_variables_win(tmp_path: Path) -> None:
    env = workdir.build_env(launch(OMP_NUM_THREADS="9", GRID_ALLOCATION_ID="mine"), "n", tmp_path, {})
    assert (env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("", "9", "1")
    assert env["GRID_ALLOCATION_ID"] == ID  # by it the supervisor knows whose a process is
    assert env["PATH"]


# --- unpacking -------------------------------------------------------------------------------------------------------
