"""Files in a job's working directory, whatever the job has made of it: shipped ones are made, named ones are found and
read, all of it is removed; links lead nowhere outside, and each operation ends."""

import errno
import os
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.walls import files
from distributed_grid.agent.walls.files import DIRECTORY, FILE, LINK, Limits
from distributed_grid.runtime import beneath
from distributed_grid.runtime.beneath import Refused

pytestmark = pytest.mark.usefixtures("way")

SECRET = b"the node's private key"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_bytes(SECRET)
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.fixture
def root(theirs: Path) -> Iterator[int]:
    fd = beneath.open_root(theirs)
    before = set(os.listdir("/proc/self/fd"))
    yield fd
    assert set(os.listdir("/proc/self/fd")) <= before, "a descriptor was left open"
    os.close(fd)


@pytest.fixture
def blob(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "blob").write_bytes(b"content")
    fd = os.open(tmp_path / "blob", os.O_RDONLY)
    yield fd
    os.close(fd)


def file(path: bytes, mode: int = 0o644, size: int = 7, blob: int = 0) -> files.Entry:
    return FILE, path, mode, b"", size, blob


# --- unpack -----------------------------------------------------------------------------------------------------------


def test_shipped_files_links_and_directories_are_made(theirs: Path, root: int, blob: int) -> None:
    entries = [
        file(b"a/b/one", 0o600),
        file(b"a/b/two\n\xff", 0o755),
        file(b"three"),
        (DIRECTORY, b"a/empty", 0o500, b"", 0, -1),
        (LINK, b"a/link", 0o777, b"b/one", 0, -1),
    ]
    files.unpack(entries, [blob], root)
    assert (theirs / "a/b/one").read_bytes() == (theirs / "a/link").read_bytes() == b"content"
    two = os.path.join(os.fsencode(theirs), b"a/b/two\n\xff")
    assert [stat.S_IMODE(os.stat(one).st_mode) for one in (theirs / "a/b/one", two, theirs / "three")] == [
        0o600,
        0o755,
        0o644,
    ]
    assert stat.S_IMODE((theirs / "a/empty").stat().st_mode) == 0o700
    assert os.readlink(theirs / "a/link") == "b/one"


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777])
def test_a_shipped_file_never_has_more_than_permissions(theirs: Path, root: int, blob: int, mode: int) -> None:
    files.unpack([file(b"one", mode)], [blob], root)
    assert stat.S_IMODE((theirs / "one").stat().st_mode) == mode & 0o777


def test_nothing_is_written_through_a_link_or_over_a_file(theirs: Path, root: int, blob: int) -> None:
    (theirs / "out").symlink_to("../private")
    (theirs / "key").symlink_to("../private/key")
    (theirs / "fresh").symlink_to("../private/fresh")
    (theirs / "mine").write_bytes(b"mine")
    for path in (b"out/key", b"out/new", b"out/deep/new", b"key", b"fresh", b"mine"):
        with pytest.raises(OSError, match=r"Too many levels|File exists|Not a directory"):
            files.unpack([file(path)], [blob], root)
    assert os.listdir(theirs.parent / "private") == ["key"]
    assert (theirs.parent / "private/key").read_bytes() == SECRET
    assert (theirs / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize("path", [b"", b"/x", b"../x", b"a/../../x", b"a//x", b"a/./x", b"x\0y", b"x/"])
def test_paths_that_are_not_relative_and_plain_are_refused(theirs: Path, root: int, blob: int, path: bytes) -> None:
    with pytest.raises(OSError):
        files.unpack([file(path)], [blob], root)
    assert sorted(os.listdir(theirs.parent)) == ["blob", "job", "private"]


def test_content_of_another_size_than_said_is_refused(root: int, blob: int) -> None:
    with pytest.raises(Refused, match="7 bytes instead of 8"):
        files.unpack([file(b"one", size=8)], [blob], root)
    with pytest.raises(Refused, match="missing"):
        files.unpack([file(b"two", blob=1)], [blob], root)


def test_a_directory_is_made_once_and_with_just_these_rights(theirs: Path, root: int) -> None:
    before = os.umask(0o077)
    try:
        files.make_directory(root, b"new", 0o755)
    finally:
        os.umask(before)
    assert stat.S_IMODE((theirs / "new").stat().st_mode) == 0o755
    with pytest.raises(FileExistsError):
        files.make_directory(root, b"new")
    with pytest.raises(Refused):
        files.make_directory(root, b"../new")


# --- find -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def results(theirs: Path) -> Path:
    for path in ("out.txt", "sub/a.csv", "sub/deep/b.csv", ".hidden", ".git/config", "sub/.secret"):
        (theirs / path).parent.mkdir(parents=True, exist_ok=True)
        (theirs / path).write_text(path)
    (theirs / "inside").symlink_to("sub/a.csv")
    (theirs / "chain").symlink_to("inside")
    (theirs / "full").symlink_to(theirs / "out.txt")
    (theirs / "outside").symlink_to("../private/key")
    (theirs / "far").symlink_to(theirs.parent / "private/key")
    (theirs / "up").symlink_to("sub/../../private/key")
    (theirs / "loop").symlink_to("loop")
    (theirs / "dangling").symlink_to("nothing")
    (theirs / "dir").symlink_to("sub")
    os.mkfifo(theirs / "fifo")
    (theirs / "out.txt").chmod(0o4750)
    return theirs


@pytest.mark.parametrize(
    ("patterns", "paths"),
    [
        (["out.txt"], ["out.txt"]),
        (["*"], "chain full inside out.txt sub/.secret sub/a.csv sub/deep/b.csv".split()),
        (["**"], "chain full inside out.txt sub/.secret sub/a.csv sub/deep/b.csv".split()),
        (["**/*.csv"], ["sub/a.csv", "sub/deep/b.csv"]),
        (["sub/*"], ["sub/a.csv", "sub/deep/b.csv"]),
        (["sub"], ["sub/.secret", "sub/a.csv", "sub/deep/b.csv"]),
        ([".*"], [".git/config", ".hidden"]),
        ([".git/config", "chain"], [".git/config", "chain"]),
        (["outside", "far", "up", "loop", "dangling", "fifo", "dir", "dir/*"], []),
        ([], []),
    ],
)
def test_patterns_find_the_regular_files_inside(
    results: Path, root: int, patterns: list[str], paths: list[str]
) -> None:
    assert [path.decode() for path, _, _ in files.find(root, patterns)] == paths


def test_what_is_found_has_the_size_and_the_permissions_of_the_file(results: Path, root: int) -> None:
    assert files.find(root, ["out.txt", "chain"]) == [(b"chain", 9, 0o644), (b"out.txt", 7, 0o750)]


def test_names_are_bytes(theirs: Path, root: int) -> None:
    names = sorted([b"new\nline", b"\xff\xfe", b"n" * 255, b"[x]", b"a\\b"])
    for name in names:
        (Path(os.fsdecode(os.path.join(os.fsencode(theirs), name)))).touch()
    assert [path for path, _, _ in files.find(root, ["*"])] == names
    assert [path for path, _, _ in files.find(root, ["[[]x]"])] == [b"[x]"]


def test_only_directories_that_may_have_a_match_are_looked_at(theirs: Path, root: int) -> None:
    for number in range(50):
        (theirs / "data" / str(number)).mkdir(parents=True)
    (theirs / "result").touch()
    (theirs / "data/7/x.csv").touch()
    few = Limits(names=60)
    assert files.find(root, ["result"], Limits(names=2)) == [(b"result", 0, 0o644)]
    assert files.find(root, ["data/7/*.csv"], few) == [(b"data/7/x.csv", 0, 0o644)]


def test_too_much_is_an_error(theirs: Path, root: int) -> None:
    for number in range(20):
        (theirs / str(number)).touch()
    with pytest.raises(OSError, match="more than 19 files match"):
        files.find(root, ["*"], Limits(files=19))
    with pytest.raises(OSError, match="more than 19 files below"):
        files.find(root, ["1"], Limits(names=19))
    with pytest.raises(OSError, match="takes more than"):
        files.find(root, ["*"], Limits(seconds=-1))
    assert len(files.find(root, ["*"], Limits(files=20, names=20))) == 20


def test_paths_that_are_too_long_together_are_an_error(
    theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (theirs / f"{number:020}").mkdir()
        (theirs / f"{number:020}/{number:09}").touch()
    monkeypatch.setattr(files, "FOUND_BYTES", 30 * 20)
    assert len(files.find(root, ["**"])) == 20
    monkeypatch.setattr(files, "FOUND_BYTES", 30 * 20 - 1)
    with pytest.raises(OSError, match="too long"):
        files.find(root, ["**"])
    assert files.find(root, ["0*0/*"]) == [(b"%020d/%09d" % (number, number), 0, 0o644) for number in (0, 10)]
    monkeypatch.setattr(files, "_BELOW_BYTES", 10 * 20)
    with pytest.raises(OSError, match="too long"):
        files.find(root, ["*/nothing"])


def make_deep(root: int, depth: int, name: str = "d") -> int:
    here = os.dup(root)
    for number in range(depth):
        os.mkdir(name, dir_fd=here)
        os.close(os.open(f"file{number % 10}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
        below = os.open(name, os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    return here


def test_5000_directories_in_each_other_are_an_error_and_can_be_removed(theirs: Path, root: int) -> None:
    try:
        os.close(make_deep(root, 5000))
        with pytest.raises(Refused, match="too deep"):
            files.find(root, ["**"])
        assert [path for path, _, _ in files.find(root, ["file0", "d/file1"])] == [b"d/file1", b"file0"]
        files.remove(root, b"d")
        assert os.listdir(theirs) == ["file0"]
    finally:  # pytest itself cannot remove so deep a tree
        subprocess.run(["rm", "-rf", theirs], check=True)


# Directories come as fast as they are looked at.
ENDLESS = """
import os, sys
os.chdir(sys.argv[1])
os.mkdir("d0")
print("ready", flush=True)
number = 0
while True:
    number += 1
    os.makedirs(f"d{number}/x", exist_ok=True)
    open(f"d{number}/x/file", "w").close()
    os.rename(f"d{number}", f"d0/d{number}") if number % 2 else os.rename(f"d{number}/x", f"y{number}")
"""


def test_a_tree_that_grows_all_the_time_is_an_error_in_time(theirs: Path, root: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS, theirs], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            began = time.monotonic()
            try:
                files.find(root, ["**"], Limits(seconds=1.0, names=20_000))
            except OSError as error:
                assert error.errno in (errno.ETIMEDOUT, errno.E2BIG)
            assert time.monotonic() - began < 5
            # It makes new ones in the very directory that is removed: that ends too, by then or with an error.
            began = time.monotonic()
            try:
                files.remove(root, b"d0", 2.0)
            except OSError as error:
                assert error.errno in (errno.ETIMEDOUT, errno.EBUSY, errno.ENOTEMPTY)
            assert time.monotonic() - began < 10
        finally:
            other.kill()
    for name in os.listdir(theirs):
        files.remove(root, os.fsencode(name))
    assert os.listdir(theirs) == []


# --- read -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [b"out.txt", b"full", b"sub/../out.txt", b"./out.txt"])
def test_files_are_read_in_parts_also_through_links_inside(results: Path, root: int, path: bytes) -> None:
    assert files.read(root, path, 0, 3) == (b"out", False, 0)
    assert files.read(root, path, 3, 100) == (b".txt", True, 0)
    assert files.read(root, path, 100, 100) == (b"", True, 0)
    assert files.read(root, b"dir/a.csv", 0, 100) == (b"sub/a.csv", True, 0)


def test_a_long_hole_is_told_and_not_read(theirs: Path, root: int) -> None:
    with open(theirs / "sparse", "wb") as file:
        file.seek(10 << 30)
        file.write(b"x" * 4096)
        file.truncate(20 << 30)
    assert files.read(root, b"sparse", 5, 100, holes=True) == (b"", False, (10 << 30) - 5)
    assert files.read(root, b"sparse", 10 << 30, 10, holes=True) == (b"x" * 10, False, 0)
    assert files.read(root, b"sparse", (10 << 30) + 4096, 10, holes=True) == (b"", True, (10 << 30) - 4096)
    assert files.read(root, b"sparse", 20 << 30, 10, holes=True) == (b"", True, 0)
    assert files.read(root, b"sparse", 5, 100) == (bytes(100), False, 0), "for who does not ask for holes"


def test_holes_are_unpacked_as_holes(theirs: Path, root: int, tmp_path: Path) -> None:
    size = (64 << 20) + 3 * 4096
    with open(tmp_path / "blob", "wb") as file:
        file.write(b"a" * 4096)
        file.seek(32 << 20)
        file.write(b"b" * 4096)
        file.truncate(size)
    blob = os.open(tmp_path / "blob", os.O_RDONLY)
    try:
        files.unpack([("file", b"copy", 0o644, b"", size, 0)], [blob], root)
    finally:
        os.close(blob)
    seen = (theirs / "copy").stat()
    assert seen.st_size == size and seen.st_blocks * 512 < 1 << 20
    assert (theirs / "copy").read_bytes() == (tmp_path / "blob").read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        *b"outside far up loop dangling fifo sub ../private/key ../out.txt sub/../../out.txt".split(),
        b"/etc/passwd",
        b"",
        b".",
    ],
)
def test_nothing_else_is_read(results: Path, root: int, path: bytes) -> None:
    with pytest.raises(OSError):
        files.read(root, path, 0, 100)


def test_a_long_chain_of_links_is_refused_like_a_loop(theirs: Path, root: int) -> None:
    (theirs / "0").write_bytes(b"end")
    for number in range(2000):
        (theirs / str(number + 1)).symlink_to(str(number))
    assert files.read(root, b"40", 0, 10) == (b"end", True, 0)
    for name in (b"41", b"2000"):
        with pytest.raises(OSError, match="Too many levels"):
            files.read(root, name, 0, 10)
    assert len(files.find(root, ["*"])) == 41


def test_links_that_double_their_path_are_refused(theirs: Path, root: int) -> None:
    (theirs / "l0").mkdir()
    for number in range(1, 30):
        (theirs / f"l{number}").symlink_to(f"l{number - 1}/.." + f"/l{number - 1}")
    began = time.process_time()
    with pytest.raises(OSError):
        files.read(root, b"l29/file", 0, 10)
    assert time.process_time() - began < 1


SWAPPER = """
import ctypes, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
os.mkdir("dir"); open("dir/key", "w").write("content")
os.symlink("../private", "link")
print("ready", flush=True)
while True:
    libc.renameat2(-100, b"dir", -100, b"link", 2)
"""


def test_an_adversary_that_swaps_a_directory_for_a_link_never_has_a_file_outside_read_or_removed(
    theirs: Path, root: int
) -> None:
    with subprocess.Popen([sys.executable, "-c", SWAPPER, theirs], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            seen = set()
            for _ in range(2000):
                try:
                    seen.add(files.read(root, b"dir/key", 0, 100)[0])
                except OSError:
                    seen.add(b"")
                assert {size for _, size, _ in files.find(root, ["**"])} <= {7}
            assert seen == {b"", b"content"}
            for _ in range(200):
                try:
                    files.remove(root, b"dir")
                except OSError as error:
                    assert error.errno in (errno.EBUSY, errno.ENOTEMPTY)
                os.makedirs(theirs / "dir", exist_ok=True) if not os.path.lexists(theirs / "dir") else None
        finally:
            other.kill()
    assert (theirs.parent / "private/key").read_bytes() == SECRET


# --- names ------------------------------------------------------------------------------------------------------------


def test_of_very_many_names_a_part_is_listed(theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (theirs / f"{number:02}").mkdir()
    assert sorted(files.names(root)) == [b"%02d" % number for number in range(20)]
    monkeypatch.setattr(files, "NAMES", 7)
    assert len({*files.names(root)}) == 7
    monkeypatch.setattr(files, "NAMES_BYTES", 9)
    assert len({*files.names(root)}) == 4


# --- measure ----------------------------------------------------------------------------------------------------------


def test_many_directories_at_the_end_of_a_long_path_are_measured_in_little_memory(theirs: Path, root: int) -> None:
    try:
        deepest = make_deep(root, 700, "d" * 255)
        for number in range(400):
            os.mkdir(f"{number}", dir_fd=deepest)
        with open("much", "wb", opener=lambda name, flags: os.open(name, flags, dir_fd=deepest)) as file:
            file.write(bytes(1 << 20))
        os.close(deepest)
        tracemalloc.start()
        assert files.measure(root) >= 1 << 20
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()
        subprocess.run(["rm", "-rf", theirs], check=True)


def test_of_directories_that_lie_very_deep_as_many_are_measured_as_paths_may_be_kept(
    theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_OPEN_DEPTH", 2)
    monkeypatch.setattr(files, "_PATHS_BYTES", 100)
    for number in range(20):
        (theirs / f"a/b/c/{number:02}/d").mkdir(parents=True)
        (theirs / f"a/b/c/{number:02}/d/much").write_bytes(bytes(1 << 20))
    assert 1 << 20 <= files.measure(root) < 20 << 20
    monkeypatch.setattr(files, "_PATHS_BYTES", 1000)
    assert files.measure(root) >= 20 << 20


# --- remove -----------------------------------------------------------------------------------------------------------


def test_a_tree_is_removed_with_all_that_a_job_may_leave_in_it(results: Path, root: int) -> None:
    for name in sorted(os.listdir(results)):
        files.remove(root, os.fsencode(name))
    assert os.listdir(results) == []
    assert (results.parent / "private/key").read_bytes() == SECRET
    files.remove(root, b"never there")
    for bad in (b"", b".", b"..", b"a/b"):
        with pytest.raises(Refused):
            files.remove(root, bad)


def test_many_files_in_one_directory_are_removed(theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BATCH", 100)
    (theirs / "d").mkdir()
    for number in range(1050):
        (theirs / "d" / str(number)).touch()
    files.remove(root, b"d")
    assert os.listdir(theirs) == []


CLOSED = """
import os, sys
from distributed_grid.runtime import beneath; from distributed_grid.agent.walls import files
os.setgid(65534) or os.setuid(65534) if os.getuid() == 0 else None
os.chdir(sys.argv[1])
os.makedirs("t/a/b/c")
open("t/a/b/c/file", "w").close()
for path in "t/a/b/c", "t/a/b", "t/a", "t":
    os.chmod(path, int(sys.argv[2], 8))
root = beneath.open_root(".")
files.remove(root, b"t")
print(os.listdir("."))
"""


@pytest.mark.parametrize("mode", ["0", "100", "400", "500", "300"])
def test_directories_that_the_job_closed_are_opened_and_removed(theirs: Path, mode: str) -> None:
    theirs.chmod(0o777)
    for above in theirs.parents:
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o711)
    done = subprocess.run([sys.executable, "-c", CLOSED, theirs, mode], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_what_cannot_be_removed_is_told_and_the_rest_is_removed(
    theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (theirs / "d" / name).mkdir(parents=True)
        (theirs / "d" / name / "file").touch()
    unlink = os.unlink

    def stubborn(name: bytes, *, dir_fd: int) -> None:
        if name == b"b":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", stubborn)
    with pytest.raises(PermissionError):
        files.remove(root, b"d")
    assert os.listdir(theirs / "d") == ["b"]


# --- the process ------------------------------------------------------------------------------------------------------


def test_the_bare_interpreter_of_the_supervisor_loads_all_of_it() -> None:
    """Without site-packages, asyncio or threads."""
    here = Path(files.__file__).parents[1]
    code = f"""
import sys
sys.path.insert(0, {str(here / "supervisor")!r})
import main as supervisor_main
supervisor_main.__file__ = {str(here / "supervisor/main.py")!r}
supervisor_main._name_our_files()
from distributed_grid.agent.walls import files_socket
print([name for name in ("msgspec", "asyncio", "threading", "psutil") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
