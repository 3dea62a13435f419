"""The folder of an allocation: what is put in, what is given out, and that nothing leads out of it."""

import os
import stat
from pathlib import Path

import pytest

from distributed_grid.agent import workdir
from distributed_grid.protocol.bundle import Entry, Kind, Manifest, blob_hash
from distributed_grid.protocol.errors import BadValue, GridError
from distributed_grid.protocol.filenames import from_wire
from distributed_grid.protocol.jobs import PASSED_ON, JobSpec
from distributed_grid.protocol.messages import Launch
from distributed_grid.protocol.resources import GpuShare, Grant

ID = "j-abc.1"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return workdir.create(tmp_path, ID)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    (tmp_path / "blobs").mkdir()
    return tmp_path / "blobs"


def file(blobs: Path, path: str, content: bytes = b"x", mode: int = 0o644) -> Entry:
    (blobs / blob_hash(content)).write_bytes(content)
    return Entry(path, mode=mode, size=len(content), blob=blob_hash(content))


def launch(grant: Grant | None = None, **env: str) -> Launch:
    spec = JobSpec(argv=("true",), env=env)
    return Launch(allocation=ID, job="j-abc", user="u", epoch=1, grant=grant or Grant(), spec=spec)


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "/etc", ".hidden", "a\0b", "A", "x" * 200])
def test_what_is_no_id_becomes_no_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadValue):
        workdir.folder(tmp_path, name)


def test_the_working_directory_is_fresh_and_private(tmp_path: Path) -> None:
    path = workdir.create(tmp_path, ID)
    assert path == tmp_path / "allocs" / ID / "workdir"
    assert [os.stat(one).st_mode & 0o777 for one in (path, path.parent)] == [0o700, 0o700]


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
    spec = workdir.create(tmp_path, ID).parent / "spec"
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


def test_a_working_directory_that_a_job_replaced_by_a_link_leads_nowhere(tmp_path: Path, target: Path) -> None:
    secret = tmp_path / "identity"
    secret.mkdir()
    (secret / "own.key").write_text("SECRET")
    target.rmdir()
    target.symlink_to(secret)
    assert workdir.find_files(target, ["**"]) == []
    with pytest.raises(GridError):
        workdir.read_file(target, "own.key", 0, 100)
    with pytest.raises(GridError):
        workdir.unpack(Manifest((Entry("own.key", Kind.LINK, target="x"),)), tmp_path, target)
    assert (secret / "own.key").read_text() == "SECRET"


def test_a_job_without_gpus_sees_none_and_its_own_variables_win(tmp_path: Path) -> None:
    env = workdir.build_env(launch(OMP_NUM_THREADS="9", GRID_ALLOCATION_ID="mine"), "n", tmp_path, {})
    assert (env["CUDA_VISIBLE_DEVICES"], env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("", "9", "1")
    assert env["GRID_ALLOCATION_ID"] == ID  # by it the supervisor knows whose a process is
    assert env["PATH"]


# --- unpacking -------------------------------------------------------------------------------------------------------


def test_files_links_and_directories_are_made(target: Path, blobs: Path) -> None:
    entries = (
        file(blobs, "a/b/tool", b"#!/bin/sh\n", 0o755),
        file(blobs, "a/data", b"\0" * 100_000),
        Entry("empty", Kind.DIRECTORY, 0o755),
        Entry("link", Kind.LINK, target="a/data"),
        file(blobs, "none", b""),
    )
    workdir.unpack(Manifest(entries), blobs, target)
    assert (target / "a/b/tool").read_bytes() == b"#!/bin/sh\n"
    assert os.stat(target / "a/b/tool").st_mode & 0o777 == 0o755
    assert os.stat(target / "a/data").st_mode & 0o777 == 0o644
    assert (target / "link").read_bytes() == b"\0" * 100_000
    assert (target / "empty").is_dir() and (target / "none").read_bytes() == b""


def test_a_job_that_changes_a_file_does_not_change_the_blob(target: Path, blobs: Path) -> None:
    entry = file(blobs, "f", b"shared")
    workdir.unpack(Manifest((entry,)), blobs, target)
    (target / "f").write_bytes(b"changed")
    assert (blobs / entry.blob).read_bytes() == b"shared"


@pytest.mark.parametrize("path", ["/tmp/x", "../x", "a/../../x", "a//b", "", "."])
def test_no_path_leads_out(target: Path, blobs: Path, path: str) -> None:
    with pytest.raises(BadValue):
        workdir.unpack(Manifest((file(blobs, path),)), blobs, target)


@pytest.mark.parametrize("to", ["/etc", "..", "../../x"])
def test_no_link_leads_out(target: Path, blobs: Path, to: str) -> None:
    with pytest.raises(BadValue):
        workdir.unpack(Manifest((Entry("l", Kind.LINK, target=to),)), blobs, target)


def test_nothing_is_written_through_a_link_that_is_there(tmp_path: Path, target: Path, blobs: Path) -> None:
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", target / "a")
    os.symlink(tmp_path / "outside" / "f", target / "f")
    for path in ("a/x", "f"):
        with pytest.raises(GridError):
            workdir.unpack(Manifest((file(blobs, path),)), blobs, target)
    assert os.listdir(tmp_path / "outside") == []


def test_a_missing_or_short_blob_is_told(target: Path, blobs: Path) -> None:
    entry = file(blobs, "f", b"content")
    (blobs / entry.blob).write_bytes(b"cont")
    with pytest.raises(GridError) as caught:
        workdir.unpack(Manifest((entry,)), blobs, target)
    assert "4 bytes instead of 7" in caught.value.why
    (blobs / entry.blob).unlink()
    with pytest.raises(GridError):
        workdir.unpack(Manifest((entry,)), blobs, workdir.create(target, "j-d.1"))


# --- getting results -------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path: Path, target: Path) -> Path:
    for path in ("out.txt", "a.log", "d/b.log", "d/e/c.log", "d/e/f/g.bin", ".hidden/x.log", "odd [1]/y"):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(path)
    (tmp_path / "secret").write_text("secret")
    os.symlink("out.txt", target / "inside")
    os.symlink(tmp_path / "secret", target / "outside")
    os.symlink(tmp_path, target / "dir")
    os.mkfifo(target / "pipe")
    return target


@pytest.mark.parametrize(
    ("globs", "paths"),
    [
        (["*.log"], ["a.log"]),
        (["**/*.log"], ["a.log", "d/b.log", "d/e/c.log"]),
        (["d"], ["d/b.log", "d/e/c.log", "d/e/f/g.bin"]),
        (["d/*/"], ["d/e/c.log", "d/e/f/g.bin"]),
        (["d/**"], ["d/b.log", "d/e/c.log", "d/e/f/g.bin"]),
        (["./out.txt", "out.txt"], ["out.txt"]),
        (["out.tx?", "[ab].log"], ["a.log", "out.txt"]),
        ([".hidden"], [".hidden/x.log"]),
        (["inside", "outside", "dir", "dir/secret", "pipe", "nothing"], ["inside"]),
        (["odd [[]1]/y"], ["odd [1]/y"]),
    ],
)
def test_globs_find_what_they_say_and_nothing_outside(results: Path, globs: list[str], paths: list[str]) -> None:
    assert [entry.path for entry in workdir.find_files(results, globs)] == paths


def test_sizes_and_modes_come_with_the_files(results: Path) -> None:
    (results / "out.txt").chmod(0o750)
    assert [(one.size, one.mode) for one in workdir.find_files(results, ["out.txt"])] == [(7, 0o750)]


@pytest.mark.parametrize("glob", ["/etc/*", "../*", "a/../../*", "", "."])
def test_a_glob_that_leads_out_is_refused(results: Path, glob: str) -> None:
    with pytest.raises(BadValue):
        workdir.find_files(results, [glob])


def test_files_are_read_in_pieces_with_an_end(results: Path) -> None:
    assert workdir.read_file(results, "out.txt", 0, 3) == (b"out", False)
    assert workdir.read_file(results, "out.txt", 3, 100) == (b".txt", True)
    assert workdir.read_file(results, "inside", 0, 100) == (b"out.txt", True)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"a\nb", b"x" * 255, b"caf\xe9 d"])
def test_a_file_of_any_name_is_found_by_a_message_that_can_be_sent_and_read_by_it(results: Path, name: bytes) -> None:
    (results / os.fsdecode(name)).write_text("here")
    found = {from_wire(one.path, one.raw): one for one in workdir.find_files(results, ["*"])}
    entry = found[os.fsdecode(name)]
    entry.path.encode()
    assert workdir.read_file(results, from_wire(entry.path, entry.raw), 0, 100) == (b"here", True)


@pytest.mark.parametrize("path", ["outside", "dir/secret", "../secret", "/etc/passwd", "pipe", "d", "nothing"])
def test_what_is_not_a_file_inside_is_not_read(results: Path, path: str) -> None:
    with pytest.raises(GridError):
        workdir.read_file(results, path, 0, 100)
