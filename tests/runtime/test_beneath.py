"""Files that a job may have put anything in the place of: each kind of it is refused, nothing outside is ever opened,
and nothing waits; by openat2 and by steps."""

import contextlib
import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.runtime import beneath
from distributed_grid.runtime.beneath import (
    Refused,
    create_whole,
    open_beneath,
    open_regular,
    read_whole,
    replace_whole,
)

SECRET = b"the node's private key"


pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A directory that a job writes to, with a secret beside it."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_bytes(SECRET)
    (tmp_path / "job" / "a" / "b").mkdir(parents=True)
    (tmp_path / "job" / "a" / "b" / "file").write_bytes(b"content")
    return tmp_path / "job"


@pytest.fixture
def root(theirs: Path) -> Iterator[int]:
    fd = beneath.open_root(theirs)
    before = set(os.listdir("/proc/self/fd"))
    yield fd
    assert set(os.listdir("/proc/self/fd")) <= before, "a descriptor was left open"
    os.close(fd)


@contextlib.contextmanager
def in_time(seconds: int = 5) -> Iterator[None]:
    """What is in here must not wait for anybody."""

    def too_late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(path: Path, what: str) -> None:
    match what:
        case "fifo":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to("../secret")
        case "absolute link":
            path.symlink_to(path.parent.parent / "secret")
        case "loop":
            path.symlink_to(path.name)
        case "magic link":
            path.symlink_to("/proc/self/fd/0")
        case "device":
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero


KINDS = ["fifo", "socket", "directory", "link", "absolute link", "loop", "magic link", "device"]


@pytest.mark.parametrize("what", KINDS)
def test_what_is_no_regular_file_is_refused_at_once_and_its_kind_is_said(theirs: Path, root: int, what: str) -> None:
    if what == "device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    put(theirs / "spec", what)
    with in_time():
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            with pytest.raises(Refused) as caught:
                open_regular(root, "spec", flags, 0o600)
            words = {"device": "character device", "magic link": "symbolic link", "absolute link": "symbolic link"}
            words |= {"fifo": "FIFO", "loop": "symbolic link", "link": "symbolic link"}
            assert words.get(what, what) in str(caught.value)
        with pytest.raises(Refused):
            read_whole(root, "spec", 100)
    assert (theirs.parent / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_PATH, os.O_RDONLY | os.O_DIRECTORY])
def test_a_link_is_followed_nowhere_on_the_way_and_not_at_the_end(theirs: Path, root: int, flags: int) -> None:
    (theirs / "out").symlink_to("../private")
    (theirs / "in").symlink_to("a")
    (theirs / "new").symlink_to("../made")
    for path in ("out/key", "in/b/file", "out", "in", "new", "a/../out/key", "in/b"):
        with pytest.raises(OSError) as caught:
            os.close(open_beneath(root, path, flags, 0o600))
        assert caught.value.errno in (errno.ELOOP, errno.EINVAL, errno.EXDEV), path
    assert sorted(os.listdir(theirs.parent)) == ["job", "private", "secret"]


@pytest.mark.parametrize("path", ["", "/", "/etc/passwd", "..", "../secret", "a/../../secret", "a/..", "a\0b", b"a\0b"])
def test_paths_that_do_not_plainly_lead_down_are_refused(root: int, path: str | bytes) -> None:
    with pytest.raises(Refused):
        open_beneath(root, path, os.O_RDONLY)


def test_files_below_are_opened_by_any_plain_path(theirs: Path, root: int) -> None:
    for path in ("a/b/file", b"a/b/file", "./a//b/./file", "a/b/file/"[:-1]):
        assert read_whole(root, path, 7) == b"content"
    fd = open_beneath(root, ".", os.O_RDONLY | os.O_DIRECTORY)
    assert os.listdir(fd) == ["a"]
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        read_whole(root, "a/nothing", 7)
    with pytest.raises(NotADirectoryError):
        read_whole(root, "a/b/file/more", 7)


NAMES = [b"new\nline", b"\xff\xfe not UTF-8", b"n" * 255, "ü".encode() * 127, b"-rf", b" ", b"...", b"\\", b"*"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_bytes(theirs: Path, root: int, name: bytes) -> None:
    path = os.path.join(os.fsencode(theirs), name)
    os.mkdir(path)
    for inner in (name, os.fsdecode(name)):
        replace_whole(root, b"a/b/x"[4:], b"1")
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(path, name))
        fd = beneath.open_directory(root, os.fsdecode(name) + "/" + os.fsdecode(name))
        replace_whole(fd, inner, SECRET)
        assert read_whole(fd, inner, 100) == SECRET
        os.close(fd)
    with pytest.raises(OSError, match="too long"):
        read_whole(root, name * 300, 1)


def test_a_path_of_5000_directories_is_opened_like_any_other(theirs: Path, root: int) -> None:
    here = os.dup(root)
    for _ in range(5000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    try:
        replace_whole(here, "deep", b"down here")
        assert read_whole(root, "d/" * 5000 + "deep", 100) == b"down here"
        with pytest.raises(FileNotFoundError):
            read_whole(root, "d/" * 5001 + "deep", 100)
        with pytest.raises(Refused, match="the most"):
            read_whole(root, "d/" * (1 << 20), 100)
    finally:
        os.close(here)
        subprocess.run(["rm", "-rf", theirs], check=True)


def test_a_file_of_5_GB_is_refused_before_it_is_read(theirs: Path, root: int) -> None:
    with (theirs / "spec").open("wb") as file:
        file.truncate(5 << 30)
    with in_time(), pytest.raises(Refused, match=f"it has {5 << 30} bytes, and {16 << 20} are the most"):
        read_whole(root, "spec", 16 << 20)


def test_a_file_that_grows_while_it_is_read_is_refused(theirs: Path, root: int) -> None:
    fd = open_regular(root, "a/b/file", most=7)
    with (theirs / "a/b/file").open("ab") as file:
        file.truncate(1 << 30)
    with pytest.raises(Refused, match="it has more than 7 bytes"):
        beneath.read_all(fd, 7)
    os.close(fd)


def test_descriptors_are_closed_by_an_exec_and_never_become_a_terminal(root: int) -> None:
    fd = open_regular(root, "a/b/file")
    assert not os.get_inheritable(fd)
    os.close(fd)
    fd = open_beneath(root, "a", os.O_PATH | os.O_NONBLOCK)  # a flag too many for the kernel is left out
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_file_that_somebody_holds_a_lease_on_is_not_waited_for(theirs: Path, root: int) -> None:
    code = "import fcntl, os; fd = os.open('spec', os.O_RDWR | os.O_CREAT); fcntl.fcntl(fd, fcntl.F_SETLEASE, 1)"
    code += "; import signal; signal.signal(signal.SIGIO, signal.SIG_IGN); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=theirs, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != "held\n":
            pytest.skip("this filesystem has no leases")
        with in_time(), pytest.raises(Refused, match="a lease"):
            read_whole(root, "spec", 100)
        holder.kill()


def test_a_mount_point_is_crossed_only_where_that_is_asked_for() -> None:
    if os.stat("/").st_dev == os.stat("/proc").st_dev:
        pytest.skip("there is no mount point of which both sides are known")
    root = beneath.open_root("/")
    try:
        with pytest.raises(OSError) as caught:
            open_beneath(root, "proc/version", os.O_RDONLY)
        assert caught.value.errno == errno.EXDEV
        os.close(open_beneath(root, "proc/version", os.O_RDONLY, xdev=True))
    finally:
        os.close(root)


IN_AN_OVERLAY = """
import os, subprocess, sys
from distributed_grid.runtime import beneath
beneath._has_openat2 = sys.argv[2] == "openat2"
lower, upper, merged = (f"{sys.argv[1]}/{name}" for name in ("lower", "upper", "merged"))
for folder in (lower, upper, merged):
    os.makedirs(folder)
subprocess.run(["mount", "-t", "tmpfs", "none", upper], check=True)
for name in ("changes", "work"):
    os.mkdir(f"{upper}/{name}")
how = f"lowerdir={lower},upperdir={upper}/changes,workdir={upper}/work"
subprocess.run(["mount", "-t", "overlay", "none", "-o", how, merged], check=True)
root = beneath.open_root(merged)
assert beneath.create_whole(root, "new", b"content")
print(beneath.read_whole(root, "new", 7))
"""


def test_an_overlay_is_one_mount_though_its_files_have_another_device_than_its_directories(
    tmp_path: Path, way: str
) -> None:
    argv = ["unshare", "--mount", sys.executable, "-c", IN_AN_OVERLAY, str(tmp_path), way]
    if os.geteuid() != 0 or subprocess.run([*argv[:2], "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root, and mount namespaces")
    done = subprocess.run(argv, capture_output=True, text=True)
    if "mount" in done.stderr and "CalledProcessError" in done.stderr:
        pytest.skip(f"no overlay can be mounted here: {done.stderr.splitlines()[-1]}")
    assert done.stdout == "b'content'\n", done.stderr


# --- writing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", KINDS)
def test_replacing_takes_the_place_of_whatever_is_there_and_touches_nothing_else(
    theirs: Path, root: int, what: str
) -> None:
    if what == "device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    put(theirs / "note", what)
    if what == "directory":
        (theirs / "note" / "in it").touch()
    with in_time():
        replace_whole(root, "note", b"new", 0o644)
    assert (theirs / "note").read_bytes() == b"new"
    assert stat.S_IMODE((theirs / "note").lstat().st_mode) == 0o644
    assert (theirs.parent / "secret").read_bytes() == SECRET
    left = [name for name in os.listdir(theirs) if name not in ("a", "note")]
    assert len(left) == (what == "directory")


@pytest.mark.parametrize("what", KINDS)
def test_creating_changes_nothing_that_is_there(theirs: Path, root: int, what: str) -> None:
    if what == "device" and os.geteuid() != 0:
        pytest.skip("only root makes devices")
    put(theirs / "note", what)
    before = (theirs / "note").lstat()
    with in_time():
        assert not create_whole(root, "note", b"new")
    assert (theirs / "note").lstat() == before
    assert sorted(os.listdir(theirs)) == ["a", "note"]
    assert (theirs.parent / "secret").read_bytes() == SECRET


def test_a_file_is_created_once(theirs: Path, root: int) -> None:
    assert create_whole(root, "note", b"first", 0o644)
    assert not create_whole(root, "note", b"second")
    assert (theirs / "note").read_bytes() == b"first"
    assert stat.S_IMODE((theirs / "note").stat().st_mode) == 0o644
    assert sorted(os.listdir(theirs)) == ["a", "note"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/note", "/note", "no\0te"])
def test_what_is_written_has_a_plain_name(theirs: Path, root: int, name: str) -> None:
    for write in (replace_whole, create_whole):
        with pytest.raises(Refused, match="plain name"):
            write(root, name, b"")
    assert os.listdir(theirs) == ["a"]


def test_a_write_that_fails_leaves_nothing_behind(theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for call in ("write", "rename", "fchmod"):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(OSError, match="No space"):
                replace_whole(root, "note", b"new")
        assert os.listdir(theirs) == ["a"]


# --- an adversary -----------------------------------------------------------------------------------------------------

# It swaps a directory for a link to what lies outside, and the file in it for a link and a FIFO, as fast as it can.
ADVERSARY = """
import ctypes, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
def swap(one, other):
    libc.renameat2(-100, one, -100, other, 2)
os.symlink("../private", "link")
os.mkdir("fifos")
os.mkfifo("fifos/key")
os.mkdir("dir")
open("dir/key", "w").write("content")
print("ready", flush=True)
while True:
    for _ in "there", "back":
        swap(b"dir", b"link")
    for _ in "there", "back":
        swap(b"dir", b"fifos")
    for _ in "there", "back":
        swap(b"dir/key", b"fifos/key")
    os.rename("link", "moved"); os.rename("moved", "link")
"""


def test_an_adversary_that_renames_all_the_time_never_has_a_file_outside_opened(theirs: Path, root: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ADVERSARY, theirs], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            seen: dict[str, int] = {}
            until = time.monotonic() + 2.0
            with in_time(60):
                while time.monotonic() < until or len(seen) < 2:
                    for path in ("dir/key", "link/key", "fifos/key"):
                        try:
                            said = read_whole(root, path, 100).decode()
                        except OSError as error:
                            said = errno.errorcode[error.errno or 0]
                        seen[said] = seen.get(said, 0) + 1
            assert sum(seen.values()) > 3000
            assert SECRET.decode() not in seen
            assert seen["content"] > 100  # and what is inside is still read
        finally:
            other.kill()


def test_an_adversary_never_has_a_file_outside_made_or_cut(theirs: Path, root: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ADVERSARY, theirs], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            with in_time(60):
                for number in range(3000):
                    for path in ("dir/key", "link/key", f"link/new{number}"):
                        with contextlib.suppress(OSError):
                            os.close(open_regular(root, path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        finally:
            other.kill()
    assert os.listdir(theirs.parent / "private") == ["key"]
    assert (theirs.parent / "private" / "key").read_bytes() == SECRET


# --- the kernel -------------------------------------------------------------------------------------------------------


def test_a_seccomp_filter_that_comes_later_is_noticed(
    theirs: Path, root: int, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "steps":
        pytest.skip("that is what it leads to")
    for number in (errno.ENOSYS, errno.EPERM):

        def refuse(*_: object, number: int = number, **__: Any) -> int:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(beneath, "_has_openat2", True)
        monkeypatch.setattr(beneath, "_by_openat2", refuse)
        assert read_whole(root, "a/b/file", 7) == b"content"
        assert not beneath.openat2_works()
