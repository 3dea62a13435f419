"""Operations over a socket, by a process with the job's rights; and a process in its place that answers as it likes, or
not at all."""

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distributed_grid.agent.walls import files_socket
from distributed_grid.agent.walls.files import FILE, NAMES, Limits
from distributed_grid.agent.walls.files_socket import Files, NoAnswer, Root, ask, serve
from distributed_grid.runtime import beneath

NOBODY = 65534

HEADER = struct.Struct(">II")


@contextlib.contextmanager
def process(does: Callable[[socket.socket], None]) -> Iterator[tuple[Files, int]]:
    """A forked process that does this with its end of a socket, and a caller."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            does(theirs)
        finally:
            os._exit(0)
    theirs.close()
    caller = Files(ours)
    try:
        yield caller, pid
    finally:
        caller.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.fixture
def root(theirs: Path) -> Iterator[int]:
    fd = beneath.open_root(theirs)
    yield fd
    os.close(fd)


# --- the operations ---------------------------------------------------------------------------------------------------


def test_all_operations_are_done_by_the_other_process(theirs: Path, root: int, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"content")
    at = Root(root)

    def open_blob(_: int) -> int:
        return os.open(tmp_path / "blob", os.O_RDONLY)

    with process(serve) as (caller, _):
        caller.make_directory(at, b"new\xff", 0o750)
        caller.unpack(at, [(FILE, b"new\xff/file\n", 0o755, b"", 7, 0)], open_blob)
        assert caller.find(at, ["**"]) == [(b"new\xff/file\n", 7, 0o755)]
        assert caller.names(at) == [b"new\xff"]
        assert caller.read(at, b"new\xff/file\n", 3, 100) == (b"tent", True, 0)
        assert caller.read(at, b"new\xff/file\n", 0, 3) == (b"con", False, 0)
        caller.remove(at, b"new\xff")
    assert os.listdir(theirs) == []


def test_many_files_with_many_contents_are_unpacked_in_several_messages(
    theirs: Path, root: int, tmp_path: Path
) -> None:
    for number in range(200):
        (tmp_path / f"blob{number}").write_text(f"{number:03}")
    entries = [(FILE, b"d%d/%d" % (one % 7, one), 0o644, b"", 3, one % 200) for one in range(3_000)]
    gc.collect()  # what other tests have left open is closed now, not meanwhile
    before = len(os.listdir("/proc/self/fd"))
    with process(serve) as (caller, _):
        caller.unpack(Root(root), entries, lambda one: os.open(tmp_path / f"blob{one}", os.O_RDONLY))
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert len(caller.find(Root(root), ["**"])) == 3_000
    assert (theirs / "d1" / "1009").read_text() == "009"


def test_the_directory_is_opened_by_the_other_process_where_its_path_is_given(theirs: Path) -> None:
    (theirs / "file").touch()
    (theirs.parent / "link").symlink_to(theirs)
    with process(serve) as (caller, _):
        assert caller.find(Root(path=os.fsencode(theirs)), ["*"]) == [(b"file", 0, 0o644)]
        link = os.fsencode(theirs.parent / "link")
        with pytest.raises(NotADirectoryError):
            caller.find(Root(path=link), ["*"])
        assert caller.find(Root(path=link, follow=True), ["*"]) == [(b"file", 0, 0o644)]
        with pytest.raises(FileNotFoundError):
            caller.find(Root(path=b"/nowhere"), ["*"])


def test_errors_come_back_in_words_and_the_next_question_is_answered(theirs: Path, root: int) -> None:
    at = Root(root)
    os.mkfifo(theirs / "fifo")
    with process(serve) as (caller, _):
        with pytest.raises(OSError, match="it is a FIFO, not a regular file"):
            caller.read(at, b"fifo", 0, 100)
        with pytest.raises(FileNotFoundError):
            caller.read(at, b"nothing", 0, 100)
        with pytest.raises(OSError, match="does not lead into the working directory"):
            caller.find(at, ["../x"])
        with pytest.raises(OSError, match="more than 0 files match"):
            (theirs / "file").touch()
            caller.find(at, ["*"], Limits(files=0))
        with pytest.raises(OSError, match="no operation 'destroy'"):
            ask(caller._sock, {"op": "destroy"}, [root])
        for rubbish in ({}, {"op": "read"}, {"op": "find", "patterns": 7, "limits": []}):
            with pytest.raises(OSError) as caught:
                ask(caller._sock, rubbish, [root])
            assert not isinstance(caught.value, NoAnswer)
        with pytest.raises(OSError):
            ask(caller._sock, {"op": "find"})
        assert caller.find(at, ["file"]) == [(b"file", 0, 0o644)]


def test_the_process_ends_when_the_caller_is_gone(root: int) -> None:
    with process(serve) as (caller, pid):
        caller.find(Root(root), ["*"])
        caller.close()
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None


def test_the_process_ends_by_itself_after_its_time(root: int) -> None:
    with process(lambda sock: serve(sock, 0.1)) as (_, pid):
        seen = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert seen is not None and (seen.si_code, seen.si_status) == (os.CLD_KILLED, signal.SIGALRM)


# --- a stranger in its place ------------------------------------------------------------------------------------------


def hear(sock: socket.socket) -> None:
    size, _ = HEADER.unpack(sock.recv(HEADER.size, socket.MSG_WAITALL))
    sock.recv(size, socket.MSG_WAITALL)


def message(said: object, data: bytes = b"") -> bytes:
    raw = said if isinstance(said, bytes) else json.dumps(said).encode()
    return HEADER.pack(len(raw), len(data)) + raw + data


def saying(raw: bytes) -> Callable[[socket.socket], None]:
    def answer(sock: socket.socket) -> None:
        hear(sock)
        with contextlib.suppress(OSError):
            sock.sendall(raw)
        time.sleep(60)

    return answer


def named(path: bytes, *rest: object) -> list[object]:
    return [path.hex(), *rest]


LISTS: list[object] = [
    None,
    {},
    [[]],
    [7],
    [named(b"../x", 1, 0o644)],
    [named(b"/x", 1, 0o644)],
    [named(b"a//x", 1, 0o644)],
    [named(b"", 1, 0o644)],
    [named(b"a\0", 1, 0o644)],
    [["not hexadecimal", 1, 0o644]],
    [["\ud800", 1, 0o644]],
    [named(b"x" * 4096, 1, 0o644)],
    [named(b"x", -1, 0o644)],
    [named(b"x", 1 << 63, 0o644)],
    [named(b"x", True, 0o644)],
    [named(b"x", 1, 0o4755)],
    [named(b"x", 1, -1)],
    [named(b"x", 1, 0o644, 1)],
    [named(b"x", "1", 0o644)],
    [[["78"], 1, 0o644]],
    [named(b"x", 1, 0o644)] * 101,
    [[]] * 2_000_000,
    [1] * 2_000_000,
]


@pytest.mark.parametrize("said", LISTS, ids=range(len(LISTS)))
def test_a_list_of_files_that_cannot_be_is_refused(root: int, said: object) -> None:
    with process(saying(message({"found": said}))) as (caller, _), pytest.raises(NoAnswer, match="cannot be used"):
        caller.find(Root(root), ["*"], Limits(files=100))


@pytest.mark.parametrize(
    "said",
    [None, 7, {}, [7], [None], ["zz"], [""], [b"..".hex()], [b"a/b".hex()], ["78"] * (NAMES + 1), [[]] * 100_000],
)
def test_a_list_of_names_that_cannot_be_is_refused(root: int, said: object) -> None:
    with process(saying(message({"names": said}))) as (caller, _), pytest.raises(NoAnswer, match="cannot be used"):
        caller.names(Root(root))


ANSWERS = [
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    HEADER.pack(files_socket.ANSWER_BYTES + 1, 0),
    HEADER.pack(2, 101) + b"{}",
    message(b""),
    message(b"[]"),
    message(b"7"),
    message(b"\xff"),
    message(b"{"),
    message(b'{"end": NaN}'),
    message(b'{"end": 1.0}'),
    message(b'{"end": 1}', b"x"),
    message(b'{"end": "' + b"x" * 100 + b'"}'),
    message(b'{"end": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    message(b'{"end": ' + b"9" * 100_000 + b"}"),
    message({"error": 7}),
    message({"error": [0, "nothing"]}),
    message({"error": [1 << 40, "nothing"]}),
    message({"error": [True, "nothing"]}),
    message({"error": ["1", "nothing"]}),
    message({}),
]


@pytest.mark.parametrize("said", ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_of_another_form_or_size_is_refused(root: int, said: bytes) -> None:
    with process(saying(said)) as (caller, _), pytest.raises(NoAnswer, match="cannot be used"):
        caller.read(Root(root), b"file", 0, 100)


def test_an_answer_of_millions_of_values_takes_little_memory(root: int) -> None:
    """Each of them takes 60 bytes once it is parsed, and two on the wire."""
    raw = b'{"found": [' + b"[]," * 2_000_000 + b"[]]}"
    with process(saying(message(raw))) as (caller, _):
        tracemalloc.start()
        try:
            with pytest.raises(NoAnswer, match="too many values"):
                caller.find(Root(root), ["*"])
            assert tracemalloc.get_traced_memory()[1] < 32 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("hole", ["-1", "1.5", "true", str(1 << 63), "[]"])
def test_a_hole_that_cannot_be_is_not_believed(root: int, hole: str) -> None:
    raw = b'{"end": true, "hole": ' + hole.encode() + b"}"
    with process(saying(message(raw))) as (caller, _), pytest.raises(NoAnswer, match="cannot be used"):
        caller.read(Root(root), b"file", 0, 100, holes=True)


def test_a_hole_that_was_not_asked_for_is_not_believed(root: int) -> None:
    raw = b'{"end": true, "hole": 5}'
    with process(saying(message(raw))) as (caller, _), pytest.raises(NoAnswer, match="a hole in it cannot be"):
        caller.read(Root(root), b"file", 0, 100)


def test_a_process_of_the_same_user_cannot_take_descriptors_from_it(root: int) -> None:
    """Root may; so this is asked by another user, who both of them become."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes somebody else")

    def as_nobody(sock: socket.socket) -> None:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after an exec
        serve(sock)

    with process(as_nobody) as (caller, pid):
        caller.find(Root(root), ["*"])
        done = subprocess.run(["ls", f"/proc/{pid}/fd"], user=65534, group=65534, extra_groups=[], capture_output=True)
        assert done.returncode and b"Permission denied" in done.stderr


def test_the_words_of_an_error_cannot_act_on_a_terminal(root: int) -> None:
    said = message({"error": [errno.EACCES, "\x1b[2J\n" + "x" * 10_000]})
    with process(saying(said)) as (caller, _), pytest.raises(PermissionError) as caught:
        caller.read(Root(root), b"file", 0, 100)
    assert caught.value.strerror == "?[2J?" + "x" * 495


def test_a_process_that_is_stopped_or_says_nothing_is_not_waited_for_longer_than_the_time_limit(
    root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_socket, "_GRACE", 0.2)
    began = time.monotonic()
    with process(serve) as (caller, pid):
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(NoAnswer, match="gave no answer"):
            caller.read(Root(root), b"file", 0, 100, seconds=0.1)
    with process(saying(b"")) as (caller, _), pytest.raises(NoAnswer, match="gave no answer"):
        caller.remove(Root(root), b"file", seconds=0.1)
    assert time.monotonic() - began < 5


def test_a_process_that_answers_a_byte_at_a_time_has_no_more_time_than_others(
    root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_socket, "_GRACE", 0.2)

    def drip(sock: socket.socket) -> None:
        hear(sock)
        for byte in message(b" " * 1000):
            sock.sendall(bytes([byte]))
            time.sleep(0.05)

    began = time.monotonic()
    with process(drip) as (caller, _), pytest.raises(NoAnswer, match="gave no answer"):
        caller.read(Root(root), b"file", 0, 100, seconds=0.1)
    assert time.monotonic() - began < 5


def test_a_process_that_reads_nothing_does_not_hold_up_who_asks(
    root: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_socket, "_GRACE", 0.1)
    (tmp_path / "blob").touch()
    entries = [(FILE, b"d" * 200 + b"%d" % one, 0o644, b"", 0, 0) for one in range(20_000)]
    with process(lambda _: time.sleep(60)) as (caller, _), pytest.raises(NoAnswer, match="gave no answer"):
        caller.unpack(Root(root), entries, lambda _: os.open(tmp_path / "blob", os.O_RDONLY), seconds=0.3)


def test_a_process_that_dies_is_noticed_at_once(root: int) -> None:
    def says_little(sock: socket.socket) -> None:
        hear(sock)
        sock.send(b"\0\0\0\x09")

    for does in (hear, socket.socket.close, says_little):
        with process(does) as (caller, _), pytest.raises(NoAnswer, match="ended before"):
            caller.read(Root(root), b"file", 0, 100)


def test_descriptors_wait_until_fewer_of_the_user_are_on_their_way(root: int) -> None:
    def answers(sock: socket.socket) -> None:
        hear(sock)
        sock.sendall(message({"end": True}, b"data"))
        time.sleep(60)

    full, read = socket.socketpair()
    with full, read, process(answers) as (caller, _):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                if os.geteuid() == 0:  # whom the kernel does not limit
                    os.setresuid(NOBODY, NOBODY, NOBODY)
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
                for _ in range(100):
                    try:
                        socket.send_fds(full, [b"x"], [root] * 50)
                    except OSError as error:
                        code = 2 if error.errno == errno.ETOOMANYREFS else 3
                        break
                with contextlib.suppress(OSError):
                    caller.read(Root(root), b"file", 0, 100, seconds=-4.8)
                    code = 4
                threading.Timer(0.3, read.recv, (1 << 16,)).start()
                if code == 2 and caller.read(Root(root), b"file", 0, 100) == (b"data", True, 0):
                    code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_descriptors_that_come_with_an_answer_are_dropped(root: int) -> None:
    def generous(sock: socket.socket) -> None:
        hear(sock)
        end, _ = os.pipe()
        for byte in message({"end": True}, b"data"):
            socket.send_fds(sock, [bytes([byte])], [end] * 10)  # 250 in all: a user may have 1024 on their way

    gc.collect()  # what other tests have left open is closed now, not meanwhile
    before = os.listdir("/proc/self/fd")
    with process(generous) as (caller, _):
        assert caller.read(Root(root), b"file", 0, 100) == (b"data", True, 0)
    assert os.listdir("/proc/self/fd") == before
